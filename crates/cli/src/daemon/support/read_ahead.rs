//! How far the kernel reads ahead on a mount.
//!
//! Left to itself it asks for 128 KiB at a time, and a reader of a large file waits for one answer after the other: with
//! 1 MiB reading is twice as fast for half the processor time (docs/measurements.md). A FUSE server cannot ask for more
//! than the kernel's own setting, so that is raised where this process may (as root, and `/sys` can be written).

use std::{fs, path::Path};

/// KiB.
const READ_AHEAD_KIB: u32 = 1024;

/// Raises it for what is mounted at `directory`; without the right to it everything stays as it is.
pub fn raise(directory: &Path) {
    let Ok(Some(entry)) = terrace_fuse::mount_at(directory) else {
        return;
    };
    let (major, minor) = entry.device;
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = fs::write(&setting, READ_AHEAD_KIB.to_string()) {
        tracing::debug!(%setting, %error, "the kernel reads ahead as much as it likes");
    }
}
