//! How much a volume has in common with its newest held checkpoint is always what a walk finds, and a reservation goes by it.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{Counters, Datasets, Environment, NewDataset, Progress, Volume, check, keys};
use terrace_device::ManualClock;
use terrace_store::{Batch, MemoryStore, Store};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const NAME: &str = "pool/v";

struct Pool {
    memory: Arc<MemoryStore>,
    datasets: Datasets,
    volume: Arc<Volume>,
}

fn open(memory: &Arc<MemoryStore>) -> Datasets {
    let store: Arc<dyn Store> = memory.clone();
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    Datasets::open(Arc::new(Environment::new(store, clock)), "pool").unwrap()
}

impl Pool {
    fn new(sparse: bool) -> Self {
        let memory = Arc::new(MemoryStore::new(64 * MIB));
        let datasets = open(&memory);
        let new = NewDataset {
            volume_bytes: Some(8 * MIB),
            sparse,
            ..NewDataset::default()
        };
        datasets.create(NAME, &new).unwrap();
        let volume = datasets.volume(NAME).unwrap();
        Self {
            memory,
            datasets,
            volume,
        }
    }

    /// As after a kill: what was not committed is gone.
    fn reopen(&mut self) {
        self.datasets = open(&self.memory);
        self.volume = self.datasets.volume(NAME).unwrap();
    }

    fn write(&self, block: u64, blocks: u64, seed: u8) {
        let content: Vec<u8> = (0..blocks * BLOCK)
            .map(|at| (at / BLOCK) as u8 ^ (at as u8) ^ seed)
            .collect();
        self.volume.write(block * BLOCK, &content).unwrap();
    }

    fn snapshot(&self, name: &str) {
        self.datasets
            .snapshots()
            .take(&format!("{NAME}@{name}"), false, "")
            .unwrap();
    }

    fn destroy(&self, name: &str) {
        self.datasets
            .snapshots()
            .destroy(&format!("{NAME}@{name}"), false, false)
            .unwrap();
    }

    fn audit(&self) {
        let report = check(&(self.memory.clone() as Arc<dyn Store>)).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    }

    fn counters(&self) -> Counters {
        self.datasets.state(NAME).unwrap().counters()
    }

    /// Blocks in common, once they are counted; a walk finds as many.
    fn shared(&self) -> u64 {
        self.volume.flush().unwrap();
        self.audit();
        self.counters().shared_blocks.unwrap()
    }

    fn sweep(&self, records: usize) {
        while self.datasets.sweeper().step(records).unwrap() == Progress::More {}
    }
}

#[test]
fn what_is_in_common_is_kept_with_every_commit() {
    let mut pool = Pool::new(true);
    pool.write(0, 300, 1);
    assert_eq!(pool.shared(), 0, "nothing is held");
    pool.snapshot("a");
    assert_eq!(pool.shared(), 300);
    pool.write(10, 20, 2);
    assert_eq!(pool.shared(), 280);
    pool.write(10, 20, 3);
    pool.write(0, 15, 4);
    assert_eq!(pool.shared(), 270, "what was written over before counts once");
    pool.reopen();
    pool.write(28, 4, 5);
    assert_eq!(pool.shared(), 268, "of a region that was not in RAM");
    pool.volume.discard(100 * BLOCK, 50 * BLOCK).unwrap();
    pool.write(600, 100, 6);
    assert_eq!(pool.shared(), 218);
    pool.datasets.resize_volume(NAME, 256 * BLOCK).unwrap();
    assert_eq!(pool.shared(), 174);
    pool.snapshot("b");
    assert_eq!(pool.shared(), pool.counters().live_blocks);
}

#[test]
fn what_was_there_before_and_is_found_again_by_dedup_is_in_common_again() {
    let pool = Pool::new(true);
    pool.write(0, 4, 1);
    pool.snapshot("a");
    pool.write(0, 4, 2);
    assert_eq!(pool.shared(), 0);
    pool.write(0, 4, 1);
    assert_eq!(pool.shared(), 4);
    pool.write(4, 4, 1);
    assert_eq!(pool.shared(), 4, "the same content elsewhere is not");
}

#[test]
fn when_the_newest_snapshot_goes_what_is_in_common_with_the_one_before_is_counted_again() {
    for records in [1, 2, 1000] {
        let mut pool = Pool::new(true);
        pool.write(0, 1200, 1);
        pool.snapshot("a");
        pool.write(0, 100, 2);
        pool.write(700, 600, 3);
        pool.snapshot("b");
        pool.write(50, 100, 4);
        assert_eq!(pool.shared(), 1200 + 100 - 100);
        pool.destroy("b");
        // Commits go on beside it, before and behind the place that was reached, and a kill comes in between.
        for at in 0..6 {
            pool.datasets.sweeper().step(records).unwrap();
            pool.write(300 * at + 20, 3, 10 + at as u8);
            pool.volume.flush().unwrap();
            pool.audit();
            if at == 2 {
                pool.reopen();
            }
        }
        pool.sweep(records);
        // Blocks 0..150 and 700.. were written over since, and three of each 300 beside them: at 20, 320, 620, 920, 1220, 1520.
        assert_eq!(pool.shared(), 700 - 150 - 6, "{records}");
        pool.destroy("a");
        pool.sweep(records);
        assert_eq!(pool.shared(), 0);
    }
}

#[test]
fn a_snapshot_that_comes_during_a_recount_ends_it() {
    let pool = Pool::new(true);
    pool.write(0, 1200, 1);
    pool.snapshot("a");
    pool.write(0, 600, 2);
    pool.snapshot("b");
    pool.destroy("b");
    pool.datasets.sweeper().step(1).unwrap();
    pool.snapshot("c");
    pool.write(0, 10, 3);
    assert_eq!(pool.shared(), 1190);
    pool.destroy("c");
    pool.sweep(3);
    assert_eq!(pool.shared(), 600);
}

#[test]
fn rebuilt_volumes_are_counted_when_the_pool_is_opened() {
    let mut pool = Pool::new(true);
    pool.write(0, 1000, 1);
    pool.snapshot("a");
    pool.write(100, 300, 2);
    assert_eq!(pool.shared(), 700);
    let state = pool.datasets.state(NAME).unwrap();
    let uncounted = Counters {
        shared_blocks: None,
        ..state.counters()
    };
    let mut batch = Batch::new();
    batch.put(keys::counters(state.number()), uncounted.encode());
    pool.memory.commit(batch).unwrap();
    pool.reopen();
    pool.sweep(2);
    assert_eq!(pool.shared(), 700);
}

#[test]
fn a_reservation_counts_only_what_the_volume_has_for_itself() {
    let mut pool = Pool::new(false);
    let set_aside = |pool: &Pool| pool.datasets.state(NAME).unwrap().usage().set_aside_bytes();
    let working = 8 * MIB / 32;
    assert_eq!(set_aside(&pool), 8 * MIB + working);
    pool.write(0, 1024, 1);
    pool.volume.flush().unwrap();
    assert_eq!(set_aside(&pool), 4 * MIB + working);
    pool.snapshot("a");
    assert_eq!(
        set_aside(&pool),
        8 * MIB + working,
        "all of it can be written over"
    );
    pool.write(0, 512, 2);
    pool.volume.flush().unwrap();
    assert_eq!(set_aside(&pool), 6 * MIB + working);
    pool.snapshot("b");
    pool.write(0, 256, 3);
    pool.volume.flush().unwrap();
    pool.destroy("b");
    // Until it is counted again no more counts than is certain.
    assert!(set_aside(&pool) >= 6 * MIB + working);
    pool.reopen();
    assert!(set_aside(&pool) >= 6 * MIB + working);
    pool.sweep(1);
    pool.write(0, 1, 4);
    pool.volume.flush().unwrap();
    assert_eq!(set_aside(&pool), 6 * MIB + working);
    pool.destroy("a");
    pool.write(0, 1, 5);
    pool.volume.flush().unwrap();
    assert_eq!(set_aside(&pool), 4 * MIB + working);
    pool.volume.discard(0, 8 * MIB).unwrap();
    pool.volume.flush().unwrap();
    assert_eq!(set_aside(&pool), 8 * MIB + working);
    pool.datasets.resize_volume(NAME, 2 * MIB).unwrap();
    assert_eq!(set_aside(&pool), 2 * MIB + 2 * MIB / 32);
}
