//! Making and opening a store.
//!
//! Invariants: opening reads the root, the log behind it, and the table of segments, never the data; an entry of the log
//! that is not known to have been durable is accepted only if the data of every chunk that it leaves behind verifies
//! (with all entries before it); what was accepted is flushed, and written to the copy of the log that lacks it, before
//! anything is built on it; segments that were open are never appended to again.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use terrace_codec::Writer;
use terrace_log::{Copies, Log, LogError, LogPosition, Scanned, Scanner};
use terrace_meta::{Tree, decode_count};
use terrace_pool::{DeviceState, Pool, PoolError, Presence, SegmentId};
use terrace_store::{ChunkId, StoreError};

use super::tail;
use crate::{
    Options,
    admission::Need,
    append::Shortage,
    buffers::OpenSegments,
    encoding::{
        Counters, Format, LoggedBatch, Root, TABLE_LIVE, TABLE_SEGMENTS, decode_batches, decode_root,
        encode_root, position_of, segment_of_key, version, version_of,
    },
    gc::Maintenance,
    ledger::BookKeeper,
    metadata::MetaStorage,
    store::{ChunkStore, CommitState, GroupState, meta_error, pool_error},
    worker_pool::Crew,
};

/// Records of the segment table read at once.
const SCAN: usize = 4096;

/// How far sequences jump where the end of the log was given up: over all that it can have held.
const GIVEN_UP_SEQUENCES: u64 = 1 << 40;

/// Totals of the replay as it goes.
struct Replay {
    tree: Tree,
    counters: Counters,
    next_chunk: u64,
    sequence: u64,
}

impl Replay {
    fn apply(&mut self, batches: Vec<LoggedBatch>) -> Result<(), StoreError> {
        for batch in batches {
            if batch.sequence != self.sequence + 1 {
                return Err(StoreError::DamagedMetadata(
                    format!("the log goes from batch {} to {}", self.sequence, batch.sequence).into(),
                ));
            }
            self.sequence = batch.sequence;
            self.counters.add(&batch.change);
            self.next_chunk = self.next_chunk.max(batch.next_chunk);
            // What the tables hold already must not be applied twice: additions are not idempotent.
            if batch.sequence > self.tree.flushed_sequence() {
                self.tree
                    .apply(batch.sequence, batch.operations)
                    .map_err(meta_error)?;
            }
        }
        Ok(())
    }
}

fn damaged(what: impl std::fmt::Display) -> StoreError {
    StoreError::DamagedMetadata(what.to_string().into())
}

fn log_error(error: LogError) -> StoreError {
    match error {
        LogError::NoSpace(_) => StoreError::NoSpace,
        LogError::Write(_) => StoreError::Device(error.to_string().into()),
        other => damaged(other),
    }
}

pub(crate) fn tree_options(options: &Options, pool: &Pool) -> terrace_meta::Options {
    let table_bytes = terrace_meta::Options::default()
        .table_bytes
        .min(pool.segment_bytes() as usize / 2);
    terrace_meta::Options {
        memory_bytes: options.memtable_bytes,
        block_cache_bytes: options.block_cache_bytes,
        table_bytes,
        identity: pool.id(),
    }
}

impl ChunkStore {
    /// Makes an empty store on a new pool and writes its first root.
    pub fn create(pool: Arc<Pool>, options: Options) -> Result<Arc<Self>, StoreError> {
        let meta = Arc::new(MetaStorage::new(pool.clone()));
        let tree = Tree::open(meta.clone(), None, tree_options(&options, &pool)).map_err(meta_error)?;
        let log = Log::create(pool.clone(), options.nonce).map_err(log_error)?;
        let manifest = tree.manifest().map_err(meta_error)?;
        let version = options
            .format_version
            .clamp(version::FORMAT_OLDEST, version::FORMAT_NEWEST);
        let (position, counters) = (log.position(), Counters::default());
        let root = encode_root(version, &manifest, &position, &counters, 1, &meta, &[]);
        pool.write_root(&root).map_err(pool_error)?;
        let replay = Replay {
            tree,
            counters: Counters::default(),
            next_chunk: 1,
            sequence: 0,
        };
        let marks = VecDeque::from([(0, Counters::default())]);
        let crew = Crew::new(options.threads);
        let mut store = Self::assemble(pool, options, crew, meta, log, replay, marks);
        store.format = Format::of(version);
        Ok(Arc::new(store))
    }

    /// Opens the store of a pool: newest root, then replay of the log. Takes time in proportion to the log and the
    /// number of segments, not to the data.
    pub fn open(pool: Arc<Pool>, options: Options) -> Result<Arc<Self>, StoreError> {
        let payload = pool.read_root().map_err(pool_error)?;
        let payload = payload.ok_or_else(|| without_a_root(&pool))?;
        let root = read_root(&pool, &payload)?;
        let meta = Arc::new(root.meta);
        let tree = Tree::open(meta.clone(), Some(&root.manifest), tree_options(&options, &pool))
            .map_err(meta_error)?;
        meta.count(&tree.extents()).map_err(damaged)?;
        let mut replay = Replay {
            tree,
            counters: root.counters,
            next_chunk: root.next_chunk,
            sequence: root.position.sequence,
        };
        let start = (root.position.sequence, root.counters);
        let crew = Crew::new(options.threads);
        let Replayed {
            tail: position,
            segments,
            broken,
            mut scanner,
            lacking,
            confirmed,
        } = replay_log(&pool, &crew, root.position, &mut replay)?;
        if !meta.devices_out_of_reach().is_empty() {
            // Before the labels say that the pool is used without what is missing.
            for table in [TABLE_SEGMENTS, TABLE_LIVE] {
                scan_table(&replay.tree, table, |_| Ok(()))
                    .map_err(|error| metadata_is_away(&pool, &meta).unwrap_or(error))?;
            }
        }
        let rewind = options.rewind;
        let mut given_up = None;
        if let Some(cause) = broken {
            given_up = Some(give_up(cause, rewind)?);
        }
        if replay.tree.newest_sequence() > replay.sequence {
            return Err(damaged(format!(
                "the log ends at batch {}, the tables already hold {}",
                replay.sequence,
                replay.tree.newest_sequence()
            )));
        }
        // Who only reads says whether an opening would be refused only if that was asked for.
        if !pool.is_read_only() || rewind {
            if position.offset < pool.segment_bytes() || position.next.is_empty() {
                check_log_is_there(&pool, position.segment)
                    .or_else(|cause| give_up(cause, rewind).map(|cause| given_up = Some(cause)))?;
            }
            if scanner.may_go_on_in_next(&position) {
                check_log_is_there(&pool, position.next)
                    .or_else(|cause| give_up(cause, rewind).map(|cause| given_up = Some(cause)))?;
            }
        }
        // What was accepted may still be in a device's cache when only the process died.
        if !pool.is_read_only() {
            pool.flush_all().map_err(pool_error)?;
            forget_given_up(&pool, &root.position, replay.sequence)?;
            pool.settle_roots().map_err(pool_error)?;
        }
        for segment in meta.segments() {
            claim(&pool, segment)?;
        }
        for segment in segments.iter().chain([&position.next]).flat_map(Copies::iter) {
            claim(&pool, segment)?;
        }
        if !pool.is_read_only() {
            let entries = scanner.complete_copies(replay.sequence);
            tracing::debug!(entries, "written to the copy of the log that lacked them");
            // With root and log they can stand for the others; before that, what they show alone is of the past.
            let lacks = |device: &u16| scanner.left_behind().iter().any(|copy| copy.device == *device);
            let mut returned = pool.returned();
            returned.retain(|device| !lacks(device));
            pool.take_back(&returned).map_err(pool_error)?;
        }
        let log = Log::resume(pool.clone(), root.position, position, segments, options.nonce);
        let goes_on = given_up.is_some() && !pool.is_read_only();
        if goes_on {
            replay.sequence += GIVEN_UP_SEQUENCES;
        }
        let sequence = replay.sequence;
        let marks = VecDeque::from([start, (replay.sequence, replay.counters)]);
        let mut store = Self::assemble(pool, options, crew, meta, log, replay, marks);
        store.format = Format::of(root.version);
        store.end_without = scanner.end_without();
        if let Some(end) = store.end_without {
            tracing::warn!(
                device = end.device,
                "what was acknowledged last may be lost with the device that is not there"
            );
        }
        store.claim_data()?;
        store.inherit_candidates();
        if goes_on {
            // Where nothing lies, which is known only now. Nothing is appended there before a root says that the log goes on there.
            store.log.begin_elsewhere(sequence).map_err(log_error)?;
        }
        store.log.note_gaps(scanner.left_behind());
        store.given_up = given_up;
        if goes_on {
            store.checkpoint()?;
            store.complete_chunks(lacking)?;
        } else if !store.pool.is_read_only() {
            // As long as a copy is lacking the tail is looked at again by the next opening.
            let flushed = if lacking.is_empty() {
                store.log.position().sequence
            } else {
                confirmed
            };
            store.log.fence(flushed).map_err(log_error)?;
            if store.end_without.is_some() {
                store.leave_what_is_not_there(flushed)?;
            }
            let next = store.log.position().next;
            if !next.is_empty() && !is_there(&store.pool, next) && store.log.leave_segments().is_ok() {
                store.log.fence(flushed).map_err(log_error)?;
            }
            if !lacking.is_empty() {
                store.complete_chunks(lacking)?;
            }
        }
        Ok(Arc::new(store))
    }

    /// Stores chunks of which a copy is lacking anew, as far as there is room, before anything counts on their being as many.
    fn complete_chunks(&self, lacking: BTreeSet<ChunkId>) -> Result<(), StoreError> {
        tracing::info!(
            chunks = lacking.len(),
            "a copy of them is not there: they are stored anew"
        );
        self.repairs.lock().extend(lacking);
        while self.repair_step()? {}
        let newest = self.commit.lock().sequence;
        self.flush_until(newest)?;
        self.log.fence(newest).map_err(log_error)
    }

    /// The copy of the log that is not there has entries of a past that was given up. Should its device come back, they must
    /// not lie where the log goes on: what they say was durable would look like a gap. Near the end of a segment the log
    /// goes on in the next one first. With no room for new segments it stays.
    fn leave_what_is_not_there(&self, flushed: u64) -> Result<(), StoreError> {
        for _ in 0..3 {
            let here = self.log.position().segment;
            if here.iter().all(|segment| self.pool.has_device(segment.device))
                || self.log.leave_segments().is_err()
            {
                break;
            }
            // One names the new segments, the next one is the first in them.
            self.log.fence(flushed).map_err(log_error)?;
            self.log.fence(flushed).map_err(log_error)?;
        }
        Ok(())
    }

    /// Opens the store as a root says, for reading alone: no segment is claimed, and a log that is broken, or behind
    /// the tables, is read as far as it goes. Returns whether it is broken.
    pub(crate) fn open_for_salvage(
        pool: Arc<Pool>,
        options: Options,
        payload: &[u8],
    ) -> Result<(Arc<Self>, bool), StoreError> {
        let root = read_root(&pool, payload)?;
        let meta = Arc::new(root.meta);
        let tree = Tree::open(meta.clone(), Some(&root.manifest), tree_options(&options, &pool))
            .map_err(meta_error)?;
        let mut replay = Replay {
            tree,
            counters: root.counters,
            next_chunk: root.next_chunk,
            sequence: root.position.sequence,
        };
        let crew = Crew::new(options.threads);
        let replayed = replay_log(&pool, &crew, root.position, &mut replay)?;
        let broken = replayed.broken.is_some();
        let (position, segments) = (replayed.tail, replayed.segments);
        let log = Log::resume(pool.clone(), root.position, position, segments, options.nonce);
        let store = Self::assemble(pool, options, crew, meta, log, replay, VecDeque::new());
        Ok((Arc::new(store), broken))
    }

    /// The newest batch of a store opened for salvage.
    pub(crate) fn salvaged_sequence(&self) -> u64 {
        self.tree.newest_sequence().max(self.commit.lock().sequence)
    }

    fn assemble(
        pool: Arc<Pool>,
        options: Options,
        crew: Crew,
        meta: Arc<MetaStorage>,
        log: Log,
        replay: Replay,
        marks: VecDeque<(u64, Counters)>,
    ) -> Self {
        let commit = CommitState {
            sequence: replay.sequence,
            pending: Writer::new(),
            in_flight: 0,
            first: 0,
            counters: replay.counters,
            marks,
            places: BTreeSet::new(),
        };
        Self {
            open_segments: OpenSegments::new(pool.id()),
            pool,
            crew,
            options,
            tree: replay.tree,
            log,
            meta,
            keeper: Arc::new(BookKeeper::default()),
            streams: Mutex::new(BTreeMap::new()),
            commit: Mutex::new(commit),
            group: Mutex::new(GroupState {
                durable: replay.sequence,
                leading: None,
            }),
            flushed: Condvar::new(),
            dirty: Mutex::default(),
            next_chunk: AtomicU64::new(replay.next_chunk),
            relocations: AtomicU64::new(0),
            released: AtomicU64::new(0),
            reserved: Arc::new(AtomicU64::new(0)),
            pending_free: AtomicI64::new(0),
            freed_lately: AtomicU64::new(0),
            stop: Mutex::new(None),
            stopping: AtomicBool::new(false),
            maintenance: Mutex::new(Maintenance::default()),
            tables: Mutex::new(()),
            need: Need::default(),
            sinking: crate::admission::Sinking::default(),
            waiting_for_tables: AtomicUsize::new(0),
            rates: Arc::default(),
            resting_from: std::sync::atomic::AtomicU8::new(u8::MAX),
            spacing: crate::space::Spacing::default(),
            repairs: Mutex::default(),
            unreadable: Mutex::default(),
            scratch: Mutex::default(),
            unlogged_bytes: AtomicU64::new(0),
            end_without: None,
            given_up: None,
            format: Format::of(version::FORMAT_NEWEST),
        }
    }

    /// Claims the data segments of the segment table and counts what is live in them.
    fn claim_data(&self) -> Result<(), StoreError> {
        for (table, counted) in [(TABLE_SEGMENTS, false), (TABLE_LIVE, true)] {
            scan_table(&self.tree, table, |records| {
                let mut books = self.keeper.lock();
                for (key, value) in records {
                    let segment = segment_of_key(key).ok_or_else(|| damaged("a key of the segment table"))?;
                    if counted {
                        let live =
                            decode_count(value).ok_or_else(|| damaged(format!("live bytes of {segment}")))?;
                        books.add_live(segment, live);
                    } else {
                        claim(&self.pool, segment)?;
                        books.open_segment(segment);
                    }
                }
                Ok(())
            })?;
        }
        let mut books = self.keeper.lock();
        let all: Vec<SegmentId> = books.segments.keys().copied().collect();
        all.into_iter().for_each(|segment| books.close_segment(segment));
        Ok(())
    }
}

/// Gives all records of a table to `each`, a page at a time.
fn scan_table(
    tree: &Tree,
    table: u8,
    mut each: impl FnMut(&[(Bytes, Bytes)]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut from = vec![table];
    loop {
        let records = tree.scan(&from, &[table + 1], SCAN).map_err(meta_error)?;
        let Some((last, _)) = records.last() else {
            return Ok(());
        };
        from = last.to_vec();
        from.push(0);
        each(&records)?;
    }
}

/// What is to be said where the pool cannot be opened without the metadata that missing devices alone have; `None` if they have none.
pub(crate) fn metadata_is_away(pool: &Pool, meta: &MetaStorage) -> Option<StoreError> {
    let devices = pool.devices();
    let describe = |number: u16| match devices.iter().find(|device| device.number == number) {
        Some(device) => format!("device {number} (last seen as {})", device.path),
        None => format!("device {number}"),
    };
    let on: Vec<String> = meta.devices_out_of_reach().into_iter().map(describe).collect();
    let (on, name) = (on.join(" and "), pool.name());
    (!on.is_empty()).then(|| {
        StoreError::Device(
            format!(
                "metadata that pool '{name}' cannot be opened without lies only on {on}, which is missing; no content was changed: bring it \
                 back and type 'terrace start {name}', or save what is left with 'terrace verify {name} --rebuild NEWPOOL'"
            )
            .into(),
        )
    })
}

/// Claims a segment; one of a missing device cannot be, and needs not.
fn claim(pool: &Pool, segment: SegmentId) -> Result<(), StoreError> {
    match pool.claim(segment) {
        Ok(()) => Ok(()),
        Err(PoolError::NoDevice { .. }) => Ok(()),
        Err(error) => Err(damaged(format!(
            "a segment is used twice or does not exist: {error}"
        ))),
    }
}

/// What keeps the log from going on where it was left is accepted by who wants to go back behind it; it is said then.
fn give_up(cause: StoreError, rewind: bool) -> Result<String, StoreError> {
    if !rewind {
        return Err(cause);
    }
    tracing::warn!(%cause, "the end of the log is given up, as was asked for");
    Ok(cause.to_string())
}

/// Whether a copy is on a device that is there.
fn is_there(pool: &Pool, copies: Copies) -> bool {
    copies.iter().any(|segment| pool.has_segment(segment))
}

/// Where the log goes on there must be a copy of it: else nobody knows how far it went, and nothing can be written. To be asked
/// before the labels say that the pool is used without the devices that are missing.
fn check_log_is_there(pool: &Pool, copies: Copies) -> Result<(), StoreError> {
    let returned = pool.returned();
    // One that is older than the pool though nobody noted it as away may lack what went to it alone: as good as missing.
    let outdated = pool.outdated_by_label();
    let here = |segment: &SegmentId| pool.has_segment(*segment) && !outdated.contains(&segment.device);
    let is_current = |segment: SegmentId| here(&segment) && !returned.contains(&segment.device);
    let devices = pool.devices();
    let info = |number: u16| devices.iter().find(|device| device.number == number);
    // One that was away may lack what one knows that is missing now and was in use meanwhile, or longer, or just as long.
    let until = |copy: SegmentId| match info(copy.device).map(|device| device.presence) {
        Some(Presence::Absent { since }) => since,
        _ => u64::MAX,
    };
    let known = copies.iter().filter(here).map(until).max();
    let missing = copies.iter().filter(|segment| !here(segment));
    let needed: Vec<SegmentId> = missing.filter(|copy| known <= Some(until(*copy))).collect();
    if copies.iter().any(is_current) || needed.is_empty() && known.is_some() {
        return Ok(());
    }
    let describe = |copy: &SegmentId, seen: &str| match info(copy.device) {
        Some(device) => format!("device {} ({seen}{})", copy.device, device.path),
        None => format!("device {}", copy.device),
    };
    let on: Vec<String> = needed
        .iter()
        .map(|copy| describe(copy, "last seen as "))
        .collect();
    let (on, name) = (on.join(" and "), pool.name());
    let state = match copies.iter().any(|copy| outdated.contains(&copy.device)) {
        true => "missing or out of date",
        false => "missing",
    };
    let lies = match copies.iter().find(here) {
        Some(copy) => format!(
            "may lie only on {on}, which is {state}: {}, which has a copy of it, dropped out before the pool was last in use",
            describe(&copy, "")
        ),
        None => format!("lies only on {on}, which is {state}"),
    };
    Err(StoreError::Device(
        format!(
            "the end of the log of pool '{name}' {lies}; nothing was changed: bring it back and type 'terrace start {name}'; or give up for \
             good what came after the last state that the others have with 'terrace start {name} --rewind', or save what is left with \
             'terrace verify {name} --rebuild NEWPOOL'"
        )
        .into(),
    ))
}

/// Roots are written to some devices only: one of these may be what is missing.
fn without_a_root(pool: &Pool) -> StoreError {
    let devices = pool.devices();
    let missing = devices
        .iter()
        .filter(|device| device.state == DeviceState::Missing);
    let on: Vec<String> = missing
        .map(|device| format!("device {} (last seen as {})", device.number, device.path))
        .collect();
    if on.is_empty() {
        return damaged("the pool has no root record: it was never finished, or its roots were erased");
    }
    let (on, name) = (on.join(", "), pool.name());
    StoreError::Device(
        format!(
            "no device that is there has a root record of pool '{name}'; missing: {on}; nothing was changed: bring one of these back that \
             has it (the fastest four have) and type 'terrace start {name}', or save what is left with 'terrace verify {name} \
             --rebuild NEWPOOL'"
        )
        .into(),
    )
}

pub(crate) fn read_root(pool: &Arc<Pool>, payload: &[u8]) -> Result<Root, StoreError> {
    match version_of(payload).map(u32::from) {
        Some(version) if version > version::FORMAT_NEWEST.into() => {
            let known = version::FORMAT_NEWEST.into();
            return Err(StoreError::Newer { version, known });
        }
        // No version is 0: that is damage.
        Some(version @ 1..) if version < version::FORMAT_OLDEST.into() => {
            let oldest = version::FORMAT_OLDEST.into();
            return Err(StoreError::Older { version, oldest });
        }
        _ => {}
    }
    decode_root(pool.clone(), payload).map_err(|error| damaged(format!("root record: {error}")))
}

/// Entries that only devices have that were away are not taken for anything later.
fn forget_given_up(pool: &Pool, start: &LogPosition, sequence: u64) -> Result<(), StoreError> {
    let devices = pool.returned();
    if devices.is_empty() {
        return Ok(());
    }
    // Where their own roots start, and where the log starts that counts: one that had no root may have some of that.
    let roots = pool.past_roots();
    // What is no root leads nowhere.
    let past = roots.iter().filter_map(|(_, payload)| position_of(payload).ok());
    for position in past.chain([*start]) {
        let erased = terrace_log::erase_given_up(pool, &position, sequence, |of| devices.contains(&of));
        let erased = erased.map_err(pool_error)?;
        tracing::info!(
            ?devices,
            erased,
            "entries of the log that were given up without them"
        );
    }
    Ok(())
}

/// What a replay came to.
struct Replayed {
    /// The place behind the last entry that was accepted.
    tail: LogPosition,
    /// The segments up to it.
    segments: Vec<Copies>,
    /// Why the log is broken there, if it is: what could be accepted before that was applied.
    broken: Option<StoreError>,
    /// Knows which entries may lack in one copy.
    scanner: Scanner,
    /// Chunks of which a copy is not there, or of which there are fewer than there should be.
    lacking: BTreeSet<ChunkId>,
    /// Up to here the log itself says that it was durable.
    confirmed: u64,
}

/// Replays the log from `start`.
fn replay_log(
    pool: &Arc<Pool>,
    crew: &Crew,
    start: LogPosition,
    replay: &mut Replay,
) -> Result<Replayed, StoreError> {
    let mut broken = None;
    let mut scanner = Scanner::new(pool.clone(), start).map_err(log_error)?;
    let mut tail = start;
    let mut confirmed = replay.tree.flushed_sequence();
    let mut unsure: VecDeque<(Scanned, Vec<LoggedBatch>)> = VecDeque::new();
    let mut shortage = Shortage::new(pool);
    loop {
        let mut scanned = match scanner.next_payload() {
            Ok(Some(scanned)) => scanned,
            Ok(None) => break,
            Err(error) => {
                broken = Some(log_error(error));
                break;
            }
        };
        let payload = std::mem::take(&mut scanned.payload);
        let batches = match decode_batches(&payload) {
            Ok(batches) => batches,
            Err(error) => {
                broken = Some(damaged(format!("log entry: {error}")));
                break;
            }
        };
        confirmed = confirmed.max(scanned.flushed);
        unsure.push_back((scanned, batches));
        while unsure
            .front()
            .is_some_and(|(scanned, _)| scanned.last <= confirmed)
        {
            let Some((scanned, batches)) = unsure.pop_front() else {
                break;
            };
            shortage.note(&batches);
            replay.apply(batches)?;
            tail = scanned.after;
        }
    }
    let accepted = tail::accepted(pool, crew, unsure.iter());
    if accepted.entries < unsure.len() {
        tracing::info!(
            dropped = unsure.len() - accepted.entries,
            "the log ended in entries that were never durable"
        );
    }
    for (scanned, batches) in unsure.drain(..).take(accepted.entries) {
        shortage.note(&batches);
        replay.apply(batches)?;
        tail = scanned.after;
    }
    let mut lacking = shortage.chunks();
    lacking.extend(accepted.lacking);
    let mut segments = scanner.segments().to_vec();
    if let Some(last) = segments.iter().position(|copies| *copies == tail.segment) {
        segments.truncate(last + 1);
    }
    Ok(Replayed {
        tail,
        segments,
        broken,
        scanner,
        lacking,
        confirmed,
    })
}

impl ChunkStore {
    /// The next chunk id, for a root.
    pub(crate) fn next_chunk_id(&self) -> u64 {
        self.next_chunk.load(Ordering::Acquire)
    }
}
