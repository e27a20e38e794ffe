//! `Live`: what the history half and the mover ask of the live half of a dataset.

use terrace_store::Sequence;

use crate::{
    live::Fragment,
    posix::FsError,
    relayout::{Accepts, Cut, HotPiece, Relaid},
};

/// What the registry asks of an open filesystem or volume, so that a checkpoint is one consistent state.
pub trait Live: Send + Sync {
    /// Waits for what is on its way to the store, and lets nothing more go there until the answer is dropped: so that it is not
    /// written a second time.
    fn stand_still(&self) -> Result<Box<dyn StandingStill<'_> + '_>, FsError>;

    /// Hands a bounded part of what streams have written to the store, ahead of the commit that will make it part of
    /// their files; whether there was any.
    fn write_ahead(&self) -> bool;

    /// Builds and commits what the last freeze swapped out (nothing: returns the store's newest sequence). The
    /// caller holds the commit lock. After a failure what was frozen stays to be committed by the next call.
    fn commit_frozen(&self) -> Result<Sequence, FsError>;

    /// Bytes written and not yet committed.
    fn dirty_bytes(&self) -> u64;

    /// Of changes of metadata that no commit has begun with, bytes of memory.
    fn unfrozen_metadata_bytes(&self) -> u64;

    /// Content as of now, also what is not committed yet, about, bytes.
    fn referenced_bytes(&self) -> u64;

    /// Lays the content of regions (each but once) out anew: of what `wanted` accepts of each about `most_bytes`. No lock is
    /// held.
    fn relayout(
        &self,
        fragments: &[Fragment],
        cut: Cut,
        wanted: Accepts<'_>,
        most_bytes: u64,
    ) -> Vec<Result<Relaid, FsError>>;

    /// Gives hot blocks of long chunks chunks of their own on this tier, those of a region side by side; how many bytes. No lock is held.
    fn raise(&self, pieces: &[HotPiece], tier: u8) -> Result<u64, FsError>;

    /// The dataset will be opened again by somebody else: no record is replaced through this one any more. The commit
    /// lock is held.
    fn close(&self);
}

/// A live dataset of which nothing is on its way to the store.
pub trait StandingStill<'a> {
    /// Stops all changes until the answer is dropped or frozen. Short: no I/O is done in between, so of several datasets all stand
    /// still before the first is paused.
    fn pause(self: Box<Self>) -> Box<dyn Paused + 'a>;
}

/// A live dataset in which nothing changes.
pub trait Paused {
    /// Swaps the dirty sets out, as the state of `checkpoint`, and lets changes go on.
    fn freeze(self: Box<Self>, checkpoint: u64);
}
