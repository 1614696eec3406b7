//! A message through a ring: in by one side, out by the other, on one thread.
#![allow(missing_docs)] // `criterion_group!` makes a public function

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ferry_protocol::calls::CallCode;
use ferry_protocol::channel::arena::{Arena, ArenaRing, ArenaSleepWords, End, default_layout};
use ferry_protocol::channel::memory::Mapping;
use ferry_protocol::channel::ring::{Consumer, Doorbell, Producer, Side, halves};
use ferry_protocol::channel::{Broken, Receiver, Sender};
use ferry_protocol::frame::Header;
use ferry_protocol::ids::StreamId;
use ferry_protocol::limits::DATA_CHUNK_BYTES;
use memmap2::{MmapOptions, MmapRaw};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// Both sides are awake all the time.
struct Awake;

impl Doorbell for Awake {
    fn ring(&self) {}
    fn block(&self, _timeout: Option<Duration>) -> Result<(), Broken> {
        Ok(())
    }
    fn nudge(&self) {}
}

type Halves = (Producer<ArenaRing, ArenaSleepWords, Awake>, Consumer<ArenaRing, ArenaSleepWords, Awake>);

fn sides() -> (Halves, Halves) {
    let layout = default_layout();
    let bytes = MmapOptions::new().len(layout.arena_bytes as usize).map_anon().expect("memory for an arena");
    let mapping: Arc<dyn Mapping> = Arc::new(MmapRaw::from(bytes));
    let side = |end| {
        let arena = Arena::new(mapping.clone(), &layout, end).expect("the default layout fits");
        halves(&Side::new(arena.incoming, arena.outgoing, arena.words, Awake))
    };
    (side(End::Guest), side(End::Host))
}

fn ring(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    for (name, len) in [("64 B", 64), ("512 KiB", DATA_CHUNK_BYTES)] {
        let ((mut sender, _), (_, mut receiver)) = sides();
        let header = Header::request(CallCode::WRITE, StreamId::SESSION, 1);
        let payload = vec![0x55; len];
        let mut out = vec![0; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(format!("send and receive {name}"), |bencher| {
            bencher.iter(|| {
                assert!(sender.try_send(header, &[black_box(&payload)]).expect("an open channel"));
                receiver.try_receive(&mut |_, payload| payload.copy_to(&mut out)).expect("an open channel")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, ring);
criterion_main!(benches);
