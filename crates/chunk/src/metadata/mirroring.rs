//! Where the copies of metadata segments lie: off a device that is to leave, and back to two devices where there was room on
//! one only.
//!
//! Invariants: a copy is in use until a root that lists the new one is durable; what is copied was read alike several times,
//! since nothing here knows the sums of tables; a segment that is being written is left alone.

use std::collections::BTreeSet;

use terrace_device::AlignedBuffer;
use terrace_log::Copies;
use terrace_meta::{Extent, ExtentError, ExtentStorage};
use terrace_pool::{Request, SegmentId, SegmentKind, SegmentRange, TierChoice};

use super::storage::{MetaStorage, State, extent_at, extent_error, parts};

/// Reads of one place that must agree before it is copied, and how many are tried.
const READS_THAT_AGREE: u32 = 3;
const READS_MAX: u32 = 12;
/// Bytes that are copied or compared at once.
const PIECE: u64 = 1 << 20;

/// A request for a segment for metadata.
pub(crate) fn request(avoid: &[u16], leave_free: u64) -> Request<'_> {
    Request {
        choice: TierChoice::Fastest,
        kind: SegmentKind::Metadata,
        avoid,
        garbage: &[],
        leave_free,
    }
}

impl MetaStorage {
    /// Copies one metadata segment off `range`; `false` when there is none there. The old copy stays in use until
    /// [`release_replaced`](Self::release_replaced), after a root was written.
    pub fn move_off(&self, range: SegmentRange) -> Result<bool, ExtentError> {
        let (number, copies) = {
            let mut state = self.state.lock();
            let State {
                segments,
                open,
                writing,
                ..
            } = &mut *state;
            let here = |copies: &Copies| copies.iter().any(|copy| range.contains(copy));
            let found = segments
                .iter()
                .find(|(number, segment)| here(&segment.copies) && !writing.contains_key(number));
            let Some((number, segment)) = found else {
                return Ok(false);
            };
            if open.is_some_and(|(open, _)| open == *number) {
                *open = None;
            }
            (*number, segment.copies)
        };
        let staying = copies.iter().filter(|copy| !range.contains(*copy));
        let avoid: Vec<u16> = staying.map(|copy| copy.device).collect();
        // With no third device the segment goes on with the copy that it has elsewhere, or with one new copy. A copy
        // elsewhere that says something else may be the bad one (its device had failed when it was written): then both
        // are kept, if need be on one device.
        let spare = !avoid.is_empty();
        let new = match self.pool.allocate(&request(&avoid, 0)) {
            Ok(new) => Some(new),
            Err(_) if spare && !self.knows_more(copies, range) => None,
            Err(_) => Some(self.pool.allocate(&request(&[], 0)).map_err(extent_error)?),
        };
        let kept = copies.iter().find(|copy| !range.contains(*copy));
        if let Some(new) = new {
            self.copy_to(copies, Some(range), new)?;
        }
        self.replace_copies(number, Copies([kept.or(new), kept.and(new)]), new);
        Ok(true)
    }

    /// Gives one metadata segment that lies on one device only, since no other had room, its second copy on another one;
    /// `false` when there is none such, or still no room. `leave_free`: segments of the pool that this is not to take.
    pub fn mirror_one(&self, leave_free: u64) -> Result<bool, ExtentError> {
        let (number, copy, new) = {
            let mut state = self.state.lock();
            let found = state.segments.iter().find_map(|(number, segment)| {
                let mut copies = segment.copies.iter();
                let (copy, another) = (copies.next()?, copies.next());
                let is_alone = another.is_none() && segment.live > 0 && self.pool.has_segment(copy);
                (is_alone && !state.writing.contains_key(number)).then_some((*number, copy))
            });
            let Some((number, copy)) = found else {
                return Ok(false);
            };
            let Ok(new) = self.pool.allocate(&request(&[copy.device], leave_free)) else {
                return Ok(false);
            };
            state.open = state.open.filter(|(open, _)| *open != number);
            (number, copy, new)
        };
        self.copy_to(Copies([Some(copy), None]), None, new)?;
        self.replace_copies(number, Copies([Some(copy), Some(new)]), Some(new));
        Ok(true)
    }

    /// The metadata segments whose copies both lie on one device that is there, as they said different things when the other
    /// one left: which of them is good is known of each table only, so that these are written anew.
    pub fn doubled(&self) -> BTreeSet<u32> {
        let state = self.state.lock();
        let is_doubled = |copies: Copies| match copies.0 {
            [Some(first), Some(second)] => first.device == second.device && self.pool.has_segment(first),
            _ => false,
        };
        let segments = state.segments.iter();
        let doubled = segments.filter(|(number, segment)| {
            segment.live > 0 && is_doubled(segment.copies) && !state.writing.contains_key(number)
        });
        doubled.map(|(number, _)| *number).collect()
    }

    /// Durable extents that one copy of their segment lacks: its device failed the write or the flush. They are to be written
    /// anew, since a root lists copies of whole segments.
    pub fn under_mirrored(&self) -> Vec<Extent> {
        self.state.lock().under_mirrored.iter().copied().collect()
    }

    /// Metadata segments in use that have no copy on a device that is there.
    pub fn out_of_reach(&self) -> u64 {
        let state = self.state.lock();
        let gone = |copies: &Copies| !copies.iter().any(|copy| self.pool.has_segment(copy));
        let segments = state.segments.values();
        let gone = segments.filter(|segment| segment.live > 0 && gone(&segment.copies));
        gone.count() as u64
    }

    /// The devices that are not there and have the only copies of metadata in use, ascending.
    pub fn devices_out_of_reach(&self) -> Vec<u16> {
        let state = self.state.lock();
        let mut devices: Vec<u16> = state
            .segments
            .values()
            .filter(|segment| segment.live > 0)
            .map(|segment| segment.copies)
            .filter(|copies| !copies.iter().any(|copy| self.pool.has_segment(copy)))
            .flat_map(|copies| copies.0.into_iter().flatten().map(|copy| copy.device))
            .collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// Forgets the copy of the root if it lies in `range`: the next checkpoint makes another.
    pub fn forget_root_copy(&self, range: SegmentRange) {
        let forgotten = {
            let mut state = self.state.lock();
            let here = |number: u32| {
                let segment = state.segments.get(&number);
                segment.is_some_and(|segment| segment.copies.iter().any(|copy| range.contains(copy)))
            };
            match state.root_copy {
                Some(extent) if here(parts(extent).0) => state.root_copy.take(),
                _ => None,
            }
        };
        if let Some(extent) = forgotten {
            self.release(&[extent]);
        }
    }

    /// From now on a segment has these copies, of which `new` was just made; others that it had are released after the next
    /// root.
    fn replace_copies(&self, number: u32, copies: Copies, new: Option<SegmentId>) {
        let mut state = self.state.lock();
        let State {
            segments,
            replaced,
            has_unlisted,
            unflushed,
            ..
        } = &mut *state;
        let Some(segment) = segments.get_mut(&number) else {
            // Nothing in it lives any more: it went meanwhile, with the copies that it had.
            replaced.extend(new);
            return;
        };
        *has_unlisted = true;
        let old = std::mem::replace(&mut segment.copies, copies);
        if let Some(new) = new {
            let leaving = old.iter().filter(|old| copies.iter().all(|copy| copy != *old));
            let mut sources: Vec<u16> = leaving.map(|copy| copy.device).collect();
            if sources.is_empty() {
                sources.extend(old.iter().map(|copy| copy.device));
            }
            let (from, to) = (extent_at(number, 0, 0), extent_at(number.saturating_add(1), 0, 0));
            unflushed.copied(from, to, &sources, new.device);
        }
        replaced.extend(old.iter().filter(|old| copies.iter().all(|copy| copy != *old)));
    }

    /// Whether a copy in `range` can be read and says something that a copy elsewhere does not.
    fn knows_more(&self, copies: Copies, range: SegmentRange) -> bool {
        let (mut gone, mut kept) = (AlignedBuffer::default(), AlignedBuffer::default());
        let (leaving, staying): (Vec<_>, Vec<_>) = copies.iter().partition(|copy| range.contains(*copy));
        let mut pieces = (0..u64::from(self.pool.segment_bytes())).step_by(PIECE as usize);
        pieces.any(|offset| {
            let reads = |segment: &SegmentId, buffer: &mut AlignedBuffer| {
                let bytes = buffer.reuse(PIECE as usize);
                self.pool.read(*segment, offset, bytes).is_ok()
            };
            leaving.iter().any(|segment| {
                reads(segment, &mut gone)
                    && staying
                        .iter()
                        .any(|segment| !reads(segment, &mut kept) || gone[..] != kept[..])
            })
        })
    }

    /// Copies a segment into `to`, which is free again if that fails. `leaving`: where the copy lies that goes away.
    fn copy_to(
        &self,
        copies: Copies,
        leaving: Option<SegmentRange>,
        to: SegmentId,
    ) -> Result<(), ExtentError> {
        let copied = self.copy_segment(copies, leaving, to);
        if copied.is_err()
            && let Err(error) = self.pool.release(to)
        {
            tracing::error!(segment = %to, %error, "a segment could not be released");
        }
        copied
    }

    fn copy_segment(
        &self,
        copies: Copies,
        range: Option<SegmentRange>,
        to: SegmentId,
    ) -> Result<(), ExtentError> {
        if !copies.iter().any(|copy| self.pool.has_segment(copy)) {
            return Err(describe_alone(copies, "which is missing"));
        }
        let mut buffer = AlignedBuffer::with_capacity(PIECE as usize);
        for offset in (0..u64::from(self.pool.segment_bytes())).step_by(PIECE as usize) {
            let mut read = Err(ExtentError::Failed("a metadata segment has no copy".into()));
            // The copy that goes away is the one that is copied: what is bad in the other stays good in this one.
            let (leaving, staying): (Vec<_>, Vec<_>) = copies
                .iter()
                .partition(|segment| range.is_some_and(|range| range.contains(*segment)));
            for segment in leaving.into_iter().chain(staying) {
                read = self.read_surely(segment, offset, &mut buffer);
                if read.is_ok() {
                    break;
                }
            }
            read.map_err(|error| describe_alone(copies, &format!("which cannot be read ({error})")))?;
            self.pool.write(to, offset, &buffer).map_err(extent_error)?;
        }
        self.pool.flush(&[to.device]).map_err(extent_error)
    }

    /// Reads a piece until several reads agree: nothing here knows the sums of tables, and what a device misreads once
    /// would be all that is left of them.
    fn read_surely(
        &self,
        segment: SegmentId,
        offset: u64,
        buffer: &mut AlignedBuffer,
    ) -> Result<(), ExtentError> {
        let mut again = AlignedBuffer::with_capacity(PIECE as usize);
        let mut agreed = 0;
        for _ in 0..READS_MAX {
            let read = self.pool.read(segment, offset, again.reuse(PIECE as usize));
            read.map_err(extent_error)?;
            agreed = if buffer[..] == again[..] { agreed + 1 } else { 1 };
            if agreed == READS_THAT_AGREE {
                return Ok(());
            }
            std::mem::swap(buffer, &mut again);
        }
        Err(ExtentError::Failed(format!(
            "segment {segment} reads differently each time"
        )))
    }
}

impl State {
    /// Ends an extent's wait for a flush, which covered one copy at least. `lacks`: whether a device failed that flush.
    pub(crate) fn end_flush(&mut self, extent: Extent, lacks: impl Fn(u16) -> bool) {
        let copies = self.segments.get(&parts(extent).0).map(|segment| segment.copies);
        let took = self.unflushed.devices(extent);
        let has_it = |copy: SegmentId| took.contains(&copy.device) && !lacks(copy.device);
        let is_everywhere = copies.is_none_or(|copies| copies.iter().all(has_it));
        if self.unflushed.is_needed(extent) && !is_everywhere {
            self.under_mirrored.insert(extent);
        }
        self.unflushed.remove(extent);
    }
}

/// Why a segment of metadata cannot be copied off these devices.
fn describe_alone(copies: Copies, cause: &str) -> ExtentError {
    let on: Vec<String> = copies.iter().map(|copy| copy.device.to_string()).collect();
    ExtentError::Failed(format!(
        "metadata lies on device {} alone, {cause}: there was no room on another one; bring the device back, or save what is left \
         with 'terrace verify POOL --rebuild NEWPOOL'",
        on.join(" and ")
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use terrace_device::{Device, DeviceError, MemoryDevice, SeededRandomness};
    use terrace_meta::ExtentRead;
    use terrace_pool::{CreateOptions, Parallelism, Pool, SEGMENT_AREA_OFFSET, TierSettings};
    use terrace_sync::{Mutex, rank};

    use super::*;

    fn storage_on(count: usize) -> (Vec<Arc<MemoryDevice>>, MetaStorage) {
        storage_of(&[count])
    }

    /// So many devices in each tier.
    fn storage_of(counts: &[usize]) -> (Vec<Arc<MemoryDevice>>, MetaStorage) {
        let devices: Vec<_> = (0..counts.iter().sum())
            .map(|number| Arc::new(MemoryDevice::new(format!("d{number}"), 16 << 20)))
            .collect();
        let all = devices.iter().map(|device| device.clone() as Arc<dyn Device>);
        let storage = storage_over(counts, all.collect());
        (devices, storage)
    }

    fn storage_over(counts: &[usize], devices: Vec<Arc<dyn Device>>) -> MetaStorage {
        let mut all = devices.into_iter();
        let tiers = counts.iter().enumerate().map(|(tier, count)| {
            let settings = TierSettings::named(format!("t{tier}"));
            (settings, all.by_ref().take(*count).collect())
        });
        let options = CreateOptions {
            name: "tank".into(),
            tiers: tiers.collect(),
            properties: BTreeMap::new(),
            segment_bytes: Some(1 << 20),
            created_nanoseconds: 0,
            force: false,
            parallelism: Parallelism::Sequential,
        };
        let pool = Pool::create(options, &SeededRandomness::new(7)).unwrap();
        MetaStorage::new(Arc::new(pool))
    }

    /// A device that misreads now and then.
    struct Misreading {
        memory: MemoryDevice,
        /// Of the reads of segments to come: which of them give something else, always the same.
        wrong: Mutex<Vec<bool>, rank::Leaf>,
    }

    impl Device for Misreading {
        fn path(&self) -> String {
            self.memory.path()
        }
        fn size_bytes(&self) -> u64 {
            self.memory.size_bytes()
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
            self.memory.read_at(offset, buffer)?;
            if offset >= SEGMENT_AREA_OFFSET && self.wrong.lock().pop() == Some(true) {
                buffer[100] ^= 1;
            }
            Ok(())
        }
        fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
            self.memory.write_at(offset, data)
        }
        fn flush(&self) -> Result<(), DeviceError> {
            self.memory.flush()
        }
        fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
            self.memory.discard(offset, length)
        }
    }

    #[test]
    fn what_was_misread_once_or_twice_is_in_no_copy() {
        const WRONG: [&[bool]; 6] = [
            &[true],
            &[false, true],
            &[false, false, true],
            &[true, true],
            &[false, true, true],
            &[true, false, true, true],
        ];
        for (wrong, leaves) in WRONG.iter().flat_map(|wrong| [(wrong, false), (wrong, true)]) {
            let misreading = Arc::new(Misreading {
                memory: MemoryDevice::new("d0", 16 << 20),
                wrong: Mutex::default(),
            });
            let sound: Arc<dyn Device> = Arc::new(MemoryDevice::new("d1", 16 << 20));
            let storage = storage_over(&[2], vec![misreading.clone(), sound]);
            storage.pool.set_draining(1, true).unwrap();
            let extent = storage.write(&[7; 4096]).unwrap();
            storage.pool.set_draining(1, false).unwrap();
            *misreading.wrong.lock() = wrong.iter().rev().copied().collect();
            match leaves {
                true => {
                    storage.pool.set_draining(0, true).unwrap();
                    assert!(storage.move_off(SegmentRange::whole(0)).unwrap());
                    storage.release_replaced();
                }
                false => assert!(storage.mirror_one(0).unwrap()),
            }
            misreading.wrong.lock().clear();
            let copies = if leaves { 1 } else { 2 };
            for copy in 0..copies {
                let read = storage.read_copy(copy, extent, 0, 4096);
                assert!(
                    matches!(read, Some(Ok(bytes)) if bytes[..] == [7; 4096]),
                    "copy {copy} has what was misread: {wrong:?}, leaves: {leaves}"
                );
            }
        }
    }

    #[test]
    fn a_good_copy_does_not_leave_with_its_device_where_no_third_one_is() {
        for damaged in [Some(0), Some(1), None] {
            let (devices, storage) = storage_on(2);
            let extent = storage.write(&[7; 4096]).unwrap();
            let copies: Vec<SegmentId> = storage.segments();
            if let Some(bad) = damaged.map(|damaged: usize| copies[damaged]) {
                let at = SEGMENT_AREA_OFFSET + (u64::from(bad.index) << 20);
                devices[usize::from(bad.device)].write_at(at, &[0; 4096]).unwrap();
            }
            let leaving = copies[0].device;
            storage.pool.set_draining(leaving, true).unwrap();
            assert!(storage.move_off(SegmentRange::whole(leaving)).unwrap());
            storage.release_replaced();
            let left = storage.segments();
            assert_eq!(left.len(), if damaged.is_some() { 2 } else { 1 });
            assert!(left.iter().all(|segment| segment.device != leaving));
            let sound = |copy| matches!(storage.read_copy(copy, extent, 0, 4096), Some(Ok(bytes)) if bytes[..] == [7; 4096]);
            assert!(sound(0) || sound(1));
        }
    }

    #[test]
    fn a_good_copy_does_not_leave_with_its_device() {
        for damaged in 0..2 {
            let (devices, storage) = storage_on(3);
            let extent = storage.write(&[7; 4096]).unwrap();
            let copies: Vec<SegmentId> = storage.segments();
            let (bad, good) = (copies[damaged], copies[1 - damaged]);
            let at = SEGMENT_AREA_OFFSET + (u64::from(bad.index) << 20);
            devices[usize::from(bad.device)].write_at(at, &[0; 4096]).unwrap();
            assert!(storage.move_off(SegmentRange::whole(good.device)).unwrap());
            // The one that was left is in use until a root was written.
            assert_eq!(storage.segments().len(), 3);
            storage.release_replaced();
            assert_eq!(storage.segments().len(), 2);
            let sound = |copy| matches!(storage.read_copy(copy, extent, 0, 4096), Some(Ok(bytes)) if bytes[..] == [7; 4096]);
            assert!(sound(0) || sound(1));
        }
    }

    #[test]
    fn what_had_room_on_one_device_only_gets_its_second_copy_when_there_is_room() {
        let (_, storage) = storage_on(2);
        storage.pool.set_draining(1, true).unwrap();
        let extent = storage.write(&[7; 4096]).unwrap();
        assert!(!storage.is_mirrored());
        assert!(!storage.mirror_one(0).unwrap(), "there is no room yet");
        storage.pool.set_draining(1, false).unwrap();
        assert!(!storage.mirror_one(1000).unwrap(), "not what is to be left free");
        assert!(storage.mirror_one(0).unwrap());
        assert!(storage.is_mirrored() && !storage.mirror_one(0).unwrap());
        for copy in 0..2 {
            let bytes = storage.read_copy(copy, extent, 0, 4096).unwrap().unwrap();
            assert!(bytes[..] == [7; 4096]);
        }
        // What comes next does not go where the copy has none of it.
        let next = storage.write(&[8; 4096]).unwrap();
        assert!(parts(next).0 != parts(extent).0);
    }

    #[test]
    fn what_was_copied_before_it_was_flushed_is_not_lost_with_the_device_that_it_left() {
        let (_, storage) = storage_on(3);
        storage.pool.set_draining(1, true).unwrap();
        storage.pool.set_draining(2, true).unwrap();
        let extent = storage.write(&[7; 4096]).unwrap();
        storage.pool.set_draining(1, false).unwrap();
        storage.pool.set_draining(0, true).unwrap();
        assert!(storage.move_off(SegmentRange::whole(0)).unwrap());
        storage.release_replaced();
        storage.pool.remove_device(0).unwrap();
        storage.sync().unwrap();
        assert!(storage.lost().is_empty());
        assert!(storage.read(extent, 0, 4096).unwrap()[..] == [7; 4096]);
    }

    #[test]
    fn the_faster_copy_is_read_also_where_it_was_made_later() {
        let (devices, storage) = storage_of(&[1, 1]);
        storage.pool.set_draining(0, true).unwrap();
        let extent = storage.write(&[7; 4096]).unwrap();
        storage.pool.set_draining(0, false).unwrap();
        assert!(storage.mirror_one(0).unwrap());
        // What is read says where it was read.
        let mut copies = storage.segments().into_iter();
        let slow = copies.find(|copy| copy.device == 1).unwrap();
        let at = SEGMENT_AREA_OFFSET + (u64::from(slow.index) << 20);
        devices[1].write_at(at, &[9; 4096]).unwrap();
        assert!(storage.read(extent, 0, 4096).unwrap()[..] == [7; 4096]);
        let read = ExtentRead {
            extent,
            offset: 0,
            length: 4096,
        };
        assert!(storage.read_many(&[read])[0].as_ref().unwrap()[..] == [7; 4096]);
    }

    #[test]
    fn a_copy_of_the_root_holds_no_device_back() {
        let (_, storage) = storage_on(2);
        let extent = storage.write(&[7; 4096]).unwrap();
        storage.keep_root(&[1; 100]);
        let live = storage.live_bytes();
        storage.release(&[extent]);
        let range = SegmentRange::whole(storage.segments()[0].device);
        storage.forget_root_copy(range);
        storage.forget_root_copy(range);
        assert_eq!((live, storage.live_bytes()), (8192, 0));
    }
}
