//! `Log`: where the log stands, which segments hold it, and in which it goes on.
//!
//! Invariants: the position is read without waiting for I/O; the segments in which the log goes on are chosen before the entry
//! that names them is written (on a full pool there may be none for some entries, and the log ends with its segment if that
//! lasts). Locks: `appending`, `catching`, `state`, in this order; the first two are held across I/O.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use terrace_device::AlignedBuffer;
use terrace_pool::{Pool, PoolError, Request, SegmentId, SegmentKind, SegmentRange, TierChoice};
use terrace_sync::{Mutex, rank};

use super::lagging_replica::Due;
use crate::{Copies, LogError, LogPosition};

/// An entry is split rather than moved to the next segment when at least this much is left.
pub(crate) const SPLIT_BYTES: usize = 64 * 1024;

pub(super) struct State {
    pub(super) position: LogPosition,
    /// The copies of the current segment that still take writes.
    pub(super) working: Copies,
    /// Segments that hold the log, oldest first, up to the one of `position`.
    pub(super) segments: VecDeque<Copies>,
    /// For each append since the last release: the place behind it, in order.
    pub(super) marks: VecDeque<LogPosition>,
    /// Bytes appended since the oldest mark.
    pub(super) bytes: u64,
    /// Whether what was written names the next segments of `position`.
    pub(super) named: bool,
    /// The log is to leave these devices: what it goes on in must not lie there.
    pub(super) leaving: Leaving,
    /// Segments that were named as the next ones and were not used after all.
    pub(super) abandoned: Vec<Copies>,
    /// What slower copies do not have yet, in order.
    pub(super) due: VecDeque<Due>,
    pub(super) due_bytes: u64,
    /// Copies that lack entries, since a write of one failed.
    pub(super) gaps: BTreeSet<SegmentId>,
}

impl State {
    /// Of what is durable, the part that every copy has.
    fn everywhere(&self, durable: u64) -> u64 {
        self.due.front().map_or(durable, |due| durable.min(due.first - 1))
    }
}

/// How far the log is in leaving its segments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    /// The next entry names new next segments.
    Name,
    /// The next entry goes there.
    Go,
}

/// The log of a pool.
pub struct Log {
    pub(super) pool: Arc<Pool>,
    pub(super) nonce: u64,
    pub(super) state: Mutex<State, rank::Leaf>,
    /// Held during an append, with the buffer for its entries.
    pub(super) appending: Mutex<AlignedBuffer, rank::log::Appending>,
    /// Held by whoever writes to lagging replicas.
    pub(super) catching: Mutex<(), rank::log::CatchingUp>,
}

impl Log {
    /// Starts an empty log whose first sequence is 1.
    pub fn create(pool: Arc<Pool>, nonce: u64) -> Result<Self, LogError> {
        let segment = allocate(&pool)?;
        let next = allocate(&pool).inspect_err(|_| release(&pool, segment))?;
        let position = LogPosition {
            segment,
            offset: 0,
            next,
            previous: [0; 32],
            sequence: 0,
        };
        Ok(Self::resume(pool, position, position, vec![segment], nonce))
    }

    /// Goes on at `position`, which a [`Scanner`](crate::Scanner) found from `start`; `segments` are those from the
    /// start of the replay to that of the position (the caller claims them and the `next` of the position).
    pub fn resume(
        pool: Arc<Pool>,
        start: LogPosition,
        position: LogPosition,
        segments: Vec<Copies>,
        nonce: u64,
    ) -> Self {
        // What was replayed counts: or a pool that is killed again and again would never shorten it.
        let bytes = bytes_between(&pool, &start, position.offset, segments.len());
        let state = State {
            position,
            working: position.segment,
            segments: segments.into(),
            marks: VecDeque::from([start, position]),
            bytes,
            named: true,
            leaving: Leaving::No,
            abandoned: Vec::new(),
            due: VecDeque::new(),
            due_bytes: 0,
            gaps: BTreeSet::new(),
        };
        let appending = Mutex::new(AlignedBuffer::with_capacity(256 * 1024));
        Self {
            pool,
            nonce,
            state: Mutex::new(state),
            appending,
            catching: Mutex::new(()),
        }
    }

    pub(super) fn due(&self) -> Vec<Due> {
        self.state.lock().due.iter().cloned().collect()
    }

    /// Bytes that slower copies do not have yet.
    pub fn due_bytes(&self) -> u64 {
        self.state.lock().due_bytes
    }

    /// Of what is `durable`, the part that is so in every copy: what an opening that has lost any one device may go on
    /// from is not older.
    pub fn everywhere(&self, durable: u64) -> u64 {
        self.state.lock().everywhere(durable)
    }

    /// The oldest `count` that were due are where they belong, but for copies that failed: they are given up.
    pub(super) fn caught_up(&self, count: usize, failed: &BTreeSet<SegmentId>) -> bool {
        // First: nothing may count as being in every copy in between.
        self.note_gaps(failed);
        let mut state = self.state.lock();
        state.due.drain(..count);
        state.due.retain(|due| !failed.contains(&due.segment));
        state.due_bytes = state.due.iter().map(|due| due.bytes.len() as u64).sum();
        for copy in &mut state.working.0 {
            *copy = copy.filter(|segment| !failed.contains(segment));
        }
        failed.is_empty()
    }

    /// Copies of this log were found to lack entries, and could not be completed: their devices cannot stand for the others.
    pub fn note_gaps(&self, copies: &BTreeSet<SegmentId>) {
        self.state.lock().gaps.extend(copies);
        // Afterwards: who forgets a note because a copy is whole looks for gaps once more.
        copies.iter().for_each(|copy| self.pool.note_lacking(copy.device));
    }

    /// Whether a copy of the log on this device lacks entries of what the log still holds. Once it goes on in new segments, and a
    /// root starts there, that is over.
    pub fn lacks(&self, device: u16) -> bool {
        self.state.lock().gaps.iter().any(|copy| copy.device == device)
    }

    /// Writes an entry without a payload, and flushes it: after a replay it takes the place of whatever lies behind
    /// the tail, so that no entry that was given up there can ever follow. It says that everything up to `flushed` is durable.
    pub fn fence(&self, flushed: u64) -> Result<(), LogError> {
        let sequence = self.position().sequence;
        let appended = self.append(sequence + 1, sequence, flushed, &[])?;
        for group in appended.groups {
            let results: Vec<_> = group.iter().map(|device| self.pool.flush(&[*device])).collect();
            if let Some(error) = results.iter().find_map(|result| result.clone().err())
                && results.iter().all(Result::is_err)
            {
                return Err(LogError::Write(error));
            }
        }
        Ok(())
    }

    /// The place behind the last entry.
    pub fn position(&self) -> LogPosition {
        self.state.lock().position
    }

    /// The newest place at or before `sequence`: a replay from there meets everything after it.
    pub fn position_at(&self, sequence: u64) -> LogPosition {
        let state = self.state.lock();
        let behind = state.marks.partition_point(|mark| mark.sequence <= sequence);
        state
            .marks
            .get(behind.saturating_sub(1))
            .copied()
            .unwrap_or(state.position)
    }

    /// What it takes for certain, however full the pool gets, bytes: of its segment, and of the next one if that is chosen.
    pub fn room(&self) -> u64 {
        let state = self.state.lock();
        let offset = u64::from(state.position.offset);
        let here = match state.leaving {
            Leaving::No => self.room_of_segment().saturating_sub(offset),
            _ => 0,
        };
        let there = match state.position.next.is_empty() {
            true => 0,
            false => self.room_of_segment(),
        };
        here + there
    }

    /// What it takes in one segment for certain, bytes: the end may be kept, or left when an entry does not fit.
    pub fn room_of_segment(&self) -> u64 {
        (self.pool.segment_bytes() as usize).saturating_sub(SPLIT_BYTES) as u64
    }

    /// Chooses the next segment, if there is none yet and the pool has one by now.
    ///
    /// # Errors
    /// What the pool says but that there is none.
    pub fn seek_next(&self) -> Result<(), LogError> {
        // An append chooses one, too.
        let _appending = self.appending.lock();
        self.ready().map(|_| ())
    }

    /// Bytes appended since the oldest place that is still needed, one copy.
    pub fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// All segments that the log holds, the next ones and those it no longer needs but has not given back included.
    pub fn segments(&self) -> Vec<SegmentId> {
        let state = self.state.lock();
        state
            .segments
            .iter()
            .chain([&state.position.next])
            .chain(&state.abandoned)
            .flat_map(Copies::iter)
            .collect()
    }

    /// Whether every segment that the log holds has a copy on another device.
    pub fn is_mirrored(&self) -> bool {
        let state = self.state.lock();
        let mut held = state.segments.iter().chain([&state.position.next]);
        held.all(|copies| copies.iter().count() == 2)
    }

    /// Whether what is appended goes there, now or in the next segments.
    pub fn goes_to(&self, range: SegmentRange) -> bool {
        let position = self.position();
        let mut copies = position.segment.iter().chain(position.next.iter());
        copies.any(|segment| range.contains(segment))
    }

    /// Forgets everything before `position` (a durable root starts there); returns the segments to be released.
    pub fn release_until(&self, position: &LogPosition) -> Vec<SegmentId> {
        let mut state = self.state.lock();
        while state.marks.len() > 1 && state.marks[0].sequence < position.sequence {
            state.marks.pop_front();
        }
        let mut freed: Vec<SegmentId> = Vec::new();
        if state.leaving == Leaving::No {
            freed.extend(std::mem::take(&mut state.abandoned).iter().flat_map(Copies::iter));
        }
        while state.segments.len() > 1 && state.segments[0] != position.segment {
            freed.extend(state.segments.pop_front().iter().flat_map(Copies::iter));
        }
        // Entries appended while the root was made are replayed with it, so they count towards the next one.
        state.bytes = bytes_between(&self.pool, position, state.position.offset, state.segments.len());
        freed.iter().for_each(|copy| {
            state.gaps.remove(copy);
        });
        freed
    }

    /// Makes the log go on in new segments, after the next entry (the pool must have been told which devices to spare).
    /// The old ones come back from [`release_until`](Self::release_until) when a root starts behind them.
    pub fn leave_segments(&self) -> Result<(), LogError> {
        // Between two appends only: the entry that names the new segments must be the next one.
        let _appending = self.appending.lock();
        {
            let mut state = self.state.lock();
            let room = (self.pool.segment_bytes() as usize).saturating_sub(state.position.offset as usize);
            if room < SPLIT_BYTES {
                // The entry that names others might not fit here: go on in the next segments first.
                if state.named {
                    state.leaving = Leaving::Go;
                }
                return Ok(());
            }
        }
        let next = allocate(&self.pool)?;
        let mut state = self.state.lock();
        let old = std::mem::replace(&mut state.position.next, next);
        state.abandoned.push(old);
        state.named = false;
        state.leaving = Leaving::Name;
        Ok(())
    }

    /// Goes on in new segments at once, without an entry that names them: for who gives up what lay behind the position, on devices
    /// that are not there, or damaged. Only a root says so: one must be durable that starts there before anything is appended. The old
    /// segments come back from [`release_until`](Self::release_until) then. Sequences go on at `sequence`, above all that can have been
    /// given up: entries that lie about would look like proof that something later was durable.
    ///
    /// # Errors
    /// `NoSpace` if there is no segment.
    pub fn begin_elsewhere(&self, sequence: u64) -> Result<(), LogError> {
        let _appending = self.appending.lock();
        let segment = allocate(&self.pool)?;
        let next = allocate_if_any(&self.pool)?;
        let mut state = self.state.lock();
        let abandoned = std::mem::replace(&mut state.position.next, next);
        // Entries that follow the position elsewhere follow nothing here.
        let mut previous = blake3::Hasher::new();
        previous
            .update(&state.position.previous)
            .update(&self.nonce.to_le_bytes());
        state.position.previous = *previous.finalize().as_bytes();
        state.position.sequence = sequence;
        state.position.segment = segment;
        state.position.offset = 0;
        state.abandoned.push(abandoned);
        state.segments.push_back(segment);
        state.working = segment;
        state.named = true;
        state.leaving = Leaving::No;
        state.marks = VecDeque::from([state.position]);
        state.due.clear();
        state.due_bytes = 0;
        state.gaps.clear();
        Ok(())
    }

    /// Position and working copies, with a next segment chosen if there can be one.
    pub(super) fn ready(&self) -> Result<(LogPosition, Copies), LogError> {
        let (position, working) = {
            let state = self.state.lock();
            (state.position, state.working)
        };
        if !position.next.is_empty() {
            return Ok((position, working));
        }
        let next = allocate_if_any(&self.pool)?;
        let mut state = self.state.lock();
        state.position.next = next;
        state.named = next.is_empty();
        Ok((state.position, working))
    }

    /// Goes on in the next segment; only if an entry (or a root) names it, or no replay would ever find it. It need not
    /// have a next one itself yet: a full pool may have room again before it ends.
    pub(super) fn advance(&self) -> Result<(), LogError> {
        {
            let state = self.state.lock();
            if !state.named {
                return Err(LogError::Unlinked);
            }
            if state.position.next.is_empty() {
                drop(state);
                let next = allocate(&self.pool)?;
                // To be named first.
                let mut state = self.state.lock();
                state.position.next = next;
                state.named = false;
                return Ok(());
            }
        }
        let next = allocate_if_any(&self.pool)?;
        let mut state = self.state.lock();
        state.named = next.is_empty();
        let here = state.position.next;
        state.segments.push_back(here);
        state.leaving = Leaving::No;
        state.working = here;
        state.position.segment = here;
        state.position.offset = 0;
        state.position.next = next;
        Ok(())
    }
}

/// What lies between `start` in the first of so many segments and `end` in the last, bytes of one copy; ends of segments that were left
/// count too.
fn bytes_between(pool: &Pool, start: &LogPosition, end: u32, segments: usize) -> u64 {
    let passed = segments.saturating_sub(1) as u64 * u64::from(pool.segment_bytes());
    (passed + u64::from(end)).saturating_sub(u64::from(start.offset))
}

fn release(pool: &Pool, copies: Copies) {
    for segment in copies.iter() {
        if let Err(error) = pool.release(segment) {
            tracing::error!(%segment, %error, "a log segment could not be released");
        }
    }
}

/// Takes a segment on the fastest tier, and one on another device if there is another.
fn allocate(pool: &Pool) -> Result<Copies, LogError> {
    let request = |avoid| Request {
        choice: TierChoice::Fastest,
        kind: SegmentKind::Log,
        avoid,
        garbage: &[],
        leave_free: 0,
    };
    let first = pool.allocate(&request(&[])).map_err(no_space)?;
    let second = pool.allocate(&request(&[first.device])).ok();
    Ok(Copies([Some(first), second]))
}

/// As [`allocate`]; none if the pool has no room for any.
fn allocate_if_any(pool: &Pool) -> Result<Copies, LogError> {
    match allocate(pool) {
        Err(LogError::NoSpace(error)) => {
            tracing::warn!(%error, "the log has no next segment for now");
            Ok(Copies::default())
        }
        other => other,
    }
}

fn no_space(error: PoolError) -> LogError {
    if error.is_no_space() {
        LogError::NoSpace(error)
    } else {
        LogError::Write(error)
    }
}
