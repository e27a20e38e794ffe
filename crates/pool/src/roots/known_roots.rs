//! `KnownRoots`: which devices hold the root, in which slot, and its newest payload.
//!
//! Invariant: the slot of a device that is written next is never the one with its newest valid root.

use std::sync::Arc;

use crate::{
    PoolError, PoolId,
    devices::OpenDevice,
    ondisk::{NewerRoot, read_root_slots},
};

/// What is known of the roots.
#[derive(Debug, Default)]
pub(crate) struct KnownRoots {
    /// The highest generation seen or tried.
    pub(super) generation: u64,
    /// The newest root that is durable.
    pub(super) newest: Option<Vec<u8>>,
    /// Per device: the slot and the generation of its newest valid root.
    pub(super) slots: Vec<(u16, usize, u64)>,
    /// When the pool was opened: the highest generation that stood in the other slot of a device, of those that were not away.
    pub(super) before: Option<u64>,
    /// Devices on which only one copy of a slot holds their newest root: a power cut came between the two.
    pub(super) halves: Vec<u16>,
    /// The roots of devices that were away.
    pub(super) past: Vec<(u16, Vec<u8>)>,
    /// A device that was away has a newer root than the one that counts.
    pub(super) jumps: bool,
    /// There are damaged slots and no valid one.
    pub(super) lost: bool,
    /// The version of the root that counts, where a newer program wrote it.
    pub(super) newer: Option<u32>,
    /// Copies of slots that may hold a newer root than the newest that could be read: device, slot, offset.
    pub(super) unsure: Vec<(u16, usize, u64)>,
}

/// Where the newest root of each device was at some time, and the highest generation then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slots(Vec<(u16, usize, u64)>, u64);

impl Slots {
    /// The slot and the generation of a device's newest valid root.
    pub(crate) fn of(&self, number: u16) -> Option<(usize, u64)> {
        slot_of(&self.0, number)
    }
}

fn slot_of(slots: &[(u16, usize, u64)], number: u16) -> Option<(usize, u64)> {
    let found = slots.iter().find(|(device, ..)| *device == number);
    found.map(|(_, slot, generation)| (*slot, *generation))
}

impl KnownRoots {
    /// Reads the slots of all devices; the highest generation wins. Of those that were away (`returned`) only where no
    /// other has a root: theirs are of the past.
    pub(crate) fn load(devices: &[Arc<OpenDevice>], pool: &PoolId, returned: &[u16]) -> Self {
        let mut roots = Self::default();
        let mut of_the_past: Option<(u64, Vec<u8>)> = None;
        let (mut newer, mut newer_of_the_past): (Option<NewerRoot>, Option<NewerRoot>) = (None, None);
        for device in devices {
            let slots = read_root_slots(device.raw(), pool);
            let unsure = slots.unsure.into_iter();
            let unsure = unsure.map(|(slot, offset)| (device.number, slot, offset));
            roots.unsure.extend(unsure);
            let newer = match returned.contains(&device.number) {
                true => &mut newer_of_the_past,
                false => &mut newer,
            };
            *newer = (*newer).max(slots.newer);
            if !returned.contains(&device.number) {
                roots.before = roots.before.max(slots.older);
            }
            if let Some((slot, root)) = slots.newest {
                roots.slots.push((device.number, slot, root.generation));
                if !slots.whole {
                    roots.halves.push(device.number);
                }
                if returned.contains(&device.number) {
                    roots.past.push((device.number, root.payload.clone()));
                    if of_the_past
                        .as_ref()
                        .is_none_or(|(generation, _)| root.generation > *generation)
                    {
                        of_the_past = Some((root.generation, root.payload));
                    }
                } else if root.generation > roots.generation || roots.newest.is_none() {
                    roots.generation = root.generation;
                    roots.newest = Some(root.payload);
                }
            }
        }
        // Those of devices that were away count as little as their others.
        let newer = newer.or(newer_of_the_past.filter(|_| roots.newest.is_none()));
        let counts = |newer: &NewerRoot| newer.generation > roots.generation || roots.newest.is_none();
        roots.newer = newer.filter(counts).map(|newer| newer.version);
        if let Some((generation, payload)) = of_the_past {
            if generation > roots.generation && roots.newest.is_some() {
                // Whatever came there beside the others must not win later.
                roots.jumps = true;
            }
            roots.generation = roots.generation.max(generation);
            roots.newest.get_or_insert(payload);
        }
        roots.lost = !roots.unsure.is_empty() && roots.newest.is_none();
        roots
    }

    /// Of these devices, all of which are to hold roots, those that lack one that was complete. The slots of a device are written in
    /// turn, and in none of them before the root that came before is on every device that takes it: so whatever comes between
    /// two roots, a device has the older one of any other at least. One that has not is a copy that was made before, or lost
    /// what it said was durable, or refused that root. Nothing is known of one without any, and of one of which not all could be read.
    pub(crate) fn left_behind(&self, holders: &[u16]) -> Vec<u16> {
        let is_unsure = |number: u16| self.unsure.iter().any(|(device, ..)| *device == number);
        let lacks = |number: &&u16| {
            let newest = self.slot_of(**number).map(|(_, newest)| newest);
            newest.is_some() && newest < self.before && !is_unsure(**number)
        };
        holders.iter().filter(lacks).copied().collect()
    }

    /// The slot to be written next on a device: never the one with its newest valid root.
    pub(super) fn next_slot(&self, number: u16) -> usize {
        self.slot_of(number).map_or(0, |(slot, _)| 1 - slot)
    }

    /// Where the newest root of each device is now.
    pub(crate) fn slots(&self) -> Slots {
        Slots(self.slots.clone(), self.generation)
    }

    /// The slot and the generation of a device's newest valid root.
    pub(super) fn slot_of(&self, number: u16) -> Option<(usize, u64)> {
        slot_of(&self.slots, number)
    }

    pub(super) fn set_slot(&mut self, number: u16, slot: usize) {
        self.unsure
            .retain(|(device, unsure, _)| (*device, *unsure) != (number, slot));
        self.halves.retain(|device| *device != number);
        self.slots.retain(|(device, ..)| *device != number);
        self.slots.push((number, slot, self.generation));
    }

    pub(super) fn holds_newest(&self, number: u16) -> bool {
        self.slots.contains(&(number, 0, self.generation))
            || self.slots.contains(&(number, 1, self.generation))
    }

    pub(super) fn holds_newest_whole(&self, number: u16) -> bool {
        self.holds_newest(number) && !self.halves.contains(&number)
    }

    /// A device has no root any more.
    pub(super) fn forget(&mut self, number: u16) {
        self.slots.retain(|(device, ..)| *device != number);
        self.halves.retain(|device| *device != number);
        self.unsure.retain(|(device, ..)| *device != number);
    }

    /// Whether the newest root can be used.
    pub(super) fn check(&self, pool: &str) -> Result<(), PoolError> {
        let pool = || pool.to_owned();
        match self.newer {
            Some(version) => Err(PoolError::NewerRoot {
                pool: pool(),
                version,
            }),
            None if self.lost => Err(PoolError::NoRoot(pool())),
            None => Ok(()),
        }
    }
}
