//! What a flush costs the slower of two devices, by counts.
#![allow(clippy::unwrap_used)]

use crate::numbered;

use std::sync::Arc;

use terrace_chunk::ChunkStore;
use terrace_store::{Batch, Compression, Dedup, Flow, Owner, Piece, Placement, Store, Trial};

fn store() -> Arc<ChunkStore> {
    numbered::create(&[("fast", &["fast"]), ("slow", &["slow"])], 64 << 20).1
}

/// Writes and flushes of the slow device.
fn slow(store: &ChunkStore) -> (u64, u64) {
    let counters = store.pool().devices()[1].counters;
    (counters.writes, counters.flushes)
}

/// Commits a new chunk and a record, and flushes.
fn write(store: &ChunkStore, number: u64, placement: Placement) {
    let content: Vec<u8> = (0..4096)
        .map(|at| (number * 31 + at) as u8 ^ (at >> 4) as u8)
        .collect();
    let piece = Piece {
        content: &content,
        compression: Compression::Off,
        trial: Trial::Untried,
        dedup: Dedup::Off,
        placement,
        owner: Owner::default(),
        privileged: false,
    };
    let written = store.write_chunks(&[piece]).unwrap().remove(0);
    let mut batch = Batch::new();
    batch.put([&[0x20][..], &number.to_be_bytes()].concat(), vec![1]);
    batch.reference(written.id, 1);
    batch.hold(written);
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
}

#[test]
fn a_flush_of_what_lies_on_the_fast_device_leaves_the_slow_one_alone() {
    let store = store();
    let landing = Placement::Landing(Flow::Random);
    write(&store, 0, landing);
    store.catch_up();
    let before = slow(&store);
    (1..=20).for_each(|number| write(&store, number, landing));
    assert_eq!(slow(&store), before);
    assert!(store.behind_bytes() > 0 && store.durable_everywhere() < store.newest().0);
    store.catch_up();
    assert_eq!(slow(&store), (before.0 + 1, before.1 + 1));
    assert_eq!(
        (store.behind_bytes(), store.durable_everywhere()),
        (0, store.newest().0)
    );
}

#[test]
fn a_flush_of_what_lies_on_the_slow_device_brings_its_copy_of_the_log_along() {
    let store = store();
    let below = Placement::Tier {
        tier: 1,
        strict: true,
    };
    write(&store, 0, below);
    let before = slow(&store);
    write(&store, 1, below);
    assert_eq!(
        store.behind_bytes(),
        0,
        "records of content that outlives the fast device are on both"
    );
    assert_eq!(
        slow(&store),
        (before.0 + 2, before.1 + 1),
        "the chunk, the log, one flush"
    );
}

#[test]
fn a_slow_copy_that_is_far_behind_is_waited_for() {
    let store = store();
    let mut most = 0;
    for number in 0..400_u64 {
        let mut batch = Batch::new();
        batch.put(
            [&[0x20][..], &number.to_be_bytes()].concat(),
            vec![number as u8; 9000],
        );
        let sequence = store.commit(batch).unwrap();
        store.flush(sequence).unwrap();
        most = most.max(store.behind_bytes());
    }
    assert!(
        (1 << 19..=(1 << 20) + (64 << 10)).contains(&most),
        "{most} bytes behind"
    );
}

#[test]
fn a_root_and_the_end_leave_nothing_behind() {
    let store = store();
    write(&store, 0, Placement::Landing(Flow::Random));
    assert!(store.behind_bytes() > 0);
    store.checkpoint().unwrap();
    assert_eq!(store.behind_bytes(), 0);
    write(&store, 1, Placement::Landing(Flow::Random));
    store.close().unwrap();
    assert_eq!(store.behind_bytes(), 0);
}

#[test]
fn no_segment_is_free_while_the_slow_copy_does_not_know_that_it_was_given_up() {
    let store = store();
    let below = Placement::Tier {
        tier: 1,
        strict: true,
    };
    let mut random = 7_u64;
    for number in 0..24_u64 {
        let bytes = std::iter::repeat_with(|| {
            random = random
                .wrapping_mul(0x5851_F42D_4C95_7F2D)
                .wrapping_add(0x1405_7B7E_F767_814F);
            (random >> 56) as u8
        });
        let content: Vec<u8> = bytes.take(100_000).collect();
        let piece = Piece {
            content: &content,
            compression: Compression::Off,
            trial: Trial::Untried,
            dedup: Dedup::Off,
            placement: below,
            owner: Owner::default(),
            privileged: false,
        };
        let written = store.write_chunks(&[piece]).unwrap().remove(0);
        let id = written.id;
        let mut batch = Batch::new();
        batch.put([&[0x20][..], &number.to_be_bytes()].concat(), vec![1]);
        batch.reference(id, 25);
        batch.hold(written);
        store.commit(batch).unwrap();
        let mut batch = Batch::new();
        batch.delete([&[0x20][..], &number.to_be_bytes()].concat());
        batch.reference(id, -25);
        let sequence = store.commit(batch).unwrap();
        store.flush(sequence).unwrap();
    }
    let (mut free, mut released) = (store.pool().free_segments(), 0);
    for _ in 0..1000 {
        let step = store.step().unwrap();
        let now = store.pool().free_segments();
        if now > free {
            released += now - free;
            assert_eq!(store.behind_bytes(), 0);
        }
        free = now;
        // Somebody goes on beside it.
        let mut batch = Batch::new();
        batch.put(vec![0x20, 9], vec![1]);
        let sequence = store.commit(batch).unwrap();
        if step == terrace_chunk::Step::Idle {
            break;
        }
        store.flush(sequence).unwrap();
    }
    assert!(released >= 2, "{released} segments came back");
}
