//! `DatasetState`: what one open dataset's live half and history half share: settings, counters, the held set, the
//! commit lock.
//!
//! Invariants: everything that changes a dataset's records is built and committed under its commit lock, with the
//! held set as it is then; the counters in RAM are those of the newest committed batch; no lock but the commit lock
//! is held across a call of the store.

use super::environment::Environment;
use crate::{
    posix::FsError,
    quota::{Room, Terms, Usage},
    records::{Checkpoints, Counters, Held, Kind, Promised, Records, Recount, Time, VersionedBatch, keys},
    settings::Settings,
};
use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU32, AtomicU64,
            Ordering::{self},
        },
    },
    time::Duration,
};

use terrace_store::{BLOCK_BYTES, Sequence, Store, StoreError};
use terrace_sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};

/// How often a waiting caller checks whether a silent device may block the thread that it waits for.
pub(crate) const ANSWERS_LOOK: Duration = Duration::from_secs(1);
/// How soon somebody who waits for the commit lock sees that he should not.
const LOCK_LOOK: Duration = Duration::from_millis(10);
/// Commits of a dataset that fail one after another, for metadata that cannot be read, until it is called stuck.
const STUCK_COMMITS: u32 = 3;

/// One dataset, as long as the pool is open.
pub struct DatasetState {
    number: u32,
    kind: RwLock<Kind, rank::Leaf>,
    name: RwLock<Arc<str>, rank::Leaf>,
    environment: Arc<Environment>,
    checkpoints: Arc<Checkpoints>,
    commit: Mutex<(), rank::dataset::Commit>,
    settings: RwLock<Arc<Settings>, rank::Leaf>,
    held: RwLock<Held, rank::dataset::Held>,
    counters: Mutex<Counters, rank::Leaf>,
    next_object: AtomicU64,
    usage: Arc<Usage>,
    orphans: AtomicBool,
    gone: AtomicBool,
    /// A part of its records is out of reach: what is changed now could not be committed.
    is_kept_from_changes: AtomicBool,
    /// Periodic commits that failed for metadata that cannot be read, since one did not fail.
    failed_commits: AtomicU32,
    committed_nanoseconds: AtomicU64,
    /// Changed under the commit lock.
    recount: Mutex<Option<Recount>, rank::Leaf>,
}

impl DatasetState {
    /// Made by the registry.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        number: u32,
        kind: Kind,
        name: &str,
        environment: Arc<Environment>,
        checkpoints: Arc<Checkpoints>,
        settings: Settings,
        held: Held,
        counters: Counters,
        usage: Arc<Usage>,
    ) -> Self {
        Self {
            number,
            kind: RwLock::new(kind),
            name: RwLock::new(name.into()),
            environment,
            checkpoints,
            commit: Mutex::new(()),
            settings: RwLock::new(Arc::new(settings)),
            held: RwLock::new(held),
            next_object: AtomicU64::new(counters.next_object.max(keys::ROOT_OBJECT + 1)),
            counters: Mutex::new(counters),
            usage,
            orphans: AtomicBool::new(true),
            gone: AtomicBool::new(false),
            is_kept_from_changes: AtomicBool::new(false),
            failed_commits: AtomicU32::new(0),
            committed_nanoseconds: AtomicU64::new(0),
            recount: Mutex::new(None),
        }
    }

    /// When it was last committed with others because it was time, on the monotonic clock; 0 if it was not.
    pub(crate) fn committed_nanoseconds(&self) -> u64 {
        self.committed_nanoseconds.load(Ordering::Relaxed)
    }

    pub(crate) fn set_committed(&self, nanoseconds: u64) {
        self.committed_nanoseconds.store(nanoseconds, Ordering::Relaxed);
    }

    /// The dataset's number in keys.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Filesystem or volume of a size.
    pub fn kind(&self) -> Kind {
        *self.kind.read()
    }

    pub(crate) fn set_kind(&self, kind: Kind) {
        *self.kind.write() = kind;
    }

    /// Its full name; changes when it or a dataset above it is renamed.
    pub fn name(&self) -> Arc<str> {
        self.name.read().clone()
    }

    pub(crate) fn set_name(&self, name: &str) {
        *self.name.write() = name.into();
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.environment.store
    }

    /// Its records, to be read.
    pub(crate) fn records(&self) -> Records<'_> {
        Records::of(self.store().as_ref(), self.number)
    }

    /// Store, clock, caches.
    pub fn environment(&self) -> &Arc<Environment> {
        &self.environment
    }

    /// The settings in force; may change at any time.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    pub(crate) fn set_settings(&self, settings: Settings) {
        let readonly = settings.readonly || self.is_kept_from_changes.load(Ordering::SeqCst);
        *self.settings.write() = Arc::new(Settings { readonly, ..settings });
    }

    /// As if `readonly` were set, whatever it is set to, until the pool is opened again.
    pub(crate) fn keep_from_changes(&self) {
        self.is_kept_from_changes.store(true, Ordering::SeqCst);
        let settings = Settings::clone(&self.settings());
        self.set_settings(settings);
    }

    /// A periodic commit of it succeeded, or failed for metadata that cannot be read.
    pub(crate) fn note_commit(&self, succeeded: bool) {
        match succeeded {
            true => self.failed_commits.store(0, Ordering::Relaxed),
            false => _ = self.failed_commits.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Whether these fail again and again.
    pub(crate) fn is_stuck(&self) -> bool {
        self.failed_commits.load(Ordering::Relaxed) >= STUCK_COMMITS
    }

    /// A number that no object or body of this dataset had before.
    pub fn next_object(&self) -> u64 {
        self.next_object.fetch_add(1, Ordering::Relaxed)
    }

    /// Taken from before the freeze until after the commit.
    pub fn commit_lock(&self) -> MutexGuard<'_, (), rank::dataset::Commit> {
        self.commit.lock()
    }

    /// The same; an error if its holder may be blocked by a silent device.
    pub fn commit_lock_while_answered(
        &self,
    ) -> Result<MutexGuard<'_, (), rank::dataset::Commit>, StoreError> {
        let clock = &*self.environment().clock;
        let since = clock.monotonic_nanoseconds();
        loop {
            match self.commit.lock_within(clock, ANSWERS_LOOK) {
                Some(lock) => return Ok(lock),
                None => self.store().check_answers(since)?,
            }
        }
    }

    /// The same, unless `gives_up` says before it is free that there is something better to do.
    pub fn commit_lock_unless(
        &self,
        gives_up: impl Fn() -> bool,
    ) -> Option<MutexGuard<'_, (), rank::dataset::Commit>> {
        let clock = &*self.environment().clock;
        while !gives_up() {
            if let Some(lock) = self.commit.lock_within(clock, LOCK_LOOK) {
                return Some(lock);
            }
        }
        None
    }

    /// The checkpoint to freeze for. Ask while the commit lock is held and changes are paused.
    pub fn current_checkpoint(&self) -> u64 {
        self.checkpoints.current()
    }

    /// An empty batch of what was frozen for `checkpoint`. The commit lock is held.
    pub fn batch(&self, checkpoint: u64) -> VersionedBatch {
        let newest_held = self.held.read().newest_before(checkpoint);
        VersionedBatch::new(self.store().clone(), self.number, checkpoint, newest_held)
    }

    /// Commits a batch together with the counters. The commit lock is held.
    pub fn commit(&self, batch: VersionedBatch) -> Result<Sequence, StoreError> {
        if self.is_gone() {
            return Err(StoreError::Invalid(format!(
                "dataset '{}' was destroyed",
                self.name()
            )));
        }
        if batch.is_empty() && !batch.changes_counters() {
            self.usage
                .files_are(self.counters().preallocated, batch.promised());
            return Ok(self.store().newest());
        }
        let (checkpoint, promised) = (batch.checkpoint(), batch.promised());
        let (mut batch, change) = batch.finish()?;
        let mut counters = *self.counters.lock();
        counters.apply(change, checkpoint);
        counters.next_object = self.next_object.load(Ordering::Relaxed);
        batch.put(keys::counters(self.number), counters.encode());
        let sequence = self.store().commit(batch)?;
        self.usage.add_live_blocks(change.live_blocks);
        self.usage.files_are(counters.preallocated, promised);
        self.set_counters(counters);
        Ok(sequence)
    }

    /// The counters are these from now on, as far as reservations go by them.
    pub(crate) fn set_counters(&self, counters: Counters) {
        *self.counters.lock() = counters;
        self.count_own();
    }

    /// Tells how much of the dataset stands for its reservation. Until the count is over, no more than is certain.
    pub(crate) fn count_own(&self) {
        let counters = self.counters();
        let recounting = self.recount().map(|recount| {
            let held = self.held.read();
            let record = held.get(recount.held);
            record.map_or(u64::MAX, |record| record.referenced_bytes / BLOCK_BYTES as u64)
        });
        self.usage.files_are(counters.preallocated, Promised::default());
        let shared = recounting.or(counters.shared_blocks).unwrap_or(0);
        self.usage
            .set_own_blocks(counters.live_blocks.saturating_sub(shared));
    }

    /// What is being counted again.
    pub(crate) fn recount(&self) -> Option<Recount> {
        self.recount.lock().clone()
    }

    /// Begins, goes on with or ends a recount. The commit lock is held.
    pub(crate) fn set_recount(&self, recount: Option<Recount>) {
        *self.recount.lock() = recount;
        self.count_own();
    }

    /// Whether the shared blocks of the region with this key are counted already. The commit lock is held.
    pub(crate) fn counts_shared(&self, key: &[u8]) -> bool {
        let recount = self.recount.lock();
        recount
            .as_ref()
            .is_none_or(|recount| key < recount.cursor.as_slice())
    }

    /// The counters as of the newest commit.
    pub fn counters(&self) -> Counters {
        *self.counters.lock()
    }

    /// The held checkpoints.
    pub fn held(&self) -> RwLockReadGuard<'_, Held, rank::dataset::Held> {
        self.held.read()
    }

    /// The same, to be changed. The commit lock is held where one is taken out.
    pub fn held_mut(&self) -> RwLockWriteGuard<'_, Held, rank::dataset::Held> {
        self.held.write()
    }

    /// Quota and reservation accounting.
    pub fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// Sets room aside for `bytes` of new dirty data: within the quotas of this dataset and those above it, and
    /// within the pool (using this dataset's own reservation first). Keep it until the data is committed.
    pub fn reserve(&self, bytes: u64) -> Result<Room, FsError> {
        Usage::reserve(&self.usage, bytes, Terms::default())
    }

    /// Tells the sweep that `Freed` orphans were committed.
    pub fn orphans_freed(&self) {
        self.orphans.store(true, Ordering::SeqCst);
    }

    /// Whether there may be some.
    pub(crate) fn has_orphans(&self) -> bool {
        self.orphans.load(Ordering::SeqCst)
    }

    /// The same; until it is told again there are none.
    pub(crate) fn take_orphans(&self) -> bool {
        self.orphans.swap(false, Ordering::SeqCst)
    }

    /// Whether the dataset was destroyed under its user (`Stale` from then on; nothing may be committed).
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }

    /// The time now.
    pub(crate) fn now(&self) -> Time {
        self.environment().now()
    }

    /// The same in minutes, for heat.
    pub(crate) fn minutes(&self) -> u32 {
        (self.environment().clock.now_nanoseconds() / 60_000_000_000) as u32
    }

    /// Refuses changes of a read-only dataset, and all use of a destroyed one.
    pub(crate) fn writable(&self) -> Result<(), FsError> {
        if self.is_gone() {
            Err(FsError::Stale)
        } else if self.settings().readonly {
            Err(FsError::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// The first chunk whose blocks no snapshot has.
    pub(crate) fn newest_snapshot(&self) -> u64 {
        self.counters().preallocated.since
    }
}
