//! Which segments of metadata a root lists.
//!
//! A root has room for so many (see `listed`). What was replaced since the root before stays where it is until the next one is
//! durable, and takes segments until then: a root that does without it does not list these, so that deleting and merging lead
//! back below the limit also from beyond it.
//!
//! Invariant: a root lists every segment in which something lies that its manifest names.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

use terrace_codec::Writer;
use terrace_meta::Extent;
use terrace_pool::ROOT_BYTES_MAX;

use super::storage::{MetaSegment, MetaStorage, State, parts, room};

/// What one segment takes in a root, bytes.
const LISTED_BYTES: usize = 16;
/// What is kept in a root for everything else, bytes.
const ROOT_REST_BYTES: usize = 4096;
/// Segments that a root can list at most.
pub(crate) const LISTED_MOST: u64 = ((ROOT_BYTES_MAX - ROOT_REST_BYTES) / LISTED_BYTES) as u64;

impl MetaStorage {
    /// Appends the list of segments, for a root that does without the extents in `dropped`: where only these lie, nothing of it does.
    pub fn encode(&self, writer: &mut Writer, dropped: &[Extent]) {
        let state = self.state.lock();
        let left_out = state.only_with(dropped);
        let count = state.segments.len() - left_out.len();
        writer.u32(state.next).u32(count as u32);
        let listed = state.segments.iter();
        for (number, segment) in listed.filter(|(number, _)| !left_out.contains(number)) {
            writer.u32(*number);
            segment.copies.encode(writer);
        }
    }

    /// Metadata segments that such a root lists, and how many of them one can at most, beside a manifest that lies elsewhere.
    pub fn listed(&self, dropped: &[Extent]) -> (u64, u64) {
        let state = self.state.lock();
        let listed = state.segments.len() - state.only_with(dropped).len();
        (listed as u64, self.listed_most.load(Ordering::Relaxed))
    }

    /// As if a root could list so many.
    #[cfg(test)]
    pub(crate) fn list_at_most(&self, segments: u64) {
        self.listed_most.store(segments, Ordering::Relaxed);
    }

    /// The metadata segment with the least in it, when less than half of all is live: rewriting what is in it gives
    /// it back. What is in `dropped` does not count as live.
    pub fn emptiest(&self, dropped: &[Extent]) -> Option<u32> {
        let state = self.state.lock();
        let dead = room_by_segment(dropped);
        let live = |number: &u32, segment: &MetaSegment| {
            segment
                .live
                .saturating_sub(dead.get(number).copied().unwrap_or(0))
        };
        let open = state.open.map(|(number, _)| number);
        let count = state.segments.len() - state.only_with(dropped).len();
        let total = count as u64 * u64::from(self.pool.segment_bytes());
        let live_bytes = state.live_bytes.saturating_sub(dead.values().sum());
        if count < 4 || live_bytes * 2 > total {
            return None;
        }
        let closed = state
            .segments
            .iter()
            .filter(|(n, _)| Some(**n) != open && !state.writing.contains_key(n));
        let least = closed
            .map(|(number, segment)| (*number, live(number, segment)))
            .filter(|(_, live)| *live > 0)
            .min_by_key(|(_, live)| *live)?;
        (least.1 < u64::from(self.pool.segment_bytes()) / 2).then_some(least.0)
    }
}

impl State {
    /// Closed segments in which nothing lives but these extents.
    fn only_with(&self, extents: &[Extent]) -> BTreeSet<u32> {
        let open = self.open.map(|(number, _)| number);
        let is_closed = |number: &u32| Some(*number) != open && !self.writing.contains_key(number);
        let these = room_by_segment(extents).into_iter();
        these
            .filter(|(number, room)| {
                let segment = self.segments.get(number);
                is_closed(number) && segment.is_some_and(|segment| segment.live <= *room)
            })
            .map(|(number, _)| number)
            .collect()
    }
}

/// What these extents take of each segment.
fn room_by_segment(extents: &[Extent]) -> BTreeMap<u32, u64> {
    let mut rooms = BTreeMap::new();
    for extent in extents {
        *rooms.entry(parts(*extent).0).or_default() += room(extent.bytes);
    }
    rooms
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use terrace_codec::Reader;
    use terrace_device::{Device, MemoryDevice, SeededRandomness};
    use terrace_log::Copies;
    use terrace_meta::ExtentStorage;
    use terrace_pool::{CreateOptions, Parallelism, Pool, SegmentId, TierSettings};

    use super::*;

    fn storage() -> MetaStorage {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("d", 16 << 20));
        let options = CreateOptions {
            name: "tank".into(),
            tiers: vec![(TierSettings::named("only"), vec![device])],
            properties: BTreeMap::new(),
            segment_bytes: Some(1 << 20),
            created_nanoseconds: 0,
            force: false,
            parallelism: Parallelism::Sequential,
        };
        MetaStorage::new(Arc::new(
            Pool::create(options, &SeededRandomness::new(7)).unwrap(),
        ))
    }

    #[test]
    fn what_goes_with_a_root_takes_no_place_in_it() {
        let storage = storage();
        let half = vec![7; 1 << 19];
        let extents: Vec<Extent> = (0..7).map(|_| storage.write(&half).unwrap()).collect();
        let listed = |dropped: &[Extent]| {
            let mut list = Writer::new();
            storage.encode(&mut list, dropped);
            let read = MetaStorage::decode(storage.pool.clone(), &mut Reader::new(list.as_bytes())).unwrap();
            let numbers: Vec<u32> = read.state.lock().segments.keys().copied().collect();
            assert_eq!(storage.listed(dropped).0, numbers.len() as u64);
            numbers
        };
        assert_eq!(listed(&[]), [1, 2, 3, 4]);
        // Of the second segment all, of the third one half; the last is open.
        assert_eq!(
            listed(&[extents[2], extents[3], extents[4], extents[6]]),
            [1, 3, 4]
        );
    }

    #[test]
    fn what_is_listed_fits_in_a_root_up_to_the_limit() {
        let storage = storage();
        let (_, most) = storage.listed(&[]);
        let mut list = Writer::new();
        list.u32(u32::MAX).u32(most as u32);
        for number in 0..most as u32 {
            list.u32(number);
            let copy = |device| {
                Some(SegmentId {
                    device,
                    index: number,
                })
            };
            Copies([copy(0), copy(1)]).encode(&mut list);
        }
        let listed = MetaStorage::decode(storage.pool.clone(), &mut Reader::new(list.as_bytes())).unwrap();
        assert_eq!(listed.listed(&[]), (most, most));
        let mut again = Writer::new();
        listed.encode(&mut again, &[]);
        assert_eq!(again.as_bytes(), list.as_bytes());
        let length = again.as_bytes().len();
        assert!(
            (ROOT_BYTES_MAX - 5000..=ROOT_BYTES_MAX - 4000).contains(&length),
            "{length}"
        );
    }
}
