//! The simulated computer: disks that fail and lose power, a clock, and chance from one seed.

mod disk;
mod fault;
mod label_guard;
mod machine;
mod random;
pub mod root_guard;

pub(crate) use disk::{Disk, PAGE_BYTES, SECTOR_BYTES};
pub use fault::{Coverage, FaultKind};
pub(crate) use machine::{Counted, FRONT_BYTES, Machine, Survivors};
pub(crate) use random::{Random, SharedRandom};
