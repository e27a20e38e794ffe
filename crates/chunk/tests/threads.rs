//! Many threads at once: group commit, dedup races, writers against the background.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use fixture::{audit, noise, open_pool, options, piece, settle, small};
use terrace_chunk::{ChunkStore, Options};
use terrace_store::{Batch, Piece, Store, StoreError};

#[test]
fn concurrent_committers_share_flushes_and_lose_nothing() {
    let (device, power, store) = small(80);
    let done = AtomicBool::new(false);
    let before = power.operations.load(Ordering::SeqCst);
    thread::scope(|scope| {
        let background = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                store.step().unwrap();
                thread::yield_now();
            }
        });
        let writers: Vec<_> = (0..6u64)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    for n in 0..40u64 {
                        // Half of the content is the same for all writers.
                        let seed = if n % 2 == 0 { n } else { writer * 1000 + n };
                        let content = noise(seed, 5000);
                        let mut batch = Batch::new();
                        for written in store.write_chunks(&[piece(&content)]).unwrap() {
                            assert_eq!(store.read_chunk(written.id).unwrap(), content[..]);
                            batch.put(
                                [&[0x30][..], &writer.to_be_bytes(), &n.to_be_bytes()].concat(),
                                written.id.0.to_le_bytes().to_vec(),
                            );
                            batch.reference(written.id, 2);
                            batch.hold(written);
                        }
                        let sequence = store.commit(batch).unwrap();
                        store.flush(sequence).unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Release);
        background.join().unwrap();
    });
    assert!(power.operations.load(Ordering::SeqCst) > before);
    // 20 contents that all share, and 6 × 20 of their own.
    assert_eq!(store.space().chunks, 20 + 120);
    audit(&store);
    drop(store);
    // Everything was flushed: a power cut that loses all unflushed writes changes nothing.
    device.cut(&mut rand::SeedableRng::seed_from_u64(4));
    let store = ChunkStore::open(open_pool(&[device]), options(2)).unwrap();
    assert_eq!(store.scan(&[0x30], &[0x31], 1000).unwrap().len(), 240);
    assert_eq!(store.space().chunks, 140);
    for (key, value) in store.scan(&[0x30], &[0x31], 1000).unwrap() {
        let id = terrace_store::ChunkId(u64::from_le_bytes(value[..].try_into().unwrap()));
        let writer = u64::from_be_bytes(key[1..9].try_into().unwrap());
        let n = u64::from_be_bytes(key[9..17].try_into().unwrap());
        let seed = if n % 2 == 0 { n } else { writer * 1000 + n };
        assert_eq!(store.read_chunk(id).unwrap(), noise(seed, 5000)[..]);
    }
    audit(&store);
}

#[test]
fn large_batches_are_written_by_several_threads_and_deduplicated_exactly() {
    let power = fixture::Power::new();
    let device = fixture::FaultDevice::new("d0", 80 << 20, power);
    let pool = fixture::make_pool(&[("only", 1, vec![device])]);
    let store: Arc<ChunkStore> = ChunkStore::create(
        pool,
        Options {
            threads: 3,
            ..options(1)
        },
    )
    .unwrap();
    let contents: Vec<Vec<u8>> = (0..64).map(|n| noise(n % 40, 100_000)).collect();
    let pieces: Vec<Piece<'_>> = contents.iter().map(|content| piece(content)).collect();
    let written = store.write_chunks(&pieces).unwrap();
    let mut batch = Batch::new();
    for (written, content) in written.iter().zip(&contents) {
        assert_eq!(store.read_chunk(written.id).unwrap(), content[..]);
        batch.reference(written.id, 25);
        batch.hold(written.clone());
    }
    drop(written);
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
    assert_eq!(store.space().chunks, 40);
    settle(&store);
    audit(&store);
}

/// A chunk of many blocks that are overwritten one by one is looked at by the reclaimer again and again while it
/// lives: that must not disturb the batches that take its references away.
#[test]
fn reclaiming_looks_at_living_chunks_without_disturbing_batches() {
    const CHUNKS: u64 = 8;
    const REFERENCES: i64 = 1500;
    let (_device, _power, store) = small(80);
    let contents: Vec<Vec<u8>> = (0..CHUNKS).map(|seed| noise(seed, 4096)).collect();
    let pieces: Vec<Piece<'_>> = contents.iter().map(|content| piece(content)).collect();
    let mut batch = Batch::new();
    let mut ids = Vec::new();
    for written in store.write_chunks(&pieces).unwrap() {
        batch.reference(written.id, REFERENCES);
        ids.push(written.id);
        batch.hold(written);
    }
    store.commit(batch).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let background = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                store.step().unwrap();
            }
        });
        let outcome = (1..REFERENCES).try_for_each(|_| {
            ids.iter().try_for_each(|id| {
                let mut batch = Batch::new();
                batch.reference(*id, -1);
                store.commit(batch).map(drop)
            })
        });
        done.store(true, Ordering::Release);
        background.join().unwrap();
        outcome.unwrap();
    });
    settle(&store);
    assert_eq!(store.space().chunks, CHUNKS);
    audit(&store);
    let mut batch = Batch::new();
    ids.iter().for_each(|id| batch.reference(*id, -1));
    store.commit(batch).unwrap();
    settle(&store);
    assert_eq!(store.space().chunks, 0);
    audit(&store);
}

/// What he had taken of the batches is in no log: nobody may be told that it is, and nobody may wait for him.
#[test]
fn a_leader_that_panics_stops_the_store_and_keeps_nobody_waiting() {
    let (device, _, store) = small(80);
    let commit = |number: u8| {
        let mut batch = Batch::new();
        batch.put(vec![0x30, number], vec![number]);
        store.commit(batch)
    };
    let lost = commit(1).unwrap();
    *device.before_flush.lock() = Some(Box::new(|| panic!("a broken invariant")));
    let leads = store.clone();
    assert!(thread::spawn(move || leads.flush(lost)).join().is_err());
    let (asks, (ended, ends)) = (store.clone(), mpsc::channel());
    thread::spawn(move || ended.send(asks.flush(lost)));
    // So long only if he is waited for.
    let flushed = ends.recv_timeout(Duration::from_secs(60));
    assert!(matches!(flushed, Ok(Err(StoreError::Stopped(_)))), "{flushed:?}");
    assert!(commit(2).is_err());
}
