//! Which segments are free: one bitmap per device, in RAM; the floors above say at open what is in use.
//!
//! Invariants: a segment is handed out only while its bit is clear, and its bit is set before it is handed out; the
//! free count of a device equals the clear bits of its map below its limit. Segments are taken in turn around the device, so that a
//! segment just released is the last to be written over. While other tiers have room, what lands leaves a floor of each free for
//! the log, metadata and compaction, and these leave compaction the last: without a segment to write to it could bring none back.

use super::content_room::{ContentRoom, must_give};
use crate::{
    PoolError,
    devices::Membership,
    ondisk::{HIGH_WATER_DEFAULT, SegmentId, SegmentKind, TierSettings, landing_tier},
};

/// From which tier a segment is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TierChoice {
    /// The fastest tier below its high-water mark; when all are above, the fastest with a segment beyond its floor, then
    /// with any.
    Fastest,
    /// The tier on which long streams in order land, or else the fastest, overflowing to slower, then to faster ones.
    Sequential,
    /// The same for small and scattered writes.
    Random,
    /// This tier; overflows to slower, then faster ones unless `strict`.
    Tier {
        /// Index, 0 is the fastest.
        tier: u8,
        /// Fail rather than take another tier; the high-water mark is ignored.
        strict: bool,
    },
}

/// A segment that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Which tier.
    pub choice: TierChoice,
    /// What for. Only data heeds the high-water mark and the floor: metadata and log stay fast until a tier is full.
    pub kind: SegmentKind,
    /// Devices that must not be used (they hold the other copies).
    pub avoid: &'a [u16],
    /// By tier, segments' worth of garbage that compaction brings back: it does not count against the mark. Tiers that are
    /// not named have none.
    pub garbage: &'a [u64],
    /// Fail with `NoSpace` rather than let the pool have fewer free segments than this afterwards (the reserve).
    pub leave_free: u64,
}

/// The segments of one device.
#[derive(Debug)]
pub(super) struct DeviceSegments {
    number: u16,
    tier: u8,
    /// New segments may be taken from it.
    usable: bool,
    words: Vec<u64>,
    count: u32,
    /// From here on no segment is handed out: the device is to be shrunk.
    limit: u32,
    /// Free ones below the limit.
    free: u32,
    /// Used ones beyond it.
    beyond: u32,
    next: u32,
}

impl DeviceSegments {
    fn new(number: u16, count: u32) -> Self {
        Self {
            number,
            tier: 0,
            usable: false,
            words: vec![0; count.div_ceil(64) as usize],
            count,
            limit: count,
            free: count,
            beyond: 0,
            next: 0,
        }
    }

    /// Segments in use from an index on.
    fn claimed_from(&self, from: u32) -> u32 {
        (from..self.count).filter(|index| self.is_set(*index)).count() as u32
    }

    fn set_limit(&mut self, limit: u32) {
        self.limit = limit.min(self.count);
        self.beyond = self.claimed_from(self.limit);
        self.free = self.limit - (self.claimed_from(0) - self.beyond);
        self.next = if self.next < self.limit { self.next } else { 0 };
    }

    /// What lies beyond the limit and is free does not count any more.
    fn counts(&self) -> Counts {
        Counts {
            total: u64::from(self.limit + self.beyond),
            free: u64::from(self.free),
        }
    }

    fn is_set(&self, index: u32) -> bool {
        self.words
            .get((index / 64) as usize)
            .is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// The first clear bit from `next` on, around the end.
    fn take(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let index = self
            .first_clear(self.next, self.limit)
            .or_else(|| self.first_clear(0, self.next))?;
        self.words[(index / 64) as usize] |= 1 << (index % 64);
        self.free -= 1;
        self.next = if index + 1 >= self.limit { 0 } else { index + 1 };
        Some(index)
    }

    fn first_clear(&self, from: u32, to: u32) -> Option<u32> {
        let mut at = from;
        while at < to {
            let word = self.words[(at / 64) as usize] | ((1u64 << (at % 64)) - 1);
            if word != u64::MAX {
                let index = at / 64 * 64 + word.trailing_ones();
                return (index < to).then_some(index);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

/// The segments of all devices that are there.
#[derive(Debug, Default)]
pub(super) struct Allocator {
    devices: Vec<DeviceSegments>,
    /// By tier: the fill level up to which it keeps what is written, instead of its high-water mark.
    holds: Vec<Option<f64>>,
}

/// Segments of a device or a tier: all, and the free ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) total: u64,
    pub(super) free: u64,
}

impl Allocator {
    /// Adds a device; nothing is taken from it before the next [`refresh`](Self::refresh).
    pub(super) fn add(&mut self, number: u16, count: u32) {
        self.put_back(DeviceSegments::new(number, count));
    }

    pub(super) fn set_holds(&mut self, levels: Vec<Option<f64>>) {
        self.holds = levels;
    }

    /// Adds a device that was taken out.
    pub(super) fn put_back(&mut self, device: DeviceSegments) {
        let place = self.devices.partition_point(|other| other.number < device.number);
        self.devices.insert(place, device);
    }

    pub(super) fn remove(&mut self, number: u16) -> Option<DeviceSegments> {
        let at = self.devices.iter().position(|device| device.number == number)?;
        Some(self.devices.remove(at))
    }

    fn device_mut(&mut self, number: u16) -> Option<&mut DeviceSegments> {
        self.devices.iter_mut().find(|device| device.number == number)
    }

    fn device(&self, number: u16) -> Option<&DeviceSegments> {
        self.devices.iter().find(|device| device.number == number)
    }

    pub(super) fn grow(&mut self, number: u16, count: u32) {
        if let Some(device) = self.device_mut(number)
            && count > device.count
        {
            device.words.resize(count.div_ceil(64) as usize, 0);
            device.count = count;
            device.set_limit(count);
        }
    }

    /// Hands out nothing from this index on, or (`None`) everything again.
    pub(super) fn set_limit(&mut self, number: u16, limit: Option<u32>) {
        if let Some(device) = self.device_mut(number) {
            device.set_limit(limit.unwrap_or(u32::MAX));
        }
    }

    /// Segments of a device in use from an index on.
    pub(super) fn claimed_from(&self, number: u16, from: u32) -> u32 {
        self.device(number).map_or(0, |device| device.claimed_from(from))
    }

    /// Takes the end off a device; only when nothing on it is in use.
    pub(super) fn shrink(&mut self, number: u16, count: u32) {
        if let Some(device) = self.device_mut(number)
            && count < device.count
        {
            device.words.truncate(count.div_ceil(64) as usize);
            device.count = count;
            device.set_limit(count);
        }
    }

    pub(super) fn counts(&self, number: u16) -> Counts {
        self.device(number)
            .map_or(Counts::default(), DeviceSegments::counts)
    }

    /// Notes in which tier devices are, and which of them new segments may be taken from.
    pub(super) fn refresh(&mut self, members: &Membership) {
        for device in members.open() {
            if let Some(segments) = self.device_mut(device.number) {
                segments.usable = device.is_usable();
                segments.tier = members.tier_of(device.number).unwrap_or(segments.tier);
            }
        }
    }

    /// Counts over the devices that may be written, of one tier or (`None`) all.
    pub(super) fn usable_counts(&self, tier: Option<u8>) -> Counts {
        self.sum(|device| device.usable && tier.is_none_or(|tier| device.tier == tier))
    }

    /// Counts over all devices that are there, of one tier or (`None`) all.
    pub(super) fn all_counts(&self, tier: Option<u8>) -> Counts {
        self.sum(|device| tier.is_none_or(|tier| device.tier == tier))
    }

    fn sum(&self, filter: impl Fn(&DeviceSegments) -> bool) -> Counts {
        let devices = self.devices.iter().filter(|device| filter(device));
        devices.fold(Counts::default(), |sum, device| {
            let counts = device.counts();
            Counts {
                total: sum.total + counts.total,
                free: sum.free + counts.free,
            }
        })
    }

    pub(super) fn is_claimed(&self, segment: SegmentId) -> bool {
        self.device(segment.device)
            .is_some_and(|device| device.is_set(segment.index))
    }

    pub(super) fn claim(&mut self, segment: SegmentId) -> Result<(), PoolError> {
        let device = self.existing(segment)?;
        if device.is_set(segment.index) {
            return Err(PoolError::Segment {
                segment,
                reason: "it is in use already",
            });
        }
        device.words[(segment.index / 64) as usize] |= 1 << (segment.index % 64);
        match segment.index < device.limit {
            true => device.free -= 1,
            false => device.beyond += 1,
        }
        Ok(())
    }

    pub(super) fn release(&mut self, segment: SegmentId) -> Result<(), PoolError> {
        let device = self.existing(segment)?;
        if !device.is_set(segment.index) {
            return Err(PoolError::Segment {
                segment,
                reason: "it is free already",
            });
        }
        device.words[(segment.index / 64) as usize] &= !(1 << (segment.index % 64));
        match segment.index < device.limit {
            true => device.free += 1,
            false => device.beyond -= 1,
        }
        Ok(())
    }

    fn existing(&mut self, segment: SegmentId) -> Result<&mut DeviceSegments, PoolError> {
        match self.device_mut(segment.device) {
            Some(device) if segment.index < device.count => Ok(device),
            Some(_) => Err(PoolError::Segment {
                segment,
                reason: "it lies beyond the end of the device",
            }),
            None => Err(PoolError::NoDevice {
                number: segment.device,
                state: "not there",
            }),
        }
    }

    pub(super) fn allocate(
        &mut self,
        request: &Request<'_>,
        tiers: &[TierSettings],
    ) -> Result<SegmentId, PoolError> {
        let no_space = |place: String| Err(PoolError::NoSpace(place));
        // Of data, what has no match on another device is no reserve: compaction could not write there.
        let free = match request.kind {
            SegmentKind::Data if request.leave_free > 0 => self.content_room(tiers).raw,
            _ => self.usable_counts(None).free,
        };
        if free <= request.leave_free {
            return no_space("the pool beyond its reserve".into());
        }
        if let TierChoice::Tier { tier, strict: true } = request.choice {
            let name = tiers
                .get(usize::from(tier))
                .map_or("?", |settings| settings.name.as_str());
            return match self.take_from(tier, request, tiers) {
                Some(segment) => Ok(segment),
                None => no_space(format!("tier '{name}'")),
            };
        }
        let mut order = tier_order(request.choice, tiers);
        if request.kind == SegmentKind::Data {
            if let TierChoice::Sequential | TierChoice::Random = request.choice {
                // A tier that holds keeps what would land below it.
                let holding = (0..order[0]).find(|tier| {
                    self.holds.get(usize::from(*tier)).is_some_and(Option::is_some)
                        && self.is_below_mark(*tier, request.garbage, tiers)
                });
                if let Some(tier) = holding {
                    order.retain(|other| *other != tier);
                    order.insert(0, tier);
                }
            }
            let beyond_floor = |tier: &u8| {
                let counts = self.usable_counts(Some(*tier));
                counts.free > floor_of(counts.total)
            };
            let beyond: Vec<u8> = order.iter().copied().filter(beyond_floor).collect();
            let below_mark = |tier: &&u8| self.is_below_mark(**tier, request.garbage, tiers);
            let (first, then): (Vec<u8>, Vec<u8>) = beyond.iter().partition(below_mark);
            order = first.into_iter().chain(then).chain(order).collect();
        } else {
            let beyond_last = |tier: &u8| {
                let counts = self.usable_counts(Some(*tier));
                counts.free > last_of(counts.total)
            };
            let beyond: Vec<u8> = order.iter().copied().filter(beyond_last).collect();
            order = beyond.into_iter().chain(order).collect();
        }
        for &tier in &order {
            if let Some(segment) = self.take_from(tier, request, tiers) {
                return Ok(segment);
            }
        }
        no_space(if request.avoid.is_empty() {
            "the pool".into()
        } else {
            "the devices that may be used".into()
        })
    }

    /// Whether one more segment leaves the tier at or below its mark, as far as it is not filled with garbage.
    fn is_below_mark(&self, tier: u8, garbage: &[u64], tiers: &[TierSettings]) -> bool {
        let counts = self.usable_counts(Some(tier));
        let at = usize::from(tier);
        let used = counts.total - counts.free;
        let filled = used.saturating_sub(garbage.get(at).copied().unwrap_or(0));
        let high_water = tiers.get(at).map_or(1.0, |settings| settings.high_water);
        let mark = self
            .holds
            .get(at)
            .copied()
            .flatten()
            .unwrap_or(landing_mark(high_water));
        (filled + 1) as f64 <= mark * counts.total as f64
    }

    /// What content can still get on devices that may be written.
    fn content_room(&self, tiers: &[TierSettings]) -> ContentRoom {
        let mut room = ContentRoom::default();
        for (settings, tier) in tiers.iter().zip(0u8..) {
            let here = self
                .devices
                .iter()
                .filter(|device| device.usable && device.tier == tier);
            room.add(
                here.map(|device| u64::from(device.free)).collect(),
                settings.copies,
            );
        }
        room
    }

    /// A segment of the device in the tier that is relatively emptiest (the lowest number among equals); of several copies
    /// of data, of one without which what is free on it could not be matched any more.
    fn take_from(&mut self, tier: u8, request: &Request<'_>, tiers: &[TierSettings]) -> Option<SegmentId> {
        let copies = match request.kind {
            SegmentKind::Data => tiers.get(usize::from(tier)).map_or(1, |settings| settings.copies),
            _ => 1,
        };
        let here = |device: &DeviceSegments| device.usable && device.tier == tier && device.free > 0;
        let has_one = |device: &DeviceSegments| request.avoid.contains(&device.number);
        let taken = self
            .devices
            .iter()
            .filter(|device| device.tier == tier && has_one(device))
            .count();
        let missing = u64::from(copies).saturating_sub(taken as u64).max(1);
        let all: u64 = self
            .devices
            .iter()
            .filter(|device| here(device) && !has_one(device))
            .map(|device| u64::from(device.free))
            .sum();
        let rank = |device: &DeviceSegments| must_give(u64::from(device.free), all, missing);
        let emptier = |a: &DeviceSegments, b: &DeviceSegments| {
            let relatively = u64::from(a.free) * u64::from(b.limit) > u64::from(b.free) * u64::from(a.limit);
            match (rank(a), rank(b)) {
                (true, true) => a.free > b.free,
                (false, false) => relatively,
                (first, _) => first,
            }
        };
        let best = self
            .devices
            .iter_mut()
            .filter(|device| here(device) && !has_one(device))
            .reduce(|best, device| if emptier(device, best) { device } else { best })?;
        best.take().map(|index| SegmentId {
            device: best.number,
            index,
        })
    }
}

/// How full a tier with the usual high-water mark may become: what is written while the mover makes room stays there. A mark that
/// was set lower is heeded.
const LANDING: f64 = 15.0 / 16.0;

/// Fill level up to which new content lands on a tier with this high-water mark.
pub(super) fn landing_mark(high_water: f64) -> f64 {
    match high_water >= HIGH_WATER_DEFAULT {
        true => high_water.max(LANDING),
        false => high_water,
    }
}

/// What is left free of a small tier, segments: the log, tables that a merge writes before it gives the old ones back, and
/// compaction take some at a time, and tables that find none lie on a slower tier, where every look into them waits for it.
const FLOOR_MIN: u64 = 8;

/// Of so many segments of a tier, those that what lands leaves free.
pub(super) fn floor_of(segments: u64) -> u64 {
    (segments / 32).max(FLOOR_MIN).min(segments / 8)
}

/// Those that log and metadata leave free as well: a segment for each of two copies.
fn last_of(segments: u64) -> u64 {
    (segments / 16).min(2)
}

/// Tiers in the order in which they are tried.
fn tier_order(choice: TierChoice, tiers: &[TierSettings]) -> Vec<u8> {
    let count = tiers.len() as u8;
    let first = match choice {
        TierChoice::Fastest => 0,
        TierChoice::Sequential => landing_tier(tiers, true) as u8,
        TierChoice::Random => landing_tier(tiers, false) as u8,
        TierChoice::Tier { tier, .. } => tier.min(count.saturating_sub(1)),
    };
    // From there to slower ones, then back up from the nearest faster one.
    (first..count).chain((0..first).rev()).collect()
}
