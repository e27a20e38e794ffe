//! What reads of a visit add to the heat, and what is taken back of it where a walk over many files passes by.

use super::read::ContentReader;
use crate::objects::{Counting, State, Visited};
use terrace_cache::{ChunkRead, Counted};

impl ContentReader {
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
        if !state.visited.goes_on(reader, offset) {
            let minutes = self.dataset.minutes();
            let (visit, taken_back) = environment.visits.begin(reader, dataset, body, minutes);
            state.visited = Visited::begin(reader, visit);
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
        match state.visited.count(amount) {
            Counting::All => (amount, false),
            Counting::Nothing => (0.0, false),
            Counting::Noted => {
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
