//! The level of the simulator that drives the whole engine: filesystems, volumes, snapshots, devices and properties,
//! checked against plain maps (`fs/state/model.rs`). A run is `fs/level.rs`; what it does on the way is a file each.

mod background;
mod check;
mod clients;
pub mod level;
mod machine;
mod state;
