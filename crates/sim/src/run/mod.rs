//! Runs: seeds that are run and replayed, their traces, outcomes, and what was found by them.

mod content;
mod history;
mod outcome;
pub mod regressions;
mod runner;

pub(crate) use content::Content;
pub(crate) use history::History;
pub(crate) use outcome::Check;
pub use outcome::{Level, Outcome, Violation};
pub use runner::{Summary, keep_panics, run_many, run_seed};
