//! Devices as users name them: `/dev/x`, `/path/file[:SIZE]`, `/path/dir/[:SIZE]`.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use super::size::{SizeError, format_size, parse_size};
use crate::{
    Device, DirectoryDevice, FileDevice, VolatileDevice,
    error::{Cause, DeviceError, Operation},
};

/// The form of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// An existing block device, or a regular file (made at a size if absent).
    FileOrBlock,
    /// A directory of slot files (made if absent).
    Directory,
}

/// A device as named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub kind: DeviceKind,
    /// How large it is to be made, in bytes; `None`: as it is.
    pub size_bytes: Option<u64>,
}

/// A text that names no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Nothing there.
    #[error("a device is missing; write /dev/x, /path/file:SIZE or /path/dir/:SIZE")]
    Empty,
    /// The size after the colon.
    #[error("device '{device}': {error}")]
    Size {
        /// The text.
        device: String,
        /// What is wrong with the size.
        error: SizeError,
    },
    /// A bucket.
    #[error("device '{0}': buckets (s3://) are not supported yet; use a file, a block device or a directory")]
    Bucket(String),
    /// A size of zero or for a block device.
    #[error("device '{device}': {reason}")]
    Refused {
        /// The text.
        device: String,
        /// Why not.
        reason: String,
    },
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text.trim().is_empty() {
            return Err(SpecError::Empty);
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(if matches!(scheme, "s3" | "ceph" | "rados") {
                SpecError::Bucket(text.to_owned())
            } else {
                SpecError::Refused {
                    device: text.to_owned(),
                    reason: format!("'{scheme}://' is not known"),
                }
            });
        }
        let (path, size) = match text.rsplit_once(':') {
            // What exists is a device as it stands, colons and all.
            Some(_) if Path::new(text).exists() => (text, None),
            // A colon inside a directory name is part of the path.
            Some((path, size)) if !size.contains('/') && !path.is_empty() => (path, Some(size)),
            _ => (text, None),
        };
        let size_bytes = match size {
            None => None,
            Some(size) => {
                let error = |error| SpecError::Size {
                    device: text.to_owned(),
                    error,
                };
                let size_bytes = parse_size(size).map_err(error)?;
                if size_bytes == 0 {
                    return Err(SpecError::Refused {
                        device: text.to_owned(),
                        reason: "its size is zero".into(),
                    });
                }
                Some(size_bytes)
            }
        };
        let kind = if path.ends_with('/') {
            DeviceKind::Directory
        } else {
            DeviceKind::FileOrBlock
        };
        Ok(Self {
            path: PathBuf::from(path),
            kind,
            size_bytes,
        })
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match self.size_bytes {
            None => Ok(()),
            Some(size) => {
                let words = format_size(size);
                // Only an exact size may be printed short: the text must parse back to the same device.
                if parse_size(&words) == Ok(size) {
                    write!(f, ":{words}")
                } else {
                    write!(f, ":{size}")
                }
            }
        }
    }
}

impl DeviceSpec {
    /// The same device seen from anywhere: relative paths are resolved below `base`.
    pub fn absolute(mut self, base: &Path) -> Self {
        if self.path.is_relative() {
            self.path = base.join(&self.path);
        }
        self
    }

    /// Makes the backing where it is absent (at the given size) and opens it exclusively. Whether anything is on it is not asked:
    /// see [`Claim`](crate::Claim).
    pub fn create(&self) -> Result<Arc<dyn Device>, DeviceError> {
        let device: Arc<dyn Device> = match self.is_directory() {
            true => Arc::new(DirectoryDevice::create(&self.path, self.size_bytes)?),
            false => Arc::new(FileDevice::create(&self.path, self.size_bytes)?),
        };
        Ok(VolatileDevice::if_asked(device))
    }

    fn is_directory(&self) -> bool {
        self.kind == DeviceKind::Directory || self.path.is_dir()
    }

    /// Opens what is there, exclusively; makes nothing.
    pub fn open(&self) -> Result<Arc<dyn Device>, DeviceError> {
        open_path(&self.path)
    }
}

/// Opens an existing device exclusively, whatever its form.
pub fn open_path(path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
    let metadata = std::fs::metadata(path).map_err(|error| {
        DeviceError::whole(path.display().to_string(), Operation::Open, Cause::from(&error))
    })?;
    let device: Arc<dyn Device> = if metadata.is_dir() {
        Arc::new(DirectoryDevice::open(path)?)
    } else {
        Arc::new(FileDevice::open(path)?)
    };
    Ok(VolatileDevice::if_asked(device))
}

/// Opens an existing device for reading only and without holding it: for looking at labels, also while another
/// process has the device in use.
pub fn peek_path(path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
    let metadata = std::fs::metadata(path).map_err(|error| {
        DeviceError::whole(path.display().to_string(), Operation::Open, Cause::from(&error))
    })?;
    if metadata.is_dir() {
        Ok(Arc::new(DirectoryDevice::peek(path)?))
    } else {
        Ok(Arc::new(FileDevice::peek(path)?))
    }
}
