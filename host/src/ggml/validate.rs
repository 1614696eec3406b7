//! From records that a guest sent to a graph that ggml may see.
//!
//! A [`ValidGraph`] can only be made here, and only from it is a [`super::Graph`] made. Checked are: every operation
//! and type is one that this build of ggml has and that can be forwarded; places in the table point backwards, so
//! there are no cycles; sources that an operation always has are there; every tensor's bytes, in checked arithmetic,
//! are within a live buffer of the session; a view lies where it says, in the tensor that it views; nodes are named
//! once. What each operation's kernel assumes of shapes beyond that is not checked yet: a violation ends in ggml's
//! own assertion, which ends this session's worker and nothing else.

use super::ffi::{Buffer, Library};
use ferry_protocol::graph::GraphTables;
use ferry_protocol::ids::BufferId;
use ferry_protocol::limits::{NAME_BYTES_MAX, OP_TENSORS_MAX};
use ferry_protocol::meaning::{self, Release};
use ferry_protocol::ops::Op;
use ferry_protocol::tensor::{LayoutError, NO_TENSOR, TensorRecord, flags};
use ferry_protocol::types::TensorType;
use std::ffi::c_int;

/// Why a graph is refused. Places are those in the table of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Invalid {
    #[error("tensor {0}: the host's ggml has no {1}")]
    UnknownOp(usize, Op),
    #[error("tensor {0}: {1} cannot be forwarded")]
    NotForwardable(usize, Op),
    #[error("tensor {0}: the host's ggml has no variant {2} of {1}")]
    UnknownSubOp(usize, Op, i32),
    #[error("tensor {0}: the host's ggml has no {1}")]
    UnknownType(usize, TensorType),
    #[error("tensor {0}: {1} means this in {2} and newer; the host's ggml is older")]
    Meaning(usize, Op, Release),
    #[error("tensor {0}: {1}")]
    Layout(usize, LayoutError),
    #[error("tensor {0}: place {1} is not before it")]
    Order(usize, u32),
    #[error("tensor {0}: {1} lacks source {2}")]
    MissingSource(usize, Op, usize),
    #[error("tensor {0}: unknown flags {1:#x}")]
    Flags(usize, u32),
    #[error("tensor {0}: reserved bits are set")]
    Reserved(usize),
    #[error("tensor {0}: name at {1} with {2} bytes")]
    Name(usize, u32, u32),
    #[error("tensor {0}: buffer {1:?} does not exist")]
    Buffer(usize, BufferId),
    #[error("tensor {tensor}: bytes {offset} to {offset}+{bytes} are not within its buffer of {size}")]
    OutOfBuffer { tensor: usize, offset: u64, bytes: u64, size: u64 },
    #[error("tensor {0} has a place in a question")]
    Placed(usize),
    #[error("tensor {0}: a view that does not lie in what it views")]
    View(usize),
    #[error("node {0}: place {1} does not exist or was named before")]
    Node(usize, u32),
    #[error("{0} records, between 1 and {OP_TENSORS_MAX} are allowed")]
    Count(usize),
}

impl Invalid {
    /// Whether the host lacks something, rather than the guest having sent nonsense.
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Self::UnknownOp(..)
                | Self::NotForwardable(..)
                | Self::UnknownSubOp(..)
                | Self::UnknownType(..)
                | Self::Meaning(..)
        )
    }
}

/// A tensor's operation in this build's numbers.
#[derive(Clone, Copy)]
pub(super) struct OpNumber {
    /// `enum ggml_op`.
    pub op: c_int,
    /// The first parameter.
    pub first_param: i32,
}

/// Tables that passed every check, and what they name.
pub struct ValidGraph<'a> {
    pub(super) tables: &'a GraphTables,
    pub(super) ops: Vec<OpNumber>,
    pub(super) buffers: Vec<Option<&'a Buffer>>,
}

impl<'a> ValidGraph<'a> {
    /// Checks `tables`, whose buffers `find` finds.
    pub fn check(
        library: &Library,
        tables: &'a GraphTables,
        find: impl Fn(BufferId) -> Option<&'a Buffer>,
    ) -> Result<Self, Invalid> {
        let (mut ops, mut buffers) = (Vec::with_capacity(tables.tensors.len()), Vec::new());
        for (at, record) in tables.tensors.iter().enumerate() {
            ops.push(check_op(library, at, record)?);
            check_name(at, record, tables.names.len())?;
            check_links(at, record, &tables.tensors)?;
            check_meaning(library, at, record, &tables.tensors)?;
            buffers.push(check_place(library, at, record, &find)?);
        }
        check_nodes(tables)?;
        Ok(Self { tables, ops, buffers })
    }

    /// Checks the tables of one operation, whose tensors have no place yet.
    pub fn check_op(library: &Library, tables: &'a GraphTables) -> Result<Self, Invalid> {
        if tables.tensors.is_empty() || tables.tensors.len() > OP_TENSORS_MAX {
            return Err(Invalid::Count(tables.tensors.len()));
        }
        Self::check_unplaced(library, tables)
    }

    /// Checks tables whose tensors have no place yet. They must never be computed.
    pub fn check_unplaced(library: &Library, tables: &'a GraphTables) -> Result<Self, Invalid> {
        if let Some(at) = tables.tensors.iter().position(|tensor| tensor.layout.buffer != BufferId::NONE) {
            return Err(Invalid::Placed(at));
        }
        let mut ops = Vec::with_capacity(tables.tensors.len());
        for (at, record) in tables.tensors.iter().enumerate() {
            ops.push(check_op(library, at, record)?);
            check_name(at, record, tables.names.len())?;
            check_links(at, record, &tables.tensors)?;
            check_meaning(library, at, record, &tables.tensors)?;
            check_layout(library, at, record)?;
        }
        check_nodes(tables)?;
        Ok(Self { tables, ops, buffers: vec![None; tables.tensors.len()] })
    }
}

fn check_op(library: &Library, at: usize, record: &TensorRecord) -> Result<OpNumber, Invalid> {
    let op = record.op;
    let row = op.row().ok_or(Invalid::UnknownOp(at, op))?;
    if !op.is_forwardable() {
        return Err(Invalid::NotForwardable(at, op));
    }
    let number = library.names().op(op).ok_or(Invalid::UnknownOp(at, op))?;
    if let Some(missing) = record.src[..row.sources_min].iter().position(|&src| src == NO_TENSOR) {
        return Err(Invalid::MissingSource(at, op, missing));
    }
    if record.flags & !flags::ALL != 0 {
        return Err(Invalid::Flags(at, record.flags));
    }
    let first = record.op_params[0];
    let first_param = match op.sub_ops() {
        None => first,
        Some(_) => library.names().sub_op(op, first).ok_or(Invalid::UnknownSubOp(at, op, first))?,
    };
    Ok(OpNumber { op: number, first_param })
}

fn check_name(at: usize, record: &TensorRecord, names: usize) -> Result<(), Invalid> {
    let (start, len) = (record.name_offset, record.name_len);
    let fits = len < NAME_BYTES_MAX as u32 && start.checked_add(len).is_some_and(|end| end as usize <= names);
    if fits { Ok(()) } else { Err(Invalid::Name(at, start, len)) }
}

/// Sources and the viewed tensor come before the tensor, and what is viewed is not itself a view: ggml resolves views
/// of views when it makes them.
fn check_links(at: usize, record: &TensorRecord, tensors: &[TensorRecord]) -> Result<(), Invalid> {
    let links = record.src.iter().chain([&record.view_src]);
    if let Some(&link) = links.clone().find(|&&link| link != NO_TENSOR && link as usize >= at) {
        return Err(Invalid::Order(at, link));
    }
    if record.layout.reserved != 0 {
        return Err(Invalid::Reserved(at));
    }
    if record.view_src == NO_TENSOR {
        return if record.view_offset == 0 { Ok(()) } else { Err(Invalid::View(at)) };
    }
    let base = &tensors[record.view_src as usize];
    let lies_there = base.view_src == NO_TENSOR
        && base.layout.buffer == record.layout.buffer
        && base.layout.offset.checked_add(record.view_offset) == Some(record.layout.offset);
    // The tensors of a question have no place, and every offset of them is 0.
    let unplaced = base.layout.buffer == BufferId::NONE && record.layout.buffer == BufferId::NONE;
    if lies_there || unplaced { Ok(()) } else { Err(Invalid::View(at)) }
}

/// What is asked for must be what this build does under that name.
fn check_meaning(
    library: &Library,
    at: usize,
    record: &TensorRecord,
    tensors: &[TensorRecord],
) -> Result<(), Invalid> {
    // Links were checked: a place that is not in the table is none.
    let sources = record.src.map(|src| tensors.get(src as usize).map(|source| &source.layout));
    let since = meaning::since(record.op, &record.op_params, &record.layout, &sources);
    if since <= library.names().release() { Ok(()) } else { Err(Invalid::Meaning(at, record.op, since)) }
}

fn check_layout(library: &Library, at: usize, record: &TensorRecord) -> Result<u64, Invalid> {
    if !library.names().has_type(record.layout.kind) {
        return Err(Invalid::UnknownType(at, record.layout.kind));
    }
    record.layout.extent_bytes().map_err(|error| Invalid::Layout(at, error))
}

fn check_place<'a>(
    library: &Library,
    at: usize,
    record: &TensorRecord,
    find: &impl Fn(BufferId) -> Option<&'a Buffer>,
) -> Result<Option<&'a Buffer>, Invalid> {
    let bytes = check_layout(library, at, record)?;
    let (id, offset) = (record.layout.buffer, record.layout.offset);
    if id == BufferId::NONE && bytes == 0 {
        return Ok(None);
    }
    let buffer = find(id).ok_or(Invalid::Buffer(at, id))?;
    let size = buffer.size();
    match offset.checked_add(bytes) {
        Some(end) if end <= size => Ok(Some(buffer)),
        _ => Err(Invalid::OutOfBuffer { tensor: at, offset, bytes, size }),
    }
}

fn check_nodes(tables: &GraphTables) -> Result<(), Invalid> {
    let mut named = vec![false; tables.tensors.len()];
    for (at, &place) in tables.nodes.iter().enumerate() {
        match named.get_mut(place as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(Invalid::Node(at, place)),
        }
    }
    Ok(())
}
