//! Where attached volumes are in the run directory: a mount for the file underneath each, and a name that stays.
//!
//! `disk/POOL/VOLUME` is a link to the device, for fstab and crypttab: it leads to the device whatever that is called
//! now. `volumes/POOL/…` is not for users. Invariant: two volumes never share a place, however long their names are. Nothing
//! lies below a volume, so no link is in the way of a directory; `+` is in no name, and as no part of one is empty, `++` is in
//! none with its `/` replaced.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use terrace_control::Failure;
use terrace_fuse::{LoopDevice, VOLUME_NAME};

use crate::{
    daemon::support::failed,
    machine::{Places, make_private},
};

/// Longest name of a file.
const FILE_NAME_BYTES_MAX: usize = 255;
/// What is added to the name of a volume's directory for the file beside it.
const MARK_ENDING: &str = "++ublk";

/// The name that stays, of a volume or a snapshot of one.
pub fn link_of(places: &Places, volume: &str) -> PathBuf {
    let link = places.link_directory().join(volume);
    let last = link.file_name().unwrap_or_default().to_string_lossy();
    link.with_file_name(fitted(&last, FILE_NAME_BYTES_MAX))
}

/// Where the file underneath is mounted.
pub fn directory_of(places: &Places, pool: &str, volume: &str) -> PathBuf {
    let bytes_max = FILE_NAME_BYTES_MAX - MARK_ENDING.len();
    let name = fitted(&volume.replace('/', "+"), bytes_max);
    places.volume_directory(pool).join(name)
}

/// A name, or where it is too long its first part and what tells it from others that begin so.
fn fitted(name: &str, bytes_max: usize) -> String {
    if name.len() <= bytes_max {
        return name.to_owned();
    }
    let ending = format!("++{}", &blake3::hash(name.as_bytes()).to_hex()[..32]);
    let first: String = name.chars().take(bytes_max - ending.len()).collect();
    first + &ending
}

/// The file that says what may be done with the volume's ublk device once its daemon is dead.
#[cfg(feature = "ublk")]
pub fn mark_of(places: &Places, pool: &str, volume: &str) -> PathBuf {
    let mut mark = directory_of(places, pool, volume).into_os_string();
    mark.push(MARK_ENDING);
    mark.into()
}

/// The file underneath, in its directory.
pub fn file_in(directory: &Path) -> PathBuf {
    directory.join(String::from_utf8_lossy(VOLUME_NAME).as_ref())
}

/// The directory by the name that the kernel knows; its last part, which may be a dead mount, is not looked at.
pub fn real(directory: &Path) -> Option<PathBuf> {
    let parent = directory.parent()?.canonicalize().ok()?;
    Some(parent.join(directory.file_name()?))
}

/// Makes the directory to mount the file in.
pub fn prepare_directory(places: &Places, pool: &str, volume: &str) -> io::Result<PathBuf> {
    let directory = directory_of(places, pool, volume);
    make_private(&places.volume_directory(pool))?;
    let directory = real(&directory).unwrap_or(directory);
    match fs::create_dir(&directory) {
        // It may be the mount of a dead daemon, which cannot be looked at.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(directory),
        made => made.map(|()| directory),
    }
}

/// Makes the link lead to `device`.
pub fn make_link(link: &Path, device: &Path) -> io::Result<()> {
    if let Some(directory) = link.parent() {
        make_private(directory)?;
    }
    // One pool's links are made one after the other.
    let new = link.with_file_name(format!("+{}", std::process::id()));
    let _ = fs::remove_file(&new);
    std::os::unix::fs::symlink(device, &new)?;
    fs::rename(&new, link)
}

/// Removes the link if it leads to `device`, and the directories above it that become empty.
pub fn remove_link(places: &Places, link: &Path, device: &Path) {
    if fs::read_link(link).ok().as_deref() != Some(device) || fs::remove_file(link).is_err() {
        return;
    }
    let top = places.link_directory();
    let above = link
        .ancestors()
        .skip(1)
        .take_while(|directory| **directory != top);
    for directory in above {
        if fs::remove_dir(directory).is_err() {
            break;
        }
    }
}

/// Detaches the device of a dead daemon and takes the dead mount underneath away. The device first: once the mount
/// is out of the tree, the device no longer says what it shows.
pub fn clear_remains(what: &str, directory: &Path) -> Result<(), Failure> {
    if let Some(device) = LoopDevice::find(&file_in(directory)) {
        device.detach().map_err(|error| failed(what, &error))?;
    }
    terrace_fuse::clear_stale(directory)
        .map(drop)
        .map_err(|error| failed(what, &error))
}
