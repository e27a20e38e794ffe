//! Writers wait while what is colder sinks for them, as long as somebody says that it does.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use fixture::{FaultDevice, Power, audit, make_pool, noise, options, piece};
use terrace_chunk::{ChunkStore, Options};
use terrace_pool::Pool;
use terrace_store::{Batch, ChunkId, Placement, Store};

const MIB: u64 = 1 << 20;
const BELOW: Placement = Placement::Tier {
    tier: 1,
    strict: true,
};

fn write(store: &ChunkStore, seed: u64) -> ChunkId {
    let content = noise(seed, 64 << 10);
    let mut batch = Batch::new();
    let written = store.write_chunks(&[piece(&content)]).unwrap().remove(0);
    let id = written.id;
    batch.reference(id, 1);
    batch.hold(written);
    store.commit(batch).unwrap();
    id
}

/// A fast tier on which what lands finds no free segment, though a sixteenth of it is the ends of segments; and what lies there, in
/// the order in which it was written.
fn full() -> (Arc<Pool>, Arc<ChunkStore>, Vec<ChunkId>) {
    let power = Power::new();
    let [fast, slow] =
        [("fast", 160), ("slow", 320)].map(|(name, mib)| FaultDevice::new(name, mib * MIB, power.clone()));
    let pool = make_pool(&[("fast", 1, vec![fast]), ("slow", 1, vec![slow])]);
    let threads = Options {
        threads: 1,
        checkpoint_log_bytes: 64 << 20,
        ..options(1)
    };
    let store = ChunkStore::create(pool.clone(), threads).unwrap();
    let is_full = || pool.tiers()[0].free_segments <= pool.tiers()[0].floor_segments;
    let mut ids = Vec::new();
    while !is_full() {
        ids.push(write(&store, ids.len() as u64));
    }
    assert!(ids.len() > 1000, "{}", ids.len());
    (pool, store, ids)
}

/// Tiers on which 100 chunks land that are written now, beside somebody who answers each question so and moves what was written
/// first down when he says that content sinks; and how many were asked.
fn landed(sinks: bool) -> (Vec<u8>, u64) {
    let (_, store, cold) = full();
    let (over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let ids = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut cold = cold.chunks(15);
            while !over.load(SeqCst) {
                if let Some(question) = store.sinking_asked() {
                    asked.store(question, SeqCst);
                    // Before it is answered: what writes waits for it meanwhile.
                    for cold in cold.by_ref().take(if sinks { 4 } else { 0 }) {
                        store.rewrite(cold, BELOW).unwrap();
                    }
                    store.set_sinking(u64::from(sinks), Some(question));
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let ids: Vec<ChunkId> = (0..100).map(|at| write(&store, 10_000 + at)).collect();
        over.store(true, SeqCst);
        ids
    });
    let sequence = store.newest();
    store.flush(sequence).unwrap();
    for (at, id) in ids.iter().enumerate() {
        assert_eq!(
            store.read_chunk(*id).unwrap(),
            noise(10_000 + at as u64, 64 << 10)[..]
        );
    }
    audit(&store);
    let tiers = ids.iter().map(|id| store.chunk_info(*id).unwrap().unwrap().tier);
    (tiers.collect(), asked.load(SeqCst))
}

#[test]
fn what_is_written_stays_up_while_what_is_colder_makes_way() {
    let (tiers, asked) = landed(true);
    assert!(asked >= 1);
    assert_eq!(tiers.iter().filter(|tier| **tier == 0).count(), 100, "{tiers:?}");
}

#[test]
fn who_is_refused_lands_below_and_does_not_ask_again_soon() {
    let began = Instant::now();
    let (tiers, asked) = landed(false);
    assert!(tiers.iter().filter(|tier| **tier == 1).count() >= 60, "{tiers:?}");
    assert!((1..=1 + began.elapsed().as_secs()).contains(&asked), "{asked}");
}
