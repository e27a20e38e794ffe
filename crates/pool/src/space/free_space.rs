//! `FreeSpace`: what is free on the devices of a pool, and taking from it.
//!
//! Invariants: each question is answered out of one moment of the maps, for the devices and tiers that the caller holds still
//! ([`Membership`]); a device is checked for segments in use and closed for new ones in one step.

use std::sync::Arc;

use terrace_sync::{Mutex, rank};

use super::{
    allocator::{Allocator, DeviceSegments, Request, floor_of, landing_mark},
    content_room::{ContentRoom, Freed},
};
use crate::{
    PoolError,
    devices::{DeviceInfo, Membership, OpenDevice},
    ondisk::{SegmentId, SegmentRange, TierSettings},
};

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

/// A device of which no segments are taken any more.
pub(crate) struct TakenOut(Option<DeviceSegments>);

/// See the module.
pub(crate) struct FreeSpace {
    allocator: Mutex<Allocator, rank::pool::FreeSpace>,
}

impl FreeSpace {
    /// All segments of these devices are free.
    pub(crate) fn new(open: &[Arc<OpenDevice>]) -> Self {
        let mut allocator = Allocator::default();
        for device in open {
            allocator.add(device.number, device.segments());
        }
        Self {
            allocator: Mutex::new(allocator),
        }
    }

    /// Takes a free segment.
    pub(crate) fn allocate(
        &self,
        request: &Request<'_>,
        members: &Membership,
    ) -> Result<SegmentId, PoolError> {
        let mut allocator = self.allocator.lock();
        allocator.refresh(members);
        allocator.allocate(request, &members.label().tiers)
    }

    pub(crate) fn set_holds(&self, levels: Vec<Option<f64>>) {
        self.allocator.lock().set_holds(levels);
    }

    pub(crate) fn claim(&self, segment: SegmentId) -> Result<(), PoolError> {
        self.allocator.lock().claim(segment)
    }

    pub(crate) fn release(&self, segment: SegmentId) -> Result<(), PoolError> {
        self.allocator.lock().release(segment)
    }

    pub(crate) fn is_claimed(&self, segment: SegmentId) -> bool {
        self.allocator.lock().is_claimed(segment)
    }

    /// Free segments, and all, of the devices that can be written.
    pub(crate) fn usable_segments(&self, members: &Membership) -> (u64, u64) {
        let mut allocator = self.allocator.lock();
        allocator.refresh(members);
        let counts = allocator.usable_counts(None);
        (counts.free, counts.total)
    }

    /// Segments on all devices that are there.
    pub(crate) fn total_segments(&self) -> u64 {
        self.allocator.lock().all_counts(None).total
    }

    /// Segments on all devices that are there but those that are being emptied, and but that one.
    pub(crate) fn staying_segments(&self, without: Option<u16>, members: &Membership) -> u64 {
        let allocator = self.allocator.lock();
        let open = members.open().iter();
        open.filter(|device| Some(device.number) != without && !device.is_draining())
            .map(|device| allocator.counts(device.number).total)
            .sum()
    }

    /// Tiers, fastest first.
    pub(crate) fn tiers(&self, members: &Membership) -> Vec<TierInfo> {
        let label = members.label();
        let mut allocator = self.allocator.lock();
        allocator.refresh(members);
        let tiers = label.tiers.iter().zip(0u8..).map(|(settings, tier)| {
            let counts = allocator.usable_counts(Some(tier));
            let its = label.members.iter().filter(|member| member.tier == tier);
            TierInfo {
                settings: settings.clone(),
                devices: its.map(|member| member.number).collect(),
                size_bytes: allocator.all_counts(Some(tier)).total * u64::from(label.segment_bytes),
                segments: counts.total,
                free_segments: counts.free,
                floor_segments: floor_of(counts.total),
                landing_mark: landing_mark(settings.high_water),
            }
        });
        tiers.collect()
    }

    /// Devices, ascending by number, missing ones too.
    pub(crate) fn devices(&self, members: &Membership) -> Vec<DeviceInfo> {
        let allocator = self.allocator.lock();
        let devices = members.label().members.iter().map(|member| {
            let mut open = members.open().iter();
            let device = open.find(|device| device.number == member.number);
            let counts = allocator.counts(member.number);
            DeviceInfo::new(member, device.map(|device| &**device), counts.total, counts.free)
        });
        devices.collect()
    }

    /// What content can still get, by what each tier keeps of it.
    pub(crate) fn content_room(&self, members: &Membership) -> ContentRoom {
        self.for_content(members, |allocator, number| allocator.counts(number).free)
    }

    /// The same if the tier of this name kept so many copies.
    pub(crate) fn content_room_with(&self, tier: &str, copies: u8, members: &Membership) -> ContentRoom {
        let free = |allocator: &Allocator, number| allocator.counts(number).free;
        self.for_content_with(members, free, |settings| match settings.name == tier {
            true => copies,
            false => settings.copies,
        })
    }

    /// What content can get without these segments: now, and with nothing in use anywhere.
    pub(crate) fn for_content_without(
        &self,
        range: SegmentRange,
        members: &Membership,
    ) -> (ContentRoom, ContentRoom) {
        let free = self.for_content(members, |allocator, number| {
            let claimed = |from| u64::from(allocator.claimed_from(number, from));
            match number == range.device {
                true => u64::from(range.from).saturating_sub(claimed(0) - claimed(range.from)),
                false => allocator.counts(number).free,
            }
        });
        let all = self.for_content(members, |allocator, number| match number == range.device {
            true => u64::from(range.from),
            false => allocator.counts(number).total,
        });
        (free, all)
    }

    /// What content could get without a device; see [`Pool::for_content_leaving`](crate::Pool::for_content_leaving).
    pub(crate) fn for_content_leaving(
        &self,
        leaving: u16,
        joining: Option<u64>,
        freed: impl Fn(u16) -> Freed,
        anywhere: u64,
        members: &Membership,
    ) -> ContentRoom {
        let tier_of_leaving = members.tier_of(leaving);
        let allocator = self.allocator.lock();
        let mut room = ContentRoom::default();
        for (settings, tier) in members.label().tiers.iter().zip(0u8..) {
            let here = members.usable_in(tier).filter(|device| device.number != leaving);
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

    fn for_content(&self, members: &Membership, count: impl Fn(&Allocator, u16) -> u64) -> ContentRoom {
        self.for_content_with(members, count, |settings| settings.copies)
    }

    fn for_content_with(
        &self,
        members: &Membership,
        count: impl Fn(&Allocator, u16) -> u64,
        copies: impl Fn(&TierSettings) -> u8,
    ) -> ContentRoom {
        let allocator = self.allocator.lock();
        let mut room = ContentRoom::default();
        for (settings, tier) in members.label().tiers.iter().zip(0u8..) {
            let here = members.usable_in(tier);
            let free = here.map(|device| count(&allocator, device.number)).collect();
            room.add(free, copies(settings));
        }
        room
    }

    /// A device joined.
    pub(crate) fn add(&self, number: u16, segments: u32) {
        self.allocator.lock().add(number, segments);
    }

    pub(crate) fn grow(&self, number: u16, segments: u32) {
        self.allocator.lock().grow(number, segments);
    }

    /// Takes a device out if nothing on it is in use, or all the same (`abandoned`).
    ///
    /// # Errors
    /// How many segments are in use.
    pub(crate) fn take_out(&self, number: u16, abandoned: bool) -> Result<TakenOut, u32> {
        let mut allocator = self.allocator.lock();
        let counts = allocator.counts(number);
        if counts.free != counts.total && !abandoned {
            return Err((counts.total - counts.free) as u32);
        }
        Ok(TakenOut(allocator.remove(number)))
    }

    /// It stays after all, with what was in use on it.
    pub(crate) fn put_back(&self, taken_out: TakenOut) {
        if let Some(device) = taken_out.0 {
            self.allocator.lock().put_back(device);
        }
    }

    /// Takes no more segments of a device from this index on, or (`None`) all again.
    pub(crate) fn set_limit(&self, number: u16, segments: Option<u32>) {
        self.allocator.lock().set_limit(number, segments);
    }

    /// The same for a device that has nothing in use from there on.
    ///
    /// # Errors
    /// How many segments are in use there.
    pub(crate) fn close_end(&self, number: u16, segments: u32) -> Result<(), u32> {
        let mut allocator = self.allocator.lock();
        match allocator.claimed_from(number, segments) {
            0 => {
                allocator.set_limit(number, Some(segments));
                Ok(())
            }
            claimed => Err(claimed),
        }
    }

    /// Takes the end off a device; only when nothing there is in use.
    pub(crate) fn shrink(&self, number: u16, segments: u32) {
        self.allocator.lock().shrink(number, segments);
    }

    /// How many of these segments are in use, and how many free segments the device has before them.
    pub(crate) fn usage_of(&self, range: SegmentRange) -> (u32, u32) {
        let allocator = self.allocator.lock();
        let claimed = allocator.claimed_from(range.device, range.from);
        let before = allocator.claimed_from(range.device, 0) - claimed;
        (claimed, range.from.saturating_sub(before))
    }
}
