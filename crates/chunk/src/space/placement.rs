//! `StreamKey`: appends of one kind share a segment.

use terrace_pool::TierChoice;
use terrace_store::{Flow, Placement};

/// Appends of one kind share a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StreamKey {
    /// New data, wherever it lands.
    Random,
    /// New sequential data.
    Sequential,
    /// Data that is to lie on a tier (moved, mostly).
    Tier(u8, bool),
}

impl StreamKey {
    /// The stream of a placement.
    pub fn of(placement: Placement) -> Self {
        match placement {
            Placement::Landing(Flow::Random) => Self::Random,
            Placement::Landing(Flow::Sequential) => Self::Sequential,
            Placement::Tier { tier, strict } => Self::Tier(tier, strict),
        }
    }

    pub(crate) fn choice(self) -> TierChoice {
        match self {
            Self::Random => TierChoice::Random,
            Self::Sequential => TierChoice::Sequential,
            Self::Tier(tier, strict) => TierChoice::Tier { tier, strict },
        }
    }
}
