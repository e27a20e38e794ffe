//! `Stray`: an open file or device that its path does not lead to any more: it was deleted, replaced or moved under whoever has it open.
//!
//! Invariants: one look at the path, and nothing is opened; what cannot be told for sure is not said: some filesystems number a file
//! anew each time, so that another number alone proves nothing.

use std::{
    fmt,
    fs::{File, Metadata},
    os::{
        fd::AsRawFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

/// What became of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stray {
    /// The file has no name any more: it goes when it is closed. What holds it open can be read there until then.
    Deleted {
        /// Where it can be read.
        open_as: PathBuf,
        /// Something else is at the path now.
        replaced: bool,
    },
    /// It is somewhere else now.
    Moved {
        /// Where, as far as the system tells.
        to: PathBuf,
    },
}

impl Stray {
    /// What became of the path that this file was opened by; `None` if it leads to it, or that cannot be told.
    pub(crate) fn of(file: &File, path: &Path) -> Option<Self> {
        let open = file.metadata().ok()?;
        let there = std::fs::metadata(path);
        if there.as_ref().is_ok_and(|there| is_same(there, &open)) {
            return None;
        }
        // A path that cannot be looked at says nothing of the file.
        if matches!(&there, Err(error) if error.kind() != std::io::ErrorKind::NotFound) {
            return None;
        }
        let number = file.as_raw_fd();
        if open.nlink() == 0 {
            return Some(Self::Deleted {
                open_as: PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id())),
                replaced: there.is_ok(),
            });
        }
        let to = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        let is_there = std::fs::canonicalize(path).is_ok_and(|path| path == to);
        (!is_there).then_some(Self::Moved { to })
    }

    /// Whether what is on the device is lost when it is closed.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Deleted { .. })
    }
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted { open_as, replaced } => write!(
                f,
                "its file was deleted{}, and what is on it goes when the pool is closed (until then it is open as '{}')",
                if *replaced {
                    " and another one made at its path"
                } else {
                    ""
                },
                open_as.display()
            ),
            Self::Moved { to } => write!(
                f,
                "its path does not lead to it any more: it is open as '{}'",
                to.display()
            ),
        }
    }
}

fn is_same(there: &Metadata, open: &Metadata) -> bool {
    // Nodes of one block device may be many.
    match open.file_type().is_block_device() {
        true => there.file_type().is_block_device() && there.rdev() == open.rdev(),
        false => (there.dev(), there.ino()) == (open.dev(), open.ino()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn deleted_replaced_and_moved_files_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("a"), directory.path().join("b"));
        let make = || {
            std::fs::write(&path, b"x").unwrap();
            File::open(&path).unwrap()
        };
        let file = make();
        assert_eq!(Stray::of(&file, &path), None);
        std::os::unix::fs::symlink(&path, &other).unwrap();
        assert_eq!(Stray::of(&file, &other), None, "by another name");
        std::fs::remove_file(&other).unwrap();

        std::fs::rename(&path, &other).unwrap();
        let stray = Stray::of(&file, &path).unwrap();
        assert!(!stray.is_final());
        assert!(stray.to_string().contains(other.to_str().unwrap()), "{stray}");

        let file = make();
        std::fs::remove_file(&path).unwrap();
        let stray = Stray::of(&file, &path).unwrap();
        assert!(matches!(&stray, Stray::Deleted { replaced: false, .. }));
        let _newer = make();
        let stray = Stray::of(&file, &path).unwrap();
        let Stray::Deleted {
            open_as,
            replaced: true,
        } = &stray
        else {
            panic!("{stray:?}")
        };
        assert_eq!(std::fs::read(open_as).unwrap(), b"x");
        assert!(stray.is_final());
    }
}
