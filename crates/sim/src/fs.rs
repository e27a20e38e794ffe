//! The level of the simulator that drives the whole engine: filesystems, volumes, snapshots, devices and properties,
//! checked against plain maps. Its tables are in `fs/level.rs`.
//!
//! The folders import downwards only, in this order: `level.rs`, `endings` (the last act of a run), `machine` (cuts, devices,
//! tiers), `background` (steps, ticks, relayouts, guests, servers), `admin` (properties, snapshots), `clients` (calls on
//! files and volumes), `world` (judging errors, opening again), `checks` (the engine against the models), `models` and
//! `rig`.

mod admin;
mod background;
mod checks;
mod clients;
mod endings;
pub mod level;
mod machine;
mod models;
mod rig;
mod world;
