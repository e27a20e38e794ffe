//! Making and opening a store.
//!
//! Invariants: opening reads the root, the log behind it, and the table of segments, never the data; an entry of the log
//! that is not known to have been durable is accepted only if the data of every chunk that it leaves behind verifies
//! (with all entries before it); what was accepted is flushed, and written to the copy of the log that lacks it, before
//! anything is built on it; segments that were open are never appended to again.

use super::{
    refusals::{check_log_is_there, give_up, is_there, metadata_is_away, without_a_root},
    replay::{Replay, Replayed, replay_log, scan_table},
    root_reader::{read_root, tree_options},
};
use crate::errors::{damaged, log_error};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::{Condvar, Mutex};
use terrace_codec::Writer;
use terrace_log::{Copies, Log, LogPosition};
use terrace_meta::{Tree, decode_count};
use terrace_pool::{Pool, PoolError, SegmentId};
use terrace_store::{ChunkId, StoreError};

use crate::{
    Options,
    buffers::OpenSegments,
    catalog::CommitState,
    durability::GroupState,
    encoding::{
        Counters, Format, TABLE_LIVE, TABLE_SEGMENTS,
        encode_root, position_of, segment_of_key, version,
    },
    errors::{meta_error, pool_error},
    gc::Maintenance,
    ledger::BookKeeper,
    metadata::MetaStorage,
    space::Need,
    store::ChunkStore,
    worker_pool::Crew,
};

/// How far sequences jump where the end of the log was given up: over all that it can have held.
const GIVEN_UP_SEQUENCES: u64 = 1 << 40;

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

impl ChunkStore {
    /// The next chunk id, for a root.
    pub(crate) fn next_chunk_id(&self) -> u64 {
        self.next_chunk.load(Ordering::Acquire)
    }
}
