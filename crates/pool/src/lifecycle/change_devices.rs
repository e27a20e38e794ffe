//! Devices join, leave, grow and shrink.
//!
//! Invariants: a change is visible in RAM only after the labels that say so are durable; changes happen one at a
//! time; a device joins before anything is put on it and leaves only when nothing is on it.

use std::sync::Arc;

use terrace_device::{AlignedBuffer, Device, Randomness};

use super::joining::{check_size, check_unused, new_member, wipe_ends};
use crate::{
    PoolError,
    devices::{Members, OpenDevice},
    labels::{
        Labels,
        edits::{find_tier, insert_tier},
    },
    ondisk::{
        LABEL_BYTES, Label, MEMBERS_MAX, Member, Presence, SEGMENT_AREA_OFFSET, SEGMENTS_MIN, TierSettings,
        end_label_offset, segment_count,
    },
    roots::Roots,
    space::FreeSpace,
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

/// What a change of the devices goes through: labels, then roots and space.
pub(crate) struct DeviceChanges<'a> {
    pub(crate) members: &'a Members,
    pub(crate) space: &'a FreeSpace,
    pub(crate) roots: &'a Roots,
    pub(crate) labels: &'a Labels,
}

impl DeviceChanges<'_> {
    /// Whether [`add`](Self::add) would take a device of this size to a tier that there is, behind so many others.
    pub(crate) fn check_joining(&self, path: &str, size_bytes: u64, others: u16) -> Result<(), PoolError> {
        self.members.check_writable()?;
        self.check_place(&self.members.label(), path, others)?;
        check_size(path, size_bytes, self.members.segment_bytes())
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
        if self.members.open().iter().any(|other| other.path() == path) {
            return Err(PoolError::Invalid(format!("{path} is part of the pool already")));
        }
        Ok(())
    }

    /// Adds a device; returns its number. Refuses one that belongs to a pool or holds something else, unless `force`.
    pub(crate) fn add(
        &self,
        device: Arc<dyn Device>,
        place: DeviceAdd,
        force: bool,
        randomness: &dyn Randomness,
    ) -> Result<u16, PoolError> {
        self.members.check_writable()?;
        let mut labels = self.labels.lock();
        check_unused(device.as_ref(), force)?;
        let mut label = labels.next();
        self.check_place(&label, &device.path(), 0)?;
        let tier = match place {
            DeviceAdd::Tier(name) => find_tier(&label, &name)?,
            DeviceAdd::NewTier { position, settings } => {
                insert_tier(&mut label, usize::from(position), settings)?
            }
        } as u8;
        let number = label.next_number;
        label.next_number += 1;
        let segment_bytes = self.members.segment_bytes();
        let mut member = new_member(device.as_ref(), number, tier, segment_bytes, randomness)?;
        let segments = segment_count(member.size_bytes, segment_bytes);
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
        let joined = Arc::new(OpenDevice::new(number, segments, device));
        wipe_ends(&joined)?;
        let mut devices = self.members.open().to_vec();
        devices.push(joined);
        labels.write(label, devices)?;
        self.space.add(number, segments);
        drop(labels);
        // Two devices where there are two: a pool that had one gets its second root holder now.
        match self.roots.repeat(None) {
            // Without a readable root there is nothing to hold twice.
            Ok(()) | Err(PoolError::NoRoot(_)) => Ok(number),
            Err(error) => Err(error),
        }
    }

    /// Adds a device to the tier of `old`, to take its place: nothing new is put on `old` any more.
    pub(crate) fn replace(
        &self,
        old: u16,
        device: Arc<dyn Device>,
        force: bool,
        randomness: &dyn Randomness,
    ) -> Result<u16, PoolError> {
        let mut label = self.members.label();
        let tier = usize::from(member_of(&mut label, old)?.tier);
        let place = DeviceAdd::Tier(label.tiers[tier].name.clone());
        let number = self.add(device, place, force, randomness)?;
        if let Ok(old) = self.members.device(old) {
            old.set_draining(true);
        }
        Ok(number)
    }

    /// Takes a device out of the pool, if nothing on it is in use or all the same (`abandoned`); wipes it.
    pub(crate) fn take_out(&self, number: u16, abandoned: bool) -> Result<(), PoolError> {
        self.members.check_writable()?;
        let mut labels = self.labels.lock();
        let mut label = labels.next();
        member_of(&mut label, number)?;
        let mut staying = self.members.open().to_vec();
        let leaving = staying.iter().position(|device| device.number == number);
        let leaving = leaving.map(|at| staying.remove(at));
        if staying.is_empty() {
            return Err(PoolError::Invalid(
                "the last device of a pool cannot be removed; destroy the pool".into(),
            ));
        }
        label.members.retain(|member| member.number != number);
        // The root moves to the devices that stay, then the labels forget the one that leaves.
        let forget = || {
            self.roots.repeat(Some(number))?;
            labels.write(label, staying).map(drop)
        };
        let Some(leaving) = leaving else { return forget() };
        // Checked and closed for new segments in one step.
        let before = leaving.set_draining(true);
        let taken_out = self.space.take_out(number, abandoned).map_err(|segments| {
            leaving.set_draining(before);
            PoolError::DeviceInUse {
                path: leaving.path(),
                segments,
            }
        })?;
        if let Err(error) = forget() {
            self.space.put_back(taken_out);
            leaving.set_draining(false);
            return Err(error);
        }
        if let Err(error) = wipe_ends(&leaving) {
            tracing::warn!(%error, "the removed device could not be wiped; the pool no longer knows it");
        }
        Ok(())
    }

    /// Uses what a device's backing has grown by; returns the new number of segments.
    pub(crate) fn resize(&self, number: u16) -> Result<u32, PoolError> {
        self.members.check_writable()?;
        let mut labels = self.labels.lock();
        let device = self.members.device(number)?;
        let size_bytes = device.raw().refresh_size()?;
        let mut label = labels.next();
        let member = member_of(&mut label, number)?;
        if size_bytes <= member.size_bytes {
            return Ok(device.segments());
        }
        member.size_bytes = size_bytes;
        labels.write(label, self.members.open().to_vec())?;
        let segments = segment_count(size_bytes, self.members.segment_bytes());
        device.set_segments(segments);
        self.space.grow(number, segments);
        Ok(segments)
    }

    /// What a device would have if it were cut off at `size_bytes`: the size itself, in whole blocks, and segments.
    pub(crate) fn measure_shrunk(&self, number: u16, size_bytes: u64) -> Result<(u64, u32), PoolError> {
        let device = self.members.device(number)?;
        let label = self.members.label();
        let has = label.member(number).map_or(0, |member| member.size_bytes);
        let size_bytes = size_bytes / 4096 * 4096;
        if size_bytes >= has {
            return Err(PoolError::Invalid(format!(
                "{} has {has} bytes, which is not more than {size_bytes}",
                device.path()
            )));
        }
        let segment_bytes = self.members.segment_bytes();
        let segments = u64::from(SEGMENTS_MIN) * u64::from(segment_bytes);
        let wanted = SEGMENT_AREA_OFFSET + segments + LABEL_BYTES as u64;
        if size_bytes < wanted {
            return Err(PoolError::TooSmall {
                path: device.path(),
                has: size_bytes,
                wanted,
            });
        }
        Ok((size_bytes, segment_count(size_bytes, segment_bytes)))
    }

    /// Cuts the end off a device on which nothing is in use any more: the labels first, then the backing, if it can be
    /// cut. May be repeated after it failed or was interrupted.
    pub(crate) fn shrink(&self, number: u16, size_bytes: u64) -> Result<(), PoolError> {
        self.members.check_writable()?;
        let mut labels = self.labels.lock();
        let device = self.members.device(number)?;
        let segments = segment_count(size_bytes, self.members.segment_bytes());
        let mut label = labels.next();
        let member = member_of(&mut label, number)?;
        let before = member.size_bytes;
        member.size_bytes = before.min(size_bytes);
        // Checked and closed for new segments in one step.
        let closed = self.space.close_end(number, segments);
        closed.map_err(|segments| PoolError::DeviceInUse {
            path: device.path(),
            segments,
        })?;
        let everywhere = labels.write(label, self.members.open().to_vec())?;
        device.set_segments(segments.min(device.segments()));
        self.space.shrink(number, segments);
        if !everywhere {
            // A pool that opens by the label before would take the device for one that was cut short.
            return Err(PoolError::Invalid(format!(
                "{} is not cut off yet, since a device of the pool did not take its new label",
                device.path()
            )));
        }
        if !device.raw().truncate(size_bytes)? {
            // What is left of the label at the old end must not be taken for one later.
            let end = end_label_offset(before.max(device.raw().size_bytes()));
            let zeroes = AlignedBuffer::zeroed(LABEL_BYTES);
            if end >= size_bytes
                && let Err(error) = device.write_front(end, &zeroes).and_then(|()| device.flush())
            {
                tracing::warn!(%error, "the label at the old end of a device could not be wiped");
            }
        }
        Ok(())
    }
}

fn member_of(label: &mut Label, number: u16) -> Result<&mut Member, PoolError> {
    let mut members = label.members.iter_mut();
    let member = members.find(|member| member.number == number);
    member.ok_or(PoolError::NoDevice {
        number,
        state: "not part of it",
    })
}
