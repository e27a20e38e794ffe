//! `Members`: which disks are part of the pool, and which of them is pulled.
//!
//! Invariant: at most one disk is pulled at a time.

use std::collections::{BTreeMap, BTreeSet};

use terrace_pool::{DeviceInfo, DeviceState};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Members {
    disks: BTreeSet<usize>,
    /// The numbers that the pool's devices have, by disk.
    numbers: BTreeMap<usize, u16>,
    /// A disk has left the pool just now.
    left: bool,
    /// It is away, and will be back.
    pulled: Option<usize>,
}

/// A disk that has left the pool.
pub(crate) struct Left {
    pub(crate) disk: usize,
    /// The number that its device had.
    pub(crate) number: Option<u16>,
}

/// The disk of a device's path.
pub(crate) fn disk_of_path(path: &str) -> Option<usize> {
    path.trim_start_matches("/simulated/disk").parse().ok()
}

impl Members {
    /// The pool has these devices now; returns the disks that have left since the last look.
    pub(crate) fn update(&mut self, devices: &[DeviceInfo]) -> Vec<Left> {
        let numbers: BTreeMap<usize, u16> = devices
            .iter()
            .filter_map(|device| Some((disk_of_path(&device.path)?, device.number)))
            .collect();
        let disks = numbers.keys().copied().collect();
        let gone: Vec<usize> = self.disks.difference(&disks).copied().collect();
        let before = std::mem::replace(&mut self.numbers, numbers);
        self.disks = disks;
        let left = gone.into_iter().map(|disk| Left {
            disk,
            number: before.get(&disk).copied(),
        });
        left.collect()
    }

    pub(crate) fn contains(&self, disk: usize) -> bool {
        self.disks.contains(&disk)
    }

    /// All of them, in order.
    pub(crate) fn disks(&self) -> Vec<usize> {
        self.disks.iter().copied().collect()
    }

    /// The number of a disk's device.
    pub(crate) fn number(&self, disk: usize) -> Option<u16> {
        self.numbers.get(&disk).copied()
    }

    /// The disks of the devices with these numbers.
    pub(crate) fn disks_of(&self, numbers: &[u16]) -> Vec<usize> {
        let found = self.numbers.iter().filter(|(_, number)| numbers.contains(number));
        found.map(|(disk, _)| *disk).collect()
    }

    pub(crate) fn note_left(&mut self) {
        self.left = true;
    }

    /// Whether a disk has left since this was asked last.
    pub(crate) fn take_left(&mut self) -> bool {
        std::mem::take(&mut self.left)
    }

    /// The disk that is away.
    pub(crate) fn pulled(&self) -> Option<usize> {
        self.pulled
    }

    pub(crate) fn pull(&mut self, disk: usize) {
        self.pulled = Some(disk);
    }

    /// The disk that was away is back.
    pub(crate) fn put_back(&mut self) -> Option<usize> {
        self.pulled.take()
    }

    /// Whether a device is missing because it was pulled.
    pub(crate) fn explains(&self, device: &DeviceInfo) -> bool {
        device.state == DeviceState::Missing
            && self.pulled.is_some()
            && disk_of_path(&device.path) == self.pulled
    }
}
