//! `Books`: what is known in memory of chunks in flight and of segments, under one short lock.
//!
//! Invariants:
//! - A chunk that a [`PinGuard`] holds is neither reclaimed nor forgotten; a chunk marked dying can no longer be pinned.
//! - A chunk is either pending (written, no batch refers to it yet, record here) or committed (record in the tree).
//! - A segment is offered for release only when it is closed, holds no live and no pending bytes; once, until it is
//!   released.
//! - No lock is taken and no guard is dropped while the books are locked.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    hash::BuildHasherDefault,
    sync::{Arc, Weak},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use terrace_codec::NumberHasher;
use terrace_pool::SegmentId;
use terrace_store::ChunkId;

use crate::record::{ChunkRecord, Location};

/// What is known of a data segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentState {
    /// Bytes of committed chunks.
    pub live: i64,
    /// Bytes of chunks that no batch refers to yet.
    pub pending: i64,
    /// Takes appends.
    pub open: bool,
    /// On its way to being free.
    pub freeing: bool,
}

/// What the data segments of a device hold together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceContent {
    /// Segments in use.
    pub segments: u64,
    /// Bytes of committed and of pending chunks.
    pub content: i64,
}

type Mix = BuildHasherDefault<NumberHasher>;
type ById<T> = HashMap<ChunkId, T, Mix>;

/// The state behind the lock.
#[derive(Default)]
pub struct Books {
    pins: ById<Weak<PinGuard>>,
    pending: ById<ChunkRecord>,
    pending_hashes: HashMap<[u8; 32], ChunkId, Mix>,
    claimed: HashSet<[u8; 32], Mix>,
    dying: HashSet<ChunkId, Mix>,
    moving: ById<ChunkRecord>,
    /// Of all segments together.
    live_bytes: i64,
    /// By device.
    devices: BTreeMap<u16, DeviceContent>,
    /// Data segments in use.
    pub segments: BTreeMap<SegmentId, SegmentState>,
    /// Segments with nothing in them, to be released.
    pub empty: BTreeSet<SegmentId>,
    /// Released when the batch with this sequence is durable.
    pub freeing: Vec<(u64, SegmentId)>,
}

/// The books and their lock.
#[derive(Default)]
pub struct BookKeeper {
    books: Mutex<Books>,
    unclaimed: Condvar,
}

/// Holds a chunk; see [`terrace_store::Written`].
pub struct PinGuard {
    id: ChunkId,
    keeper: Weak<BookKeeper>,
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.upgrade() {
            keeper.lock().unpin(self.id);
        }
    }
}

/// What a lookup by hash in the pending chunks gave.
pub enum Claim<'a> {
    /// An equal chunk is pending; held by the guard.
    Known(ChunkId, Arc<PinGuard>),
    /// Nobody else writes this content until this is dropped.
    Mine(Claimed<'a>),
}

/// The caller alone writes some content. Others who write the same wait until this is dropped.
pub struct Claimed<'a> {
    keeper: &'a BookKeeper,
    hash: [u8; 32],
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.keeper.books.lock().claimed.remove(&self.hash);
        self.keeper.unclaimed.notify_all();
    }
}

impl BookKeeper {
    /// Locks the books.
    pub fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }

    /// Finds a pending chunk of this content, or makes the caller the only one who writes it; waits for another
    /// caller who is writing it.
    pub fn claim(self: &Arc<Self>, hash: &[u8; 32]) -> Claim<'_> {
        let mut books = self.books.lock();
        loop {
            if let Some(id) = books.pending_hashes.get(hash).copied() {
                let pin = self.pin_locked(&mut books, id);
                return Claim::Known(id, pin);
            }
            if books.claimed.insert(*hash) {
                return Claim::Mine(Claimed {
                    keeper: self,
                    hash: *hash,
                });
            }
            self.unclaimed.wait(&mut books);
        }
    }

    /// Holds a chunk; `None` if it is being reclaimed.
    pub fn pin(self: &Arc<Self>, id: ChunkId) -> Option<Arc<PinGuard>> {
        let mut books = self.books.lock();
        (!books.dying.contains(&id)).then(|| self.pin_locked(&mut books, id))
    }

    fn pin_locked(self: &Arc<Self>, books: &mut Books, id: ChunkId) -> Arc<PinGuard> {
        if let Some(pin) = books.pins.get(&id).and_then(Weak::upgrade) {
            return pin;
        }
        let pin = Arc::new(PinGuard {
            id,
            keeper: Arc::downgrade(self),
        });
        books.pins.insert(id, Arc::downgrade(&pin));
        pin
    }

    /// Enters a chunk that was just appended; its guard keeps it pending.
    pub fn enter(self: &Arc<Self>, id: ChunkId, record: ChunkRecord) -> Arc<PinGuard> {
        let mut books = self.books.lock();
        let pin = self.pin_locked(&mut books, id);
        for location in &record.locations {
            books.add_pending(location.segment, i64::from(record.stored()));
        }
        books.pending_hashes.entry(record.hash).or_insert(id);
        books.pending.insert(id, record);
        pin
    }
}

impl Books {
    fn unpin(&mut self, id: ChunkId) {
        if self.pins.get(&id).is_some_and(|pin| pin.strong_count() == 0) {
            self.pins.remove(&id);
            if let Some(record) = self.take_pending(id) {
                for location in &record.locations {
                    self.add_pending(location.segment, -i64::from(record.stored()));
                }
            }
        }
    }

    /// The record of a pending chunk.
    pub fn pending(&self, id: ChunkId) -> Option<&ChunkRecord> {
        self.pending.get(&id)
    }

    /// Takes a pending chunk out; the caller commits it or lets its bytes go.
    pub fn take_pending(&mut self, id: ChunkId) -> Option<ChunkRecord> {
        let record = self.pending.remove(&id)?;
        if let Entry::Occupied(first) = self.pending_hashes.entry(record.hash)
            && *first.get() == id
        {
            first.remove();
        }
        Some(record)
    }

    /// Moves pending chunk `id` from `old` to `new` after its bytes could not be written; whether it was pending.
    pub fn relocate_pending(&mut self, id: ChunkId, old: &[Location], new: &[Location]) -> bool {
        let Books { pending, moving, .. } = self;
        let Some(record) = pending.get_mut(&id).or_else(|| moving.get_mut(&id)) else {
            return false;
        };
        if record.locations != old {
            return false;
        }
        record.locations = new.to_vec();
        let stored = i64::from(record.stored());
        old.iter()
            .for_each(|location| self.add_pending(location.segment, -stored));
        new.iter()
            .for_each(|location| self.add_pending(location.segment, stored));
        true
    }

    /// Whether a chunk is held.
    pub fn is_pinned(&self, id: ChunkId) -> bool {
        self.pins.get(&id).is_some_and(|pin| pin.strong_count() > 0)
    }

    /// Marks a chunk as being reclaimed, unless it is held or moving.
    pub fn mark_dying(&mut self, id: ChunkId) -> bool {
        !self.is_pinned(id)
            && !self.pending.contains_key(&id)
            && !self.moving.contains_key(&id)
            && self.dying.insert(id)
    }

    /// Whether a chunk is being reclaimed.
    pub fn is_dying(&self, id: ChunkId) -> bool {
        self.dying.contains(&id)
    }

    /// Ends a reclaim.
    pub fn unmark_dying(&mut self, id: ChunkId) {
        self.dying.remove(&id);
    }

    /// Enters the new place of a chunk that is being moved; `false` if it is being reclaimed or moved already.
    pub fn start_move(&mut self, id: ChunkId, record: ChunkRecord) -> bool {
        if self.dying.contains(&id) || self.moving.contains_key(&id) {
            return false;
        }
        for location in &record.locations {
            self.add_pending(location.segment, i64::from(record.stored()));
        }
        self.moving.insert(id, record);
        true
    }

    /// Takes the new place of a moved chunk out; its bytes no longer count as pending.
    pub fn finish_move(&mut self, id: ChunkId) -> Option<ChunkRecord> {
        let record = self.moving.remove(&id)?;
        for location in &record.locations {
            self.add_pending(location.segment, -i64::from(record.stored()));
        }
        Some(record)
    }

    /// The new place of a chunk that is being moved.
    pub fn moving(&self, id: ChunkId) -> Option<&ChunkRecord> {
        self.moving.get(&id)
    }

    /// What is wrong with the books of a store at rest, in words: who has counted pending bytes and never gave them back
    /// keeps a segment for ever.
    pub fn discrepancies(&self) -> Vec<String> {
        let mut counted: BTreeMap<SegmentId, i64> = BTreeMap::new();
        for record in self.pending.values() {
            for location in &record.locations {
                *counted.entry(location.segment).or_default() += i64::from(record.stored());
            }
        }
        let mut wrong = Vec::new();
        for (segment, state) in &self.segments {
            let is = counted.get(segment).copied().unwrap_or(0);
            if state.pending != is {
                let says = state.pending;
                wrong.push(format!(
                    "segment {segment} has {is} pending bytes, memory says {says}"
                ));
            }
        }
        let mut devices: BTreeMap<u16, DeviceContent> = BTreeMap::new();
        for (segment, state) in &self.segments {
            let device = devices.entry(segment.device).or_default();
            device.segments += 1;
            device.content += state.live + state.pending;
        }
        for (device, says) in &self.devices {
            let is = devices.get(device).copied().unwrap_or_default();
            if *says != is {
                wrong.push(format!("device {device} holds {is:?}, memory says {says:?}"));
            }
        }
        for (what, count) in [
            ("moving", self.moving.len()),
            ("dying", self.dying.len()),
            ("being written", self.claimed.len()),
        ] {
            if count > 0 {
                wrong.push(format!(
                    "{count} chunks are still {what} although nobody is at work"
                ));
            }
        }
        wrong
    }

    /// Changes the pending bytes of a segment.
    pub fn add_pending(&mut self, segment: SegmentId, bytes: i64) {
        self.counted(segment, bytes).pending += bytes;
        self.settle(segment);
    }

    /// Changes the live bytes of a segment.
    pub fn add_live(&mut self, segment: SegmentId, bytes: i64) {
        self.counted(segment, bytes).live += bytes;
        self.live_bytes += bytes;
        self.settle(segment);
    }

    /// A segment whose content changes by so many bytes.
    fn counted(&mut self, segment: SegmentId, bytes: i64) -> &mut SegmentState {
        let device = self.devices.entry(segment.device).or_default();
        device.content += bytes;
        self.segments.entry(segment).or_insert_with(|| {
            device.segments += 1;
            SegmentState::default()
        })
    }

    /// What lies on each device.
    pub fn devices(&self) -> impl Iterator<Item = (u16, DeviceContent)> + '_ {
        self.devices.iter().map(|(device, content)| (*device, *content))
    }

    /// Bytes of committed chunks in all segments, each copy counted.
    pub fn live_bytes(&self) -> i64 {
        self.live_bytes
    }

    /// Opens a segment for appends.
    pub fn open_segment(&mut self, segment: SegmentId) {
        self.forget_segment(segment);
        self.counted(segment, 0).open = true;
        self.empty.remove(&segment);
    }

    /// A segment is free, or taken anew: what was known of it is not true any more.
    pub fn forget_segment(&mut self, segment: SegmentId) {
        if let Some(state) = self.segments.remove(&segment) {
            let device = self.devices.entry(segment.device).or_default();
            device.segments -= 1;
            device.content -= state.live + state.pending;
        }
    }

    /// Ends the appends to a segment.
    pub fn close_segment(&mut self, segment: SegmentId) {
        if let Some(state) = self.segments.get_mut(&segment) {
            state.open = false;
        }
        self.settle(segment);
    }

    /// Offers a segment for release if nothing is in it.
    pub fn settle(&mut self, segment: SegmentId) {
        let Some(state) = self.segments.get(&segment) else {
            return;
        };
        if state.live == 0 && state.pending == 0 && !state.open && !state.freeing {
            self.empty.insert(segment);
        } else {
            self.empty.remove(&segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_who_panics_leaves_his_claim() {
        let keeper = Arc::new(BookKeeper::default());
        let (own, hash) = (keeper.clone(), [7; 32]);
        let writer = std::thread::spawn(move || {
            let _claimed = own.claim(&hash);
            assert!(own.lock().claimed.contains(&hash));
            panic!("a test ends here");
        });
        assert!(writer.join().is_err());
        assert!(keeper.lock().claimed.is_empty());
        assert!(matches!(keeper.claim(&hash), Claim::Mine(_)));
        assert!(keeper.lock().claimed.is_empty());
    }
}
