//! Jobs on a store that refuses: what was not done is done when it can be, and whoever asks is told why it was not.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use terrace_dataset::{Context, Datasets, Environment, FileKind, NewDataset, bytes_of_object, keys};
use terrace_device::ManualClock;
use terrace_mover::{JobKind, Mover, Step, StoreSteps, StoreWork};
use terrace_store::{
    Batch, ChunkId, MemoryStore, Piece, Placement, RewriteOutcome, Sequence, Space, Store, StoreError,
    Written,
};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// A store that refuses commits or moves while it is told so, or has the first chunk of a move in hand once, or lets
/// something happen in the middle of a write.
struct Unwilling {
    below: Arc<MemoryStore>,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    to_commit: AtomicBool,
    to_move: AtomicBool,
    /// Dead blocks on the slow tier.
    garbage: AtomicBool,
    busy: AtomicBool,
    /// The next move meets a broken invariant.
    broken: AtomicBool,
    /// The first chunk of a move cannot be read.
    unreadable: AtomicBool,
}

impl Store for Unwilling {
    terrace_store::in_memory!(below: get scan read_chunk chunk_info flush newest reserve_beside reserve_always);

    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        self.below.write_chunks(pieces)
    }
    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        match self.to_commit.load(SeqCst) {
            true => Err(StoreError::Device("it cannot be written".into())),
            false => self.below.commit(batch),
        }
    }
    fn space(&self) -> Space {
        let mut space = self.below.space();
        if self.garbage.load(SeqCst) {
            space.tiers[1].used_bytes = space.tiers[1].live_bytes + 8 * MIB;
        }
        space
    }
    fn rewrite(&self, ids: &[ChunkId], placement: Placement) -> Result<RewriteOutcome, StoreError> {
        assert!(!self.broken.swap(false, SeqCst), "a broken invariant");
        match self.to_move.load(SeqCst) {
            true => Err(StoreError::NoSpace),
            false if self.unreadable.load(SeqCst) => {
                let mut outcome = self.below.rewrite(&ids[1..], placement)?;
                outcome.failed.push(ids[0]);
                Ok(outcome)
            }
            false if self.busy.swap(false, SeqCst) => {
                let mut outcome = self.below.rewrite(&ids[1..], placement)?;
                outcome.busy = 1;
                Ok(outcome)
            }
            false => self.below.rewrite(ids, placement),
        }
    }
}

struct Pool {
    store: Arc<Unwilling>,
    clock: Arc<ManualClock>,
    datasets: Arc<Datasets>,
    mover: Arc<Mover>,
    number: u32,
    file: u64,
}

impl Pool {
    /// With a file of 1 MiB, on the fast tier.
    fn new() -> Self {
        let store = Arc::new(Unwilling {
            below: Arc::new(MemoryStore::new(64 * MIB)),
            meanwhile: Mutex::default(),
            to_commit: AtomicBool::new(false),
            to_move: AtomicBool::new(false),
            garbage: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            unreadable: AtomicBool::new(false),
        });
        let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
        let (datasets, mover) = open(&store, &clock);
        datasets.create("pool/a", &NewDataset::default()).unwrap();
        let number = datasets.info("pool/a").unwrap().number;
        let filesystem = datasets.filesystem("pool/a").unwrap();
        let root = Context::root();
        let made = filesystem.create(&root, 1, b"file", FileKind::File, 0o644, 0);
        let file = made.unwrap().object;
        let content: Vec<u8> = (0..MIB as u32).map(|at| (at / 4096 + at % 251) as u8).collect();
        filesystem.write(&root, file, 0, &content, false).unwrap();
        datasets.commit_all().unwrap();
        Self {
            store,
            clock,
            datasets,
            mover,
            number,
            file,
        }
    }

    fn reopen(&mut self) {
        (self.datasets, self.mover) = open(&self.store, &self.clock);
    }

    /// Steps until there is nothing to do now; returns for how long.
    fn rest(&self) -> u64 {
        for _ in 0..1000 {
            if let Step::Idle { wait } = self.mover.step().unwrap() {
                return wait;
            }
        }
        panic!("the mover does not come to rest");
    }

    fn down(&self) -> u64 {
        let store: Arc<dyn Store> = self.store.clone();
        let bytes = bytes_of_object(&store, self.number, self.file).unwrap();
        bytes.by_tier.get(1).copied().unwrap_or(0)
    }

    fn state(&self, job: u64) -> (&'static str, String) {
        let jobs = self.mover.jobs();
        let job = jobs.into_iter().find(|info| info.id == job).unwrap();
        (job.state, job.reason)
    }
}

fn open(store: &Arc<Unwilling>, clock: &Arc<ManualClock>) -> (Arc<Datasets>, Arc<Mover>) {
    let environment = Arc::new(Environment::new(store.clone(), clock.clone()));
    let datasets = Arc::new(Datasets::open(environment, "pool").unwrap());
    let mover = Mover::open(datasets.clone()).unwrap();
    (datasets, Arc::new(mover))
}

#[test]
fn a_move_for_a_pin_is_tried_again_after_ever_longer_pauses() {
    let pool = Pool::new();
    pool.store.to_move.store(true, SeqCst);
    let job = pool.mover.pin(pool.number, pool.file, "slow").unwrap();
    let mut pauses = Vec::new();
    for _ in 0..3 {
        pool.rest();
        let (state, reason) = pool.state(job);
        assert_eq!(state, "waiting", "{reason}");
        assert!(
            reason.contains("has no room") && reason.contains("tried again in"),
            "{reason}"
        );
        let why = pool.mover.move_failed(pool.number, pool.file).unwrap();
        assert!(why.contains("has no room"), "{why}");
        let began = reason.rsplit("again in ").next().unwrap();
        let seconds: u64 = began.trim_end_matches(" s").parse().unwrap();
        pauses.push(seconds);
        pool.clock.advance((seconds - 1) * SECOND);
        pool.rest();
        assert!(pool.state(job).1.ends_with("again in 1 s"), "not before its time");
        pool.clock.advance(SECOND);
    }
    assert_eq!(pauses, [60, 120, 240]);
    pool.store.to_move.store(false, SeqCst);
    pool.rest();
    assert_eq!((pool.state(job).0, pool.down()), ("done", MIB));
    assert_eq!(pool.mover.move_failed(pool.number, pool.file), None);
}

#[test]
fn a_move_for_a_pin_that_could_not_read_all_is_tried_again_after_ever_longer_pauses() {
    let mut pool = Pool::new();
    pool.store.unreadable.store(true, SeqCst);
    let job = pool.mover.pin(pool.number, pool.file, "slow").unwrap();
    for seconds in [60, 120, 240] {
        pool.rest();
        let (state, reason) = pool.state(job);
        assert!(
            state == "waiting"
                && reason.contains("cannot be read")
                && reason.ends_with(&format!("again in {seconds} s")),
            "{state}: {reason}"
        );
        let jobs = pool.mover.jobs();
        let info = jobs.iter().find(|info| info.id == job).unwrap();
        assert!(info.fails, "it is said to fail");
        assert!(
            info.done_bytes < info.total_bytes && info.total_bytes == MIB,
            "{} of {}",
            info.done_bytes,
            info.total_bytes
        );
        assert!(pool.down() < MIB && pool.down() > 0);
        let why = pool.mover.move_failed(pool.number, pool.file).unwrap();
        assert!(why.contains("cannot be read"), "{why}");
        pool.clock.advance(seconds * SECOND);
    }
    // A restart tries at once, from the start.
    pool.reopen();
    pool.rest();
    assert!(
        pool.state(job).1.ends_with("again in 60 s"),
        "{}",
        pool.state(job).1
    );
    pool.store.unreadable.store(false, SeqCst);
    pool.clock.advance(60 * SECOND);
    pool.rest();
    assert_eq!((pool.state(job).0, pool.down()), ("done", MIB));
    let jobs = pool.mover.jobs();
    let info = jobs.iter().find(|info| info.id == job).unwrap();
    assert_eq!((info.done_bytes, info.total_bytes), (MIB, MIB));
    // What nobody pinned fails for good, as before.
    pool.mover.unpin(pool.number, pool.file).unwrap();
    pool.store.unreadable.store(true, SeqCst);
    let by_hand = pool.mover.promote(pool.number, pool.file).unwrap();
    pool.rest();
    let (state, reason) = pool.state(by_hand);
    assert!(
        state == "failed" && reason.contains("cannot be read"),
        "{state}: {reason}"
    );
}

#[test]
fn what_a_pinned_file_has_in_common_with_another_stays_where_the_pin_says() {
    let pool = Pool::new();
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let root = Context::root();
    pool.mover.pin(pool.number, pool.file, "fast").unwrap();
    pool.rest();
    // Equal content, written after the pin; and content of its own behind it.
    let made = filesystem.create(&root, 1, b"equal", FileKind::File, 0o644, 0);
    let equal = made.unwrap().object;
    let mut content = vec![0; MIB as usize];
    terrace_dataset::Tree::read(&*filesystem, pool.file, 0, &mut content).unwrap();
    filesystem.write(&root, equal, 0, &content, false).unwrap();
    content.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
    filesystem.write(&root, equal, MIB, &content, false).unwrap();
    pool.datasets.commit_all().unwrap();
    let down = |object| {
        let store: Arc<dyn Store> = pool.store.clone();
        let bytes = bytes_of_object(&store, pool.number, object).unwrap();
        bytes.by_tier.get(1).copied().unwrap_or(0)
    };
    let moved = pool.mover.demote(pool.number, equal).unwrap();
    for _ in 0..20 {
        pool.clock.advance(pool.rest().min(SECOND));
    }
    assert_eq!(pool.state(moved).0, "done", "{}", pool.state(moved).1);
    assert_eq!((down(pool.file), down(equal)), (0, MIB));
    assert!(
        pool.state(moved).1.contains("1M that are pinned elsewhere"),
        "{}",
        pool.state(moved).1
    );
    // Once nothing is pinned there any more, all of it goes.
    pool.mover.unpin(pool.number, pool.file).unwrap();
    let moved = pool.mover.demote(pool.number, equal).unwrap();
    for _ in 0..20 {
        pool.clock.advance(pool.rest().min(SECOND));
    }
    assert_eq!(pool.state(moved).0, "done", "{}", pool.state(moved).1);
    assert_eq!((down(pool.file), down(equal)), (MIB, 2 * MIB));
    // And what is pinned comes back with what the other has in common with it.
    let pinned = pool.mover.pin(pool.number, pool.file, "fast").unwrap();
    for _ in 0..20 {
        pool.clock.advance(pool.rest().min(SECOND));
    }
    assert_eq!(pool.state(pinned).0, "done", "{}", pool.state(pinned).1);
    assert_eq!((down(pool.file), down(equal)), (0, MIB));
}

#[test]
fn the_pin_of_an_object_that_is_deleted_goes_with_it() {
    let mut pool = Pool::new();
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let root = Context::root();
    let made = filesystem.create(&root, 1, b"other", FileKind::File, 0o644, 0);
    let other = made.unwrap().object;
    pool.datasets.commit_all().unwrap();
    pool.mover.pin(pool.number, pool.file, "slow").unwrap();
    pool.mover.pin(pool.number, other, "slow").unwrap();
    let records = |pool: &Pool| {
        let (from, to) = keys::table_range(keys::TABLE_PIN);
        pool.store.scan(&from, &to, 100).unwrap().len()
    };
    pool.rest();
    assert_eq!(records(&pool), 2);
    filesystem.unlink(&root, 1, b"file").unwrap();
    drop(filesystem);
    pool.datasets.commit_all().unwrap();
    pool.clock.advance(11 * SECOND);
    pool.rest();
    assert_eq!(records(&pool), 1);
    assert_eq!(pool.mover.own_pin(pool.number, other).as_deref(), Some("slow"));
    // Also what was deleted behind the last look.
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    filesystem.unlink(&root, 1, b"other").unwrap();
    drop(filesystem);
    pool.datasets.commit_all().unwrap();
    pool.reopen();
    pool.clock.advance(11 * SECOND);
    pool.rest();
    assert_eq!(records(&pool), 0);
}

#[test]
fn what_something_else_was_moving_is_asked_for_again() {
    let pool = Pool::new();
    pool.store.busy.store(true, SeqCst);
    let job = pool.mover.pin(pool.number, pool.file, "slow").unwrap();
    pool.clock.advance(pool.rest());
    pool.rest();
    assert!(!pool.store.busy.load(SeqCst), "it was never in hand");
    assert_eq!((pool.state(job).0, pool.down()), ("done", MIB));
}

#[test]
fn what_waits_for_a_pin_that_is_gone_is_given_up_and_can_be_tried_at_once() {
    let mut pool = Pool::new();
    pool.store.to_move.store(true, SeqCst);
    let job = pool.mover.pin(pool.number, pool.file, "slow").unwrap();
    pool.rest();
    pool.mover.resume(job).unwrap();
    pool.rest();
    assert!(pool.state(job).1.ends_with("again in 120 s"), "it was tried");
    // A restart tries at once as well.
    pool.reopen();
    pool.rest();
    assert!(pool.state(job).1.ends_with("again in 60 s"));
    pool.mover.unpin(pool.number, pool.file).unwrap();
    pool.store.to_move.store(false, SeqCst);
    pool.rest();
    let (state, reason) = pool.state(job);
    assert_eq!((state, pool.down()), ("cancelled", 0), "{reason}");
    // What nobody pinned fails as before.
    pool.store.to_move.store(true, SeqCst);
    let by_hand = pool.mover.demote(pool.number, pool.file).unwrap();
    pool.rest();
    assert_eq!(pool.state(by_hand).0, "failed");
}

#[test]
fn what_finds_no_room_beside_dead_blocks_waits_for_these_for_a_minute_at_most() {
    let pool = Pool::new();
    pool.store.to_move.store(true, SeqCst);
    pool.store.garbage.store(true, SeqCst);
    let job = pool.mover.demote(pool.number, pool.file).unwrap();
    pool.rest();
    let (state, reason) = pool.state(job);
    assert!(
        state == "waiting" && reason.ends_with("dead blocks there come back; it is tried again in 1 s"),
        "{state}: {reason}"
    );
    assert!(pool.mover.jobs().iter().all(|job| !job.fails), "it only waits");
    pool.clock.advance(SECOND);
    pool.rest();
    assert!(pool.state(job).1.ends_with("again in 2 s"));
    // There is room: it goes on at once, and what it waited before does not count any more.
    pool.store.to_move.store(false, SeqCst);
    pool.clock.advance(2 * SECOND);
    pool.rest();
    assert_eq!((pool.state(job).0, pool.down()), ("done", MIB));
    pool.store.to_move.store(true, SeqCst);
    let job = pool.mover.promote(pool.number, pool.file).unwrap();
    pool.rest();
    assert_eq!(
        pool.state(job).0,
        "failed",
        "there is no garbage on the fast tier"
    );
    let pinned = pool.mover.pin(pool.number, pool.file, "fast").unwrap();
    pool.rest();
    assert!(
        pool.state(pinned).1.ends_with("again in 60 s"),
        "that waits for its pin"
    );
    pool.mover.unpin(pool.number, pool.file).unwrap();
    pool.store.to_move.store(false, SeqCst);
    let up = pool.mover.promote(pool.number, pool.file).unwrap();
    pool.rest();
    assert_eq!((pool.state(up).0, pool.down()), ("done", 0));
    pool.store.to_move.store(true, SeqCst);
    let job = pool.mover.demote(pool.number, pool.file).unwrap();
    let mut waited = 0;
    for seconds in [1, 2, 4, 8, 16, 32] {
        pool.rest();
        // Other pins are nothing to it.
        pool.mover.pin(pool.number, 1, "fast").unwrap();
        pool.mover.unpin(pool.number, 1).unwrap();
        pool.rest();
        let (state, reason) = pool.state(job);
        assert!(
            state == "waiting" && reason.ends_with(&format!("again in {seconds} s")),
            "{state}: {reason}"
        );
        pool.clock.advance(seconds * SECOND);
        waited += seconds;
    }
    pool.rest();
    let (state, reason) = pool.state(job);
    assert_eq!((state, waited), ("failed", 63));
    assert!(
        reason.contains("has no room for more; make some there"),
        "{reason}"
    );
}

struct OneStep;

impl StoreSteps for OneStep {
    fn step(&mut self, _: u64) -> Result<StoreWork, StoreError> {
        Ok(StoreWork {
            tiers: 0,
            bytes: 7,
            total_bytes: 7,
            finished: true,
            note: None,
            waits: false,
        })
    }
}

#[test]
fn the_end_of_a_job_that_could_not_be_kept_is_kept_later() {
    for kept_later in [true, false] {
        let mut pool = Pool::new();
        let job = pool
            .mover
            .run(JobKind::Compact, "asked for", Box::new(OneStep))
            .unwrap();
        pool.store.to_commit.store(true, SeqCst);
        pool.rest();
        assert_eq!(pool.state(job).0, "done", "it went on");
        if kept_later {
            pool.store.to_commit.store(false, SeqCst);
            pool.clock.advance(11 * SECOND);
            pool.rest();
        }
        pool.store.to_commit.store(false, SeqCst);
        pool.reopen();
        let kept = if kept_later { "done" } else { "cancelled" };
        assert_eq!(pool.state(job).0, kept, "{}", pool.state(job).1);
    }
}

#[test]
fn a_relayout_cancelled_in_the_middle_of_a_step_goes_on_as_no_other_job() {
    let pool = Pool::new();
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let root = Context::root();
    let block = |number: u64| -> Vec<u8> { (0..4096).map(|at| (number * 7 + at % 251) as u8).collect() };
    for region in 1..8 {
        for number in 0..256 {
            let offset = region * MIB + number * 4096;
            filesystem
                .write(&root, pool.file, offset, &block(number + region), false)
                .unwrap();
        }
    }
    pool.datasets.commit_all().unwrap();
    for number in (0..8 * 256).step_by(2) {
        filesystem
            .write(&root, pool.file, number * 4096, &block(number + 99), false)
            .unwrap();
        if number % 128 == 0 {
            pool.datasets.commit_all().unwrap();
        }
    }
    pool.datasets.commit_all().unwrap();
    pool.clock.advance(311 * SECOND);
    let relayouts = || {
        let jobs = pool.mover.jobs().into_iter();
        let jobs = jobs.filter(|job| job.kind == "relayout");
        jobs.map(|job| (job.id, job.state)).collect::<Vec<_>>()
    };
    while relayouts().is_empty() {
        pool.mover.step().unwrap();
        pool.clock.advance(SECOND / 10);
    }
    let (id, state) = relayouts()[0];
    assert_eq!(state, "running");
    let mover = pool.mover.clone();
    *pool.store.meanwhile.lock().unwrap() = Some(Box::new(move || mover.cancel(id).unwrap()));
    while pool.store.meanwhile.lock().unwrap().is_some() {
        pool.mover.step().unwrap();
        pool.clock.advance(SECOND / 10);
    }
    assert_eq!(relayouts(), [(id, "cancelled")]);
}

#[test]
fn a_step_that_panicked_is_over() {
    let pool = Pool::new();
    let job = pool.mover.pin(pool.number, pool.file, "slow").unwrap();
    pool.store.broken.store(true, SeqCst);
    std::thread::scope(|scope| {
        let stepped = scope.spawn(|| pool.rest()).join();
        assert!(stepped.is_err(), "no step met it");
    });
    pool.clock.advance(SECOND);
    pool.rest();
    assert_eq!((pool.state(job).0, pool.down()), ("done", MIB));
}
