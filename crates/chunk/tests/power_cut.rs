//! The power goes at every single write and flush of a small scenario, in three ways of losing what was not flushed.
//! After each cut: everything acknowledged is there, the state is that of a prefix of the batches, every chunk that it
//! refers to reads right, a full audit is clean, and the store goes on working and survives a second cut.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::{collections::BTreeMap, sync::Arc, sync::atomic::Ordering};

use fixture::{FaultDevice, Power, audit, make_pool, noise, open_pool, options, piece, settle, try_open};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use terrace_chunk::ChunkStore;
use terrace_store::{Batch, ChunkId, Piece, Placement, Store, StoreError};

type State = BTreeMap<Vec<u8>, Vec<(ChunkId, u64, usize)>>;

/// What was committed, batch by batch, and how much of it was acknowledged as durable.
struct History {
    states: Vec<(u64, State)>,
    acknowledged: u64,
}

fn encode(chunks: &[(ChunkId, u64, usize)]) -> Vec<u8> {
    let mut value = Vec::new();
    for (id, seed, length) in chunks {
        value.extend_from_slice(&id.0.to_le_bytes());
        value.extend_from_slice(&seed.to_le_bytes());
        value.extend_from_slice(&(*length as u64).to_le_bytes());
    }
    value
}

fn scan(store: &ChunkStore) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let records = store.scan(&[0x20], &[], 10_000).unwrap();
    records
        .into_iter()
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

/// Random batches until the power goes or `batches` are done.
fn work(
    store: &ChunkStore,
    history: &mut History,
    rng: &mut StdRng,
    batches: usize,
) -> Result<(), StoreError> {
    for _ in 0..batches {
        let mut state = history.states.last().unwrap().1.clone();
        let mut batch = Batch::new();
        for _ in 0..rng.random_range(1..4) {
            let key = vec![0x30, rng.random_range(0..6)];
            for (id, _, _) in state.remove(&key).unwrap_or_default() {
                batch.reference(id, -1);
            }
            if rng.random_bool(0.2) {
                batch.delete(key);
                continue;
            }
            let wanted: Vec<(u64, usize)> = (0..rng.random_range(1..5))
                .map(|_| {
                    (
                        rng.random_range(0..200),
                        if rng.random_bool(0.3) { 120_000 } else { 3000 },
                    )
                })
                .collect();
            let contents: Vec<Vec<u8>> = wanted
                .iter()
                .map(|(seed, length)| noise(*seed, *length))
                .collect();
            let pieces: Vec<Piece<'_>> = contents.iter().map(|content| piece(content)).collect();
            let mut chunks = Vec::new();
            for (written, (seed, length)) in store.write_chunks(&pieces)?.into_iter().zip(wanted) {
                batch.reference(written.id, 1);
                chunks.push((written.id, seed, length));
                batch.hold(written);
            }
            batch.put(key.clone(), encode(&chunks));
            state.insert(key, chunks);
        }
        let sequence = store.commit(batch)?;
        history.states.push((sequence.0, state));
        match rng.random_range(0..10) {
            0..4 => {
                store.flush(sequence)?;
                history.acknowledged = sequence.0;
            }
            4..7 => {
                store.step()?;
            }
            7 => {
                store.checkpoint()?;
                history.acknowledged = sequence.0;
            }
            8 => {
                let ids: Vec<ChunkId> = history
                    .states
                    .last()
                    .unwrap()
                    .1
                    .values()
                    .flatten()
                    .map(|c| c.0)
                    .collect();
                let tier = rng.random_range(0..2);
                store.rewrite(&ids, Placement::Tier { tier, strict: false })?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Opens after a cut and compares with the history; the history goes on from what was found.
fn recover(devices: &[Arc<FaultDevice>], history: &mut History, nonce: u64, what: &str) -> Arc<ChunkStore> {
    let store = ChunkStore::open(open_pool(devices), options(nonce))
        .unwrap_or_else(|error| panic!("{what}: cannot be opened: {error}"));
    let found = scan(&store);
    let matching = history.states.iter().rposition(|(_, state)| {
        state.len() == found.len()
            && state
                .iter()
                .all(|(k, chunks)| found.get(k) == Some(&encode(chunks)))
    });
    let Some(index) = matching else {
        panic!("{what}: not the state after any batch")
    };
    let sequence = history.states[index].0;
    assert!(
        sequence >= history.acknowledged,
        "{what}: batch {} was durable, found the state of {sequence}",
        history.acknowledged
    );
    history.states.truncate(index + 1);
    for (id, seed, length) in history.states[index].1.values().flatten() {
        let content = store
            .read_chunk(*id)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(
            content == noise(*seed, *length)[..],
            "{what}: chunk {id} has other content"
        );
    }
    let references: BTreeMap<ChunkId, i64> =
        history.states[index]
            .1
            .values()
            .flatten()
            .fold(BTreeMap::new(), |mut map, (id, _, _)| {
                *map.entry(*id).or_default() += 1;
                map
            });
    let report = store
        .audit(Some(&|visit| {
            references.iter().for_each(|(id, count)| visit(*id, *count));
            Ok(())
        }))
        .unwrap();
    assert_eq!(report.discrepancies, Vec::<String>::new(), "{what}");
    store
}

fn scenario(seed: u64, batches: usize, every: usize) {
    // Once to the end, to know how many operations there are.
    let run = |cut_at: Option<i64>| {
        let power = Power::new();
        let devices = ["a", "b"].map(|name| FaultDevice::new(name, 24 << 20, power.clone()));
        let pool = make_pool(&[
            ("fast", 1, vec![devices[0].clone()]),
            ("slow", 1, vec![devices[1].clone()]),
        ]);
        let store = ChunkStore::create(pool, options(1)).unwrap();
        let before = power.operations.load(Ordering::SeqCst);
        power.left.store(cut_at.unwrap_or(i64::MAX), Ordering::SeqCst);
        let mut history = History {
            states: vec![(0, State::new())],
            acknowledged: 0,
        };
        let mut rng = StdRng::seed_from_u64(seed);
        let result = work(&store, &mut history, &mut rng, batches);
        assert!(result.is_ok() || cut_at.is_some(), "{result:?}");
        (
            power.operations.load(Ordering::SeqCst) - before,
            power,
            devices,
            store,
            history,
        )
    };
    let (total, ..) = run(None);
    for cut_at in (0..total as i64).step_by(every) {
        let (_, power, devices, store, mut history) = run(Some(cut_at));
        drop(store);
        let mut rng = StdRng::seed_from_u64(seed ^ cut_at as u64);
        devices.iter().for_each(|device| device.cut(&mut rng));
        power.left.store(i64::MAX, Ordering::SeqCst);
        let what = format!("seed {seed}, cut at {cut_at}");
        let store = recover(&devices, &mut history, 2, &what);
        // On, and a second cut, sometimes in the middle of it.
        power.left.store(rng.random_range(5..80), Ordering::SeqCst);
        let _cut = work(&store, &mut history, &mut rng, 8);
        drop(store);
        devices.iter().for_each(|device| device.cut(&mut rng));
        // A third one while it is being opened.
        power.left.store(rng.random_range(0..4), Ordering::SeqCst);
        drop(try_open(&devices, 9));
        devices.iter().for_each(|device| device.cut(&mut rng));
        power.left.store(i64::MAX, Ordering::SeqCst);
        let store = recover(&devices, &mut history, 3, &format!("{what}, second cut"));
        settle(&store);
        audit(&store);
    }
}

#[test]
fn every_cut_of_a_short_run_leaves_a_prefix() {
    scenario(1, 25, 1);
}

#[test]
fn cuts_of_a_longer_run_with_checkpoints_and_moves_leave_a_prefix() {
    for seed in 2..4 {
        scenario(seed, 80, 11);
    }
}
