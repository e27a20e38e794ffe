//! Room on a full pool: who needs it waits for whoever brings it back, and is refused only when there is none.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::{
    sync::{
        atomic::Ordering,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use fixture::{FaultDevice, audit, noise, options, piece, settle, small};
use parking_lot::Mutex;
use terrace_chunk::ChunkStore;
use terrace_store::{Batch, ChunkId, Piece, Store, StoreError};

/// Bytes of each chunk.
const CHUNK: usize = 100_000;

/// Writes chunks until the pool is full.
fn fill(store: &ChunkStore) -> Vec<ChunkId> {
    let mut ids = Vec::new();
    loop {
        let content = noise(ids.len() as u64, CHUNK);
        let written = match store.write_chunks(&[piece(&content)]) {
            Ok(written) => written,
            Err(StoreError::NoSpace) => return ids,
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
}

fn remove(store: &ChunkStore, ids: &[ChunkId]) {
    let mut batch = Batch::new();
    ids.iter().for_each(|id| batch.reference(*id, -1));
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
}

/// Holds up whoever gives the first segment back, from then on until what is returned second is dropped.
fn hold_up(device: &FaultDevice) -> (Receiver<()>, Sender<()>) {
    let (told, is_held) = channel();
    let (go_on, may_go_on) = channel();
    let may_go_on: Mutex<Receiver<()>> = Mutex::new(may_go_on);
    *device.on_discard.lock() = Some(Box::new(move |_| {
        let _ = told.send(());
        let _ = may_go_on.lock().recv();
    }));
    (is_held, go_on)
}

/// Lets `asking` ask while another thread works on the room, and go on when all of them wait or have their answer.
fn ask_beside_work<T: Send>(
    device: &FaultDevice,
    store: &ChunkStore,
    asking: &[&(dyn Fn() -> T + Sync)],
) -> Vec<T> {
    let (is_held, go_on) = hold_up(device);
    thread::scope(|scope| {
        let work = scope.spawn(|| settle(store));
        is_held.recv().unwrap();
        let asked: Vec<_> = asking.iter().map(|ask| scope.spawn(ask)).collect();
        let is_there = |asked: &thread::ScopedJoinHandle<'_, T>| asked.is_finished();
        while store.waiting_for_room() + asked.iter().filter(|asked| is_there(asked)).count() < asked.len() {
            thread::yield_now();
        }
        drop(go_on);
        let answers = asked.into_iter().map(|asked| asked.join().unwrap()).collect();
        work.join().unwrap();
        answers
    })
}

#[test]
fn who_needs_room_waits_for_whoever_brings_it_back() {
    let (device, _, store) = small(80);
    let ids = fill(&store);
    let gone = ids.len() / 2;
    remove(&store, &ids[..gone]);
    let half = (gone * CHUNK / 2) as u64;
    assert!(store.space().available_bytes < half / 4);
    let reserve = || store.reserve(half).map(|room| room.bytes());
    let write = || store.write_chunks(&[piece(&noise(1 << 40, CHUNK))]).map(|_| 0);
    let answers = ask_beside_work(&device, &store, &[&reserve, &write]);
    assert_eq!(answers[0].as_ref().unwrap(), &half);
    assert_eq!(answers[1].as_ref().unwrap(), &0);
    assert_eq!(store.waiting_for_room(), 0);
    settle(&store);
    audit(&store);
}

#[test]
fn what_one_finds_out_about_a_full_pool_holds_for_all_who_wait() {
    let (device, power, store) = small(80);
    let ids = fill(&store);
    let operations = || power.operations.load(Ordering::SeqCst);
    let ask = || store.reserve(1 << 40).map(drop).unwrap_err();
    let asking: Vec<&(dyn Fn() -> StoreError + Sync)> = vec![&ask; 16];
    let mut spent = Vec::new();
    for (count, removed) in [(1, &ids[..100]), (16, &ids[100..200])] {
        remove(&store, removed);
        let before = operations();
        for answer in ask_beside_work(&device, &store, &asking[..count]) {
            assert!(matches!(answer, StoreError::NoSpace), "{answer}");
        }
        spent.push(operations() - before);
    }
    assert!(spent[1] < spent[0] * 3, "writes and flushes: {spent:?}");
    // Each looks for itself again when something has come since.
    remove(&store, &ids[200..300]);
    assert!(store.reserve(CHUNK as u64 * 50).is_ok());
}

/// What that takes in a log of two copies, and in tables, is more than what small segments made of the reserve, of which content that
/// was accepted before takes some.
#[test]
fn all_that_fills_a_pool_of_two_devices_can_be_let_go_at_once() {
    const ACCEPTED_BYTES: u64 = 4 << 20;
    let power = fixture::Power::new();
    let devices = ["one", "other"].map(|name| FaultDevice::new(name, 160 << 20, power.clone()));
    let pool = fixture::make_pool(&[("only", 1, devices.to_vec())]);
    let store = ChunkStore::create(pool, options(1)).unwrap();
    let mut ids = Vec::new();
    for (privileged, rounds) in [(false, u64::MAX), (true, ACCEPTED_BYTES / (64 * 4096))] {
        let full = (0..rounds).find_map(|number| {
            let seed = |at| (number * 64 + at) * 2 + u64::from(privileged);
            let contents: Vec<Vec<u8>> = (0..64).map(|at| noise(seed(at), 4096)).collect();
            let pieces: Vec<Piece<'_>> = contents
                .iter()
                .map(|content| Piece {
                    privileged,
                    ..piece(content)
                })
                .collect();
            let mut batch = Batch::new();
            for written in match store.write_chunks(&pieces) {
                Ok(written) => written,
                Err(error) => return Some(error),
            } {
                ids.push(written.id);
                batch.reference(written.id, 1);
                batch.hold(written);
            }
            store.commit(batch).err()
        });
        assert!(
            privileged || matches!(full, Some(StoreError::NoSpace)),
            "{full:?}"
        );
    }
    let mut batch = Batch::new();
    batch.privileged();
    ids.iter().for_each(|id| batch.reference(*id, -1));
    store.flush(store.commit(batch).unwrap()).unwrap();
    settle(&store);
    let space = store.space();
    assert!(space.used_bytes < space.size_bytes / 8, "{space:?}");
    audit(&store);
}
