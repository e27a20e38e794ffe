//! Every integration test of this crate in one program: each program of tests links all below it, and one for each
//! file took gigabytes and most of the time of a build. A file that is not named here would not run; the house
//! (`crates/house/tests/tidy.rs`) checks that none is missing.

mod chunk_lengths;
mod copying_beside_commits;
#[path = "datasets/main.rs"]
mod datasets;
mod given_back;
mod history;
mod holes;
mod hot_pieces;
mod lent_memory;
mod live_faults;
#[path = "live_model/main.rs"]
mod live_model;
mod live_rules;
mod memory_bounds;
mod privileges;
mod region;
#[path = "relayout/main.rs"]
mod relayout;
mod rename_atomicity;
mod shared_blocks;
mod stuck_dataset;
mod volume_ladder;
mod volume_reads;
mod walks;
mod where_it_lies;
mod write_ahead;
