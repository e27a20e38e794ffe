//! `Invariant`: something that must hold, and `Trouble`: why it could not be seen whether it does.
//!
//! A new one is a struct that implements [`Invariant`]; one that must hold after every opening is a line in the table of
//! `fs/world/recovery.rs`.

use terrace_dataset::FsError;

use crate::{
    fs::{models::Models, rig::Rig},
    violation::Violation,
};

/// What came of a comparison that is not as it must be.
pub(crate) enum Trouble {
    /// What must not be.
    Violation(Violation),
    /// A call failed: the world judges whether that is explained.
    Failed { doing: &'static str, error: FsError },
    /// A call of the engine, or an administrative one, failed with these words.
    Refused { doing: &'static str, words: String },
}

impl From<Violation> for Trouble {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl Trouble {
    pub(crate) fn failed(doing: &'static str, error: FsError) -> Self {
        Self::Failed { doing, error }
    }

    pub(crate) fn refused(doing: &'static str, words: impl ToString) -> Self {
        Self::Refused {
            doing,
            words: words.to_string(),
        }
    }
}

/// Whether all is as it must be.
pub(crate) type Compared<T = ()> = Result<T, Trouble>;

/// Something that must hold.
pub(crate) trait Invariant {
    /// Compares the engine with the models, which then know what was seen.
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared;
}
