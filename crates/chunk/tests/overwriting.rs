//! What is written over and over stays on the fast tier, whatever garbage that makes there.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::sync::Arc;

use fixture::{FaultDevice, Power, audit, make_pool, noise, options, piece, settle};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use terrace_chunk::ChunkStore;
use terrace_store::{Batch, ChunkId, Piece, Placement, Store};

const CHUNK_BYTES: usize = 65_536;

fn two_tiers(fast_mib: u64) -> Arc<ChunkStore> {
    let power = Power::new();
    let device = |name: &str, mib: u64| FaultDevice::new(name, mib << 20, power.clone());
    let pool = make_pool(&[
        ("fast", 1, vec![device("fast", fast_mib)]),
        ("slow", 1, vec![device("slow", 256)]),
    ]);
    ChunkStore::create(pool, options(1)).unwrap()
}

/// Writes one chunk for each seed, in place of some others.
fn write(store: &ChunkStore, seeds: impl Iterator<Item = u64>, old: &[ChunkId]) -> Vec<ChunkId> {
    write_of(store, CHUNK_BYTES, seeds, old)
}

/// The same of chunks of so many bytes.
fn write_of(
    store: &ChunkStore,
    chunk_bytes: usize,
    seeds: impl Iterator<Item = u64>,
    old: &[ChunkId],
) -> Vec<ChunkId> {
    let contents: Vec<Vec<u8>> = seeds.map(|seed| noise(seed, chunk_bytes)).collect();
    let pieces: Vec<Piece<'_>> = contents.iter().map(|content| piece(content)).collect();
    let mut batch = Batch::new();
    let mut ids = Vec::new();
    for written in store.write_chunks(&pieces).unwrap() {
        ids.push(written.id);
        batch.reference(written.id, 1);
        batch.hold(written);
    }
    old.iter().for_each(|id| batch.reference(*id, -1));
    store.commit(batch).unwrap();
    ids
}

fn tier_of(store: &ChunkStore, id: ChunkId) -> u8 {
    store.chunk_info(id).unwrap().unwrap().tier
}

#[test]
fn what_is_written_over_lands_on_the_fast_tier_although_its_segments_are_used_up() {
    let store = two_tiers(64);
    // 36 of 64 MiB live; four times the tier is written over, at random, with little background work.
    let mut seeds = 0..;
    let mut ids = write(&store, seeds.by_ref().take(576), &[]);
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..512 {
        let places: std::collections::BTreeSet<usize> =
            (0..8).map(|_| random.random_range(0..ids.len())).collect();
        let old: Vec<ChunkId> = places.iter().map(|at| ids[*at]).collect();
        let new = write(&store, seeds.by_ref().take(old.len()), &old);
        for (at, id) in places.into_iter().zip(new) {
            assert_eq!(tier_of(&store, id), 0);
            ids[at] = id;
        }
        store.step().unwrap();
    }
    let slow = ids.iter().filter(|id| tier_of(&store, **id) > 0).count();
    assert_eq!(slow, 0, "compaction keeps all where it is");
    settle(&store);
    audit(&store);
}

#[test]
fn what_has_no_room_beside_what_lives_goes_to_the_slower_tier() {
    let store = two_tiers(64);
    let ids = write(&store, 0..1600, &[]);
    let fast = ids.iter().filter(|id| tier_of(&store, **id) == 0).count();
    // 15/16 of 64 MiB, less log and metadata.
    assert!((700..960).contains(&fast), "{fast}");
    // Room is made there: new content lands there again.
    let fast: Vec<ChunkId> = ids
        .iter()
        .copied()
        .filter(|id| tier_of(&store, *id) == 0)
        .collect();
    let slow = Placement::Tier {
        tier: 1,
        strict: true,
    };
    store.rewrite(&fast[..300], slow).unwrap();
    settle(&store);
    // Although the segment that was begun below is not full.
    let more = write(&store, 10_000..10_100, &[]);
    assert!(more.iter().all(|id| tier_of(&store, *id) == 0));
    audit(&store);
}

#[test]
fn what_lands_below_again_goes_on_in_the_segment_that_was_begun_there() {
    let store = two_tiers(64);
    let mut ids = write(&store, 0..1000, &[]);
    let begun = |ids: &[ChunkId]| {
        let places = ids.iter().filter(|id| tier_of(&store, **id) > 0);
        let segments = places.map(|id| store.chunk_info(*id).unwrap().unwrap().segment);
        segments.collect::<std::collections::BTreeSet<_>>().len()
    };
    let before = begun(&ids);
    assert!(before > 0);
    let slow = Placement::Tier {
        tier: 1,
        strict: true,
    };
    // Three times there is room above for a few segments, and then none.
    for round in 1..=3u64 {
        let fast = ids.iter().copied().filter(|id| tier_of(&store, *id) == 0);
        let sinking: Vec<ChunkId> = fast.take(64).collect();
        store.rewrite(&sinking, slow).unwrap();
        settle(&store);
        ids.retain(|id| !sinking.contains(id));
        let new = write(&store, round * 10_000..round * 10_000 + 80, &[]);
        let tiers: Vec<u8> = new.iter().map(|id| tier_of(&store, *id)).collect();
        assert!(tiers.is_sorted() && tiers[0] == 0 && tiers[79] == 1, "{tiers:?}");
        ids.extend(new);
    }
    let spilled = ids.iter().filter(|id| tier_of(&store, **id) > 0).count();
    // A segment of 1 MiB has 15 of them.
    assert!(
        begun(&ids) <= spilled.div_ceil(15) + 1,
        "{} for {spilled}",
        begun(&ids)
    );
    audit(&store);
}

#[test]
fn many_chunks_are_moved_by_one_batch_and_what_is_gone_is_left_out() {
    let store = two_tiers(64);
    let ids = write_of(&store, 4096, 0..200, &[]);
    let mut batch = Batch::new();
    ids[..20].iter().for_each(|id| batch.reference(*id, -1));
    store.commit(batch).unwrap();
    settle(&store);
    let mut asked = ids.clone();
    asked.extend_from_slice(&ids[100..110]);
    let slow = Placement::Tier {
        tier: 1,
        strict: true,
    };
    let before = store.newest().0;
    let outcome = store.rewrite(&asked, slow).unwrap();
    assert_eq!((outcome.moved, outcome.skipped, outcome.busy), (180, 30, 0));
    // Two batches, and one for the segment that was taken.
    assert!(store.newest().0 - before <= 4, "{}", store.newest().0 - before);
    assert!(ids[20..].iter().all(|id| tier_of(&store, *id) == 1));
    settle(&store);
    audit(&store);
}

/// What was read of the only device so far, bytes.
fn read_bytes(store: &ChunkStore) -> u64 {
    store.space().tiers[0].devices[0].read_bytes
}

#[test]
fn what_is_compacted_is_read_once() {
    let power = Power::new();
    let device = FaultDevice::new("only", 96 << 20, power);
    let store = ChunkStore::create(make_pool(&[("only", 1, vec![device])]), options(1)).unwrap();
    let mut ids = Vec::new();
    let mut seeds = 0u64..;
    for _ in 0..24 {
        ids.extend(write_of(&store, 4096, seeds.by_ref().take(250), &[]));
    }
    store.close_streams().unwrap();
    settle(&store);
    let place = |id: &ChunkId| {
        store
            .chunk_info(*id)
            .unwrap()
            .map(|info| (info.segment, info.offset))
    };
    let segments = |ids: &[ChunkId]| -> std::collections::BTreeSet<u32> {
        ids.iter().filter_map(|id| Some(place(id)?.0)).collect()
    };
    let before = segments(&ids);
    assert!(before.len() >= 20, "{}", before.len());
    // Two of three go, so that what is left shares a third of the segments.
    let mut random = StdRng::seed_from_u64(7);
    let mut batch = Batch::new();
    ids.retain(|id| {
        let goes = random.random_range(0..3) > 0;
        if goes {
            batch.reference(*id, -1);
        }
        !goes
    });
    store.commit(batch).unwrap();
    let read_before = read_bytes(&store);
    settle(&store);
    let emptied = before.difference(&segments(&ids)).count() as u64;
    assert!(emptied >= 12, "{emptied}");
    // Each of a segment's bytes once, and what metadata takes.
    let read = read_bytes(&store) - read_before;
    assert!(
        read < emptied * (5 << 20) / 4,
        "{read} bytes for {emptied} segments"
    );
    let contents = ids.iter().map(|id| store.read_chunk(*id).unwrap().len());
    assert!(contents.sum::<usize>() == ids.len() * 4096);
    audit(&store);
}
