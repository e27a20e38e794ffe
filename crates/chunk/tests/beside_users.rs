//! What the store does for itself on devices on which users wait.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use fixture::{FaultDevice, Power, audit, make_pool, noise, options, piece, settle};
use parking_lot::Mutex;
use terrace_chunk::{ChunkStore, Options};
use terrace_pool::SegmentId;
use terrace_store::{Batch, ChunkId, Placement, Store};

const MIB: u64 = 1 << 20;
const MILLISECOND: u64 = 1_000_000;

/// Writes chunks of 128 KiB; their content and ids.
fn write(store: &ChunkStore, seeds: std::ops::Range<u64>) -> (Vec<Vec<u8>>, Vec<ChunkId>) {
    let contents: Vec<Vec<u8>> = seeds.map(|seed| noise(seed, 128 << 10)).collect();
    let mut batch = Batch::new();
    let mut ids: Vec<ChunkId> = Vec::new();
    for content in &contents {
        for written in store.write_chunks(&[piece(content)]).unwrap() {
            batch.reference(written.id, 1);
            ids.push(written.id);
            batch.hold(written);
        }
    }
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
    (contents, ids)
}

/// Moves 8 MiB from the first tier to the second, where users' reads want so much time between two requests; the longest write
/// there.
fn longest_write(spacing_nanoseconds: u64) -> u64 {
    let power = Power::new();
    let [from, to] = ["from", "to"].map(|name| FaultDevice::new(name, 320 * MIB, power.clone()));
    let pool = make_pool(&[("fast", 1, vec![from]), ("slow", 1, vec![to.clone()])]);
    let threads = Options {
        threads: 1,
        ..options(1)
    };
    let store = ChunkStore::create(pool, threads).unwrap();
    let (contents, ids) = write(&store, 0..64);
    to.longest.store(0, Ordering::SeqCst);
    store.set_spacing(1, spacing_nanoseconds);
    let target = Placement::Tier {
        tier: 1,
        strict: true,
    };
    assert_eq!(store.rewrite(&ids, target).unwrap().moved, 64);
    let longest = to.longest.load(Ordering::SeqCst);
    for (id, content) in ids.iter().zip(&contents) {
        assert_eq!(store.read_chunk(*id).unwrap(), content[..]);
    }
    audit(&store);
    longest
}

#[test]
fn moved_content_is_written_in_small_pieces_where_users_read_a_quick_device() {
    assert_eq!(longest_write(MILLISECOND), 128 << 10);
    // Nobody reads there, or it is no quick one: the fewer requests the better.
    assert!(longest_write(0) >= MIB);
    assert!(longest_write(20 * MILLISECOND) >= MIB);
}

#[test]
fn devices_hear_of_free_segments_when_nobody_reads_there() {
    let device = FaultDevice::new("only", 160 * MIB, Power::new());
    let pool = make_pool(&[("only", 1, vec![device.clone()])]);
    let threads = Options {
        threads: 1,
        ..options(1)
    };
    let store = ChunkStore::create(pool.clone(), threads).unwrap();
    let told: Arc<Mutex<Vec<SegmentId>>> = Arc::default();
    *device.on_discard.lock() = Some(Box::new({
        let (pool, told) = (pool.clone(), told.clone());
        move |offset| {
            let index = ((offset - MIB) / u64::from(pool.segment_bytes())) as u32;
            let segment = SegmentId { device: 0, index };
            assert!(pool.is_claimed(segment), "nobody else writes to it meanwhile");
            told.lock().push(segment);
        }
    }));
    let (_, gone) = write(&store, 0..512);
    settle(&store);
    let (free, began) = (pool.free_segments(), Instant::now());
    store.set_spacing(0, MILLISECOND);
    let mut batch = Batch::new();
    gone.iter().for_each(|id| batch.reference(*id, -1));
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
    settle(&store);
    // One flush comes at once; what was given up later waits for another one.
    let (more, _) = write(&store, 1000..1001);
    settle(&store);
    let released = pool.free_segments() - free;
    assert!(released >= 24, "{released}");
    let beside = told.lock().len() as u64;
    assert!(
        beside <= 1 + began.elapsed().as_secs() / 2,
        "{beside} of {released}"
    );
    // What is taken again meanwhile is left alone.
    let (contents, ids) = write(&store, 2000..2064);
    store.set_spacing(0, 0);
    settle(&store);
    let told = told.lock().clone();
    let segments: BTreeSet<SegmentId> = told.iter().copied().collect();
    assert!(
        told.len() as u64 > released / 2 && segments.len() == told.len(),
        "{told:?}"
    );
    assert_eq!(more.len(), 1);
    for (id, content) in ids.iter().zip(&contents) {
        assert_eq!(store.read_chunk(*id).unwrap(), content[..]);
    }
    audit(&store);
}
