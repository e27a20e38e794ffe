//! Every integration test of this crate in one program: each program of tests links all below it, and one for each
//! file took gigabytes and most of the time of a build. A file that is not named here would not run; the house
//! (`crates/house/tests/tidy.rs`) checks that none is missing. What counts the memory, threads or files of its whole
//! process stands alone, in `Cargo.toml`.

mod buffers_and_seams;
mod devices;
mod names_and_sizes;
