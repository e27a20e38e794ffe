//! Writes that wait for nothing: done where all is at hand, refused (and nothing done) where anything would have to be waited
//! for.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_cache::Budget;
use terrace_dataset::{Datasets, Environment, Live, NewDataset, Volume};
use terrace_device::SystemClock;
use terrace_store::MemoryStore;

const BLOCK: usize = 4096;

struct Pool {
    datasets: Datasets,
    volume: Arc<Volume>,
    budget: Arc<Budget>,
}

/// A volume of 64 MiB, with room at hand.
fn pool(properties: &[(&str, &str)]) -> Pool {
    let budget = Arc::new(Budget::new(32 << 20));
    let store = Arc::new(MemoryStore::new(1 << 30));
    let environment = Environment::with_budget(store, Arc::new(SystemClock::new()), budget.clone());
    let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
    let set = properties
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()));
    let new = NewDataset {
        volume_bytes: Some(64 << 20),
        sparse: true,
        properties: set.collect(),
        ..NewDataset::default()
    };
    datasets.create("pool/disk", &new).unwrap();
    let volume = datasets.volume("pool/disk").unwrap();
    volume.write(0, &[1; BLOCK]).unwrap();
    Pool {
        datasets,
        volume,
        budget,
    }
}

fn block_at(volume: &Volume, number: usize) -> u8 {
    let mut block = [0; BLOCK];
    volume.read((number * BLOCK) as u64, &mut block).unwrap();
    assert!(block.iter().all(|byte| *byte == block[0]));
    block[0]
}

#[test]
fn it_is_a_write_like_any_other() {
    let pool = pool(&[]);
    let volume = &pool.volume;
    assert!(volume.write_at_once(4096, &[7; 2 * BLOCK]));
    assert!(volume.write_at_once(8192, &[8; BLOCK]));
    assert_eq!([0, 1, 2, 3].map(|at| block_at(volume, at)), [1, 7, 8, 0]);
    volume.flush().unwrap();
    assert_eq!([0, 1, 2, 3].map(|at| block_at(volume, at)), [1, 7, 8, 0]);
    // A commit gives all room back: the next write asks for some.
    assert!(!volume.write_at_once(0, &[9; 64 << 10]));
    volume.write(0, &[2; BLOCK]).unwrap();
    assert!(volume.write_at_once(0, &[9; 64 << 10]));
    assert_eq!(block_at(volume, 15), 9);
    volume.flush().unwrap();
    assert_eq!(volume.leaked_room_bytes(), 0);
}

/// Tries a write at block 1, which must be refused, and nothing be left of it.
#[track_caller]
fn assert_refused(volume: &Volume, offset: u64, data: &[u8]) {
    let dirty = volume.dirty_bytes();
    assert!(!volume.write_at_once(offset, data));
    assert_eq!(volume.dirty_bytes(), dirty);
}

#[test]
fn parts_of_blocks_and_what_is_too_long_or_beyond_the_end_are_left_to_others() {
    let pool = pool(&[]);
    let volume = &pool.volume;
    assert_refused(volume, 4096, &[7; BLOCK - 1]);
    assert_refused(volume, 4095, &[7; BLOCK]);
    assert_refused(volume, 4096, &[]);
    assert_refused(volume, 4096, &[7; (64 << 10) + BLOCK]);
    assert_refused(volume, 64 << 20, &[7; BLOCK]);
    assert_refused(volume, u64::MAX - 4095, &[7; BLOCK]);
    assert!(volume.write_at_once((64 << 20) - 4096, &[7; BLOCK]));
    assert_eq!(block_at(volume, 1), 0);
    volume.flush().unwrap();
    assert_eq!(volume.leaked_room_bytes(), 0);
}

#[test]
fn a_gate_that_is_busy_is_not_waited_for() {
    let pool = pool(&[]);
    let paused = pool.volume.pause().unwrap();
    assert_refused(&pool.volume, 4096, &[7; BLOCK]);
    drop(paused);
    assert!(pool.volume.write_at_once(4096, &[7; BLOCK]));
}

#[test]
fn nothing_is_made_durable_and_nothing_refused_here() {
    let durable = pool(&[("durability", "sync")]);
    assert_refused(&durable.volume, 4096, &[7; BLOCK]);
    let read_only = pool(&[]);
    assert!(read_only.volume.write_at_once(4096, &[7; BLOCK]));
    read_only.datasets.set("pool/disk", "readonly", "on").unwrap();
    assert_refused(&read_only.volume, 8192, &[7; BLOCK]);
}

#[test]
fn room_that_must_be_asked_for_is_not_waited_for() {
    // Under a quota none is taken in advance.
    let narrow = pool(&[("quota", "8M")]);
    assert_refused(&narrow.volume, 4096, &[7; BLOCK]);
    let wide = pool(&[]);
    let written = (1..4096).take_while(|at| wide.volume.write_at_once(at * 4096, &[7; BLOCK]));
    let written = written.count();
    assert!(
        (512..2048).contains(&written),
        "{written} blocks of 4 MiB in advance"
    );
    wide.volume
        .write((written as u64 + 1) * 4096, &[7; BLOCK])
        .unwrap();
    assert!(
        wide.volume
            .write_at_once((written as u64 + 2) * 4096, &[7; BLOCK])
    );
}

#[test]
fn a_writer_who_would_be_slowed_is_left_to_others() {
    let pool = pool(&[]);
    let limit = pool.budget.dirty_limit_bytes();
    // Commits take a second for each mebibyte, as far as is known.
    (0..30).for_each(|_| pool.budget.committed(limit, limit * 1_000));
    pool.budget.add_dirty(limit / 4);
    assert!(
        pool.volume.write_at_once(4096, &[7; BLOCK]),
        "nothing is short yet"
    );
    pool.budget.add_dirty(limit / 20 * 13);
    assert_refused(&pool.volume, 4096, &[7; BLOCK]);
    // Full: none is let in.
    pool.budget.add_dirty(limit / 10);
    assert_refused(&pool.volume, 4096, &[7; BLOCK]);
}
