//! On whose behalf a request runs. The kernel has checked permissions before it asks (`default_permissions`), so the
//! caller counts only where it becomes an owner or where the rules of set-id bits look at it.

use std::{fs, sync::Arc};

use terrace_dataset::{Context, Groups};

use crate::protocol::Header;

/// The kernel, where it does not matter on whose behalf.
pub const KERNEL: Context = Context {
    uid: 0,
    gid: 0,
    pid: 0,
    umask: 0,
    groups: Groups::None,
    trusted: true,
};

/// The caller of a request. Its supplementary groups are asked for only when they matter: reading them costs more
/// than most requests.
pub fn caller(header: &Header, umask: u32) -> Context {
    let groups = match header.group {
        Some(group) => Groups::List(Arc::from([group])),
        None => Groups::Lazy(supplementary_groups),
    };
    Context {
        uid: header.uid,
        gid: header.gid,
        pid: header.pid,
        umask,
        groups,
        trusted: true,
    }
}

/// The groups of a process; none if it is gone or in another process namespace.
pub fn supplementary_groups(pid: u32) -> Vec<u32> {
    if pid == 0 {
        return Vec::new();
    }
    fs::read_to_string(format!("/proc/{pid}/status"))
        .map_or_else(|_| Vec::new(), |status| parse_groups(&status))
}

fn parse_groups(status: &str) -> Vec<u32> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Groups:"))
        .unwrap_or("");
    line.split_ascii_whitespace()
        .filter_map(|group| group.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::parse_groups;

    #[test]
    fn groups_are_read_from_a_status_file() {
        assert_eq!(
            parse_groups("Name:\tsh\nGroups:\t4 24 1000 \nNSpid:\t7\n"),
            [4, 24, 1000]
        );
        assert!(parse_groups("Name:\tsh\n").is_empty());
    }
}
