//! The level of the simulator that drives the whole engine: filesystems, volumes, snapshots, devices and properties,
//! checked against plain maps (`fs/model.rs`). A run is `fs/level.rs`; what it does on the way is a file each.

mod absence;
mod attributes;
mod audits;
mod copying;
mod devices;
pub mod dump;
mod endings;
mod filling;
mod guests;
mod holds;
mod hot_pieces;
pub mod level;
pub mod model;
mod past;
mod relayout;
mod replacement;
mod reserving;
mod restart;
mod seek;
mod serving;
mod settings;
pub mod state;
mod survivors;
mod workload;
