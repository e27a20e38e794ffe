//! Runs: seeds that are run and replayed, and what came of them.

pub mod locks;
mod outcome;
pub mod regressions;
mod runner;

pub use outcome::{Level, Outcome};
pub use runner::{Summary, keep_panics, run_many, run_seed};
