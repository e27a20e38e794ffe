//! `LandingCleaner`: room where small writes land, before a commit takes it: blocks that were written over in chunks of which others live.
//!
//! Who overwrites at random what lies in long chunks leaves dead blocks in each of them. On a tier that the hot content fills to a
//! good half they are all the room that there is, and come back only when the rest of their chunk is written anew
//! (`Cut::Survivors`). Whoever commits does that for as much as he is about to write, as he brings garbage back segment by segment
//! (`chunk/src/gc/compaction.rs`): left to the mover alone, which comes by once a second, what is written meanwhile
//! lands on the slower tier and is read from there later (F2FS, Lee et al. 2015, cleans in the foreground for the same reason). Where small
//! writes land on the last tier, room beyond the pool's reserve is meant: there compaction would have to find it for each writer in segments that
//! are full of chunks of which half is dead.
//!
//! Invariants: nothing is done as long as there is room; regions of which most was written over come first, each but once until as
//! much of it is again; for a commit about four times of what it writes is brought back, and what a region gives beyond that counts for the
//! commits after it, so that each waits for its own; a commit looks at a bounded number of regions in vain, and then there is a rest; one
//! clears at a time, and the others wait for him, or what they write would land below; who clears holds no lock that a commit needs.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use terrace_store::{StoreError, TierUsage};
use terrace_sync::{Mutex, rank};

use crate::{
    live::{Environment, Fragment, WHOLE_PART},
    posix::FsError,
    records::REGION_BYTES,
    registry::Registry,
    relayout::{Cut, Layout, Relaid},
};

/// Of a region, the part that must have been written over, in 256ths, and of the tier's live content, the part (one in so many) that
/// garbage is no room up to: the dearer what is written anew, the shorter must room be. (Compaction of segments of which a third is
/// garbage writes two bytes for each that it gives back, as regions do of which a third is dead.)
const PARTS: [(u16, u64); 2] = [(WHOLE_PART / 2, 2), (WHOLE_PART / 4, 6)];
/// How many times what a commit writes is brought back for it.
const AHEAD: u64 = 4;
/// Regions that are written anew together at most.
const REGIONS: u64 = 4;
/// Regions that are looked at for one commit and win nothing.
const IN_VAIN_MAX: usize = 32;
/// After that many, how long none are looked at, nanoseconds.
const REST: u64 = 100_000_000;
/// Of the tier, the part that is left for compaction, which gives back what this empties.
const LAST_PART: u64 = 32;

/// What became of regions that were to be written anew.
struct Cleared {
    /// Dead bytes that come back.
    won: u64,
    /// For each, whether there was room to do it if it was worth it.
    looked: Vec<bool>,
}

/// See the module.
pub(super) struct LandingCleaner {
    environment: Arc<Environment>,
    registry: Arc<Registry>,
    /// What was brought back beyond what the commits so far were to have, bytes; held by who clears.
    beyond: Mutex<u64, rank::dataset::LandingTurn>,
    /// Until when nothing is looked at, nanoseconds.
    rests_until: AtomicU64,
}

impl LandingCleaner {
    pub(super) fn new(environment: &Arc<Environment>, registry: &Arc<Registry>) -> Self {
        Self {
            environment: environment.clone(),
            registry: registry.clone(),
            beyond: Mutex::default(),
            rests_until: AtomicU64::default(),
        }
    }

    /// Sees to it that what is dirty finds room where it lands, for a commit of about so many bytes. No lock is held.
    pub(super) fn clear_for(&self, bytes: u64) {
        let now = || self.environment.clock.monotonic_nanoseconds();
        let rests = || now() < self.rests_until.load(Relaxed);
        if rests() || self.short_tier(PARTS[0].1).is_none() {
            return;
        }
        let mut beyond = self.beyond.lock();
        if rests() {
            return;
        }
        match self.clear(bytes.saturating_mul(AHEAD), &mut beyond) {
            Ok(true) => {}
            Ok(false) => self.rests_until.store(now() + REST, Relaxed),
            Err(error) => tracing::debug!(%error, "no room could be made where small writes land"),
        }
    }

    /// The tier where there is too little room for what is dirty.
    fn short_tier(&self, garbage_part: u64) -> Option<u8> {
        let bytes = self.environment.budget.dirty_bytes();
        self.environment.store.short_landing_tier(bytes, garbage_part)
    }

    /// Writes regions anew until there is room, or so many bytes came back, of which `beyond` are there already; `false` if it is no use to
    /// go on looking now.
    fn clear(&self, bytes: u64, beyond: &mut u64) -> Result<bool, StoreError> {
        let fragments = &self.environment.fragments;
        let mut left = bytes.saturating_sub(*beyond);
        *beyond = beyond.saturating_sub(bytes);
        if left == 0 {
            return Ok(true);
        }
        let at_once = (left / REGION_BYTES).clamp(1, REGIONS) as usize;
        let mut in_vain = 0;
        for (part, garbage_part) in PARTS {
            while let Some(tier) = self.short_tier(garbage_part) {
                let taken = fragments.take_early(u64::MAX, part, at_once);
                if taken.is_empty() {
                    break;
                }
                let mut cleared = self.clear_regions(&taken, tier);
                if !cleared.looked.contains(&true) {
                    self.environment.store.bring_garbage_back()?;
                    cleared = self.clear_regions(&taken, tier);
                }
                let without_room = !cleared.looked.contains(&true);
                for ((fragment, since), looked) in taken.iter().zip(cleared.looked) {
                    fragments.put_back(*fragment, *since, looked);
                }
                in_vain = match cleared.won {
                    0 => in_vain + taken.len(),
                    _ => 0,
                };
                if without_room || in_vain >= IN_VAIN_MAX {
                    return Ok(false);
                }
                if cleared.won >= left {
                    *beyond = cleared.won - left;
                    return Ok(true);
                }
                left -= cleared.won;
            }
        }
        Ok(true)
    }

    /// Writes anew what is left of these regions on a tier, where that gives back enough.
    fn clear_regions(&self, taken: &[(Fragment, u64)], tier: u8) -> Cleared {
        let store = &self.environment.store;
        let space = store.space();
        let tiers = space.tiers.len();
        let usage = space.tiers.into_iter().nth(usize::from(tier));
        let usage = usage.unwrap_or_default();
        let planned_bytes = Cell::new(0);
        let without_room = RefCell::new(BTreeSet::new());
        let wanted = |fragment: &Fragment, layout: &Layout| {
            if layout.tier != tier || !layout.is_wasteful() {
                return false;
            }
            let bytes = planned_bytes.get() + layout.stored_after_bytes;
            let fits = leaves_the_last(&usage, bytes);
            match fits {
                true => planned_bytes.set(bytes),
                false => _ = without_room.borrow_mut().insert(*fragment),
            }
            fits
        };
        let fragments: Vec<Fragment> = taken.iter().map(|(fragment, _)| *fragment).collect();
        let _disturbed = self.environment.foreground.disturb();
        // Below the last tier there is none: room is short in all of the pool, and its reserve is what there is to work in.
        let cut = match usize::from(tier) + 1 < tiers {
            true => Cut::Survivors,
            false => Cut::ForRoom,
        };
        let results = self.registry.relayout(&fragments, cut, &wanted, REGION_BYTES);
        let (mut won, mut written, mut looked) = (0, 0, Vec::with_capacity(taken.len()));
        for (fragment, result) in fragments.iter().zip(results) {
            looked.push(match result {
                Ok(Relaid::Done {
                    dead_bytes,
                    written_bytes,
                    ..
                }) => {
                    (won, written) = (won + dead_bytes, written + written_bytes);
                    true
                }
                Ok(Relaid::Left) => !without_room.borrow().contains(fragment),
                Ok(Relaid::Busy) | Err(FsError::NoSpace) => false,
                Err(error) => {
                    tracing::debug!(%error, "a region could not be cut where it lies");
                    true
                }
            });
        }
        store.moved_in_need(&BTreeMap::from([(tier, written)]));
        Cleared { won, looked }
    }
}

fn leaves_the_last(tier: &TierUsage, bytes: u64) -> bool {
    tier.used_bytes.saturating_add(bytes) <= tier.size_bytes - tier.size_bytes / LAST_PART
}
