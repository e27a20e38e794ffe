//! `HostShortage`: files and directories that devices are made of, and that are to take more than the filesystem under them
//! has free.
//!
//! Such files are made sparse, since users may count on compression, or on more room later: like a thin pool of LVM, nobody is
//! refused, but whoever makes them is told.
//!
//! Invariants: nothing is made or changed; what is taken already (blocks written before, or preallocated) is no shortage; files on
//! one filesystem are counted together.

use std::{
    fmt,
    fs::Metadata,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{DeviceSpec, text::format_size};

/// Unit of `st_blocks`, bytes.
const STAT_BLOCK_BYTES: u64 = 512;

/// What some devices are to take of a filesystem, and what it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostShortage {
    /// The devices.
    pub paths: Vec<PathBuf>,
    /// What they may come to take beside what they have, bytes.
    pub wanted_bytes: u64,
    /// What is free there, bytes.
    pub free_bytes: u64,
}

impl HostShortage {
    /// The shortages of devices that are to be made, or were just now.
    pub fn of<'a>(specs: impl IntoIterator<Item = &'a DeviceSpec>) -> Vec<Self> {
        let mut hosts: Vec<(u64, Self)> = Vec::new();
        for spec in specs {
            let wanted_bytes = wanted(spec);
            // What the filesystem does not tell is no reason to frighten anybody.
            let Some((host, free_bytes)) = host_of(&spec.path).filter(|_| wanted_bytes > 0) else {
                continue;
            };
            match hosts.iter_mut().find(|(known, _)| *known == host) {
                Some((_, shortage)) => {
                    shortage.paths.push(spec.path.clone());
                    shortage.wanted_bytes = shortage.wanted_bytes.saturating_add(wanted_bytes);
                }
                None => hosts.push((
                    host,
                    Self {
                        paths: vec![spec.path.clone()],
                        wanted_bytes,
                        free_bytes,
                    },
                )),
            }
        }
        let shortages = hosts.into_iter().map(|(_, shortage)| shortage);
        shortages
            .filter(|shortage| shortage.wanted_bytes > shortage.free_bytes)
            .collect()
    }
}

impl fmt::Display for HostShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<String> = self
            .paths
            .iter()
            .map(|path| format!("'{}'", path.display()))
            .collect();
        write!(
            f,
            "{} may come to take {}, and the filesystem under it has {} free: writes fail when that is used up; give that \
             filesystem more room before, or make the device smaller",
            paths.join(" and "),
            format_size(self.wanted_bytes),
            format_size(self.free_bytes)
        )
    }
}

/// What a device may come to take of the filesystem under it beside what it has, bytes; nothing for a block device.
fn wanted(spec: &DeviceSpec) -> u64 {
    let taken = |metadata: &Metadata| metadata.blocks().saturating_mul(STAT_BLOCK_BYTES);
    let named = spec.size_bytes.unwrap_or(0);
    match std::fs::metadata(&spec.path) {
        Ok(metadata) if metadata.is_file() => named.max(metadata.len()).saturating_sub(taken(&metadata)),
        Ok(metadata) if metadata.is_dir() => {
            let files = std::fs::read_dir(&spec.path).into_iter().flatten().flatten();
            let all = files.filter_map(|file| file.metadata().ok());
            named.saturating_sub(all.map(|metadata| taken(&metadata)).sum())
        }
        Ok(_) => 0,
        Err(_) => named,
    }
}

/// The filesystem that a path lies on, or will, and what it has free, bytes.
fn host_of(path: &Path) -> Option<(u64, u64)> {
    let absolute = std::path::absolute(path).ok()?;
    let there = absolute.ancestors().find(|path| path.exists())?;
    let room = rustix::fs::statvfs(there).ok()?;
    let free_bytes = room.f_bavail.saturating_mul(room.f_frsize);
    Some((std::fs::metadata(there).ok()?.dev(), free_bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn spec(path: &Path, size_bytes: u64) -> DeviceSpec {
        format!("{}:{size_bytes}", path.display()).parse().unwrap()
    }

    #[test]
    fn what_is_to_take_more_than_there_is_is_told_with_figures_and_together() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        let (_, free) = host_of(directory.path()).unwrap();
        assert_eq!(HostShortage::of(&[spec(&file("small"), 1 << 20)]), []);
        let too_large = spec(&file("large"), free.saturating_mul(2));
        let alone = HostShortage::of([&too_large]);
        assert_eq!(alone.len(), 1);
        assert_eq!(alone[0].wanted_bytes, free.saturating_mul(2));
        // As it is made, sparse; and not where all of it is there.
        too_large.create().unwrap();
        assert_eq!(HostShortage::of([&too_large]).len(), 1);
        let existing = DeviceSpec {
            size_bytes: None,
            ..too_large
        };
        assert_eq!(HostShortage::of([&existing]).len(), 1);
        std::fs::remove_file(&existing.path).unwrap();
        let whole = spec(&file("whole"), 1 << 20);
        whole.create().unwrap();
        assert_eq!(wanted(&whole), 0);
        // Each has room, both have not; one of them is a directory, below another one that is not there.
        let half = free / 3 * 2;
        let both = [spec(&file("one"), half), spec(&file("not/there/two/"), half)];
        assert_eq!(HostShortage::of(&both[..1]), []);
        let shortage = &HostShortage::of(&both)[0];
        assert_eq!((shortage.paths.len(), shortage.wanted_bytes), (2, 2 * half));
        let words = shortage.to_string();
        assert!(
            words.contains(&format_size(2 * half)) && words.contains("one' and '"),
            "{words}"
        );
        // A device that is no file has its room.
        assert_eq!(wanted(&spec(Path::new("/dev/null"), 1 << 40)), 0);
    }
}
