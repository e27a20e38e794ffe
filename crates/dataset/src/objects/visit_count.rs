//! `Visited`: the visit of a file that is under way, and what its reads add to the heat: nothing where a walk over many files
//! passes by (`terrace_cache::Visits`).
//!
//! Invariants: a few bytes for each object, changed under its state lock; reads that go on with a visit ask nobody.

use terrace_cache::{PASSING_READS, Visit};

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Visited {
    reader: u32,
    /// Reads of it that count, as far as the visit lets them.
    reads: u8,
    has_begun: bool,
    visit: Visit,
}

/// What of a read counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counting {
    All,
    /// All, but it may be taken back.
    Noted,
    Nothing,
}

impl Visited {
    /// Whether a read from `offset` belongs to the visit that is under way.
    pub(crate) fn goes_on(&self, reader: u32, offset: u64) -> bool {
        self.has_begun && self.reader == reader && offset > 0
    }

    pub(crate) fn begin(reader: u32, visit: Visit) -> Self {
        Self {
            reader,
            reads: 0,
            has_begun: true,
            visit,
        }
    }

    /// One more read, of which `amount` would count.
    pub(crate) fn count(&mut self, amount: f32) -> Counting {
        if amount <= 0.0 || self.visit == Visit::Counts {
            return Counting::All;
        }
        self.reads = self.reads.saturating_add(1);
        match self.visit {
            _ if self.reads > PASSING_READS => Counting::All,
            Visit::Passes => Counting::Nothing,
            _ => Counting::Noted,
        }
    }
}
