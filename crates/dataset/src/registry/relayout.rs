//! Laying content out anew, of any dataset that is in use: handed on to each by its number.

use super::registry::Registry;
use crate::{
    live::Fragment,
    posix::FsError,
    relayout::{Accepts, Cut, HotPiece, Relaid},
};

impl Registry {
    /// Lays the content of regions (each but once) out anew, if their datasets are in use, later otherwise: of what `wanted`
    /// accepts of each about `most_bytes`. What became of them, one by one; neighbours of one dataset change in one batch.
    pub(crate) fn relayout(
        &self,
        fragments: &[Fragment],
        cut: Cut,
        wanted: Accepts<'_>,
        most_bytes: u64,
    ) -> Vec<Result<Relaid, FsError>> {
        let of_one = fragments.chunk_by(|one, next| one.dataset == next.dataset);
        let results = of_one.flat_map(|fragments| match self.by_number(fragments[0].dataset) {
            Some(node) => node
                .with_live(|live| live.relayout(fragments, cut, wanted, most_bytes))
                .unwrap_or_else(|| vec![Ok(Relaid::Busy); fragments.len()]),
            None => vec![Ok(Relaid::Left); fragments.len()],
        });
        results.collect()
    }

    /// Gives hot blocks of long chunks chunks of their own on this tier, as far as their datasets are in use: those of a region side by
    /// side, and of neighbours of one dataset in one batch. How many bytes of content that were.
    pub(crate) fn raise(&self, pieces: &[HotPiece], tier: u8) -> Result<u64, FsError> {
        let mut raised = 0;
        for pieces in pieces.chunk_by(|one, next| one.fragment.dataset == next.fragment.dataset) {
            let node = self.by_number(pieces[0].fragment.dataset);
            let result = node.and_then(|node| node.with_live(|live| live.raise(pieces, tier)));
            raised += result.unwrap_or(Ok(0))?;
        }
        Ok(raised)
    }
}
