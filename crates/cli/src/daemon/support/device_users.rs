//! Who uses a block device: mounts, swap, devices on top of it, processes that have it open.
//!
//! Invariants: looks only, changes nothing; what cannot be read is taken as unused, except that a device which the
//! kernel itself holds for somebody is always in use.

use std::{fs, os::unix::fs::OpenOptionsExt, path::Path};

use terrace_device::{holders_of, partitions_of};

/// Most users that are named.
const NAMED_MAX: usize = 4;

/// All users of `device` in words, the first of them; none if it is free.
pub fn users_of(device: &Path) -> Vec<String> {
    let mut users = holders_of(device);
    users.extend(processes_with(device));
    for partition in partitions_of(device) {
        users.extend(processes_with(&partition));
    }
    if users.is_empty() && is_claimed(device) {
        users.push("claimed by the kernel or in another mount namespace".into());
    }
    if users.len() > NAMED_MAX {
        let more = users.len() - NAMED_MAX;
        users.truncate(NAMED_MAX);
        users.push(format!("and {more} more"));
    }
    users
}

fn processes_with(device: &Path) -> Vec<String> {
    let own = std::process::id();
    let mut users = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid.filter(|pid| *pid != own) else {
            continue;
        };
        let open = fs::read_dir(entry.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        if open
            .map(|file| fs::read_link(file.path()))
            .any(|target| target.is_ok_and(|target| target == device))
        {
            let command = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            users.push(format!("open in process {pid} ({})", command.trim_end()));
        }
    }
    users
}

fn is_claimed(device: &Path) -> bool {
    let opened = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(device);
    opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_uses_has_no_users() {
        assert!(users_of(Path::new("/no/such/device")).is_empty());
        assert!(holders_of(Path::new("/dev/null")).is_empty());
    }

    #[test]
    fn a_process_with_it_open_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("device");
        fs::write(&file, b"").unwrap();
        // It waits for its input to end, with the file as its standard error.
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(fs::File::create(&file).unwrap())
            .spawn()
            .unwrap();
        let users = processes_with(&file);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(
            users.len() == 1 && users[0].contains(&child.id().to_string()),
            "{users:?}"
        );
        assert!(processes_with(&file).is_empty(), "it has ended");
    }
}
