//! Finding pools by their labels alone, under whatever paths.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use terrace_device::peek_path;

use super::agreement::describe_missing;
use crate::{
    PoolError, PoolId,
    labels::{Standing, standing},
    ondisk::{Label, LabelCopies, PoolState},
};

/// A device with a label.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundDevice {
    /// Where it was found.
    pub path: PathBuf,
    /// Number in its pool.
    pub number: u16,
    /// Tier, 0 is the fastest.
    pub tier: u8,
    /// Generation of its label.
    pub generation: u64,
    /// Its label is older than that of its siblings, and these do not say that it was only away.
    pub stale: bool,
    /// It was used without those with the newest label, and they without it.
    pub apart: bool,
}

/// A pool of which at least one device was found.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundPool {
    /// Identity.
    pub id: PoolId,
    /// Name.
    pub name: String,
    /// State by the newest label.
    pub state: PoolState,
    /// Generation of the newest label.
    pub generation: u64,
    /// Names of the tiers, fastest first.
    pub tiers: Vec<String>,
    /// Devices found that are part of the pool, ascending by number.
    pub devices: Vec<FoundDevice>,
    /// Devices that the newest label names and that were not found: `device N (last seen as PATH)`.
    pub missing: Vec<String>,
    /// Where those were last.
    pub missing_paths: Vec<PathBuf>,
}

impl FoundPool {
    /// The paths to open it with: of every device that is not stale, and of a stale one where there is no other of its number:
    /// whoever opens it refuses that, or takes what it has. Those that were used apart from each other are all among them:
    /// whoever opens it refuses them together.
    pub fn paths(&self) -> Vec<PathBuf> {
        let is_known = |number: u16| {
            let mut known = self.devices.iter().filter(|device| !device.stale);
            known.any(|device| device.number == number)
        };
        self.devices
            .iter()
            .filter(|device| !device.stale || !is_known(device.number))
            .map(|device| device.path.clone())
            .collect()
    }

    /// Whether some were used without the others, and these without them.
    pub fn is_apart(&self) -> bool {
        self.devices.iter().any(|device| device.apart)
    }
}

/// Looks at every regular file, slot directory and block device directly in `directories`, and at `devices`, without
/// holding any; what is not a pool's device is passed over. Ascending by name, then identity; and an error for each device of a
/// pool whose format version is not known here.
pub fn scan(directories: &[PathBuf], devices: &[PathBuf]) -> (Vec<FoundPool>, Vec<PoolError>) {
    let mut paths: Vec<PathBuf> = devices.to_vec();
    for directory in directories {
        let Ok(entries) = std::fs::read_dir(directory) else {
            continue;
        };
        let mut inside: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| fits(path))
            .collect();
        inside.sort();
        paths.append(&mut inside);
    }
    let mut seen = BTreeSet::new();
    let mut pools: BTreeMap<PoolId, Vec<(PathBuf, LabelCopies)>> = BTreeMap::new();
    let mut refused = Vec::new();
    for path in paths {
        let real = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        if !seen.insert(real) {
            continue;
        }
        let Ok(device) = peek_path(&path) else { continue };
        let copies = LabelCopies::read(device.as_ref());
        if let Some(label) = copies.newest() {
            pools.entry(label.pool_id).or_default().push((path, copies));
            continue;
        }
        let error = copies.error();
        if error.is_of_other_version() {
            let path = path.display().to_string();
            refused.push(PoolError::OtherVersion { path, error });
        }
    }
    let mut found: Vec<FoundPool> = pools.into_values().filter_map(describe).collect();
    found.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    (found, refused)
}

fn describe(devices: Vec<(PathBuf, LabelCopies)>) -> Option<FoundPool> {
    let newest = |label: fn(&LabelCopies) -> Option<&Label>| {
        devices
            .iter()
            .filter_map(|(_, copies)| label(copies))
            .max_by_key(|label| label.generation)
    };
    let label = newest(LabelCopies::confirmed)
        .or_else(|| newest(LabelCopies::newest))?
        .clone();
    let mut found = Vec::new();
    for (path, copies) in &devices {
        let Some(own) = copies.newest() else { continue };
        let (member, stale, apart) = match standing(&label, copies) {
            Some(Standing::Current(member) | Standing::Returned(member)) => (member, false, false),
            Some(Standing::Apart(member)) => (member, false, true),
            Some(Standing::Unknown(member)) => (member, true, false),
            // Removed since, or never quite added.
            Some(Standing::Unlisted) | None => continue,
        };
        found.push(FoundDevice {
            path: path.clone(),
            number: member.number,
            tier: member.tier,
            generation: own.generation,
            stale,
            apart,
        });
    }
    found.sort_by(|a, b| (a.number, &a.path).cmp(&(b.number, &b.path)));
    let absent = label.members.iter().filter(|member| {
        let there = |device: &FoundDevice| device.number == member.number && !device.stale;
        !found.iter().any(there)
    });
    let absent: Vec<_> = absent.collect();
    Some(FoundPool {
        id: label.pool_id,
        state: label.state,
        generation: label.generation,
        missing: absent.iter().map(|member| describe_missing(member)).collect(),
        missing_paths: absent.iter().map(|member| PathBuf::from(&member.path)).collect(),
        tiers: label.tiers.iter().map(|tier| tier.name.clone()).collect(),
        name: label.pool_name,
        devices: found,
    })
}

/// The name of the pool that the device at `path` belongs to (not a destroyed one), if any.
pub fn is_pool_member(path: &Path) -> Option<String> {
    let device = peek_path(path).ok()?;
    let copies = LabelCopies::read(device.as_ref());
    let label = copies.newest()?;
    (label.state != PoolState::Destroyed).then(|| label.pool_name.clone())
}

/// The number of the device that is at `path`, whatever its age, in the pool that `label` describes.
pub(crate) fn member_at(path: &Path, label: &Label) -> Option<u16> {
    let device = peek_path(path).ok()?;
    let copies = LabelCopies::read(device.as_ref());
    let found = copies.newest().filter(|found| found.pool_id == label.pool_id)?;
    let own = found.own()?;
    let member = label.members.iter().find(|member| member.id == own.id);
    member.map(|member| member.number)
}

fn fits(path: &Path) -> bool {
    // Follows symbolic links: /dev/disk/by-id and the like are full of them.
    std::fs::metadata(path).is_ok_and(|metadata| {
        let kind = metadata.file_type();
        kind.is_file() || kind.is_dir() || kind.is_block_device()
    })
}
