//! Every bound on what the other side chooses, with its reason.

/// One page in front of an arena, for the rings' positions and sleep flags.
pub const ARENA_HEADER_BYTES: usize = 4096;
/// Submission ring: large enough that several upload chunks are in flight, small enough to stay in a last-level
/// cache and, with the completion ring, within the 24 MiB that a guest pins for a session.
pub const SUBMISSION_RING_BYTES: usize = 16 << 20;
/// Completion ring: results are smaller than uploads, and a guest drains it whenever it waits.
pub const COMPLETION_RING_BYTES: usize = 4 << 20;
/// The smallest ring that still holds a record of every kind of small message.
pub const RING_BYTES_MIN: usize = 4096;
/// An arena larger than this is not accepted: nothing needs it.
pub const ARENA_BYTES_MAX: usize = 256 << 20;

/// Payload of one message on a transport that has no ring to bound it.
pub const STREAM_PAYLOAD_BYTES_MAX: usize = 4 << 20;
/// Tensor data in one message: chunks of this size overlap the guest's copy with the host's.
pub const DATA_CHUNK_BYTES: usize = 512 << 10;
/// Runs of one 2d transfer: a back-end that has none is called once for each.
pub const RUNS_MAX: u64 = 64 << 10;
/// Text in an error notice: a line, not a dump.
pub const NOTICE_TEXT_BYTES_MAX: usize = 512;

/// Tensors in one graph. llama.cpp's largest graphs have some ten thousand nodes; the definition of this many, with the
/// longest names, still fits one message of either transport.
pub const GRAPH_TENSORS_MAX: usize = 14 << 10;
/// Names of one graph: one for each tensor, without terminators.
pub const GRAPH_NAME_BYTES_MAX: usize = GRAPH_TENSORS_MAX * (NAME_BYTES_MAX - 1);
/// Graphs that a session keeps. A scheduler cycles through a handful of splits per context.
pub const GRAPHS_PER_SESSION_MAX: usize = 256;
/// Allocation dependencies in the answer to a GRAPH_OPTIMIZE: back-ends name the sources of what they fuse, a few for
/// each node; this many fit one message.
pub const ALLOC_DEPS_MAX: usize = 64 << 10;
/// Tensors of one operation: the result, its sources and the bases of views among them.
pub const OP_TENSORS_MAX: usize = 24;
/// Buffers of one session.
pub const BUFFERS_PER_SESSION_MAX: usize = 4096;
/// Backend instances of one session: llama.cpp makes one per context and device.
pub const STREAMS_PER_SESSION_MAX: usize = 64;
/// Regions of one session. Each is a mapping or, in a virtual machine, thousands of them, of which a process may have
/// 65,530.
pub const REGIONS_PER_SESSION_MAX: usize = 64;
/// Bytes of all regions of one session. What is pinned for the host is missing elsewhere: a program that wants more gets
/// memory of its own.
pub const REGION_BYTES_PER_SESSION_MAX: u64 = 256 << 20;
/// Pieces that weights are known by in a model store, counted from the start of each tensor; the last one is shorter.
/// llama.cpp reads weights whole, or 1 MiB at a time where they are uploaded behind its back: both are found. One of them
/// is what a worker reads and checks at once.
pub const STORE_PIECE_BYTES: usize = 1 << 20;
/// Pieces that one SET_FROM_STORE asks for: 1 GiB. A worker serves nothing else meanwhile.
pub const STORE_PIECES_MAX: usize = 1024;
/// Tensors smaller than this are in no store: asking would take longer than sending them.
pub const STORE_TENSOR_BYTES_MIN: usize = 64 << 10;
/// Events of one session. llama.cpp has four for each device and context that it pipelines, and four while it loads.
pub const EVENTS_PER_SESSION_MAX: usize = 256;
/// Threads that a guest may ask of a CPU back-end; ggml's own GGML_MAX_N_THREADS is 512.
pub const THREADS_MAX: u32 = 512;
/// Devices that a daemon shows.
pub const DEVICES_MAX: usize = 16;

/// Name of a tensor, with its terminator (ggml's GGML_MAX_NAME).
pub const NAME_BYTES_MAX: usize = 64;
/// Sources of a tensor (ggml's GGML_MAX_SRC).
pub const SOURCES_MAX: usize = 10;
/// Dimensions of a tensor (ggml's GGML_MAX_DIMS).
pub const DIMS: usize = 4;
/// Words of parameters of an operation (ggml's GGML_MAX_OP_PARAMS / 4).
pub const OP_PARAMS: usize = 16;

/// Payload of any message of the handshake: sixteen devices and their names.
pub const HANDSHAKE_PAYLOAD_BYTES_MAX: usize = 16 << 10;
/// A client that does not finish its handshake within this time is dropped, in milliseconds.
pub const HANDSHAKE_TIMEOUT_MS: u64 = 10_000;
