//! What the store does for itself on devices on which users wait.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::sync::atomic::Ordering;

use fixture::{FaultDevice, Power, audit, make_pool, noise, options, piece};
use terrace_chunk::{ChunkStore, Options};
use terrace_store::{Batch, ChunkId, Placement, Store};

const MIB: u64 = 1 << 20;
const MILLISECOND: u64 = 1_000_000;

/// Moves 8 MiB from the first tier to the second, where users' reads want so much time between two requests; the longest write
/// there.
fn longest_write(spacing_nanoseconds: u64) -> u64 {
    let power = Power::new();
    let [from, to] = ["from", "to"].map(|name| FaultDevice::new(name, 160 * MIB, power.clone()));
    let pool = make_pool(&[("fast", 1, vec![from]), ("slow", 1, vec![to.clone()])]);
    let threads = Options {
        threads: 1,
        ..options(1)
    };
    let store = ChunkStore::create(pool, threads).unwrap();
    let contents: Vec<Vec<u8>> = (0..64).map(|seed| noise(seed, 128 << 10)).collect();
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
