//! Every integration test of this crate in one program: each program of tests links all below it, and one for each
//! file took gigabytes and most of the time of a build. A file that is not named here would not run; the house
//! (`crates/house/tests/tidy.rs`) checks that none is missing.

mod apart;
mod away;
mod basics;
mod behind;
mod beside_users;
mod devices;
mod failing;
mod fixture;
mod interleaved;
mod model;
mod numbered;
mod overwriting;
mod pending_free;
mod power_cut;
mod races;
mod rates;
mod read_into;
mod records;
mod rewind;
mod room;
mod sectors;
mod sinking;
mod sums_of_blocks;
mod tables;
mod threads;
mod versions;
