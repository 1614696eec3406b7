//! What each call carries: bytes → cursor → [`Request`].

use crate::calls::CallCode;
use crate::cursor::{Cursor, CursorError, only};
use crate::graph::{self, GraphError, GraphTables, PatchHeader, TensorChange};
use crate::ids::{BufferId, EventId, GraphId, RegionId};
use crate::limits::{OP_TENSORS_MAX, STORE_PIECES_MAX};
use crate::store::{PieceHash, pieces_of};
use crate::tensor::{TensorLayout, TensorRecord};
use bytemuck::{Pod, Zeroable};

/// Allocates `size` bytes on `device`. The answer is a [`crate::reply::Allocated`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct AllocBuffer {
    /// Bytes.
    pub size: u64,
    /// Place in the list of devices.
    pub device: u32,
    /// 0.
    pub reserved: u32,
}

/// A buffer and a byte: the value to clear it to, or its usage (`enum ggml_backend_buffer_usage`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct BufferValue {
    /// Which buffer.
    pub buffer: BufferId,
    /// The value; below 256.
    pub value: u64,
}

/// A range of bytes of a buffer. In a WRITE the bytes follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Range {
    /// Which buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub size: u64,
}

/// A range of bytes of a tensor. In a SET_TENSOR the bytes follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct TensorRange {
    /// The tensor.
    pub tensor: TensorLayout,
    /// First byte, from the start of the tensor's data.
    pub offset: u64,
    /// Number of bytes.
    pub size: u64,
}

/// Runs of bytes of a tensor, each `stride` bytes behind the start of the last one. In a SET_TENSOR_2D their bytes follow,
/// one run directly behind the other; so they come in the answer to a GET_TENSOR_2D.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct TensorRuns {
    /// The tensor.
    pub tensor: TensorLayout,
    /// First byte of the first run, from the start of the tensor's data.
    pub offset: u64,
    /// Bytes of each run.
    pub size: u64,
    /// Number of runs.
    pub runs: u64,
    /// Bytes from the start of one run to the start of the next one.
    pub stride: u64,
}

impl TensorRuns {
    /// Bytes of all runs, unless nobody can count them.
    pub fn bytes(&self) -> Option<u64> {
        self.size.checked_mul(self.runs)
    }

    /// Bytes from the start of the first run to the end of the last one; `None` if there is no run, or no such end.
    pub fn extent(&self) -> Option<u64> {
        self.runs.checked_sub(1)?.checked_mul(self.stride)?.checked_add(self.size)
    }
}

/// Fills a range of a tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct MemsetTensor {
    /// Where.
    pub range: TensorRange,
    /// With which byte; below 256.
    pub value: u64,
}

/// Copies a tensor of a session to another one of the same size.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct CopyTensor {
    /// From.
    pub src: TensorLayout,
    /// To.
    pub dst: TensorLayout,
}

/// Shares `size` bytes as `region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct AddRegion {
    /// Bytes.
    pub size: u64,
    /// Its name, which no region of the session has.
    pub region: RegionId,
    /// 0.
    pub reserved: u32,
}

/// Copies between a range of a tensor and as many bytes of a region: out of it for a SET_FROM_REGION, into it for a
/// GET_INTO_REGION.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct RegionTransfer {
    /// The tensor's side.
    pub range: TensorRange,
    /// First byte in the region.
    pub at: u64,
    /// The region.
    pub region: RegionId,
    /// 0.
    pub reserved: u32,
}

/// In front of what a range of a tensor is made of. Behind it come `pieces` hashes ([`PieceHash`]), one for each piece of
/// the range, counted from its start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct StoredHeader {
    /// The bytes that are wanted there.
    pub range: TensorRange,
    /// Hashes that follow.
    pub pieces: u32,
    /// 0.
    pub reserved: u32,
}

/// Makes `event` on `device`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct NewEvent {
    /// Its name.
    pub event: EventId,
    /// Place in the list of devices.
    pub device: u32,
    /// 0.
    pub reserved: u32,
}

/// In front of an operation that is asked about. Behind it come `tensors` records: the sources and their bases
/// before it, the operation's result last. None of them has a name.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct OpQueryHeader {
    /// Place in the list of devices.
    pub device: u32,
    /// Records that follow.
    pub tensors: u32,
}

/// A call with its parameters; what is not of fixed size stays behind it in the message.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// [`CallCode::ALLOC_BUFFER`]
    AllocBuffer(AllocBuffer),
    /// [`CallCode::FREE_BUFFER`]
    FreeBuffer(BufferId),
    /// [`CallCode::CLEAR_BUFFER`]
    ClearBuffer(BufferValue),
    /// [`CallCode::SET_USAGE`]
    SetUsage(BufferValue),
    /// [`CallCode::RESET_BUFFER`]
    ResetBuffer(BufferId),
    /// [`CallCode::WRITE`]
    Write(Range),
    /// [`CallCode::READ`]
    Read(Range),
    /// [`CallCode::SET_TENSOR`]
    SetTensor(TensorRange),
    /// [`CallCode::GET_TENSOR`]
    GetTensor(TensorRange),
    /// [`CallCode::SET_TENSOR_2D`]
    SetTensor2d(TensorRuns),
    /// [`CallCode::GET_TENSOR_2D`]
    GetTensor2d(TensorRuns),
    /// [`CallCode::INIT_TENSOR`]
    InitTensor(TensorLayout),
    /// [`CallCode::MEMSET_TENSOR`]
    MemsetTensor(MemsetTensor),
    /// [`CallCode::COPY_TENSOR`]
    CopyTensor(CopyTensor),
    /// [`CallCode::ADD_REGION`]
    AddRegion(AddRegion),
    /// [`CallCode::DROP_REGION`]
    DropRegion(RegionId),
    /// [`CallCode::SET_FROM_REGION`]
    SetFromRegion(RegionTransfer),
    /// [`CallCode::GET_INTO_REGION`]
    GetIntoRegion(RegionTransfer),
    /// [`CallCode::SET_FROM_STORE`]: the range and its pieces
    SetFromStore(TensorRange, Vec<PieceHash>),
    /// [`CallCode::EVENT_NEW`]
    EventNew(NewEvent),
    /// [`CallCode::EVENT_FREE`]
    EventFree(EventId),
    /// [`CallCode::EVENT_RECORD`]
    EventRecord(EventId),
    /// [`CallCode::EVENT_WAIT`]
    EventWait(EventId),
    /// [`CallCode::EVENT_SYNCHRONIZE`]
    EventSynchronize(EventId),
    /// [`CallCode::INIT_BACKEND`]: the device
    InitBackend(u32),
    /// [`CallCode::FREE_BACKEND`]
    FreeBackend,
    /// [`CallCode::SYNCHRONIZE`]
    Synchronize,
    /// [`CallCode::SET_THREADS`]: how many
    SetThreads(u32),
    /// [`CallCode::GRAPH_DEF`]
    GraphDef(GraphId, GraphTables),
    /// [`CallCode::GRAPH_PATCH`]
    GraphPatch(PatchHeader, Vec<TensorChange>),
    /// [`CallCode::GRAPH_FREE`]
    GraphFree(GraphId),
    /// [`CallCode::EXEC`]
    Exec(GraphId),
    /// [`CallCode::GRAPH_OPTIMIZE`]: tensors without places
    GraphOptimize(GraphTables),
    /// [`CallCode::SUPPORTS_OP`]: the device and the records
    SupportsOp(u32, Vec<TensorRecord>),
    /// [`CallCode::ALLOC_SIZE`]: the device and the records
    AllocSize(u32, Vec<TensorRecord>),
    /// [`CallCode::MEMORY`]: the device
    Memory(u32),
}

/// Why bytes are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Not a call of a session.
    #[error("unknown call {:#x}", .0.0)]
    UnknownCall(CallCode),
    /// Too short, or bytes left over.
    #[error("{0}: {1}")]
    Cursor(CallCode, CursorError),
    /// A graph that is too large, too short, or too long.
    #[error("{0}: {1}")]
    Graph(CallCode, GraphError),
    /// More than [`OP_TENSORS_MAX`] records in a question about an operation, or none.
    #[error("{0}: {1} records, between 1 and {OP_TENSORS_MAX} are allowed")]
    OpTensors(CallCode, u32),
    /// More than [`STORE_PIECES_MAX`] hashes, or not one for each piece of the range.
    #[error(
        "{call}: {hashes} hashes for {bytes} bytes; each piece has one, and {STORE_PIECES_MAX} are allowed"
    )]
    Pieces {
        /// The call.
        call: CallCode,
        /// Hashes announced.
        hashes: u32,
        /// Bytes of the range.
        bytes: u64,
    },
    /// A reserved field is not 0. What it will mean one day must not pass by a host that does not know it.
    #[error("{0}: a reserved field is not 0")]
    Reserved(CallCode),
    /// A value out of its range.
    #[error("{0}: value {1} is out of range")]
    Value(CallCode, u64),
    /// The bytes that follow are not as many as the call says.
    #[error("{call}: {said} bytes of data announced, {found} found")]
    Data {
        /// The call.
        call: CallCode,
        /// Bytes that it announced.
        said: u64,
        /// Bytes that were there.
        found: u64,
    },
}

/// Bytes of parameters in front of the data in the calls that carry some; `None` for the others, whose whole
/// payload is parameters.
pub fn params_bytes(call: CallCode) -> Option<usize> {
    match call {
        CallCode::WRITE => Some(size_of::<Range>()),
        CallCode::SET_TENSOR => Some(size_of::<TensorRange>()),
        CallCode::SET_TENSOR_2D => Some(size_of::<TensorRuns>()),
        _ => None,
    }
}

impl Request {
    /// Reads the parameters of `call` from `params`, a private copy: the whole payload, or for a call of
    /// [`params_bytes`] its front, with `data_bytes` of data behind it.
    pub fn parse(call: CallCode, params: &[u8], data_bytes: usize) -> Result<Self, RequestError> {
        let request = match call {
            CallCode::ALLOC_BUFFER => Self::AllocBuffer(fixed(call, params)?),
            CallCode::FREE_BUFFER => Self::FreeBuffer(fixed(call, params)?),
            CallCode::CLEAR_BUFFER => Self::ClearBuffer(byte_value(call, params)?),
            CallCode::SET_USAGE => Self::SetUsage(byte_value(call, params)?),
            CallCode::RESET_BUFFER => Self::ResetBuffer(fixed(call, params)?),
            CallCode::WRITE => Self::Write(fixed(call, params)?),
            CallCode::READ => Self::Read(fixed(call, params)?),
            CallCode::SET_TENSOR => Self::SetTensor(fixed(call, params)?),
            CallCode::GET_TENSOR => Self::GetTensor(fixed(call, params)?),
            CallCode::SET_TENSOR_2D => Self::SetTensor2d(fixed(call, params)?),
            CallCode::GET_TENSOR_2D => Self::GetTensor2d(fixed(call, params)?),
            CallCode::INIT_TENSOR => Self::InitTensor(fixed(call, params)?),
            CallCode::MEMSET_TENSOR => Self::MemsetTensor(memset(call, params)?),
            CallCode::COPY_TENSOR => Self::CopyTensor(fixed(call, params)?),
            CallCode::ADD_REGION => Self::AddRegion(fixed(call, params)?),
            CallCode::DROP_REGION => Self::DropRegion(fixed(call, params)?),
            CallCode::SET_FROM_REGION => Self::SetFromRegion(fixed(call, params)?),
            CallCode::GET_INTO_REGION => Self::GetIntoRegion(fixed(call, params)?),
            CallCode::SET_FROM_STORE => stored(call, params)?,
            CallCode::EVENT_NEW => Self::EventNew(fixed(call, params)?),
            CallCode::EVENT_FREE => Self::EventFree(fixed(call, params)?),
            CallCode::EVENT_RECORD => Self::EventRecord(fixed(call, params)?),
            CallCode::EVENT_WAIT => Self::EventWait(fixed(call, params)?),
            CallCode::EVENT_SYNCHRONIZE => Self::EventSynchronize(fixed(call, params)?),
            CallCode::INIT_BACKEND => Self::InitBackend(fixed(call, params)?),
            CallCode::FREE_BACKEND => empty(call, params, Self::FreeBackend)?,
            CallCode::SYNCHRONIZE => empty(call, params, Self::Synchronize)?,
            CallCode::SET_THREADS => Self::SetThreads(fixed(call, params)?),
            CallCode::GRAPH_DEF => {
                let (id, tables) = GraphTables::decode(params).map_err(|e| graph_error(call, e))?;
                Self::GraphDef(id, tables)
            }
            CallCode::GRAPH_PATCH => {
                let (header, changes) = graph::decode_patch(params).map_err(|e| graph_error(call, e))?;
                Self::GraphPatch(header, changes)
            }
            CallCode::GRAPH_FREE => Self::GraphFree(fixed(call, params)?),
            CallCode::EXEC => Self::Exec(fixed(call, params)?),
            CallCode::GRAPH_OPTIMIZE => {
                let (id, tables) = GraphTables::decode(params).map_err(|e| graph_error(call, e))?;
                // A graph that cannot be executed has no name.
                if id != GraphId::default() {
                    return Err(RequestError::Reserved(call));
                }
                Self::GraphOptimize(tables)
            }
            CallCode::SUPPORTS_OP => {
                op_query(call, params).map(|(device, op)| Self::SupportsOp(device, op))?
            }
            CallCode::ALLOC_SIZE => op_query(call, params).map(|(device, op)| Self::AllocSize(device, op))?,
            CallCode::MEMORY => Self::Memory(fixed(call, params)?),
            _ => return Err(RequestError::UnknownCall(call)),
        };
        if !request.reserved_is_zero() {
            return Err(RequestError::Reserved(call));
        }
        request.check_data(call, data_bytes as u64)?;
        Ok(request)
    }

    /// Graphs check theirs when they are decoded, and the records of graphs and questions are validated as a whole.
    fn reserved_is_zero(&self) -> bool {
        let layout = match self {
            Self::AllocBuffer(alloc) => return alloc.reserved == 0,
            Self::AddRegion(add) => return add.reserved == 0,
            Self::EventNew(new) => return new.reserved == 0,
            Self::SetFromRegion(transfer) | Self::GetIntoRegion(transfer) if transfer.reserved != 0 => {
                return false;
            }
            Self::SetFromRegion(transfer) | Self::GetIntoRegion(transfer) => &transfer.range.tensor,
            Self::CopyTensor(copy) => return copy.src.reserved == 0 && copy.dst.reserved == 0,
            Self::SetTensor(range) | Self::GetTensor(range) | Self::SetFromStore(range, _) => &range.tensor,
            Self::SetTensor2d(runs) | Self::GetTensor2d(runs) => &runs.tensor,
            Self::InitTensor(layout) => layout,
            Self::MemsetTensor(memset) => &memset.range.tensor,
            _ => return true,
        };
        layout.reserved == 0
    }

    fn check_data(&self, call: CallCode, found: u64) -> Result<(), RequestError> {
        let said = match self {
            Self::Write(range) => range.size,
            Self::SetTensor(range) => range.size,
            // More than there can be.
            Self::SetTensor2d(runs) => runs.bytes().unwrap_or(u64::MAX),
            _ => 0,
        };
        if said == found { Ok(()) } else { Err(RequestError::Data { call, said, found }) }
    }
}

fn fixed<T: bytemuck::AnyBitPattern>(call: CallCode, params: &[u8]) -> Result<T, RequestError> {
    only(params, "its parameters").map_err(|error| RequestError::Cursor(call, error))
}

fn graph_error(call: CallCode, error: GraphError) -> RequestError {
    match error {
        GraphError::Reserved => RequestError::Reserved(call),
        error => RequestError::Graph(call, error),
    }
}

fn empty(call: CallCode, params: &[u8], request: Request) -> Result<Request, RequestError> {
    Cursor::new(params).finish().map_err(|error| RequestError::Cursor(call, error))?;
    Ok(request)
}

fn byte_value(call: CallCode, params: &[u8]) -> Result<BufferValue, RequestError> {
    let value: BufferValue = fixed(call, params)?;
    if value.value > 0xff { Err(RequestError::Value(call, value.value)) } else { Ok(value) }
}

fn memset(call: CallCode, params: &[u8]) -> Result<MemsetTensor, RequestError> {
    let memset: MemsetTensor = fixed(call, params)?;
    if memset.value > 0xff { Err(RequestError::Value(call, memset.value)) } else { Ok(memset) }
}

fn stored(call: CallCode, params: &[u8]) -> Result<Request, RequestError> {
    let wrap = |error| RequestError::Cursor(call, error);
    let mut cursor = Cursor::new(params);
    let header: StoredHeader = cursor.value("a range and its number of pieces").map_err(wrap)?;
    if header.reserved != 0 {
        return Err(RequestError::Reserved(call));
    }
    let (hashes, bytes) = (header.pieces, header.range.size);
    let named = hashes > 0 && hashes as usize <= STORE_PIECES_MAX && u64::from(hashes) == pieces_of(bytes);
    if !named {
        return Err(RequestError::Pieces { call, hashes, bytes });
    }
    let pieces = cursor.values(hashes as usize, "the hashes of the pieces").map_err(wrap)?;
    cursor.finish().map_err(wrap)?;
    Ok(Request::SetFromStore(header.range, pieces))
}

fn op_query(call: CallCode, params: &[u8]) -> Result<(u32, Vec<TensorRecord>), RequestError> {
    let wrap = |error| RequestError::Cursor(call, error);
    let mut cursor = Cursor::new(params);
    let header: OpQueryHeader = cursor.value("the header of a question").map_err(wrap)?;
    if header.tensors == 0 || header.tensors as usize > OP_TENSORS_MAX {
        return Err(RequestError::OpTensors(call, header.tensors));
    }
    let tensors = cursor.values(header.tensors as usize, "the tensors of a question").map_err(wrap)?;
    cursor.finish().map_err(wrap)?;
    Ok((header.device, tensors))
}
