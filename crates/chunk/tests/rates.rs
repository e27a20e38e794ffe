//! The `rate_limit` of a tier holds for what the store moves of its own.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::sync::Arc;

use fixture::{FaultDevice, Power, audit, make_pool, noise, options, piece, settle};
use terrace_chunk::ChunkStore;
use terrace_store::{Batch, ChunkId, Store};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 128 << 10;
const RATE: u64 = 2 * MIB;
const TICK: u64 = 100_000_000;
/// A step goes on with an eighth of a second's worth at most, and one may have been saved.
const BURST: u64 = RATE / 4 + CHUNK;

/// A store on one device with 16 MiB of garbage among 32 MiB, and what is left of that.
fn fragmented(device_bytes: u64) -> (Arc<ChunkStore>, Vec<(ChunkId, Vec<u8>)>) {
    let device = FaultDevice::new("only", device_bytes, Power::new());
    let store = ChunkStore::create(make_pool(&[("only", 1, vec![device])]), options(1)).unwrap();
    let mut all = Vec::new();
    let mut batch = Batch::new();
    for seed in 0..256 {
        let content = noise(seed, CHUNK as usize);
        for written in store.write_chunks(&[piece(&content)]).unwrap() {
            batch.reference(written.id, 1);
            all.push((written.id, content.clone()));
            batch.hold(written);
        }
    }
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
    settle(&store);
    let mut batch = Batch::new();
    all.iter().step_by(2).for_each(|(id, _)| batch.reference(*id, -1));
    store.rates().set_limits([RATE]);
    store.rates().refresh(1);
    store.commit(batch).unwrap();
    let left = all.into_iter().skip(1).step_by(2).collect();
    (store, left)
}

fn places(store: &ChunkStore, chunks: &[(ChunkId, Vec<u8>)]) -> Vec<(u32, u32)> {
    let place = |(id, _): &(ChunkId, Vec<u8>)| {
        let info = store.chunk_info(*id).unwrap().unwrap();
        (info.segment, info.offset)
    };
    chunks.iter().map(place).collect()
}

#[test]
fn compaction_at_leisure_keeps_it() {
    let (store, left) = fragmented(160 * MIB);
    let began = places(&store, &left);
    let used = store.space().used_bytes;
    let (mut time, mut moved) = (0, 0);
    while time < 20 * 10 * TICK && store.space().used_bytes + 8 * MIB > used {
        store.rates().refresh(1 + time);
        settle(&store);
        let now = places(&store, &left);
        moved = now.iter().zip(&began).filter(|(now, began)| now != began).count() as u64 * CHUNK;
        let allowed = RATE * time / (10 * TICK);
        assert!(moved <= allowed + BURST, "{moved} bytes in {time} ns");
        assert!(moved + BURST + MIB >= allowed, "{moved} of {allowed} bytes");
        time += TICK;
    }
    assert!(moved > 4 * MIB && time > 20 * TICK, "{moved} bytes in {time} ns");
    for (id, content) in &left {
        assert_eq!(store.read_chunk(*id).unwrap(), content[..]);
    }
    audit(&store);
}

#[test]
fn who_needs_room_does_not_wait_for_it() {
    // No time passes: 16 MiB find room only where garbage was.
    let (store, left) = fragmented(64 * MIB);
    for seed in 1000..1128 {
        let content = noise(seed, CHUNK as usize);
        let mut batch = Batch::new();
        for written in store.write_chunks(&[piece(&content)]).unwrap() {
            batch.reference(written.id, 1);
            batch.hold(written);
        }
        store.commit(batch).unwrap();
    }
    for (id, content) in &left {
        assert_eq!(store.read_chunk(*id).unwrap(), content[..]);
    }
    audit(&store);
}
