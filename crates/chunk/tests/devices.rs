//! Devices that fail: what has another copy, or can be written again elsewhere, goes on; what has not stops the store.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::sync::{Arc, atomic::Ordering};

use fixture::{FaultDevice, Power, audit, make_pool, noise, open_pool, options, piece, settle};
use terrace_chunk::{ChunkStore, EvacuateCursor, ScrubCursor};
use terrace_device::Device;
use terrace_pool::{OpenOptions, Parallelism, Pool, SEGMENT_AREA_OFFSET, SegmentRange, TierSettings};
use terrace_store::{Batch, ChunkId, Piece, Placement, Sequence, Store, StoreError};

fn store_of(tiers: &[(&str, u8, usize)]) -> (Vec<Arc<FaultDevice>>, Arc<ChunkStore>) {
    let power = Power::new();
    let mut all = Vec::new();
    let mut groups = Vec::new();
    for (name, copies, count) in tiers {
        let devices: Vec<_> = (0..*count)
            .map(|n| FaultDevice::new(&format!("{name}{n}"), 64 << 20, power.clone()))
            .collect();
        all.extend(devices.clone());
        groups.push((*name, *copies, devices));
    }
    (all, ChunkStore::create(make_pool(&groups), options(1)).unwrap())
}

/// The store of a pool of which only these devices are left.
fn opened_with(left: &[Arc<FaultDevice>]) -> Arc<ChunkStore> {
    let left = left.iter().map(|device| device.clone() as Arc<dyn Device>);
    let degraded = OpenOptions {
        degraded: true,
        parallelism: Parallelism::Sequential,
        ..OpenOptions::default()
    };
    let pool = Pool::open(left.collect(), degraded).unwrap();
    ChunkStore::open(Arc::new(pool), options(2)).unwrap()
}

fn put(store: &ChunkStore, seeds: std::ops::Range<u64>) -> Result<(Vec<ChunkId>, Sequence), StoreError> {
    let contents: Vec<Vec<u8>> = seeds.map(|seed| noise(seed, 60_000)).collect();
    let pieces: Vec<Piece<'_>> = contents.iter().map(|content| piece(content)).collect();
    let mut batch = Batch::new();
    let mut ids = Vec::new();
    for written in store.write_chunks(&pieces)? {
        ids.push(written.id);
        batch.reference(written.id, 15);
        batch.hold(written);
    }
    let sequence = store.commit(batch)?;
    Ok((ids, sequence))
}

fn check(store: &ChunkStore, ids: &[ChunkId], first: u64) {
    for (seed, id) in (first..).zip(ids) {
        assert_eq!(store.read_chunk(*id).unwrap(), noise(seed, 60_000)[..]);
    }
}

#[test]
fn data_that_one_device_refuses_is_written_to_another() {
    let (devices, store) = store_of(&[("fast", 1, 1), ("slow", 1, 1)]);
    let (before, sequence) = put(&store, 0..20).unwrap();
    store.flush(sequence).unwrap();
    let (ids, sequence) = put(&store, 100..140).unwrap();
    devices[0].fail(true, false, false);
    store.flush(sequence).unwrap();
    assert_eq!(store.stopped(), None);
    check(&store, &ids, 100);
    let (more, sequence) = put(&store, 200..220).unwrap();
    store.flush(sequence).unwrap();
    audit(&store);
    drop(store);
    devices[0].fail(false, false, false);
    devices
        .iter()
        .for_each(|device| device.cut(&mut rand::SeedableRng::seed_from_u64(0)));
    let store = ChunkStore::open(open_pool(&devices), options(2)).unwrap();
    check(&store, &before, 0);
    check(&store, &ids, 100);
    check(&store, &more, 200);
    audit(&store);
}

#[test]
fn a_flush_writes_its_data_and_its_log_entry_at_once() {
    let (devices, store) = store_of(&[("only", 1, 1)]);
    let (_, sequence) = put(&store, 0..1).unwrap();
    assert_eq!(devices[0].together.load(Ordering::SeqCst), 0);
    store.flush(sequence).unwrap();
    assert_eq!(devices[0].together.load(Ordering::SeqCst), 2);
}

/// The entry that was written beside them says that they are where they are not: the power may go before the one that says
/// where they are, and then neither counts.
#[test]
fn chunks_refused_beside_their_log_entry_are_placed_elsewhere_before_anything_counts() {
    let (mut kept, mut lost) = (0, 0);
    for left in 0..9 {
        for seed in 0..8 {
            let (devices, store) = store_of(&[("fast", 1, 1), ("slow", 1, 1)]);
            let (before, sequence) = put(&store, 0..3).unwrap();
            store.flush(sequence).unwrap();
            let (ids, sequence) = put(&store, 100..103).unwrap();
            devices[0].refuse_chunks(true);
            devices[0].power.left.store(left, Ordering::SeqCst);
            let flushed = store.flush(sequence).is_ok();
            drop(store);
            devices[0].refuse_chunks(false);
            devices[0].power.left.store(i64::MAX, Ordering::SeqCst);
            for device in &devices {
                device.cut(&mut rand::SeedableRng::seed_from_u64(seed));
            }
            let store = ChunkStore::open(open_pool(&devices), options(2)).unwrap();
            check(&store, &before, 0);
            if store.chunk_info(ids[0]).unwrap().is_some() {
                check(&store, &ids, 100);
                kept += 1;
            } else {
                assert!(!flushed, "acknowledged and lost: {left} {seed}");
                lost += 1;
            }
            audit(&store);
        }
    }
    assert!(kept > 0 && lost > 0, "{kept} kept, {lost} lost");
}

#[test]
fn a_single_device_that_fails_stops_the_store_and_nothing_is_called_durable() {
    for (writes, flushes) in [(true, false), (false, true)] {
        let (devices, store) = store_of(&[("only", 1, 1)]);
        let (before, sequence) = put(&store, 0..10).unwrap();
        store.flush(sequence).unwrap();
        let (_, sequence) = put(&store, 10..20).unwrap();
        devices[0].fail(writes, flushes, false);
        assert!(store.flush(sequence).is_err());
        assert!(store.stopped().is_some());
        devices[0].fail(false, false, false);
        assert!(matches!(store.flush(sequence), Err(StoreError::Stopped(_))));
        assert!(matches!(store.commit(Batch::new()), Err(StoreError::Stopped(_))));
        check(&store, &before, 0);
    }
}

#[test]
fn two_copies_survive_a_flush_that_fails_on_one_device() {
    let (devices, store) = store_of(&[("pair", 2, 2)]);
    let (ids, sequence) = put(&store, 0..40).unwrap();
    devices[1].fail(false, true, false);
    store.flush(sequence).unwrap();
    let (more, sequence) = put(&store, 100..120).unwrap();
    store.flush(sequence).unwrap();
    drop(store);
    devices[1].fail(false, false, false);
    devices
        .iter()
        .for_each(|device| device.cut(&mut rand::SeedableRng::seed_from_u64(3)));
    let store = ChunkStore::open(open_pool(&devices), options(2)).unwrap();
    check(&store, &ids, 0);
    check(&store, &more, 100);
    audit(&store);
}

#[test]
fn what_a_device_refused_before_anybody_noted_it_gets_its_second_copy_at_the_next_opening() {
    let (devices, store) = store_of(&[("pair", 2, 2)]);
    devices[1].fail(true, false, false);
    let (ids, sequence) = put(&store, 0..20).unwrap();
    store.flush(sequence).unwrap();
    // The log says of all but the last that it was durable.
    let (more, sequence) = put(&store, 100..120).unwrap();
    store.flush(sequence).unwrap();
    // No label says that it failed.
    drop(store);
    devices[1].fail(false, false, false);
    let store = ChunkStore::open(open_pool(&devices), options(2)).unwrap();
    let mut cursor = ScrubCursor::default();
    let progress = store.scrub_step(&mut cursor, u64::MAX).unwrap();
    assert_eq!((progress.completed, progress.copies), (0, 80));
    check(&store, &ids, 0);
    check(&store, &more, 100);
    audit(&store);
}

#[test]
fn what_a_scrub_completes_does_not_go_where_there_is_one_copy_only() {
    let (_devices, store) = store_of(&[("fast", 1, 1), ("pair", 1, 2)]);
    let (ids, _) = put(&store, 0..150).unwrap();
    // Some fill segments, and the last go into one that takes more.
    let below = Placement::Tier {
        tier: 1,
        strict: true,
    };
    assert_eq!(store.rewrite(&ids, below).unwrap().moved, 150);
    store.flush(store.newest()).unwrap();
    let two = TierSettings {
        copies: 2,
        ..TierSettings::named("pair")
    };
    store.pool().set_tier("pair", two).unwrap();
    let mut completed = Vec::new();
    for _ in 0..2 {
        let progress = store.scrub_step(&mut ScrubCursor::default(), u64::MAX).unwrap();
        completed.push(progress.completed);
    }
    assert_eq!(completed, [150, 0]);
    check(&store, &ids, 0);
    audit(&store);
}

#[test]
fn a_damaged_copy_is_read_around_counted_and_repaired_by_scrub() {
    let (devices, store) = store_of(&[("pair", 2, 2)]);
    let (ids, sequence) = put(&store, 0..100).unwrap();
    store.flush(sequence).unwrap();
    store.checkpoint().unwrap();
    let info = store.chunk_info(ids[5]).unwrap().unwrap();
    let segment_bytes = u64::from(store.pool().segment_bytes());
    let device = usize::from(info.device);
    // The payload of the first chunks of the segment, on the copy that is read first.
    assert!(devices[device].flip((1 << 20) + u64::from(info.segment) * segment_bytes + 30_000));
    check(&store, &ids, 0);
    let mut cursor = ScrubCursor::default();
    let mut repaired = 0;
    loop {
        let progress = store.scrub_step(&mut cursor, 1 << 20).unwrap();
        repaired += progress.repaired;
        assert!(
            progress.damaged.is_empty() && progress.damaged_metadata.is_empty(),
            "{progress:?}"
        );
        assert!(progress.done_bytes <= progress.total_bytes);
        if progress.finished {
            assert_eq!(progress.done_bytes, progress.total_bytes);
            break;
        }
    }
    let errors: u64 = store
        .space()
        .tiers
        .iter()
        .flat_map(|tier| &tier.devices)
        .map(|device| device.checksum_errors)
        .sum();
    assert!(errors > 0);
    settle(&store);
    // Reading may have queued the repair before the scrub came; either way every copy is good again.
    let mut cursor = ScrubCursor::default();
    let mut copies = 0;
    while !cursor_done(&store, &mut cursor, &mut copies) {}
    assert!(repaired <= 1);
    assert_eq!(copies, 200);
    check(&store, &ids, 0);
    audit(&store);
}

fn cursor_done(store: &ChunkStore, cursor: &mut ScrubCursor, copies: &mut u64) -> bool {
    let progress = store.scrub_step(cursor, 1 << 20).unwrap();
    assert_eq!(progress.repaired, 0);
    assert!(progress.damaged.is_empty());
    *copies += progress.copies;
    progress.finished
}

/// Scrubs everything; what was repaired and what metadata is damaged.
fn scrub(store: &ChunkStore) -> (u64, Vec<String>) {
    let (mut cursor, mut repaired, mut damaged) = (ScrubCursor::default(), 0, Vec::new());
    loop {
        let progress = store.scrub_step(&mut cursor, 1 << 20).unwrap();
        repaired += progress.repaired;
        damaged.extend(progress.damaged_metadata.into_lines());
        if progress.finished {
            return (repaired, damaged);
        }
    }
}

/// Bad sectors in the same place of both copies are beyond repair, in one copy or in different places they are not.
#[test]
fn tables_with_sectors_that_cannot_be_read_in_one_copy_are_written_anew_by_scrub() {
    for (behind, is_mended) in [
        ([Some(0), None], true),
        ([None, Some(4096)], true),
        ([Some(0), Some(12_288)], true),
        ([Some(4096), Some(4096)], false),
    ] {
        let (devices, store) = store_of(&[("pair", 2, 2)]);
        let (ids, sequence) = put(&store, 0..100).unwrap();
        store.flush(sequence).unwrap();
        store.checkpoint().unwrap();
        settle(&store);
        let spoiled = devices.iter().zip(behind);
        let spoiled = spoiled.map(|(device, behind)| behind.map_or(0, |behind| device.spoil_tables(behind)));
        assert!(spoiled.sum::<usize>() > 0);
        let (repaired, damaged) = scrub(&store);
        assert_eq!(
            (repaired > 0, damaged.is_empty()),
            (is_mended, is_mended),
            "{behind:?}: {repaired} {damaged:?}"
        );
        if is_mended {
            store.checkpoint().unwrap();
            assert_eq!(scrub(&store), (0, Vec::new()), "{behind:?}");
            check(&store, &ids, 0);
            audit(&store);
        }
    }
}

#[test]
fn tables_of_which_a_copy_is_on_a_missing_device_stay_where_they_are() {
    let (devices, store) = store_of(&[("pair", 2, 2)]);
    let mut batch = Batch::new();
    batch.put(vec![0x20, 1], vec![1]);
    store.commit(batch).unwrap();
    store.checkpoint().unwrap();
    settle(&store);
    store.close().unwrap();
    drop(store);
    let degraded = OpenOptions {
        parallelism: Parallelism::Sequential,
        degraded: true,
        ..OpenOptions::default()
    };
    let pool = Arc::new(Pool::open(vec![devices[0].clone()], degraded).unwrap());
    let store = ChunkStore::open(pool.clone(), options(2)).unwrap();
    let written = || pool.devices()[0].counters.write_bytes;
    let before = written();
    let (repaired, damaged) = scrub(&store);
    assert!(repaired == 0 && !damaged.is_empty(), "{repaired}");
    assert_eq!(written(), before);
}

#[test]
fn a_verification_goes_on_behind_records_that_cannot_be_read() {
    let (devices, store) = store_of(&[("only", 1, 1)]);
    let (ids, sequence) = put(&store, 0..200).unwrap();
    store.flush(sequence).unwrap();
    store.checkpoint().unwrap();
    settle(&store);
    // The content of the last one is damaged too, which is to be found.
    let last = store.chunk_info(ids[199]).unwrap().unwrap();
    let segment_bytes = u64::from(store.pool().segment_bytes());
    let at = SEGMENT_AREA_OFFSET + u64::from(last.segment) * segment_bytes + last.offset as u64 + 30_000;
    assert!(devices[0].flip(at));
    store.close().unwrap();
    drop(store);
    let store = ChunkStore::open(open_pool(&devices), options(2)).unwrap();
    assert!(devices[0].spoil_tables(8192) > 0);
    let (mut cursor, mut lost, mut damaged, mut chunks) = (ScrubCursor::default(), vec![], vec![], 0);
    loop {
        let progress = store.verify_step(&mut cursor, 1 << 20);
        lost.extend(progress.lost.into_iter().map(|(id, _)| id));
        damaged.extend(progress.damaged_tables.into_lines());
        chunks += progress.chunks;
        if progress.finished {
            break;
        }
    }
    assert_eq!(lost, [ids[199]]);
    assert!(
        damaged.iter().any(|line| line.starts_with("records of chunks ")),
        "{damaged:?}"
    );
    assert!((100..200).contains(&chunks), "{chunks}");
}

#[test]
fn damage_without_another_copy_is_reported_for_that_chunk_alone() {
    let (devices, store) = store_of(&[("only", 1, 1)]);
    let (ids, sequence) = put(&store, 0..30).unwrap();
    store.flush(sequence).unwrap();
    let info = store.chunk_info(ids[0]).unwrap().unwrap();
    let segment_bytes = u64::from(store.pool().segment_bytes());
    assert!(devices[0].flip((1 << 20) + u64::from(info.segment) * segment_bytes + 20_000));
    assert!(matches!(
        store.read_chunk(ids[0]),
        Err(StoreError::Damaged { .. })
    ));
    assert!(store.read_chunk_part(ids[0], 18_000, 4096).is_err());
    assert_eq!(
        store.read_chunk_part(ids[0], 50_000, 5000).unwrap(),
        noise(0, 60_000)[50_000..55_000]
    );
    check(&store, &ids[1..], 1);
    let mut cursor = ScrubCursor::default();
    let mut damaged = Vec::new();
    loop {
        let progress = store.scrub_step(&mut cursor, 1 << 20).unwrap();
        damaged.extend(progress.damaged);
        if progress.finished {
            break;
        }
    }
    assert_eq!(
        damaged.iter().map(|d| (d.id, d.references)).collect::<Vec<_>>(),
        [(ids[0], 15)]
    );
}

#[test]
fn a_device_can_be_emptied() {
    let (_, store) = store_of(&[("pair", 1, 2)]);
    let (ids, sequence) = put(&store, 0..200).unwrap();
    store.flush(sequence).unwrap();
    store.checkpoint().unwrap();
    let device = 0;
    let number = store.pool().devices()[device].number;
    store.pool().set_draining(number, true).unwrap();
    let mut steps = 0;
    let mut cursor = EvacuateCursor::default();
    let range = SegmentRange::whole(number);
    while !store.evacuate_step(range, &mut cursor, 1 << 20).unwrap().finished {
        steps += 1;
        assert!(steps < 200, "{cursor:?}");
    }
    check(&store, &ids, 0);
    store.pool().remove_device(number).unwrap();
    check(&store, &ids, 0);
    let (more, sequence) = put(&store, 300..310).unwrap();
    store.flush(sequence).unwrap();
    check(&store, &more, 300);
    audit(&store);
}

/// Who asks for second copies at once has them at the next opening too, also those that the background made just before.
#[test]
fn a_second_copy_that_is_told_of_is_known_to_the_next_opening() {
    let (devices, store) = store_of(&[("only", 1, 2)]);
    let pool = store.pool().clone();
    pool.set_draining(1, true).unwrap();
    let (ids, sequence) = put(&store, 0..20).unwrap();
    store.flush(sequence).unwrap();
    store.checkpoint().unwrap();
    settle(&store);
    pool.set_draining(1, false).unwrap();
    // The log goes on with two copies; then the background copies the metadata, and no root tells of it yet.
    for _ in 0..3 {
        store.checkpoint().unwrap();
    }
    while !store.is_mirrored() {
        store.step().unwrap();
    }
    assert!(store.mirror_now().unwrap());
    drop((store, pool));
    let store = opened_with(&devices[1..]);
    assert_eq!(store.metadata_out_of_reach(), 0);
    assert!(ids.iter().all(|id| store.chunk_info(*id).unwrap().is_some()));
}

#[test]
fn metadata_that_had_room_on_one_device_only_gets_its_second_copy_later() {
    let (devices, store) = store_of(&[("only", 1, 2)]);
    let pool = store.pool().clone();
    pool.set_draining(1, true).unwrap();
    let (ids, sequence) = put(&store, 0..20).unwrap();
    store.flush(sequence).unwrap();
    store.checkpoint().unwrap();
    settle(&store);
    assert!(!store.is_mirrored());
    pool.set_draining(1, false).unwrap();
    // The next checkpoints let go of the log that has one copy; a search for metadata comes after a while.
    for _ in 0..3 {
        store.checkpoint().unwrap();
        for _ in 0..2000 {
            store.step().unwrap();
        }
    }
    assert!(store.is_mirrored());
    audit(&store);
    drop((store, pool));
    let store = opened_with(&devices[1..]);
    assert_eq!(store.metadata_out_of_reach(), 0);
    assert!(ids.iter().all(|id| store.chunk_info(*id).unwrap().is_some()));
}

/// Two copies that said different things when the other device left.
#[test]
fn metadata_with_both_copies_on_one_device_is_written_anew_on_two() {
    let (devices, store) = store_of(&[("only", 1, 2)]);
    let (ids, sequence) = put(&store, 0..20).unwrap();
    store.flush(sequence).unwrap();
    store.checkpoint().unwrap();
    settle(&store);
    assert!(store.is_mirrored());
    assert!(devices[1].spoil_tables(0) > 0);
    let pool = store.pool().clone();
    pool.set_draining(0, true).unwrap();
    let mut cursor = EvacuateCursor::default();
    let leaves = |cursor: &mut EvacuateCursor| store.evacuate_step(SegmentRange::whole(0), cursor, 1 << 20);
    while !leaves(&mut cursor).unwrap().finished {}
    assert!(!store.is_mirrored());
    pool.set_draining(0, false).unwrap();
    assert!(store.mirror_now().unwrap());
    // One of the background finds nothing either.
    settle(&store);
    assert!(store.is_mirrored());
    audit(&store);
    drop((store, pool));
    let store = opened_with(&devices[..1]);
    assert_eq!(store.metadata_out_of_reach(), 0);
    assert!(ids.iter().all(|id| store.chunk_info(*id).unwrap().is_some()));
}

/// Tables are written, and their device goes before it has flushed them.
#[test]
fn tables_that_went_with_the_only_device_that_had_them_are_written_anew() {
    let (devices, store) = store_of(&[("only", 1, 3)]);
    let pool = store.pool().clone();
    let others_take_nothing = |is_so| {
        (1..3).for_each(|number| pool.set_draining(number, is_so).unwrap());
    };
    others_take_nothing(true);
    let value = |number: u64| vec![number as u8; 300];
    let key = |number: u64| [&[0x20][..], &number.to_be_bytes()].concat();
    for number in 0..2000 {
        let mut batch = Batch::new();
        batch.put(key(number), value(number));
        store.commit(batch).unwrap();
    }
    store.flush(store.newest()).unwrap();
    // The checkpoint is due: a table, and no flush yet.
    assert_eq!(store.metadata_segments().0, 0);
    store.step().unwrap();
    assert_eq!(store.metadata_segments().0, 1);
    devices[0].fail(true, true, true);
    others_take_nothing(false);
    let is_whole = |store: &ChunkStore| {
        (0..2000).all(|number| store.get(&key(number)).unwrap().unwrap()[..] == value(number))
    };
    assert!(is_whole(&store), "what is not flushed yet is read from memory");
    store.checkpoint().unwrap();
    assert!(is_whole(&store));
    // Nothing is asked of the device any more, also by the next one.
    store.checkpoint().unwrap();
    drop((store, pool));
    let store = opened_with(&devices[1..]);
    assert!(is_whole(&store) && store.metadata_out_of_reach() == 0);
}

#[test]
fn what_is_written_and_not_committed_yet_is_waited_for() {
    let (_, store) = store_of(&[("fast", 1, 1), ("slow", 1, 1)]);
    let content = noise(1, 60_000);
    let mut written = store.write_chunks(&[piece(&content)]).unwrap();
    let number = store.pool().devices()[0].number;
    store.pool().set_draining(number, true).unwrap();
    let range = SegmentRange::whole(number);
    let mut cursor = EvacuateCursor::default();
    let mut step = || store.evacuate_step(range, &mut cursor, 1 << 20).unwrap();
    let waits = (0..10).map(|_| step()).filter(|progress| progress.waits).count();
    assert!(waits > 5, "it can do nothing else: {waits}");
    let mut batch = Batch::new();
    let id = written[0].id;
    batch.reference(id, 15);
    batch.hold(written.remove(0));
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
    assert!((0..10).any(|_| step().finished));
    check(&store, &[id], 1);
    audit(&store);
}

#[test]
fn a_log_that_could_only_go_on_where_no_replay_finds_it_stops_instead() {
    let (devices, store) = store_of(&[("fast", 1, 2), ("slow", 1, 1)]);
    let (before, sequence) = put(&store, 0..5).unwrap();
    store.flush(sequence).unwrap();
    devices[0].fail(true, false, false);
    devices[1].fail(true, false, false);
    let mut acknowledged = Vec::new();
    for round in 1..6u64 {
        let Ok((ids, sequence)) = put(&store, round * 100..round * 100 + 3) else {
            break;
        };
        if store.flush(sequence).is_ok() {
            acknowledged.push((round * 100, ids));
        }
    }
    drop(store);
    devices.iter().for_each(|device| {
        device.fail(false, false, false);
        device.cut(&mut rand::SeedableRng::seed_from_u64(1));
    });
    let store = ChunkStore::open(open_pool(&devices), options(2)).unwrap();
    check(&store, &before, 0);
    for (first, ids) in acknowledged {
        check(&store, &ids, first);
    }
    audit(&store);
}

/// Two devices of unlike size that keep a copy each: when the small one is full, the rest of the large one is no use to
/// content, and what was promised by a reservation must not count on it.
#[test]
fn what_the_smaller_of_two_copies_cannot_take_is_not_promised() {
    for (spare, expected) in [(false, 32 << 20), (true, 160 << 20)] {
        let power = Power::new();
        let device = |name: &str, mib: u64| FaultDevice::new(name, mib << 20, power.clone());
        let mut tiers = vec![("pair", 2, vec![device("large", 128), device("small", 40)])];
        if spare {
            tiers.push(("spare", 1, vec![device("single", 128)]));
        }
        let store = ChunkStore::create(make_pool(&tiers), options(1)).unwrap();
        let mut promised = 0u64;
        let full = (0..).step_by(20).find_map(|seed| {
            let reservation = store.reserve(20 * 60_000).err();
            if reservation.is_none() {
                // What was promised is taken.
                let (_, sequence) = put(&store, seed..seed + 20).unwrap();
                store.flush(sequence).unwrap();
                promised += 20 * 60_000;
            }
            reservation
        });
        assert!(matches!(full, Some(StoreError::NoSpace)));
        assert!(promised < expected, "{promised}");
        assert!(promised > expected / 2, "{promised}");
        audit(&store);
    }
}

/// A batch that a recovery gave up (its data could not be read right) is gone for good, also when the data is right
/// again later: users have seen the state without it.
#[test]
fn what_a_recovery_gave_up_does_not_come_back() {
    let (devices, store) = store_of(&[("only", 1, 1)]);
    let (before, sequence) = put(&store, 0..4).unwrap();
    store.flush(sequence).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    // In a segment of its own: what was open is never appended to again.
    let store = ChunkStore::open(open_pool(&devices), options(2)).unwrap();
    let (ids, sequence) = put(&store, 100..104).unwrap();
    store.flush(sequence).unwrap();
    let segment = store.chunk_info(ids[0]).unwrap().unwrap().segment;
    let segment_bytes = store.pool().segment_bytes();
    drop(store);
    let at = SEGMENT_AREA_OFFSET + u64::from(segment) * u64::from(segment_bytes);
    let mut content = vec![0; segment_bytes as usize];
    devices[0].read_at(at, &mut content).unwrap();
    devices[0].write_at(at, &vec![0; content.len()]).unwrap();
    let store = ChunkStore::open(open_pool(&devices), options(3)).unwrap();
    assert_eq!(store.chunk_info(ids[0]).unwrap(), None);
    check(&store, &before, 0);
    drop(store);
    devices[0].write_at(at, &content).unwrap();
    let store = ChunkStore::open(open_pool(&devices), options(4)).unwrap();
    assert_eq!(store.chunk_info(ids[0]).unwrap(), None, "it was given up");
    check(&store, &before, 0);
    audit(&store);
}

#[test]
fn both_copies_of_a_chunk_lie_on_one_tier_however_full_one_of_its_devices_is() {
    for strict in [false, true] {
        let power = Power::new();
        let device = |name: &str, mib: u64| FaultDevice::new(name, mib << 20, power.clone());
        let fast = vec![device("small", 16), device("large", 64)];
        let slow = vec![device("slow0", 64), device("slow1", 64)];
        let pool = make_pool(&[("fast", 2, fast), ("slow", 2, slow)]);
        let store = ChunkStore::create(pool, options(1)).unwrap();
        let placement = match strict {
            true => Placement::Tier {
                tier: 0,
                strict: true,
            },
            false => piece(&[0]).placement,
        };
        let mut stored = 0;
        for seed in 0..200 {
            let content = noise(seed, 128 << 10);
            let piece = Piece {
                placement,
                ..piece(&content)
            };
            let written = match store.write_chunks(&[piece]) {
                Ok(mut written) => written.remove(0),
                // Where nothing else will do, the tier is full with its smaller device.
                Err(StoreError::NoSpace) if strict => break,
                Err(error) => panic!("{error}"),
            };
            let mut batch = Batch::new();
            batch.reference(written.id, 1);
            batch.hold(written);
            store.commit(batch).unwrap();
            stored += 1;
        }
        assert!(stored > 60, "{stored} chunks");
        store.close_streams().unwrap();
        // The audit looks where copies lie.
        audit(&store);
        let scrubbed = store.scrub_step(&mut ScrubCursor::default(), u64::MAX).unwrap();
        assert_eq!((scrubbed.completed, scrubbed.short), (0, 0), "none lacks a copy");
    }
}
