//! Graphs and requests to bytes and back.
#![allow(missing_docs)] // `criterion_group!` makes a public function

use criterion::{Criterion, criterion_group, criterion_main};
use ferry_protocol::calls::CallCode;
use ferry_protocol::graph::GraphTables;
use ferry_protocol::ids::{BufferId, GraphId};
use ferry_protocol::ops::Op;
use ferry_protocol::request::{Range, Request};
use ferry_protocol::tensor::{TensorLayout, TensorRecord, flags};
use ferry_protocol::types::TensorType;
use std::hint::black_box;

const NODES: usize = 1000;

/// A thousand nodes, each of them a sum of a leaf of its own and the node before, with names as llama.cpp gives them.
fn graph() -> GraphTables {
    let mut tables = GraphTables::default();
    let add = Op::by_name("ADD").expect("is in the list");
    for node in 0..NODES as u32 {
        for (op, name) in [(Op::NONE, format!("blk.{node}.weight")), (add, format!("result-{node}"))] {
            let place = tables.tensors.len() as u32;
            let layout = TensorLayout {
                ne: [4096, 1, 1, 1],
                nb: [4, 16384, 16384, 16384],
                buffer: BufferId::new(1, 1),
                offset: u64::from(place) * 16384,
                kind: TensorType::F32,
                reserved: 0,
            };
            let mut record =
                TensorRecord { layout, op, use_count: 1, flags: flags::COMPUTE, ..TensorRecord::default() };
            (record.name_offset, record.name_len) = (tables.names.len() as u32, name.len() as u32);
            tables.names.extend_from_slice(name.as_bytes());
            if op == add {
                record.src[..2].copy_from_slice(&[place - 1, place.saturating_sub(2)]);
                tables.nodes.push(place);
            }
            tables.tensors.push(record);
        }
    }
    tables
}

fn graphs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("graph of 1000 nodes");
    let (tables, id) = (graph(), GraphId { slot: 1, generation: 1 });
    let mut message = Vec::new();
    group.bench_function("encode", |bencher| {
        bencher.iter(|| {
            message.clear();
            black_box(&tables).encode(id, &mut message);
        });
    });
    message.clear();
    tables.encode(id, &mut message);
    group.bench_function("decode", |bencher| bencher.iter(|| GraphTables::decode(black_box(&message))));
    let mut next = tables.clone();
    next.tensors.iter_mut().step_by(50).for_each(|tensor| tensor.layout.offset += 32);
    group.bench_function("changes_to", |bencher| {
        bencher.iter(|| black_box(&tables).changes_to(black_box(&next)))
    });
    group.finish();
}

fn requests(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    let exec = bytemuck::bytes_of(&GraphId { slot: 1, generation: 1 }).to_vec();
    let range = Range { buffer: BufferId::new(1, 1), offset: 4096, size: 64 };
    let write = bytemuck::bytes_of(&range).to_vec();
    group.bench_function("EXEC", |bencher| {
        bencher.iter(|| Request::parse(CallCode::EXEC, black_box(&exec), 0))
    });
    group.bench_function("WRITE", |bencher| {
        bencher.iter(|| Request::parse(CallCode::WRITE, black_box(&write), 64))
    });
    group.finish();
}

criterion_group!(benches, graphs, requests);
criterion_main!(benches);
