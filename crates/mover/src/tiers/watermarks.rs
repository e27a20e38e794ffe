//! Marks: how full a tier is, as far as its high-water and low-water marks are concerned.
//!
//! Invariants: what the log and metadata take counts, since content cannot have it; garbage that compaction brings back
//! does not, or full tiers would sink content for it; writers find room between the mark up to which content is moved
//! up and the end of the tier.

use terrace_pool::HIGH_WATER_DEFAULT;
use terrace_store::TierUsage;

use super::tier_policy::TierPolicy;

/// Of the live content, the part that garbage may be without being worth a compaction.
const GARBAGE_PART: u64 = 16;

/// What is in use of a tier.
pub(crate) fn filled_bytes(tier: &TierUsage) -> u64 {
    let needed = tier.live_bytes.saturating_add(tier.metadata_bytes);
    let garbage = tier.used_bytes.saturating_sub(needed);
    needed.saturating_add(garbage.min(tier.live_bytes / GARBAGE_PART))
}

/// Of a tier on which no more lands, what may be free beyond its floor, and what may be garbage that no compaction is needed for:
/// segments that are being written are not full. Of a small tier, that is as much as its floor.
const HELD_FREE_PART: u64 = 64;
const HELD_GARBAGE_PART: u64 = 16;

/// Whether a tier that holds what is written up to `level` still does. The log, metadata and compaction have the last of a
/// tier to themselves: where no more can land, it has reached its level, however near to 100 % that is.
pub(crate) fn holds(tier: &TierUsage, level: f64) -> bool {
    let filled = filled_bytes(tier) as f64;
    let garbage = tier.used_bytes.saturating_sub(filled_bytes(tier));
    let free = tier.size_bytes.saturating_sub(tier.used_bytes);
    let is_out = free <= tier.floor_bytes + tier.size_bytes / HELD_FREE_PART;
    let is_full = is_out && garbage <= tier.floor_bytes.max(tier.size_bytes / HELD_GARBAGE_PART);
    filled < level * tier.size_bytes as f64 && !is_full
}

/// How far the slowest tier is filled at most: nothing can make room there, so that the usual mark would only keep what is
/// cold on the faster ones. The store keeps its reserve by itself; a mark that was set lower is heeded.
const LOWEST_FULL: f64 = 15.0 / 16.0;

/// The first slower tier that has room below its high-water mark.
pub(crate) fn room_below(tiers: &[TierUsage], policies: &[TierPolicy], source: u8) -> Option<u8> {
    let slower = usize::from(source) + 1..tiers.len();
    slower
        .into_iter()
        .find(|at| {
            let high = policies.get(*at).map_or(1.0, |policy| policy.high_water);
            let most = match at + 1 == tiers.len() {
                true if high >= HIGH_WATER_DEFAULT => high.max(LOWEST_FULL),
                _ => high,
            };
            has_room(&tiers[*at], most)
        })
        .map(|at| at as u8)
}

/// Whether less than this part of a tier is filled.
fn has_room(tier: &TierUsage, most: f64) -> bool {
    (filled_bytes(tier) as f64) < most * tier.size_bytes as f64
}

/// Whether `bytes` more may be moved up to a tier.
pub(crate) fn may_rise(tier: &TierUsage, policy: Option<&TierPolicy>, bytes: u64) -> bool {
    (filled_bytes(tier).saturating_add(bytes) as f64) < rise_bytes(tier, policy)
}

fn rise_bytes(tier: &TierUsage, policy: Option<&TierPolicy>) -> f64 {
    policy.map_or(1.0, TierPolicy::rise_water) * tier.size_bytes as f64
}

/// How much may be moved up to a tier.
pub(crate) fn room(tier: &TierUsage, policy: Option<&TierPolicy>) -> u64 {
    (rise_bytes(tier, policy) as u64).saturating_sub(filled_bytes(tier) + 1)
}

/// How much must be moved down, so that this much more may be moved up: what goes leaves garbage, which fills the tier as
/// far as it is not worth a compaction.
pub(crate) fn in_the_way(tier: &TierUsage, policy: Option<&TierPolicy>, bytes: u64) -> u64 {
    let most = (rise_bytes(tier, policy) as u64).saturating_sub(bytes);
    if filled_bytes(tier) <= most {
        return 0;
    }
    let needed = tier.live_bytes.saturating_add(tier.metadata_bytes);
    let excess = match tier.used_bytes <= most {
        true => needed.saturating_sub(most),
        // With each byte of content goes the part of it that may be garbage.
        false => {
            let with_garbage = needed.saturating_add(tier.live_bytes / GARBAGE_PART);
            let above = with_garbage.saturating_sub(most);
            above.saturating_mul(GARBAGE_PART).div_ceil(GARBAGE_PART + 1)
        }
    };
    excess.min(tier.live_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_holds_until_its_level_or_until_no_more_lands_there() {
        let tier = |used_bytes, live_bytes| TierUsage {
            size_bytes: 1000,
            used_bytes,
            live_bytes,
            floor_bytes: 100,
            ..TierUsage::default()
        };
        assert!(holds(&tier(500, 500), 0.6) && !holds(&tier(600, 600), 0.6));
        // It can never be filled to 99 %: what may land is all there.
        for level in [0.95, 0.99, 1.0] {
            assert!(holds(&tier(800, 800), level), "{level}");
            assert!(!holds(&tier(900, 890), level), "{level}");
            // Garbage comes back, and then more lands.
            assert!(holds(&tier(900, 600), level), "{level}");
        }
    }

    #[test]
    fn metadata_fills_a_tier_and_garbage_does_not() {
        let tier = |used_bytes, live_bytes, metadata_bytes| TierUsage {
            size_bytes: 1000,
            used_bytes,
            live_bytes,
            metadata_bytes,
            ..TierUsage::default()
        };
        // All segments are taken, and compaction will give most of them back.
        assert_eq!(filled_bytes(&tier(1000, 400, 100)), 525);
        assert!(may_rise(&tier(1000, 400, 100), None, 400));
        assert!(!may_rise(&tier(1000, 400, 500), None, 100));
        assert_eq!(filled_bytes(&tier(0, 400, 0)), 400);
        // What goes down stays in use as garbage until that is worth a compaction.
        for (used, live, metadata) in [
            (0, 900, 0),
            (950, 900, 0),
            (950, 850, 100),
            (1000, 800, 50),
            (900, 800, 100),
        ] {
            let (full, more) = (tier(used, live, metadata), 50);
            let down = in_the_way(&full, None, more);
            let after = tier(used, live - down, metadata);
            assert!(
                filled_bytes(&after) + more <= 1000,
                "{used} {live} {metadata}: {down}"
            );
            assert!(down <= 60, "{used} {live} {metadata}: {down}");
        }
        assert_eq!(in_the_way(&tier(950, 850, 100), None, 100), 97);
        assert_eq!(in_the_way(&tier(0, 400, 0), None, 600), 0);
        // The mark of the slowest keeps nothing on the faster ones.
        let policies = ["a", "b", "c"].map(TierPolicy::named);
        let tiers = [tier(900, 900, 0), tier(900, 900, 0), tier(900, 900, 0)];
        assert_eq!(room_below(&tiers, &policies, 0), Some(2));
        let tiers = [tier(900, 900, 0), tier(900, 900, 0), tier(940, 940, 0)];
        assert_eq!(room_below(&tiers, &policies, 0), None);
    }
}
