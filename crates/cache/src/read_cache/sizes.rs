//! `Sizes`: capacities of the read cache between which it can be resized again and again.
//!
//! With its capacity `quick_cache` scales how many names it remembers of what was evicted, a whole number of each shard that
//! is rounded down each time: after some hundred resizings none would be left, and what is read again would never get into a full
//! cache. So only capacities are taken that give a whole number.
//!
//! Invariants: a capacity is at most a byte of each shard above what is wanted; names per byte stay what they were.

/// Of the entries that are expected, the part of which the names are remembered after they were evicted.
pub(super) const NAMES_RATIO: f64 = 0.5;

/// What each shard holds.
#[derive(Debug)]
pub(super) struct Sizes {
    shards: u64,
    bytes: u64,
    names: u64,
}

/// As `quick_cache` does it.
fn scaled(names: u64, bytes: u64, wanted: u64) -> u64 {
    (names as f64 * (wanted as f64 / bytes as f64)) as u64
}

impl Sizes {
    /// Of a cache of so many shards that was made for `entries` of `capacity_bytes` in all.
    pub(super) fn new(shards: u64, entries: u64, capacity_bytes: u64) -> Self {
        let names = (entries.div_ceil(shards) as f64 * NAMES_RATIO) as u64;
        Self {
            shards,
            bytes: capacity_bytes.div_ceil(shards).max(1),
            names: names.max(1),
        }
    }

    /// The capacity to take for `wanted_bytes`; the cache has it from now on.
    pub(super) fn change(&mut self, wanted_bytes: u64) -> u64 {
        let wanted = u128::from(wanted_bytes / self.shards);
        let (bytes, names) = (u128::from(self.bytes), u128::from(self.names));
        let next_names = (names * wanted / bytes).max(1);
        let mut next = u64::try_from((bytes * next_names).div_ceil(names)).unwrap_or(u64::MAX / self.shards);
        let next_names = u64::try_from(next_names).unwrap_or(u64::MAX);
        // What the processor rounds is less than what a byte makes up.
        if scaled(self.names, self.bytes, next) < next_names {
            next += 1;
        }
        (self.bytes, self.names) = (next, next_names);
        next * self.shards
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_never_rounded_away() {
        for capacity in [512 << 10, 30 << 20, 1 << 30, 64_u64 << 30] {
            let entries = capacity / 4160;
            let mut sizes = Sizes::new(16, entries, capacity);
            let mut shard = (
                capacity.div_ceil(16),
                (entries.div_ceil(16) as f64 * NAMES_RATIO) as u64,
            );
            let ratio = shard.0 / shard.1;
            for round in 0_u64..20_000 {
                let wanted = capacity / 4 + (round * 0x9e37_79b9) % (capacity * 3);
                let next = sizes.change(wanted) / 16;
                assert!(next * 16 <= wanted + 16, "{next} for {wanted}");
                assert!(next * 16 + 2 * ratio * 16 > wanted, "{next} for {wanted}");
                shard = (next, scaled(shard.1, shard.0, next));
                assert_eq!(shard.1, sizes.names);
            }
            assert!(
                (shard.0 / shard.1).abs_diff(ratio) <= ratio / 50 + 1,
                "{shard:?}, {ratio} before"
            );
        }
    }
}
