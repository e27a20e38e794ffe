//! The simulator: the engine on simulated disks, with a simulated clock and chance from one seed, checked against
//! plain models. The fault model is at the head of `disk.rs`.
//!
//! Invariants: a run is a function of its seed, byte for byte; a fault is only planned through the seams (`Device`,
//! `Clock`, `Randomness`), so the engine under test is the one that ships.

mod act;
pub mod away_level;
pub mod damage_level;
pub mod fs;
pub mod hardware;
mod models;
pub mod rig;
pub mod run;
pub mod store;
pub mod trace;
pub mod violation;
