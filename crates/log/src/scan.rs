//! `Scanner`: reads the log from a position to its tail.
//!
//! Invariants: an entry is given only if it verifies, is of this pool, and is chained to the one before; each copy is
//! tried; lengths are bounded by the segment before anything is allocated. When the tail is reached, what lies behind
//! it is looked at: an entry there that was written after a sequence behind the tail had become durable is proof of
//! damage, not of a power cut. An entry that no later one confirms may have reached one copy only: when it was accepted,
//! it is written where it lacks before anything relies on the other copy. What a device that was away until this opening has
//! counts only where no other device has an entry: the others went on without it, and so did of several that were away each
//! that was in use longer.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use terrace_device::AlignedBuffer;
use terrace_pool::{Pool, PoolError, SegmentId};

use crate::{Copies, EntryHeader, HEADER_BYTES, LogError, LogPosition, appending::SPLIT_BYTES};

const BLOCK: usize = 4096;
/// How far behind the tail the scanner looks for proof of damage.
const LOOK_AHEAD_BYTES: usize = 1024 * 1024;
/// How often a place is read that cannot be read.
const READ_ATTEMPTS: usize = 3;
/// What is read at once where entries are expected to follow each other: after many small commits a log has thousands
/// of them, a block each.
const WINDOW_BYTES: usize = 256 * 1024;
/// Windows kept: one for each copy.
const WINDOWS: usize = 2;

/// An entry and its payload, if there is one where it was looked for.
type ReadCopy = Result<Option<(EntryHeader, Vec<u8>)>, PoolError>;

/// One appended payload, joined from its entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned {
    /// First sequence in it.
    pub first: u64,
    /// Last sequence in it.
    pub last: u64,
    /// Everything up to here was durable when it was written.
    pub flushed: u64,
    /// The payload.
    pub payload: Vec<u8>,
    /// The place behind it.
    pub after: LogPosition,
}

/// An entry that was read from one copy and may lack in the other.
struct Unconfirmed {
    copies: Copies,
    good: SegmentId,
    offset: u32,
    length: usize,
    /// Where a mark reaches this, the entry is in every copy.
    sequence: u64,
}

/// A part of a segment as it was read.
struct Window {
    segment: SegmentId,
    start: usize,
    bytes: AlignedBuffer,
}

/// Reads a log.
pub struct Scanner {
    pool: Arc<Pool>,
    position: LogPosition,
    segments: Vec<Copies>,
    buffer: AlignedBuffer,
    /// The newest last.
    windows: Vec<Window>,
    degraded: bool,
    /// The entries behind the newest mark, in order; of segments on devices that were away, all.
    unconfirmed: VecDeque<Unconfirmed>,
    /// Devices that were away: marks say nothing of their copies.
    returning: Vec<u16>,
    /// Those of them that were so until this very opening, in the order in which they count.
    returned: Vec<u16>,
    /// Up to here every copy has all entries: a later one says so.
    everywhere: u64,
    /// What is known of the end where a copy went with its device.
    end: Option<EndWithout>,
    /// Entries that one copy lacks, in words, when all copies are compared.
    lacking: Option<Vec<Lacking>>,
    /// The last entry named other next segments than the one before it, in the same segment.
    leaving: bool,
    /// Copies that still lack an entry; see [`Scanner::complete_copies`].
    left_behind: BTreeSet<SegmentId>,
}

/// An entry that one copy lacks.
struct Lacking {
    words: String,
    /// It is on a slower tier, and nothing of it is there: behind the mark that says what every copy has, it may not have come yet.
    may_be_behind: bool,
    sequence: u64,
}

/// The log was read to the end of a slower copy: the faster one is not there, and may have had more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndWithout {
    /// The device that is not there.
    pub device: u16,
    /// Up to this sequence something is known to have been acknowledged.
    pub acknowledged: u64,
}

impl Scanner {
    /// Starts at `position`.
    pub fn new(pool: Arc<Pool>, position: LogPosition) -> Result<Self, LogError> {
        if position.segment.is_empty() {
            return Err(LogError::Position("no segment"));
        }
        if position.offset > pool.segment_bytes() || !position.offset.is_multiple_of(BLOCK as u32) {
            return Err(LogError::Position("offset"));
        }
        let segments = vec![position.segment];
        let returning = pool.returning();
        Ok(Self {
            returning,
            returned: pool.returned(),
            pool,
            position,
            segments,
            buffer: AlignedBuffer::with_capacity(64 * 1024),
            windows: Vec::new(),
            degraded: false,
            unconfirmed: VecDeque::new(),
            everywhere: 0,
            end: None,
            lacking: None,
            leaving: false,
            left_behind: BTreeSet::new(),
        })
    }

    /// Copies of devices that are there and that [`complete_copies`](Self::complete_copies) could not complete.
    pub fn left_behind(&self) -> &BTreeSet<SegmentId> {
        &self.left_behind
    }

    /// The segments passed so far, in order; those of the position that a log is resumed at come last.
    pub fn segments(&self) -> &[Copies] {
        &self.segments
    }

    /// Whether what follows `tail` may lie in its next segments, or will after its fence; nobody looked into them if they are not
    /// there.
    pub fn may_go_on_in_next(&self, tail: &LogPosition) -> bool {
        let room = (self.pool.segment_bytes() as usize).saturating_sub(tail.offset as usize);
        // The fence at the tail takes a block, and what follows it must fit as well.
        !tail.next.is_empty() && (self.leaving || room < SPLIT_BYTES + BLOCK)
    }

    /// Whether an entry was found in one copy only although there are two.
    pub fn degraded(&self) -> bool {
        self.degraded
    }

    /// Writes the entries up to `sequence`, which were accepted, to the copies that lack them, and flushes these: a power
    /// cut left them so, or a device was away, and who goes on behind a gap goes on where nobody looks once the other copy is lost. A copy that
    /// cannot be written stays as it is. The segments must have been claimed. Returns how many entries it wrote.
    pub fn complete_copies(&mut self, sequence: u64) -> usize {
        let mut written = 0;
        let mut devices = BTreeSet::new();
        for entry in std::mem::take(&mut self.unconfirmed) {
            if entry.sequence > sequence {
                continue;
            }
            for other in entry.copies.iter().filter(|other| *other != entry.good) {
                let has =
                    |scanner: &mut Self, segment| scanner.read_again(segment, entry.offset).ok().flatten();
                let Some((header, _)) = has(self, entry.good) else {
                    self.left_behind.insert(other);
                    continue;
                };
                if !self.pool.has_device(other.device)
                    || has(self, other).is_some_and(|(found, _)| found.sum == header.sum)
                {
                    continue;
                }
                match self.copy_entry(&entry, other) {
                    Ok(()) => {
                        written += 1;
                        devices.insert(other.device);
                    }
                    Err(error) => {
                        tracing::warn!(segment = %other, %error, "a copy of the log stays behind");
                        self.left_behind.insert(other);
                    }
                }
            }
        }
        for device in devices {
            if let Err(error) = self.pool.flush(&[device]) {
                tracing::warn!(device, %error, "a copy of the log stays behind");
                let copies = self.segments.iter().flat_map(Copies::iter);
                self.left_behind
                    .extend(copies.filter(|copy| copy.device == device));
            }
        }
        self.windows.clear();
        written
    }

    fn copy_entry(&mut self, entry: &Unconfirmed, to: SegmentId) -> Result<(), PoolError> {
        let bytes = self.buffer.reuse(entry.length);
        self.pool.read(entry.good, entry.offset.into(), bytes)?;
        match entry_in(&self.buffer, entry.length) {
            Some(_) => self.pool.write(to, entry.offset.into(), &self.buffer),
            None => Err(PoolError::Invalid(
                "an entry of the log reads differently each time".into(),
            )),
        }
    }

    /// From now on reads every copy of each entry, not only until one is good.
    pub fn compare_copies(&mut self) {
        self.lacking = Some(Vec::new());
    }

    /// What copies lack that were compared, in words; but for the end of a slower copy, which may be behind.
    pub fn lacking(&self) -> Vec<String> {
        let lacking = self.lacking.iter().flatten();
        let wrong = lacking.filter(|lacking| !lacking.may_be_behind || lacking.sequence <= self.everywhere);
        wrong.map(|lacking| lacking.words.clone()).collect()
    }

    /// Whether the log may have gone on in a copy that is not there; known when its end was reached.
    pub fn end_without(&self) -> Option<EndWithout> {
        self.end
    }

    /// The next payload; `None` at the tail.
    pub fn next_payload(&mut self) -> Result<Option<Scanned>, LogError> {
        let start = self.position;
        let passed = self.segments.len();
        let mut joined: Option<Scanned> = None;
        loop {
            let Some((header, payload)) = self.next_entry()? else {
                // An unfinished payload was never durable: the tail is in front of it.
                self.position = start;
                self.segments.truncate(passed);
                self.look_ahead()?;
                return Ok(None);
            };
            let scanned = joined.get_or_insert_with(|| Scanned {
                first: header.first,
                last: header.last,
                flushed: header.flushed,
                payload: Vec::new(),
                after: self.position,
            });
            scanned.payload.extend_from_slice(&payload);
            if !header.continues {
                // Only the last part says where the payload ends.
                scanned.last = header.last;
                scanned.after = self.position;
                return Ok(joined);
            }
        }
    }

    fn next_entry(&mut self) -> Result<Option<(EntryHeader, Vec<u8>)>, LogError> {
        let here = (self.position.segment, self.position.offset);
        let there = (self.position.next, 0);
        for (copies, offset) in [here, there] {
            if let Some((good, header, payload)) = self.read_entry(copies, offset)? {
                if copies != self.position.segment {
                    self.segments.push(copies);
                }
                let length = (HEADER_BYTES + payload.len()).next_multiple_of(BLOCK);
                self.note_unconfirmed(copies, good, offset, length, &header);
                let end = offset as usize + length;
                let before = self.position;
                self.leaving =
                    copies == before.segment && !before.next.is_empty() && before.next != header.next;
                self.position = LogPosition {
                    segment: copies,
                    offset: end as u32,
                    next: header.next,
                    previous: header.sum,
                    sequence: header.last,
                };
                return Ok(Some((header, payload)));
            }
        }
        Ok(None)
    }

    fn note_unconfirmed(
        &mut self,
        copies: Copies,
        good: SegmentId,
        offset: u32,
        length: usize,
        header: &EntryHeader,
    ) {
        let everywhere = header.flushed_everywhere();
        self.everywhere = self.everywhere.max(everywhere);
        if self.returning.is_empty() {
            let confirmed = |entry: &Unconfirmed| entry.sequence <= everywhere;
            while self.unconfirmed.front().is_some_and(confirmed) {
                self.unconfirmed.pop_front();
            }
        }
        if copies.iter().count() > 1 {
            self.unconfirmed.push_back(Unconfirmed {
                copies,
                good,
                offset,
                length,
                // Parts of one payload are durable together.
                sequence: if header.continues {
                    header.first
                } else {
                    header.last
                },
            });
        }
    }

    /// An entry from any copy, and from which. That no copy can be read is not the end of the log.
    fn read_entry(
        &mut self,
        copies: Copies,
        offset: u32,
    ) -> Result<Option<(SegmentId, EntryHeader, Vec<u8>)>, LogError> {
        let position = self.position;
        let mut failed = 0;
        let mut readable = None;
        let mut cause: Option<(u8, PoolError)> = None;
        let mut good = None;
        let mut bad = Vec::new();
        let mut in_order: Vec<SegmentId> = copies.iter().collect();
        // `None` comes first: it was not away.
        in_order.sort_by_key(|segment| self.returned.iter().position(|device| *device == segment.device));
        for segment in in_order {
            let tier = self.pool.tier_of(segment.device).unwrap_or(u8::MAX);
            let read = match self.read_again(segment, offset) {
                Ok(read) => {
                    readable = Some(readable.map_or(tier, |other: u8| other.min(tier)));
                    read
                }
                Err(error) => {
                    cause = Some((tier, error));
                    None
                }
            };
            let found = read.filter(|(header, _)| {
                header.pool == self.pool.id()
                    && header.previous == position.previous
                    && header.first == position.sequence + 1
                    && header.last + 1 >= header.first
            });
            match found {
                Some(entry) => {
                    self.degraded |= failed > 0;
                    let fence = self.fence_beside(copies, segment, offset);
                    let (segment, (header, payload)) = fence.unwrap_or((segment, entry));
                    if self.lacking.is_none() {
                        return Ok(Some((segment, header, payload)));
                    }
                    good.get_or_insert((segment, header, payload));
                }
                None => {
                    failed += 1;
                    bad.push(segment);
                }
            }
        }
        if let Some((_, header, _)) = &good
            && self.lacking.is_some()
        {
            let pool = self.pool.clone();
            let tier_of = |segment: SegmentId| pool.tier_of(segment.device);
            let fastest = copies.iter().filter_map(tier_of).min();
            for segment in bad {
                let (first, last) = (header.first, header.last);
                let slower = tier_of(segment) > fastest;
                let lacking = Lacking {
                    words: format!(
                        "the log entry of batches {first}–{last} at {offset} of segment {segment} is damaged; its other copy is good"
                    ),
                    may_be_behind: slower && !self.has_begun(segment, offset, header),
                    sequence: if header.is_fence() { last } else { first.max(last) },
                };
                self.lacking.get_or_insert_default().push(lacking);
            }
        }
        match cause {
            // A slower copy may be behind: what it lacks is no news.
            Some((tier, cause)) if good.is_none() && readable.is_none_or(|other| tier < other) => {
                Err(LogError::Unreadable(cause))
            }
            _ => Ok(good),
        }
    }

    /// A fence in another copy of a place: where copies differ it counts, but on a device that was away meanwhile. The other entry was given up by the recovery
    /// that wrote the fence, and stayed because a device refused that write.
    fn fence_beside(
        &mut self,
        copies: Copies,
        taken: SegmentId,
        offset: u32,
    ) -> Option<(SegmentId, (EntryHeader, Vec<u8>))> {
        let position = self.position;
        let returned = self.returned.clone();
        let mut others = copies
            .iter()
            .filter(|other| *other != taken && !returned.contains(&other.device));
        others.find_map(|other| {
            let (header, payload) = self.read_copy(other, offset).ok().flatten()?;
            let follows = header.pool == self.pool.id()
                && header.previous == position.previous
                && header.first.checked_sub(1) == Some(position.sequence);
            (header.is_fence() && follows).then_some((other, (header, payload)))
        })
    }

    /// [`read_copy`](Self::read_copy), again if it fails: once may be chance, and the end of a log is a far-reaching
    /// finding.
    fn read_again(&mut self, segment: SegmentId, offset: u32) -> ReadCopy {
        let mut attempts = READ_ATTEMPTS;
        loop {
            attempts -= 1;
            match self.read_copy(segment, offset) {
                // Who opens a pool without a device goes without what only that has.
                Err(PoolError::NoDevice { .. }) => return Ok(None),
                Err(_) if attempts > 0 => {}
                read => return read,
            }
        }
    }

    /// Whether the head of this very entry lies there.
    fn has_begun(&mut self, segment: SegmentId, offset: u32, header: &EntryHeader) -> bool {
        let room = (self.pool.segment_bytes() as usize).saturating_sub(offset as usize);
        let read = self.pool.read(segment, offset.into(), self.buffer.reuse(BLOCK));
        read.is_ok() && header_in(&self.buffer, room).is_some_and(|(found, _)| found == *header)
    }

    /// The entry at a place of one copy; `None` if there is none.
    fn read_copy(&mut self, segment: SegmentId, offset: u32) -> ReadCopy {
        let room = (self.pool.segment_bytes() as usize).saturating_sub(offset as usize);
        if room < BLOCK {
            return Ok(None);
        }
        if let Some(entry) = self.find_in_window(segment, offset as usize, room) {
            return Ok(Some(entry));
        }
        // It is longer than a window, or not what it should be: what was read once may be read otherwise now.
        self.pool.read(segment, offset.into(), self.buffer.reuse(BLOCK))?;
        let Some((header, total)) = header_in(&self.buffer, room) else {
            return Ok(None);
        };
        if total > BLOCK {
            self.pool.read(segment, offset.into(), self.buffer.reuse(total))?;
        }
        // The header is taken from the same read as the payload.
        Ok(entry_in(&self.buffer, room).filter(|(again, _)| *again == header))
    }

    /// The same from what was read with the entries before it, or is now read with those behind it; `None` says nothing.
    fn find_in_window(
        &mut self,
        segment: SegmentId,
        offset: usize,
        room: usize,
    ) -> Option<(EntryHeader, Vec<u8>)> {
        let holds = |window: &Window| {
            window.segment == segment
                && (window.start..(window.start + window.bytes.len()).saturating_sub(BLOCK - 1))
                    .contains(&offset)
        };
        let at = match self.windows.iter().position(holds) {
            Some(at) => at,
            None => {
                let mut window = if self.windows.len() < WINDOWS {
                    Window {
                        segment,
                        start: 0,
                        bytes: AlignedBuffer::with_capacity(WINDOW_BYTES),
                    }
                } else {
                    self.windows.remove(0)
                };
                window.segment = segment;
                window.start = offset;
                let bytes = window.bytes.reuse(room.min(WINDOW_BYTES));
                self.pool.read(segment, offset as u64, bytes).ok()?;
                self.windows.push(window);
                self.windows.len() - 1
            }
        };
        let window = &self.windows[at];
        entry_in(&window.bytes[offset - window.start..], room)
    }

    /// Fills `bytes` block by block; what cannot be read is zero.
    fn read_what_can_be(&self, segment: SegmentId, from: usize, bytes: &mut [u8]) {
        for (number, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
            if self
                .pool
                .read(segment, (from + number * BLOCK) as u64, block)
                .is_err()
            {
                block.fill(0);
            }
        }
    }

    /// Looks behind the tail for an entry that could only have been written after something there was durable.
    fn look_ahead(&mut self) -> Result<(), LogError> {
        let tail = self.position;
        let segment_bytes = self.pool.segment_bytes() as usize;
        let mut end = self.end_in(tail.segment).or(self.end_in(tail.next));
        let mut block = AlignedBuffer::with_capacity(LOOK_AHEAD_BYTES);
        let mut abandoned = self.returned.clone();
        abandoned.retain(|device| self.lacks_the_last(*device));
        for (copies, from) in [(tail.segment, tail.offset as usize), (tail.next, 0)] {
            for segment in copies.iter() {
                let length = segment_bytes.saturating_sub(from).min(LOOK_AHEAD_BYTES);
                if length == 0 || abandoned.contains(&segment.device) {
                    continue;
                }
                match self.pool.read(segment, from as u64, block.reuse(length)) {
                    Err(PoolError::NoDevice { .. }) => continue,
                    // One block that cannot be read must not hide what the others prove.
                    Err(_) => self.read_what_can_be(segment, from, &mut block),
                    Ok(()) => {}
                }
                for start in (0..length).step_by(BLOCK) {
                    let Ok(header) = EntryHeader::decode(&block[start..]) else {
                        continue;
                    };
                    if header.pool != self.pool.id() || header.flushed <= tail.sequence {
                        continue;
                    }
                    let verified = self.read_copy(segment, (from + start) as u32);
                    if let Ok(Some((header, _))) = verified {
                        if let Some(end) = &mut end {
                            end.acknowledged = end.acknowledged.max(header.flushed);
                            if header.flushed_everywhere() <= tail.sequence {
                                continue;
                            }
                        }
                        return Err(LogError::Damaged {
                            newest: tail.sequence,
                            durable: header.flushed,
                        });
                    }
                }
            }
        }
        self.end = end;
        Ok(())
    }

    /// Whether a device that was away lacks the last entry that was read, or none was: then the log ended without it, and what
    /// it has from there on is of a past that was given up.
    fn lacks_the_last(&mut self, device: u16) -> bool {
        let Some(last) = self.unconfirmed.back() else {
            return true;
        };
        let (copies, good, offset) = (last.copies, last.good, last.offset);
        let own = copies.iter().find(|copy| copy.device == device);
        let mut sum_in = |segment| {
            self.read_again(segment, offset)
                .ok()
                .flatten()
                .map(|(header, _)| header.sum)
        };
        match own.and_then(&mut sum_in) {
            Some(sum) => sum_in(good) != Some(sum),
            None => true,
        }
    }

    /// Whether a faster copy is missing here, which alone may have had the newest entries.
    fn end_in(&self, copies: Copies) -> Option<EndWithout> {
        let missing = copies
            .iter()
            .find(|segment| !self.pool.has_device(segment.device))?;
        let tier = self.pool.tier_of(missing.device);
        let is_slower = |segment: SegmentId| self.pool.tier_of(segment.device) > tier;
        copies.iter().any(is_slower).then_some(EndWithout {
            device: missing.device,
            acknowledged: self.position.sequence,
        })
    }
}

/// The header at the beginning of `bytes`, which have a block at least, and the length of its entry, at most `room`.
fn header_in(bytes: &[u8], room: usize) -> Option<(EntryHeader, usize)> {
    let header = EntryHeader::decode(bytes).ok()?;
    let total = HEADER_BYTES
        .saturating_add(header.length as usize)
        .next_multiple_of(BLOCK);
    (total <= room).then_some((header, total))
}

/// The entry at the beginning of `bytes`, if it verifies and ends in them.
fn entry_in(bytes: &[u8], room: usize) -> Option<(EntryHeader, Vec<u8>)> {
    let (header, _) = header_in(bytes, room)?;
    let payload = bytes.get(HEADER_BYTES..)?.get(..header.length as usize)?;
    header.verify(payload).then(|| (header.clone(), payload.to_vec()))
}
