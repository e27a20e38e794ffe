//! Every integration test of this crate in one program: each program of tests links all below it, and one for each
//! file took gigabytes and most of the time of a build. A file that is not named here would not run; the house
//! (`crates/house/tests/tidy.rs`) checks that none is missing.

mod allocation;
mod dropping_out;
mod format;
mod fronts;
mod generations;
mod hostile;
mod import;
mod labels;
mod media;
mod old_copies;
mod outlived_roots;
mod power_cuts;
mod presence;
mod silent;
mod upkeep;
