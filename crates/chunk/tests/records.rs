//! Records that wait for tables take no more memory than their share, whoever makes them and whatever else is to be done.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::{sync::mpsc::channel, thread};

use fixture::{audit, noise, options, piece, settle, small};
use parking_lot::Mutex;
use terrace_chunk::{ChunkStore, Step};
use terrace_store::{Batch, ChunkId, Store, StoreError};

/// One batch of records, about.
const BATCH: u64 = 100 << 10;
/// As much as the records of 1024 chunks that are freed by one step.
const STEP: u64 = 1024 * 1024;

fn record_bytes(store: &ChunkStore) -> u64 {
    store.space().memory.record_bytes
}

fn share() -> u64 {
    options(1).memtable_bytes as u64
}

/// Commits a batch of records.
fn commit(store: &ChunkStore, number: u64) {
    let mut batch = Batch::new();
    for record in 0..100u64 {
        let key = [&[0x30][..], &number.to_be_bytes(), &record.to_be_bytes()].concat();
        batch.put(key, noise(number << 32 | record, 900));
    }
    store.commit(batch).unwrap();
}

/// The most that records take after each of so many batches.
fn most_after(store: &ChunkStore, batches: std::ops::Range<u64>) -> u64 {
    let after = batches.map(|number| {
        commit(store, number);
        record_bytes(store)
    });
    after.max().unwrap()
}

#[test]
fn who_commits_waits_until_records_are_in_tables_though_somebody_else_works_there() {
    let (device, _, store) = small(80);
    assert!(most_after(&store, 0..40) < share() + 2 * BATCH);
    let (told, is_held) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    *device.on_discard.lock() = Some(Box::new(move |_| {
        let _ = told.send(());
        let _ = may_go_on.lock().recv();
    }));
    // Segments to be given back: whoever does is held up.
    fill_and_remove(&store);
    thread::scope(|scope| {
        let work = scope.spawn(|| settle(&store));
        is_held.recv().unwrap();
        let commits = scope.spawn(|| most_after(&store, 40..80));
        // Or for room in the log, which on this full pool tables can have taken: that is made by whoever is held up, too.
        let is_waiting = || store.waiting_for_tables() + store.waiting_for_room() > 0;
        while !is_waiting() && !commits.is_finished() {
            thread::yield_now();
        }
        drop(go_on);
        // What is freed meanwhile makes records too.
        assert!(commits.join().unwrap() < share() + STEP + 2 * BATCH);
        work.join().unwrap();
    });
    assert_eq!(store.waiting_for_tables(), 0);
    audit(&store);
}

/// Writes small chunks until the pool is full, and removes them all; how many.
fn fill_and_remove(store: &ChunkStore) -> usize {
    let mut ids: Vec<ChunkId> = Vec::new();
    loop {
        let contents: Vec<Vec<u8>> = (0..64).map(|at| noise(ids.len() as u64 + at, 4096)).collect();
        let pieces: Vec<_> = contents.iter().map(|content| piece(content)).collect();
        let written = match store.write_chunks(&pieces) {
            Ok(written) => written,
            Err(StoreError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        };
        let mut batch = Batch::new();
        for written in written {
            ids.push(written.id);
            batch.reference(written.id, 1);
            batch.hold(written);
        }
        store.commit(batch).unwrap();
    }
    for some in ids.chunks(256) {
        let mut batch = Batch::new();
        some.iter().for_each(|id| batch.reference(*id, -1));
        store.commit(batch).unwrap();
    }
    let sequence = store.newest();
    store.flush(sequence).unwrap();
    ids.len()
}

#[test]
fn what_is_freed_where_room_is_short_makes_no_more_records_than_have_room() {
    let (_, _, store) = small(160);
    let chunks = fill_and_remove(&store);
    let mut most = 0;
    while store.step().unwrap() == Step::More {
        most = most.max(record_bytes(&store));
    }
    assert!(most < share() + STEP, "{most} for {chunks} chunks");
    assert_eq!(store.space().chunks, 0);
    audit(&store);
}
