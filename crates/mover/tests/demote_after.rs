//! `demote_after` is changed: what it says now holds at once, whenever the next round by the old one would have come.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{Context, Datasets, Environment, FileKind, NewDataset};
use terrace_device::ManualClock;
use terrace_mover::{Mover, Step, TierPolicy};
use terrace_store::{MemoryStore, Store};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 24 * 3600;

struct Pool {
    memory: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    mover: Mover,
    _datasets: Arc<Datasets>,
}

impl Pool {
    /// A pool with so many files of 1 MiB on its fast tier.
    fn new(files: u8) -> Self {
        let memory = Arc::new(MemoryStore::new(100 * MIB));
        let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
        let environment = Arc::new(Environment::new(memory.clone() as Arc<dyn Store>, clock.clone()));
        let datasets = Arc::new(Datasets::open(environment, "pool").unwrap());
        datasets.create("pool/a", &NewDataset::default()).unwrap();
        let filesystem = datasets.filesystem("pool/a").unwrap();
        let root = Context::root();
        for seed in 0..files {
            let made = filesystem.create(&root, 1, &[b'a' + seed], FileKind::File, 0o644, 0);
            let content: Vec<u8> = (0..MIB as u32)
                .map(|at| (at / 4096) as u8 ^ seed.wrapping_mul(37) ^ ((at % 251) as u8))
                .collect();
            filesystem
                .write(&root, made.unwrap().object, 0, &content, false)
                .unwrap();
        }
        datasets.commit_all().unwrap();
        let mover = Mover::open(datasets.clone()).unwrap();
        Self {
            memory,
            clock,
            mover,
            _datasets: datasets,
        }
    }

    fn demote_after(&self, seconds: u64) {
        let fast = TierPolicy {
            demote_after_seconds: seconds,
            ..TierPolicy::named("fast")
        };
        self.mover.set_policies(vec![fast, TierPolicy::named("slow")]);
    }

    /// Works until there is nothing to do for now.
    fn rest(&self) {
        let idle = (0..10_000).any(|_| matches!(self.mover.step().unwrap(), Step::Idle { .. }));
        assert!(idle, "the mover does not come to rest");
    }

    fn below(&self) -> u64 {
        self.memory.space().tiers[1].live_bytes
    }
}

#[test]
fn a_shorter_time_waits_for_no_round_of_the_longer_one() {
    let pool = Pool::new(4);
    pool.demote_after(30 * DAY);
    pool.rest();
    // The next round by 30 days is hours away.
    pool.clock.advance(600 * SECOND);
    pool.rest();
    assert_eq!(pool.below(), 0);
    pool.demote_after(60);
    pool.rest();
    assert_eq!(pool.below(), 4 * MIB);
}

#[test]
fn never_ends_a_round_that_is_under_way() {
    let pool = Pool::new(40);
    pool.clock.advance(DAY * SECOND);
    pool.mover.set_step_bytes(MIB);
    pool.demote_after(60);
    while pool.below() == 0 {
        pool.mover.step().unwrap();
    }
    let moved = pool.below();
    assert!(moved < 40 * MIB, "all in one step");
    pool.demote_after(0);
    pool.rest();
    assert_eq!(pool.below(), moved);
    let jobs = pool.mover.jobs();
    let job = jobs.iter().find(|job| job.kind == "demote").unwrap();
    assert_eq!(job.state, "cancelled");
    assert!(job.reason.contains("demote_after was changed"), "{}", job.reason);
    // And by a time again, it goes on.
    pool.demote_after(3600);
    pool.rest();
    assert_eq!(pool.below(), 40 * MIB);
}
