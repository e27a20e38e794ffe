//! `LedgerState`: what is known in memory of chunks in flight and of segments, under one short lock.
//!
//! Invariants:
//! - A chunk that a [`PinGuard`] holds is neither reclaimed nor forgotten; a chunk marked dying can no longer be pinned.
//! - A chunk is either pending (written, no batch refers to it yet, record here) or committed (record in the tree).
//! - Content that was written is found by its hash as long as its chunk is held: a batch that refers to the chunk is held until
//!   the tree has the hint, so that whoever writes the same meanwhile finds one or the other. A hash leads only to a chunk that
//!   is held, or whose last guard is just being dropped.
//! - A segment is offered for release only when it is closed, holds no live and no pending bytes; once, until it is
//!   released.
//! - Settled segments are listed by what lives in them, so that nobody walks over all of them under the lock.
//! - No lock is taken and no guard is dropped while the ledger are locked.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    hash::{BuildHasherDefault, Hash},
    ops::Bound,
    sync::{Arc, Weak},
};

use terrace_codec::NumberHasher;
use terrace_pool::{SegmentId, SegmentRange};
use terrace_store::ChunkId;
use terrace_sync::{Condvar, Mutex, MutexGuard, rank};

use crate::encoding::{ChunkRecord, Location};

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
    /// Its live bytes as the list of settled segments has them; 0: it is not there.
    listed: i64,
}

impl SegmentState {
    /// Live bytes, if nothing is appended any more and all that lies here is committed.
    fn settled(&self) -> i64 {
        match self.open || self.freeing || self.pending != 0 {
            true => 0,
            false => self.live.max(0),
        }
    }
}

/// Segments of one device that compaction may take: closed, with committed chunks and nothing pending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Settled {
    /// The emptiest first.
    by_live: BTreeSet<(i64, SegmentId)>,
    live: i64,
}

/// What the data segments of a device hold together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceContent {
    /// Segments in use.
    pub segments: u64,
    /// Bytes of committed chunks.
    pub live: i64,
    /// Bytes of pending ones.
    pub pending: i64,
}

type Mix = BuildHasherDefault<NumberHasher>;
type ById<T> = HashMap<ChunkId, T, Mix>;

/// How a chunk is held.
struct Pin {
    guard: Weak<PinGuard>,
    /// Of a chunk that was written since it is held, what it holds.
    hash: Option<[u8; 32]>,
}

/// The state behind the lock.
#[derive(Default)]
pub struct LedgerState {
    pins: ById<Pin>,
    pending: ById<ChunkRecord>,
    /// Of these, those that nobody is to find by their content.
    unlisted: HashSet<ChunkId, Mix>,
    held_hashes: HashMap<[u8; 32], ChunkId, Mix>,
    claimed: HashSet<[u8; 32], Mix>,
    dying: HashSet<ChunkId, Mix>,
    moving: ById<ChunkRecord>,
    /// Of all segments together.
    live_bytes: i64,
    /// By device.
    devices: BTreeMap<u16, DeviceContent>,
    settled: BTreeMap<u16, Settled>,
    /// Data segments in use.
    pub segments: BTreeMap<SegmentId, SegmentState>,
    /// Segments with nothing in them, to be released.
    pub empty: BTreeSet<SegmentId>,
    /// Released when the batch with this sequence is durable.
    pub freeing: Vec<(u64, SegmentId)>,
}

/// The ledger and their lock.
#[derive(Default)]
pub struct Ledger {
    ledger: Mutex<LedgerState, rank::append::Ledger>,
    unclaimed: Condvar,
}

/// Holds a chunk; see [`terrace_store::Written`].
pub struct PinGuard {
    id: ChunkId,
    ledger: Weak<Ledger>,
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        if let Some(ledger) = self.ledger.upgrade() {
            ledger.lock().unpin(self.id);
        }
    }
}

/// What a lookup by hash in the chunks in flight gave.
pub enum Claim<'a> {
    /// An equal chunk is pending, or being committed; held by the guard.
    Known(ChunkId, Arc<PinGuard>),
    /// Nobody else writes this content until this is dropped.
    Mine(Claimed<'a>),
}

/// The caller alone writes some content. Others who write the same wait until this is dropped.
pub struct Claimed<'a> {
    ledger: &'a Ledger,
    hash: [u8; 32],
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.ledger.ledger.lock().claimed.remove(&self.hash);
        self.ledger.unclaimed.notify_all();
    }
}

/// Segments that a walk looks at under one lock.
const WALKED_AT_ONCE: usize = 1024;

impl Ledger {
    /// Shows what is known of each of these segments, or (`None`) of all. All writers wait for the ledger: it is locked for a page of
    /// them at a time, and not as they are shown.
    pub fn walk(&self, range: Option<SegmentRange>, mut look: impl FnMut(SegmentId, SegmentState)) {
        let mut from = Bound::Included(SegmentId {
            device: range.map_or(0, |range| range.device),
            index: range.map_or(0, |range| range.from),
        });
        loop {
            let page: Vec<(SegmentId, SegmentState)> = {
                let ledger = self.ledger.lock();
                let behind = ledger.segments.range((from, Bound::Unbounded));
                let these = behind.take_while(|(id, _)| range.is_none_or(|range| range.contains(**id)));
                these
                    .take(WALKED_AT_ONCE)
                    .map(|(id, state)| (*id, *state))
                    .collect()
            };
            let Some((last, _)) = page.last() else { return };
            from = Bound::Excluded(*last);
            page.into_iter().for_each(|(id, state)| look(id, state));
        }
    }

    /// What lies in these segments. Of a whole device that is counted already.
    pub fn content_of(&self, range: SegmentRange) -> DeviceContent {
        if range.from == 0 {
            return self
                .lock()
                .devices
                .get(&range.device)
                .copied()
                .unwrap_or_default();
        }
        let mut content = DeviceContent::default();
        self.walk(Some(range), |_, state| {
            content.segments += 1;
            content.live += state.live;
            content.pending += state.pending;
        });
        content
    }

    /// Locks the ledger.
    pub fn lock(&self) -> MutexGuard<'_, LedgerState, rank::append::Ledger> {
        self.ledger.lock()
    }

    /// Finds a chunk in flight with this content, or makes the caller the only one who writes it; waits for another
    /// caller who is writing it.
    pub fn claim(self: &Arc<Self>, hash: &[u8; 32]) -> Claim<'_> {
        let mut ledger = self.ledger.lock();
        loop {
            if let Some(id) = ledger.held_hashes.get(hash).copied() {
                if !ledger.dying.contains(&id) {
                    let pin = self.pin_locked(&mut ledger, id);
                    return Claim::Known(id, pin);
                }
                // Its last guard was let go, and it was taken for reclaiming before that guard came to the ledger.
                ledger.held_hashes.remove(hash);
            }
            if ledger.claimed.insert(*hash) {
                return Claim::Mine(Claimed {
                    ledger: self,
                    hash: *hash,
                });
            }
            self.unclaimed.wait(&mut ledger);
        }
    }

    /// Holds a chunk; `None` if it is being reclaimed.
    pub fn pin(self: &Arc<Self>, id: ChunkId) -> Option<Arc<PinGuard>> {
        let mut ledger = self.ledger.lock();
        (!ledger.dying.contains(&id)).then(|| self.pin_locked(&mut ledger, id))
    }

    fn pin_locked(self: &Arc<Self>, ledger: &mut LedgerState, id: ChunkId) -> Arc<PinGuard> {
        let held = ledger.pins.entry(id).or_insert_with(|| Pin {
            guard: Weak::new(),
            hash: None,
        });
        if let Some(guard) = held.guard.upgrade() {
            return guard;
        }
        let guard = Arc::new(PinGuard {
            id,
            ledger: Arc::downgrade(self),
        });
        held.guard = Arc::downgrade(&guard);
        guard
    }

    /// Enters a chunk that was just appended; its guard keeps it pending.
    pub fn enter(self: &Arc<Self>, id: ChunkId, record: ChunkRecord, is_listed: bool) -> Arc<PinGuard> {
        let mut ledger = self.ledger.lock();
        let pin = self.pin_locked(&mut ledger, id);
        for location in &record.locations {
            ledger.add_pending(location.segment, i64::from(record.stored()));
        }
        match is_listed {
            true => ledger.note_content(id, record.hash),
            false => drop(ledger.unlisted.insert(id)),
        }
        ledger.pending.insert(id, record);
        pin
    }
}

/// Maps with fewer places do not shrink.
const PLACES_KEPT: usize = 1024;

/// Gives back what a map took when it had much more in it; what it takes then, bytes.
fn give_back<K: Eq + Hash, V>(map: &mut HashMap<K, V, Mix>) -> usize {
    if map.capacity() > PLACES_KEPT && map.len() < map.capacity() / 8 {
        map.shrink_to(map.len() * 2);
    }
    // A byte of each place is the map's own, and an eighth of them is always free.
    map.capacity() * (size_of::<(K, V)>() + 1) / 7 * 8
}

impl LedgerState {
    /// About what the ledger take in RAM, bytes; what they took at a busier time is given back first.
    pub fn memory_bytes(&mut self) -> u64 {
        let guards = self.pins.len() * size_of::<PinGuard>();
        let maps = give_back(&mut self.pins)
            + give_back(&mut self.pending)
            + give_back(&mut self.held_hashes)
            + give_back(&mut self.moving);
        let segments = self.segments.len() * size_of::<(SegmentId, SegmentState)>() * 3 / 2;
        (guards + maps + segments) as u64
    }

    /// Notes what a chunk that was just written, and is held, holds.
    fn note_content(&mut self, id: ChunkId, hash: [u8; 32]) {
        if let Some(pin) = self.pins.get_mut(&id) {
            pin.hash = Some(hash);
            self.held_hashes.entry(hash).or_insert(id);
        }
    }

    fn unpin(&mut self, id: ChunkId) {
        // Whoever took hold of the chunk between the drop of its last guard and this lets go of it later.
        if let Entry::Occupied(held) = self.pins.entry(id)
            && held.get().guard.strong_count() == 0
        {
            if let Some(hash) = held.remove().hash {
                self.forget_content(id, &hash);
            }
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

    /// Takes a pending chunk out; the caller commits it or lets its bytes go. Its content is found as long as it is held.
    pub fn take_pending(&mut self, id: ChunkId) -> Option<ChunkRecord> {
        self.unlisted.remove(&id);
        self.pending.remove(&id)
    }

    /// Whether a pending chunk may be found by its content.
    pub fn is_listed(&self, id: ChunkId) -> bool {
        !self.unlisted.contains(&id)
    }

    /// Nobody who writes this content from now on is given this chunk for it.
    pub fn forget_content(&mut self, id: ChunkId, hash: &[u8; 32]) {
        if let Entry::Occupied(first) = self.held_hashes.entry(*hash)
            && *first.get() == id
        {
            first.remove();
        }
    }

    /// Moves pending chunk `id` from `old` to `new` after its bytes could not be written; whether it was pending.
    pub fn relocate_pending(&mut self, id: ChunkId, old: &[Location], new: &[Location]) -> bool {
        let LedgerState { pending, moving, .. } = self;
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
        self.pins.get(&id).is_some_and(|pin| pin.guard.strong_count() > 0)
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

    /// What is wrong with the ledger of a store at rest, in words: who has counted pending bytes and never gave them back
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
            device.live += state.live;
            device.pending += state.pending;
        }
        let live: i64 = self.segments.values().map(|state| state.live).sum();
        if self.live_bytes != live {
            let says = self.live_bytes;
            wrong.push(format!("{live} bytes are live in all, memory says {says}"));
        }
        for (device, says) in &self.devices {
            let is = devices.get(device).copied().unwrap_or_default();
            if *says != is {
                wrong.push(format!("device {device} holds {is:?}, memory says {says:?}"));
            }
        }
        let mut settled: BTreeMap<u16, Settled> = BTreeMap::new();
        for (segment, state) in self.segments.iter().filter(|(_, state)| state.settled() > 0) {
            let here = settled.entry(segment.device).or_default();
            here.by_live.insert((state.live, *segment));
            here.live += state.live;
        }
        let listed = self.settled.iter().filter(|(_, here)| !here.by_live.is_empty());
        if !listed.eq(settled.iter()) {
            wrong.push("the list of settled segments is not what the segments are".into());
        }
        let astray = |(_, id): &(&[u8; 32], &ChunkId)| !self.pins.contains_key(id);
        let astray = self.held_hashes.iter().filter(astray).count();
        if astray > 0 {
            wrong.push(format!("{astray} hashes lead to chunks that nobody holds"));
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
        self.counted(segment).pending += bytes;
        self.devices.entry(segment.device).or_default().pending += bytes;
        self.settle(segment);
    }

    /// Changes the live bytes of a segment.
    pub fn add_live(&mut self, segment: SegmentId, bytes: i64) {
        self.counted(segment).live += bytes;
        self.devices.entry(segment.device).or_default().live += bytes;
        self.live_bytes += bytes;
        self.settle(segment);
    }

    /// A segment in use, and counted as such.
    fn counted(&mut self, segment: SegmentId) -> &mut SegmentState {
        self.segments.entry(segment).or_insert_with(|| {
            self.devices.entry(segment.device).or_default().segments += 1;
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
        self.counted(segment).open = true;
        self.empty.remove(&segment);
    }

    /// A segment is free, or taken anew: what was known of it is not true any more.
    pub fn forget_segment(&mut self, segment: SegmentId) {
        if let Some(state) = self.segments.remove(&segment) {
            self.list(segment, state.listed, 0);
            let device = self.devices.entry(segment.device).or_default();
            device.segments -= 1;
            device.live -= state.live;
            device.pending -= state.pending;
            self.live_bytes -= state.live;
        }
    }

    /// Ends the appends to a segment.
    pub fn close_segment(&mut self, segment: SegmentId) {
        if let Some(state) = self.segments.get_mut(&segment) {
            state.open = false;
        }
        self.settle(segment);
    }

    /// Changes the place of a segment in the list of settled ones: its live bytes there, 0 where it is not.
    fn list(&mut self, segment: SegmentId, old: i64, new: i64) {
        if old == new {
            return;
        }
        let here = self.settled.entry(segment.device).or_default();
        if old > 0 {
            here.by_live.remove(&(old, segment));
        }
        if new > 0 {
            here.by_live.insert((new, segment));
        }
        here.live += new - old;
    }

    /// How many segments of a device are settled, and their live bytes.
    pub fn settled_on(&self, device: u16) -> (i64, i64) {
        let here = self.settled.get(&device);
        here.map_or((0, 0), |here| (here.by_live.len() as i64, here.live))
    }

    /// Live bytes of a segment, if it is settled.
    pub fn settled_bytes(&self, segment: SegmentId) -> Option<i64> {
        let listed = self.segments.get(&segment).map(|state| state.listed);
        listed.filter(|live| *live > 0)
    }

    /// The emptiest settled segments of these devices behind `after`, of those that `may` be taken: live bytes and which, ascending, `few`
    /// at most. It looks at no more than these and those that may not.
    pub fn emptiest(
        &self,
        devices: &[u16],
        after: Option<(i64, SegmentId)>,
        few: usize,
        may: impl Fn(SegmentId) -> bool,
    ) -> Vec<(i64, SegmentId)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut found = Vec::new();
        for here in devices.iter().filter_map(|device| self.settled.get(device)) {
            let range = here.by_live.range((from, Bound::Unbounded));
            found.extend(range.filter(|(_, id)| may(*id)).take(few));
        }
        found.sort_unstable();
        found.truncate(few);
        found
    }

    /// Offers a segment for release if nothing is in it, and for compaction if all that is in it is committed.
    pub fn settle(&mut self, segment: SegmentId) {
        let Some(state) = self.segments.get_mut(&segment) else {
            return;
        };
        let new = state.settled();
        let old = std::mem::replace(&mut state.listed, new);
        let state = *state;
        self.list(segment, old, new);
        if state.live == 0 && state.pending == 0 && !state.open && !state.freeing {
            self.empty.insert(segment);
        } else {
            self.empty.remove(&segment);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn record(hash: [u8; 32]) -> ChunkRecord {
        ChunkRecord {
            compression: 0,
            length: 4096,
            payload: 4096,
            hash,
            locations: Vec::new(),
            sums: Vec::new(),
        }
    }

    #[test]
    fn content_is_found_from_when_it_is_written_until_its_chunk_is_let_go() {
        let ledger = Arc::new(Ledger::default());
        let hash = [7; 32];
        let written = ledger.enter(ChunkId(1), record(hash), true);
        assert!(matches!(ledger.claim(&hash), Claim::Known(ChunkId(1), _)));
        // As a commit does, which has not come to the tree yet.
        assert!(ledger.lock().take_pending(ChunkId(1)).is_some());
        let Claim::Known(ChunkId(1), another) = ledger.claim(&hash) else {
            panic!("what is being committed was not found");
        };
        drop(written);
        assert!(matches!(ledger.claim(&hash), Claim::Known(ChunkId(1), _)));
        assert!(!ledger.lock().mark_dying(ChunkId(1)));
        drop(another);
        assert!(matches!(ledger.claim(&hash), Claim::Mine(_)));
        assert_eq!(ledger.lock().discrepancies(), Vec::<String>::new());
        assert!(ledger.lock().held_hashes.is_empty() && ledger.lock().pins.is_empty());
    }

    #[test]
    fn content_whose_chunk_is_being_reclaimed_is_not_found() {
        let ledger = Arc::new(Ledger::default());
        let hash = [7; 32];
        let written = ledger.enter(ChunkId(1), record(hash), true);
        assert!(ledger.lock().take_pending(ChunkId(1)).is_some());
        {
            // The guard is gone, and has not come to the ledger yet.
            let mut ledger = ledger.lock();
            let pin = ledger.pins.get_mut(&ChunkId(1)).unwrap();
            pin.guard = Weak::new();
            assert!(ledger.mark_dying(ChunkId(1)));
        }
        let Claim::Mine(claimed) = ledger.claim(&hash) else {
            panic!("what is being reclaimed was found");
        };
        let again = ledger.enter(ChunkId(2), record(hash), true);
        drop(claimed);
        drop(written);
        assert!(matches!(ledger.claim(&hash), Claim::Known(ChunkId(2), _)));
        drop(again);
        assert!(ledger.lock().held_hashes.is_empty());
    }

    #[test]
    fn whoever_takes_hold_of_a_chunk_as_its_last_guard_goes_keeps_its_content_findable() {
        let ledger = Arc::new(Ledger::default());
        let hash = [7; 32];
        let written = ledger.enter(ChunkId(1), record(hash), true);
        assert!(ledger.lock().take_pending(ChunkId(1)).is_some());
        // The guard is gone, and has not come to the ledger yet.
        ledger.lock().pins.get_mut(&ChunkId(1)).unwrap().guard = Weak::new();
        let later = ledger.pin(ChunkId(1)).unwrap();
        drop(written);
        assert!(matches!(ledger.claim(&hash), Claim::Known(ChunkId(1), _)));
        drop(later);
        assert!(matches!(ledger.claim(&hash), Claim::Mine(_)));
        assert!(ledger.lock().held_hashes.is_empty() && ledger.lock().pins.is_empty());
    }

    #[test]
    fn a_writer_who_panics_leaves_his_claim() {
        let ledger = Arc::new(Ledger::default());
        let (own, hash) = (ledger.clone(), [7; 32]);
        let writer = std::thread::spawn(move || {
            let _claimed = own.claim(&hash);
            assert!(own.lock().claimed.contains(&hash));
            panic!("a test ends here");
        });
        assert!(writer.join().is_err());
        assert!(ledger.lock().claimed.is_empty());
        assert!(matches!(ledger.claim(&hash), Claim::Mine(_)));
        assert!(ledger.lock().claimed.is_empty());
    }

    #[test]
    fn the_emptiest_segments_are_found_without_a_look_at_the_others() {
        let mut ledger = LedgerState::default();
        let segment = |index: u32| SegmentId {
            device: (index % 3) as u16,
            index,
        };
        for index in 0..100_000 {
            ledger.add_live(segment(index), 1000 + i64::from(index * 7 % 100_003));
        }
        let mut all: Vec<(i64, SegmentId)> = ledger
            .segments
            .iter()
            .map(|(id, state)| (state.live, *id))
            .collect();
        all.retain(|(_, id)| id.device != 1);
        all.sort_unstable();
        let looked_at = std::cell::Cell::new(0);
        let may = |id: SegmentId| {
            looked_at.set(looked_at.get() + 1);
            id != all[2].1
        };
        let found = ledger.emptiest(&[0, 2], None, 16, may);
        let expected: Vec<_> = all
            .iter()
            .filter(|(_, id)| *id != all[2].1)
            .take(16)
            .copied()
            .collect();
        assert_eq!(found, expected);
        assert!(looked_at.get() <= 2 * 16 + 1, "it looked at {}", looked_at.get());
        assert_eq!(
            ledger.emptiest(&[0, 2], found.last().copied(), 1, |_| true),
            [all[17]]
        );
        assert_eq!(ledger.settled_on(0).0 + ledger.settled_on(2).0, all.len() as i64);
        assert_eq!(ledger.discrepancies(), Vec::<String>::new());
    }

    #[test]
    fn a_walk_shows_each_segment_of_its_range_once_and_holds_nobody_up() {
        let ledger = Ledger::default();
        let segment = |device, index| SegmentId { device, index };
        for index in 0..3 * WALKED_AT_ONCE as u32 {
            ledger
                .lock()
                .add_live(segment((index % 3) as u16, index / 3), 1 + i64::from(index));
        }
        ledger.lock().add_pending(segment(1, 500), 7);
        let walked = |range| {
            let mut seen = Vec::new();
            ledger.walk(range, |id, state| {
                assert!(ledger.ledger.try_lock().is_some(), "writers are held up");
                seen.push((id, state));
            });
            seen
        };
        let all: Vec<_> = ledger.lock().segments.clone().into_iter().collect();
        assert_eq!(walked(None), all);
        for range in [
            SegmentRange::whole(1),
            SegmentRange { device: 1, from: 500 },
            SegmentRange {
                device: 2,
                from: 5000,
            },
        ] {
            let here: Vec<_> = all
                .iter()
                .copied()
                .filter(|(id, _)| range.contains(*id))
                .collect();
            assert_eq!(walked(Some(range)), here);
            let content = DeviceContent {
                segments: here.len() as u64,
                live: here.iter().map(|(_, state)| state.live).sum(),
                pending: here.iter().map(|(_, state)| state.pending).sum(),
            };
            assert_eq!(ledger.content_of(range), content);
        }
    }

    #[test]
    fn what_is_open_pending_or_gone_is_not_settled() {
        let mut ledger = LedgerState::default();
        let id = SegmentId { device: 0, index: 1 };
        let settled = |ledger: &LedgerState| (ledger.settled_on(0), ledger.settled_bytes(id));
        ledger.open_segment(id);
        ledger.add_live(id, 100);
        assert_eq!(settled(&ledger), ((0, 0), None));
        ledger.add_pending(id, 5);
        ledger.close_segment(id);
        assert_eq!(settled(&ledger), ((0, 0), None));
        ledger.add_pending(id, -5);
        assert_eq!(settled(&ledger), ((1, 100), Some(100)));
        ledger.add_live(id, -30);
        assert_eq!(settled(&ledger), ((1, 70), Some(70)));
        assert_eq!(ledger.discrepancies(), Vec::<String>::new());
        ledger.add_live(id, -70);
        assert_eq!(settled(&ledger), ((0, 0), None));
        assert!(ledger.empty.contains(&id));
        ledger.add_live(id, 9);
        ledger.forget_segment(id);
        assert_eq!((settled(&ledger), ledger.live_bytes()), (((0, 0), None), 0));
        assert_eq!(ledger.discrepancies(), Vec::<String>::new());
    }
}
