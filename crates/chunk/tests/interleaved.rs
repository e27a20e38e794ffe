//! Look-ups, deletes and the freeing of dead chunks, one in the middle of the other: at each read of a device that the one makes the
//! other happens as a whole. What a writer was given for its content is there when its batch is committed.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::sync::{Arc, Mutex};

use fixture::{FaultDevice, audit, noise, open_pool, options, piece, settle, small};
use terrace_chunk::ChunkStore;
use terrace_store::{Batch, ChunkId, Piece, Store, Written};

/// So many equal pieces at least are looked up together.
const SEVERAL: u64 = 6;
/// Chunks before and behind those that matter.
const OTHERS: u64 = 300;

fn commit(store: &ChunkStore, written: Vec<Written>) -> Vec<ChunkId> {
    let ids = written.iter().map(|written| written.id).collect();
    let mut batch = Batch::new();
    for written in written {
        batch.reference(written.id, 1);
        batch.hold(written);
    }
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
    ids
}

fn release(store: &ChunkStore, ids: &[ChunkId]) {
    let mut batch = Batch::new();
    ids.iter().for_each(|id| batch.reference(*id, -1));
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
}

fn write(store: &ChunkStore, contents: &[Vec<u8>]) -> Vec<Written> {
    let pieces: Vec<Piece<'_>> = contents.iter().map(|content| piece(content)).collect();
    store.write_chunks(&pieces).unwrap()
}

/// A store over chunks of these contents, of which nothing is in RAM.
fn cold(contents: &[Vec<u8>]) -> (Arc<FaultDevice>, Arc<ChunkStore>, Vec<ChunkId>) {
    let (device, _, store) = small(64);
    // With others before and behind them, so that hints, records and counts of references lie in blocks of their own.
    let others = |from: u64| -> Vec<Vec<u8>> { (from..from + OTHERS).map(|seed| noise(seed, 300)).collect() };
    commit(&store, write(&store, &others(1000)));
    let ids = commit(&store, write(&store, contents));
    commit(&store, write(&store, &others(2000)));
    store.close().unwrap();
    drop(store);
    let store = ChunkStore::open(open_pool(std::slice::from_ref(&device)), options(2)).unwrap();
    (device, store, ids)
}

fn check(store: &ChunkStore, ids: &[ChunkId], contents: &[Vec<u8>], what: &str) {
    settle(store);
    for (id, content) in ids.iter().zip(contents) {
        match store.read_chunk(*id) {
            Ok(read) => assert!(read == *content, "{what}: other content"),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    audit(store);
}

/// One content, and as many as are looked up together.
fn cases() -> [Vec<Vec<u8>>; 2] {
    [1, SEVERAL].map(|count| (0..count).map(|seed| noise(seed, 5000)).collect())
}

#[test]
fn content_deleted_during_its_lookup_is_stored_for_the_writer() {
    for contents in cases() {
        for is_behind in [false, true] {
            let mut at = 0;
            loop {
                let what = format!("{} pieces, read {at}, behind it: {is_behind}", contents.len());
                let (device, store, ids) = cold(&contents);
                let other = store.clone();
                let delete = move || {
                    release(&other, &ids);
                    settle(&other);
                };
                match is_behind {
                    true => device.behind_read(at, delete),
                    false => device.before_read(at, delete),
                }
                let written = write(&store, &contents);
                let happened = device.no_read_awaited();
                let ids = commit(&store, written);
                check(&store, &ids, &contents, &what);
                if !happened {
                    break;
                }
                at += 1;
            }
            assert!(at >= 1, "no read, so nothing came between a look-up and its use");
        }
    }
}

#[test]
fn content_that_is_written_while_it_is_freed_is_there_for_its_writer() {
    for contents in cases() {
        for commits_at_once in [true, false] {
            let mut at = 0;
            loop {
                let what = format!("{} pieces, read {at}, at once: {commits_at_once}", contents.len());
                let (device, store, ids) = cold(&contents);
                release(&store, &ids);
                let taken = Arc::new(Mutex::new((Vec::new(), Vec::new())));
                {
                    let (other, taken, contents) = (store.clone(), taken.clone(), contents.clone());
                    device.before_read(at, move || {
                        let written = write(&other, &contents);
                        let mut taken = taken.lock().unwrap();
                        match commits_at_once {
                            true => taken.0 = commit(&other, written),
                            false => taken.1 = written,
                        }
                    });
                }
                settle(&store);
                let happened = device.no_read_awaited();
                let (mut ids, written) = std::mem::take(&mut *taken.lock().unwrap());
                if !written.is_empty() {
                    ids = commit(&store, written);
                }
                check(&store, &ids, &contents, &what);
                if !happened {
                    break;
                }
                at += 1;
            }
            assert!(at >= 2, "{at} reads: references and records");
        }
    }
}
