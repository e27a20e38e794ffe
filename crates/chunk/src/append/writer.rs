//! Streams: which open segment an append goes to, and how buffers reach the devices.
//!
//! Invariants: a segment is claimed by a batch before any chunk in it is; a buffer whose write failed is placed again
//! in another segment before it counts as landed, so that a later log entry never names bytes that are nowhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use terrace_meta::{Operation, Value};
use terrace_pool::{Pool, PoolError, Request, SegmentId, SegmentKind, SegmentWrite, TierChoice};
use terrace_store::StoreError;
use terrace_sync::{Mutex, rank};

use super::{missing_copies::are_too_few, stream::Stream};
use crate::{
    Handles,
    buffers::{Append, BUFFER_BYTES, Chunk, Flight, OpenSegment, OpenSegments},
    catalog::{Catalog, Operations},
    encoding::{COPIES_MAX, Counters, HEADER_BYTES, Location, TABLE_SEGMENTS, compression, segment_key},
    errors::pool_error,
    ledger::Ledger,
    space::{Landing, SpaceView, StreamKey, TierRoom},
    stop::Stop,
};

fn request<'a>(choice: TierChoice, avoid: &'a [u16], garbage: &'a [u64], leave_free: u64) -> Request<'a> {
    Request {
        choice,
        kind: SegmentKind::Data,
        avoid,
        garbage,
        leave_free,
    }
}

/// Of what became of two copies: an error counts more than a copy that was not tried, and that more than one that was written.
fn worse(
    one: Option<Result<(), PoolError>>,
    other: Option<Result<(), PoolError>>,
) -> Option<Result<(), PoolError>> {
    match (&one, &other) {
        (Some(Err(_)), _) | (None, Some(Ok(())) | None) => one,
        _ => other,
    }
}

/// What came of an attempt to append.
#[must_use]
pub(crate) enum TryAppend {
    Placed,
    /// The stream has no open segment: see [`SegmentWriter::begin_segment`].
    NeedsSegment,
}

/// Appends chunks to open segments, and brings these onto devices.
pub(crate) struct SegmentWriter {
    pub(super) pool: Arc<Pool>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) open_segments: Arc<OpenSegments>,
    pub(super) stop: Arc<Stop>,
    pub(super) space: Arc<SpaceView>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) streams: Mutex<BTreeMap<StreamKey, Arc<Stream>>, rank::Leaf>,
    /// Sets of devices that hold the copies of what was written since the last flush.
    pub(super) dirty: Mutex<BTreeSet<Vec<u16>>, rank::Leaf>,
    pub(super) relocations: AtomicU64,
}

impl SegmentWriter {
    /// Of these parts.
    pub(crate) fn new(
        handles: &Handles,
        stop: &Arc<Stop>,
        space: &Arc<SpaceView>,
        catalog: &Arc<Catalog>,
    ) -> Self {
        Self {
            pool: handles.pool.clone(),
            ledger: handles.ledger.clone(),
            open_segments: handles.open_segments.clone(),
            stop: stop.clone(),
            space: space.clone(),
            catalog: catalog.clone(),
            streams: Mutex::default(),
            dirty: Mutex::default(),
            relocations: AtomicU64::new(0),
        }
    }

    /// The stream of a key.
    pub(crate) fn stream(&self, key: StreamKey) -> Arc<Stream> {
        self.streams.lock().entry(key).or_default().clone()
    }

    /// How many chunks were placed elsewhere since they could not be written.
    pub(crate) fn relocations(&self) -> u64 {
        self.relocations.load(Ordering::Acquire)
    }

    /// The sets of devices that hold the copies of what was written since this was last asked.
    pub(crate) fn take_dirty(&self) -> BTreeSet<Vec<u16>> {
        std::mem::take(&mut *self.dirty.lock())
    }

    /// Appends one chunk that is moved, or placed elsewhere; `placed` is told where. Nobody waits for room for it.
    pub(crate) fn append(
        &self,
        key: StreamKey,
        privileged: bool,
        chunk: &Chunk<'_>,
        placed: &mut dyn FnMut(Vec<Location>),
    ) -> Result<(), StoreError> {
        let stream = self.stream(key);
        while let TryAppend::NeedsSegment = self.try_append(&stream, key, privileged, chunk, placed)? {
            self.begin_segment(&stream, key, privileged, chunk)?;
        }
        Ok(())
    }

    /// Appends one chunk to the open segment of its stream, if there is one with room; `placed` is told where.
    pub(crate) fn try_append(
        &self,
        stream: &Stream,
        key: StreamKey,
        privileged: bool,
        chunk: &Chunk<'_>,
        placed: &mut dyn FnMut(Vec<Location>),
    ) -> Result<TryAppend, StoreError> {
        let may_be_apart = chunk.header.compression == compression::RAW;
        while let Some(open) = self.current(stream, key) {
            match open.append(&self.open_segments, chunk, may_be_apart, placed) {
                Append::Placed(flight) => {
                    if let Some(flight) = flight {
                        self.write_full(&open, flight, privileged)?;
                    }
                    return Ok(TryAppend::Placed);
                }
                Append::Full(flight) => {
                    if let Some(flight) = flight {
                        self.write_full(&open, flight, privileged)?;
                    }
                    self.forget_if_done(&open);
                }
            }
        }
        Ok(TryAppend::NeedsSegment)
    }

    /// The open segment of a stream; none if it lies on a slower tier and there is room again where it should. Looked at
    /// only when segments were released since.
    fn current(&self, stream: &Stream, key: StreamKey) -> Option<Arc<OpenSegment>> {
        let mut slot = stream.slot.lock();
        let open = slot.open()?.clone();
        let released = self.space.releases();
        if slot.spilled_at.is_some_and(|at| at != released) {
            slot.spilled_at = Some(released);
            if slot.aside.as_ref().is_none_or(|aside| aside.is_closed())
                && self.space.landing(key) == Landing::Fits
            {
                slot.aside = slot.open.take();
                return None;
            }
        }
        Some(open)
    }

    /// The open segment of a stream that had none, or the one that was set aside if there is still no room for a better one.
    pub(crate) fn begin_segment(
        &self,
        stream: &Stream,
        key: StreamKey,
        privileged: bool,
        chunk: &Chunk<'_>,
    ) -> Result<(), StoreError> {
        let mut slot = stream.slot.lock();
        if slot.open().is_some() {
            return Ok(());
        }
        let stored = HEADER_BYTES + chunk.payload.len();
        let aside = slot.aside.take().filter(|aside| !aside.is_closed());
        let open = match aside {
            Some(aside) if self.space.landing(key) != Landing::Fits => aside,
            aside => {
                slot.aside = aside;
                self.open_segment(key, privileged, stored)?
            }
        };
        let tier = open
            .copies
            .first()
            .and_then(|copy| self.pool.tier_of(copy.device));
        let wanted = self.space.landing_tier(key, &self.pool.tiers());
        let is_below = wanted
            .zip(tier)
            .is_some_and(|(wanted, tier)| usize::from(tier) > wanted);
        slot.spilled_at = is_below.then(|| self.space.releases());
        slot.open = Some(open);
        Ok(())
    }

    /// Opens a segment with as many copies as its tier wants; or, when there is no room, finds one that has some. What
    /// may use the reserve does so last: room in the open segments of others is what it was accepted for.
    fn open_segment(
        &self,
        key: StreamKey,
        privileged: bool,
        stored: usize,
    ) -> Result<Arc<OpenSegment>, StoreError> {
        let marks = self.space.watermarks();
        let copies = match self.allocate_copies(key.choice(), marks.of_segment(false)) {
            Err(error) if error.is_no_space() => {
                if let Some(open) = self.open_with_room(key, stored) {
                    return Ok(open);
                }
                if !privileged {
                    return Err(StoreError::NoSpace);
                }
                self.allocate_copies(key.choice(), marks.of_segment(true))
            }
            other => other,
        };
        let copies = copies.map_err(pool_error)?;
        if !matches!(key, StreamKey::Tier(..)) {
            self.space.need().took(copies.len());
        }
        let mut operations: Operations = Vec::new();
        {
            let mut ledger = self.ledger.lock();
            for segment in &copies {
                ledger.open_segment(*segment);
                let key = segment_key(TABLE_SEGMENTS, *segment);
                operations.push((key.into(), Operation::Put(Value::new(&[1]))));
            }
        }
        // Before anybody can find it: what others append, and commit, would lie in a segment that nobody has claimed.
        self.catalog.commit_internal(operations, Counters::default())?;
        let segment_bytes = self.pool.segment_bytes() as usize;
        Ok(self.open_segments.open(copies, segment_bytes))
    }

    /// An open segment, of whatever stream, with room for a chunk of `stored` bytes.
    fn open_with_room(&self, key: StreamKey, stored: usize) -> Option<Arc<OpenSegment>> {
        let strict_tier = match key {
            StreamKey::Tier(tier, true) => Some(tier),
            _ => None,
        };
        let fits = |open: &Arc<OpenSegment>| {
            let tier = open
                .copies
                .first()
                .and_then(|copy| self.pool.tier_of(copy.device));
            open.room() >= stored && (strict_tier.is_none() || strict_tier == tier)
        };
        self.open_segments.all().into_iter().find(fits)
    }

    /// One segment for each copy that the tier keeps, on the first tier that has room for all of them.
    fn allocate_copies(&self, choice: TierChoice, leave_free: u64) -> Result<Vec<SegmentId>, PoolError> {
        let mut full: Vec<u16> = Vec::new();
        let rooms = self.space.tier_rooms();
        let garbage: Vec<u64> = rooms.iter().map(TierRoom::garbage_segments).collect();
        'tiers: loop {
            let first = self
                .pool
                .allocate(&request(choice, &full, &garbage, leave_free))?;
            let mut copies = vec![first];
            let tier = self.pool.tier_of(first.device).unwrap_or(0);
            let wanted = self
                .pool
                .tiers()
                .get(usize::from(tier))
                .map_or(1, |tier| tier.settings.copies);
            while copies.len() < usize::from(wanted).clamp(1, COPIES_MAX) {
                let avoid: Vec<u16> = copies.iter().map(|copy| copy.device).collect();
                let same_tier = TierChoice::Tier { tier, strict: true };
                // Whether the reserve stays free was looked at with the first: half a set is of no use.
                match self.pool.allocate(&request(same_tier, &avoid, &[], 0)) {
                    Ok(segment) => copies.push(segment),
                    Err(error) => {
                        // With a device gone the tier goes on with fewer copies; with a device full it has no room.
                        let devices = self.pool.devices();
                        let mut others = devices.iter().filter(|device| device.tier == tier);
                        let one_is_full = others.any(|device| {
                            !avoid.contains(&device.number)
                                && device.state == terrace_pool::DeviceState::Online
                                && !device.draining
                        });
                        if !one_is_full {
                            tracing::warn!(tier, copies = copies.len(), %error, "fewer copies than the tier wants");
                            break;
                        }
                        for segment in copies {
                            self.space.release_segment(segment);
                        }
                        if matches!(choice, TierChoice::Tier { strict: true, .. }) {
                            return Err(error);
                        }
                        let here = devices.iter().filter(|device| device.tier == tier);
                        full.extend(here.map(|device| device.number));
                        continue 'tiers;
                    }
                }
            }
            return Ok(copies);
        }
    }

    fn forget_if_done(&self, open: &OpenSegment) {
        if self.open_segments.forget_if_done(open) {
            let mut ledger = self.ledger.lock();
            open.copies.iter().for_each(|copy| ledger.close_segment(*copy));
        }
    }

    /// Takes no more appends to a segment and writes out what it has.
    pub(crate) fn close_open(&self, open: &Arc<OpenSegment>) -> Result<(), StoreError> {
        open.close();
        if let Some(flight) = open.take() {
            self.write_flight(open, flight)?;
        }
        self.wait_landed(open)?;
        self.forget_if_done(open);
        Ok(())
    }

    /// New content lands elsewhere from now on: what a stream goes on with on another tier than its own gets no more.
    ///
    /// # Errors
    /// What was appended to it could not be written.
    pub(crate) fn land_anew(&self) -> Result<(), StoreError> {
        let tiers = self.pool.tiers();
        for key in [StreamKey::Random, StreamKey::Sequential] {
            let wanted = self.space.landing_tier(key, &tiers);
            let is_elsewhere = |open: &mut Arc<OpenSegment>| {
                let tier = open
                    .copies
                    .first()
                    .and_then(|copy| self.pool.tier_of(copy.device));
                tier.map(usize::from) != wanted
            };
            let stream = self.stream(key);
            let elsewhere = {
                let mut slot = stream.slot.lock();
                [slot.open.take_if(is_elsewhere), slot.aside.take_if(is_elsewhere)]
            };
            for open in elsewhere.into_iter().flatten() {
                self.close_open(&open)?;
            }
        }
        Ok(())
    }

    /// Takes no more appends to segments that were begun with fewer copies than their tier keeps, where there are devices for
    /// more by now.
    ///
    /// # Errors
    /// What was appended to one could not be written.
    pub(crate) fn close_short_streams(&self) -> Result<(), StoreError> {
        let open = self.open_segments.all();
        let is_short = |open: &&Arc<OpenSegment>| {
            let first = open.copies.first();
            first.is_some_and(|first| are_too_few(&self.pool, *first, open.copies.len()))
        };
        open.iter()
            .filter(is_short)
            .try_for_each(|open| self.close_open(open))
    }

    /// Returns when what was appended before has landed; what its owner left behind is written out here.
    fn wait_landed(&self, open: &Arc<OpenSegment>) -> Result<(), StoreError> {
        let mut landed = Ok(());
        while let Some(flight) = open.wait_landed() {
            landed = landed.and(self.write_flight(open, flight));
        }
        landed
    }

    /// Writes a buffer to all copies; on a failure places its chunks elsewhere.
    fn write_flight(&self, open: &Arc<OpenSegment>, flight: Arc<Flight>) -> Result<(), StoreError> {
        self.write_in_pieces(open, flight, BUFFER_BYTES)
    }

    /// The same of a buffer that got full. For what users do not wait for, in such pieces as let their reads through.
    fn write_full(
        &self,
        open: &Arc<OpenSegment>,
        flight: Arc<Flight>,
        privileged: bool,
    ) -> Result<(), StoreError> {
        let tiers = open
            .copies
            .iter()
            .filter_map(|copy| self.pool.tier_of(copy.device));
        let piece_bytes = match privileged {
            true => tiers.map(|tier| self.space.piece_bytes(tier)).min(),
            false => None,
        };
        self.write_in_pieces(open, flight, piece_bytes.unwrap_or(BUFFER_BYTES))
    }

    fn write_in_pieces(
        &self,
        open: &Arc<OpenSegment>,
        flight: Arc<Flight>,
        piece_bytes: usize,
    ) -> Result<(), StoreError> {
        let mut outcome = Ok(());
        for copy in &open.copies {
            let mut offset = flight.start as u64;
            let pieces = flight.buffer.chunks(piece_bytes);
            let written = pieces.into_iter().try_for_each(|piece| {
                let written = self.pool.write(*copy, offset, piece);
                offset += piece.len() as u64;
                written
            });
            if let Err(error) = written {
                outcome = Err(error);
            }
        }
        self.flight_tried(open, flight, outcome)
    }

    /// A buffer was written to all copies, or could not be: then its chunks are placed elsewhere.
    fn flight_tried(
        &self,
        open: &Arc<OpenSegment>,
        flight: Arc<Flight>,
        outcome: Result<(), PoolError>,
    ) -> Result<(), StoreError> {
        let result = match outcome {
            Ok(()) => {
                let devices = open.copies.iter().map(|copy| copy.device).collect();
                self.dirty.lock().insert(devices);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(segments = ?open.copies, %error, "chunk data could not be written");
                open.close();
                self.relocate(open, &flight).map_err(|again| {
                    // What the first error says to do is what helps: the other one follows from it.
                    let (error, again) = (error.to_string(), again.to_string());
                    let (why, remedy) = error.split_once("; ").unwrap_or((&error, ""));
                    let again = again.split("; ").next().unwrap_or_default();
                    let end = if remedy.is_empty() { "" } else { "; " };
                    self.stop.latch(&format!(
                        "{why}, and its data could not be placed elsewhere: {again}{end}{remedy}"
                    ))
                })
            }
        };
        open.land(&self.open_segments, flight);
        self.forget_if_done(open);
        result
    }

    /// Appends the chunks of a buffer that could not be written to another segment, and says so in their records.
    fn relocate(&self, open: &OpenSegment, flight: &Flight) -> Result<(), StoreError> {
        let tier = open
            .copies
            .first()
            .and_then(|copy| self.pool.tier_of(copy.device))
            .unwrap_or(0);
        for content in &flight.contents {
            let header = &content.header;
            let Range { start, end } = header.payload_at(content.offset as usize);
            let payload = flight
                .buffer
                .get(start - flight.start..end - flight.start)
                .unwrap_or_default();
            let mut locations = Vec::new();
            let key = StreamKey::Tier(tier, false);
            let stored = (HEADER_BYTES + payload.len()) as i64;
            self.append(key, true, &Chunk { header, payload }, &mut |placed| {
                // Counted as pending until the record says so, or the segment could be taken for an empty one.
                let mut ledger = self.ledger.lock();
                placed
                    .iter()
                    .for_each(|location| ledger.add_pending(location.segment, stored));
                locations = placed;
            })?;
            let copies = open.copies.iter();
            let old: Vec<Location> = copies.map(|segment| content.location(*segment)).collect();
            self.catalog.change_place(header.id, &old, locations.clone())?;
            let mut ledger = self.ledger.lock();
            locations
                .iter()
                .for_each(|location| ledger.add_pending(location.segment, -stored));
            drop(ledger);
            self.relocations.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Writes out every buffer and waits for those that others are writing.
    pub(crate) fn land_data(&self) -> Result<(), StoreError> {
        let all = self.open_segments.all();
        for open in &all {
            if let Some(flight) = open.take() {
                self.write_flight(open, flight)?;
            }
        }
        for open in &all {
            self.wait_landed(open)?;
        }
        self.stop.check_running()
    }

    /// As [`land_data`](Self::land_data), with `write` writing the buffers out beside something else. What it does not try
    /// is then written alone.
    pub(crate) fn land_data_beside<T>(
        &self,
        write: impl FnOnce(&mut [SegmentWrite<'_>]) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let all = self.open_segments.all();
        let flights: Vec<(&Arc<OpenSegment>, Arc<Flight>)> =
            all.iter().filter_map(|open| Some((open, open.take()?))).collect();
        let mut writes: Vec<SegmentWrite<'_>> = flights
            .iter()
            .flat_map(|(open, flight)| {
                let whole = |copy: &SegmentId| SegmentWrite::new(*copy, flight.start as u64, &flight.buffer);
                open.copies.iter().map(whole)
            })
            .collect();
        let result = write(&mut writes);
        let mut outcomes = writes.into_iter().map(|write| write.outcome);
        let outcomes: Vec<Option<Result<(), PoolError>>> = flights
            .iter()
            .map(|(open, _)| outcomes.by_ref().take(open.copies.len()).reduce(worse).flatten())
            .collect();
        // Whatever happened, no flight may stay in the air: others wait for them to land.
        let mut landed = Ok(());
        for ((open, flight), outcome) in flights.into_iter().zip(outcomes) {
            landed = landed.and(match outcome {
                Some(outcome) => self.flight_tried(open, flight, outcome),
                None => self.write_flight(open, flight),
            });
        }
        for open in &all {
            landed = landed.and(self.wait_landed(open));
        }
        let value = result?;
        landed?;
        self.stop.check_running()?;
        Ok(value)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{
        Options,
        encoding::{ChunkHeader, JOINED},
        store_in_memory::store_in_memory,
    };

    /// Whoever finds no room takes what is left in any open segment, and may commit before the one who opened it comes to that.
    #[test]
    fn nobody_finds_a_segment_before_it_is_claimed() {
        let store = store_in_memory(64 << 20, Options::default());
        std::thread::scope(|scope| {
            let ((go, until), (holds, held)) = (mpsc::channel::<()>(), mpsc::channel());
            let catalog = store.catalog();
            // As whoever commits.
            scope.spawn(move || {
                catalog.with_due_bytes(|_| {
                    holds.send(()).unwrap();
                    until.recv()
                })
            });
            held.recv().unwrap();
            let opens = scope.spawn(|| {
                let chunk = Chunk {
                    header: &ChunkHeader::raw(1, 5000, JOINED),
                    payload: &[7; 5000],
                };
                store
                    .writer()
                    .append(StreamKey::Random, false, &chunk, &mut |_| {})
            });
            while store.handles().ledger.lock().segments.is_empty() {
                std::thread::yield_now();
            }
            // It waits for the lock of commits, sooner or later, and nobody can use it until it has it.
            for _ in 0..20_000 {
                assert!(
                    store
                        .writer()
                        .open_with_room(StreamKey::Sequential, 5000)
                        .is_none()
                );
                std::thread::yield_now();
            }
            drop(go);
            opens.join().unwrap().unwrap();
            assert!(
                store
                    .writer()
                    .open_with_room(StreamKey::Sequential, 5000)
                    .is_some()
            );
        });
    }
}
