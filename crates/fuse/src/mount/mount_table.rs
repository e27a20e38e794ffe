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
    /// Options of the mount.
    pub options: Vec<String>,
    /// Options of the filesystem, wherever else it may be mounted.
    pub super_options: Vec<String>,
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
    let words = |field: &[u8]| {
        let text = String::from_utf8_lossy(&unescape(field)).into_owned();
        text.split(',').map(str::to_owned).collect::<Vec<_>>()
    };
    let options = words(fields.next()?);
    fields.by_ref().find(|field| *field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = String::from_utf8_lossy(&unescape(fields.next()?)).into_owned();
    let super_options = words(fields.next().unwrap_or_default());
    Some(MountEntry {
        directory,
        device: (major.parse().ok()?, minor.parse().ok()?),
        kind,
        source,
        options,
        super_options,
    })
}

/// A process of another mount namespace that sees the mount of a device number with this minor, among those that this
/// user may look into. Each namespace is looked at once.
pub fn process_that_sees(minor: u32) -> Option<u32> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let mut seen = vec![namespace(Path::new("/proc/self"))];
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Ok(number) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        let its = namespace(&entry.path());
        if its.is_none() || seen.contains(&its) {
            continue;
        }
        seen.push(its);
        let Ok(table) = fs::read(entry.path().join("mountinfo")) else {
            continue;
        };
        if parse(&table).iter().any(|mount| mount.device == (0, minor)) {
            return Some(number);
        }
    }
    None
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
