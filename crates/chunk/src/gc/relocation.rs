//! Moving chunks: the mover's rewrite, compaction, evacuation, repair of bad copies.
//!
//! Invariants: what is moved was verified against its hash first, and is copied as it is stored; the records of many
//! chunks are replaced by one batch, of each only if it is still where it was read; nothing that was appended at a new place
//! stays entered in the ledger when a move ends, however it ends; the old bytes stay until the batch is durable.
//! Chunks that lie together are read together (a disk, or a device that counts requests, is slow at one by one) and
//! appended in the order in which the caller names them.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use terrace_pool::{Pool, SegmentId};
use terrace_store::{ChunkId, Owner, Placement, RewriteOutcome, StoreError};
use terrace_sync::{Mutex, rank};

use crate::{
    Handles,
    append::SegmentWriter,
    buffers::{Chunk, OpenSegments},
    catalog::{Begun, Catalog},
    encoding::{ChunkHeader, ChunkRecord, JOINED, Location, compression},
    ledger::{Ledger, PinGuard},
    reading::{ChunkReader, Stored, chunks_in, verified},
    space::{SpaceView, StreamKey},
    stop::Stop,
    worker_pool::Crew,
};

/// Stored bytes that are moved together at most, about, and chunks.
const PAGE_BYTES: usize = 4 << 20;
const PAGE_CHUNKS: usize = 128;
/// Records that are looked up together.
const LOOKED_UP: usize = 32;

/// A chunk that is to be moved.
pub(crate) struct Candidate<'a> {
    pub id: ChunkId,
    pub record: ChunkRecord,
    /// Owner and payload, if they were read together with others and are what the record says.
    pub ahead: Option<(Owner, Cow<'a, [u8]>)>,
    /// Holds it, so that it is not reclaimed meanwhile. None where nothing can be.
    pub pin: Option<Arc<PinGuard>>,
}

/// Owner and payload of a chunk, as far as they were read.
type Found = (Option<Owner>, Option<Vec<u8>>);

/// Chunks that are moved by one batch.
#[derive(Default)]
struct Page {
    candidates: Vec<Candidate<'static>>,
    /// How many of what was asked for were looked at.
    looked_at: usize,
    /// The newest batch when the first of their records was looked up.
    known_at: u64,
}

/// What became of one chunk before its batch.
enum Move {
    /// It was appended at its new place.
    Begun(Begun),
    /// It is there, gone, or not to be moved now.
    Skipped,
    /// Something else moves it.
    Busy,
}

/// Whether the payload of a stored chunk is what its record says.
pub(crate) fn is_good(record: &ChunkRecord, payload: &[u8]) -> bool {
    match record.compression {
        compression::RAW => {
            payload.len() == record.length as usize && *blake3::hash(payload).as_bytes() == record.hash
        }
        _ => verified(record, payload).is_some(),
    }
}

/// The owner in the header of this chunk.
fn owner_in(head: &[u8], id: ChunkId) -> Option<Owner> {
    let header = ChunkHeader::decode(head).ok().filter(|header| header.id == id);
    header.map(|header| header.owner)
}

/// Moves chunks to other places.
pub(crate) struct Relocator {
    pub(super) pool: Arc<Pool>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) open_segments: Arc<OpenSegments>,
    pub(super) crew: Arc<Crew>,
    pub(super) stop: Arc<Stop>,
    pub(super) space: Arc<SpaceView>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) writer: Arc<SegmentWriter>,
    pub(super) reader: Arc<ChunkReader>,
}

impl Relocator {
    /// Of these parts.
    pub(crate) fn new(
        handles: &Handles,
        stop: &Arc<Stop>,
        space: &Arc<SpaceView>,
        catalog: &Arc<Catalog>,
        writer: &Arc<SegmentWriter>,
        reader: &Arc<ChunkReader>,
    ) -> Self {
        Self {
            pool: handles.pool.clone(),
            ledger: handles.ledger.clone(),
            open_segments: handles.open_segments.clone(),
            crew: handles.crew.clone(),
            stop: stop.clone(),
            space: space.clone(),
            catalog: catalog.clone(),
            writer: writer.clone(),
            reader: reader.clone(),
        }
    }

    /// Moves chunks to `placement`. `from`: only those with a copy in this segment, wherever they would go; without it
    /// chunks on the right tier already are skipped.
    pub(crate) fn move_chunks(
        &self,
        ids: &[ChunkId],
        placement: Placement,
        from: Option<SegmentId>,
    ) -> Result<RewriteOutcome, StoreError> {
        self.stop.check_running()?;
        let mut outcome = RewriteOutcome::default();
        let mut rest = ids;
        while !rest.is_empty() {
            let page = self.read_page(rest, placement, from)?;
            rest = rest.get(page.looked_at..).unwrap_or_default();
            outcome.skipped += (page.looked_at - page.candidates.len()) as u64;
            self.move_page(page, placement, from, &mut outcome)?;
        }
        Ok(outcome)
    }

    /// The same for who restores copies: that waits for no rate, but counts.
    pub(crate) fn repair_chunks(
        &self,
        ids: &[ChunkId],
        placement: Placement,
        from: Option<SegmentId>,
    ) -> Result<RewriteOutcome, StoreError> {
        let outcome = self.move_chunks(ids, placement, from)?;
        self.space.rates().take_in_need(&outcome.tier_bytes);
        Ok(outcome)
    }

    /// Appends what was read and changes the records of all of it in one batch; what was appended before an error too.
    fn move_page(
        &self,
        page: Page,
        placement: Placement,
        from: Option<SegmentId>,
        outcome: &mut RewriteOutcome,
    ) -> Result<(), StoreError> {
        let mut begun = Vec::with_capacity(page.candidates.len());
        let result = self.begin_moves(page.candidates, placement, from, outcome, &mut begun);
        // Taken out and committed in one: a relocation in between would look for the chunks here.
        self.end_moves(&begun, page.known_at, outcome)?;
        result
    }

    /// Appends these chunks at their new places, up to the first error.
    pub(super) fn begin_moves(
        &self,
        candidates: Vec<Candidate<'_>>,
        placement: Placement,
        from: Option<SegmentId>,
        outcome: &mut RewriteOutcome,
        begun: &mut Vec<Begun>,
    ) -> Result<(), StoreError> {
        for candidate in candidates {
            match self.begin_move(candidate, placement, from) {
                Ok(Move::Begun(one)) => begun.push(one),
                Ok(Move::Busy) => outcome.busy += 1,
                Ok(Move::Skipped) | Err(StoreError::NoChunk(_)) => outcome.skipped += 1,
                Err(StoreError::Damaged { id, .. }) => outcome.failed.push(id),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Says in one batch where these chunks are now. `known_at`: the newest batch before their records were looked up.
    pub(super) fn end_moves(
        &self,
        begun: &[Begun],
        known_at: u64,
        outcome: &mut RewriteOutcome,
    ) -> Result<(), StoreError> {
        for (one, moved) in begun.iter().zip(self.catalog.commit_moves(begun, known_at)?) {
            match moved {
                true => {
                    outcome.moved += 1;
                    let stored = u64::from(one.old.stored());
                    outcome.moved_bytes += stored;
                    for tier in &one.tiers {
                        *outcome.tier_bytes.entry(*tier).or_default() += stored;
                    }
                }
                false => outcome.busy += 1,
            }
        }
        Ok(())
    }

    /// Whether a chunk is to be moved at all.
    fn is_to_move(&self, record: &ChunkRecord, placement: Placement, from: Option<SegmentId>) -> bool {
        match from {
            Some(segment) => record
                .locations
                .iter()
                .any(|location| location.segment == segment),
            None => !self.lies_at(record, placement),
        }
    }

    /// Looks at the next of `ids`, as many as are moved by one batch, and reads those that lie together with others. What
    /// that does not bring is read by itself.
    fn read_page(
        &self,
        ids: &[ChunkId],
        placement: Placement,
        from: Option<SegmentId>,
    ) -> Result<Page, StoreError> {
        let mut page = Page {
            known_at: self.catalog.newest(),
            ..Page::default()
        };
        let mut bytes = 0;
        'some: for some in ids.chunks(LOOKED_UP) {
            if bytes >= PAGE_BYTES || page.candidates.len() >= PAGE_CHUNKS {
                break;
            }
            let held = some.iter().enumerate().filter_map(|(at, id)| {
                let again = some[..at].contains(id) || page.candidates.iter().any(|other| other.id == *id);
                Some((*id, self.ledger.pin(*id).filter(|_| !again)?))
            });
            let (held, pins): (Vec<ChunkId>, Vec<Arc<PinGuard>>) = held.unzip();
            for ((id, pin), record) in held.iter().zip(pins).zip(self.catalog.records_of(&held)) {
                let record = match record {
                    Ok(record) => record,
                    // What comes before it is moved first.
                    Err(_) if !page.candidates.is_empty() => {
                        page.looked_at += some.iter().position(|other| other == id).unwrap_or(0);
                        break 'some;
                    }
                    Err(error) => return Err(error),
                };
                let Some(record) = record else { continue };
                if self.is_to_move(&record, placement, from) {
                    bytes += record.stored() as usize;
                    page.candidates.push(Candidate {
                        id: *id,
                        record,
                        ahead: None,
                        pin: Some(pin),
                    });
                }
            }
            page.looked_at += some.len();
        }
        let mut wanted: Vec<(usize, bool)> = Vec::with_capacity(2 * page.candidates.len());
        let mut stored: Vec<Stored> = Vec::with_capacity(wanted.capacity());
        for (at, one) in page.candidates.iter().enumerate() {
            if let Some(location) = one.record.locations.first() {
                wanted.extend([(at, true), (at, false)]);
                let payload = Stored::payload(*location, 0..one.record.payload as usize);
                stored.extend([Stored::header(*location), payload]);
            }
        }
        let found = page.candidates.iter();
        let found: Vec<Mutex<Found, rank::Leaf>> = found.map(|_| Mutex::default()).collect();
        self.reader.read_spans(&stored, &|number, bytes| {
            let (at, is_header) = wanted[number];
            let one = &page.candidates[at];
            if is_header {
                found[at].lock().0 = owner_in(bytes, one.id);
            } else if is_good(&one.record, bytes) {
                found[at].lock().1 = Some(bytes.to_vec());
            }
        });
        for (candidate, found) in page.candidates.iter_mut().zip(found) {
            // One without an owner is read by itself: another copy may tell of it.
            let (owner, payload) = found.into_inner();
            candidate.ahead = owner.zip(payload.map(Cow::Owned));
        }
        Ok(page)
    }

    /// Appends one chunk at its new place and enters that in the ledger.
    fn begin_move(
        &self,
        candidate: Candidate<'_>,
        placement: Placement,
        from: Option<SegmentId>,
    ) -> Result<Move, StoreError> {
        let Candidate {
            id,
            mut record,
            mut ahead,
            pin,
        } = candidate;
        let open = record.locations.iter();
        let open: Vec<_> = open
            .filter_map(|location| self.open_segments.find(location.segment))
            .collect();
        if !open.is_empty() {
            // A segment that still takes appends is not emptied: whoever empties it closes it first.
            if from.is_some() {
                return Ok(Move::Skipped);
            }
            // Asked to lie elsewhere: the segment that it was just written to is finished first.
            for open in &open {
                self.writer.close_open(open)?;
            }
            match self.catalog.record(id)? {
                Some(closed) if !self.lies_at(&closed, placement) => record = closed,
                _ => return Ok(Move::Skipped),
            }
            ahead = None;
        }
        let (owner, payload) = match ahead {
            Some(found) => found,
            None => self.verified_payload(id, &record)?,
        };
        let header = ChunkHeader {
            id,
            owner,
            compression: record.compression,
            length: record.length,
            payload: record.payload,
            hash: record.hash,
            distance: JOINED,
        };
        let chunk = Chunk {
            header: &header,
            payload: &payload,
        };
        let (mut started, mut others) = (false, false);
        let on = |location: &Location| self.pool.tier_of(location.segment.device);
        let mut tiers: BTreeSet<u8> = record.locations.iter().filter_map(on).collect();
        self.writer
            .append(StreamKey::of(placement), true, &chunk, &mut |locations| {
                tiers.extend(locations.iter().filter_map(on));
                let mut ledger = self.ledger.lock();
                others = ledger.moving(id).is_some();
                started = ledger.start_move(
                    id,
                    ChunkRecord {
                        locations,
                        ..record.clone()
                    },
                );
            })?;
        Ok(match (started, others) {
            (true, _) => Move::Begun(Begun {
                id,
                _pin: pin,
                old: record,
                tiers: tiers.into_iter().collect(),
            }),
            (false, true) => Move::Busy,
            (false, false) => Move::Skipped,
        })
    }

    fn lies_at(&self, record: &ChunkRecord, placement: Placement) -> bool {
        let Placement::Tier { tier, .. } = placement else {
            return false;
        };
        record
            .locations
            .iter()
            .all(|location| self.pool.tier_of(location.segment.device) == Some(tier))
    }

    /// The stored payload of a chunk, verified, and the owner in its header.
    fn verified_payload(
        &self,
        id: ChunkId,
        record: &ChunkRecord,
    ) -> Result<(Owner, Cow<'static, [u8]>), StoreError> {
        let mut bad = Vec::new();
        for location in &record.locations {
            let payload = Stored::payload(*location, 0..record.payload as usize);
            let read = self.reader.with_stored(payload, |payload| {
                is_good(record, payload).then(|| payload.to_vec())
            });
            match read {
                Ok(Some(payload)) => {
                    if !bad.is_empty() {
                        self.reader.note_bad_copies(id, record, &bad);
                    }
                    return Ok((self.owner_of(id, record), Cow::Owned(payload)));
                }
                Ok(None) => bad.push((*location, "its bytes do not match its hash".into())),
                Err(cause) => bad.push((*location, cause)),
            }
        }
        self.reader.note_bad_copies(id, record, &bad);
        let cause = bad
            .into_iter()
            .next()
            .map_or_else(|| "it has no copy".into(), |(_, cause)| cause);
        Err(StoreError::Damaged { id, cause })
    }

    /// For whom a chunk was first written, as the first sound header among those of its copies says. Damaged headers lose the owner, not
    /// the data.
    fn owner_of(&self, id: ChunkId, record: &ChunkRecord) -> Owner {
        let headers = record.locations.iter().map(|location| Stored::header(*location));
        let mut owners = headers.filter_map(|header| {
            self.reader
                .with_stored(header, |head| owner_in(head, id))
                .ok()
                .flatten()
        });
        owners.next().unwrap_or_default()
    }

    /// Repairs these, and whatever else is to be repaired, as far as there is room.
    pub(crate) fn repair_all(&self, chunks: BTreeSet<ChunkId>) -> Result<(), StoreError> {
        chunks.into_iter().for_each(|id| self.reader.repair_again(id));
        while self.repair_step()? {}
        Ok(())
    }

    /// Replaces the bad copies of remembered chunks by moving them; whether there was anything to do.
    pub(crate) fn repair_step(&self) -> Result<bool, StoreError> {
        let Some(id) = self.reader.next_repair() else {
            return Ok(false);
        };
        if let Some(record) = self.catalog.record(id)?
            && let Some(first) = record.locations.first()
        {
            let tier = self.pool.tier_of(first.segment.device).unwrap_or(0);
            let placement = Placement::Tier { tier, strict: false };
            match self.repair_chunks(&[id], placement, Some(first.segment)) {
                // Another time: what comes after this in a step may be what makes room.
                Err(StoreError::NoSpace) => {
                    self.reader.repair_again(id);
                    return Ok(false);
                }
                outcome => outcome.map(drop)?,
            }
        }
        Ok(true)
    }

    /// The live chunks that the headers in a segment tell of, and whether these are all.
    pub(crate) fn chunks_by_headers(&self, segment: SegmentId) -> Result<(Vec<ChunkId>, bool), StoreError> {
        let live = self
            .ledger
            .lock()
            .segments
            .get(&segment)
            .map_or(0, |state| state.live);
        let mut ids = Vec::new();
        let mut bytes = 0;
        // What cannot be read is looked up in the table instead.
        let tier = self.pool.tier_of(segment.device).unwrap_or(0);
        let places = chunks_in(&self.pool, segment, self.space.piece_bytes(tier), &|| {
            self.space.rest_beside_users(tier)
        });
        let all: Vec<ChunkId> = places.iter().map(|found| found.id).collect();
        for (found, record) in places.into_iter().zip(self.catalog.records_of(&all)) {
            if let Some(record) = record?
                && record.locations.contains(&found.location())
                && ids.last() != Some(&found.id)
            {
                ids.push(found.id);
                bytes += i64::from(record.stored());
            }
        }
        Ok((ids, bytes == live))
    }
}
