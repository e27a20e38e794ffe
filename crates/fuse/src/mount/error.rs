//! What can go wrong when mounting, unmounting and telling the kernel of changes.

use std::{io, path::PathBuf};

/// An error of a mount.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// The kernel has no FUSE, or we may not use it.
    #[error(
        "FUSE is not usable: {device}: {cause}; if it is absent, load the module with 'modprobe fuse'; if it is forbidden, \
         root must let you read and write it; then run 'terrace doctor'"
    )]
    Unavailable {
        /// The device file.
        device: &'static str,
        /// Why it cannot be opened.
        cause: io::Error,
    },
    /// The place to mount at is not a directory we can use.
    #[error("cannot mount at {directory}: {cause}")]
    Directory {
        /// The place.
        directory: PathBuf,
        /// What is wrong with it.
        cause: io::Error,
    },
    /// A daemon that died left its mount there.
    #[error("cannot mount at {directory}: a dead mount lies there; remove it with 'umount -l {directory}'")]
    StaleMount {
        /// The place.
        directory: PathBuf,
    },
    /// mount(2) or fusermount3 refused.
    #[error("cannot mount at {directory}: {cause}; 'terrace doctor' tells what this machine lacks")]
    Mount {
        /// The place.
        directory: PathBuf,
        /// What they said.
        cause: String,
    },
    /// Files are open for writing there.
    #[error(
        "cannot make {directory} read-only: files are open for writing there; close what writes ('fuser -vm {directory}' lists it)"
    )]
    Writing {
        /// The place.
        directory: PathBuf,
    },
    /// The options of a mount cannot be changed.
    #[error(
        "cannot change the options of the mount at {directory}: {cause}; unmount it and mount it with the options wanted"
    )]
    Remount {
        /// The place.
        directory: PathBuf,
        /// Why.
        cause: String,
    },
    /// Files are open there, or a shell stands in it.
    #[error(
        "cannot unmount {directory}: it is in use; close what uses it ('fuser -vm {directory}' lists it) or unmount with --force"
    )]
    Busy {
        /// The place.
        directory: PathBuf,
    },
    /// It is seen at a second place: a bind mount, or another mount namespace.
    #[error(
        "cannot end the mount at {directory}: it is still in use at {other}; unmount it there, or unmount with --force"
    )]
    Elsewhere {
        /// The place.
        directory: PathBuf,
        /// The other one.
        other: String,
    },
    /// It is out of this process's sight, and another mount namespace has it.
    #[error(
        "the mount at {directory} is gone here, and goes on in the mount namespace of process {process}; end that, or          unmount with --force"
    )]
    Namespace {
        /// The place.
        directory: PathBuf,
        /// One of those that see it.
        process: u32,
    },
    /// umount(2) or fusermount3 refused.
    #[error("cannot unmount {directory}: {cause}")]
    Unmount {
        /// The place.
        directory: PathBuf,
        /// What they said.
        cause: String,
    },
    /// The kernel speaks a version that we do not.
    #[error("the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) or newer is needed")]
    Version {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// Talking to the kernel failed.
    #[error("talking to the kernel's FUSE failed: {0}")]
    Io(#[from] io::Error),
    /// The kernel is too old for this.
    #[error("the kernel cannot {0}; unmount and mount again instead")]
    TooOld(&'static str),
}
