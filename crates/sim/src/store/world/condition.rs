//! `Condition`: what may have gone wrong in a run, and so what an error or a missing copy is explained by.

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Condition {
    /// Operations may fail by chance.
    pub(crate) storm: bool,
    /// Writes may have failed at some time of the run.
    pub(crate) stormed: bool,
    /// Something failed since the store was opened, so that it may have stopped or miss a copy.
    pub(crate) hurt: bool,
    /// Writes failed while copies were made, so that some are missing until a scrub repaired them.
    pub(crate) scarred: bool,
    /// A whole scrub repaired what was scarred. The end of the process undoes that until a root names the new copies.
    pub(crate) healed: bool,
    /// A copy may have been lost without anybody's fault: power went or a disk was gone since the last whole scrub.
    pub(crate) ragged: bool,
    /// A whole scrub repaired what was ragged. The end of the process undoes that until it is flushed.
    pub(crate) mended: bool,
    /// Something of the log or of the tables lay on one disk only at some time of the run.
    pub(crate) single: bool,
    /// A disk is lying about its writes: what fails is not looked into, it ends the work.
    pub(crate) lying: bool,
    /// Something failed while a disk was lying.
    pub(crate) broken: bool,
}

impl Condition {
    /// Devices begin or stop to fail by chance.
    pub(crate) fn set_storm(&mut self, storm: bool) {
        self.storm = storm;
        self.scarred |= storm;
        self.stormed |= storm;
        self.healed &= !storm;
        // A device that failed a write is left out until the pool is opened again.
        self.hurt |= storm;
    }

    /// A whole scrub came to its end; what it repaired counts once that is durable.
    pub(crate) fn scrubbed(&mut self, explained: bool) {
        self.healed = !explained;
        self.mended = !explained;
    }

    /// Repairs are durable, since each is a batch.
    pub(super) fn flushed(&mut self) {
        self.ragged &= !std::mem::take(&mut self.mended);
    }

    /// A root names all copies that were made.
    pub(crate) fn checkpointed(&mut self) {
        self.scarred &= !std::mem::take(&mut self.healed);
    }
}
