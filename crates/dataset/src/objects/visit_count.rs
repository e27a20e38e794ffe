//! `Visited`: the visit of a file that is under way, and what its reads add to the heat: nothing where a walk over many files
//! passes by (`terrace_cache::Visits`).
//!
//! Invariants: a few bytes for each object, changed under its state lock; reads that go on with a visit ask nobody.

use terrace_cache::{ChunkRead, Counted, PASSING_READS, Visit};

use super::object::State;
use crate::live::LiveDataset;

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Visited {
    reader: u32,
    /// Reads of it that count, as far as the visit lets them.
    reads: u8,
    has_begun: bool,
    visit: Visit,
}

impl LiveDataset {
    /// A reader (0: one that is not known) reads `amount` worth of a region; what of it counts, and whether that is to be noted,
    /// since it may be taken back.
    pub(crate) fn visit(
        &self,
        state: &mut State,
        reader: u32,
        offset: u64,
        region: u32,
        amount: f32,
    ) -> (f32, bool) {
        let environment = self.dataset.environment();
        let (dataset, body) = (self.dataset.number(), state.inode.body);
        let goes_on = state.visited.has_begun && state.visited.reader == reader && offset > 0;
        if !goes_on {
            let minutes = self.minutes();
            let (visit, taken_back) = environment.visits.begin(reader, dataset, body, minutes);
            state.visited = Visited {
                reader,
                reads: 0,
                has_begun: true,
                visit,
            };
            for counted in taken_back {
                match counted {
                    Counted::Chunk(chunk) => environment.chunk_heat.take_back(chunk),
                    Counted::Region {
                        dataset,
                        body,
                        region,
                        amount,
                    } => environment.heat.take_back(dataset, body, region, amount, minutes),
                }
            }
        }
        if amount <= 0.0 || state.visited.visit == Visit::Counts {
            return (amount, false);
        }
        state.visited.reads = state.visited.reads.saturating_add(1);
        let uses = state.visited.reads > PASSING_READS;
        match state.visited.visit {
            _ if uses => (amount, false),
            Visit::Passes => (0.0, false),
            _ => {
                let counted = Counted::Region {
                    dataset,
                    body,
                    region,
                    amount,
                };
                environment.visits.note(reader, counted);
                (amount, true)
            }
        }
    }

    /// A chunk was counted in a visit that may be taken back.
    pub(crate) fn note_visited(&self, reader: u32, chunk: ChunkRead) {
        self.dataset
            .environment()
            .visits
            .note(reader, Counted::Chunk(chunk));
    }
}
