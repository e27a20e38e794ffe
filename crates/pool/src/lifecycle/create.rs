//! Making a pool.
//!
//! Invariant: nothing is written before all devices were found to be unused and the label is one that a device can carry.

use std::{collections::BTreeMap, sync::Arc};

use terrace_device::{Device, Randomness};

use super::{
    joining::{check_unused, new_member, wipe_ends},
    open::Opened,
};
use crate::{
    PoolError,
    devices::{OpenDevice, Parallelism},
    labels::write_labels,
    ondisk::{Label, PoolState, TierSettings, choose_segment_bytes, segment_count},
};

/// How to make a pool.
pub struct CreateOptions {
    /// Name, 1–64 of `A-Za-z0-9_.-`, starting with a letter or digit.
    pub name: String,
    /// Tiers, fastest first, each with its devices.
    pub tiers: Vec<(TierSettings, Vec<Arc<dyn Device>>)>,
    /// Properties.
    pub properties: BTreeMap<String, String>,
    /// Segment size in bytes; `None`: chosen by the smallest device.
    pub segment_bytes: Option<u32>,
    /// When, nanoseconds since 1970.
    pub created_nanoseconds: u64,
    /// Use devices although they belong to an active pool or hold something else.
    pub force: bool,
    /// Flushing.
    pub parallelism: Parallelism,
}

/// Writes labels on the devices of a new pool. No root is written: the floor above does that.
pub(crate) fn create(options: CreateOptions, randomness: &dyn Randomness) -> Result<Opened, PoolError> {
    let invalid = |reason: String| Err(PoolError::Invalid(reason));
    let (mut smallest, mut all) = (u64::MAX, 0u64);
    for (tier, devices) in &options.tiers {
        if devices.is_empty() {
            return invalid(format!("tier '{}' has no device", tier.name));
        }
        for device in devices {
            check_unused(device.as_ref(), options.force)?;
            smallest = smallest.min(device.size_bytes());
            all = all.saturating_add(device.size_bytes());
        }
    }
    let segment_bytes = options
        .segment_bytes
        .unwrap_or_else(|| choose_segment_bytes(smallest, all));
    let mut members = Vec::new();
    let mut open = Vec::new();
    for (tier, (_, devices)) in options.tiers.iter().enumerate() {
        for device in devices {
            let number = open.len() as u16;
            if let Some(twice) = open
                .iter()
                .find(|other: &&Arc<OpenDevice>| other.path() == device.path())
            {
                return invalid(format!("{} is given twice", twice.path()));
            }
            let member = new_member(device.as_ref(), number, tier as u8, segment_bytes, randomness)?;
            let segments = segment_count(member.size_bytes, segment_bytes);
            open.push(Arc::new(OpenDevice::new(number, segments, device.clone())));
            members.push(member);
        }
    }
    let label = Label {
        pool_id: randomness.identifier(),
        pool_name: options.name,
        state: PoolState::Active,
        generation: 1,
        number: 0,
        next_number: members.len() as u16,
        segment_bytes,
        created_nanoseconds: options.created_nanoseconds,
        tiers: options.tiers.into_iter().map(|(tier, _)| tier).collect(),
        members,
        properties: options.properties,
    };
    // Before the first byte is written: whether the label is possible at all.
    label
        .encode()
        .map_err(|error| PoolError::Invalid(error.to_string()))?;
    for device in &open {
        wipe_ends(device)?;
    }
    write_labels(&open, &label, None).map_err(|refused| refused.error)?;
    Ok(Opened::new(label, open, options.parallelism))
}
