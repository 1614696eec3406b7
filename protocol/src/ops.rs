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

/// A row of the table of operations.
#[derive(Debug)]
pub struct OpRow {
    /// ggml's name.
    pub name: &'static str,
    /// Sources that it always has: the first so many of `src`.
    pub sources_min: usize,
}

macro_rules! ops {
    ($($name:ident $sources:literal;)*) => {
        /// Operations that this protocol can name, in the order of their numbers.
        pub const OPS: &[OpRow] = &[$(OpRow { name: stringify!($name), sources_min: $sources }),*];
    };
}

ops! {
    NONE 0; DUP 1; ADD 2; ADD_ID 3; ADD1 2; ACC 2; SUB 2; MUL 2; DIV 2; SQR 1; SQRT 1; LOG 1; SIN 1; COS 1;
    SUM 1; SUM_ROWS 1; CUMSUM 1; MEAN 1; ARGMAX 1; COUNT_EQUAL 2; REPEAT 1; REPEAT_BACK 1; CONCAT 2;
    SILU_BACK 2; NORM 1; RMS_NORM 1; RMS_NORM_BACK 2; GROUP_NORM 1; L2_NORM 1; MUL_MAT 2; MUL_MAT_ID 3;
    OUT_PROD 2; SCALE 1; SET 2; CPY 2; CONT 1; RESHAPE 1; VIEW 1; PERMUTE 1; TRANSPOSE 1; GET_ROWS 2;
    GET_ROWS_BACK 2; SET_ROWS 2; DIAG 1; DIAG_MASK_INF 1; DIAG_MASK_ZERO 1; SOFT_MAX 1; SOFT_MAX_BACK 2;
    ROPE 2; ROPE_BACK 2; CLAMP 1; CONV_TRANSPOSE_1D 2; IM2COL 2; IM2COL_BACK 2; IM2COL_3D 2; COL2IM_1D 1;
    CONV_2D 2; CONV_3D 2; CONV_2D_DW 2; CONV_TRANSPOSE_2D 2; POOL_1D 1; POOL_2D 1; POOL_2D_BACK 2;
    UPSCALE 1; PAD 1; PAD_REFLECT_1D 1; ROLL 1; ARANGE 0; TIMESTEP_EMBEDDING 1; ARGSORT 1; TOP_K 1;
    LEAKY_RELU 1; TRI 1; FILL 1; FLASH_ATTN_EXT 3; FLASH_ATTN_BACK 4; SSM_CONV 2; SSM_SCAN 6; WIN_PART 1;
    WIN_UNPART 1; GET_REL_POS 1; ADD_REL_POS 3; RWKV_WKV6 6; GATED_LINEAR_ATTN 5; RWKV_WKV7 7; SOLVE_TRI 2;
    GATED_DELTA_NET 6; LIGHTNING_INDEXER 4; DSV4_HC_COMB 3; DSV4_HC_PRE 2; DSV4_HC_POST 3; UNARY 1;
    MAP_CUSTOM1 1; MAP_CUSTOM2 1; MAP_CUSTOM3 1; CUSTOM 1; CROSS_ENTROPY_LOSS 2; CROSS_ENTROPY_LOSS_BACK 3;
    OPT_STEP_ADAMW 5; OPT_STEP_SGD 3; GLU 1;
}

/// Unary operations: the first parameter of `UNARY`.
pub const UNARY_OPS: &[&str] = &[
    "ABS",
    "SGN",
    "NEG",
    "STEP",
    "TANH",
    "ELU",
    "RELU",
    "SIGMOID",
    "GELU",
    "GELU_QUICK",
    "SILU",
    "HARDSWISH",
    "HARDSIGMOID",
    "EXP",
    "EXPM1",
    "SOFTPLUS",
    "GELU_ERF",
    "XIELU",
    "FLOOR",
    "CEIL",
    "ROUND",
    "TRUNC",
];

/// Gated linear units: the first parameter of `GLU`.
pub const GLU_OPS: &[&str] =
    &["REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP"];

/// Operations that carry function pointers of the guest's process. They are refused on both sides.
const NEVER_FORWARDED: &[&str] = &["MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3", "CUSTOM"];

/// The number of `name`.
const fn number(name: &str) -> u32 {
    let mut at = 0;
    while at < OPS.len() {
        if same(OPS[at].name, name) {
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
            $(pub const $name: Self = Self(number(stringify!($name)));)*
        }
    };
}

// The operations that this code itself tells apart.
named! {
    NONE RESHAPE VIEW PERMUTE TRANSPOSE UNARY GLU FLASH_ATTN_EXT MUL_MAT MUL_MAT_ID CUMSUM ARGSORT TOP_K PAD SSM_SCAN
    GATED_DELTA_NET DSV4_HC_PRE DSV4_HC_POST TIMESTEP_EMBEDDING SOFT_MAX SET_ROWS ROPE ROPE_BACK UPSCALE FILL
}

impl Op {
    /// The operation that ggml calls `name`, if the protocol has it.
    pub fn by_name(name: &str) -> Option<Self> {
        OPS.iter().position(|op| op.name == name).map(|at| Self(at as u32))
    }

    /// Its row, or `None` for an operation that nobody defined.
    pub fn row(self) -> Option<&'static OpRow> {
        OPS.get(self.0 as usize)
    }

    /// ggml's name of it.
    pub fn name(self) -> Option<&'static str> {
        self.row().map(|row| row.name)
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
            Self::FLASH_ATTN_EXT
                | Self::MUL_MAT
                | Self::MUL_MAT_ID
                | Self::CUMSUM
                | Self::ARGSORT
                | Self::TOP_K
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
        let ops: Vec<&str> = OPS.iter().map(|op| op.name).collect();
        for list in [ops.as_slice(), UNARY_OPS, GLU_OPS] {
            for (at, name) in list.iter().enumerate() {
                assert_eq!(list.iter().position(|other| other == name), Some(at), "{name}");
            }
        }
    }

    /// A number that moved would make two builds compute different things.
    #[test]
    fn numbers_do_not_move() {
        let pinned =
            [("NONE", 0), ("ADD", 2), ("MUL_MAT", 29), ("ROPE", 48), ("FLASH_ATTN_EXT", 74), ("GLU", 100)];
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
