//! A tensor as a record of fixed size.

use crate::ids::BufferId;
use crate::limits::{DIMS, OP_PARAMS, SOURCES_MAX};
use crate::ops::Op;
use crate::types::TensorType;
use bytemuck::{Pod, Zeroable};

/// Stands in [`TensorRecord::src`] and [`TensorRecord::view_src`] for "none".
pub const NO_TENSOR: u32 = u32::MAX;

/// Shape, type and place of a tensor's data: what a transfer needs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct TensorLayout {
    /// Elements in each dimension.
    pub ne: [i64; DIMS],
    /// Strides in bytes.
    pub nb: [u64; DIMS],
    /// The buffer that holds the data, or [`BufferId::NONE`].
    pub buffer: BufferId,
    /// Where the data starts, in bytes from the start of the buffer.
    pub offset: u64,
    /// Element type.
    pub kind: TensorType,
    /// 0.
    pub reserved: u32,
}

/// A tensor of a graph.
///
/// `src` and `view_src` are places in the same table, always smaller than the tensor's own: a table has no cycles.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct TensorRecord {
    /// Shape, type and place.
    pub layout: TensorLayout,
    /// Bytes from the start of the data of `view_src`.
    pub view_offset: u64,
    /// The operation whose result this is; [`Op::NONE`] for a leaf.
    pub op: Op,
    /// ggml's tensor flags (input, output, param, loss, compute).
    pub flags: u32,
    /// The operation's parameters. The first one of `UNARY` and `GLU` is a number of this protocol, see
    /// [`Op::sub_ops`].
    pub op_params: [i32; OP_PARAMS],
    /// The operation's sources.
    pub src: [u32; SOURCES_MAX],
    /// The tensor that this is a view of.
    pub view_src: u32,
    /// How often the *whole* graph uses the tensor, which may be more often than this part of it does.
    pub use_count: i32,
    /// Where the name starts in the table of names.
    pub name_offset: u32,
    /// Bytes of the name, without terminator.
    pub name_len: u32,
}

const _: () = assert!(size_of::<TensorLayout>() == 88);
const _: () = assert!(size_of::<TensorRecord>() == 224);

impl Default for TensorRecord {
    fn default() -> Self {
        Self { src: [NO_TENSOR; SOURCES_MAX], view_src: NO_TENSOR, ..Self::zeroed() }
    }
}

/// ggml's tensor flags.
pub mod flags {
    /// `GGML_TENSOR_FLAG_COMPUTE`: newer hosts skip nodes without it, guests from before January 2026 do not know it.
    pub const COMPUTE: u32 = 16;
    /// Every flag that is defined.
    pub const ALL: u32 = 31;
}

/// Why a layout does not describe bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Nobody defined this type.
    #[error("element type {0} is not known")]
    Type(u32),
    /// A negative dimension, or a row that is not a whole number of blocks.
    #[error("shape {0:?} is not one of this type")]
    Shape([i64; DIMS]),
    /// The extent does not fit 64 bits.
    #[error("extent overflows 64 bits")]
    Overflow,
}

impl TensorLayout {
    /// Bytes from the first to behind the last element (`ggml_nbytes`), in checked arithmetic.
    pub fn extent_bytes(&self) -> Result<u64, LayoutError> {
        let row = self.kind.row().ok_or(LayoutError::Type(self.kind.0))?;
        let block = i64::from(row.block_elements);
        if self.ne.iter().any(|&n| n < 0) || self.ne[0] % block != 0 {
            return Err(LayoutError::Shape(self.ne));
        }
        if self.ne.contains(&0) {
            return Ok(0);
        }
        let last =
            |dim: usize| ((self.ne[dim] - 1) as u64).checked_mul(self.nb[dim]).ok_or(LayoutError::Overflow);
        let first = if block == 1 {
            u64::from(row.block_bytes).checked_add(last(0)?)
        } else {
            ((self.ne[0] / block) as u64).checked_mul(self.nb[0])
        };
        (1..DIMS).try_fold(first.ok_or(LayoutError::Overflow)?, |sum, dim| {
            sum.checked_add(last(dim)?).ok_or(LayoutError::Overflow)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(kind: u32, ne: [i64; 4], nb: [u64; 4]) -> TensorLayout {
        TensorLayout { kind: TensorType(kind), ne, nb, ..TensorLayout::default() }
    }

    #[test]
    fn extents_are_ggml_nbytes() {
        assert_eq!(layout(0, [3, 5, 1, 1], [4, 12, 60, 60]).extent_bytes(), Ok(60));
        assert_eq!(layout(3, [64, 2, 1, 1], [20, 40, 80, 80]).extent_bytes(), Ok(80));
        assert_eq!(layout(0, [3, 0, 1, 1], [4, 12, 0, 0]).extent_bytes(), Ok(0));
        // a transposed view: the stride of the first dimension is the larger one
        assert_eq!(layout(0, [5, 3, 1, 1], [12, 4, 60, 60]).extent_bytes(), Ok(60));
    }

    #[test]
    fn nonsense_is_an_error() {
        assert_eq!(layout(4, [1; 4], [4; 4]).extent_bytes(), Err(LayoutError::Type(4)));
        assert!(matches!(layout(0, [-1, 1, 1, 1], [4; 4]).extent_bytes(), Err(LayoutError::Shape(_))));
        assert!(matches!(layout(3, [33, 1, 1, 1], [20; 4]).extent_bytes(), Err(LayoutError::Shape(_))));
        let huge = layout(0, [i64::MAX; 4], [u64::MAX; 4]);
        assert_eq!(huge.extent_bytes(), Err(LayoutError::Overflow));
    }
}
