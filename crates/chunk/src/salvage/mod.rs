//! Salvage: what is left of a store that does not open, found by its roots or by a look through all segments.

mod salvage;
mod survey;

pub use salvage::{How, Salvaged};
pub use survey::Survey;
