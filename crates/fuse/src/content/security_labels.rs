//! `SecurityLabels`: how the absence of `security.selinux` is told where the kernel has no SELinux.
//!
//! `ls -l` asks for this attribute of each file, and the kernel passes every such question on. Told "no such attribute" it asks for the
//! next file's too; told "not supported" it does not ask again for files of the same filesystem, as GNU programs do with filesystems
//! that have no labels: one round trip less a file. Without SELinux nothing gives labels to files or goes by them. They may still
//! be there, brought by a backup (`rsync -X`, `tar --xattrs`), and are kept, listed and shown like any other attribute; programs that
//! copy attributes ask for those that are listed. What would suffer is `ls -Z` on a mixture, which would show no label
//! after the first file without one; hence the second invariant.
//!
//! Invariants: only the question for this one attribute, of an object that does not have it, is answered so; never where the kernel has
//! SELinux or that cannot be found out, and not any more once a label was seen on this mount.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use terrace_dataset::FsError;

use crate::errno::Errno;

const LABEL: &[u8] = b"security.selinux";
/// The filesystems that the kernel knows: `selinuxfs` is one if SELinux is compiled in and was not turned off at boot.
const FILESYSTEMS: &str = "/proc/filesystems";

/// See the module.
pub(crate) struct SecurityLabels {
    matter: AtomicBool,
}

impl SecurityLabels {
    /// Of the kernel that runs.
    pub(crate) fn of_kernel() -> Self {
        Self::of(std::fs::read_to_string(FILESYSTEMS).ok().as_deref())
    }

    /// By the kernel's list of filesystems, if there is one.
    fn of(filesystems: Option<&str>) -> Self {
        let absent = filesystems.is_some_and(|list| {
            !list.is_empty() && list.lines().all(|line| !line.trim_end().ends_with("selinuxfs"))
        });
        Self {
            matter: AtomicBool::new(!absent),
        }
    }

    /// An object has, or is given, an attribute of this name.
    pub(crate) fn note(&self, name: &[u8]) {
        if name == LABEL && !self.matter.load(Relaxed) {
            self.matter.store(true, Relaxed);
        }
    }

    /// What is answered when an attribute was asked for and `error` came of it.
    pub(crate) fn refusal(&self, name: &[u8], error: FsError) -> Errno {
        if error == FsError::NoAttribute && name == LABEL && !self.matter.load(Relaxed) {
            Errno(libc::EOPNOTSUPP)
        } else {
            error.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHOUT: &str = "nodev\tsysfs\nnodev\ttmpfs\n\text4\n";

    fn asked(labels: &SecurityLabels, name: &[u8]) -> i32 {
        labels.refusal(name, FsError::NoAttribute).0
    }

    #[test]
    fn absence_is_told_so_that_nobody_asks_again() {
        let labels = SecurityLabels::of(Some(WITHOUT));
        assert_eq!(asked(&labels, LABEL), libc::EOPNOTSUPP);
        // Of any other attribute, and any other error, it is told as it is.
        assert_eq!(asked(&labels, b"security.capability"), libc::ENODATA);
        assert_eq!(asked(&labels, b"user.selinux"), libc::ENODATA);
        assert_eq!(labels.refusal(LABEL, FsError::Stale).0, libc::ESTALE);
    }

    #[test]
    fn a_label_that_was_seen_makes_the_others_be_asked_for() {
        let labels = SecurityLabels::of(Some(WITHOUT));
        labels.note(b"security.capability");
        assert_eq!(asked(&labels, LABEL), libc::EOPNOTSUPP);
        labels.note(LABEL);
        assert_eq!(asked(&labels, LABEL), libc::ENODATA);
    }

    #[test]
    fn with_selinux_or_in_doubt_nothing_is_left_out() {
        let with = format!("{WITHOUT}nodev\tselinuxfs\n");
        for filesystems in [Some(with.as_str()), Some(""), None] {
            assert_eq!(asked(&SecurityLabels::of(filesystems), LABEL), libc::ENODATA);
        }
    }
}
