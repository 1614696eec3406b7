//! Messages over their whole range: what is written is read, whatever is read is a request or an error, and nobody is made
//! to allocate more than he was sent.

mod memory;
mod tables;

use bytemuck::Zeroable;
use ferry_protocol::calls::{CALLS, CallCode};
use ferry_protocol::frame::HEADER_BYTES;
use ferry_protocol::graph::{GraphTables, TensorChange, decode_patch, encode_patch};
use ferry_protocol::hello::{decode_welcome, field_text, negotiate, text_field};
use ferry_protocol::ids::{BufferId, GraphId};
use ferry_protocol::limits::{
    DATA_CHUNK_BYTES, GRAPH_NAME_BYTES_MAX, GRAPH_TENSORS_MAX, OP_TENSORS_MAX, STREAM_PAYLOAD_BYTES_MAX,
    SUBMISSION_RING_BYTES,
};
use ferry_protocol::request::{OpQueryHeader, Request, TensorRange};
use ferry_protocol::tensor::{TensorLayout, TensorRecord};
use memory::allocated_by;
use proptest::prelude::*;

/// Any bytes are a record.
fn record() -> impl Strategy<Value = TensorRecord> {
    prop::collection::vec(any::<u8>(), size_of::<TensorRecord>())
        .prop_map(|bytes| bytemuck::pod_read_unaligned(&bytes))
}

fn graph_id() -> impl Strategy<Value = GraphId> {
    (any::<u32>(), any::<u32>()).prop_map(|(slot, generation)| GraphId { slot, generation })
}

fn tables() -> impl Strategy<Value = GraphTables> {
    let (tensors, nodes) =
        (prop::collection::vec(record(), 0..12), prop::collection::vec(any::<u32>(), 0..12));
    (tensors, nodes, prop::collection::vec(any::<u8>(), 0..40))
        .prop_map(|(tensors, nodes, names)| GraphTables { tensors, nodes, names })
}

fn call_code() -> impl Strategy<Value = CallCode> {
    prop_oneof![9 => (0..CALLS.len()).prop_map(|at| CALLS[at].code), 1 => any::<u16>().prop_map(CallCode)]
}

/// Bytes that are often almost a message: small numbers are counts that fit, large ones are not.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        0..4_u32,
        any::<u32>(),
        Just(u32::MAX),
        Just(GRAPH_TENSORS_MAX as u32),
        Just(OP_TENSORS_MAX as u32)
    ];
    let words = prop::collection::vec(word, 0..140)
        .prop_map(|words| words.iter().flat_map(|word| word.to_le_bytes()).collect());
    prop_oneof![words, prop::collection::vec(any::<u8>(), 0..700)]
}

proptest! {
    #[test]
    fn graphs_are_read_as_they_were_written(id in graph_id(), tables in tables()) {
        let mut message = Vec::new();
        tables.encode(id, &mut message);
        let (allocated, decoded) = allocated_by(|| GraphTables::decode(&message));
        prop_assert_eq!(decoded, Ok((id, tables.clone())));
        prop_assert!(allocated > 0 || tables == GraphTables::default(), "what is allocated is counted");
        prop_assert!(allocated <= message.len());
        let parsed = Request::parse(CallCode::GRAPH_DEF, &message, 0);
        prop_assert_eq!(parsed, Ok(Request::GraphDef(id, tables)));
    }

    #[test]
    fn a_patch_makes_one_graph_into_the_other(
        from in tables(),
        changed in prop::collection::vec((any::<prop::sample::Index>(), record()), 0..6),
        (id, to) in (graph_id(), graph_id()),
    ) {
        let mut next = from.clone();
        for (at, record) in changed.iter().filter(|_| !from.tensors.is_empty()) {
            *at.get_mut(&mut next.tensors) = *record;
        }
        let changes = from.changes_to(&next).expect("nodes, names and number of tensors are the same");
        let differing = from.tensors.iter().zip(&next.tensors).filter(|(a, b)| a != b).count();
        prop_assert_eq!(changes.len(), differing, "what stays is not sent");

        let mut message = Vec::new();
        encode_patch(id, to, &changes, &mut message);
        let (header, read) = decode_patch(&message).expect("is a patch");
        prop_assert_eq!((header.from, header.to, header.changes as usize), (id, to, changes.len()));
        let mut patched = from;
        for TensorChange { at, tensor, .. } in read {
            patched.tensors[at as usize] = tensor;
        }
        prop_assert_eq!(patched, next);
    }

    #[test]
    fn graphs_of_another_structure_take_a_new_definition(a in tables(), b in tables()) {
        let alike = a.nodes == b.nodes && a.names == b.names && a.tensors.len() == b.tensors.len();
        prop_assert_eq!(a.changes_to(&b).is_some(), alike);
    }

    #[test]
    fn questions_are_read_as_they_were_written(device: u32, records in prop::collection::vec(record(), 1..=OP_TENSORS_MAX)) {
        let mut message = bytemuck::bytes_of(&OpQueryHeader { device, tensors: records.len() as u32 }).to_vec();
        message.extend_from_slice(bytemuck::cast_slice(&records));
        let parsed = Request::parse(CallCode::SUPPORTS_OP, &message, 0);
        prop_assert_eq!(parsed, Ok(Request::SupportsOp(device, records.clone())));
        let parsed = Request::parse(CallCode::ALLOC_SIZE, &message, 0);
        prop_assert_eq!(parsed, Ok(Request::AllocSize(device, records)));
    }

    #[test]
    fn ranges_are_read_as_they_were_written(record in record(), offset: u64, size in 0..1_u64 << 40) {
        let tensor = TensorLayout { reserved: 0, ..record.layout };
        let range = TensorRange { tensor, offset, size };
        let parsed = Request::parse(CallCode::SET_TENSOR, bytemuck::bytes_of(&range), size as usize);
        prop_assert_eq!(parsed, Ok(Request::SetTensor(range)));
    }

    #[test]
    fn whatever_comes_is_a_request_or_an_error_and_costs_no_more_memory_than_it_brings(
        call in call_code(),
        bytes in message(),
        data in 0..1000_usize,
    ) {
        let (allocated, parsed) = allocated_by(|| Request::parse(call, &bytes, data));
        prop_assert!(allocated <= bytes.len(), "{allocated} bytes for {}: {parsed:?}", bytes.len());
        if let Err(error) = parsed {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn whatever_a_daemon_answers_is_a_welcome_or_an_error(bytes in message(), cut in 0..64_usize) {
        let mut welcome = ferry_protocol::hello::encode_welcome(1, &[]);
        welcome.extend_from_slice(&bytes);
        let (allocated, _) = allocated_by(|| decode_welcome(&welcome));
        prop_assert!(allocated <= welcome.len());
        let _ = decode_welcome(&bytes[..cut.min(bytes.len())]);
    }

    #[test]
    fn layouts_have_an_extent_or_an_error(record in record(), kind in 0..45_u32, small: bool) {
        let mut layout = record.layout;
        layout.kind.0 = kind;
        if small {
            layout.ne = layout.ne.map(|n| n & 0xff);
            layout.nb = layout.nb.map(|n| n & 0xffff);
        }
        // In 128 bits nothing overflows: the extent is exact, or it does not fit.
        if let (Some(row), false) = (layout.kind.row(), layout.ne.iter().any(|&n| n < 0)) {
            let block = i64::from(row.block_elements);
            let last: Option<u128> = (0..4).map(|dim| {
                let elements = if dim == 0 { layout.ne[0] / block } else { layout.ne[dim] };
                Some((elements as u128).checked_sub(1)? * u128::from(layout.nb[dim]))
            }).sum();
            let first = if block == 1 { u128::from(row.block_bytes) } else { u128::from(layout.nb[0]) };
            let extent = last.map_or(0, |last| last + first);
            match layout.extent_bytes() {
                Ok(bytes) => prop_assert_eq!(u128::from(bytes), extent),
                Err(_) => prop_assert!(extent > u128::from(u64::MAX) || layout.ne[0] % block != 0),
            }
        }
    }

    #[test]
    fn text_fields_hold_what_fits(text in ".{0,40}") {
        let field: [u8; 32] = text_field(&text);
        let read = field_text(&field);
        let shown = text.split('\0').next().unwrap_or_default();
        prop_assert!(shown.starts_with(&read) && field[31] == 0);
        prop_assert!(read.len() == shown.len() || read.len() > 31 - 4);
    }

    #[test]
    fn versions_meet_at_the_newest_common_one(min: u16, max: u16) {
        let ours = ferry_protocol::VERSION_MIN..=ferry_protocol::VERSION_MAX;
        let common = ours.rev().find(|version| (min..=max).contains(version));
        prop_assert_eq!(negotiate(min, max), common);
    }
}

#[test]
fn the_largest_messages_fit_both_transports() {
    let ring = SUBMISSION_RING_BYTES / 4 - HEADER_BYTES;
    let tables = GraphTables {
        tensors: vec![TensorRecord::zeroed(); GRAPH_TENSORS_MAX],
        nodes: vec![0; GRAPH_TENSORS_MAX],
        names: vec![0; GRAPH_NAME_BYTES_MAX],
    };
    let id = GraphId { slot: 1, generation: 1 };
    let mut definition = Vec::new();
    tables.encode(id, &mut definition);
    let mut patch = Vec::new();
    let change = TensorChange { at: 0, reserved: 0, tensor: TensorRecord::zeroed() };
    encode_patch(id, id, &vec![change; GRAPH_TENSORS_MAX], &mut patch);
    let data = size_of::<TensorRange>() + DATA_CHUNK_BYTES;
    for bytes in [definition.len(), patch.len(), data] {
        assert!(bytes <= ring && bytes <= STREAM_PAYLOAD_BYTES_MAX, "{bytes} bytes");
    }
    assert!(GraphTables::decode(&definition).is_ok() && decode_patch(&patch).is_ok());
}

#[test]
fn the_id_of_a_freed_buffer_is_not_that_of_its_successor() {
    let (old, new) = (BufferId::new(3, 1), BufferId::new(3, 2));
    assert_ne!(old, new);
    assert_eq!((old.slot(), new.slot(), old.0), (3, 3, 0x1_0000_0003));
    assert_ne!(BufferId::new(0, 1), BufferId::NONE);
}
