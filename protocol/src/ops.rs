//! ggml's operations under numbers that do not move.
//!
//! ggml renumbers its operations in almost every release, so an operation travels under its place in [`OPS`],
//! and each side translates by *name*, which ggml keeps. The lists only ever grow at their ends. An operation
//! that is not in them is never put on the wire and is refused when it arrives: what cannot be named cannot be
//! validated. Names are those of `ggml_op_name`, `ggml_unary_op_name` and `ggml_glu_op_name` (ggml 0.26).

use bytemuck::{Pod, Zeroable};

/// An operation: its place in [`OPS`]. An open set.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct Op(pub u32);

/// Operations that this protocol can name, in the order of their numbers.
pub const OPS: &[&str] = &[
    "NONE", "DUP", "ADD", "ADD_ID", "ADD1", "ACC", "SUB", "MUL", "DIV", "SQR", "SQRT", "LOG", "SIN", "COS",
    "SUM", "SUM_ROWS", "CUMSUM", "MEAN", "ARGMAX", "COUNT_EQUAL", "REPEAT", "REPEAT_BACK", "CONCAT",
    "SILU_BACK", "NORM", "RMS_NORM", "RMS_NORM_BACK", "GROUP_NORM", "L2_NORM", "MUL_MAT", "MUL_MAT_ID",
    "OUT_PROD", "SCALE", "SET", "CPY", "CONT", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "GET_ROWS",
    "GET_ROWS_BACK", "SET_ROWS", "DIAG", "DIAG_MASK_INF", "DIAG_MASK_ZERO", "SOFT_MAX", "SOFT_MAX_BACK",
    "ROPE", "ROPE_BACK", "CLAMP", "CONV_TRANSPOSE_1D", "IM2COL", "IM2COL_BACK", "IM2COL_3D", "COL2IM_1D",
    "CONV_2D", "CONV_3D", "CONV_2D_DW", "CONV_TRANSPOSE_2D", "POOL_1D", "POOL_2D", "POOL_2D_BACK",
    "UPSCALE", "PAD", "PAD_REFLECT_1D", "ROLL", "ARANGE", "TIMESTEP_EMBEDDING", "ARGSORT", "TOP_K",
    "LEAKY_RELU", "TRI", "FILL", "FLASH_ATTN_EXT", "FLASH_ATTN_BACK", "SSM_CONV", "SSM_SCAN", "WIN_PART",
    "WIN_UNPART", "GET_REL_POS", "ADD_REL_POS", "RWKV_WKV6", "GATED_LINEAR_ATTN", "RWKV_WKV7", "SOLVE_TRI",
    "GATED_DELTA_NET", "LIGHTNING_INDEXER", "DSV4_HC_COMB", "DSV4_HC_PRE", "DSV4_HC_POST", "UNARY",
    "MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3", "CUSTOM", "CROSS_ENTROPY_LOSS", "CROSS_ENTROPY_LOSS_BACK",
    "OPT_STEP_ADAMW", "OPT_STEP_SGD", "GLU",
];

/// Unary operations: the first parameter of `UNARY`.
pub const UNARY_OPS: &[&str] = &[
    "ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "SIGMOID", "GELU", "GELU_QUICK", "SILU",
    "HARDSWISH", "HARDSIGMOID", "EXP", "EXPM1", "SOFTPLUS", "GELU_ERF", "XIELU", "FLOOR", "CEIL", "ROUND",
    "TRUNC",
];

/// Gated linear units: the first parameter of `GLU`.
pub const GLU_OPS: &[&str] = &[
    "REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP",
];

/// Operations that carry function pointers of the guest's process. They are refused on both sides.
const NEVER_FORWARDED: &[&str] = &["MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3", "CUSTOM"];

/// The number of `name` in `list`, a slice like [`OPS`].
const fn number(list: &[&str], name: &str) -> u32 {
    let mut at = 0;
    while at < list.len() {
        if same(list[at], name) {
            return at as u32;
        }
        at += 1;
    }
    panic!("no such operation")
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

macro_rules! named {
    ($($name:ident)*) => {
        #[allow(missing_docs)] // each is ggml's operation of that name
        impl Op {
            $(pub const $name: Self = Self(number(OPS, stringify!($name)));)*
        }
    };
}

// The operations that this code itself tells apart.
named! { NONE RESHAPE VIEW PERMUTE TRANSPOSE UNARY GLU FLASH_ATTN_EXT MUL_MAT MUL_MAT_ID CUMSUM ARGSORT TOP_K }

impl Op {
    /// The operation that ggml calls `name`, if the protocol has it.
    pub fn by_name(name: &str) -> Option<Self> {
        OPS.iter().position(|op| *op == name).map(|at| Self(at as u32))
    }

    /// ggml's name of it.
    pub fn name(self) -> Option<&'static str> {
        OPS.get(self.0 as usize).copied()
    }

    /// Whether it can be computed on the other side at all.
    pub fn is_forwardable(self) -> bool {
        self.name().is_some_and(|name| !NEVER_FORWARDED.contains(&name))
    }

    /// Whether it only gives a tensor another shape: nothing is computed.
    pub fn is_view(self) -> bool {
        matches!(self, Self::NONE | Self::RESHAPE | Self::VIEW | Self::PERMUTE | Self::TRANSPOSE)
    }

    /// The list that its first parameter is a number of, where it has one.
    pub fn sub_ops(self) -> Option<&'static [&'static str]> {
        match self {
            Self::UNARY => Some(UNARY_OPS),
            Self::GLU => Some(GLU_OPS),
            _ => None,
        }
    }

    /// Whether a back-end may need more bytes for its result than the result has
    /// (`ggml_op_alloc_size_may_expand`, ggml 0.26).
    pub fn may_need_scratch(self) -> bool {
        matches!(
            self,
            Self::FLASH_ATTN_EXT | Self::MUL_MAT | Self::MUL_MAT_ID | Self::CUMSUM | Self::ARGSORT | Self::TOP_K
        )
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "operation {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for list in [OPS, UNARY_OPS, GLU_OPS] {
            for (at, name) in list.iter().enumerate() {
                assert_eq!(list.iter().position(|other| other == name), Some(at), "{name}");
            }
        }
    }

    /// A number that moved would make two builds compute different things.
    #[test]
    fn numbers_do_not_move() {
        let pinned = [("NONE", 0), ("ADD", 2), ("MUL_MAT", 29), ("ROPE", 48), ("FLASH_ATTN_EXT", 74), ("GLU", 100)];
        for (name, number) in pinned {
            assert_eq!(Op::by_name(name), Some(Op(number)), "{name}");
        }
        assert_eq!((UNARY_OPS[10], GLU_OPS[2]), ("SILU", "SWIGLU"));
    }

    #[test]
    fn function_pointers_are_not_forwarded() {
        for name in NEVER_FORWARDED {
            assert!(!Op::by_name(name).expect("is in the list").is_forwardable());
        }
        assert!(!Op(OPS.len() as u32).is_forwardable());
        assert!(Op::MUL_MAT.is_forwardable());
    }
}
