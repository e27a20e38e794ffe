//! `Landing`: which kinds of new writes land on a tier, and which tier a kind of them lands on.
//!
//! Invariants: each kind lands on one tier: the first that takes it, or the fastest where none does; giving a kind to a tier
//! takes it from all others. The byte in a label is a set of bits.

use terrace_codec::DecodeError;

use super::tier::TierSettings;

const SEQUENTIAL: u8 = 1;
const RANDOM: u8 = 2;

/// The kinds of writes that a tier takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Landing {
    /// Long streams in order.
    pub sequential: bool,
    /// Small and scattered writes.
    pub random: bool,
}

impl Landing {
    /// Neither.
    pub const OFF: Self = Self {
        sequential: false,
        random: false,
    };
    /// Long streams in order.
    pub const SEQUENTIAL: Self = Self {
        sequential: true,
        random: false,
    };
    /// Small and scattered writes.
    pub const RANDOM: Self = Self {
        sequential: false,
        random: true,
    };
    /// Both.
    pub const ALL: Self = Self {
        sequential: true,
        random: true,
    };

    /// What users write: `off`, `sequential`, `random`, `all`; `on` is another word for `sequential`.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "off" | "none" => Some(Self::OFF),
            "sequential" | "on" => Some(Self::SEQUENTIAL),
            "random" => Some(Self::RANDOM),
            "all" => Some(Self::ALL),
            _ => None,
        }
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match (self.sequential, self.random) {
            (false, false) => "off",
            (true, false) => "sequential",
            (false, true) => "random",
            (true, true) => "all",
        }
    }

    /// What both take.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            sequential: self.sequential && other.sequential,
            random: self.random && other.random,
        }
    }

    fn without(self, other: Self) -> Self {
        Self {
            sequential: self.sequential && !other.sequential,
            random: self.random && !other.random,
        }
    }

    pub(crate) fn bits(self) -> u8 {
        u8::from(self.sequential) * SEQUENTIAL + u8::from(self.random) * RANDOM
    }

    pub(crate) fn from_bits(bits: u8) -> Result<Self, DecodeError> {
        if bits & !(SEQUENTIAL | RANDOM) != 0 {
            return Err(DecodeError::Invalid("landing"));
        }
        Ok(Self {
            sequential: bits & SEQUENTIAL != 0,
            random: bits & RANDOM != 0,
        })
    }
}

/// Index of the tier on which writes land that are (`sequential`) long streams in order, or else small or scattered ones.
pub fn landing_tier<'a>(tiers: impl IntoIterator<Item = &'a TierSettings>, sequential: bool) -> usize {
    let takes = |landing: Landing| match sequential {
        true => landing.sequential,
        false => landing.random,
    };
    let found = tiers.into_iter().position(|tier| takes(tier.landing));
    found.unwrap_or(0)
}

/// Takes what the tier at `index` takes from all others; returns from which, and what.
pub(crate) fn take_from_others(tiers: &mut [TierSettings], index: usize) -> Vec<(String, Landing)> {
    let Some(wanted) = tiers.get(index).map(|tier| tier.landing) else {
        return Vec::new();
    };
    let others = tiers.iter_mut().enumerate().filter(|(at, _)| *at != index);
    let taken = others.filter_map(|(_, tier)| {
        let taken = tier.landing.and(wanted);
        tier.landing = tier.landing.without(wanted);
        (taken != Landing::OFF).then(|| (tier.name.clone(), taken))
    });
    taken.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_lands_on_one_tier() {
        let tier = |name: &str, landing| TierSettings {
            landing,
            ..TierSettings::named(name)
        };
        let mut tiers = vec![
            tier("a", Landing::OFF),
            tier("b", Landing::ALL),
            tier("c", Landing::SEQUENTIAL),
        ];
        assert_eq!((landing_tier(&tiers, true), landing_tier(&tiers, false)), (1, 1));
        assert_eq!(
            take_from_others(&mut tiers, 2),
            [("b".to_owned(), Landing::SEQUENTIAL)]
        );
        assert_eq!((landing_tier(&tiers, true), landing_tier(&tiers, false)), (2, 1));
        assert!(take_from_others(&mut tiers, 2).is_empty());
        tiers[1].landing = Landing::OFF;
        assert_eq!((landing_tier(&tiers, true), landing_tier(&tiers, false)), (2, 0));
    }

    #[test]
    fn words_and_bytes_mean_the_same_both_ways() {
        for (bits, word) in [(0, "off"), (1, "sequential"), (2, "random"), (3, "all")] {
            let landing = Landing::from_bits(bits).unwrap();
            assert_eq!((landing.bits(), landing.as_str()), (bits, word));
            assert_eq!(Landing::parse(word), Some(landing));
        }
        assert_eq!(Landing::parse("on"), Some(Landing::SEQUENTIAL));
        assert!(Landing::parse("maybe").is_none() && Landing::from_bits(4).is_err());
    }
}
