//! Relief: space is reclaimed for a write that finds none. Its turns lie with those who ask (`live/reclaim_turns.rs`).

mod clean_landing_tier;
mod free_space;
