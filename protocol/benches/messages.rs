//! Requests from bytes.
#![allow(missing_docs)] // `criterion_group!` makes a public function

use criterion::{Criterion, criterion_group, criterion_main};
use ferry_protocol::calls::CallCode;
use ferry_protocol::ids::{BufferId, GraphId};
use ferry_protocol::request::{Range, Request};
use std::hint::black_box;

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

criterion_group!(benches, requests);
criterion_main!(benches);
