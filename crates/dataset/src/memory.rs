//! Memory that grows with what is done, and what keeps it within the budget.

pub(crate) mod cache_share;
pub(crate) mod metadata;
pub(crate) mod names;
