//! Who keeps a file or block device until somebody acts: mounts, swap, loop devices, arrays and volumes on top of it, locks.
//!
//! Invariants: looks only, and only at what the kernel tells in /proc and /sys: no path of anybody else is followed, since that may hang;
//! what cannot be read is taken as unused.

use std::{
    fs,
    os::{
        fd::AsRawFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

/// What keeps the file or block device at `path`, or a partition of it, in words; none if it is free.
pub fn holders_of(path: &Path) -> Vec<String> {
    let mut holders = direct_holders_of(path);
    for partition in partitions_of(path) {
        holders.extend(direct_holders_of(&partition));
    }
    holders
}

/// The partitions of a block device.
pub fn partitions_of(device: &Path) -> Vec<PathBuf> {
    let name = device.file_name().unwrap_or_default();
    let entries = fs::read_dir(Path::new("/sys/block").join(name));
    let parts = entries.into_iter().flatten().flatten();
    parts
        .filter(|entry| entry.path().join("partition").exists())
        .map(|entry| Path::new("/dev").join(entry.file_name()))
        .collect()
}

fn direct_holders_of(path: &Path) -> Vec<String> {
    // The kernel tells of files by the names that they have in the end.
    let Ok(real) = fs::canonicalize(path) else {
        return Vec::new();
    };
    let Ok(metadata) = fs::metadata(&real) else {
        return Vec::new();
    };
    let is_block = metadata.file_type().is_block_device();
    if !is_block && !metadata.is_file() {
        return Vec::new();
    }
    let number = is_block.then(|| {
        (
            rustix::fs::major(metadata.rdev()),
            rustix::fs::minor(metadata.rdev()),
        )
    });
    let mut holders = mounts_of(&real, number);
    if is_swap(&real) {
        holders.push("swap space".into());
    }
    match is_block {
        true => {
            let name = real.file_name().unwrap_or_default();
            let above = Path::new("/sys/class/block").join(name).join("holders");
            for holder in fs::read_dir(above).into_iter().flatten().flatten() {
                holders.push(format!("part of '/dev/{}'", holder.file_name().display()));
            }
        }
        false => {
            let devices = loop_devices_of(&real).into_iter();
            holders.extend(devices.map(|device| format!("attached as '{}'", device.display())));
            if let Some(process) = lock_of(&real) {
                holders.push(process);
            }
        }
    }
    holders
}

/// Where a device of this number, or a file of this name, is mounted.
fn mounts_of(real: &Path, number: Option<(u32, u32)>) -> Vec<String> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    let mounted = table.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let fields: Vec<&str> = before.split(' ').collect();
        let (major, minor) = fields.get(2)?.split_once(':')?;
        let source = unescaped(after.split(' ').nth(1)?);
        let is_number =
            number.is_some_and(|number| major.parse() == Ok(number.0) && minor.parse() == Ok(number.1));
        let is_it = is_number || Path::new(&source) == real;
        is_it.then(|| format!("mounted on '{}'", unescaped(fields.get(4).unwrap_or(&""))))
    });
    mounted.collect()
}

/// Names in the kernel's tables have blanks and the like as octal numbers.
fn unescaped(word: &str) -> String {
    let mut text = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let octal = others.get(..3).filter(|_| *first == b'\\');
        let code = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        (text, rest) = match code {
            Some(code) => ([text, vec![code]].concat(), &others[3..]),
            None => ([text, vec![*first]].concat(), others),
        };
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn is_swap(real: &Path) -> bool {
    let table = fs::read("/proc/swaps").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    let mut names = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_ascii_whitespace().next());
    names.any(|name| Path::new(&unescaped(name)) == real)
}

/// The loop devices that are over a file.
fn loop_devices_of(real: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with("loop") {
            continue;
        }
        let backing = fs::read(entry.path().join("loop/backing_file")).unwrap_or_default();
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        if !backing.is_empty() && backing == real.as_os_str().as_encoded_bytes() {
            found.push(Path::new("/dev").join(name));
        }
    }
    found.sort();
    found
}

/// Who has a POSIX or open-file lock on a file that does not go with writing to it (as emulators put on images).
fn lock_of(real: &Path) -> Option<String> {
    let file = fs::File::options().read(true).open(real).ok()?;
    // Not by rustix, which takes the -1 of an open-file lock for a mistake of the kernel's.
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: F_GETLK reads and writes the one structure, which lives through the call.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    match (asked, lock.l_type == libc::F_UNLCK as libc::c_short) {
        (0, false) if lock.l_pid > 0 => Some(format!("locked by process {}", lock.l_pid)),
        (0, false) => Some("locked by another process".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_uses_has_no_holders() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, b"content").unwrap();
        assert_eq!(holders_of(&file), Vec::<String>::new());
        assert_eq!(holders_of(Path::new("/no/such/device")), Vec::<String>::new());
        assert_eq!(holders_of(Path::new("/dev/null")), Vec::<String>::new());
    }

    #[test]
    fn names_of_the_kernels_tables_are_read_back() {
        assert_eq!(unescaped(r"/a\040b\134c\011"), "/a b\\c\t");
        assert_eq!(unescaped(r"/plain\9"), r"/plain\9");
    }
}
