//! Space: what there is, what is used, what writers can still get.
//!
//! Invariant: everything is counted from memory; a reservation that was given is backed by free segments beyond the
//! reserve, with an allowance for headers, padding and metadata. Whether something is enough is said in `checks.rs`.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering},
};

use terrace_log::Log;
use terrace_meta::Tree;
use terrace_pool::{Freed, Pool, Presence, SegmentId, SegmentRange};
use terrace_store::{CHUNK_BYTES_MAX, MoveRates, Reservation};

use super::{
    device_pacing::Spacing,
    need::Need,
    watermarks::{Watermarks, metadata_copies},
};
use crate::{
    Handles, Options,
    buffers::OpenSegments,
    encoding::{BLOCK, HEADER_BYTES, excess_max},
    ledger::Ledger,
    metadata::MetaStorage,
};

/// What log and metadata take of a pool with next to nothing in it, segments.
const METADATA_SEGMENTS: u64 = 8;

/// What the head of an entry of the log and its padding take, of an entry in two segments and one that names others, bytes.
const ENTRIES_REST: u64 = 3 * 4096;

/// What a reservation is for, and so how far it may go into the reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// New content.
    Content,
    /// The same as a last resort, where the space was promised and metadata grew into it.
    Promised,
    /// What gives back more than it takes.
    Gain,
}

/// What may stay unused of a segment that is written to: as much as the longest chunk of `chunk_bytes` takes at its end, where it does
/// not fit any more, and what lets payloads lie on whole blocks.
pub(crate) fn unused_bytes(segment_bytes: u32, chunk_bytes: u64) -> u64 {
    chunk_bytes
        .saturating_add(HEADER_BYTES as u64)
        .saturating_add((excess_max(segment_bytes as usize) + BLOCK) as u64)
}

/// What is free, for whom, and where a write may land: numbers alone. Waits for nobody.
pub(crate) struct SpaceView {
    pub(super) pool: Arc<Pool>,
    pub(super) options: Options,
    pub(super) tree: Arc<Tree>,
    pub(super) log: Arc<Log>,
    pub(super) meta: Arc<MetaStorage>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) open_segments: Arc<OpenSegments>,
    pub(super) reserved: Arc<AtomicU64>,
    pub(super) pending_free: AtomicI64,
    /// Content that was freed and in whose place nothing was written, bytes, as far as it matters.
    pub(super) freed_lately: AtomicU64,
    pub(super) need: Need,
    /// The first tier that compaction leaves in peace.
    pub(super) resting_from: AtomicU8,
    pub(super) spacing: Spacing,
    /// How fast content may be moved between tiers, and on each of them.
    pub(super) rates: Arc<MoveRates>,
    /// Segments released so far.
    pub(super) released: AtomicU64,
}

impl SpaceView {
    /// Of these parts.
    pub(crate) fn new(handles: &Handles) -> Self {
        Self {
            pool: handles.pool.clone(),
            options: handles.options.clone(),
            tree: handles.tree.clone(),
            log: handles.log.clone(),
            meta: handles.meta.clone(),
            ledger: handles.ledger.clone(),
            open_segments: handles.open_segments.clone(),
            reserved: Arc::new(AtomicU64::new(0)),
            pending_free: AtomicI64::new(0),
            freed_lately: AtomicU64::new(0),
            need: Need::default(),
            resting_from: AtomicU8::new(u8::MAX),
            spacing: Spacing::default(),
            rates: Arc::default(),
            released: AtomicU64::new(0),
        }
    }

    pub(crate) fn release_segment(&self, segment: SegmentId) {
        self.released.fetch_add(1, Ordering::AcqRel);
        if let Err(error) = self.pool.release(segment) {
            tracing::error!(%segment, %error, "a segment could not be released");
        }
    }

    /// What lies on a device, or the end of one, from memory.
    pub(crate) fn load_of(&self, range: SegmentRange) -> DeviceLoad {
        let content = self.ledger.content_of(range);
        let (claimed, _) = self.pool.usage_of(range);
        let segment = u64::from(self.pool.segment_bytes());
        DeviceLoad {
            live_bytes: content.live.max(0).unsigned_abs(),
            metadata_bytes: u64::from(claimed).saturating_sub(content.segments) * segment,
        }
    }

    /// How fast content may be moved.
    pub(crate) fn rates(&self) -> &Arc<MoveRates> {
        &self.rates
    }

    /// Who needs room.
    pub(crate) fn need(&self) -> &Need {
        &self.need
    }

    /// Segments that content can have, with those that new content took meanwhile: it grows as long as any come back.
    pub(crate) fn brought_back(&self) -> u64 {
        self.pool.free_for_content() + self.need.taken()
    }

    /// How many segments were released so far.
    pub(crate) fn releases(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// About what is to be freed, bytes.
    pub(crate) fn pending_free(&self) -> i64 {
        self.pending_free.load(Ordering::Relaxed)
    }

    /// So much more is to be freed, or less.
    pub(crate) fn add_pending_free(&self, bytes: i64) {
        self.pending_free.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What is set aside, bytes.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Acquire)
    }

    /// Sets so many bytes aside, whether there is room or not.
    pub(crate) fn reserve_always(&self, bytes: u64) -> Reservation {
        self.reserved.fetch_add(bytes, Ordering::AcqRel);
        self.given(bytes)
    }

    /// Sets `bytes` aside if there is room for what is set aside then beside `own`. Looked at and taken in one: of two who ask at a
    /// time neither stands in the other's way with what it does not get.
    pub(crate) fn try_reserve(&self, bytes: u64, own: u64, purpose: Purpose) -> Option<Reservation> {
        // Records of new content would only take metadata further beyond what a root can list.
        if !self.is_listable() {
            return None;
        }
        let taken = self
            .reserved
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |reserved| {
                let all = reserved.checked_add(bytes)?;
                let beside = all.saturating_sub(own);
                let room = match purpose {
                    Purpose::Content => self.room_for_content(),
                    Purpose::Promised => self.room_beyond(self.watermarks().promised()),
                    Purpose::Gain => self.room_beyond(self.watermarks().gain()),
                };
                (Self::allowance(beside) <= room).then_some(all)
            });
        taken.is_ok().then(|| self.given(bytes))
    }

    /// What `bytes` of content may take on the devices at worst in the long run: headers, records, padding.
    pub(crate) fn allowance(bytes: u64) -> u64 {
        bytes.saturating_add(bytes / 8)
    }

    /// Most copies that any tier keeps.
    pub(crate) fn copies_at_most(&self) -> u64 {
        let copies = self
            .pool
            .tiers()
            .iter()
            .map(|tier| u64::from(tier.settings.copies.max(1)))
            .max();
        copies.unwrap_or(1)
    }

    /// Room for content beyond the reserve, less what is set aside, bytes.
    pub(crate) fn available(&self) -> u64 {
        self.content_room().saturating_sub(self.reserved())
    }

    /// The same, whatever is set aside.
    pub(crate) fn content_room(&self) -> u64 {
        self.room_for_content() / 9 * 8
    }

    /// Room for content beyond the reserve, each tier with the copies that it keeps, bytes. The last segments are for those who freed
    /// something since the pool was found full: tables and the log move within the reserve, and a small deletion fills no segment.
    pub(crate) fn room_for_content(&self) -> u64 {
        let (marks, segment) = (self.watermarks(), u64::from(self.pool.segment_bytes()));
        let (reserve, freed_only) = (marks.reserve(), marks.freed_only());
        let freed = self.freed_lately.load(Ordering::Relaxed);
        match (freed_only, freed) {
            (0, _) => self.room_beyond(reserve),
            (_, 0) => self.room_beyond(reserve + freed_only),
            _ => {
                let of_freed = Self::allowance(freed)
                    .min(freed_only * segment)
                    .min(self.room_beyond(reserve));
                self.room_beyond(reserve + freed_only).max(of_freed)
            }
        }
    }

    /// So many bytes of content are free, or will be once they are reclaimed.
    pub(crate) fn note_freed(&self, bytes: i64) {
        let most = self.watermarks().freed_only() * u64::from(self.pool.segment_bytes());
        let add = |freed: u64| Some(freed.saturating_add_signed(bytes.max(0)).min(most));
        let _ = self
            .freed_lately
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// So many bytes of content were written: they have taken the place of freed ones.
    pub(crate) fn note_written(&self, bytes: u64) {
        if self.freed_lately.load(Ordering::Relaxed) > 0 {
            let take = |freed: u64| Some(freed.saturating_sub(bytes));
            let _ = self
                .freed_lately
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        }
    }

    /// Room beyond so many segments, of each copy, bytes. Where these are not free, what is missing of them goes before what
    /// open segments have room for: who fills these takes what compaction would have to write to.
    pub(crate) fn room_beyond(&self, leave_free: u64) -> u64 {
        let segment = u64::from(self.pool.segment_bytes());
        let room = self.pool.content_room();
        let open = self.open_room();
        (room.beyond(leave_free) * segment + open).saturating_sub(room.missing(leave_free) * segment)
    }

    /// Room in open segments that ordinary writers can use, bytes. At the end of each as much stays unused as the next
    /// chunk is too long by.
    fn open_room(&self) -> u64 {
        self.open_segments
            .all()
            .iter()
            .map(|open| open.room().saturating_sub(CHUNK_BYTES_MAX + HEADER_BYTES) as u64)
            .sum()
    }

    /// Free segments that so many bytes take beyond what the log has, in each of its copies.
    pub(crate) fn log_segments(&self, bytes: u64) -> u64 {
        let lacking = (bytes + ENTRIES_REST).saturating_sub(self.log.room());
        if lacking == 0 {
            return 0;
        }
        lacking.div_ceil(self.log.room_of_segment().max(1)) * metadata_copies(self.pool.device_count())
    }

    /// Metadata segments, and how many there can be at most before no root can list them any more.
    pub(crate) fn metadata_segments(&self) -> (u64, u64) {
        self.meta.listed(&[])
    }

    /// Room for content beyond the reserve if the tier of this name kept so many copies, bytes of each. What open segments there
    /// have room for is none: they may have fewer.
    pub(crate) fn room_with_copies(&self, tier: &str, copies: u8) -> u64 {
        let segment = u64::from(self.pool.segment_bytes());
        let tiers = self.pool.tiers();
        let is_there = |device: u16| {
            let number = self.pool.tier_of(device).map(usize::from);
            number
                .and_then(|number| tiers.get(number))
                .is_some_and(|found| found.settings.name == tier)
        };
        let open = self.open_segments.all();
        let elsewhere = open
            .iter()
            .filter(|open| !open.copies.iter().any(|copy| is_there(copy.device)));
        let open_room: u64 = elsewhere.map(|open| open.room() as u64).sum();
        let (room, reserve) = (
            self.pool.content_room_with(tier, copies),
            self.watermarks().reserve(),
        );
        (room.beyond(reserve) * segment + open_room).saturating_sub(room.missing(reserve) * segment)
    }

    /// As [`available`](Self::available), if a device ended before these segments; negative room is none. And whether the
    /// pool could still be used then, were it empty: beside reserve, log and metadata an eighth is for content.
    pub(crate) fn available_without(&self, range: SegmentRange) -> (u64, bool) {
        let segment = u64::from(self.pool.segment_bytes());
        let (free, all) = self.pool.for_content_without(range);
        let open = self.open_segments.all();
        let outside = open
            .iter()
            .filter(|open| !open.copies.iter().any(|copy| range.contains(*copy)));
        let open_room: u64 = outside.map(|open| open.room() as u64).sum();
        let reserve = self.watermarks().reserve();
        let room = free.beyond(reserve) * segment + open_room;
        let content = (room / 9 * 8).saturating_sub(self.reserved());
        let left = all.beyond(reserve + METADATA_SEGMENTS);
        (content, left > self.pool.total_segments() / 8)
    }

    /// Room beyond the reserve for what lies on a device that is to leave, as content, bytes of each copy; `joining_bytes`: room
    /// on a device that takes its place. What moves is written anew with all its copies, and the other ones that it had are
    /// brought back meanwhile.
    pub(crate) fn room_for_leaving(&self, device: u16, joining_bytes: u64) -> u64 {
        let segment = u64::from(self.pool.segment_bytes());
        let devices = self.pool.devices();
        let live = |number: u16| self.load_of(SegmentRange::whole(number)).live_bytes;
        let leaving = devices.iter().find(|info| info.number == device);
        let tier = leaving.map(|info| info.tier);
        let copies = u64::from(tier.map_or(1, |tier| self.pool.copies_in(tier)));
        let others: Vec<(u16, u64)> = devices
            .iter()
            .filter(|info| Some(info.tier) == tier && info.number != device)
            .map(|info| (info.number, live(info.number)))
            .collect();
        let own = live(device);
        let all: u64 = others.iter().map(|(_, live)| live).sum();
        // The other copies of what lies there, each on one of the others.
        let mut beside = own * copies.saturating_sub(1);
        // A copy that is alone gives nothing back; where some are, nobody knows how many.
        let is_alone_possible = devices.iter().filter(|info| Some(info.tier) == tier).any(|info| {
            info.presence == Presence::Behind || info.number != device && info.presence != Presence::Whole
        });
        if is_alone_possible {
            beside = 0;
        }
        let most = |live: u64| live.min(own).min(beside);
        let mosts: u64 = others.iter().map(|(_, live)| most(*live)).sum();
        let least = |live: u64| {
            // What the others cannot have; and of two copies, what finds no second one among the others.
            let of_these = beside.saturating_sub(mosts - most(live));
            let of_pairs = match copies {
                2 if beside > 0 => (own + live).saturating_sub(all - live) / 2,
                _ => 0,
            };
            of_these.max(of_pairs).min(most(live))
        };
        let leasts: u64 = others.iter().map(|(_, live)| least(*live)).sum();
        let anywhere = beside.saturating_sub(leasts);
        let freed = |number: u16| {
            let other = others.iter().find(|(other, _)| *other == number);
            let live = other.map_or(0, |(_, live)| *live);
            Freed {
                least: least(live) / segment,
                more: (most(live) - least(live)).min(anywhere).div_ceil(segment),
            }
        };
        let joining = (joining_bytes > 0).then_some(joining_bytes / segment);
        let room = self
            .pool
            .for_content_leaving(device, joining, freed, anywhere / segment);
        // The reserve of the pool that is left.
        let left = self.pool.staying_segments(Some(device)) + joining.unwrap_or(0);
        room.beyond(Watermarks::reserve_of(left)) * segment
    }

    /// What may be left unused of the segments that so many bytes of chunks are written to.
    pub(crate) fn unused_ends(&self, bytes: u64) -> u64 {
        let segment_bytes = self.pool.segment_bytes();
        let unused = unused_bytes(segment_bytes, CHUNK_BYTES_MAX as u64);
        let usable = u64::from(segment_bytes).saturating_sub(unused).max(1);
        bytes.div_ceil(usable) * unused
    }

    /// What is set aside for writers, as far as there is room for it now, as [`room_for_leaving`](Self::room_for_leaving) counts
    /// room: to be left when a device goes.
    pub(crate) fn backed_promises(&self) -> u64 {
        Self::allowance(self.reserved()).min(self.room_for_content())
    }

    /// So much was set aside.
    pub(crate) fn given(&self, bytes: u64) -> Reservation {
        let reserved = self.reserved.clone();
        let give_back = move |bytes| {
            reserved.fetch_sub(bytes, Ordering::AcqRel);
        };
        Reservation::new(bytes, std::sync::Arc::new(give_back))
    }
}

/// What lies on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceLoad {
    /// Live chunks, headers included.
    pub live_bytes: u64,
    /// Segments of metadata and log.
    pub metadata_bytes: u64,
}
