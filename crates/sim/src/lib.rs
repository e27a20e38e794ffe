//! The simulator: the engine on simulated disks, with a simulated clock and chance from one seed, checked against
//! plain models. The fault model is at the head of `disk.rs`.
//!
//! Invariants: a run is a function of its seed, byte for byte; a fault is only planned through the seams (`Device`,
//! `Clock`, `Randomness`), so the engine under test is the one that ships.

pub mod away_level;
pub mod content;
pub mod damage_level;
pub mod disk;
pub mod engine_rig;
pub mod fault;
mod fs_attributes;
mod fs_audits;
mod fs_copying;
mod fs_devices;
pub mod fs_dump;
mod fs_endings;
mod fs_filling;
mod fs_guests;
mod fs_holds;
mod fs_hot_pieces;
pub mod fs_level;
pub mod fs_model;
mod fs_past;
mod fs_relayout;
mod fs_reserving;
mod fs_restart;
mod fs_seek;
mod fs_settings;
pub mod fs_state;
mod fs_workload;
pub mod history;
pub mod machine;
pub mod outcome;
pub mod random;
pub mod regressions;
pub mod rig;
pub mod root_guard;
pub mod runner;
pub mod store_level;
pub mod store_model;
pub mod trace;
