//! `MetaStorage`: the metadata tree's extents in segments of the pool, on two devices where there are two.
//!
//! Invariants: an extent starts on 4096; its location is the number of its metadata segment (never used twice) and the
//! offset in it; a segment is released when it is closed and no extent in it is live, which the tree's owner only
//! lets happen after a root without them is durable.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use terrace_codec::{DecodeError, Reader};
use terrace_device::AlignedBuffer;
use terrace_log::Copies;
use terrace_meta::{Extent, ExtentError, ExtentRead, ExtentStorage};
use terrace_pool::{Pool, PoolError, SegmentId};
use terrace_sync::{Mutex, rank};

use super::{
    listing::LISTED_MOST,
    mirroring::request,
    unflushed::{KEPT_BYTES_FLUSHED, Unflushed},
};

pub(crate) const BLOCK: u32 = 4096;
/// How often a failed write is tried in another segment.
const ATTEMPTS: usize = 4;

pub(crate) struct MetaSegment {
    pub(super) copies: Copies,
    pub(super) live: u64,
}

#[derive(Default)]
pub(crate) struct State {
    pub(super) segments: BTreeMap<u32, MetaSegment>,
    pub(super) next: u32,
    pub(super) open: Option<(u32, u32)>,
    pub(super) writing: BTreeMap<u32, u32>,
    pub(super) unflushed: Unflushed,
    /// What the last flush that was to cover it lost: the devices that had it.
    lost: BTreeSet<Extent>,
    /// Durable extents that one copy of their segment lacks, as its device failed the write or the flush.
    pub(super) under_mirrored: BTreeSet<Extent>,
    pub(super) live_bytes: u64,
    /// The newest copy of the root.
    pub(super) root_copy: Option<Extent>,
    /// Copies were made or replaced that no durable root lists yet.
    pub(super) has_unlisted: bool,
    /// Copies that were replaced; released when a root that lists the new ones is durable.
    pub(super) replaced: Vec<SegmentId>,
}

/// Extents in segments; where their copies lie: `mirroring.rs`.
pub struct MetaStorage {
    pub(super) pool: Arc<Pool>,
    pub(super) state: Mutex<State, rank::extents::Extents>,
    /// Free segments that are the log's.
    left_for_log: AtomicU64,
    /// Segments that a root can list.
    pub(super) listed_most: AtomicU64,
}

impl MetaStorage {
    /// With nothing in it.
    pub fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            state: Mutex::new(State {
                next: 1,
                ..State::default()
            }),
            left_for_log: AtomicU64::new(0),
            listed_most: AtomicU64::new(LISTED_MOST),
        }
    }

    /// The segments that a root lists.
    pub fn decode(pool: Arc<Pool>, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let next = reader.u32("metadata segment number")?;
        let count = reader.u32("metadata segment count")?;
        let mut segments = BTreeMap::new();
        for _ in 0..count {
            let number = reader.u32("metadata segment")?;
            let copies = Copies::decode(reader)?;
            if number >= next || copies.is_empty() {
                return Err(DecodeError::Invalid("metadata segment"));
            }
            segments.insert(number, MetaSegment { copies, live: 0 });
        }
        Ok(Self {
            pool,
            state: Mutex::new(State {
                segments,
                next,
                ..State::default()
            }),
            left_for_log: AtomicU64::new(0),
            listed_most: AtomicU64::new(LISTED_MOST),
        })
    }

    /// Counts the extents that a tree opened with; segments without any are given up. Fails for an extent of no
    /// segment.
    pub fn count(&self, extents: &[Extent]) -> Result<(), String> {
        let mut state = self.state.lock();
        for extent in extents {
            let (number, offset) = parts(*extent);
            let end = u64::from(offset) + u64::from(extent.bytes);
            let limit = u64::from(self.pool.segment_bytes());
            let Some(segment) = state.segments.get_mut(&number).filter(|_| end <= limit) else {
                return Err(format!("{extent} lies in no metadata segment"));
            };
            segment.live += room(extent.bytes);
            state.live_bytes += room(extent.bytes);
        }
        state.segments.retain(|_, segment| segment.live > 0);
        Ok(())
    }

    /// All segments in use, those that were replaced and wait for the next root included.
    pub fn segments(&self) -> Vec<SegmentId> {
        let state = self.state.lock();
        let listed = state.segments.values().flat_map(|segment| segment.copies.iter());
        listed.chain(state.replaced.iter().copied()).collect()
    }

    /// Whether every segment in use has a copy on another device, with all that lies in it.
    pub fn is_mirrored(&self) -> bool {
        let state = self.state.lock();
        if !state.under_mirrored.is_empty() {
            return false;
        }
        let apart = |copies: &Copies| {
            let devices: BTreeSet<u16> = copies.iter().map(|copy| copy.device).collect();
            devices.len() == 2
        };
        state.segments.values().all(|segment| apart(&segment.copies))
    }

    /// Every segment that may not be used otherwise yet: those in use, and copies that were replaced and that the newest
    /// root may still list.
    pub fn held(&self) -> BTreeSet<SegmentId> {
        let mut held: BTreeSet<SegmentId> = self.segments().into_iter().collect();
        held.extend(self.state.lock().replaced.iter().copied());
        held
    }

    /// The copies of the segment that an extent lies in.
    pub fn copies_of(&self, extent: Extent) -> Copies {
        let state = self.state.lock();
        let segment = state.segments.get(&parts(extent).0);
        segment.map(|segment| segment.copies).unwrap_or_default()
    }

    /// The metadata segment that an extent lies in.
    pub fn segment_of(extent: Extent) -> u32 {
        parts(extent).0
    }

    /// Copies that a written root no longer lists, to be released now.
    pub fn release_replaced(&self) {
        let replaced = {
            let mut state = self.state.lock();
            // Whoever makes copies and whoever writes roots do not work at the same time.
            state.has_unlisted = false;
            std::mem::take(&mut state.replaced)
        };
        // Of a device that is gone nothing is claimed.
        for segment in replaced
            .into_iter()
            .filter(|segment| self.pool.has_device(segment.device))
        {
            if let Err(error) = self.pool.release(segment) {
                tracing::error!(%segment, %error, "a metadata segment could not be released");
            }
        }
    }

    /// Whether there are copies that an opening would not know of.
    pub fn has_unlisted(&self) -> bool {
        self.state.lock().has_unlisted
    }

    /// Puts a copy of the root that was just written in the place of the one before. It takes no segment of its own:
    /// it is left out when it does not fit in the one that is open.
    pub fn keep_root(&self, copy: &[u8]) {
        let Ok(length) = u32::try_from(copy.len()) else {
            return;
        };
        let need = room(length) as u32;
        let (number, offset, copies) = {
            let mut state = self.state.lock();
            let Some((number, fill)) = state
                .open
                .filter(|(_, fill)| fill + need <= self.pool.segment_bytes())
            else {
                return;
            };
            state.open = Some((number, fill + need));
            *state.writing.entry(number).or_default() += 1;
            let copies = state.segments.get(&number).map(|segment| segment.copies);
            (number, fill, copies.unwrap_or_default())
        };
        let padded = AlignedBuffer::padded_from(copy);
        let mut good = Vec::new();
        for segment in copies.iter() {
            match self.pool.write(segment, offset.into(), &padded) {
                Ok(()) => good.push(segment.device),
                Err(error) => tracing::warn!(%segment, %error, "a copy of the root could not be written"),
            }
        }
        let extent = extent_at(number, offset, length);
        self.settle(number, (!good.is_empty()).then_some(extent));
        if !good.is_empty() {
            // The root itself is on the devices.
            self.state.lock().unflushed.add(extent, false, good, None);
            let old = self.state.lock().root_copy.replace(extent);
            if let Some(old) = old {
                self.release(&[old]);
            }
        }
    }

    /// Live bytes, one copy.
    pub fn live_bytes(&self) -> u64 {
        self.state.lock().live_bytes
    }

    fn place(&self, bytes: u32) -> Result<(u32, u32, Copies), ExtentError> {
        let segment_bytes = self.pool.segment_bytes();
        let need = room(bytes) as u32;
        if need > segment_bytes {
            return Err(ExtentError::Failed(format!(
                "an extent of {bytes} bytes is larger than a segment"
            )));
        }
        let mut state = self.state.lock();
        let fits = state.open.filter(|(_, fill)| *fill + need <= segment_bytes);
        let works = |copy: SegmentId| !self.pool.is_failing(copy.device);
        let has_all = |(number, _): &(u32, u32)| {
            state
                .segments
                .get(number)
                .is_some_and(|open| open.copies.iter().all(works))
        };
        let (number, fill) = match fits {
            Some(open) if has_all(&open) => open,
            // A failing device gets an extent only where no other one has room.
            _ => match (self.allocate(), fits) {
                (Ok(copies), _) => {
                    let number = state.next;
                    state.next += 1;
                    state.segments.insert(number, MetaSegment { copies, live: 0 });
                    (number, 0)
                }
                (Err(_), Some(open)) => open,
                (Err(error), None) => return Err(error),
            },
        };
        state.open = Some((number, fill + need));
        *state.writing.entry(number).or_default() += 1;
        let copies = state
            .segments
            .get(&number)
            .map(|segment| segment.copies)
            .unwrap_or_default();
        Ok((number, fill, copies))
    }

    /// From now on so many segments stay free for what was promised a place in the log.
    pub fn leave_for_log(&self, segments: u64) {
        self.left_for_log.store(segments, Ordering::Release);
    }

    fn allocate(&self) -> Result<Copies, ExtentError> {
        let left = self.left_for_log.load(Ordering::Acquire);
        let first = self.pool.allocate(&request(&[], left)).map_err(extent_error)?;
        let second = self.pool.allocate(&request(&[first.device], left)).ok();
        Ok(Copies([Some(first), second]))
    }

    /// Ends a write: what it wrote is live now, unless it came to nothing.
    fn settle(&self, number: u32, written: Option<Extent>) {
        let mut state = self.state.lock();
        if let Some(count) = state.writing.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                state.writing.remove(&number);
            }
        }
        let kept = written.map_or(0, |extent| room(extent.bytes));
        state.live_bytes += kept;
        if let Some(segment) = state.segments.get_mut(&number) {
            segment.live += kept;
        }
    }

    /// Ends a write that these devices took; `alone`: of what, if it is one.
    fn keep_written(&self, number: u32, extent: Extent, devices: Vec<u16>, alone: Option<&[u8]>) {
        // Where there is no other device it could not be written elsewhere either.
        let content = alone.filter(|_| self.pool.device_count() > 1);
        self.state.lock().unflushed.add(extent, true, devices, content);
        self.settle(number, Some(extent));
        if self.state.lock().unflushed.kept_bytes() >= KEPT_BYTES_FLUSHED {
            // Whoever makes the next manifest finds what fails here, too.
            let _ = self.sync();
        }
    }

    /// A part of what only one device has, from memory.
    pub(crate) fn kept_content(&self, extent: Extent, offset: u32, length: u32) -> Option<Bytes> {
        let state = self.state.lock();
        let content = state.unflushed.content(extent)?;
        let (offset, length) = (offset as usize, length as usize);
        (content.len() >= offset + length).then(|| content.slice(offset..offset + length))
    }

    /// What went with its devices before it was durable, if memory has all of it: it can be read, and written elsewhere.
    pub fn lost(&self) -> Vec<Extent> {
        let state = self.state.lock();
        let lost = state.lost.iter().copied();
        let lost: Vec<Extent> = lost.filter(|extent| state.unflushed.is_needed(*extent)).collect();
        match lost
            .iter()
            .all(|extent| state.unflushed.content(*extent).is_some())
        {
            true => lost,
            false => Vec::new(),
        }
    }

    /// These were written elsewhere: no flush has to cover them any more.
    pub fn give_up(&self, extents: &[Extent]) {
        let mut state = self.state.lock();
        extents.iter().for_each(|extent| state.unflushed.give_up(*extent));
    }

    /// Releases closed segments without live extents.
    fn sweep(&self) {
        let mut freed = Vec::new();
        {
            let mut state = self.state.lock();
            let State {
                segments,
                open,
                writing,
                ..
            } = &mut *state;
            let open = open.map(|(number, _)| number);
            segments.retain(|number, segment| {
                let keep = segment.live > 0 || Some(*number) == open || writing.contains_key(number);
                if !keep {
                    freed.extend(segment.copies.iter());
                }
                keep
            });
        }
        for segment in freed {
            if let Err(error) = self.pool.release(segment) {
                tracing::error!(%segment, %error, "a metadata segment could not be released");
            }
        }
    }

    pub(crate) fn copies(
        &self,
        extent: Extent,
        offset: u32,
        length: u32,
    ) -> Result<(Copies, u32), ExtentError> {
        let (number, start) = parts(extent);
        if offset.checked_add(length).is_none_or(|end| end > extent.bytes)
            || start
                .checked_add(extent.bytes)
                .is_none_or(|end| end > self.pool.segment_bytes())
        {
            return Err(ExtentError::Failed(format!(
                "{offset}+{length} lies outside of {extent}"
            )));
        }
        let state = self.state.lock();
        let segment = state.segments.get(&number);
        let segment =
            segment.ok_or_else(|| ExtentError::Failed(format!("{extent} lies in no metadata segment")))?;
        Ok((segment.copies, start + offset))
    }

    /// The copies in the order in which they are read: the one on the faster tier may be the one that was made later.
    pub(crate) fn fastest_first(&self, copies: Copies) -> Copies {
        let tier = |copy: SegmentId| self.pool.tier_of(copy.device).unwrap_or(u8::MAX);
        match copies.0 {
            [Some(first), Some(second)] if tier(second) < tier(first) => Copies([Some(second), Some(first)]),
            _ => copies,
        }
    }

    fn read_segment(&self, segment: SegmentId, offset: u32, length: u32) -> Result<Bytes, ExtentError> {
        let first = offset / BLOCK * BLOCK;
        let skip = (offset - first) as usize;
        let mut buffer = AlignedBuffer::with_capacity(skip + length as usize);
        let whole = (skip + length as usize).next_multiple_of(BLOCK as usize);
        self.pool
            .read(segment, first.into(), buffer.reuse(whole))
            .map_err(extent_error)?;
        Ok(Bytes::copy_from_slice(&buffer[skip..skip + length as usize]))
    }

    /// Reads from the first of these copies that can be read; why the last one could not, or `failure`.
    pub(crate) fn read_any(
        &self,
        copies: impl Iterator<Item = SegmentId>,
        at: u32,
        length: u32,
        mut failure: ExtentError,
    ) -> Result<Bytes, ExtentError> {
        for segment in copies {
            match self.read_segment(segment, at, length) {
                Ok(bytes) => return Ok(bytes),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

pub(crate) fn no_copy(extent: Extent) -> ExtentError {
    ExtentError::Failed(format!("{extent} has no copy"))
}

impl ExtentStorage for MetaStorage {
    fn write(&self, bytes: &[u8]) -> Result<Extent, ExtentError> {
        let length =
            u32::try_from(bytes.len()).map_err(|_| ExtentError::Failed("an extent above 4 GiB".into()))?;
        let padded = AlignedBuffer::padded_from(bytes);
        let mut failure = ExtentError::Failed("nothing was tried".into());
        // With one good copy of two, which is enough when nothing better can be had.
        let mut partial: Option<(u32, Extent, Vec<u16>)> = None;
        for _ in 0..ATTEMPTS {
            let (number, offset, copies) = match self.place(length) {
                Ok(place) => place,
                Err(_) if partial.is_some() => break,
                Err(error) => return Err(error),
            };
            let extent = extent_at(number, offset, length);
            let mut good = Vec::new();
            for segment in copies.iter() {
                match self.pool.write(segment, offset.into(), &padded) {
                    Ok(()) => good.push(segment.device),
                    Err(error) => failure = extent_error(error),
                }
            }
            if good.len() == copies.iter().count() {
                if let Some((number, ..)) = partial {
                    self.settle(number, None);
                }
                let is_alone = good.len() == 1;
                self.keep_written(number, extent, good, is_alone.then_some(bytes));
                return Ok(extent);
            }
            {
                let mut state = self.state.lock();
                state.open = state.open.filter(|(open, _)| *open != number);
            }
            match partial {
                None if !good.is_empty() => partial = Some((number, extent, good)),
                _ => self.settle(number, None),
            }
        }
        let Some((number, extent, good)) = partial else {
            return Err(failure);
        };
        self.keep_written(number, extent, good, Some(bytes));
        Ok(extent)
    }

    fn read(&self, extent: Extent, offset: u32, length: u32) -> Result<Bytes, ExtentError> {
        let (copies, at) = self.copies(extent, offset, length)?;
        let copies = self.fastest_first(copies);
        let read = self.read_any(copies.iter(), at, length, no_copy(extent));
        read.or_else(|error| self.kept_content(extent, offset, length).ok_or(error))
    }

    fn read_many(&self, reads: &[ExtentRead]) -> Vec<Result<Bytes, ExtentError>> {
        self.read_at_once(reads)
    }

    fn read_copy(
        &self,
        copy: u32,
        extent: Extent,
        offset: u32,
        length: u32,
    ) -> Option<Result<Bytes, ExtentError>> {
        match self.copies(extent, offset, length) {
            Ok((copies, at)) => {
                let copy = copy as usize;
                let Some(segment) = copies.iter().nth(copy) else {
                    let is_next = copy == copies.iter().count();
                    return is_next.then(|| self.kept_content(extent, offset, length).map(Ok))?;
                };
                Some(self.read_segment(segment, at, length))
            }
            Err(error) => (copy == 0).then_some(Err(error)),
        }
    }

    fn release(&self, extents: &[Extent]) {
        {
            let mut state = self.state.lock();
            for extent in extents {
                let (number, _) = parts(*extent);
                let freed = room(extent.bytes);
                state.unflushed.remove(*extent);
                state.lost.remove(extent);
                state.under_mirrored.remove(extent);
                if let Some(segment) = state.segments.get_mut(&number) {
                    segment.live = segment.live.saturating_sub(freed);
                    state.live_bytes = state.live_bytes.saturating_sub(freed);
                }
            }
        }
        self.sweep();
    }

    fn sync(&self) -> Result<(), ExtentError> {
        // What is written meanwhile is not among these, and not covered by this flush.
        let written: Vec<(Extent, bool, Vec<u16>)> = {
            let state = self.state.lock();
            let all = state.unflushed.all();
            all.map(|(extent, is_needed, devices)| (extent, is_needed, devices.to_vec()))
                .collect()
        };
        let devices: BTreeSet<u16> = written
            .iter()
            .flat_map(|(_, _, devices)| devices)
            .copied()
            .collect();
        let failed = self.pool.flush_each(&Vec::from_iter(devices));
        let mut failure = None;
        let mut state = self.state.lock();
        for (extent, is_needed, devices) in written {
            // What another flush lost meanwhile, of what this one was not to cover, stays noted.
            state.lost.remove(&extent);
            let is_lost = devices.iter().all(|device| failed.contains_key(device));
            match devices.iter().find_map(|device| failed.get(device)) {
                Some(error) if is_lost && is_needed => {
                    state.lost.insert(extent);
                    failure = Some(extent_error(error.clone()));
                }
                Some(_) if is_lost => {}
                _ => {
                    let lacks = |device: u16| devices.contains(&device) && failed.contains_key(&device);
                    state.end_flush(extent, lacks);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

pub(crate) fn parts(extent: Extent) -> (u32, u32) {
    ((extent.location >> 32) as u32, extent.location as u32)
}

pub(crate) fn extent_at(number: u32, offset: u32, bytes: u32) -> Extent {
    Extent {
        location: u64::from(number) << 32 | u64::from(offset),
        bytes,
    }
}

pub(crate) fn room(bytes: u32) -> u64 {
    u64::from(bytes).next_multiple_of(BLOCK.into())
}

pub(crate) fn extent_error(error: PoolError) -> ExtentError {
    if error.is_no_space() {
        ExtentError::NoSpace(error.to_string())
    } else {
        ExtentError::Failed(error.to_string())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use terrace_device::{Cause, Device, DeviceError, MemoryDevice, Operation, SeededRandomness};
    use terrace_pool::{CreateOptions, Parallelism, TierSettings};

    use super::*;

    type Hook = Box<dyn FnOnce() + Send>;

    /// A device in RAM that calls somebody at its next flush, and can be gone.
    struct Hooked {
        inner: MemoryDevice,
        at_flush: Mutex<Option<Hook>, rank::Leaf>,
        gone: AtomicBool,
    }

    impl Hooked {
        fn answer(&self, operation: Operation) -> Result<(), DeviceError> {
            match self.gone.load(Ordering::SeqCst) {
                true => Err(DeviceError::whole(self.path(), operation, Cause::Gone)),
                false => Ok(()),
            }
        }
    }

    impl Device for Hooked {
        fn path(&self) -> String {
            self.inner.path()
        }
        fn size_bytes(&self) -> u64 {
            self.inner.size_bytes()
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
            self.answer(Operation::Read)?;
            self.inner.read_at(offset, buffer)
        }
        fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
            self.answer(Operation::Write)?;
            self.inner.write_at(offset, data)
        }
        fn flush(&self) -> Result<(), DeviceError> {
            let hook = self.at_flush.lock().take();
            if let Some(hook) = hook {
                hook();
            }
            self.answer(Operation::Flush)
        }
        fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    fn storage_on(count: usize) -> (Vec<Arc<Hooked>>, Arc<MetaStorage>) {
        let devices: Vec<_> = (0..count)
            .map(|number| {
                Arc::new(Hooked {
                    inner: MemoryDevice::new(format!("d{number}"), 16 << 20),
                    at_flush: Mutex::new(None),
                    gone: AtomicBool::new(false),
                })
            })
            .collect();
        let all = devices.iter().map(|device| device.clone() as Arc<dyn Device>);
        let options = CreateOptions {
            name: "tank".into(),
            tiers: vec![(TierSettings::named("only"), all.collect())],
            properties: BTreeMap::new(),
            segment_bytes: Some(1 << 20),
            created_nanoseconds: 0,
            force: false,
            parallelism: Parallelism::Sequential,
        };
        let pool = Pool::create(options, &SeededRandomness::new(7)).unwrap();
        (devices, Arc::new(MetaStorage::new(Arc::new(pool))))
    }

    #[test]
    fn what_is_written_during_a_flush_is_flushed_by_the_next() {
        let (devices, storage) = storage_on(1);
        let (first, _) = parts(storage.write(&[1; 4096]).unwrap());
        let writer = storage.clone();
        *devices[0].at_flush.lock() = Some(Box::new(move || {
            let (second, _) = parts(writer.write(&[2; 4096]).unwrap());
            assert_eq!(first, second, "in the segment that is being flushed");
            // Fills the segment, so that it is no longer the open one when the flush ends.
            writer.write(&vec![3; (1 << 20) - 4096]).unwrap();
        }));
        storage.sync().unwrap();
        assert_eq!(storage.state.lock().unflushed.all().count(), 2);
        storage.sync().unwrap();
        assert_eq!(storage.state.lock().unflushed.all().count(), 0);
    }

    #[test]
    fn what_one_device_had_alone_is_in_memory_until_it_is_durable() {
        let (devices, storage) = storage_on(2);
        storage.pool.set_draining(0, true).unwrap();
        let durable = storage.write(&[6; 4096]).unwrap();
        storage.sync().unwrap();
        let extent = storage.write(&[7; 4096]).unwrap();
        devices[1].gone.store(true, Ordering::SeqCst);
        assert!(storage.sync().is_err());
        let read = ExtentRead {
            extent,
            offset: 1,
            length: 4095,
        };
        let is_read = || {
            let many = storage.read_many(&[read]);
            let copy = storage.read_copy(1, extent, 0, 4096).unwrap();
            storage.read(extent, 4000, 96).unwrap()[..] == [7; 96]
                && many[0].as_ref().unwrap()[..] == [7; 4095]
                && copy.unwrap()[..] == [7; 4096]
        };
        assert!(is_read());
        assert!(storage.read(durable, 0, 4096).is_err() && storage.read_copy(1, durable, 0, 4096).is_none());
        assert_eq!(storage.lost(), [extent]);
        storage.give_up(&[extent]);
        storage.sync().unwrap();
        assert!(is_read(), "somebody may still be at it");
        storage.release(&[extent]);
        assert!(storage.read(extent, 0, 4096).is_err());
    }

    /// There is no room for it elsewhere.
    #[test]
    fn a_flush_of_a_device_that_did_not_take_a_write_covers_nothing() {
        let (devices, storage) = storage_on(2);
        storage.write(&[6; 4096]).unwrap();
        storage.sync().unwrap();
        while storage.pool.allocate(&request(&[], 0)).is_ok() {}
        devices[0].gone.store(true, Ordering::SeqCst);
        let extent = storage.write(&[7; 4096]).unwrap();
        devices[0].gone.store(false, Ordering::SeqCst);
        devices[1].gone.store(true, Ordering::SeqCst);
        assert!(storage.sync().is_err(), "nobody has it for good");
        assert_eq!(storage.lost(), [extent]);
        let kept = storage.kept_content(extent, 0, 4096);
        assert!(kept.is_some_and(|content| content[..] == [7; 4096]));
    }

    /// The second begins before the table is written, and ends behind the first.
    #[test]
    fn of_two_flushes_at_once_neither_forgets_what_the_other_lost() {
        let (devices, storage) = storage_on(2);
        storage.pool.set_draining(0, true).unwrap();
        storage.write(&[6; 4096]).unwrap();
        let (beside, failing) = (storage.clone(), devices[1].clone());
        *devices[1].at_flush.lock() = Some(Box::new(move || {
            let extent = beside.write(&[7; 4096]).unwrap();
            failing.gone.store(true, Ordering::SeqCst);
            assert!(beside.sync().is_err());
            assert!(beside.lost().contains(&extent));
            failing.gone.store(false, Ordering::SeqCst);
        }));
        storage.sync().unwrap();
        assert_eq!(
            storage.lost().len(),
            1,
            "what its own flush has covered is not lost"
        );
        storage.sync().unwrap();
        assert!(storage.lost().is_empty());
    }

    /// The device is gone before the write, and there is room for one copy on the other one.
    #[test]
    fn a_write_that_came_to_nothing_waits_for_no_flush() {
        let (devices, storage) = storage_on(2);
        while storage.pool.allocate(&request(&[1], 0)).is_ok() {}
        let free = |number: usize| storage.pool.devices()[number].free_segments;
        let last = SegmentId { device: 0, index: 0 };
        storage.pool.release(last).unwrap();
        assert!(free(0) == 1 && free(1) > 4);
        devices[1].gone.store(true, Ordering::SeqCst);
        let extent = storage.write(&[7; 4096]).unwrap();
        assert_eq!(storage.read(extent, 0, 4096).unwrap()[..], [7; 4096]);
        storage.sync().unwrap();
        storage.keep_root(&[1; 100]);
        storage.sync().unwrap();
    }
}
