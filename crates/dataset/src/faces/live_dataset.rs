//! `Live` of a live dataset: what filesystems and volumes have in common for the history half and the mover.

use std::sync::atomic::Ordering::Relaxed;

use parking_lot::RwLockWriteGuard;
use terrace_store::Sequence;

use super::live_trait::{Live, Paused};
use crate::{
    live::{Fragment, LiveDataset, StoodStill},
    posix::FsError,
    relayout::{Accepts, Cut, HotPiece, Relaid},
};

struct Standstill<'a> {
    live: &'a LiveDataset,
    gate: RwLockWriteGuard<'a, ()>,
    _still: StoodStill<'a>,
}

impl Paused for Standstill<'_> {
    fn freeze(self: Box<Self>, checkpoint: u64) {
        let mut pending = self.live.pending.lock();
        // What an earlier commit could not write comes first; what is dirty now then waits for the next one.
        if pending.is_none() {
            *pending = Some(self.live.freeze(checkpoint));
        } else {
            self.live.group.skipped();
        }
        drop(pending);
        drop(self.gate);
    }
}

impl Live for LiveDataset {
    fn pause(&self) -> Result<Box<dyn Paused + '_>, FsError> {
        // First what is on its way to the store, so that it is not written a second time.
        let still = self.stand_still()?;
        Ok(Box::new(Standstill {
            live: self,
            gate: self.gate.write(),
            _still: still,
        }))
    }

    fn write_ahead(&self) -> bool {
        self.write_ahead_step()
    }

    fn commit_frozen(&self) -> Result<Sequence, FsError> {
        let sequence = self.commit_pending()?;
        if self.group.take_skipped() {
            return Err(FsError::io(
                "an earlier commit had failed and was made up for only now; try again",
            ));
        }
        Ok(sequence)
    }

    fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Relaxed)
    }

    fn unfrozen_metadata_bytes(&self) -> u64 {
        LiveDataset::unfrozen_metadata_bytes(self)
    }

    fn referenced_bytes(&self) -> u64 {
        LiveDataset::referenced_bytes(self)
    }

    fn relayout(
        &self,
        fragments: &[Fragment],
        cut: Cut,
        wanted: Accepts<'_>,
        most_bytes: u64,
    ) -> Vec<Result<Relaid, FsError>> {
        self.lay_out(fragments, cut, wanted, most_bytes)
    }

    fn raise(&self, pieces: &[HotPiece], tier: u8) -> Result<u64, FsError> {
        self.raise_pieces(pieces, tier)
    }

    fn close(&self) {
        self.relayouts.close();
    }
}
