//! `Condition`: what may have gone wrong, and so what an error is explained by.

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Condition {
    /// Operations may fail by chance.
    pub(crate) storm: bool,
    /// Something failed since the engine was opened.
    pub(crate) hurt: bool,
    /// The pool was found full since the engine was opened.
    pub(crate) filled: bool,
    /// Writes failed while copies were made, so that some may be missing.
    pub(crate) scarred: bool,
    /// Copies may be missing beside those that a disk that was away lacks.
    pub(crate) owed: bool,
}

impl Condition {
    /// Devices may fail, or one did since the engine was opened.
    pub(crate) fn is_failing(&self) -> bool {
        self.storm || self.hurt
    }
}
