//! Appending: an entry is placed, written to the copies of its segment, and counted.
//!
//! Invariants: one append at a time, in order of sequence; an entry is appended if at least one copy of it was written, and a copy
//! that failed is not used again until the next segment. A copy on a slower tier is written behind the others (see
//! `lagging_replica`) where the tier of the faster one keeps content once only: each entry says how far that copy was behind.

use std::{cmp::Ordering, collections::BTreeSet, sync::Arc};

use terrace_device::AlignedBuffer;
use terrace_pool::{PoolError, SegmentId, SegmentWrite};

use super::{
    lagging_replica::Due,
    log::{Leaving, Log, SPLIT_BYTES},
};
use crate::{Copies, EntryHeader, HEADER_BYTES, LogError, LogPosition};

const BLOCK: usize = 4096;

/// What an append did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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

/// Where an entry goes.
struct Place {
    position: LogPosition,
    /// The copies that take writes.
    working: Copies,
    /// The one of them that gets it later: its slot, and which.
    slower: Option<(usize, SegmentId)>,
    /// How much of the payload goes into it, bytes.
    taken: usize,
}

/// What became of an entry.
#[derive(Default)]
struct Written {
    /// The copies that have it.
    working: Copies,
    /// Their devices.
    group: Vec<u16>,
    /// The copies that refused it, and why the last one did.
    gaps: BTreeSet<SegmentId>,
    cause: Option<PoolError>,
}

impl Log {
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
        let mut appended = Appended::default();
        let mut rest = payload;
        loop {
            let Some(place) = self.place_for(rest.len(), payload.is_empty())? else {
                continue;
            };
            let everywhere = self.everywhere(flushed);
            let (part, left) = rest.split_at(place.taken);
            let mut header = EntryHeader {
                pool: self.pool.id(),
                nonce: self.nonce,
                first,
                // Parts of one payload share `first`: none of them but the last moves the sequence on.
                last: if left.is_empty() { last } else { first - 1 },
                flushed,
                behind: u32::try_from(flushed - everywhere).unwrap_or(u32::MAX),
                previous: place.position.previous,
                length: part.len() as u32,
                continues: !left.is_empty(),
                next: place.position.next,
                sum: [0; 32],
            };
            let head = header.seal(part);
            buffer.clear();
            buffer.extend_from_slice(&head);
            buffer.extend_from_slice(part);
            buffer.pad_to_block();
            let written = self.write_entry(&place, &buffer, beside.take().unwrap_or_default());
            appended
                .failed
                .extend(written.gaps.iter().map(|copy| copy.device));
            self.count_entry(&place, &header, &buffer, written, &mut appended)?;
            rest = left;
            if rest.is_empty() {
                return Ok(appended);
            }
        }
    }

    /// Where the next entry goes, for what is left of a payload (of `rest` bytes; a fence has none); `None`: something else had to
    /// come first, and the question is to be asked again.
    fn place_for(&self, rest: usize, is_fence: bool) -> Result<Option<Place>, LogError> {
        let (position, working) = self.ready()?;
        // Without a next segment the end is kept for an entry that names one, and for the fences of some openings.
        let kept = match position.next.is_empty() && !is_fence {
            true => SPLIT_BYTES,
            false => 0,
        };
        let segment_bytes = self.pool.segment_bytes() as usize;
        let room = (segment_bytes - position.offset as usize).saturating_sub(kept);
        let (leaving, named) = {
            let state = self.state.lock();
            (state.leaving, state.named)
        };
        let fits = (HEADER_BYTES + rest).next_multiple_of(BLOCK) <= room;
        // Nothing fits any more, or too little to be worth a part of its own but to name where the log goes on.
        // Nor is a part written of what cannot be ended.
        let is_full =
            !fits && (room <= HEADER_BYTES || position.next.is_empty() || (room < SPLIT_BYTES && named));
        if leaving == Leaving::Go || is_full {
            self.advance()?;
            return Ok(None);
        }
        // What ends a recovery is nowhere to be behind.
        let slower = match is_fence {
            true => None,
            false => self.slower_copy(&working),
        };
        if slower.is_none() && self.due_bytes() > 0 {
            self.catch_up();
            return Ok(None);
        }
        Ok(Some(Place {
            position,
            working,
            slower: slower.and_then(|slot| Some((slot, working.0[slot]?))),
            taken: if fits { rest } else { room - HEADER_BYTES },
        }))
    }

    /// Writes an entry to all copies but the slower one, and what is `beside` it; to the slower one as well if no other took it.
    fn write_entry(&self, place: &Place, entry: &[u8], beside: &mut [SegmentWrite<'_>]) -> Written {
        let offset = place.position.offset;
        let slots = place.working.0.iter().enumerate();
        let slots: Vec<(usize, SegmentId)> = slots
            .filter_map(|(slot, segment)| Some((slot, (*segment)?)))
            .filter(|copy| place.slower != Some(*copy))
            .collect();
        let targets: Vec<SegmentId> = slots.iter().map(|(_, segment)| *segment).collect();
        let outcomes = self.write_copies(&targets, offset, entry, beside);
        let mut written = Written::default();
        for ((slot, segment), outcome) in slots.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => written.take(slot, segment),
                Err(error) => {
                    tracing::warn!(segment = %segment, %error, "a copy of the log failed");
                    written.gaps.insert(segment);
                    written.cause = Some(error);
                }
            }
        }
        if let (Some((slot, segment)), true) = (place.slower, written.group.is_empty()) {
            // No faster copy is left: this one has to take it now, with all before it.
            let is_whole = || self.catch_up() && self.state.lock().working.0[slot].is_some();
            if is_whole() && self.pool.write(segment, offset.into(), entry).is_ok() {
                written.take(slot, segment);
            }
        }
        self.note_gaps(&written.gaps);
        written
    }

    /// Takes over that an entry was written: it is due on the slower copy, and the log goes on behind it.
    fn count_entry(
        &self,
        place: &Place,
        header: &EntryHeader,
        entry: &[u8],
        written: Written,
        appended: &mut Appended,
    ) -> Result<(), LogError> {
        let position = &place.position;
        let mut working = written.working;
        let mut state = self.state.lock();
        // It may have been given up meanwhile.
        let late = place.slower.filter(|(slot, _)| {
            !working.is_empty() && working.0[*slot].is_none() && state.working.0[*slot].is_some()
        });
        if let Some((slot, segment)) = late {
            working.0[slot] = Some(segment);
            state.due_bytes += entry.len() as u64;
            state.due.push_back(Due {
                segment,
                offset: position.offset,
                bytes: Arc::new(AlignedBuffer::padded_from(entry)),
                first: header.first,
            });
        }
        appended.behind.push(late.map(|(_, segment)| segment.device));
        state.working = working;
        if working.is_empty() {
            // Going on in the next segment would leave two places for the same entry: this one may have reached a
            // device although the write failed.
            return Err(written.cause.map_or(LogError::Unlinked, LogError::Write));
        }
        let end = position.offset + entry.len() as u32;
        state.named = true;
        state.position = LogPosition {
            segment: position.segment,
            offset: end,
            next: position.next,
            previous: header.sum,
            sequence: header.last,
        };
        state.bytes += entry.len() as u64;
        if state.leaving == Leaving::Name && end <= self.pool.segment_bytes() {
            state.leaving = Leaving::Go;
        }
        if !header.continues {
            let mark = state.position;
            state.marks.push_back(mark);
        }
        appended.bytes += entry.len() as u64;
        appended.groups.push(written.group);
        Ok(())
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
            Ordering::Less => (one, tiers.0, 1),
            Ordering::Greater => (other, tiers.1, 0),
            Ordering::Equal => return None,
        };
        (self.pool.copies_in(tier) == 1 && self.pool.counts_alone(fast.device)).then_some(slot)
    }
}

impl Written {
    fn take(&mut self, slot: usize, segment: SegmentId) {
        self.working.0[slot] = Some(segment);
        self.group.push(segment.device);
    }
}
