//! Tables are written and merged by whoever has to wait for memory or room, beside the one who makes checkpoints and frees what is dead.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use rand::SeedableRng;
use terrace_chunk::{ChunkStore, Options, Step};
use terrace_pool::{Request, SegmentKind, TierChoice};
use terrace_store::{Batch, ChunkId, Sequence, Store, StoreError};

use crate::fixture::{audit, noise, open_pool, options, piece, small};

const WRITERS: u64 = 3;
const BATCHES: u64 = 150;
const RECORDS: u64 = 40;

fn few_records(nonce: u64) -> Options {
    Options {
        memtable_bytes: 64 << 10,
        checkpoint_log_bytes: 64 << 10,
        ..options(nonce)
    }
}

fn key(writer: u64, batch: u64, record: u64) -> Vec<u8> {
    let numbers = [writer, batch, record].map(u64::to_be_bytes);
    [&[0x30][..], &numbers.concat()].concat()
}

/// Commits records and a reference.
fn commit(store: &ChunkStore, id: ChunkId, writer: u64, number: u64) -> Sequence {
    let mut batch = Batch::new();
    for record in 0..RECORDS {
        batch.put(key(writer, number, record), noise(number << 8 | record, 200));
    }
    batch.reference(id, 1);
    store.commit(batch).unwrap()
}

/// A chunk with one reference. References are added up: a batch that is in the tables and is replayed as well would count twice.
fn chunk(store: &ChunkStore) -> ChunkId {
    let mut batch = Batch::new();
    let written = store.write_chunks(&[piece(&noise(1, 300))]).unwrap().remove(0);
    let id = written.id;
    batch.reference(id, 1);
    batch.hold(written);
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
    id
}

/// What so many batches leave behind.
fn check(store: &ChunkStore, batches: u64) {
    assert_eq!(records(store), batches * RECORDS);
    assert_eq!(store.space().logical_bytes, 300 * (1 + batches));
    audit(store);
}

#[test]
fn records_that_go_to_tables_while_a_root_is_written_are_in_the_log_behind_it() {
    let (device, power, store) = small(80);
    drop(store);
    device.keep_all();
    let open = |nonce| {
        let pool = open_pool(std::slice::from_ref(&device));
        ChunkStore::open(pool, few_records(nonce)).unwrap()
    };
    let store = open(2);
    let id = chunk(&store);
    for number in 0..20 {
        commit(&store, id, 0, number);
    }
    let beside = Arc::downgrade(&store);
    // The first flush of a checkpoint is that of the tables that its manifest names.
    *device.before_flush.lock() = Some(Box::new(move || {
        let store = beside.upgrade().unwrap();
        let before = power.operations.load(Ordering::SeqCst);
        for number in 20..60 {
            // Each is an entry of the log: it may begin behind any of them.
            store.flush(commit(&store, id, 0, number)).unwrap();
        }
        assert!(
            power.operations.load(Ordering::SeqCst) > before,
            "no table was written"
        );
    }));
    store.checkpoint().unwrap();
    assert!(device.before_flush.lock().is_none());
    check(&store, 60);
    let newest = store.newest();
    store.flush(newest).unwrap();
    drop(store);
    device.cut(&mut rand::rngs::StdRng::seed_from_u64(5));
    let store = open(3);
    check(&store, 60);
}

#[test]
fn roots_that_are_written_beside_merges_hold_what_they_say() {
    let (device, _, store) = small(80);
    let id = chunk(&store);
    drop(store);
    device.keep_all();
    let mut random = rand::rngs::StdRng::seed_from_u64(11);
    let mut kept = 0;
    for round in 0..6u64 {
        let pool = open_pool(std::slice::from_ref(&device));
        let store = ChunkStore::open(pool, few_records(round + 2)).unwrap();
        assert_eq!(records(&store), kept * RECORDS, "round {round}");
        let done = AtomicBool::new(false);
        let flushed = AtomicU64::new(0);
        thread::scope(|scope| {
            // One makes roots as fast as it can, the other what is between them.
            let roots = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    store.checkpoint().unwrap();
                }
            });
            let steps = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    while store.step().unwrap() == Step::More {}
                    thread::yield_now();
                }
            });
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (store, flushed) = (&store, &flushed);
                    scope.spawn(move || {
                        for number in round * BATCHES..(round + 1) * BATCHES {
                            let sequence = commit(store, id, writer, number);
                            store.flush(sequence).unwrap();
                            flushed.fetch_add(1, Ordering::AcqRel);
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            done.store(true, Ordering::Release);
            roots.join().unwrap();
            steps.join().unwrap();
        });
        kept += flushed.into_inner();
        check(&store, kept);
        drop(store);
        device.cut(&mut random);
    }
}

fn records(store: &ChunkStore) -> u64 {
    let mut from = vec![0x30];
    let mut count = 0;
    loop {
        let page = store.scan(&from, &[0x31], 10_000).unwrap();
        let Some((last, _)) = page.last() else {
            return count;
        };
        count += page.len() as u64;
        from = [&last[..], &[0]].concat();
    }
}

#[test]
fn what_could_not_be_closed_can_be_closed_when_there_is_room_again() {
    let (device, _, store) = small(80);
    for number in 0..20 {
        let mut batch = Batch::new();
        batch.put(key(0, number, 0), noise(number, 200));
        store.flush(store.commit(batch).unwrap()).unwrap();
    }
    let request = Request {
        choice: TierChoice::Fastest,
        kind: SegmentKind::Data,
        avoid: &[],
        garbage: &[],
        leave_free: 0,
    };
    let mut taken = Vec::new();
    while let Ok(segment) = store.pool().allocate(&request) {
        taken.push(segment);
    }
    assert!(matches!(store.close(), Err(StoreError::NoSpace)));
    assert_eq!(store.stopped(), None);
    for segment in taken {
        store.pool().release(segment).unwrap();
    }
    store.close().unwrap();
    assert!(store.stopped().is_some() && store.commit(Batch::new()).is_err());
    drop(store);
    device.keep_all();
    let store = ChunkStore::open(open_pool(&[device]), options(2)).unwrap();
    assert_eq!(records(&store), 20);
}
