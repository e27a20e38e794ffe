//! `Claim`: a device that somebody means to use anew, held while it is looked at.
//!
//! Invariants: a claim makes, grows and writes nothing; what exists is held exclusively from then on, so that what was found on it is still
//! so when it is used; a device that something else uses (a mount, swap, a loop device, an array, a process with a lock) cannot be
//! claimed. What [`Claim::make`] made can be undone until the device has content.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::holders::holders_of;
use crate::{
    Device, DeviceKind, DeviceSpec, DirectoryDevice, FileDevice, VolatileDevice,
    error::{Cause, DeviceError, Operation},
    kinds::{directory, file},
};

enum Held {
    File(file::Found),
    Directory(directory::Found),
}

/// A device that is to be used anew.
pub struct Claim {
    path: PathBuf,
    held: Held,
    /// What else is in the directory, in words.
    foreign: Option<String>,
}

/// A device that was claimed and is there now.
pub struct Made {
    /// The device.
    pub device: Arc<dyn Device>,
    undo: Undo,
}

enum Undo {
    Nothing,
    RemoveFile(PathBuf),
    RemoveDirectory(PathBuf),
    /// Remove what was put into a directory that was there.
    Empty(PathBuf),
    /// Cut off at so many bytes.
    Shorten(u64),
}

impl Claim {
    /// Opens what is there, exclusively. Fails where a device cannot be made of it, or not of that size, and where it is in use.
    ///
    /// # Errors
    /// `DeviceError` in words that name the user of the device, if there is one.
    pub fn of(spec: &DeviceSpec) -> Result<Self, DeviceError> {
        let path = &spec.path;
        let holders = holders_of(path);
        if !holders.is_empty() {
            let words = format!("it is in use: {}", holders.join(", "));
            let words = Cause::Other(format!(
                "{words}; end that use first, --force does not override it"
            ));
            return Err(DeviceError::whole(
                path.display().to_string(),
                Operation::Open,
                words,
            ));
        }
        let is_directory = spec.kind == DeviceKind::Directory || path.is_dir();
        let (held, foreign) = match is_directory {
            true => {
                let found = directory::Found::at(path, spec.size_bytes)?;
                let foreign = match &found {
                    directory::Found::Device(..) => None,
                    directory::Found::Nothing(_) => directory::foreign_entries(path)?,
                };
                (Held::Directory(found), foreign)
            }
            false => (Held::File(file::Found::at(path, spec.size_bytes)?), None),
        };
        Ok(Self {
            path: path.clone(),
            held,
            foreign,
        })
    }

    /// Where it is, or would be made.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size that it would have, bytes.
    pub fn size_bytes(&self) -> u64 {
        match &self.held {
            Held::File(file::Found::Device(_, size) | file::Found::Nothing(size)) => *size,
            Held::Directory(directory::Found::Device(_, size) | directory::Found::Nothing(size)) => *size,
        }
    }

    /// Whether it is not there yet.
    pub fn is_made(&self) -> bool {
        match &self.held {
            Held::File(found) => matches!(found, file::Found::Nothing(_)),
            Held::Directory(_) => !self.path.exists(),
        }
    }

    /// Whether it is a directory of files.
    pub fn is_directory(&self) -> bool {
        matches!(self.held, Held::Directory(_))
    }

    /// The device as it is now; `None` where there is none yet.
    pub fn device(&self) -> Option<&dyn Device> {
        match &self.held {
            Held::File(file::Found::Device(device, _)) => Some(device),
            Held::Directory(directory::Found::Device(device, _)) => Some(device),
            _ => None,
        }
    }

    /// What is in a directory that is no device yet, in words; `None` if it is empty.
    pub fn foreign_entries(&self) -> Option<&str> {
        self.foreign.as_deref()
    }

    /// Length of the file or block device as it is now, to the byte; 0 where there is none.
    pub fn backing_bytes(&self) -> u64 {
        match &self.held {
            Held::File(file::Found::Device(device, _)) => device.backing_bytes(),
            _ => 0,
        }
    }

    /// Reads of the file or block device as it is now, from a multiple of 4096 into a buffer whose length is one; how many bytes there
    /// were: fewer only at its end.
    ///
    /// # Errors
    /// What the device says.
    pub fn read_backing(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DeviceError> {
        match &self.held {
            Held::File(file::Found::Device(device, _)) => device.read_backing(offset, buffer),
            _ => Ok(0),
        }
    }

    /// Makes what is absent, grows what is smaller, and hands the device over, held as before.
    ///
    /// # Errors
    /// What the system says; then nothing is left of it.
    pub fn make(self) -> Result<Made, DeviceError> {
        let existed = self.path.exists();
        let (device, undo): (Arc<dyn Device>, Undo) = match self.held {
            Held::File(found) => {
                let undo = match &found {
                    file::Found::Nothing(_) => Undo::RemoveFile(self.path.clone()),
                    file::Found::Device(device, size) if device.size_bytes() < *size => {
                        Undo::Shorten(device.backing_bytes())
                    }
                    file::Found::Device(..) => Undo::Nothing,
                };
                (Arc::new(FileDevice::of_found(found, &self.path)?), undo)
            }
            Held::Directory(found) => {
                let undo = match (&found, existed) {
                    (directory::Found::Device(..), _) => Undo::Nothing,
                    (directory::Found::Nothing(_), true) => Undo::Empty(self.path.clone()),
                    (directory::Found::Nothing(_), false) => Undo::RemoveDirectory(self.path.clone()),
                };
                (Arc::new(DirectoryDevice::of_found(found, &self.path)?), undo)
            }
        };
        Ok(Made {
            device: VolatileDevice::if_asked(device),
            undo,
        })
    }
}

impl Made {
    /// Puts everything back as it was before [`Claim::make`], as far as that can be; for a device that came to hold nothing.
    pub fn undo(self) {
        let undone = match self.undo {
            Undo::Nothing => Ok(()),
            Undo::RemoveFile(path) => fs::remove_file(path),
            Undo::RemoveDirectory(path) => directory::remove_own(&path).and_then(|()| fs::remove_dir(path)),
            Undo::Empty(path) => directory::remove_own(&path),
            Undo::Shorten(size_bytes) => self
                .device
                .truncate(size_bytes)
                .map(drop)
                .map_err(|error| std::io::Error::other(error.to_string())),
        };
        if let Err(error) = undone {
            tracing::warn!(%error, device = self.device.path(), "left behind");
        }
    }
}
