//! Policies and jobs over the in-memory store with its two tiers.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_cache_access::record;
use terrace_dataset::{
    Context, Datasets, Environment, FileKind, NewDataset, Tree, bytes_of_dataset, bytes_of_object, check,
};
use terrace_device::ManualClock;
use terrace_mover::{JobInfo, JobKind, Mover, MoverError, Step, StoreSteps, StoreWork, TierPolicy};
use terrace_store::{MemoryStore, Store, StoreError};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

mod terrace_cache_access {
    use terrace_dataset::Environment;

    pub fn record(environment: &Environment, dataset: u32, body: u64, reads: u32) {
        let minutes = (environment.clock.now_nanoseconds() / 60_000_000_000) as u32;
        for _ in 0..reads {
            environment
                .heat
                .record(dataset, body, 0, terrace_cache::Access::Read, 1.0, minutes);
        }
    }
}

struct Pool {
    memory: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    datasets: Arc<Datasets>,
    mover: Arc<Mover>,
    number: u32,
}

impl Pool {
    fn new(size_bytes: u64) -> Self {
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

    fn reopen(&mut self) {
        (self.datasets, self.mover) = open(&self.memory, &self.clock);
    }

    fn environment(&self) -> &Environment {
        self.datasets.environment()
    }

    /// A file of 1 MiB of its own content; returns its object.
    fn file(&self, name: &str, seed: u8) -> u64 {
        let filesystem = self.datasets.filesystem("pool/a").unwrap();
        let root = Context::root();
        let object = filesystem
            .create(&root, 1, name.as_bytes(), FileKind::File, 0o644, 0)
            .unwrap()
            .object;
        filesystem.write(&root, object, 0, &content(seed), false).unwrap();
        object
    }

    fn files(&self, count: u8) -> Vec<u64> {
        let files = (0..count)
            .map(|seed| self.file(&format!("f{seed}"), seed))
            .collect();
        self.datasets.commit_all().unwrap();
        files
    }

    fn tier_bytes(&self, object: u64) -> Vec<u64> {
        let mut bytes = bytes_of_object(&self.store(), self.number, object)
            .unwrap()
            .by_tier;
        bytes.resize(2, 0);
        bytes
    }

    fn store(&self) -> Arc<dyn Store> {
        self.memory.clone()
    }

    fn steps(&self, most: usize) -> usize {
        (0..most)
            .find(|_| matches!(self.mover.step().unwrap(), Step::Idle { .. }))
            .unwrap_or(most)
    }

    /// Steps until nothing is left, letting time pass.
    fn settle(&self) {
        for _ in 0..50 {
            assert!(self.steps(10_000) < 10_000, "the mover does not come to rest");
            self.clock.advance(11 * SECOND);
        }
    }

    fn job(&self, id: u64) -> JobInfo {
        self.mover.jobs().into_iter().find(|job| job.id == id).unwrap()
    }

    fn audit(&self, files: &[u64]) {
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

fn open(memory: &Arc<MemoryStore>, clock: &Arc<ManualClock>) -> (Arc<Datasets>, Arc<Mover>) {
    let store: Arc<dyn Store> = memory.clone();
    let environment = Arc::new(Environment::new(store, clock.clone()));
    let datasets = Arc::new(Datasets::open(environment, "pool").unwrap());
    let mover = Mover::open(datasets.clone()).unwrap();
    (datasets, Arc::new(mover))
}

fn content(seed: u8) -> Vec<u8> {
    (0..MIB as u32)
        .map(|at| (at / 4096) as u8 ^ seed.wrapping_mul(37) ^ ((at % 251) as u8))
        .collect()
}

#[test]
fn the_coldest_moves_down_until_the_low_water_mark() {
    let pool = Pool::new(20 * MIB);
    let files = pool.files(19);
    for object in &files[..8] {
        record(pool.environment(), pool.number, *object, 50);
    }
    pool.settle();
    let tiers = pool.memory.space().tiers;
    assert!(
        tiers[0].live_bytes <= 15 * MIB,
        "{} MiB are left above",
        tiers[0].live_bytes / MIB
    );
    assert!(
        tiers[0].live_bytes >= 10 * MIB,
        "no more than needed: {} MiB",
        tiers[0].live_bytes / MIB
    );
    for object in &files[..8] {
        assert_eq!(pool.tier_bytes(*object), [MIB, 0], "what is read stays");
    }
    let jobs = pool.mover.jobs();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    assert_eq!((jobs[0].kind, jobs[0].state), ("demote", "done"));
    assert_eq!(jobs[0].done_bytes, jobs[0].total_bytes);
    assert!(jobs[0].done_bytes >= 4 * MIB);
    pool.audit(&files);
}

#[test]
fn what_is_read_often_moves_up_and_stays() {
    let pool = Pool::new(100 * MIB);
    let files = pool.files(10);
    let id = pool.mover.move_to(pool.number, 0, "slow").unwrap();
    pool.settle();
    assert_eq!(
        bytes_of_dataset(&pool.store(), pool.number).unwrap().by_tier,
        [0, 10 * MIB]
    );
    assert_eq!((pool.job(id).state, pool.job(id).done_bytes), ("done", 10 * MIB));
    record(pool.environment(), pool.number, files[3], 20);
    record(pool.environment(), pool.number, files[4], 1);
    pool.settle();
    assert_eq!(pool.tier_bytes(files[3]), [MIB, 0]);
    assert_eq!(pool.tier_bytes(files[4]), [0, MIB], "read once is not often");
    let promotions: Vec<_> = pool
        .mover
        .jobs()
        .into_iter()
        .filter(|job| job.kind == "promote")
        .collect();
    assert_eq!(
        promotions.len(),
        1,
        "no job for what lies well already: {promotions:?}"
    );
    assert_eq!((promotions[0].state, promotions[0].done_bytes), ("done", MIB));
    assert_eq!(promotions[0].total_bytes, MIB);
    pool.audit(&files);
}

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
fn a_move_by_hand_does_not_wait_until_all_that_is_hot_is_up() {
    let pool = Pool::new(400 * MIB);
    let files = pool.files(60);
    pool.mover.move_to(pool.number, 0, "slow").unwrap();
    pool.settle();
    for object in &files[1..] {
        record(pool.environment(), pool.number, *object, 50);
    }
    let id = pool.mover.promote(pool.number, files[0]).unwrap();
    // One for each kind of work; to bring up what is hot takes eight.
    for _ in 0..5 {
        assert_eq!(pool.mover.step().unwrap(), Step::More);
    }
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0]);
    assert!(pool.memory.space().tiers[0].live_bytes < 60 * MIB);
    pool.settle();
    assert_eq!(pool.job(id).state, "done");
    assert_eq!(pool.memory.space().tiers[0].live_bytes, 60 * MIB);
    pool.audit(&files);
}

#[test]
fn pinned_objects_move_to_their_tier_and_stay_there() {
    let mut pool = Pool::new(20 * MIB);
    let files = pool.files(19);
    let down = pool.mover.pin(pool.number, files[0], "slow").unwrap();
    pool.mover.pin(pool.number, files[1], "fast").unwrap();
    pool.settle();
    pool.reopen();
    record(pool.environment(), pool.number, files[0], 100);
    pool.settle();
    assert_eq!(pool.job(down).state, "done");
    assert_eq!(pool.tier_bytes(files[0]), [0, MIB], "not promoted");
    assert_eq!(pool.tier_bytes(files[1]), [MIB, 0], "not demoted");
    assert_eq!(
        pool.mover.pin_of_object(pool.number, files[0]).as_deref(),
        Some("slow")
    );
    pool.mover.unpin(pool.number, files[0]).unwrap();
    pool.settle();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0]);
    pool.mover.demote(pool.number, files[0]).unwrap();
    pool.steps(100);
    assert_eq!(pool.tier_bytes(files[0]), [0, MIB]);
    assert!(matches!(
        pool.mover.demote(pool.number, files[0]),
        Err(MoverError::NoFurther("slower"))
    ));
    pool.audit(&files);
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

#[test]
fn a_full_lower_tier_fails_the_demotion_once_and_not_again_and_again() {
    let pool = Pool::new(20 * MIB);
    pool.files(19);
    let tight = TierPolicy {
        high_water: 0.0,
        low_water: 0.0,
        ..TierPolicy::named("slow")
    };
    pool.mover.set_policies(vec![TierPolicy::named("fast"), tight]);
    pool.settle();
    assert!(
        pool.mover.jobs().is_empty(),
        "there is no room to move to: no job"
    );
    assert_eq!(pool.memory.space().tiers[1].live_bytes, 0);
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

fn policies(pool: &Pool, fast: TierPolicy) {
    pool.mover.set_policies(vec![fast, TierPolicy::named("slow")]);
}

#[test]
fn what_is_not_used_for_long_moves_down_although_there_is_room() {
    let pool = Pool::new(100 * MIB);
    let files = pool.files(6);
    pool.mover.pin(pool.number, files[5], "fast").unwrap();
    pool.settle();
    policies(
        &pool,
        TierPolicy {
            demote_after_seconds: 3600,
            ..TierPolicy::named("fast")
        },
    );
    pool.settle();
    assert_eq!(pool.memory.space().tiers[1].live_bytes, 0, "all of it is new");
    pool.clock.advance(3500 * SECOND);
    record(pool.environment(), pool.number, files[0], 1);
    pool.settle();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0], "used a moment ago");
    assert_eq!(pool.tier_bytes(files[5]), [MIB, 0], "pinned");
    for object in &files[1..5] {
        assert_eq!(pool.tier_bytes(*object), [0, MIB]);
    }
    let jobs = pool.mover.jobs();
    let aged: Vec<_> = jobs.iter().filter(|job| job.kind == "demote").collect();
    assert_eq!(aged.len(), 1, "a round that finds nothing is no job: {jobs:?}");
    assert_eq!((aged[0].state, aged[0].done_bytes), ("done", 4 * MIB));
    assert!(
        aged[0].reason.contains("not used for 3600 s"),
        "{}",
        aged[0].reason
    );
    pool.audit(&files);
}

#[test]
fn policies_work_in_their_window_only() {
    let moved = |window: &str| {
        let pool = Pool::new(20 * MIB);
        let files = pool.files(19);
        policies(
            &pool,
            TierPolicy {
                window: window.into(),
                ..TierPolicy::named("fast")
            },
        );
        pool.settle();
        pool.audit(&files);
        pool.memory.space().tiers[1].live_bytes > 0
    };
    assert_ne!(
        moved("00:00-12:00"),
        moved("12:00-00:00"),
        "in one half of the day"
    );
}

#[test]
fn a_tier_that_holds_lets_the_one_below_sleep_and_then_writes_in_one_batch() {
    let pool = Pool::new(20 * MIB);
    let mut files = pool.files(18);
    pool.mover.demote(pool.number, files[17]).unwrap();
    let holding = TierPolicy {
        hold: Some(0.95),
        demote_after_seconds: 60,
        ..TierPolicy::named("fast")
    };
    policies(&pool, holding.clone());
    pool.steps(1000);
    assert_eq!(pool.tier_bytes(files[17]), [0, MIB], "asked for by hand: moved");
    record(pool.environment(), pool.number, files[17], 100);
    pool.settle();
    let tiers = pool.memory.space().tiers;
    assert_eq!(
        (tiers[0].live_bytes, tiers[1].live_bytes),
        (17 * MIB, MIB),
        "above high_water, old, hot: nothing moves either way"
    );
    assert_eq!(pool.mover.resting_tiers(), 1);
    policies(
        &pool,
        TierPolicy {
            demote_after_seconds: 0,
            ..holding
        },
    );
    files.push(pool.file("f18", 18));
    files.push(pool.file("f19", 19));
    pool.datasets.commit_all().unwrap();
    pool.mover.demote(pool.number, files[17]).unwrap_err();
    pool.mover.promote(pool.number, files[17]).unwrap();
    pool.steps(100_000);
    let tiers = pool.memory.space().tiers;
    // Down to the low-water mark, and what was promoted by hand meanwhile.
    assert!(tiers[0].live_bytes <= 16 * MIB, "{}", tiers[0].live_bytes);
    pool.settle();
    let demotions = pool.mover.jobs();
    let demotions: Vec<_> = demotions
        .iter()
        .filter(|job| job.kind == "demote" && job.reason.contains("moving the coldest"))
        .collect();
    // What made room for the file that was promoted by hand is another matter.
    assert_eq!(demotions.len(), 1, "one batch: {demotions:?}");
    assert_eq!(pool.mover.resting_tiers(), 1, "and it holds again");
    pool.audit(&files);
}

#[test]
fn what_is_written_to_a_pinned_object_lands_on_its_tier() {
    let mut pool = Pool::new(100 * MIB);
    let files = pool.files(2);
    pool.mover.pin(pool.number, files[0], "slow").unwrap();
    pool.settle();
    pool.reopen();
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    for object in &files {
        filesystem
            .write(
                &Context::root(),
                *object,
                MIB,
                &content(50 + *object as u8),
                false,
            )
            .unwrap();
    }
    pool.datasets.commit_all().unwrap();
    assert_eq!(pool.tier_bytes(files[0]), [0, 2 * MIB], "without a move");
    assert_eq!(pool.tier_bytes(files[1]), [2 * MIB, 0]);
    pool.mover.unpin(pool.number, files[0]).unwrap();
    filesystem
        .write(&Context::root(), files[0], 2 * MIB, &content(99), false)
        .unwrap();
    pool.datasets.commit_all().unwrap();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 2 * MIB]);
}

#[test]
fn a_full_fast_tier_makes_room_for_what_is_hotter() {
    let pool = Pool::new(20 * MIB);
    let files = pool.files(17);
    pool.mover.demote(pool.number, files[0]).unwrap();
    pool.steps(1000);
    for object in &files[1..4] {
        record(pool.environment(), pool.number, *object, 200);
    }
    record(pool.environment(), pool.number, files[0], 50);
    pool.settle();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0], "{:?}", pool.mover.jobs());
    for object in &files[1..4] {
        assert_eq!(pool.tier_bytes(*object), [MIB, 0], "hotter still");
    }
    let before = pool.mover.jobs().len();
    pool.settle();
    assert_eq!(pool.mover.jobs().len(), before, "it comes to rest");
    pool.audit(&files);
}

#[test]
fn what_was_moved_down_by_hand_stays_there_until_it_is_read_about_as_much_again() {
    let pool = Pool::new(100 * MIB);
    let files = pool.files(4);
    let heat = |file: usize, reads| record(pool.environment(), pool.number, files[file], reads);
    heat(0, 60);
    heat(1, 60);
    heat(2, 2);
    for object in &files[..3] {
        pool.mover.demote(pool.number, *object).unwrap();
    }
    pool.steps(1000);
    let some = |seconds| {
        for _ in 0..seconds {
            pool.clock.advance(SECOND);
            assert!(pool.steps(10_000) < 10_000, "the mover does not come to rest");
        }
    };
    heat(0, 20);
    heat(1, 20);
    heat(2, 5);
    some(30);
    assert_eq!(pool.tier_bytes(files[0]), [0, MIB], "20 of 60");
    assert_eq!(pool.tier_bytes(files[2]), [MIB, 0], "hardly read before");
    heat(0, 20);
    some(30);
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0], "40 of 60");
    assert_eq!(pool.tier_bytes(files[1]), [0, MIB]);
    some(1800);
    assert_eq!(pool.tier_bytes(files[1]), [MIB, 0], "half an hour later");
    // Up by hand: nothing is in the way of anything.
    heat(3, 60);
    pool.mover.demote(pool.number, files[3]).unwrap();
    some(20);
    assert_eq!(
        pool.tier_bytes(files[3]),
        [0, MIB],
        "what it was read before is forgotten"
    );
    pool.mover.promote(pool.number, files[3]).unwrap();
    some(20);
    assert_eq!(pool.tier_bytes(files[3]), [MIB, 0]);
    pool.audit(&files);
}

#[test]
fn where_all_is_hot_the_hottest_goes_last() {
    let pool = Pool::new(20 * MIB);
    let files = pool.files(19);
    // The first in the order of the records are the hottest.
    for (at, object) in files.iter().enumerate() {
        record(
            pool.environment(),
            pool.number,
            *object,
            if at < 9 { 400 } else { 40 },
        );
    }
    pool.settle();
    for object in &files[..9] {
        assert_eq!(pool.tier_bytes(*object), [MIB, 0], "{:?}", pool.mover.jobs());
    }
    let below = files[9..]
        .iter()
        .filter(|object| pool.tier_bytes(**object)[1] > 0);
    assert!(below.count() >= 3);
    pool.audit(&files);
}

#[test]
fn what_is_written_over_is_as_hot_as_what_was_there() {
    let pool = Pool::new(20 * MIB);
    let file = pool.files(1)[0];
    let chunk = || {
        let found = terrace_dataset::read_region(&*pool.store(), pool.number, file, 0).unwrap();
        found.unwrap().record.lookup(40).unwrap().0
    };
    let heat = &pool.environment().chunk_heat;
    let before = chunk();
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    for _ in 0..5 {
        filesystem.read(file, 40 * 4096, &mut [0; 4096]).unwrap();
    }
    let block = vec![9; 4096];
    filesystem
        .write(&Context::root(), file, 40 * 4096, &block, false)
        .unwrap();
    pool.datasets.commit_all().unwrap();
    assert_ne!(chunk(), before);
    assert_eq!(heat.reads(chunk(), 1), 5);
}

#[test]
fn what_would_come_up_again_goes_down_no_further_than_it_may_come_up() {
    let pool = Pool::new(40 * MIB);
    pool.mover.set_step_bytes(MIB);
    let files = pool.files(36);
    for object in &files {
        record(pool.environment(), pool.number, *object, 40);
    }
    assert!(pool.steps(10_000) < 10_000);
    let live = pool.memory.space().tiers[0].live_bytes;
    assert!(live < 32 * MIB, "below the middle of the marks: {live}");
    assert!(live > 30 * MIB, "and not down to the lower one: {live}");
    assert!(pool.mover.jobs().iter().all(|job| job.state == "done"));
    pool.audit(&files);
}

#[test]
fn what_is_moved_up_by_hand_waits_until_what_is_colder_has_made_way() {
    let pool = Pool::new(20 * MIB);
    pool.mover.set_step_bytes(MIB);
    let files = pool.files(10);
    for object in &files[..6] {
        record(pool.environment(), pool.number, *object, 200);
    }
    for object in &files[6..] {
        pool.mover.demote(pool.number, *object).unwrap();
    }
    pool.steps(1000);
    for seed in 10..20 {
        pool.file(&format!("g{seed}"), seed);
    }
    pool.datasets.commit_all().unwrap();
    let promote = |object: &u64| pool.mover.promote(pool.number, *object).unwrap();
    let _jobs: Vec<u64> = files[6..].iter().map(promote).collect();
    // 16 MiB are there, and 4 are to come: 17 are the mark.
    let mut most = 0;
    for _ in 0..200 {
        while let Step::More = pool.mover.step().unwrap() {
            most = most.max(pool.memory.space().tiers[0].live_bytes);
        }
        pool.clock.advance(SECOND);
    }
    assert!(most <= 18 * MIB + MIB / 2, "{most}");
    assert!(
        pool.mover.jobs().iter().all(|job| job.state == "done"),
        "{:?}",
        pool.mover.jobs()
    );
    for object in &files[..6] {
        assert_eq!(pool.tier_bytes(*object), [MIB, 0], "what is hot stays");
    }
    pool.audit(&files);
}

#[test]
fn room_is_made_for_the_hottest_of_those_that_lack_it() {
    let pool = Pool::new(20 * MIB);
    let files = pool.files(18);
    for object in &files[..3] {
        pool.mover.demote(pool.number, *object).unwrap();
    }
    pool.steps(1000);
    // Two that are hardly worth it do not hide the one that is.
    record(pool.environment(), pool.number, files[0], 200);
    record(pool.environment(), pool.number, files[1], 4);
    record(pool.environment(), pool.number, files[2], 4);
    for object in &files[3..] {
        record(pool.environment(), pool.number, *object, 20);
    }
    pool.settle();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0], "{:?}", pool.mover.jobs());
    pool.audit(&files);
}

#[test]
fn what_is_up_already_does_not_hide_what_is_less_hot() {
    let pool = Pool::new(20 * MIB);
    let files = pool.files(4);
    pool.mover.demote(pool.number, files[0]).unwrap();
    pool.steps(1000);
    record(pool.environment(), pool.number, files[0], 10);
    // More hot regions than one round looks at, all of them where they should be.
    for body in 0..3000 {
        record(pool.environment(), pool.number, 1_000_000 + body, 50);
    }
    pool.settle();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0], "{:?}", pool.mover.jobs());
}

#[test]
fn what_hot_content_shares_with_cold_content_stays_up() {
    let pool = Pool::new(20 * MIB);
    let mut files = pool.files(19);
    let twin = pool.file("twin", 3);
    pool.datasets.commit_all().unwrap();
    assert_eq!(pool.memory.space().tiers[0].live_bytes, 19 * MIB, "shared");
    record(pool.environment(), pool.number, files[3], 50);
    pool.clock.advance(600 * 60 * SECOND);
    record(pool.environment(), pool.number, files[3], 50);
    pool.settle();
    assert_eq!(pool.tier_bytes(files[3]), [MIB, 0]);
    assert_eq!(pool.tier_bytes(twin), [MIB, 0]);
    assert!(pool.memory.space().tiers[0].live_bytes <= 15 * MIB);
    let promoted = pool.mover.jobs().iter().any(|job| job.kind == "promote");
    assert!(!promoted, "it never went down");
    files.truncate(19);
    pool.audit(&files);
}

/// A file of 1 MiB of its own content in this directory; returns its object.
fn file_in(pool: &Pool, directory: u64, name: &str, seed: u8) -> u64 {
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let root = Context::root();
    let made = filesystem.create(&root, directory, name.as_bytes(), FileKind::File, 0o644, 0);
    let object = made.unwrap().object;
    filesystem.write(&root, object, 0, &content(seed), false).unwrap();
    object
}

fn directory_in(pool: &Pool, directory: u64, name: &str) -> u64 {
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let made = filesystem.make_directory(&Context::root(), directory, name.as_bytes(), 0o755);
    made.unwrap().object
}

#[test]
fn a_pinned_directory_holds_what_lies_beneath_now_and_later() {
    let mut pool = Pool::new(100 * MIB);
    let outside = file_in(&pool, 1, "outside", 1);
    let top = directory_in(&pool, 1, "top");
    let below = directory_in(&pool, top, "below");
    let files = [file_in(&pool, top, "a", 2), file_in(&pool, below, "b", 3)];
    let own = file_in(&pool, below, "own", 4);
    let nearer = directory_in(&pool, below, "nearer");
    let near = file_in(&pool, nearer, "near", 5);
    pool.datasets.commit_all().unwrap();
    pool.mover.pin(pool.number, own, "fast").unwrap();
    pool.mover.pin(pool.number, nearer, "fast").unwrap();
    let job = pool.mover.pin(pool.number, top, "slow").unwrap();
    pool.settle();
    assert_eq!(pool.job(job).state, "done", "{}", pool.job(job).reason);
    for file in files {
        assert_eq!(pool.tier_bytes(file), [0, MIB]);
    }
    for (file, why) in [
        (outside, "outside"),
        (own, "its own pin"),
        (near, "a nearer directory"),
    ] {
        assert_eq!(pool.tier_bytes(file), [MIB, 0], "{why}");
    }
    // What comes later lands there, and heat does not bring it up; after a restart as well.
    let later = file_in(&pool, below, "later", 6);
    pool.datasets.commit_all().unwrap();
    assert_eq!(pool.tier_bytes(later), [0, MIB]);
    pool.reopen();
    for file in files.into_iter().chain([later]) {
        record(pool.environment(), pool.number, file, 100);
    }
    pool.settle();
    for file in files.into_iter().chain([later]) {
        assert_eq!(pool.tier_bytes(file), [0, MIB], "not promoted");
    }
    // A file that moves in moves down, and one that moves out is free.
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let replace = terrace_dataset::RenameMode::Replace;
    let root = Context::root();
    filesystem
        .rename(&root, 1, b"outside", top, b"inside", replace)
        .unwrap();
    filesystem.rename(&root, top, b"a", 1, b"a", replace).unwrap();
    // Within seconds, although nobody has committed it; and so what moves soon after that.
    for (into, tiers) in [(top, [0, MIB]), (nearer, [MIB, 0])] {
        for _ in 0..3 {
            pool.clock.advance(SECOND);
            assert!(pool.steps(10_000) < 10_000, "the mover does not come to rest");
        }
        assert_eq!(pool.tier_bytes(outside), tiers);
        if into == top {
            let rename = filesystem.rename(&root, top, b"inside", nearer, b"inside", replace);
            rename.unwrap();
        }
    }
    record(pool.environment(), pool.number, files[0], 100);
    pool.settle();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0], "it left, and is hot");
    pool.mover.unpin(pool.number, top).unwrap();
    record(pool.environment(), pool.number, files[1], 100);
    pool.settle();
    assert_eq!(pool.tier_bytes(files[1]), [MIB, 0], "nothing holds it any more");
}
