//! Pressure: how much of the pool is kept for what gives room back, and whether users would soon have to wait for that.

use std::sync::atomic::Ordering;

use terrace_store::{CHUNK_BYTES_MAX, StoreError};

use super::{accounting::SpaceView, tier_room::TierRoom};
use crate::encoding::HEADER_BYTES;

impl SpaceView {
    /// How many wait until room was made, or there is none to be had.
    pub(crate) fn waiting_for_room(&self) -> usize {
        self.need.waiting()
    }

    /// Segments that ordinary writers leave free: for the log, metadata, deletion and compaction. A third of a very small
    /// pool, where tables alone need several for a checkpoint. A device that is being emptied takes none of that, and counts no
    /// more.
    pub(crate) fn reserve_segments(&self) -> u64 {
        Self::reserve_of(self.pool.staying_segments(None))
    }

    /// The same of a pool of so many segments.
    pub(super) fn reserve_of(total: u64) -> u64 {
        let small = (total / 20).clamp(8, 64);
        (total / 50).max(small).min(total / 3)
    }

    /// So many eighths of the reserve, rounded up.
    pub(crate) fn eighths(&self, eighths: u64) -> u64 {
        (self.reserve_segments() * eighths).div_ceil(8)
    }

    /// Segments of the reserve that no content may take, whoever writes it: without one for tables no checkpoint could be
    /// made, and nothing be freed any more.
    pub(crate) fn last_segments(&self) -> u64 {
        (self.reserve_segments() / 4).max(1)
    }

    /// Room in open segments that ordinary writers can use, bytes. At the end of each as much stays unused as the next
    /// chunk is too long by.
    pub(super) fn open_room(&self) -> u64 {
        self.open_segments
            .all()
            .iter()
            .map(|open| open.room().saturating_sub(CHUNK_BYTES_MAX + HEADER_BYTES) as u64)
            .sum()
    }

    pub(crate) fn is_full_of_records(&self) -> bool {
        self.tree.memory_share() >= 1.0
    }

    /// Whether a root can list all segments of metadata that it would need.
    pub(crate) fn is_listable(&self) -> bool {
        self.check_listable().is_ok()
    }

    /// Refuses, in words that help, what would be refused as a root that is too long.
    pub(crate) fn check_listable(&self) -> Result<(), StoreError> {
        let (all, most) = self.meta.listed(&[]);
        if all <= most {
            return Ok(());
        }
        let (segments, _) = self.meta.listed(&self.tree.replaced());
        if segments <= most {
            return Ok(());
        }
        Err(StoreError::Device(
            format!(
                "metadata takes {segments} segments and a root can list {most}, so that no checkpoint can be made and \
                 the log only grows; destroy snapshots or delete files, or move to a pool on larger devices, whose \
                 segments are larger"
            )
            .into(),
        ))
    }

    /// Metadata segments, and how many there can be at most before no root can list them any more.
    pub(crate) fn metadata_segments(&self) -> (u64, u64) {
        self.meta.listed(&[])
    }

    /// Log length at which a checkpoint is due, bytes: less on a small pool or fast tier, so that the log does not fill it.
    pub(crate) fn log_limit(&self) -> u64 {
        let pool_bytes = self.pool.total_segments() * u64::from(self.pool.segment_bytes());
        let fastest_bytes = self
            .pool
            .tiers()
            .first()
            .map_or(pool_bytes, |tier| tier.size_bytes);
        self.options
            .checkpoint_log_bytes
            .min(pool_bytes / 16)
            .min(fastest_bytes / 32)
            .max(64 * 1024)
    }

    /// How much of its usual rest background work may take while users do something: 1 all of it, 0 none, since users
    /// would soon have to wait for it. The more garbage there is beside what is free, the less.
    pub(crate) fn throttle_share(&self) -> f64 {
        let rooms = self.tier_rooms();
        let tiers = rooms.iter().map(TierRoom::throttle_share);
        tiers.fold(self.throttle_share_of_pool(), f64::min)
    }

    /// The same, whichever tier the free room is on.
    pub(super) fn throttle_share_of_pool(&self) -> f64 {
        if self.is_loaded() || self.is_short_of_room() {
            return 0.0;
        }
        let pending = self.pending_free.load(Ordering::Relaxed).max(0);
        let garbage = {
            let ledger = self.ledger.lock();
            let content = ledger.segments.len() as i64 * i64::from(self.pool.segment_bytes());
            (content - ledger.live_bytes()).max(0) + pending
        };
        let free = self.pool.free_for_content() * u64::from(self.pool.segment_bytes());
        (1.0 - garbage as f64 / free.max(1) as f64).clamp(0.0, 1.0)
    }

    /// Users would soon have to wait for background work: records wait for it, or room is short, on a tier or on all.
    pub(crate) fn is_pressed(&self) -> bool {
        self.is_loaded() || self.is_short_of_room() || self.free_where_pressed().is_some()
    }

    /// Records come faster than they are written into tables.
    pub(crate) fn is_loaded(&self) -> bool {
        self.tree.pressure() > 0.5 || self.log.bytes() > self.log_limit() / 2 * 3
    }

    pub(crate) fn is_short_of_room(&self) -> bool {
        self.pool.free_for_content() < self.reserve_segments() * 3
    }
}
