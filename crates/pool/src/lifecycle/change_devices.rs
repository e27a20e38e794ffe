//! Changing what the labels say: properties, tiers, state, name, and which devices belong to the pool.
//!
//! Invariants: a change is visible in RAM only after the labels that say so are durable; changes happen one at a
//! time; a device joins before anything is put on it and leaves only when nothing is on it.

use std::sync::{Arc, atomic::Ordering};

use terrace_device::{AlignedBuffer, Device, Randomness};

use super::open::{check_size, check_unused, new_member, wipe_ends};
use crate::{
    Pool, PoolError, PoolState, Presence, SegmentRange, TierSettings,
    devices::OpenDevice,
    ondisk::{
        Label, MEMBERS_MAX, SEGMENT_AREA_OFFSET, SEGMENTS_MIN, TIERS_MAX, end_label_offset, segment_count,
    },
    space::{Landing, take_from_others},
};

/// Where an added device goes.
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceAdd {
    /// To the tier of this name.
    Tier(String),
    /// To a new tier at this position (0: fastest; the number of tiers: slowest).
    NewTier {
        /// Position.
        position: u8,
        /// Its settings.
        settings: TierSettings,
    },
}

impl Pool {
    /// Sets (or with `None` removes) a property; durable when it returns.
    pub fn set_property(&self, name: &str, value: Option<&str>) -> Result<(), PoolError> {
        if name.is_empty() {
            return Err(PoolError::Invalid("a property needs a name".into()));
        }
        self.update(|label| {
            match value {
                Some(value) => label.properties.insert(name.to_owned(), value.to_owned()),
                None => label.properties.remove(name),
            };
            Ok(())
        })
    }

    /// Replaces the settings of the tier of this name; durable when it returns. What lands there does not land on others any
    /// more: returns the names of those, and what each took until now.
    pub fn set_tier(&self, name: &str, settings: TierSettings) -> Result<Vec<(String, Landing)>, PoolError> {
        let mut taken = Vec::new();
        self.update(|label| {
            let at = label.tiers.iter().position(|tier| tier.name == name);
            let at = at.ok_or_else(|| no_tier(name))?;
            label.tiers[at] = settings;
            taken = take_from_others(&mut label.tiers, at);
            Ok(())
        })?;
        Ok(taken)
    }

    /// Changes the state in the labels; durable when it returns. The caller stops using the pool after `Exported`
    /// and `Destroyed`.
    pub fn set_state(&self, state: PoolState) -> Result<(), PoolError> {
        self.update(|label| {
            label.state = state;
            Ok(())
        })
    }

    /// Changes the name; durable when it returns.
    pub fn rename(&self, name: &str) -> Result<(), PoolError> {
        self.update(|label| {
            label.pool_name = name.to_owned();
            Ok(())
        })
    }

    /// Whether [`add_device`](Self::add_device) would take a device of this size to a tier that there is, behind so many others,
    /// whatever it holds now; nothing is changed.
    ///
    /// # Errors
    /// Those of `add_device`.
    pub fn check_joining(&self, path: &str, size_bytes: u64, others: u16) -> Result<(), PoolError> {
        self.check_writable()?;
        self.check_place(&self.label.read(), path, others)?;
        check_size(path, size_bytes, self.segment_bytes)
    }

    /// Whether [`add_device`](Self::add_device) would make one more tier.
    ///
    /// # Errors
    /// `Invalid` if there are as many as there can be.
    pub fn check_new_tier(&self) -> Result<(), PoolError> {
        has_tier_left(&self.label.read())
    }

    /// Whether there is a place for one more device in a label, behind so many others, and this is none of the pool.
    fn check_place(&self, label: &Label, path: &str, others: u16) -> Result<(), PoolError> {
        let is_last = label
            .next_number
            .checked_add(others)
            .is_none_or(|next| next == u16::MAX);
        if label.members.len() + usize::from(others) >= MEMBERS_MAX || is_last {
            return Err(PoolError::Invalid(format!(
                "a pool has at most {MEMBERS_MAX} devices"
            )));
        }
        if self.open.read().iter().any(|other| other.device.path() == path) {
            return Err(PoolError::Invalid(format!("{path} is part of the pool already")));
        }
        Ok(())
    }

    /// Adds a device; returns its number. Refuses one that belongs to a pool or holds something else, unless `force`.
    pub fn add_device(
        &self,
        device: Arc<dyn Device>,
        place: DeviceAdd,
        force: bool,
        randomness: &dyn Randomness,
    ) -> Result<u16, PoolError> {
        self.check_writable()?;
        let updating = self.updating.lock();
        check_unused(device.as_ref(), force)?;
        let mut label = self.next_label();
        self.check_place(&label, &device.path(), 0)?;
        let open = self.open.read().clone();
        let tier = match place {
            DeviceAdd::Tier(name) => label
                .tiers
                .iter()
                .position(|tier| tier.name == name)
                .ok_or_else(|| no_tier(&name))?,
            DeviceAdd::NewTier { position, settings } => {
                let position = usize::from(position).min(label.tiers.len());
                has_tier_left(&label)?;
                label.tiers.insert(position, settings);
                for member in label
                    .members
                    .iter_mut()
                    .filter(|member| usize::from(member.tier) >= position)
                {
                    member.tier += 1;
                }
                position
            }
        } as u8;
        let number = label.next_number;
        label.next_number += 1;
        let mut member = new_member(device.as_ref(), number, tier, self.segment_bytes, randomness)?;
        let segments = segment_count(member.size_bytes, self.segment_bytes);
        // Where it joins others that keep several copies, content may wait for it that had no second place.
        let has_others = label.members.iter().any(|other| other.tier == tier);
        if has_others && label.tiers[usize::from(tier)].copies > 1 {
            member.presence = Presence::Behind;
        }
        label.members.push(member);
        // The device whose label this was may have left.
        label.number = number;
        label
            .encode()
            .map_err(|error| PoolError::Invalid(error.to_string()))?;
        let joined = Arc::new(OpenDevice::new(number, tier, segments, device));
        wipe_ends(&joined)?;
        let mut devices = open.to_vec();
        devices.push(joined);
        self.relabel(label, devices)?;
        self.allocator.lock().add(number, tier, segments);
        drop(updating);
        // Two devices where there are two: a pool that had one gets its second root holder now.
        match self.repeat_root(None) {
            // Without a readable root there is nothing to hold twice.
            Ok(()) | Err(PoolError::NoRoot(_)) => Ok(number),
            Err(error) => Err(error),
        }
    }

    /// Adds a device to the tier of `old`, to take its place: nothing new is put on `old` any more. The floors above
    /// move what is on it and then call [`Self::remove_device`] (at once, if it is missing). Returns the new number.
    pub fn replace_device(
        &self,
        old: u16,
        device: Arc<dyn Device>,
        force: bool,
        randomness: &dyn Randomness,
    ) -> Result<u16, PoolError> {
        let tier = {
            let label = self.label.read();
            let member = label.member(old).ok_or(PoolError::NoDevice {
                number: old,
                state: "not part of it",
            })?;
            label.tiers[usize::from(member.tier)].name.clone()
        };
        let number = self.add_device(device, DeviceAdd::Tier(tier), force, randomness)?;
        match self.set_draining(old, true) {
            Ok(()) | Err(PoolError::NoDevice { .. }) => Ok(number),
            Err(error) => Err(error),
        }
    }

    /// Takes a device without claimed segments out of the pool; its labels and roots are wiped, and the rest of both ends, so
    /// that it counts as empty. A missing device
    /// (see [`crate::OpenOptions::degraded`]) is struck from the list.
    pub fn remove_device(&self, number: u16) -> Result<(), PoolError> {
        self.take_out(number, false)
    }

    /// As [`Self::remove_device`], also with segments in use: what is in them is given up.
    pub fn abandon_device(&self, number: u16) -> Result<(), PoolError> {
        self.take_out(number, true)
    }

    fn take_out(&self, number: u16, abandoned: bool) -> Result<(), PoolError> {
        self.check_writable()?;
        let _updating = self.updating.lock();
        let mut label = self.next_label();
        if label.member(number).is_none() {
            return Err(PoolError::NoDevice {
                number,
                state: "not part of it",
            });
        }
        let open = self.open.read().clone();
        let leaving = open.iter().find(|device| device.number == number).cloned();
        let staying: Vec<_> = open
            .iter()
            .filter(|device| device.number != number)
            .cloned()
            .collect();
        if staying.is_empty() {
            return Err(PoolError::Invalid(
                "the last device of a pool cannot be removed; destroy the pool".into(),
            ));
        }
        label.members.retain(|member| member.number != number);
        if let Some(leaving) = &leaving {
            // Checked and closed for new segments in one step.
            let before = leaving.draining.swap(true, Ordering::Relaxed);
            let mut allocator = self.allocator.lock();
            let counts = allocator.counts(number);
            if counts.free != counts.total && !abandoned {
                let segments = (counts.total - counts.free) as u32;
                leaving.draining.store(before, Ordering::Relaxed);
                return Err(PoolError::DeviceInUse {
                    path: leaving.device.path(),
                    segments,
                });
            }
            allocator.remove(number);
        }
        let done = self.leave(number, label, staying);
        match (&leaving, done) {
            (Some(leaving), Err(error)) => {
                let segments = leaving.segments.load(Ordering::Relaxed);
                let tier = leaving.tier.load(Ordering::Relaxed);
                self.allocator.lock().add(number, tier, segments);
                leaving.draining.store(false, Ordering::Relaxed);
                Err(error)
            }
            (Some(leaving), Ok(())) => {
                if let Err(error) = wipe_ends(leaving) {
                    tracing::warn!(%error, "the removed device could not be wiped; the pool no longer knows it");
                }
                Ok(())
            }
            (None, done) => done,
        }
    }

    /// Takes a tier without devices out of the order; the slower ones move up by one. Returns where it was.
    pub fn remove_tier(&self, name: &str) -> Result<u8, PoolError> {
        let mut removed = 0;
        self.update(|label| {
            let at = label
                .tiers
                .iter()
                .position(|tier| tier.name == name)
                .ok_or_else(|| no_tier(name))?;
            if label.members.iter().any(|member| usize::from(member.tier) == at) {
                return Err(PoolError::Invalid(format!(
                    "tier '{name}' still has devices; remove them first"
                )));
            }
            label.tiers.remove(at);
            for member in &mut label.members {
                member.tier -= u8::from(usize::from(member.tier) > at);
            }
            removed = at as u8;
            Ok(())
        })?;
        Ok(removed)
    }

    /// The root moves to the devices that stay, then the labels forget the one that leaves.
    fn leave(&self, number: u16, label: Label, staying: Vec<Arc<OpenDevice>>) -> Result<(), PoolError> {
        self.repeat_root(Some(number))?;
        self.relabel(label, staying).map(drop)
    }

    /// Uses what a device's backing has grown by; returns the new number of segments.
    pub fn resize_device(&self, number: u16) -> Result<u32, PoolError> {
        self.check_writable()?;
        let _updating = self.updating.lock();
        let device = self.device(number)?;
        let size_bytes = device.device.refresh_size()?;
        let mut label = self.next_label();
        let segment_bytes = self.segment_bytes;
        let Some(member) = label.members.iter_mut().find(|member| member.number == number) else {
            return Err(PoolError::NoDevice {
                number,
                state: "not part of it",
            });
        };
        let segments = segment_count(size_bytes, segment_bytes);
        if size_bytes <= member.size_bytes {
            return Ok(device.segments.load(Ordering::Relaxed));
        }
        member.size_bytes = size_bytes;
        let open = self.open.read().to_vec();
        self.relabel(label, open)?;
        device.segments.store(segments, Ordering::Release);
        self.allocator.lock().grow(number, segments);
        Ok(segments)
    }

    /// What a device would have if it were cut off at `size_bytes`: the size itself, in whole blocks, and segments.
    ///
    /// # Errors
    /// `TooSmall`, and `Invalid` if that is not smaller than it is.
    pub fn measure_shrunk(&self, number: u16, size_bytes: u64) -> Result<(u64, u32), PoolError> {
        let device = self.device(number)?;
        let label = self.label.read();
        let has = label.member(number).map_or(0, |member| member.size_bytes);
        let size_bytes = size_bytes / 4096 * 4096;
        if size_bytes >= has {
            return Err(PoolError::Invalid(format!(
                "{} has {has} bytes, which is not more than {size_bytes}",
                device.device.path()
            )));
        }
        let wanted = SEGMENT_AREA_OFFSET
            + u64::from(SEGMENTS_MIN) * u64::from(self.segment_bytes)
            + crate::LABEL_BYTES as u64;
        if size_bytes < wanted {
            return Err(PoolError::TooSmall {
                path: device.device.path(),
                has: size_bytes,
                wanted,
            });
        }
        Ok((size_bytes, segment_count(size_bytes, self.segment_bytes)))
    }

    /// Segments of a device of this size.
    pub fn segments_in(&self, size_bytes: u64) -> u32 {
        segment_count(size_bytes, self.segment_bytes)
    }

    /// Takes no more segments of a device from this index on, or (`None`) all again. Not kept in the labels: whoever
    /// shrinks says so again after opening.
    pub fn limit_device(&self, number: u16, segments: Option<u32>) {
        self.allocator.lock().set_limit(number, segments);
    }

    /// How many of these segments are in use, and how many free segments the device has before them.
    pub fn usage_of(&self, range: SegmentRange) -> (u32, u32) {
        let allocator = self.allocator.lock();
        let claimed = allocator.claimed_from(range.device, range.from);
        let before = allocator.claimed_from(range.device, 0) - claimed;
        (claimed, range.from.saturating_sub(before))
    }

    /// Cuts the end off a device on which nothing is in use any more: the labels first, then the backing, if it can be
    /// cut. May be repeated after it failed or was interrupted.
    ///
    /// # Errors
    /// `DeviceInUse`, or what the devices say. The device may be smaller then, and its backing not be cut.
    pub fn shrink_device(&self, number: u16, size_bytes: u64) -> Result<(), PoolError> {
        self.check_writable()?;
        let _updating = self.updating.lock();
        let device = self.device(number)?;
        let segments = segment_count(size_bytes, self.segment_bytes);
        let mut label = self.next_label();
        let Some(member) = label.members.iter_mut().find(|member| member.number == number) else {
            return Err(PoolError::NoDevice {
                number,
                state: "not part of it",
            });
        };
        let before = member.size_bytes;
        member.size_bytes = before.min(size_bytes);
        {
            // Checked and closed for new segments in one step.
            let mut allocator = self.allocator.lock();
            let claimed = allocator.claimed_from(number, segments);
            if claimed > 0 {
                return Err(PoolError::DeviceInUse {
                    path: device.device.path(),
                    segments: claimed,
                });
            }
            allocator.set_limit(number, Some(segments));
        }
        let open = self.open.read().to_vec();
        let everywhere = self.relabel(label, open)?;
        device.segments.fetch_min(segments, Ordering::AcqRel);
        self.allocator.lock().shrink(number, segments);
        if !everywhere {
            // A pool that opens by the label before would take the device for one that was cut short.
            return Err(PoolError::Invalid(format!(
                "{} is not cut off yet, since a device of the pool did not take its new label",
                device.device.path()
            )));
        }
        if !device.device.truncate(size_bytes)? {
            // What is left of the label at the old end must not be taken for one later.
            let end = end_label_offset(before.max(device.device.size_bytes()));
            let zeroes = AlignedBuffer::zeroed(crate::LABEL_BYTES);
            if end >= size_bytes
                && let Err(error) = device.write_front(end, &zeroes).and_then(|()| device.flush())
            {
                tracing::warn!(%error, "the label at the old end of a device could not be wiped");
            }
        }
        Ok(())
    }
}

fn has_tier_left(label: &Label) -> Result<(), PoolError> {
    match label.tiers.len() >= TIERS_MAX {
        true => Err(PoolError::Invalid(format!(
            "a pool has at most {TIERS_MAX} tiers"
        ))),
        false => Ok(()),
    }
}

fn no_tier(name: &str) -> PoolError {
    PoolError::Invalid(format!(
        "the pool has no tier called '{name}'; 'terrace tier list' shows them"
    ))
}
