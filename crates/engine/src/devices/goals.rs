//! What is wanted of devices that take nothing new, as the labels have it.
//!
//! Invariants: what is wanted of a device is a property on the labels (`device.N`); a device of which something is wanted takes nothing
//! new (one that is being shrunk: not at its end), and as usual again once that is forgotten.

use std::sync::Arc;

use terrace_pool::{Pool, PoolError};

use super::names::DeviceNames;
use crate::EngineError;

/// Prefix of the labels' properties that say what is wanted of a device.
const PROPERTY_PREFIX: &str = "device.";
/// What stands before the size in the word for a device that is being shrunk.
const SHRINK_PREFIX: &str = "shrink:";
/// What stands before the number of the new device in the word for one that is being replaced.
const REPLACE_PREFIX: &str = "replace:";

/// What shall become of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// It is being emptied and stays in the pool.
    Evacuate,
    /// It is being emptied and then taken out.
    Remove,
    /// As `Remove`, since the device of this number takes its place, which leaves again if that is given up.
    Replace(u16),
    /// It was emptied, and nothing new is put on it.
    Empty,
    /// Its end is being emptied and then cut off at this size, bytes.
    Shrink(u64),
    /// What can be moved off it is, then it is taken out with what cannot.
    GiveUp,
}

impl Goal {
    fn word(self) -> String {
        match self {
            Self::Evacuate => "evacuate".into(),
            Self::Remove => "remove".into(),
            Self::Replace(new) => format!("{REPLACE_PREFIX}{new}"),
            Self::Empty => "empty".into(),
            Self::Shrink(size_bytes) => format!("{SHRINK_PREFIX}{size_bytes}"),
            Self::GiveUp => "give-up".into(),
        }
    }

    fn of(word: &str) -> Option<Self> {
        match word {
            "evacuate" => Some(Self::Evacuate),
            "remove" => Some(Self::Remove),
            "empty" => Some(Self::Empty),
            "give-up" => Some(Self::GiveUp),
            _ => match word.strip_prefix(REPLACE_PREFIX) {
                Some(new) => new.parse().ok().map(Self::Replace),
                None => word.strip_prefix(SHRINK_PREFIX)?.parse().ok().map(Self::Shrink),
            },
        }
    }
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Goals {
    pool: Arc<Pool>,
    names: DeviceNames,
}

impl Goals {
    pub(super) fn new(pool: &Arc<Pool>, names: &DeviceNames) -> Self {
        Self {
            pool: pool.clone(),
            names: names.clone(),
        }
    }

    /// All devices of which something is wanted, and what, unless its word means nothing.
    pub(super) fn all(&self) -> Vec<(u16, Option<Goal>)> {
        let properties = self.pool.properties().into_iter();
        let goals = properties.filter_map(|(name, word)| {
            let device = name.strip_prefix(PROPERTY_PREFIX)?.parse::<u16>().ok()?;
            Some((device, Goal::of(&word)))
        });
        goals.collect()
    }

    fn of(&self, device: u16) -> Option<Goal> {
        Goal::of(&self.pool.property(&property(device))?)
    }

    /// Whether something is wanted of a device.
    pub(super) fn exists(&self, device: u16) -> bool {
        self.pool.property(&property(device)).is_some()
    }

    /// Writes down what is wanted of a device.
    pub(super) fn want(&self, device: u16, goal: Goal) -> Result<(), EngineError> {
        if self.pool.property(&property(device)) != Some(goal.word()) {
            self.pool.set_property(&property(device), Some(&goal.word()))?;
        }
        Ok(())
    }

    /// Nothing is wanted of a device any more: it is used as usual.
    pub(super) fn forget(&self, device: u16) -> Result<(), EngineError> {
        if self.pool.property(&property(device)).is_some() {
            self.pool.set_property(&property(device), None)?;
        }
        self.pool.limit_device(device, None);
        self.drain(device, false)
    }

    /// Nothing new on this device, or new content again. A missing one takes nothing anyway.
    pub(super) fn drain(&self, device: u16, draining: bool) -> Result<(), EngineError> {
        match self.pool.set_draining(device, draining) {
            Err(PoolError::NoDevice { .. }) => Ok(()),
            other => Ok(other?),
        }
    }

    /// What `status` says of a device that takes nothing new.
    pub(crate) fn describe(&self, device: u16) -> &'static str {
        match self.of(device) {
            Some(Goal::Evacuate) => "evacuating",
            Some(Goal::Remove | Goal::Replace(_) | Goal::GiveUp) => "removing",
            Some(Goal::Empty) => "empty",
            Some(Goal::Shrink(_)) => "shrinking",
            None => "",
        }
    }

    /// What `status`, and whoever finds no room, is told of devices that take nothing new although they are there; empty if
    /// there are none.
    pub(crate) fn describe_set_aside(&self) -> String {
        let mut devices = self.pool.devices();
        devices.retain(|info| matches!(self.of(info.number), Some(Goal::Empty | Goal::Evacuate)));
        let Some(first) = devices.first() else {
            return String::new();
        };
        let pool = self.pool.name();
        let tiers = self.pool.tiers();
        let tier = tiers.get(usize::from(first.tier));
        let only = tier.is_some_and(|tier| tier.devices.len() == 1);
        let of_tier = match tier.filter(|_| only) {
            Some(tier) => format!(", the only device of tier '{}',", tier.settings.name),
            None => String::new(),
        };
        let more = match devices.len() {
            1 => String::new(),
            count => format!(" (so do {} more)", count - 1),
        };
        format!(
            "device '{}'{of_tier} takes nothing new, since it was to be emptied{more}: 'terrace evacuate {pool} {} --undo' puts \
             it to use again",
            first.path,
            self.names.name(first.number)
        )
    }
}

fn property(device: u16) -> String {
    format!("{PROPERTY_PREFIX}{device}")
}
