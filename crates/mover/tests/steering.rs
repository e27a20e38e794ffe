//! What users say wins over what policies and moves do: pins, windows; and what they asked for by hand is kept, and told as it is.

#![allow(clippy::unwrap_used)]

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use terrace_dataset::{
    Context, Datasets, Environment, FileKind, Filesystem, NewDataset, RenameMode, bytes_of_object, keys,
};
use terrace_device::ManualClock;
use terrace_mover::{JobInfo, Mover, Step, TierPolicy};
use terrace_store::{ChunkId, MemoryStore, Placement, RewriteOutcome, Sequence, Store, StoreError};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;
const ROOT: u64 = 1;

/// A store that knows up to where it was flushed, and some chunks of which cannot be read.
struct Watched {
    below: MemoryStore,
    flushed: AtomicU64,
    unreadable: Mutex<HashSet<ChunkId>>,
}

impl Store for Watched {
    terrace_store::in_memory!(below: get scan write_chunks read_chunk chunk_info commit newest reserve_beside reserve_always space);

    fn flush(&self, sequence: Sequence) -> Result<(), StoreError> {
        self.below.flush(sequence)?;
        self.flushed.fetch_max(sequence.0, SeqCst);
        Ok(())
    }
    fn rewrite(&self, ids: &[ChunkId], placement: Placement) -> Result<RewriteOutcome, StoreError> {
        let unreadable = self.unreadable.lock().unwrap();
        let (failed, good): (Vec<ChunkId>, Vec<ChunkId>) = ids.iter().partition(|id| unreadable.contains(id));
        let mut outcome = self.below.rewrite(&good, placement)?;
        outcome.failed = failed;
        Ok(outcome)
    }
}

struct Pool {
    store: Arc<Watched>,
    clock: Arc<ManualClock>,
    datasets: Arc<Datasets>,
    mover: Arc<Mover>,
    filesystem: Arc<Filesystem>,
    number: u32,
}

fn open(store: &Arc<Watched>, clock: &Arc<ManualClock>) -> (Arc<Datasets>, Arc<Mover>) {
    let environment = Arc::new(Environment::new(store.clone(), clock.clone()));
    let datasets = Arc::new(Datasets::open(environment, "pool").unwrap());
    let mover = Arc::new(Mover::open(datasets.clone()).unwrap());
    (datasets, mover)
}

impl Pool {
    fn new() -> Self {
        let store = Arc::new(Watched {
            below: MemoryStore::new(64 * MIB),
            flushed: AtomicU64::new(0),
            unreadable: Mutex::default(),
        });
        let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
        let (datasets, mover) = open(&store, &clock);
        datasets.create("pool/a", &NewDataset::default()).unwrap();
        let number = datasets.info("pool/a").unwrap().number;
        let filesystem = datasets.filesystem("pool/a").unwrap();
        Self {
            store,
            clock,
            datasets,
            mover,
            filesystem,
            number,
        }
    }

    fn reopen(&mut self) {
        (self.datasets, self.mover) = open(&self.store, &self.clock);
        self.filesystem = self.datasets.filesystem("pool/a").unwrap();
    }

    fn directory(&self, name: &str) -> u64 {
        let made = self
            .filesystem
            .make_directory(&Context::root(), ROOT, name.as_bytes(), 0o755);
        made.unwrap().object
    }

    /// A file of 2 MiB of its own content, on the fast tier.
    fn file(&self, directory: u64, name: &str, seed: u8) -> u64 {
        let root = Context::root();
        let made = self
            .filesystem
            .create(&root, directory, name.as_bytes(), FileKind::File, 0o644, 0);
        let object = made.unwrap().object;
        let at = |at: u32| (at / 4096) as u8 ^ seed.wrapping_mul(37) ^ ((at % 251) as u8);
        let content: Vec<u8> = (0..2 * MIB as u32).map(at).collect();
        self.filesystem.write(&root, object, 0, &content, false).unwrap();
        self.datasets.commit_all().unwrap();
        object
    }

    fn tier_bytes(&self, object: u64) -> [u64; 2] {
        let store: Arc<dyn Store> = self.store.clone();
        let mut bytes = bytes_of_object(&store, self.number, object).unwrap().by_tier;
        bytes.resize(2, 0);
        [bytes[0], bytes[1]]
    }

    #[track_caller]
    fn lies_on(&self, object: u64, tier: usize) {
        let mut expected = [0, 0];
        expected[tier] = 2 * MIB;
        assert_eq!(self.tier_bytes(object), expected);
    }

    /// Steps until nothing is left, letting time pass.
    fn settle(&self) {
        for _ in 0..20 {
            let idle = (0..10_000).any(|_| matches!(self.mover.step().unwrap(), Step::Idle { .. }));
            assert!(idle, "the mover does not come to rest");
            self.clock.advance(11 * SECOND);
        }
    }

    fn job(&self, id: u64) -> JobInfo {
        self.mover.jobs().into_iter().find(|job| job.id == id).unwrap()
    }

    fn read(&self, object: u64, times: u32) {
        let store: Arc<dyn Store> = self.store.clone();
        let body = terrace_dataset::body_of_object(&store, self.number, object)
            .unwrap()
            .unwrap();
        let minutes = (self.datasets.environment().clock.now_nanoseconds() / 60 / SECOND) as u32;
        let heat = &self.datasets.environment().heat;
        for region in 0..2 {
            heat.record(
                self.number,
                body,
                region,
                terrace_cache::Access::Read,
                times as f32,
                minutes,
            );
        }
    }
}

#[test]
fn a_pin_wins_over_what_is_moved_by_hand() {
    let pool = Pool::new();
    let (pinned, other) = (pool.file(ROOT, "pinned", 1), pool.file(ROOT, "other", 2));
    let kept = pool.directory("kept");
    let inside = pool.file(kept, "inside", 3);
    pool.mover.pin(pool.number, pinned, "fast").unwrap();
    pool.mover.pin(pool.number, kept, "fast").unwrap();
    pool.settle();
    let job = pool.mover.demote(pool.number, 0).unwrap();
    pool.settle();
    pool.lies_on(pinned, 0);
    pool.lies_on(inside, 0);
    pool.lies_on(other, 1);
    let job = pool.job(job);
    assert_eq!((job.state, job.done_bytes), ("done", job.total_bytes));
    assert!(
        job.reason.contains("4M that are pinned elsewhere stay"),
        "{}",
        job.reason
    );
    // Also what is asked for while it is not known yet what lies beneath.
    pool.mover.pin(pool.number, kept, "slow").unwrap();
    let job = pool.mover.promote(pool.number, 0).unwrap();
    pool.settle();
    assert_eq!(pool.job(job).state, "done");
    pool.lies_on(inside, 1);
    pool.lies_on(other, 0);
    // The object itself.
    pool.mover.move_to(pool.number, pinned, "slow").unwrap();
    pool.settle();
    pool.lies_on(pinned, 0);
}

#[test]
fn unpin_ends_the_move_that_the_pin_began() {
    let mut pool = Pool::new();
    let file = pool.file(ROOT, "file", 1);
    let directory = pool.directory("directory");
    let inside = pool.file(directory, "inside", 2);
    pool.mover.set_enabled(false);
    let of_file = pool.mover.pin(pool.number, file, "slow").unwrap();
    let of_directory = pool.mover.pin(pool.number, directory, "slow").unwrap();
    let by_hand = pool.mover.demote(pool.number, file).unwrap();
    // That a pin began them is kept.
    pool.reopen();
    pool.mover.set_enabled(false);
    pool.mover.unpin(pool.number, file).unwrap();
    pool.mover.unpin(pool.number, directory).unwrap();
    for job in [of_file, of_directory] {
        let job = pool.job(job);
        assert_eq!(job.state, "cancelled");
        assert!(job.reason.ends_with("; the pin changed"), "{}", job.reason);
    }
    assert_eq!(pool.job(by_hand).state, "waiting");
    pool.mover.cancel(by_hand).unwrap();
    pool.mover.set_enabled(true);
    pool.settle();
    pool.lies_on(file, 0);
    pool.lies_on(inside, 0);
    // Another pin ends it as well, and so does that of a dataset that is taken away.
    pool.mover.set_enabled(false);
    let to_slow = pool.mover.pin(pool.number, file, "slow").unwrap();
    pool.mover.pin(pool.number, file, "fast").unwrap();
    assert_eq!(pool.job(to_slow).state, "cancelled");
    pool.datasets.properties().set("pool/a", "pin", "slow").unwrap();
    let of_dataset = pool.mover.dataset_pin_changed(pool.number).unwrap().unwrap();
    pool.datasets.properties().set("pool/a", "pin", "none").unwrap();
    assert_eq!(pool.mover.dataset_pin_changed(pool.number).unwrap(), None);
    assert_eq!(pool.job(of_dataset).state, "cancelled");
}

#[test]
fn who_loses_a_pin_goes_where_the_one_above_says() {
    let pool = Pool::new();
    let directory = pool.directory("directory");
    let file = pool.file(directory, "file", 1);
    pool.mover.pin(pool.number, directory, "slow").unwrap();
    pool.mover.pin(pool.number, file, "fast").unwrap();
    pool.settle();
    pool.lies_on(file, 0);
    pool.mover.unpin(pool.number, file).unwrap();
    pool.settle();
    pool.lies_on(file, 1);
    // Of the dataset, when none of its directories has one.
    pool.mover.unpin(pool.number, directory).unwrap();
    pool.mover.pin(pool.number, file, "slow").unwrap();
    pool.datasets.properties().set("pool/a", "pin", "fast").unwrap();
    pool.mover.dataset_pin_changed(pool.number).unwrap();
    pool.settle();
    pool.lies_on(file, 1);
    assert!(pool.mover.unpin(pool.number, file).unwrap().is_some());
    pool.settle();
    pool.lies_on(file, 0);
}

#[test]
fn names_that_come_and_go_carry_the_pin_along() {
    let pool = Pool::new();
    let root = Context::root();
    let directory = pool.directory("directory");
    let file = pool.file(ROOT, "file", 1);
    let linked = pool.file(ROOT, "linked", 2);
    pool.mover.pin(pool.number, directory, "slow").unwrap();
    pool.datasets.properties().set("pool/a", "pin", "fast").unwrap();
    pool.mover.dataset_pin_changed(pool.number).unwrap();
    pool.settle();
    pool.lies_on(file, 0);
    let filesystem = &pool.filesystem;
    // Each by itself: a look because of one finds the others as well.
    filesystem.link(&root, linked, directory, b"name").unwrap();
    pool.settle();
    pool.lies_on(linked, 1);
    filesystem
        .rename(&root, ROOT, b"file", directory, b"file", RenameMode::Replace)
        .unwrap();
    pool.settle();
    pool.lies_on(file, 1);
    pool.lies_on(linked, 1);
    filesystem.unlink(&root, directory, b"name").unwrap();
    pool.settle();
    pool.lies_on(linked, 0);
    filesystem
        .rename(&root, directory, b"file", ROOT, b"file", RenameMode::Replace)
        .unwrap();
    pool.settle();
    pool.lies_on(file, 0);
    pool.lies_on(linked, 0);
}

#[test]
fn the_windows_of_both_tiers_count() {
    // Of these halves of a day one holds the present, whatever the time zone.
    for window_of in [0, 1] {
        let mut moved = Vec::new();
        for window in ["00:00-12:00", "12:00-00:00"] {
            let pool = Pool::new();
            let policies = |low: f64| {
                let mut policies = vec![TierPolicy::named("fast"), TierPolicy::named("slow")];
                policies[window_of].window = window.into();
                (policies[0].high_water, policies[0].low_water) = (low, low);
                policies
            };
            let (cold, hot) = (pool.file(ROOT, "cold", 1), pool.file(ROOT, "hot", 2));
            pool.mover.demote(pool.number, hot).unwrap();
            pool.settle();
            pool.lies_on(hot, 1);
            pool.clock.advance(3600 * SECOND);
            // Up for its heat, and then down for the marks.
            pool.mover.set_policies(policies(0.5));
            pool.read(hot, 100);
            pool.settle();
            let rose = pool.tier_bytes(hot)[0] > 0;
            pool.mover.set_policies(policies(0.01));
            pool.settle();
            let sank = pool.tier_bytes(cold)[1] > 0;
            assert_eq!(rose, sank, "{window_of} {window}");
            assert!(pool.mover.rises_to(1).is_err(), "it is above its marks now");
            pool.mover.set_policies(policies(0.5));
            assert_eq!(pool.mover.rises_to(1).is_ok(), rose, "what is told");
            moved.push(rose);
        }
        assert!(moved[0] != moved[1], "{window_of}: {moved:?}");
    }
}

#[test]
fn what_cannot_be_read_makes_a_move_by_hand_fail_with_figures() {
    let mut pool = Pool::new();
    let (broken, whole) = (pool.file(ROOT, "broken", 1), pool.file(ROOT, "whole", 2));
    let store: Arc<dyn Store> = pool.store.clone();
    let body = terrace_dataset::body_of_object(&store, pool.number, broken)
        .unwrap()
        .unwrap();
    let record = terrace_dataset::read_region(&*store, pool.number, body, 0)
        .unwrap()
        .unwrap();
    let run = record.record.runs()[0];
    pool.store.unreadable.lock().unwrap().insert(run.chunk);
    let lost = u64::from(run.count) * 4096;
    for object in [broken, 0] {
        let job = pool.mover.move_to(pool.number, object, "slow").unwrap();
        // It does not forget in a restart what it could not read before it.
        pool.mover.set_step_bytes(1);
        pool.mover.step().unwrap();
        pool.mover.save().unwrap();
        pool.reopen();
        pool.settle();
        let job = pool.job(job);
        assert_eq!(job.state, "failed", "{}", job.reason);
        assert_eq!(job.total_bytes - job.done_bytes, lost, "{}", job.reason);
        for part in [
            format!("{lost} bytes"),
            "on tier 'fast'".into(),
            "lie on tier 'slow'".into(),
        ] {
            assert!(job.reason.contains(&part), "{part}: {}", job.reason);
        }
        assert_eq!(pool.tier_bytes(broken), [lost, 2 * MIB - lost]);
    }
    pool.lies_on(whole, 1);
    // What is there already need not be read.
    let job = pool.mover.move_to(pool.number, whole, "slow").unwrap();
    pool.settle();
    assert_eq!(pool.job(job).state, "done");
}

#[test]
fn what_is_asked_for_by_hand_is_durable_when_it_is_answered() {
    let pool = Pool::new();
    let file = pool.file(ROOT, "file", 1);
    let durable = |what: &str| {
        let newest = pool.store.newest().0;
        assert_eq!(pool.store.flushed.load(SeqCst), newest, "{what}");
    };
    let job = pool.mover.demote(pool.number, file).unwrap();
    durable("demote");
    pool.mover.pause(job).unwrap();
    durable("pause");
    pool.mover.resume(job).unwrap();
    durable("resume");
    pool.mover.cancel(job).unwrap();
    durable("cancel");
    pool.mover.pin(pool.number, file, "slow").unwrap();
    durable("pin");
    pool.mover.unpin(pool.number, file).unwrap();
    durable("unpin");
    pool.mover.promote(pool.number, 0).unwrap();
    durable("promote");
    let listed = pool.store.scan(
        &keys::table_range(keys::TABLE_JOB).0,
        &keys::table_range(keys::TABLE_JOB).1,
        10,
    );
    assert_eq!(listed.unwrap().len(), pool.mover.jobs().len());
}

#[test]
fn a_move_of_more_than_a_tier_holds_does_not_push_down_what_it_has_brought() {
    let pool = Pool::new();
    let files: Vec<u64> = (0..22)
        .map(|seed| pool.file(ROOT, &format!("f{seed}"), seed))
        .collect();
    pool.mover.demote(pool.number, 0).unwrap();
    pool.settle();
    files.iter().for_each(|file| pool.lies_on(*file, 1));
    let mut policies = vec![TierPolicy::named("fast"), TierPolicy::named("slow")];
    (policies[0].high_water, policies[0].low_water) = (0.4, 0.3);
    pool.mover.set_policies(policies);
    let id = pool.mover.promote(pool.number, 0).unwrap();
    pool.settle();
    // 44 MiB are asked for, and 25.6 are the mark.
    let job = pool.job(id);
    assert_eq!(job.state, "failed", "{job:?}");
    assert!(
        job.reason.contains("but that of what was moved there now"),
        "{}",
        job.reason
    );
    assert!(job.done_bytes <= 32 * MIB, "no more than once: {job:?}");
    let up: u64 = files.iter().map(|file| pool.tier_bytes(*file)[0]).sum();
    assert!(up >= 16 * MIB, "as much as fits is up: {up}");
}
