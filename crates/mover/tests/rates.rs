//! The rate that a job shows, and the time that it says is left, are those of its work, not of its rests.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{Context, Datasets, Environment, FileKind, NewDataset};
use terrace_device::ManualClock;
use terrace_mover::{JobInfo, Mover, Step, TierPolicy};
use terrace_store::{MemoryStore, Store};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

struct Pool {
    clock: Arc<ManualClock>,
    mover: Mover,
    job: u64,
}

impl Pool {
    /// A pool that moves 64 MiB at 2 MiB a second, and has done so for half a second: how fast it is, is not known yet.
    fn moving() -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(200 * MIB));
        let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
        let environment = Arc::new(Environment::new(store, clock.clone()));
        let datasets = Arc::new(Datasets::open(environment, "pool").unwrap());
        let mover = Mover::open(datasets.clone()).unwrap();
        datasets.create("pool/a", &NewDataset::default()).unwrap();
        let filesystem = datasets.filesystem("pool/a").unwrap();
        let root = Context::root();
        let made = filesystem.create(&root, 1, b"file", FileKind::File, 0o644, 0);
        let object = made.unwrap().object;
        for at in 0..64 * MIB / 4096 {
            let block = [at.to_le_bytes(); 512].concat();
            filesystem.write(&root, object, at * 4096, &block, false).unwrap();
        }
        datasets.commit_all().unwrap();
        let limited = TierPolicy {
            rate_limit: 2 * MIB,
            ..TierPolicy::named("slow")
        };
        mover.set_policies(vec![TierPolicy::named("fast"), limited]);
        let number = datasets.info("pool/a").unwrap().number;
        let job = mover.move_to(number, 0, "slow").unwrap();
        let pool = Self { clock, mover, job };
        pool.pass(5);
        let shown = pool.shown();
        assert!(shown.rate == 0.0 && shown.done_bytes > 0, "{shown:?}");
        pool
    }

    fn pass(&self, tenths: u64) {
        for _ in 0..tenths {
            let mut steps = 0..1000;
            while steps.next().is_some() && matches!(self.mover.step().unwrap(), Step::More) {}
            self.clock.advance(SECOND / 10);
        }
    }

    fn shown(&self) -> JobInfo {
        let mut jobs = self.mover.jobs().into_iter();
        jobs.find(|job| job.id == self.job).unwrap()
    }

    /// A second and a half after it went on.
    fn check(&self) {
        self.pass(15);
        let shown = self.shown();
        let left = (shown.total_bytes - shown.done_bytes) as f64 / (2 * MIB) as f64;
        assert!(shown.state == "running" && shown.rate > MIB as f64, "{shown:?}");
        assert!(shown.eta_seconds.unwrap() < 2.0 * left, "{shown:?}");
    }
}

#[test]
fn a_pause_does_not_count() {
    let pool = Pool::moving();
    pool.mover.pause(pool.job).unwrap();
    pool.pass(6000);
    pool.mover.resume(pool.job).unwrap();
    pool.check();
}

#[test]
fn the_time_without_migration_does_not_count() {
    let pool = Pool::moving();
    pool.mover.set_enabled(false);
    pool.pass(6000);
    pool.mover.set_enabled(true);
    pool.check();
}
