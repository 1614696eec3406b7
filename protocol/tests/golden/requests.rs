//! Every call of a session but the graphs.

use super::{graphs, rows, takes_exactly};
use ferry_protocol::calls::{CALLS, CallCode, Phase};
use ferry_protocol::cursor::CursorError;
use ferry_protocol::ids::{BufferId, EventId, GraphId, RegionId};
use ferry_protocol::ops::Op;
use ferry_protocol::request::{
    AddRegion, AllocBuffer, BufferValue, CopyTensor, MemsetTensor, NewEvent, Range, RegionTransfer, Request,
    RequestError, TensorRange, TensorRuns, params_bytes,
};
use ferry_protocol::store::PieceHash;
use ferry_protocol::tensor::{TensorLayout, TensorRecord};
use ferry_protocol::types::TensorType;

/// Slot 5 in its generation 7.
const BUFFER: [u8; 8] = [5, 0, 0, 0, 7, 0, 0, 0];
/// Slot 3 in its generation 9.
const GRAPH: [u8; 8] = [3, 0, 0, 0, 9, 0, 0, 0];

pub fn buffer() -> BufferId {
    BufferId::new(5, 7)
}

/// A matrix of Q4_0, 64 × 3, at byte 4096 of a buffer.
pub fn layout_bytes() -> Vec<u8> {
    rows(&[
        &[64, 0, 0, 0, 0, 0, 0, 0],   // ne[0]
        &[3, 0, 0, 0, 0, 0, 0, 0],    // ne[1]
        &[1, 0, 0, 0, 0, 0, 0, 0],    // ne[2]
        &[1, 0, 0, 0, 0, 0, 0, 0],    // ne[3]
        &[18, 0, 0, 0, 0, 0, 0, 0],   // nb[0]: a block
        &[36, 0, 0, 0, 0, 0, 0, 0],   // nb[1]
        &[108, 0, 0, 0, 0, 0, 0, 0],  // nb[2]
        &[108, 0, 0, 0, 0, 0, 0, 0],  // nb[3]
        &BUFFER,                      // buffer
        &[0, 0x10, 0, 0, 0, 0, 0, 0], // offset
        &[2, 0, 0, 0],                // kind: Q4_0
        &[0, 0, 0, 0],                // reserved
    ])
}

pub fn layout() -> TensorLayout {
    TensorLayout {
        ne: [64, 3, 1, 1],
        nb: [18, 36, 108, 108],
        buffer: buffer(),
        offset: 4096,
        kind: TensorType(2),
        reserved: 0,
    }
}

fn range_bytes() -> Vec<u8> {
    rows(&[
        &BUFFER,                      // buffer
        &[0, 0x10, 0, 0, 0, 0, 0, 0], // offset
        &[0, 0x20, 0, 0, 0, 0, 0, 0], // size
    ])
}

fn tensor_range_bytes() -> Vec<u8> {
    rows(&[
        &layout_bytes(),            // tensor
        &[36, 0, 0, 0, 0, 0, 0, 0], // offset
        &[72, 0, 0, 0, 0, 0, 0, 0], // size
    ])
}

fn tensor_runs_bytes() -> Vec<u8> {
    rows(&[
        &layout_bytes(),              // tensor
        &[36, 0, 0, 0, 0, 0, 0, 0],   // offset
        &[18, 0, 0, 0, 0, 0, 0, 0],   // size
        &[5, 0, 0, 0, 0, 0, 0, 0],    // runs
        &[0, 0x40, 0, 0, 0, 0, 0, 0], // stride
    ])
}

fn tensor_runs() -> TensorRuns {
    TensorRuns { tensor: layout(), offset: 36, size: 18, runs: 5, stride: 0x4000 }
}

fn range() -> Range {
    Range { buffer: buffer(), offset: 0x1000, size: 0x2000 }
}

fn tensor_range() -> TensorRange {
    TensorRange { tensor: layout(), offset: 36, size: 72 }
}

/// RELU of a matrix: a question of two records.
fn question() -> (Vec<u8>, Vec<TensorRecord>) {
    let golden = rows(&[
        &[1, 0, 0, 0], // device
        &[2, 0, 0, 0], // tensors
        &graphs::leaf_bytes(),
        &graphs::relu_bytes(),
    ]);
    (golden, vec![graphs::leaf(), graphs::relu()])
}

/// A call with its parameters, the data behind them, and what they mean.
struct Golden(CallCode, Vec<u8>, usize, Request);

fn buffer_calls() -> Vec<Golden> {
    use CallCode as C;
    let alloc = rows(&[
        &[0, 0, 0, 0, 1, 0, 0, 0], // size: 4 GiB
        &[2, 0, 0, 0],             // device
        &[0, 0, 0, 0],             // reserved
    ]);
    let value = rows(&[
        &BUFFER,                      // buffer
        &[0xab, 0, 0, 0, 0, 0, 0, 0], // value
    ]);
    let buffer_value = BufferValue { buffer: buffer(), value: 0xab };
    let memset = rows(&[
        &tensor_range_bytes(),        // range
        &[0xcd, 0, 0, 0, 0, 0, 0, 0], // value
    ]);
    let copy = rows(&[
        &layout_bytes(), // src
        &layout_bytes(), // dst
    ]);
    let memset_tensor = MemsetTensor { range: tensor_range(), value: 0xcd };
    vec![
        Golden(
            C::ALLOC_BUFFER,
            alloc,
            0,
            Request::AllocBuffer(AllocBuffer { size: 4 << 30, device: 2, reserved: 0 }),
        ),
        Golden(C::FREE_BUFFER, BUFFER.to_vec(), 0, Request::FreeBuffer(buffer())),
        Golden(C::CLEAR_BUFFER, value.clone(), 0, Request::ClearBuffer(buffer_value)),
        Golden(C::SET_USAGE, value, 0, Request::SetUsage(buffer_value)),
        Golden(C::RESET_BUFFER, BUFFER.to_vec(), 0, Request::ResetBuffer(buffer())),
        Golden(C::WRITE, range_bytes(), 0x2000, Request::Write(range())),
        Golden(C::READ, range_bytes(), 0, Request::Read(range())),
        Golden(C::SET_TENSOR, tensor_range_bytes(), 72, Request::SetTensor(tensor_range())),
        Golden(C::GET_TENSOR, tensor_range_bytes(), 0, Request::GetTensor(tensor_range())),
        Golden(C::SET_TENSOR_2D, tensor_runs_bytes(), 90, Request::SetTensor2d(tensor_runs())),
        Golden(C::GET_TENSOR_2D, tensor_runs_bytes(), 0, Request::GetTensor2d(tensor_runs())),
        Golden(C::INIT_TENSOR, layout_bytes(), 0, Request::InitTensor(layout())),
        Golden(C::MEMSET_TENSOR, memset, 0, Request::MemsetTensor(memset_tensor)),
        Golden(C::COPY_TENSOR, copy, 0, Request::CopyTensor(CopyTensor { src: layout(), dst: layout() })),
    ]
}

fn region_calls() -> Vec<Golden> {
    use CallCode as C;
    let add = rows(&[
        &[0, 0, 0x10, 0, 0, 0, 0, 0], // size: 1 MiB
        &[6, 0, 0, 0],                // region
        &[0, 0, 0, 0],                // reserved
    ]);
    let transfer_bytes = rows(&[
        &tensor_range_bytes(),        // range
        &[0, 0x30, 0, 0, 0, 0, 0, 0], // at
        &[6, 0, 0, 0],                // region
        &[0, 0, 0, 0],                // reserved
    ]);
    let region = RegionId(6);
    let transfer = RegionTransfer { range: tensor_range(), at: 0x3000, region, reserved: 0 };
    vec![
        Golden(C::ADD_REGION, add, 0, Request::AddRegion(AddRegion { size: 1 << 20, region, reserved: 0 })),
        Golden(C::DROP_REGION, vec![6, 0, 0, 0], 0, Request::DropRegion(region)),
        Golden(C::SET_FROM_REGION, transfer_bytes.clone(), 0, Request::SetFromRegion(transfer)),
        Golden(C::GET_INTO_REGION, transfer_bytes, 0, Request::GetIntoRegion(transfer)),
    ]
}

/// A piece and a byte of a tensor that is large enough.
fn store_calls() -> Vec<Golden> {
    let bytes = rows(&[
        &layout_bytes(),              // tensor
        &[36, 0, 0, 0, 0, 0, 0, 0],   // offset
        &[1, 0, 0x10, 0, 0, 0, 0, 0], // size: 1 MiB and a byte
        &[2, 0, 0, 0],                // pieces
        &[0, 0, 0, 0],                // reserved
        &[0x11; 32],                  // the first one's SHA-256
        &[0x22; 32],                  // the second one's
    ]);
    let range = TensorRange { size: (1 << 20) + 1, ..tensor_range() };
    let pieces = vec![PieceHash([0x11; 32]), PieceHash([0x22; 32])];
    vec![Golden(CallCode::SET_FROM_STORE, bytes, 0, Request::SetFromStore(range, pieces))]
}

fn event_calls() -> Vec<Golden> {
    use CallCode as C;
    let event = EventId { slot: 3, generation: 9 };
    let new = rows(&[
        &GRAPH,        // event: of the same form
        &[1, 0, 0, 0], // device
        &[0, 0, 0, 0], // reserved
    ]);
    vec![
        Golden(C::EVENT_NEW, new, 0, Request::EventNew(NewEvent { event, device: 1, reserved: 0 })),
        Golden(C::EVENT_FREE, GRAPH.to_vec(), 0, Request::EventFree(event)),
        Golden(C::EVENT_RECORD, GRAPH.to_vec(), 0, Request::EventRecord(event)),
        Golden(C::EVENT_WAIT, GRAPH.to_vec(), 0, Request::EventWait(event)),
        Golden(C::EVENT_SYNCHRONIZE, GRAPH.to_vec(), 0, Request::EventSynchronize(event)),
    ]
}

fn other_calls() -> Vec<Golden> {
    use CallCode as C;
    let id = GraphId { slot: 3, generation: 9 };
    let (question, records) = question();
    let (definition, tables) = graphs::definition();
    let mut nameless = definition.clone();
    nameless[..8].fill(0);
    let (patch, header, changes) = graphs::patch();
    vec![
        Golden(C::INIT_BACKEND, vec![1, 0, 0, 0], 0, Request::InitBackend(1)),
        Golden(C::FREE_BACKEND, vec![], 0, Request::FreeBackend),
        Golden(C::SYNCHRONIZE, vec![], 0, Request::Synchronize),
        Golden(C::SET_THREADS, vec![0, 1, 0, 0], 0, Request::SetThreads(256)),
        Golden(C::GRAPH_DEF, definition, 0, Request::GraphDef(id, tables.clone())),
        Golden(C::GRAPH_PATCH, patch, 0, Request::GraphPatch(header, changes)),
        Golden(C::GRAPH_FREE, GRAPH.to_vec(), 0, Request::GraphFree(id)),
        Golden(C::EXEC, GRAPH.to_vec(), 0, Request::Exec(id)),
        Golden(C::GRAPH_OPTIMIZE, nameless, 0, Request::GraphOptimize(tables.clone())),
        Golden(C::SUPPORTS_OP, question.clone(), 0, Request::SupportsOp(1, records.clone())),
        Golden(C::ALLOC_SIZE, question, 0, Request::AllocSize(1, records)),
        Golden(C::MEMORY, vec![1, 0, 0, 0], 0, Request::Memory(1)),
    ]
}

fn all() -> Vec<Golden> {
    let calls = [buffer_calls(), region_calls(), store_calls(), event_calls(), other_calls()];
    calls.into_iter().flatten().collect()
}

#[test]
fn every_call_of_a_session_has_golden_bytes() {
    let known: Vec<_> = all().iter().map(|golden| golden.0).collect();
    let lacking: Vec<_> =
        CALLS.iter().filter(|call| call.phase == Phase::Session && !known.contains(&call.code)).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
}

#[test]
fn requests_are_what_their_bytes_say_and_nothing_shorter_or_longer_is() {
    for Golden(call, params, data_bytes, request) in all() {
        let parsed = takes_exactly(&params, |params| Request::parse(call, params, data_bytes));
        assert_eq!(parsed, request, "{call}");
    }
}

#[test]
fn data_is_as_long_as_the_call_says() {
    for Golden(call, params, data_bytes, _) in all() {
        assert_eq!(params_bytes(call).is_some(), data_bytes > 0, "{call}");
        for found in [0, 1, 71, 73, 0x1fff, 0x2001].into_iter().filter(|&found| found != data_bytes) {
            let (said, found) = (data_bytes as u64, found as u64);
            let parsed = Request::parse(call, &params, found as usize);
            assert_eq!(parsed, Err(RequestError::Data { call, said, found }), "{call}");
        }
    }
}

#[test]
fn codes_outside_a_session_are_unknown_in_it() {
    let others = CALLS.iter().filter(|call| call.phase != Phase::Session).map(|call| call.code);
    for code in others.chain([0, 0x0f, 0x34, 0x7f, 0xffff].map(CallCode)) {
        assert_eq!(Request::parse(code, &[], 0), Err(RequestError::UnknownCall(code)));
    }
}

#[test]
fn a_byte_value_is_a_byte() {
    for (call, at) in [(CallCode::CLEAR_BUFFER, 9), (CallCode::SET_USAGE, 15), (CallCode::MEMSET_TENSOR, 105)]
    {
        let mut params = all().into_iter().find(|golden| golden.0 == call).expect("has golden bytes").1;
        params[at] = 1;
        assert!(matches!(Request::parse(call, &params, 0), Err(RequestError::Value(_, 0x100..))), "{call}");
    }
}

#[test]
fn reserved_fields_are_zero() {
    let places = [
        (CallCode::ALLOC_BUFFER, 12),
        (CallCode::ADD_REGION, 12),
        (CallCode::SET_FROM_REGION, 84),
        (CallCode::SET_FROM_REGION, 116),
        (CallCode::GET_INTO_REGION, 119),
        (CallCode::SET_FROM_STORE, 84),
        (CallCode::SET_FROM_STORE, 108),
        (CallCode::EVENT_NEW, 12),
        (CallCode::SET_TENSOR, 84),
        (CallCode::GET_TENSOR, 87),
        (CallCode::SET_TENSOR_2D, 84),
        (CallCode::GET_TENSOR_2D, 85),
        (CallCode::INIT_TENSOR, 85),
        (CallCode::MEMSET_TENSOR, 86),
        (CallCode::COPY_TENSOR, 84),
        (CallCode::COPY_TENSOR, 88 + 84),
        (CallCode::GRAPH_DEF, 20),
        (CallCode::GRAPH_OPTIMIZE, 0),
        (CallCode::GRAPH_OPTIMIZE, 4),
        (CallCode::GRAPH_OPTIMIZE, 20),
        (CallCode::GRAPH_PATCH, 20),
        (CallCode::GRAPH_PATCH, 28),
    ];
    for (call, at) in places {
        let Golden(_, mut params, data_bytes, _) =
            all().into_iter().find(|golden| golden.0 == call).expect("has golden bytes");
        params[at] = 1;
        assert_eq!(
            Request::parse(call, &params, data_bytes),
            Err(RequestError::Reserved(call)),
            "{call} at {at}"
        );
    }
}

#[test]
fn runs_that_nobody_can_count_have_no_end_and_never_their_data() {
    let many = TensorRuns { size: 1 << 40, runs: 1 << 40, stride: 1 << 40, ..tensor_runs() };
    assert_eq!((many.bytes(), many.extent()), (None, None));
    let parsed = Request::parse(CallCode::SET_TENSOR_2D, bytemuck::bytes_of(&many), 90);
    let (call, said) = (CallCode::SET_TENSOR_2D, u64::MAX);
    assert_eq!(parsed, Err(RequestError::Data { call, said, found: 90 }));
    assert_eq!(TensorRuns { runs: 0, ..many }.extent(), None);
    assert_eq!((tensor_runs().bytes(), tensor_runs().extent()), (Some(90), Some(4 * 0x4000 + 18)));
}

#[test]
fn a_question_has_a_few_records() {
    let (mut bytes, _) = question();
    for count in [0, 25, u32::MAX] {
        bytes[4..8].copy_from_slice(&count.to_le_bytes());
        let parsed = Request::parse(CallCode::SUPPORTS_OP, &bytes, 0);
        assert_eq!(parsed, Err(RequestError::OpTensors(CallCode::SUPPORTS_OP, count)));
    }
    bytes[4..8].copy_from_slice(&3u32.to_le_bytes());
    let truncated = Request::parse(CallCode::ALLOC_SIZE, &bytes, 0);
    let what = "the tensors of a question";
    let expected = RequestError::Cursor(CallCode::ALLOC_SIZE, CursorError::Truncated { what, found: 224 });
    assert_eq!(truncated, Err(expected));
}

#[test]
fn each_piece_has_a_hash_and_there_are_not_too_many() {
    let call = CallCode::SET_FROM_STORE;
    let with = |bytes: u64, hashes: u32| {
        let mut params = store_calls().remove(0).1;
        params[96..104].copy_from_slice(&bytes.to_le_bytes());
        params[104..108].copy_from_slice(&hashes.to_le_bytes());
        params.resize(112 + 32 * hashes.min(2048) as usize, 0);
        Request::parse(call, &params, 0)
    };
    let mib = 1 << 20;
    for (bytes, hashes) in
        [(0, 0), (0, 1), (1, 0), (1, 2), (mib, 2), (mib + 1, 1), (1025 * mib, 1025), (u64::MAX, u32::MAX)]
    {
        assert_eq!(with(bytes, hashes), Err(RequestError::Pieces { call, hashes, bytes }));
    }
    for (bytes, hashes) in [(1, 1), (mib, 1), (mib + 1, 2), (1024 * mib, 1024)] {
        assert!(with(bytes, hashes).is_ok(), "{hashes} for {bytes}");
    }
}

#[test]
fn the_operation_in_the_golden_bytes_is_the_one_that_is_meant() {
    assert_eq!((graphs::relu().op, graphs::relu().op_params[0]), (Op::UNARY, 6));
}
