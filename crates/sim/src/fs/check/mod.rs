//! Checks: what the filesystem shows, against the model.

mod against_model;
mod audits;
pub mod dump;
mod endings;
mod history;

pub(crate) use dump::{dump, stamps};
pub(crate) use history::RETENTIONS;
