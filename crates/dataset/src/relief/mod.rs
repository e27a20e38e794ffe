//! Relief: space is reclaimed for a write that finds none.

mod clean_landing_tier;
mod free_space;
