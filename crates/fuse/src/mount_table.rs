//! `/proc/self/mountinfo`: finding our mounts and their connection numbers without touching them (a stat of a mount
//! whose daemon is gone, or is ourselves, could wait for an answer that never comes).
//!
//! Invariants: reading is total; what cannot be read is skipped.

use std::{
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is mounted.
    pub directory: PathBuf,
    /// Device number (major, minor); a FUSE connection is numbered by the minor.
    pub device: (u32, u32),
    /// Type, for example `fuse.terrace`.
    pub kind: String,
    /// What is mounted.
    pub source: String,
}

/// All mounts that this process sees.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// The topmost mount at exactly `directory`, which is compared as a string: give it absolute, without symbolic links.
pub fn mount_at(directory: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?
        .into_iter()
        .rev()
        .find(|entry| entry.directory == directory))
}

/// Where else the mount at `directory`, of a device number with this minor, can be seen: bind mounts of it or of
/// directories in it, which keep it alive.
pub fn other_place(directory: &Path, minor: u32) -> io::Result<Option<PathBuf>> {
    let device = (0, minor);
    Ok(mounts()?
        .into_iter()
        .find(|entry| entry.device == device && entry.directory != directory && minor != 0)
        .map(|entry| entry.directory))
}

/// Reads the table.
pub fn parse(table: &[u8]) -> Vec<MountEntry> {
    table
        .split(|&byte| byte == b'\n')
        .filter_map(parse_line)
        .collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let directory = PathBuf::from(std::ffi::OsString::from_vec(unescape(fields.nth(1)?)));
    fields.by_ref().find(|field| *field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = String::from_utf8_lossy(&unescape(fields.next()?)).into_owned();
    Some(MountEntry {
        directory,
        device: (major.parse().ok()?, minor.parse().ok()?),
        kind,
        source,
    })
}

/// Undoes the kernel's octal escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) = (first, tail) {
            plain.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
            rest = &tail[3..];
        } else {
            plain.push(first);
        }
    }
    plain
}

/// `directory` made absolute without following its last component into a mount: the parent is resolved, the last
/// name kept, so that a dead mount at `directory` is not touched.
pub fn absolute(directory: &Path) -> io::Result<PathBuf> {
    match (directory.parent(), directory.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().as_bytes().is_empty() {
                Path::new(".")
            } else {
                parent
            };
            Ok(parent.canonicalize()?.join(name))
        }
        _ => directory.canonicalize(),
    }
}
