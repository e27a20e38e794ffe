//! An open pool: its description, its devices, and what is asked of it most: segments and their bytes.
//!
//! Invariants: the description in RAM equals the newest confirmed labels; no lock is held across reads, writes and
//! flushes of segments (only changes of labels and roots are serialised across their I/O).

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use parking_lot::{Mutex, RwLock};
use terrace_device::DEVICE_BLOCK_BYTES;

use crate::{
    ContentRoom, CounterValues, DeviceInfo, DeviceState, Freed, PoolError, PoolId, PoolState, Presence,
    Request, SegmentId, SegmentRange, SegmentRead, SegmentWrite, TierSettings,
    devices::{OpenDevice, count},
    lifecycle::Roots,
    ondisk::Label,
    space::Allocator,
};

/// Whether a flush of several devices uses threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Parallelism {
    /// One after the other, in the order of their numbers: for the simulator.
    Sequential,
    /// At the same time.
    #[default]
    Threads,
}

/// A tier as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct TierInfo {
    /// Settings.
    pub settings: TierSettings,
    /// Numbers of its devices, missing ones too.
    pub devices: Vec<u16>,
    /// Bytes in segments of its devices that are there.
    pub size_bytes: u64,
    /// Segments on those of its devices that take something new: what a device holds that is being emptied, or that fails, is
    /// no measure of how full the tier is, nor is what is free there.
    pub segments: u64,
    /// Free ones of them.
    pub free_segments: u64,
    /// Of which new data leaves so many free while other tiers have room: for the log, metadata and compaction.
    pub floor_segments: u64,
    /// Fill level (0.0–1.0), garbage not counted, up to which new data lands here.
    pub landing_mark: f64,
}

/// An open pool. All methods may be called from any thread.
pub struct Pool {
    /// Serialises label updates; held across their I/O.
    pub(crate) updating: Mutex<()>,
    pub(crate) label: RwLock<Label>,
    /// The highest generation that any label may bear that was written, or begun to be.
    pub(crate) tried_generation: AtomicU64,
    /// Devices that lack something that others have, which the labels do not say yet; see [`Pool::note_lacking`].
    pub(crate) lacking: Mutex<Vec<u16>>,
    /// Devices that were away until this opening; see [`Pool::take_back`].
    pub(crate) returned: Mutex<Vec<u16>>,
    /// Those of them that are older than the pool though nobody noted them as away; see [`Pool::outdated`].
    pub(crate) outdated: Mutex<Vec<u16>>,
    /// Those of these that were told by their labels.
    pub(crate) with_old_label: Mutex<Vec<u16>>,
    /// What the labels are to say once the pool proved to open; see [`Pool::settle_roots`].
    pub(crate) pending: Mutex<Option<Label>>,
    /// Devices that are there, ascending by number.
    pub(crate) open: RwLock<Arc<Vec<Arc<OpenDevice>>>>,
    pub(crate) allocator: Mutex<Allocator>,
    /// Fill level up to which a tier keeps what is written, instead of its high-water mark; see [`Pool::set_holds`].
    pub(crate) holds: Mutex<Vec<Option<f64>>>,
    pub(crate) roots: Mutex<Roots>,
    pub(crate) segment_bytes: u32,
    pub(crate) read_only: bool,
    pub(crate) parallelism: Parallelism,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let label = self.label.read();
        write!(f, "Pool({} generation {})", label.pool_name, label.generation)
    }
}

impl Pool {
    /// Identity.
    pub fn id(&self) -> PoolId {
        self.label.read().pool_id
    }

    /// Name.
    pub fn name(&self) -> String {
        self.label.read().pool_name.clone()
    }

    /// State in the labels.
    pub fn state(&self) -> PoolState {
        self.label.read().state
    }

    /// Generation of the labels.
    pub fn generation(&self) -> u64 {
        self.label.read().generation
    }

    /// When the pool was made, nanoseconds since 1970.
    pub fn created_nanoseconds(&self) -> u64 {
        self.label.read().created_nanoseconds
    }

    /// Whether nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Segment size in bytes, a power of two from 1 MiB to 64 MiB; the same on every device.
    pub fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    /// Tiers, fastest first.
    pub fn tiers(&self) -> Vec<TierInfo> {
        let label = self.label.read();
        let open = self.open.read().clone();
        let mut allocator = self.allocator.lock();
        allocator.set_usable(&open);
        let tiers = label.tiers.iter().enumerate().map(|(index, settings)| {
            let tier = Some(index as u8);
            let counts = allocator.usable_counts(|device| Some(device.tier) == tier);
            let members = label
                .members
                .iter()
                .filter(|member| usize::from(member.tier) == index);
            TierInfo {
                settings: settings.clone(),
                devices: members.map(|member| member.number).collect(),
                size_bytes: allocator.all_counts(tier).total * u64::from(self.segment_bytes),
                segments: counts.total,
                free_segments: counts.free,
                floor_segments: crate::space::floor_of(counts.total),
                landing_mark: crate::space::landing_mark(settings.high_water),
            }
        });
        tiers.collect()
    }

    /// How many tiers there are.
    pub fn tier_count(&self) -> usize {
        self.label.read().tiers.len()
    }

    /// How many devices the pool has, missing ones included.
    pub fn device_count(&self) -> usize {
        self.label.read().members.len()
    }

    /// Devices, ascending by number, missing ones too.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let label = self.label.read();
        let open = self.open.read().clone();
        let allocator = self.allocator.lock();
        let devices = label.members.iter().map(|member| {
            let device = open.iter().find(|device| device.number == member.number);
            let counts = allocator.counts(member.number);
            DeviceInfo {
                number: member.number,
                id: member.id,
                path: device.map_or_else(|| member.path.clone(), |device| device.device.path()),
                tier: member.tier,
                state: device.map_or(DeviceState::Missing, |device| device.state()),
                presence: member.presence,
                draining: device.is_some_and(|device| device.draining.load(Ordering::Relaxed)),
                takes_new: device.is_some_and(|device| device.is_usable()),
                size_bytes: member.size_bytes,
                cut_off_bytes: device.map_or(0, |device| {
                    member.size_bytes.saturating_sub(device.device.size_bytes())
                }),
                segments: counts.total as u32,
                free_segments: counts.free as u32,
                counters: device.map_or_else(CounterValues::default, |device| device.counters.values()),
                failure: device.and_then(|device| device.failure()),
                silent_since: device.and_then(|device| device.watch.silent_since()),
            }
        });
        devices.collect()
    }

    /// Devices that count as failing since the pool was opened: number, path, and why.
    pub fn failing(&self) -> Vec<(u16, String, String)> {
        let open = self.open.read().clone();
        let failing = open.iter().filter_map(|device| Some((device, device.failure()?)));
        failing
            .map(|(device, why)| (device.number, device.device.path(), why))
            .collect()
    }

    /// Open devices that their paths do not lead to any more, with these paths.
    pub fn strays(&self) -> Vec<(String, terrace_device::Stray)> {
        let open = self.open.read().clone();
        // To look at the path of one that does not answer may take as long as it does.
        let strays = open
            .iter()
            .filter(|device| !device.watch.is_silent())
            .filter_map(|device| {
                let stray = device.device.stray()?;
                Some((device.device.path(), stray))
            });
        strays.collect()
    }

    /// Whether this device is part of the pool and there.
    pub fn has_device(&self, device: u16) -> bool {
        self.device(device).is_ok()
    }

    /// Whether this device is there and takes something new: it neither fails nor is being emptied.
    pub fn takes_new(&self, device: u16) -> bool {
        self.device(device).is_ok_and(|device| device.is_usable())
    }

    /// Whether this device is there and gave errors.
    pub fn is_failing(&self, device: u16) -> bool {
        self.device(device).is_ok_and(|device| device.failure().is_some())
    }

    /// Whether what this device has counts at the next opening, also what no other has: it works, and the labels neither call it
    /// absent nor will for what it lacks. Who opens the pool without a device that does not count misses nothing that it has alone.
    pub fn counts_alone(&self, device: u16) -> bool {
        let works = self
            .device(device)
            .is_ok_and(|device| device.state() == DeviceState::Online);
        works && !self.of_the_past().contains(&device)
    }

    /// Whether this segment is there: its device is, and was not cut short before it.
    pub fn has_segment(&self, segment: SegmentId) -> bool {
        self.device(segment.device)
            .is_ok_and(|device| device.reaches(segment.index, self.segment_bytes))
    }

    /// Tier of a device.
    pub fn tier_of(&self, device: u16) -> Option<u8> {
        self.label.read().member(device).map(|member| member.tier)
    }

    /// How many copies a tier keeps of content.
    pub fn copies_in(&self, tier: u8) -> u8 {
        let label = self.label.read();
        label
            .tiers
            .get(usize::from(tier))
            .map_or(1, |settings| settings.copies)
    }

    /// Devices that were away until this very opening, those that were in use longest first: what they have of the log beyond
    /// the others, and beyond those before them here, was given up.
    pub fn returned(&self) -> Vec<u16> {
        self.returned.lock().clone()
    }

    /// Those of the returned that no label had called absent: a copy of the device that was made some time ago, or one that lost
    /// what was written to it.
    pub fn outdated(&self) -> Vec<u16> {
        self.outdated.lock().clone()
    }

    /// Those of them that have an older label, so that they lack whatever came after the opening that wrote it. One that is told by
    /// its root alone may have refused that root, and have all else.
    pub fn outdated_by_label(&self) -> Vec<u16> {
        self.with_old_label.lock().clone()
    }

    /// Those that were away until this opening, and those that were before and have not got yet what they missed.
    pub fn returning(&self) -> Vec<u16> {
        let mut numbers = self.returned();
        let label = self.label.read().clone();
        let behind = label
            .members
            .iter()
            .filter(|member| member.presence == Presence::Behind);
        numbers.extend(behind.map(|member| member.number));
        numbers.retain(|number| self.has_device(*number));
        numbers
    }

    /// How many devices of a tier are there and may get something new.
    pub fn usable_devices(&self, tier: u8) -> usize {
        let open = self.open.read();
        let here = open
            .iter()
            .filter(|device| device.tier.load(Ordering::Relaxed) == tier && device.is_usable());
        here.count()
    }

    /// Properties of the pool.
    pub fn properties(&self) -> BTreeMap<String, String> {
        self.label.read().properties.clone()
    }

    /// One property.
    pub fn property(&self, name: &str) -> Option<String> {
        self.label.read().properties.get(name).cloned()
    }

    /// Takes a free segment. It holds unspecified bytes. `NoSpace` when no device that fits has one.
    pub fn allocate(&self, request: &Request<'_>) -> Result<SegmentId, PoolError> {
        self.check_writable()?;
        let label = self.label.read();
        let open = self.open.read().clone();
        let mut allocator = self.allocator.lock();
        allocator.set_usable(&open);
        allocator.allocate(request, &label.tiers, &self.holds.lock())
    }

    /// Up to these fill levels (one entry per tier, fastest first) tiers keep what is written, also what would land on
    /// a slower one. Not kept in the labels: whoever holds says so again after opening, and when the tiers change.
    pub fn set_holds(&self, levels: Vec<Option<f64>>) {
        *self.holds.lock() = levels;
    }

    /// Marks a segment as in use when the pool is opened; an error if it does not exist or is in use already.
    pub fn claim(&self, segment: SegmentId) -> Result<(), PoolError> {
        self.allocator.lock().claim(segment)
    }

    /// Gives a segment back; it may be handed out again at once.
    pub fn release(&self, segment: SegmentId) -> Result<(), PoolError> {
        self.allocator.lock().release(segment)
    }

    /// Whether a segment is in use.
    pub fn is_claimed(&self, segment: SegmentId) -> bool {
        self.allocator.lock().is_claimed(segment)
    }

    /// Free segments on all devices that new data may be put on.
    pub fn free_segments(&self) -> u64 {
        self.usable_segments().0
    }

    /// Free segments, and all, of the devices that can be written.
    pub fn usable_segments(&self) -> (u64, u64) {
        let open = self.open.read().clone();
        let mut allocator = self.allocator.lock();
        allocator.set_usable(&open);
        let counts = allocator.usable_counts(|_| true);
        (counts.free, counts.total)
    }

    /// Free segments that content can have, with as many copies as its tier keeps, each on a device of its own: what is
    /// free on a device that no other of its tier can match does not count.
    pub fn free_for_content(&self) -> u64 {
        self.content_room().raw
    }

    /// What content can still get, by what each tier keeps of it.
    pub fn content_room(&self) -> ContentRoom {
        self.for_content(|allocator, number| allocator.counts(number).free)
    }

    /// The same if the tier of this name kept so many copies.
    pub fn content_room_with(&self, tier: &str, copies: u8) -> ContentRoom {
        let free = |allocator: &Allocator, number| allocator.counts(number).free;
        self.for_content_with(free, |settings| match settings.name == tier {
            true => copies,
            false => settings.copies,
        })
    }

    /// What content can get without these segments: what there would be if the device ended before them, now and with nothing in use
    /// anywhere.
    pub fn for_content_without(&self, range: SegmentRange) -> (ContentRoom, ContentRoom) {
        let free = self.for_content(|allocator, number| {
            let claimed = |from| u64::from(allocator.claimed_from(number, from));
            match number == range.device {
                true => u64::from(range.from).saturating_sub(claimed(0) - claimed(range.from)),
                false => allocator.counts(number).free,
            }
        });
        let all = self.for_content(|allocator, number| match number == range.device {
            true => u64::from(range.from),
            false => allocator.counts(number).total,
        });
        (free, all)
    }

    /// What content could get without a device, and perhaps with one more of `joining` segments in its place. `freed`: segments
    /// that what lies on it frees on another one of its tier when it moves, as its other copies move with it; `anywhere`: so
    /// many more in all.
    pub fn for_content_leaving(
        &self,
        leaving: u16,
        joining: Option<u64>,
        freed: impl Fn(u16) -> Freed,
        anywhere: u64,
    ) -> ContentRoom {
        let tier_of_leaving = self.tier_of(leaving);
        let label = self.label.read();
        let open = self.open.read().clone();
        let allocator = self.allocator.lock();
        let mut room = ContentRoom::default();
        for (settings, tier) in label.tiers.iter().zip(0u8..) {
            let stays = |device: &&Arc<OpenDevice>| {
                device.number != leaving && device.tier.load(Ordering::Relaxed) == tier && device.is_usable()
            };
            let here = open.iter().filter(stays);
            let free = here.map(|device| (device.number, allocator.counts(device.number).free));
            if tier_of_leaving != Some(tier) {
                room.add(free.map(|(_, free)| free).collect(), settings.copies);
                continue;
            }
            let mut others: Vec<(u64, Freed)> = free.map(|(number, free)| (free, freed(number))).collect();
            others.extend(joining.map(|free| (free, Freed::default())));
            room.add_with_freed(&others, anywhere, settings.copies);
        }
        room
    }

    fn for_content(&self, count: impl Fn(&Allocator, u16) -> u64) -> ContentRoom {
        self.for_content_with(count, |settings| settings.copies)
    }

    fn for_content_with(
        &self,
        count: impl Fn(&Allocator, u16) -> u64,
        copies: impl Fn(&TierSettings) -> u8,
    ) -> ContentRoom {
        let label = self.label.read();
        let open = self.open.read().clone();
        let allocator = self.allocator.lock();
        let mut room = ContentRoom::default();
        for (settings, tier) in label.tiers.iter().zip(0u8..) {
            let here = open
                .iter()
                .filter(|device| device.tier.load(Ordering::Relaxed) == tier && device.is_usable());
            let free = here.map(|device| count(&allocator, device.number)).collect();
            room.add(free, copies(settings));
        }
        room
    }

    /// Segments on all devices that are there.
    pub fn total_segments(&self) -> u64 {
        self.allocator.lock().all_counts(None).total
    }

    /// Segments on all devices that are there but those that are being emptied, and but that one.
    pub fn staying_segments(&self, without: Option<u16>) -> u64 {
        let open = self.open.read().clone();
        let allocator = self.allocator.lock();
        open.iter()
            .filter(|device| Some(device.number) != without && !device.draining.load(Ordering::Relaxed))
            .map(|device| allocator.counts(device.number).total)
            .sum()
    }

    /// Nothing new is put on a draining device. Not kept in the labels: whoever drains says so again after opening.
    pub fn set_draining(&self, device: u16, draining: bool) -> Result<(), PoolError> {
        self.device(device)?.draining.store(draining, Ordering::Relaxed);
        Ok(())
    }

    /// What offsets and lengths of reads of a device must be multiples of, bytes; divides 4096.
    pub fn read_unit_bytes(&self, device: u16) -> usize {
        self.device(device)
            .map_or(DEVICE_BLOCK_BYTES, |open| open.device.read_unit_bytes())
    }

    /// Fills `buffer` from `offset` bytes into the segment (multiples of [`Self::read_unit_bytes`]). Tried twice before it
    /// fails.
    pub fn read(&self, segment: SegmentId, offset: u64, buffer: &mut [u8]) -> Result<(), PoolError> {
        self.device(segment.device)?
            .read(segment, offset, buffer, self.segment_bytes)
    }

    /// Several reads of segments of one device, at once where it can; each gets an outcome of its own.
    pub fn read_many(&self, device: u16, reads: &mut [SegmentRead<'_>]) {
        match self.device(device) {
            Ok(open) if reads.iter().all(|read| read.segment.device == device) => {
                open.read_many(reads, self.segment_bytes);
            }
            _ => reads
                .iter_mut()
                .for_each(|read| read.outcome = self.read(read.segment, read.offset, read.buffer)),
        }
    }

    /// Writes at `offset` bytes into the segment (multiples of 4096). Durable after [`Self::flush`].
    pub fn write(&self, segment: SegmentId, offset: u64, data: &[u8]) -> Result<(), PoolError> {
        self.write_vectored(segment, offset, &[data])
    }

    /// As [`Self::write`], the parts one after the other.
    pub fn write_vectored(&self, segment: SegmentId, offset: u64, parts: &[&[u8]]) -> Result<(), PoolError> {
        self.check_writable()?;
        debug_assert!(
            self.is_claimed(segment) || self.device(segment.device).is_err(),
            "segment {segment} is written to but was not allocated"
        );
        self.device(segment.device)?
            .write(segment, offset, parts, self.segment_bytes)
    }

    /// Several writes of segments, which do not overlap, those of one device at once and in any order; each is tried and
    /// gets an outcome of its own.
    pub fn write_many(&self, writes: &mut [SegmentWrite<'_>]) {
        if let Err(error) = self.check_writable() {
            writes
                .iter_mut()
                .for_each(|write| write.outcome = Some(Err(error.clone())));
            return;
        }
        debug_assert!(
            writes
                .iter()
                .all(|write| self.is_claimed(write.segment) || self.device(write.segment.device).is_err()),
            "a segment is written to but was not allocated"
        );
        let mut devices: Vec<u16> = writes.iter().map(|write| write.segment.device).collect();
        devices.sort_unstable();
        devices.dedup();
        for device in devices {
            let mut its: Vec<&mut SegmentWrite<'_>> = writes
                .iter_mut()
                .filter(|write| write.segment.device == device)
                .collect();
            match self.device(device) {
                Ok(open) => open.write_many(&mut its, self.segment_bytes),
                Err(error) => its
                    .iter_mut()
                    .for_each(|write| write.outcome = Some(Err(error.clone()))),
            }
        }
    }

    /// Makes durable what was written to these devices (numbers; twice the same is fine). The first error is
    /// returned after all were tried.
    pub fn flush(&self, devices: &[u16]) -> Result<(), PoolError> {
        self.flush_each(devices).into_values().next().map_or(Ok(()), Err)
    }

    /// The same; which of them failed, and why.
    pub fn flush_each(&self, devices: &[u16]) -> BTreeMap<u16, PoolError> {
        let mut failed = BTreeMap::new();
        let mut open: Vec<Arc<OpenDevice>> = Vec::with_capacity(devices.len());
        for number in devices {
            match self.device(*number) {
                Ok(device) if open.iter().all(|open| open.number != *number) => open.push(device),
                Ok(_) => {}
                Err(error) => _ = failed.insert(*number, error),
            }
        }
        open.sort_unstable_by_key(|device| device.number);
        let flushed = open.iter().zip(self.flush_all_of(&open));
        failed.extend(flushed.filter_map(|(device, outcome)| Some((device.number, outcome.err()?))));
        failed
    }

    /// Flushes every device that is there.
    pub fn flush_all(&self) -> Result<(), PoolError> {
        let open = self.open.read().clone();
        self.flush_devices(&open)
    }

    pub(crate) fn flush_devices(&self, devices: &[Arc<OpenDevice>]) -> Result<(), PoolError> {
        self.flush_all_of(devices).into_iter().collect()
    }

    /// What became of each.
    fn flush_all_of(&self, devices: &[Arc<OpenDevice>]) -> Vec<Result<(), PoolError>> {
        if devices.len() < 2 || self.parallelism == Parallelism::Sequential {
            return devices.iter().map(|device| device.flush()).collect();
        }
        // Each on a thread of its device: who waits does so only as long as the device answers.
        let asked: Vec<_> = devices.iter().map(|device| device.begin_flush()).collect();
        let flushed = devices.iter().zip(asked).map(|(device, asked)| match asked {
            Some(asked) => device.end_flush(&asked),
            None => device.flush(),
        });
        flushed.collect()
    }

    /// Looks at all devices, whether they answer what they were asked for; those that have not for `timeout` are asked for nothing more
    /// until they do, as long as another one answers. To be called several times within it, by a thread that asks no device for anything. Nanoseconds, by a clock that only
    /// goes on and since 1970. Whether that changed for any.
    pub fn look_at_devices(&self, monotonic: u64, now: u64, timeout: u64) -> bool {
        let open = self.open.read().clone();
        let turns = open.iter().map(|device| device.look(monotonic, now, timeout));
        let turned = turns.fold(false, |any, turned| any | turned);
        let any_answers = open.iter().any(|device| !device.watch.is_silent());
        open.iter().for_each(|device| device.refuse(any_answers));
        turned
    }

    /// Whether there are devices, and none of them answers.
    pub fn is_silent(&self) -> bool {
        let open = self.open.read();
        !open.is_empty() && open.iter().all(|device| device.watch.is_silent())
    }

    /// When the first of the devices that do not answer now was found not to.
    pub fn first_found_silent(&self) -> Option<Instant> {
        let open = self.open.read().clone();
        open.iter().filter_map(|device| device.watch.found_silent()).min()
    }

    /// Devices that do not answer: number, path, and since when, nanoseconds since 1970.
    pub fn silent(&self) -> Vec<(u16, String, u64)> {
        let open = self.open.read().clone();
        let silent = open.iter().filter_map(|device| {
            let since = device.watch.silent_since()?;
            Some((device.number, device.device.path(), since))
        });
        silent.collect()
    }

    /// Tells the device that the content of a segment is not needed. Only while it is still the caller's, just before
    /// [`Self::release`]: afterwards somebody else may be writing to it.
    pub fn discard(&self, segment: SegmentId) -> Result<(), PoolError> {
        self.check_writable()?;
        self.device(segment.device)?.discard(segment, self.segment_bytes)
    }

    /// Counts content that did not match its checksum.
    pub fn note_checksum_error(&self, device: u16) {
        if let Ok(device) = self.device(device) {
            count(&device.counters.checksum_errors, 1);
        }
    }

    pub(crate) fn check_writable(&self) -> Result<(), PoolError> {
        if self.read_only {
            Err(PoolError::ReadOnly)
        } else {
            Ok(())
        }
    }

    pub(crate) fn device(&self, number: u16) -> Result<Arc<OpenDevice>, PoolError> {
        let open = self.open.read();
        match open.binary_search_by_key(&number, |device| device.number) {
            Ok(index) => Ok(open[index].clone()),
            Err(_) => {
                drop(open);
                let known = self.label.read().member(number).is_some();
                Err(PoolError::NoDevice {
                    number,
                    state: if known { "missing" } else { "not part of it" },
                })
            }
        }
    }
}
