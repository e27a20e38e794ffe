//! `Past`: how a mount reaches earlier states of its filesystem, and the names by which users do.
//!
//! `DIR/.terrace/snapshots/NAME/…` shows snapshots (hidden from listings); `PATH@@WHEN` shows any path as of a
//! checkpoint or time. A file that really has such a name wins.

use std::sync::Arc;

use terrace_dataset::{FsError, Tree};

/// The hidden directory in the root of a mount.
pub const CONTROL_NAME: &[u8] = b".terrace";
/// The directory in it that lists snapshots.
pub const SNAPSHOTS_NAME: &[u8] = b"snapshots";
const SEPARATOR: &[u8] = b"@@";

/// A filesystem as it was.
#[derive(Clone)]
pub struct PastView {
    /// The checkpoint whose state it is; two views of one checkpoint show the same.
    pub checkpoint: u64,
    /// What can be read of it.
    pub tree: Arc<dyn Tree>,
}

/// Earlier states of one filesystem.
pub trait Past: Send + Sync {
    /// The names of its snapshots, and the checkpoints that they name.
    fn snapshots(&self) -> Result<Vec<(String, u64)>, FsError>;

    /// The state that a snapshot names; `NotFound` if there is none of this name.
    fn snapshot(&self, name: &str) -> Result<PastView, FsError>;

    /// The state at `when`: a checkpoint's number, a time (`2026-11-21T10:00:00`), or a time ago (`-1h`).
    /// `NotFound` if it means nothing or nothing is kept from then.
    fn at(&self, when: &str) -> Result<PastView, FsError>;

    /// The newest state that is kept whose checkpoint has the bits `checkpoint` in `mask`; `NotFound` if there is none.
    fn held(&self, checkpoint: u64, mask: u64) -> Result<PastView, FsError>;
}

/// Takes `foo@@WHEN` apart; the last separator counts, and of three `@` in a row the first two (`foo@@@SNAPSHOT`).
/// `foo` may be empty: the directory itself.
pub fn split_name(name: &[u8]) -> Option<(&[u8], &str)> {
    let last = name
        .windows(SEPARATOR.len())
        .rposition(|window| window == SEPARATOR)?;
    let at = if name[..last].ends_with(b"@") {
        last - 1
    } else {
        last
    };
    let when = std::str::from_utf8(&name[at + SEPARATOR.len()..]).ok()?;
    if when.is_empty() {
        None
    } else {
        Some((&name[..at], when))
    }
}

#[cfg(test)]
mod tests {
    use super::split_name;

    #[test]
    fn names_with_a_time_are_taken_apart_at_the_last_separator() {
        assert_eq!(split_name(b"a@@12"), Some((&b"a"[..], "12")));
        assert_eq!(split_name(b"a@@b@@-1h"), Some((&b"a@@b"[..], "-1h")));
        assert_eq!(split_name(b"a@@@name"), Some((&b"a"[..], "@name")));
        assert_eq!(split_name(b"@@7"), Some((&b""[..], "7")));
        assert_eq!(split_name(b"a@@"), None);
        assert_eq!(split_name(b"a@b"), None);
        assert_eq!(split_name(b"a@@\xff"), None);
    }
}
