//! Finding pools by their labels alone.

use std::path::{Path, PathBuf};

use crate::{PoolId, PoolState};

/// A device with a label.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundDevice {
    /// Where it was found.
    pub path: PathBuf,
    /// Number in its pool.
    pub number: u16,
    /// Tier, 0 is the fastest.
    pub tier: u8,
    /// Generation of its label.
    pub generation: u64,
    /// Its label is older than that of its siblings.
    pub stale: bool,
}

/// A pool of which at least one device was found.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundPool {
    /// Identity.
    pub id: PoolId,
    /// Name.
    pub name: String,
    /// State by the newest label.
    pub state: PoolState,
    /// Generation of the newest label.
    pub generation: u64,
    /// Devices found, ascending by number.
    pub devices: Vec<FoundDevice>,
    /// Devices that the newest label names and that were not found: `device N (last seen as PATH)`.
    pub missing: Vec<String>,
}

/// Looks at every regular file, slot directory and (below `/dev`) block device directly in `directories`, and at
/// `devices`, without holding any; what is not a pool's device is passed over. Ascending by name, then identity.
pub fn scan(_directories: &[PathBuf], _devices: &[PathBuf]) -> Vec<FoundPool> {
    todo!()
}

/// The name of the pool that the device at `path` belongs to (not counting destroyed and exported ones), if any.
pub fn is_pool_member(_path: &Path) -> Option<String> {
    todo!()
}
