//! What the mover answers when it cannot do what was asked.

use terrace_store::StoreError;

/// An error of the mover.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MoverError {
    /// No such job.
    #[error("there is no job {0}; 'terrace jobs' lists them")]
    NoJob(u64),
    /// The job ended already.
    #[error("job {id} is {state}; only a job that still runs can be changed")]
    Over {
        /// The job.
        id: u64,
        /// How it ended.
        state: &'static str,
    },
    /// No such tier.
    #[error("the pool has no tier '{name}'; its tiers are {tiers}")]
    NoTier {
        /// As given.
        name: String,
        /// What there is.
        tiers: String,
    },
    /// No such dataset or object.
    #[error("there is nothing to move: {0}")]
    NothingThere(String),
    /// There is no tier above or below.
    #[error(
        "the pool has no {0} tier than the one that it lies on; 'terrace pin' keeps it there, and 'terrace tier list' shows the tiers"
    )]
    NoFurther(&'static str),
    /// The pool failed.
    #[error("{0}")]
    Store(#[from] StoreError),
}
