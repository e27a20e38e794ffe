//! Devices by what users call them.
//!
//! Invariant: a path that two devices have, one that is gone and the one in its place, names neither of them.

use std::{path::Path, sync::Arc};

use terrace_pool::{DeviceInfo, DeviceState, Pool};

use crate::EngineError;

/// See the module.
#[derive(Clone)]
pub(crate) struct DeviceNames {
    pool: Arc<Pool>,
}

impl DeviceNames {
    pub(super) fn new(pool: &Arc<Pool>) -> Self {
        Self { pool: pool.clone() }
    }

    /// A device by its path or number (`2`, `device:2`).
    pub(crate) fn find(&self, name: &str) -> Result<DeviceInfo, EngineError> {
        let found = self.at(name);
        if let [first, second, ..] = &found[..] {
            return Err(EngineError::Invalid(format!(
                "two devices of the pool have the path '{name}': name one by its number, 'device:{}' ({}) or 'device:{}' ({})",
                first.number, first.state, second.number, second.state
            )));
        }
        let devices = self.pool.devices();
        let by_number = || {
            let number = name.strip_prefix("device:").unwrap_or(name);
            let number = number.parse::<u16>().ok()?;
            devices.iter().find(|info| info.number == number).cloned()
        };
        found.into_iter().next().or_else(by_number).ok_or_else(|| {
            let paths: Vec<_> = devices
                .iter()
                .map(|info| format!("{} (device:{})", info.path, info.number))
                .collect();
            EngineError::Invalid(format!(
                "the pool has no device '{name}'; its devices are {}",
                paths.join(", ")
            ))
        })
    }

    /// A device by its number.
    pub(crate) fn get(&self, device: u16) -> Option<DeviceInfo> {
        let devices = self.pool.devices();
        devices.into_iter().find(|info| info.number == device)
    }

    /// The devices that are, or were last seen, at a path.
    pub(crate) fn at(&self, path: &str) -> Vec<DeviceInfo> {
        let real = std::fs::canonicalize(path).ok();
        let is_it = |info: &DeviceInfo| {
            info.path == path
                || Path::new(&info.path) == Path::new(path)
                || real.is_some() && std::fs::canonicalize(&info.path).ok() == real
        };
        let mut devices = self.pool.devices();
        devices.retain(|info| info.state != DeviceState::Removed && is_it(info));
        devices
    }

    /// What a device is called where it must be told from all others: its path, or its number if another one has that path.
    pub(crate) fn name(&self, device: u16) -> String {
        let path = self.path(device);
        match self.at(&path).len() {
            0 | 1 => path,
            _ => format!("device:{device}"),
        }
    }

    /// Where a device is.
    pub(crate) fn path(&self, device: u16) -> String {
        self.get(device)
            .map_or_else(|| format!("device {device}"), |info| info.path)
    }
}
