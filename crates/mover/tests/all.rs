//! Every integration test of this crate in one program: each program of tests links all below it, and one for each
//! file took gigabytes and most of the time of a build. A file that is not named here would not run; the house
//! (`crates/house/tests/tidy.rs`) checks that none is missing.

mod by_hand;
mod demote_after;
mod emulated;
mod fast_tier_with_room;
mod hot_chunks;
mod hot_pieces;
mod in_vain;
mod kept_heat;
#[path = "mover/main.rs"]
mod mover;
mod rate_limit;
mod rates;
mod relayout;
mod rest;
mod retry;
mod steering;
mod trained;
mod urgent;
