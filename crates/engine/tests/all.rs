//! Every integration test of this crate in one program: each program of tests links all below it, and one for each
//! file took gigabytes and most of the time of a build. A file that is not named here would not run; the house
//! (`crates/house/tests/tidy.rs`) checks that none is missing. What counts the memory, threads or files of its whole
//! process stands alone, in `Cargo.toml`.

mod cleared_heat;
mod closing;
mod damaged_block;
mod failing_device;
mod failing_events;
mod foreign_devices;
mod freed_room;
mod full_pool;
mod half_emptied;
mod landing;
mod leaving;
mod leaving_killed;
mod leaving_planned;
mod leaving_room;
mod many_devices;
mod metadata_out_of_reach;
mod out_of_step;
mod preallocation;
mod rebuild;
mod relayout;
mod replacing;
mod reservations;
mod resilver_short;
mod resilver_whole;
mod roots_elsewhere;
mod scrub_job;
mod scrub_restart;
mod scrub_short;
mod silent_device;
mod small_pools;
mod space_storm;
mod spent_reserve;
mod unreadable_metadata;
mod zeroes;
