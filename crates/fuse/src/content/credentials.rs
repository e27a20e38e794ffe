//! On whose behalf a request runs. The kernel has checked permissions before it asks (`default_permissions`), so the
//! caller counts only where it becomes an owner or where the rules of set-id bits look at it.
//!
//! Invariant: what `/proc` does not tell of a caller is a right that he does not have.

use std::{
    fs::{self, File},
    io::Read,
    sync::Arc,
};

use terrace_dataset::{Context, Groups, Strip};

use crate::protocol::Header;

/// What a header says for the ids of a caller that the kernel does not tell (requests on a connection with idmapped mounts,
/// but for those that make something).
const UNTOLD: u32 = u32::MAX;
/// Bits of `CapEff`.
const CAP_FSETID: u32 = 4;
const CAP_SYS_ADMIN: u32 = 21;
/// The number of the first user namespace (`PROC_USER_INIT_INO`): capabilities count for the kernel's `capable()` only there.
const FIRST_NAMESPACE: &str = "user:[4026531837]";
/// More of a status file than the lines that are looked for need, with the most groups that there may be (65,536).
const STATUS_BYTES_MAX: u64 = 1 << 20;

/// The kernel, where it does not matter on whose behalf.
pub const KERNEL: Context = Context {
    uid: 0,
    gid: 0,
    pid: 0,
    umask: 0,
    groups: Groups::None,
    trusted: true,
    strip: Strip::ByUser,
};

/// The kernel, as it writes back what a program changed in memory.
pub const MAPPING: Context = Context {
    strip: Strip::Nothing,
    ..KERNEL
};

/// The caller of a request. Its supplementary groups are asked for only when they matter: reading them costs more
/// than most requests.
pub fn caller(header: &Header, umask: u32) -> Context {
    let groups = match header.group {
        Some(group) => Groups::List(Arc::from([group])),
        None if header.gid == UNTOLD => Groups::Lazy(all_groups),
        None => Groups::Lazy(supplementary_groups),
    };
    Context {
        uid: header.uid,
        gid: header.gid,
        pid: header.pid,
        umask,
        groups,
        trusted: true,
        strip: Strip::ByUser,
    }
}

/// Whether set-id bits stay on what the caller of a request changes. Asked only where there are such bits.
pub fn has_fsetid(header: &Header) -> bool {
    has_capability(header, CAP_FSETID)
}

/// Whether the caller of a request administers the machine.
pub fn is_administrator(header: &Header) -> bool {
    has_capability(header, CAP_SYS_ADMIN)
}

/// What the kernel's `capable()` would say of the caller.
fn has_capability(header: &Header, capability: u32) -> bool {
    let Some(status) = status_of(header.pid) else {
        return false;
    };
    status.allows(header.uid, capability)
        && fs::read_link(format!("/proc/{}/ns/user", header.pid))
            .is_ok_and(|namespace| namespace.as_os_str() == FIRST_NAMESPACE)
}

/// The groups of a process beside its own; none if it is gone or in another process namespace.
pub fn supplementary_groups(pid: u32) -> Vec<u32> {
    status_of(pid).map_or_else(Vec::new, |status| status.groups)
}

/// The groups of a process, its own among them.
fn all_groups(pid: u32) -> Vec<u32> {
    let Some(mut status) = status_of(pid) else {
        return Vec::new();
    };
    status.groups.push(status.gid);
    status.groups
}

fn status_of(pid: u32) -> Option<Status> {
    if pid == 0 {
        return None;
    }
    let mut text = String::new();
    let file = File::open(format!("/proc/{pid}/status")).ok()?;
    file.take(STATUS_BYTES_MAX).read_to_string(&mut text).ok()?;
    Status::parse(&text)
}

/// What counts of `/proc/PID/status`.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    /// Those for filesystem checks.
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    effective: u64,
    /// A thread of the kernel works with the rights of somebody else, which are told nowhere (nfsd).
    is_kernel_thread: bool,
}

impl Status {
    fn parse(text: &str) -> Option<Self> {
        let line = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
        };
        let last_id = |name: &str| line(name)?.split_ascii_whitespace().nth(3)?.parse().ok();
        Some(Self {
            uid: last_id("Uid:")?,
            gid: last_id("Gid:")?,
            groups: line("Groups:")?
                .split_ascii_whitespace()
                .filter_map(|group| group.parse().ok())
                .collect(),
            effective: u64::from_str_radix(line("CapEff:")?, 16).ok()?,
            // Threads of the kernel have no memory of their own.
            is_kernel_thread: line("VmSize:").is_none(),
        })
    }

    /// Whether a caller who says that he is `uid` has the capability. One who acts as somebody else has only what that one has.
    fn allows(&self, uid: u32, capability: u32) -> bool {
        let is_himself = match uid {
            UNTOLD => !self.is_kernel_thread,
            uid => uid == self.uid,
        };
        is_himself && self.effective & (1 << capability) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHELL: &str = "Name:\tsh\nUid:\t1\t2\t3\t1000\nGid:\t1\t2\t3\t100\nGroups:\t4 24 1000 \nNSpid:\t7\nVmSize:\t  10 kB\n\
                         CapEff:\t0000000000000010\n";

    #[test]
    fn groups_and_capabilities_are_read_from_a_status_file() {
        let status = Status::parse(SHELL).unwrap();
        assert_eq!((status.uid, status.gid), (1000, 100));
        assert_eq!(status.groups, [4, 24, 1000]);
        assert!(status.allows(1000, CAP_FSETID) && !status.allows(1000, CAP_SYS_ADMIN));
        assert!(status.allows(UNTOLD, CAP_FSETID));
        for part in ["Uid:", "Groups:", "CapEff:"] {
            assert_eq!(
                Status::parse(&SHELL.replace(part, "Other:")),
                None,
                "without {part}"
            );
        }
        assert_eq!(Status::parse("Name:\tsh\n"), None);
    }

    #[test]
    fn rights_of_another_are_not_taken_for_those_of_the_caller() {
        let mut status = Status::parse(SHELL).unwrap();
        assert!(!status.allows(0, CAP_FSETID), "he acts as root");
        status = Status::parse(&SHELL.replace("VmSize:", "Other:")).unwrap();
        assert!(status.is_kernel_thread && !status.allows(UNTOLD, CAP_FSETID));
        assert!(status.allows(1000, CAP_FSETID));
    }

    #[test]
    fn who_cannot_be_asked_has_no_right() {
        let header = |pid| Header {
            length: 0,
            operation: 0,
            unique: 0,
            node: 0,
            uid: 0,
            gid: 0,
            pid,
            extension_bytes: 0,
            group: None,
        };
        assert!(!has_fsetid(&header(0)) && !has_fsetid(&header(u32::MAX)));
        assert!(supplementary_groups(0).is_empty() && all_groups(u32::MAX).is_empty());
    }
}
