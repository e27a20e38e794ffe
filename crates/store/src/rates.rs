//! `MoveRates`: how fast content may be moved into, within and out of each tier, whoever moves it.
//!
//! Invariants: there is one of them for a pool, so that policies, moves by hand, the emptying of devices and compaction share what the
//! `rate_limit` of a tier allows; what is moved from one tier to another counts on both, what is moved within a tier once. What cannot wait
//! (compaction for those who write, repairs) counts as well, but keeps others waiting for no longer than about a second.

use std::collections::BTreeMap;

use terrace_sync::{Mutex, rank};

use crate::pace::Pace;

/// Debt that work which cannot wait leaves to others at most, seconds' worth.
const DEBT_SECONDS: u64 = 1;

/// The bit of a tier in a set of tiers.
pub fn tier_bit(tier: u8) -> u64 {
    1 << tier.min(63)
}

/// See the module. Limits are bytes per second, 0 for none; sets of tiers are bits.
#[derive(Debug, Default)]
pub struct MoveRates {
    /// By tier, its limit and what is left of it.
    paces: Mutex<Vec<(u64, Pace)>, rank::Leaf>,
}

impl MoveRates {
    /// The limits of all tiers, fastest first, in force from now on.
    pub fn set_limits(&self, limits: impl IntoIterator<Item = u64>) {
        let mut paces = self.paces.lock();
        let before = std::mem::take(&mut *paces);
        let pace = |at: usize| before.get(at).filter(|(limit, _)| *limit > 0);
        let kept = limits.into_iter().enumerate();
        *paces = kept
            .map(|(at, limit)| (limit, pace(at).map_or_else(Pace::default, |(_, pace)| *pace)))
            .collect();
    }

    /// The tiers changed places: nothing is owed, and nothing is limited until the limits are said again.
    pub fn clear(&self) {
        self.paces.lock().clear();
    }

    /// What is to be moved between these tiers in one step at most, about; one chunk always is.
    pub fn piece_bytes(&self, tiers: u64) -> u64 {
        let paces = self.paces.lock();
        let meant = paces
            .iter()
            .enumerate()
            .filter(|(at, _)| tiers & tier_bit(*at as u8) != 0);
        meant
            .map(|(_, (limit, _))| Pace::piece_bytes(*limit))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Nanoseconds until something may be moved between these tiers; 0: now.
    pub fn wait(&self, tiers: u64, now_nanoseconds: u64) -> u64 {
        let mut paces = self.paces.lock();
        let meant = paces
            .iter_mut()
            .enumerate()
            .filter(|(at, _)| tiers & tier_bit(*at as u8) != 0);
        meant
            .map(|(_, (limit, pace))| pace.wait(*limit, now_nanoseconds))
            .max()
            .unwrap_or(0)
    }

    /// So late is it, for who asks [`is_open`](Self::is_open) and has no clock.
    pub fn refresh(&self, now_nanoseconds: u64) {
        self.wait(u64::MAX, now_nanoseconds);
    }

    /// Whether something could be moved within a tier when somebody last said how late it was.
    pub fn is_open(&self, tier: u8) -> bool {
        let paces = self.paces.lock();
        paces
            .get(usize::from(tier))
            .is_none_or(|(limit, pace)| *limit == 0 || pace.is_open())
    }

    /// So many bytes were moved, by tier.
    pub fn take(&self, moved: &BTreeMap<u8, u64>) {
        self.each(moved, |limit, pace, bytes| pace.take(limit, bytes));
    }

    /// The same of what could not wait.
    pub fn take_in_need(&self, moved: &BTreeMap<u8, u64>) {
        self.each(moved, |limit, pace, bytes| {
            pace.take_in_need(limit, bytes, limit.saturating_mul(DEBT_SECONDS));
        });
    }

    fn each(&self, moved: &BTreeMap<u8, u64>, take: impl Fn(u64, &mut Pace, u64)) {
        let mut paces = self.paces.lock();
        for (tier, bytes) in moved {
            if let Some((limit, pace)) = paces.get_mut(usize::from(*tier)) {
                take(*limit, pace, *bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 1 << 20;
    const SECOND: u64 = 1_000_000_000;

    fn rates() -> MoveRates {
        let rates = MoveRates::default();
        rates.set_limits([0, RATE, 4 * RATE]);
        rates.refresh(SECOND);
        rates
    }

    #[test]
    fn who_moves_between_tiers_waits_for_both_and_counts_on_both() {
        let rates = rates();
        assert_eq!(rates.piece_bytes(0b101), RATE / 2);
        assert_eq!(rates.piece_bytes(0b111), RATE / 8);
        assert_eq!(rates.piece_bytes(0b1), u64::MAX);
        rates.take(&BTreeMap::from([(1, RATE), (2, RATE)]));
        assert!(!rates.is_open(1) && !rates.is_open(2) && rates.is_open(0));
        assert_eq!(rates.wait(0b1, SECOND), 0);
        let waits = [0b100, 0b010, 0b110].map(|tiers| rates.wait(tiers, SECOND).div_ceil(SECOND / 4));
        assert_eq!(waits, [2, 5, 5]);
        // Nothing is open again before somebody says how late it is.
        assert!(!rates.is_open(2));
        rates.refresh(SECOND + SECOND / 2);
        assert!(rates.is_open(2) && !rates.is_open(1));
        // Without a limit nothing is owed.
        rates.set_limits([0, 0, 4 * RATE]);
        assert!(rates.is_open(1) && rates.wait(0b010, 2 * SECOND) == 0);
    }

    #[test]
    fn what_cannot_wait_keeps_others_waiting_for_a_second_at_most() {
        let rates = rates();
        rates.take_in_need(&BTreeMap::from([(1, 100 * RATE)]));
        assert!(rates.wait(0b010, SECOND) <= SECOND + 2);
        // What others owe already is not forgiven for it.
        rates.take(&BTreeMap::from([(1, 2 * RATE)]));
        let owed = rates.wait(0b010, SECOND);
        rates.take_in_need(&BTreeMap::from([(1, RATE)]));
        assert_eq!(rates.wait(0b010, SECOND), owed);
        assert!(owed > 2 * SECOND);
    }
}
