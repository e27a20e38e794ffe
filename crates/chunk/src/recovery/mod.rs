//! Recovery: a store is opened from its newest root and the log after it, or read without either.

mod open;
mod refusals;
mod replay;
mod tail;

pub(crate) use open::{create, open};

pub(crate) use open::{Start, open_for_salvage};
