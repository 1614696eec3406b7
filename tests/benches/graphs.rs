//! What a graph costs: to bytes and back, finding what changed, and in the worker checking it and making it ggml's, anew or
//! by a patch. On a real ggml.
#![allow(missing_docs)] // `criterion_group!` makes a public function

use criterion::{Criterion, criterion_group, criterion_main};
use ferry_host::ggml::{Buffer, Graph, Library, ValidGraph};
use ferry_protocol::graph::GraphTables;
use ferry_protocol::ids::{BufferId, GraphId};
use ferry_protocol::ops::Op;
use ferry_protocol::tensor::{TensorLayout, TensorRecord, flags};
use ferry_protocol::types::TensorType;
use ferry_tests::artifacts::Store;
use std::hint::black_box;
use std::sync::Arc;

const GROUP: &str = "graph of 1000 nodes";
const NODES: usize = 1000;
const TENSOR_BYTES: u64 = 256;

fn the_buffer() -> BufferId {
    BufferId::new(0, 1)
}

/// A thousand nodes, each of them a sum of a leaf of its own and the node before, with names as llama.cpp gives them.
fn tables() -> GraphTables {
    let mut tables = GraphTables::default();
    let add = Op::by_name("ADD").expect("is in the list");
    for node in 0..NODES as u32 {
        for (op, name) in [(Op::NONE, format!("blk.{node}.weight")), (add, format!("result-{node}"))] {
            let place = tables.tensors.len() as u32;
            let layout = TensorLayout {
                ne: [TENSOR_BYTES as i64 / 4, 1, 1, 1],
                nb: [4, TENSOR_BYTES, TENSOR_BYTES, TENSOR_BYTES],
                buffer: the_buffer(),
                offset: u64::from(place) * TENSOR_BYTES,
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

fn protocol(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group(GROUP);
    let (tables, id) = (tables(), GraphId { slot: 1, generation: 1 });
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

fn worker(criterion: &mut Criterion) {
    let llama = Store::open().and_then(|store| store.llama()).expect("llama.cpp from the artifact store");
    let library = Arc::new(Library::load(&llama.bin, &["cpu".into()]).expect("ggml's libraries"));
    let tables = tables();
    let bytes = tables.tensors.len() as u64 * TENSOR_BYTES;
    let buffer = Buffer::alloc(&library, 0, bytes as usize).expect("half a megabyte");
    let find = |id| (id == the_buffer()).then_some(&buffer);
    let valid = ValidGraph::check(&library, &tables, find).expect("a valid graph");

    let mut group = criterion.benchmark_group(GROUP);
    group.bench_function("validate", |bencher| {
        bencher.iter(|| ValidGraph::check(&library, black_box(&tables), find).is_ok());
    });
    group.bench_function("translate", |bencher| {
        bencher.iter(|| Graph::new(&library, black_box(&valid)).is_some());
    });
    let mut graph = Graph::new(&library, &valid).expect("the CPU takes any graph");
    group.bench_function("translate a patched one", |bencher| {
        bencher.iter(|| graph.update(&library, black_box(&valid)));
    });
    group.finish();
}

criterion_group!(benches, protocol, worker);
criterion_main!(benches);
