//! `Log`: appends entries.
//!
//! Invariants: one append at a time, in order of sequence; the position is read without waiting for I/O; the segments
//! in which the log goes on are chosen before the entry that names them is written (on a full pool there may be none
//! for some entries, and the log ends with its segment if that lasts); an entry is appended if at least
//! one copy of it was written, and a copy that failed is not used again until the next segment. A copy on a slower tier is
//! written behind the others (see `behind`) where the tier of the faster one keeps content once only: each entry says how
//! far that copy was behind.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use terrace_device::AlignedBuffer;
use terrace_pool::{
    Pool, PoolError, Request, SegmentId, SegmentKind, SegmentRange, SegmentWrite, TierChoice,
};

use crate::{Copies, EntryHeader, HEADER_BYTES, LogError, LogPosition, behind::Due};

const BLOCK: usize = 4096;
/// An entry is split rather than moved to the next segment when at least this much is left.
pub(crate) const SPLIT_BYTES: usize = 64 * 1024;

/// What an append did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// For each entry written the devices that hold it: all are to be flushed, and of each group one that does is
    /// enough.
    pub groups: Vec<Vec<u16>>,
    /// Devices on which a copy could not be written.
    pub failed: Vec<u16>,
    /// Bytes written, one copy.
    pub bytes: u64,
    /// For each entry the slower device that gets it later.
    pub behind: Vec<Option<u16>>,
}

impl Appended {
    /// Adds what a later append did.
    pub fn join(&mut self, later: Self) {
        self.groups.extend(later.groups);
        self.failed.extend(later.failed);
        self.bytes += later.bytes;
        self.behind.extend(later.behind);
    }
}

struct State {
    position: LogPosition,
    /// The copies of the current segment that still take writes.
    working: Copies,
    /// Segments that hold the log, oldest first, up to the one of `position`.
    segments: VecDeque<Copies>,
    /// For each append since the last release: the place behind it, in order.
    marks: VecDeque<LogPosition>,
    /// Bytes appended since the oldest mark.
    bytes: u64,
    /// Whether what was written names the next segments of `position`.
    named: bool,
    /// The log is to leave these devices: what it goes on in must not lie there.
    leaving: Leaving,
    /// Segments that were named as the next ones and were not used after all.
    abandoned: Vec<Copies>,
    /// What slower copies do not have yet, in order.
    due: VecDeque<Due>,
    due_bytes: u64,
    /// Copies that lack entries, since a write of one failed.
    gaps: BTreeSet<SegmentId>,
}

impl State {
    /// Of what is durable, the part that every copy has.
    fn everywhere(&self, durable: u64) -> u64 {
        self.due.front().map_or(durable, |due| durable.min(due.first - 1))
    }
}

/// How far the log is in leaving its segments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    /// The next entry names new next segments.
    Name,
    /// The next entry goes there.
    Go,
}

/// The log of a pool.
pub struct Log {
    pub(crate) pool: Arc<Pool>,
    nonce: u64,
    state: Mutex<State>,
    appending: Mutex<AlignedBuffer>,
    /// Held by whoever writes to slower copies; taken after `appending` and before `state`.
    pub(crate) catching: Mutex<()>,
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

    /// Appends `payload`, which holds the sequences `first..=last`, and says that everything up to `flushed` is
    /// durable. Durable itself when one of the returned devices was flushed.
    pub fn append(&self, first: u64, last: u64, flushed: u64, payload: &[u8]) -> Result<Appended, LogError> {
        self.append_beside(first, last, flushed, payload, &mut [])
    }

    /// As [`append`](Self::append); `beside` is written at the same time as the entry, in no order. What became of
    /// it stands there: after an error it may not have been tried.
    pub fn append_beside(
        &self,
        first: u64,
        last: u64,
        flushed: u64,
        payload: &[u8],
        beside: &mut [SegmentWrite<'_>],
    ) -> Result<Appended, LogError> {
        let mut beside = Some(beside);
        let mut buffer = self.appending.lock();
        let mut appended = Appended {
            groups: Vec::new(),
            failed: Vec::new(),
            bytes: 0,
            behind: Vec::new(),
        };
        let mut rest = payload;
        let segment_bytes = self.pool.segment_bytes() as usize;
        loop {
            let (position, working) = self.ready()?;
            // Without a next segment the end is kept for an entry that names one, and for the fences of some openings.
            let kept = if position.next.is_empty() && !payload.is_empty() {
                SPLIT_BYTES
            } else {
                0
            };
            let room = (segment_bytes - position.offset as usize).saturating_sub(kept);
            let (leaving, named) = {
                let state = self.state.lock();
                (state.leaving, state.named)
            };
            if leaving == Leaving::Go {
                self.advance()?;
                continue;
            }
            let fits = (HEADER_BYTES + rest.len()).next_multiple_of(BLOCK) <= room;
            // Nothing fits any more, or too little to be worth a part of its own but to name where the log goes on.
            // Nor is a part written of what cannot be ended.
            if !fits && (room <= HEADER_BYTES || position.next.is_empty() || (room < SPLIT_BYTES && named)) {
                self.advance()?;
                continue;
            }
            // What ends a recovery is nowhere to be behind.
            let slower = if payload.is_empty() {
                None
            } else {
                self.slower_copy(&working)
            };
            if slower.is_none() && self.due_bytes() > 0 {
                self.catch_up();
                continue;
            }
            let everywhere = self.everywhere(flushed);
            let taken = if fits { rest.len() } else { room - HEADER_BYTES };
            let (part, left) = rest.split_at(taken);
            let mut header = EntryHeader {
                pool: self.pool.id(),
                nonce: self.nonce,
                first,
                // Parts of one payload share `first`: none of them but the last moves the sequence on.
                last: if left.is_empty() { last } else { first - 1 },
                flushed,
                behind: u32::try_from(flushed - everywhere).unwrap_or(u32::MAX),
                previous: position.previous,
                length: part.len() as u32,
                continues: !left.is_empty(),
                next: position.next,
                sum: [0; 32],
            };
            let head = header.seal(part);
            buffer.clear();
            buffer.extend_from_slice(&head);
            buffer.extend_from_slice(part);
            buffer.pad_to_block();
            let mut left_working = Copies::default();
            let mut gaps = BTreeSet::new();
            let mut cause = None;
            let mut group = Vec::new();
            let slots: Vec<(usize, SegmentId)> = working
                .0
                .iter()
                .enumerate()
                .filter_map(|(slot, segment)| Some((slot, (*segment)?)))
                .filter(|(slot, _)| slower != Some(*slot))
                .collect();
            let targets: Vec<SegmentId> = slots.iter().map(|(_, segment)| *segment).collect();
            let outcomes = self.write_copies(
                &targets,
                position.offset,
                &buffer,
                beside.take().unwrap_or_default(),
            );
            for ((slot, segment), outcome) in slots.into_iter().zip(outcomes) {
                match outcome {
                    Ok(()) => {
                        left_working.0[slot] = Some(segment);
                        group.push(segment.device);
                    }
                    Err(error) => {
                        tracing::warn!(segment = %segment, %error, "a copy of the log failed");
                        appended.failed.push(segment.device);
                        gaps.insert(segment);
                        cause = Some(error);
                    }
                }
            }
            let late = slower.and_then(|slot| working.0[slot].map(|segment| (slot, segment)));
            if let (Some((slot, segment)), true) = (late, group.is_empty()) {
                // No faster copy is left: this one has to take it now, with all before it.
                let is_whole = || self.catch_up() && self.state.lock().working.0[slot].is_some();
                if is_whole() && self.pool.write(segment, position.offset.into(), &buffer).is_ok() {
                    left_working.0[slot] = Some(segment);
                    group.push(segment.device);
                }
            }
            self.note_gaps(&gaps);
            let mut state = self.state.lock();
            // It may have been given up meanwhile.
            let late = late.filter(|(slot, _)| {
                !left_working.is_empty()
                    && left_working.0[*slot].is_none()
                    && state.working.0[*slot].is_some()
            });
            if let Some((slot, segment)) = late {
                left_working.0[slot] = Some(segment);
                state.due_bytes += buffer.len() as u64;
                state.due.push_back(Due {
                    segment,
                    offset: position.offset,
                    bytes: Arc::new(AlignedBuffer::padded_from(&buffer)),
                    first,
                });
            }
            appended.behind.push(late.map(|(_, segment)| segment.device));
            state.working = left_working;
            if left_working.is_empty() {
                // Going on in the next segment would leave two places for the same entry: this one may have reached a
                // device although the write failed.
                drop(state);
                return Err(cause.map_or(LogError::Unlinked, LogError::Write));
            }
            state.named = true;
            state.position = LogPosition {
                segment: position.segment,
                offset: position.offset + buffer.len() as u32,
                next: position.next,
                previous: header.sum,
                sequence: header.last,
            };
            state.bytes += buffer.len() as u64;
            if state.leaving == Leaving::Name && position.offset as usize + buffer.len() <= segment_bytes {
                state.leaving = Leaving::Go;
            }
            appended.bytes += buffer.len() as u64;
            appended.groups.push(group);
            rest = left;
            if rest.is_empty() {
                let mark = state.position;
                state.marks.push_back(mark);
                return Ok(appended);
            }
        }
    }

    /// Writes an entry to `copies`, and what is `beside` it; what became of each copy.
    fn write_copies(
        &self,
        copies: &[SegmentId],
        offset: u32,
        entry: &[u8],
        beside: &mut [SegmentWrite<'_>],
    ) -> Vec<Result<(), PoolError>> {
        let all = beside
            .iter()
            .map(|write| (write.segment, write.offset, write.data));
        let mut writes: Vec<SegmentWrite<'_>> = all
            .chain(copies.iter().map(|segment| (*segment, offset.into(), entry)))
            .map(|(segment, offset, data)| SegmentWrite::new(segment, offset, data))
            .collect();
        self.pool.write_many(&mut writes);
        let mut outcomes = writes.into_iter().map(|write| write.outcome);
        for write in beside {
            write.outcome = outcomes.next().flatten();
        }
        let untried = || Err(PoolError::Invalid("a copy of the log was not written".into()));
        outcomes.map(|outcome| outcome.unwrap_or_else(untried)).collect()
    }

    /// The one of two copies that is written behind the other: on a slower tier than that, which keeps content once only,
    /// so that what an entry tells of is mostly lost with the faster copy anyway. Where the faster device fails none is: content
    /// goes elsewhere then, and openings without that device do not ask for what it has alone.
    fn slower_copy(&self, working: &Copies) -> Option<usize> {
        let [Some(one), Some(other)] = working.0 else {
            return None;
        };
        let tiers = (self.pool.tier_of(one.device)?, self.pool.tier_of(other.device)?);
        let (fast, tier, slot) = match tiers.0.cmp(&tiers.1) {
            std::cmp::Ordering::Less => (one, tiers.0, 1),
            std::cmp::Ordering::Greater => (other, tiers.1, 0),
            std::cmp::Ordering::Equal => return None,
        };
        (self.pool.copies_in(tier) == 1 && self.pool.counts_alone(fast.device)).then_some(slot)
    }

    pub(crate) fn due(&self) -> Vec<Due> {
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
    pub(crate) fn caught_up(&self, count: usize, failed: &BTreeSet<SegmentId>) -> bool {
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
        let given_up = std::mem::replace(&mut state.position.next, next);
        // Entries that follow the position elsewhere follow nothing here.
        let mut previous = blake3::Hasher::new();
        previous
            .update(&state.position.previous)
            .update(&self.nonce.to_le_bytes());
        state.position.previous = *previous.finalize().as_bytes();
        state.position.sequence = sequence;
        state.position.segment = segment;
        state.position.offset = 0;
        state.abandoned.push(given_up);
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
    fn ready(&self) -> Result<(LogPosition, Copies), LogError> {
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
    fn advance(&self) -> Result<(), LogError> {
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
