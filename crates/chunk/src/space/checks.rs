//! Checks: every question whether there is enough of something in the pool as a whole. Those about one tier are in `landing.rs`.
//!
//! Invariants: each is answered from memory, by the thresholds of `watermarks.rs`, and waits for nobody; an answer is true of one moment
//! and sets nothing aside (`SpaceView::try_reserve` looks and takes in one).

use std::sync::atomic::Ordering;

use terrace_store::StoreError;

use super::{
    accounting::SpaceView,
    tier_room::TierRoom,
    watermarks::{Backlog, Margin, Watermarks, left_by_moves, log_limit, metadata_copies},
};

/// Of segments, and of what is reserved.
impl SpaceView {
    /// What stays free of the pool, by who asks.
    pub(crate) fn watermarks(&self) -> Watermarks {
        let (total, devices) = (self.pool.total_segments(), self.pool.device_count());
        Watermarks::new(self.pool.staying_segments(None), total, devices)
    }

    /// Whether segments can be taken for content that was `accepted`, or that was not: one for each copy.
    pub(crate) fn has_segments(&self, is_accepted: bool) -> bool {
        self.pool.free_for_content() >= self.watermarks().of_segment(is_accepted) + self.copies_at_most()
    }

    /// Whether so many eighths of the reserve are free, also when the records in memory lie in tables, in each of their copies.
    pub(crate) fn has_reserve(&self, eighths: u64) -> bool {
        let devices = self.pool.device_count();
        let records = self.tree.usage().memory_bytes as u64 * metadata_copies(devices);
        let due = records / u64::from(self.pool.segment_bytes());
        let (free, all) = self.pool.usable_segments();
        // Where a device fails what is full is not the pool: whoever writes there learns of that.
        let reserve = Watermarks::reserve_of(all).min(self.watermarks().reserve());
        let marks = Watermarks::of_reserve(reserve, self.pool.total_segments(), devices);
        all == 0 || free >= marks.eighths_for_changes(eighths) + due
    }

    /// Whether copies that are lacking, of so many bytes, leave what was promised to writers its room. The reserve is theirs
    /// where nothing is promised. A segment is left beside: what says where they are takes room as well, once it is written.
    pub(crate) fn is_room_beside_promises(&self, bytes: u64) -> bool {
        let promised = self.reserved();
        let room = self
            .room_for_content()
            .saturating_sub(self.pool.segment_bytes().into());
        promised == 0 || Self::allowance(promised.saturating_add(bytes)) <= room
    }

    /// Whether content may be moved to a tier that it is to lie on.
    pub(crate) fn may_move_to(&self, tier: u8) -> bool {
        let tiers = self.pool.tiers();
        let tier = tiers.get(usize::from(tier));
        tier.is_none_or(|tier| tier.free_segments > left_by_moves(tier.segments))
    }

    /// Whether so little is free that users would soon wait for it.
    pub(crate) fn is_low(&self) -> bool {
        self.pool.free_for_content() < self.watermarks().low()
    }

    /// Whether so little is free that each tier is compacted.
    pub(crate) fn is_compaction_due(&self) -> bool {
        self.pool.free_for_content() < self.watermarks().compaction()
    }

    /// Whether somebody waits for space, or will soon.
    pub(crate) fn is_urgent(&self) -> bool {
        self.need.is_felt() || self.is_low()
    }

    /// Users would soon have to wait for background work: records wait for it, or space is short, on a tier or on all.
    pub(crate) fn is_pressed(&self) -> bool {
        self.is_loaded() || self.is_low() || self.free_where_pressed().is_some()
    }

    /// Whether this store's own work can wait.
    pub(super) fn has_time(&self) -> bool {
        !self.need.is_felt() && self.throttle_share_of_pool() > 0.0
    }

    /// The same, and no tier will soon need what is given up.
    pub(crate) fn has_room_to_wait(&self) -> bool {
        self.has_time() && !self.tier_rooms().iter().any(TierRoom::is_short)
    }

    /// How much of its usual rest background work may take while users do something: 1 all of it, 0 none, since users
    /// would soon have to wait for it. The more garbage there is beside what is free, the less.
    pub(crate) fn throttle_share(&self) -> f64 {
        let rooms = self.tier_rooms();
        let tiers = rooms.iter().map(TierRoom::throttle_share);
        tiers.fold(self.throttle_share_of_pool(), f64::min)
    }

    /// The same, whichever tier the free room is on.
    fn throttle_share_of_pool(&self) -> f64 {
        if self.is_loaded() || self.is_low() {
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
}

/// Of the log and of records.
impl SpaceView {
    /// Whether the log takes so many bytes that it does not have yet, and keeps this margin.
    pub(crate) fn has_log_space(&self, due: u64, margin: Margin) -> bool {
        let margin_bytes = margin.bytes(self.pool.segment_bytes().into());
        let needed = self.log_segments(due + margin_bytes);
        needed == 0 || needed <= self.pool.free_segments()
    }

    /// How far tables and checkpoints are behind commits.
    pub(crate) fn backlog(&self) -> Backlog {
        Backlog::of(self.tree.pressure(), self.log.bytes(), self.log_limit())
    }

    /// Records come faster than they are written into tables.
    pub(crate) fn is_loaded(&self) -> bool {
        self.backlog() >= Backlog::Loaded
    }

    /// Whether records take all the memory that is for them.
    pub(crate) fn is_full_of_records(&self) -> bool {
        self.tree.memory_share() >= 1.0
    }

    /// Whether the log is so long, or so little is free, that a checkpoint is due which gives something back.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        let low = || self.pool.free_for_content() < self.watermarks().checkpoint();
        let segment = u64::from(self.pool.segment_bytes());
        self.log.bytes() > self.log_limit()
            || (low() && (self.log.bytes() > segment || self.tree.usage().bytes_replaced > 2 * segment))
    }

    /// Log length at which a checkpoint is due, bytes.
    fn log_limit(&self) -> u64 {
        let pool_bytes = self.pool.total_segments() * u64::from(self.pool.segment_bytes());
        let tiers = self.pool.tiers();
        let fastest_bytes = tiers.first().map_or(pool_bytes, |tier| tier.size_bytes);
        log_limit(self.options.checkpoint_log_bytes, pool_bytes, fastest_bytes)
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
}
