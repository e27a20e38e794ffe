//! A pool in memory with a fast and a slow tier, one filesystem and a mover, on a clock that stands still.
//!
//! Invariant: files have content of their own, so that nothing is shared that is not written to be.

use std::sync::Arc;

use terrace_dataset::{Context, Datasets, Environment, FileKind, NewDataset, Tree, bytes_of_object, check};
use terrace_device::ManualClock;
use terrace_mover::{JobInfo, Mover, Step};
use terrace_store::{MemoryStore, Store};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const SECOND: u64 = 1_000_000_000;

pub(super) struct Pool {
    pub(super) memory: Arc<MemoryStore>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) datasets: Arc<Datasets>,
    pub(super) mover: Arc<Mover>,
    pub(super) number: u32,
}

impl Pool {
    pub(super) fn new(size_bytes: u64) -> Self {
        let memory = Arc::new(MemoryStore::new(size_bytes));
        let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
        let (datasets, mover) = open(&memory, &clock);
        datasets.create("pool/a", &NewDataset::default()).unwrap();
        let number = datasets.info("pool/a").unwrap().number;
        Self {
            memory,
            clock,
            datasets,
            mover,
            number,
        }
    }

    pub(super) fn reopen(&mut self) {
        (self.datasets, self.mover) = open(&self.memory, &self.clock);
    }

    pub(super) fn environment(&self) -> &Environment {
        self.datasets.environment()
    }

    /// A file of 1 MiB of its own content; returns its object.
    pub(super) fn file(&self, name: &str, seed: u8) -> u64 {
        let filesystem = self.datasets.filesystem("pool/a").unwrap();
        let root = Context::root();
        let object = filesystem
            .create(&root, 1, name.as_bytes(), FileKind::File, 0o644, 0)
            .unwrap()
            .object;
        filesystem.write(&root, object, 0, &content(seed), false).unwrap();
        object
    }

    pub(super) fn files(&self, count: u8) -> Vec<u64> {
        let files = (0..count)
            .map(|seed| self.file(&format!("f{seed}"), seed))
            .collect();
        self.datasets.commit_all().unwrap();
        files
    }

    pub(super) fn tier_bytes(&self, object: u64) -> Vec<u64> {
        let mut bytes = bytes_of_object(&self.store(), self.number, object)
            .unwrap()
            .by_tier;
        bytes.resize(2, 0);
        bytes
    }

    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.memory.clone()
    }

    pub(super) fn steps(&self, most: usize) -> usize {
        (0..most)
            .find(|_| matches!(self.mover.step().unwrap(), Step::Idle { .. }))
            .unwrap_or(most)
    }

    /// Steps until nothing is left, letting time pass.
    pub(super) fn settle(&self) {
        for _ in 0..50 {
            assert!(self.steps(10_000) < 10_000, "the mover does not come to rest");
            self.clock.advance(11 * SECOND);
        }
    }

    pub(super) fn job(&self, id: u64) -> JobInfo {
        self.mover.jobs().into_iter().find(|job| job.id == id).unwrap()
    }

    pub(super) fn audit(&self, files: &[u64]) {
        let filesystem = self.datasets.filesystem("pool/a").unwrap();
        for (seed, object) in files.iter().enumerate() {
            let mut buffer = vec![0; MIB as usize];
            assert_eq!(filesystem.read(*object, 0, &mut buffer).unwrap(), buffer.len());
            assert!(buffer == content(seed as u8), "file {seed} changed");
        }
        let report = check(&self.store()).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    }
}

/// So many reads of an object's first region, now.
pub(super) fn record(environment: &Environment, dataset: u32, body: u64, reads: u32) {
    let minutes = (environment.clock.now_nanoseconds() / 60_000_000_000) as u32;
    for _ in 0..reads {
        environment
            .heat
            .record(dataset, body, 0, terrace_cache::Access::Read, 1.0, minutes);
    }
}

fn open(memory: &Arc<MemoryStore>, clock: &Arc<ManualClock>) -> (Arc<Datasets>, Arc<Mover>) {
    let store: Arc<dyn Store> = memory.clone();
    let environment = Arc::new(Environment::new(store, clock.clone()));
    let datasets = Arc::new(Datasets::open(environment, "pool").unwrap());
    let mover = Mover::open(datasets.clone()).unwrap();
    (datasets, Arc::new(mover))
}

pub(super) fn content(seed: u8) -> Vec<u8> {
    (0..MIB as u32)
        .map(|at| (at / 4096) as u8 ^ seed.wrapping_mul(37) ^ ((at % 251) as u8))
        .collect()
}
