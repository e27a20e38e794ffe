//! What a device holds already, so that making a pool does not overwrite anything by a slip.
//!
//! Rule: a device is empty if no format is recognised on it and its first and last MiB are all zero. Anything else is named: Terrace's
//! own labels with their pool, foreign formats from a table of signatures ([`magics`]), the rest as data of no known format.
//!
//! Invariants: looks only; reads a bounded part (4 MiB at the start, 1 MiB at each end); every byte read is hostile, and what is quoted
//! of it is cut short and without control characters.

mod details;
mod ends;
mod magics;

use std::fmt;

use terrace_device::{Claim, Device, DeviceError};

use self::ends::Ends;
use crate::ondisk::{LabelCopies, PoolState};

/// What a device holds, in words that go on after "holds".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    words: String,
    /// The pool that its label names, unless that is destroyed.
    pool: Option<String>,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl Content {
    /// The name of the pool that the device belongs to, if that is not a destroyed one.
    pub fn pool(&self) -> Option<&str> {
        self.pool.as_deref()
    }

    /// What is on a claimed device, all of its backing looked at; `None` if it is empty.
    ///
    /// # Errors
    /// If it cannot be read: then nobody knows.
    pub fn of_claim(claim: &Claim) -> Result<Option<Self>, DeviceError> {
        if let Some(device) = claim.device()
            && let Some(label) = Self::of_label(device)
        {
            return Ok(Some(label));
        }
        if let Some(entries) = claim.foreign_entries() {
            let words = format!("other things: the directory is not empty ({entries})");
            return Ok(Some(Self { words, pool: None }));
        }
        if claim.is_directory() {
            return claim.device().map_or(Ok(None), Self::of_device);
        }
        let read = |offset: u64, buffer: &mut [u8]| claim.read_backing(offset, buffer);
        let ends = Ends::read(claim.backing_bytes(), claim.size_bytes(), &read)?;
        Ok(Self::of_ends(&ends))
    }

    /// What is on an open device; `None` if it is empty.
    pub(crate) fn of_device(device: &dyn Device) -> Result<Option<Self>, DeviceError> {
        if let Some(label) = Self::of_label(device) {
            return Ok(Some(label));
        }
        let read = |offset: u64, buffer: &mut [u8]| {
            device.read_at(offset, buffer)?;
            Ok(buffer.len())
        };
        let size_bytes = device.size_bytes();
        Ok(Self::of_ends(&Ends::read(size_bytes, size_bytes, &read)?))
    }

    fn of_label(device: &dyn Device) -> Option<Self> {
        let copies = LabelCopies::read(device);
        let label = copies.newest()?;
        let (number, name) = (label.number, &label.pool_name);
        let (words, is_given_up) = match label.state {
            PoolState::Active => (format!("device {number} of pool '{name}'"), false),
            PoolState::Exported => (format!("device {number} of the exported pool '{name}'"), false),
            PoolState::Destroyed => (
                format!(
                    "device {number} of the destroyed pool '{name}', which 'terrace pool import --destroyed' may bring back"
                ),
                true,
            ),
        };
        Some(Self {
            words,
            pool: (!is_given_up).then(|| name.clone()),
        })
    }

    fn of_ends(ends: &Ends) -> Option<Self> {
        let words = magics::recognise(ends).or_else(|| ends.describe_unknown())?;
        Some(Self { words, pool: None })
    }
}
