//! Making and opening a store.
//!
//! Invariants: opening reads the root, the log behind it, and the table of segments, never the data; an entry of the log
//! that is not known to have been durable is accepted only if the data of every chunk that it leaves behind verifies
//! (with all entries before it); what was accepted is flushed, and written to the copy of the log that lacks it, before
//! anything is built on it; segments that were open are never appended to again.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use terrace_log::{Copies, Log, LogPosition, Scanner};
use terrace_meta::{Tree, decode_count};
use terrace_pool::{Pool, PoolError, SegmentId};
use terrace_store::{ChunkId, StoreError};

use super::{
    refusals::{check_log_is_there, give_up, is_there, without_a_root},
    replay::{Replay, Replayed, replay_log, scan_table},
};
use crate::{
    Handles, Options,
    buffers::OpenSegments,
    catalog::CommitState,
    durability::EndOfLog,
    encoding::{Counters, Format, TABLE_LIVE, TABLE_SEGMENTS, segment_of_key, version},
    errors::{damaged, log_error, meta_error, pool_error},
    gc::Collector,
    metadata::{MetaStorage, encode_root, metadata_is_away, position_of, read_root, tree_options},
    worker_pool::Crew,
};

/// How far sequences jump where the end of the log was given up: over all that it can have held.
const GIVEN_UP_SEQUENCES: u64 = 1 << 40;

/// Where a store begins, or goes on.
pub(crate) struct Start {
    /// The newest batch.
    pub(crate) sequence: u64,
    pub(crate) commit: CommitState,
    /// The number of the next chunk.
    pub(crate) next_chunk: u64,
    pub(crate) format: Format,
    pub(crate) end: EndOfLog,
}

/// What the components of a store work on, once its tree and log are there.
fn handles(
    pool: Arc<Pool>,
    options: Options,
    crew: Arc<Crew>,
    meta: Arc<MetaStorage>,
    tree: Tree,
    log: Log,
) -> Handles {
    Handles {
        open_segments: Arc::new(OpenSegments::new(pool.id())),
        ledger: Arc::default(),
        tree: Arc::new(tree),
        log: Arc::new(log),
        pool,
        options,
        meta,
        crew,
    }
}

/// What an empty store on a new pool is made of; its first root is written.
pub(crate) fn create(pool: Arc<Pool>, options: Options) -> Result<(Handles, Start), StoreError> {
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
    let crew = Arc::new(Crew::new(options.threads));
    let start = Start {
        sequence: 0,
        commit: CommitState::new(0, counters, VecDeque::from([(0, counters)])),
        next_chunk: 1,
        format: Format::of(version),
        end: EndOfLog::default(),
    };
    Ok((handles(pool, options, crew, meta, tree, log), start))
}

/// What the store of a pool is made of: newest root, then replay of the log. Takes time in proportion to the log and the number of segments, not to the
/// data.
pub(crate) fn open(pool: Arc<Pool>, options: Options) -> Result<(Handles, Start, Rest), StoreError> {
    let payload = pool.read_root().map_err(pool_error)?;
    let payload = payload.ok_or_else(|| without_a_root(&pool))?;
    let root = read_root(&pool, &payload)?;
    let meta = Arc::new(root.meta);
    let tree =
        Tree::open(meta.clone(), Some(&root.manifest), tree_options(&options, &pool)).map_err(meta_error)?;
    meta.count(&tree.extents()).map_err(damaged)?;
    let mut replay = Replay {
        tree,
        counters: root.counters,
        next_chunk: root.next_chunk,
        sequence: root.position.sequence,
    };
    let mark = (root.position.sequence, root.counters);
    let crew = Arc::new(Crew::new(options.threads));
    let mut replayed = replay_log(&pool, &crew, root.position, &mut replay)?;
    if !meta.devices_out_of_reach().is_empty() {
        // Before the labels say that the pool is used without what is missing.
        for table in [TABLE_SEGMENTS, TABLE_LIVE] {
            scan_table(&replay.tree, table, |_| Ok(()))
                .map_err(|error| metadata_is_away(&pool, &meta).unwrap_or(error))?;
        }
    }
    let given_up = given_up(&pool, &mut replayed, &replay, options.rewind)?;
    take_over(&pool, &meta, &root.position, &mut replayed, replay.sequence)?;
    let Replayed {
        tail: position,
        segments,
        scanner,
        lacking,
        confirmed,
        ..
    } = replayed;
    let log = Log::resume(pool.clone(), root.position, position, segments, options.nonce);
    let goes_on = given_up.is_some() && !pool.is_read_only();
    if goes_on {
        replay.sequence += GIVEN_UP_SEQUENCES;
    }
    let sequence = replay.sequence;
    let end = EndOfLog {
        without: scanner.end_without(),
        given_up,
    };
    if let Some(end) = end.without {
        tracing::warn!(
            device = end.device,
            "what was acknowledged last may be lost with the device that is not there"
        );
    }
    let start = Start {
        sequence,
        commit: CommitState::new(
            sequence,
            replay.counters,
            VecDeque::from([mark, (sequence, replay.counters)]),
        ),
        next_chunk: replay.next_chunk,
        format: Format::of(root.version),
        end,
    };
    let handles = handles(pool, options, crew, meta, replay.tree, log);
    claim_data(&handles)?;
    let rest = Rest {
        goes_on,
        sequence,
        lacking,
        confirmed,
        scanner,
    };
    Ok((handles, start, rest))
}

/// What is left to be done of an opening once the store stands.
pub(crate) struct Rest {
    /// The end of the log was given up, and the log goes on elsewhere.
    goes_on: bool,
    sequence: u64,
    lacking: BTreeSet<ChunkId>,
    confirmed: u64,
    scanner: Scanner,
}

impl Rest {
    /// Does it.
    pub(crate) fn finish(self, handles: &Handles, collector: &Collector) -> Result<(), StoreError> {
        collector.inherit_candidates();
        if self.goes_on {
            // Where nothing lies, which is known only now. Nothing is appended there before a root says that the log goes on there.
            handles.log.begin_elsewhere(self.sequence).map_err(log_error)?;
        }
        handles.log.note_gaps(self.scanner.left_behind());
        if self.goes_on {
            collector.checkpoint()?;
            collector.complete_chunks(self.lacking)?;
        } else if !handles.pool.is_read_only() {
            // As long as a copy is lacking the tail is looked at again by the next opening.
            let flushed = match self.lacking.is_empty() {
                true => handles.log.position().sequence,
                false => self.confirmed,
            };
            go_on_from(handles, flushed, self.scanner.end_without().is_some())?;
            if !self.lacking.is_empty() {
                collector.complete_chunks(self.lacking)?;
            }
        }
        Ok(())
    }
}

/// Why the end of the log is given up, if it is.
///
/// # Errors
/// What keeps the log from going on where it was left, unless the way back was asked for.
fn given_up(
    pool: &Pool,
    replayed: &mut Replayed,
    replay: &Replay,
    rewind: bool,
) -> Result<Option<String>, StoreError> {
    let mut given_up = None;
    if let Some(cause) = replayed.broken.take() {
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
        let position = &replayed.tail;
        if position.offset < pool.segment_bytes() || position.next.is_empty() {
            check_log_is_there(pool, position.segment)
                .or_else(|cause| give_up(cause, rewind).map(|cause| given_up = Some(cause)))?;
        }
        if replayed.scanner.may_go_on_in_next(position) {
            check_log_is_there(pool, position.next)
                .or_else(|cause| give_up(cause, rewind).map(|cause| given_up = Some(cause)))?;
        }
    }
    Ok(given_up)
}

/// Makes what was accepted durable, claims the segments of metadata and log, and takes back devices that have both.
fn take_over(
    pool: &Pool,
    meta: &MetaStorage,
    start: &LogPosition,
    replayed: &mut Replayed,
    sequence: u64,
) -> Result<(), StoreError> {
    // What was accepted may still be in a device's cache when only the process died.
    if !pool.is_read_only() {
        pool.flush_all().map_err(pool_error)?;
        forget_given_up(pool, start, sequence)?;
        pool.settle_roots().map_err(pool_error)?;
    }
    for segment in meta.segments() {
        claim(pool, segment)?;
    }
    let next = replayed.tail.next;
    for segment in replayed.segments.iter().chain([&next]).flat_map(Copies::iter) {
        claim(pool, segment)?;
    }
    if !pool.is_read_only() {
        let scanner = &mut replayed.scanner;
        let entries = scanner.complete_copies(sequence);
        tracing::debug!(entries, "written to the copy of the log that lacked them");
        // With root and log they can stand for the others; before that, what they show alone is of the past.
        let lacks = |device: &u16| scanner.left_behind().iter().any(|copy| copy.device == *device);
        let mut returned = pool.returned();
        returned.retain(|device| !lacks(device));
        pool.take_back(&returned).map_err(pool_error)?;
    }
    Ok(())
}

/// Goes on with the log where it was left.
fn go_on_from(handles: &Handles, flushed: u64, end_may_be_gone: bool) -> Result<(), StoreError> {
    let Handles { pool, log, .. } = handles;
    log.fence(flushed).map_err(log_error)?;
    if end_may_be_gone {
        leave_what_is_not_there(handles, flushed)?;
    }
    let next = log.position().next;
    if !next.is_empty() && !is_there(pool, next) && log.leave_segments().is_ok() {
        log.fence(flushed).map_err(log_error)?;
    }
    Ok(())
}

/// The copy of the log that is not there has entries of a past that was given up. Should its device come back, they must
/// not lie where the log goes on: what they say was durable would look like a gap. Near the end of a segment the log
/// goes on in the next one first. With no room for new segments it stays.
fn leave_what_is_not_there(handles: &Handles, flushed: u64) -> Result<(), StoreError> {
    let Handles { pool, log, .. } = handles;
    for _ in 0..3 {
        let here = log.position().segment;
        if here.iter().all(|segment| pool.has_device(segment.device)) || log.leave_segments().is_err() {
            break;
        }
        // One names the new segments, the next one is the first in them.
        log.fence(flushed).map_err(log_error)?;
        log.fence(flushed).map_err(log_error)?;
    }
    Ok(())
}

/// What a store as a root says is made of, for reading alone: no segment is claimed, and a log that is broken, or behind the tables, is read as far
/// as it goes. Returns whether it is broken.
pub(crate) fn open_for_salvage(
    pool: Arc<Pool>,
    options: Options,
    payload: &[u8],
) -> Result<(Handles, Start, bool), StoreError> {
    let root = read_root(&pool, payload)?;
    let meta = Arc::new(root.meta);
    let tree =
        Tree::open(meta.clone(), Some(&root.manifest), tree_options(&options, &pool)).map_err(meta_error)?;
    let mut replay = Replay {
        tree,
        counters: root.counters,
        next_chunk: root.next_chunk,
        sequence: root.position.sequence,
    };
    let crew = Arc::new(Crew::new(options.threads));
    let replayed = replay_log(&pool, &crew, root.position, &mut replay)?;
    let broken = replayed.broken.is_some();
    let (position, segments) = (replayed.tail, replayed.segments);
    let log = Log::resume(pool.clone(), root.position, position, segments, options.nonce);
    let start = Start {
        sequence: replay.sequence,
        commit: CommitState::new(replay.sequence, replay.counters, VecDeque::new()),
        next_chunk: replay.next_chunk,
        format: Format::of(version::FORMAT_NEWEST),
        end: EndOfLog::default(),
    };
    Ok((
        handles(pool, options, crew, meta, replay.tree, log),
        start,
        broken,
    ))
}

/// Claims the data segments of the segment table and counts what is live in them.
fn claim_data(handles: &Handles) -> Result<(), StoreError> {
    let Handles {
        pool, tree, ledger, ..
    } = handles;
    for (table, counted) in [(TABLE_SEGMENTS, false), (TABLE_LIVE, true)] {
        scan_table(tree, table, |records| {
            let mut ledger = ledger.lock();
            for (key, value) in records {
                let segment = segment_of_key(key).ok_or_else(|| damaged("a key of the segment table"))?;
                if counted {
                    let live =
                        decode_count(value).ok_or_else(|| damaged(format!("live bytes of {segment}")))?;
                    ledger.add_live(segment, live);
                } else {
                    claim(pool, segment)?;
                    ledger.open_segment(segment);
                }
            }
            Ok(())
        })?;
    }
    let mut ledger = ledger.lock();
    let all: Vec<SegmentId> = ledger.segments.keys().copied().collect();
    all.into_iter().for_each(|segment| ledger.close_segment(segment));
    Ok(())
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
