//! What goes wrong with the log.

use terrace_pool::PoolError;

/// An operation on the log that failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LogError {
    /// No copy of an entry could be written.
    #[error("the log cannot be written: {0}")]
    Write(PoolError),
    /// The segments in which the log would go on are named by nothing that could be written.
    #[error("the log cannot go on: no device takes the entry that names its next segment")]
    Unlinked,
    /// No segment is left for the log.
    #[error("the log has no room: {0}")]
    NoSpace(PoolError),
    /// Entries are missing that are known to have been durable.
    #[error(
        "the log is damaged after sequence {newest}: later entries show that {durable} had been durable; restore the \
         device that holds the log, or go back to the last state that can be read with --rewind"
    )]
    Damaged {
        /// Last sequence that could be read.
        newest: u64,
        /// A later sequence that was durable once.
        durable: u64,
    },
    /// No copy of the place where the log goes on can be read, so that nobody knows whether it does.
    #[error("the log cannot be read: {0}; try again, or bring the device back that holds its other copy")]
    Unreadable(PoolError),
    /// A position that makes no sense.
    #[error("the log position in the root record is invalid: {0}")]
    Position(&'static str),
}
