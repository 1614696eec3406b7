//! Graph definitions and patches.

use super::requests::{buffer, layout, layout_bytes};
use super::{rows, takes_exactly};
use ferry_protocol::graph::{GraphError, GraphTables, PatchHeader, TensorChange, decode_patch, encode_patch};
use ferry_protocol::ids::GraphId;
use ferry_protocol::limits::{GRAPH_NAME_BYTES_MAX, GRAPH_TENSORS_MAX};
use ferry_protocol::ops::Op;
use ferry_protocol::tensor::{NO_TENSOR, TensorLayout, TensorRecord, flags};
use ferry_protocol::types::TensorType;

const NONE: [u8; 4] = [0xff; 4];

/// A leaf named `w`.
pub fn leaf_bytes() -> Vec<u8> {
    rows(&[
        &layout_bytes(),  // layout, 88 bytes
        &[0; 8],          // view_offset
        &[0, 0, 0, 0],    // op: NONE
        &[0, 0, 0, 0],    // flags
        &[0; 64],         // op_params
        &NONE.repeat(10), // src
        &NONE,            // view_src
        &[2, 0, 0, 0],    // use_count
        &[0, 0, 0, 0],    // name_offset
        &[1, 0, 0, 0],    // name_len
    ])
}

pub fn leaf() -> TensorRecord {
    TensorRecord { layout: layout(), use_count: 2, name_len: 1, ..TensorRecord::default() }
}

/// RELU of the leaf, named `out`.
pub fn relu_bytes() -> Vec<u8> {
    rows(&[
        &[64, 0, 0, 0, 0, 0, 0, 0],   // ne[0]
        &[3, 0, 0, 0, 0, 0, 0, 0],    // ne[1]
        &[1, 0, 0, 0, 0, 0, 0, 0],    // ne[2]
        &[1, 0, 0, 0, 0, 0, 0, 0],    // ne[3]
        &[4, 0, 0, 0, 0, 0, 0, 0],    // nb[0]
        &[0, 1, 0, 0, 0, 0, 0, 0],    // nb[1]
        &[0, 3, 0, 0, 0, 0, 0, 0],    // nb[2]
        &[0, 3, 0, 0, 0, 0, 0, 0],    // nb[3]
        &[5, 0, 0, 0, 7, 0, 0, 0],    // buffer
        &[0, 0x20, 0, 0, 0, 0, 0, 0], // offset
        &[0, 0, 0, 0],                // kind: F32
        &[0, 0, 0, 0],                // reserved
        &[0; 8],                      // view_offset
        &[91, 0, 0, 0],               // op: UNARY
        &[18, 0, 0, 0],               // flags: OUTPUT, COMPUTE
        &[6, 0, 0, 0],
        &[0; 60], // op_params: RELU
        &[0, 0, 0, 0],
        &NONE.repeat(9), // src
        &NONE,           // view_src
        &[0, 0, 0, 0],   // use_count
        &[1, 0, 0, 0],   // name_offset
        &[3, 0, 0, 0],   // name_len
    ])
}

pub fn relu() -> TensorRecord {
    let mut record = TensorRecord {
        layout: TensorLayout {
            ne: [64, 3, 1, 1],
            nb: [4, 256, 768, 768],
            buffer: buffer(),
            offset: 0x2000,
            kind: TensorType::F32,
            reserved: 0,
        },
        op: Op::by_name("UNARY").expect("is in the list"),
        flags: flags::COMPUTE | 2,
        name_offset: 1,
        name_len: 3,
        ..TensorRecord::default()
    };
    record.op_params[0] = 6;
    record.src[0] = 0;
    assert_eq!(record.src[1], NO_TENSOR);
    record
}

pub fn definition() -> (Vec<u8>, GraphTables) {
    let golden = rows(&[
        &[3, 0, 0, 0], // graph: slot
        &[9, 0, 0, 0], // graph: generation
        &[2, 0, 0, 0], // tensors
        &[1, 0, 0, 0], // nodes
        &[4, 0, 0, 0], // name_bytes
        &[0, 0, 0, 0], // reserved
        &leaf_bytes(), // tensor 0
        &relu_bytes(), // tensor 1
        &[1, 0, 0, 0], // node 0: tensor 1
        b"wout",       // names
    ]);
    (golden, GraphTables { tensors: vec![leaf(), relu()], nodes: vec![1], names: b"wout".to_vec() })
}

pub fn patch() -> (Vec<u8>, PatchHeader, Vec<TensorChange>) {
    let golden = rows(&[
        &[3, 0, 0, 0],  // from: slot
        &[9, 0, 0, 0],  // from: generation
        &[3, 0, 0, 0],  // to: slot
        &[10, 0, 0, 0], // to: generation
        &[1, 0, 0, 0],  // changes
        &[0, 0, 0, 0],  // reserved
        &[1, 0, 0, 0],  // change 0: place in the table
        &[0, 0, 0, 0],  // change 0: reserved
        &relu_bytes(),  // change 0: the tensor
    ]);
    let (from, to) = (GraphId { slot: 3, generation: 9 }, GraphId { slot: 3, generation: 10 });
    let changes = vec![TensorChange { at: 1, reserved: 0, tensor: relu() }];
    (golden, PatchHeader { from, to, changes: 1, reserved: 0 }, changes)
}

#[test]
fn a_definition_both_ways() {
    let (golden, tables) = definition();
    let id = GraphId { slot: 3, generation: 9 };
    let mut encoded = vec![0xee];
    tables.encode(id, &mut encoded);
    assert_eq!(encoded[1..], golden, "it is appended");
    assert_eq!(takes_exactly(&golden, GraphTables::decode), (id, tables));
}

#[test]
fn a_patch_both_ways() {
    let (golden, header, changes) = patch();
    let mut encoded = Vec::new();
    encode_patch(header.from, header.to, &changes, &mut encoded);
    assert_eq!(encoded, golden);
    assert_eq!(takes_exactly(&golden, decode_patch), (header, changes));
}

#[test]
fn counts_beyond_the_limits_are_named() {
    let (golden, _) = definition();
    let with = |at: usize, count: u32| {
        let mut bytes = golden.clone();
        bytes[at..at + 4].copy_from_slice(&count.to_le_bytes());
        GraphTables::decode(&bytes)
    };
    let most = GRAPH_TENSORS_MAX as u32;
    let names = GRAPH_NAME_BYTES_MAX as u32;
    assert_eq!(with(8, most + 1), Err(GraphError::TooLarge(most + 1)));
    assert_eq!(with(12, u32::MAX), Err(GraphError::TooLarge(u32::MAX)));
    assert_eq!(with(16, names + 1), Err(GraphError::Names(names + 1)));
    // Within the limits, but not there.
    assert!(matches!(with(8, most), Err(GraphError::Cursor(_))));
    let (mut patch, ..) = patch();
    patch[16..20].copy_from_slice(&(most + 1).to_le_bytes());
    assert_eq!(decode_patch(&patch), Err(GraphError::TooLarge(most + 1)));
}
