//! Recovery: a store is opened from its newest root and the log after it, or read without either.

mod open;
mod refusals;
mod replay;
mod root_reader;
mod salvage;
mod survey;
mod tail;

pub use salvage::{How, Salvaged};
pub use survey::Survey;

pub(crate) use refusals::metadata_is_away;
pub(crate) use root_reader::{read_root, tree_options};
