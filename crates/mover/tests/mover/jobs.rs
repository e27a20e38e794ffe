//! Jobs: paused, resumed, given up, over a restart, at the rate of their tier; and the store's own work run as one.

use std::sync::Arc;

use terrace_mover::{JobKind, Mover, MoverError, StoreSteps, StoreWork, TierPolicy};
use terrace_store::{Store, StoreError};

use super::pool::{MIB, Pool, SECOND};

#[test]
fn migration_off_stops_at_once_and_on_goes_on() {
    let mut pool = Pool::new(100 * MIB);
    let files = pool.files(20);
    let id = pool.mover.move_to(pool.number, 0, "slow").unwrap();
    pool.mover.step().unwrap();
    pool.mover.set_enabled(false);
    let before = pool.memory.space().tiers[1].live_bytes;
    assert!(before > 0 && before < 20 * MIB, "{before}");
    pool.steps(100);
    assert_eq!(pool.memory.space().tiers[1].live_bytes, before);
    assert_eq!(pool.job(id).state, "waiting");
    pool.mover.set_enabled(true);
    pool.reopen();
    assert_eq!(pool.job(id).state, "running", "a move goes on after a restart");
    pool.settle();
    assert_eq!(pool.memory.space().tiers[1].live_bytes, 20 * MIB);
    assert_eq!(pool.job(id).done_bytes, pool.job(id).total_bytes);
    pool.audit(&files);
}

#[test]
fn jobs_are_paused_resumed_and_cancelled() {
    let pool = Pool::new(100 * MIB);
    pool.files(20);
    let id = pool.mover.move_to(pool.number, 0, "slow").unwrap();
    pool.mover.step().unwrap();
    pool.mover.pause(id).unwrap();
    let before = pool.memory.space().tiers[1].live_bytes;
    pool.settle();
    assert_eq!(pool.memory.space().tiers[1].live_bytes, before);
    assert_eq!(pool.job(id).state, "paused");
    pool.mover.resume(id).unwrap();
    pool.mover.step().unwrap();
    assert!(pool.memory.space().tiers[1].live_bytes > before);
    pool.mover.cancel(id).unwrap();
    assert_eq!(pool.job(id).state, "cancelled");
    assert!(matches!(pool.mover.resume(id), Err(MoverError::Over { .. })));
    assert!(matches!(pool.mover.cancel(id + 1), Err(MoverError::NoJob(_))));
    assert!(matches!(
        pool.mover.move_to(pool.number, 0, "tape"),
        Err(MoverError::NoTier { .. })
    ));
    assert!(matches!(
        pool.mover.move_to(99, 0, "slow"),
        Err(MoverError::NothingThere(_))
    ));
}

#[test]
fn the_rate_limit_of_a_tier_is_kept() {
    let pool = Pool::new(200 * MIB);
    pool.files(64);
    let limited = TierPolicy {
        rate_limit: 2 * MIB,
        ..TierPolicy::named("slow")
    };
    pool.mover.set_policies(vec![TierPolicy::named("fast"), limited]);
    let id = pool.mover.move_to(pool.number, 0, "slow").unwrap();
    for tenth in 0..100u64 {
        pool.steps(1000);
        let moved = pool.memory.space().tiers[1].live_bytes;
        assert!(
            moved <= 2 * MIB * tenth / 10 + MIB,
            "{} KiB after {tenth} tenths of a second",
            moved >> 10
        );
        pool.clock.advance(SECOND / 10);
    }
    assert!(pool.memory.space().tiers[1].live_bytes >= 18 * MIB);
    let job = pool.job(id);
    assert!(job.rate > 0.0 && job.eta_seconds.is_some(), "{job:?}");
}

struct Counting {
    left: u64,
}

impl StoreSteps for Counting {
    fn step(&mut self, _budget_bytes: u64) -> Result<StoreWork, StoreError> {
        if self.left == 0 {
            return Err(StoreError::Invalid("a step after the last".into()));
        }
        self.left -= 1;
        Ok(StoreWork {
            tiers: 0,
            bytes: 10,
            total_bytes: 100,
            finished: self.left == 0,
            note: None,
            waits: false,
        })
    }
}

#[test]
fn work_of_the_store_runs_as_a_job_even_with_migration_off() {
    let mut pool = Pool::new(MIB);
    pool.mover.set_enabled(false);
    let id = pool
        .mover
        .run(JobKind::Scrub, "asked for", Box::new(Counting { left: 7 }))
        .unwrap();
    pool.steps(100);
    assert_eq!(
        (
            pool.job(id).state,
            pool.job(id).done_bytes,
            pool.job(id).total_bytes
        ),
        ("done", 70, 70)
    );
    let id = pool
        .mover
        .run(JobKind::Compact, "asked for", Box::new(Counting { left: 7 }))
        .unwrap();
    pool.reopen();
    assert_eq!(pool.job(id).state, "cancelled");
    assert!(pool.job(id).reason.contains("restart"));
    for _ in 0..50 {
        pool.mover
            .run(JobKind::Scrub, "asked for", Box::new(Counting { left: 1 }))
            .unwrap();
        pool.steps(100);
    }
    assert!(pool.mover.jobs().len() <= 21);
    let last = pool.mover.jobs().last().unwrap().id;
    pool.reopen();
    let next = pool
        .mover
        .run(JobKind::Scrub, "asked for", Box::new(Counting { left: 1 }))
        .unwrap();
    assert_eq!(next, last + 1);
}

/// Work during which its own job is given up, as a user would from another thread.
struct GivenUp {
    mover: Arc<Mover>,
    id: Arc<std::sync::atomic::AtomicU64>,
}

impl StoreSteps for GivenUp {
    fn step(&mut self, _budget_bytes: u64) -> Result<StoreWork, StoreError> {
        let id = self.id.load(std::sync::atomic::Ordering::SeqCst);
        assert!(
            self.mover
                .jobs()
                .iter()
                .any(|job| job.id == id && job.state == "running")
        );
        self.mover.cancel(id).unwrap();
        Ok(StoreWork {
            tiers: 0,
            bytes: 10,
            total_bytes: 100,
            finished: false,
            note: Some("a note that comes too late".into()),
            waits: false,
        })
    }
}

#[test]
fn jobs_are_listed_and_given_up_while_a_step_works() {
    let pool = Pool::new(MIB);
    let id = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let steps = GivenUp {
        mover: pool.mover.clone(),
        id: id.clone(),
    };
    let job = pool
        .mover
        .evacuate(7, "asked for", None, |_| Box::new(steps))
        .unwrap();
    id.store(job, std::sync::atomic::Ordering::SeqCst);
    pool.steps(100);
    let job = pool.job(job);
    assert_eq!((job.state, job.done_bytes), ("cancelled", 10));
    assert_eq!(job.reason, "asked for");
    assert_eq!(
        pool.mover.evacuation_of(7),
        Some((job.id, terrace_mover::JobState::Cancelled))
    );
}
