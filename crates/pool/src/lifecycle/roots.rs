//! The root record of an open pool: which devices hold it, in which slot, and its newest payload.

use std::sync::{Arc, atomic::Ordering};

use terrace_device::{AlignedBuffer, DEVICE_BLOCK_BYTES};

use crate::{
    DeviceState, Pool, PoolError, PoolId,
    devices::OpenDevice,
    ondisk::{NewerRoot, ROOT_BYTES_MAX, ROOT_OFFSETS, encode_root, read_root_slots},
};

/// Devices that a root is written to.
pub(crate) const HOLDERS_MAX: usize = 4;
/// How far the generation jumps over roots that may be there but could not be read, or are on a device that is not there.
const UNREAD_GENERATIONS: u64 = 1 << 16;

/// What is known of the roots; behind a mutex that is held while one is written.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    /// The highest generation seen or tried.
    generation: u64,
    /// The newest root that is durable.
    newest: Option<Vec<u8>>,
    /// Per device: the slot and the generation of its newest valid root.
    slots: Vec<(u16, usize, u64)>,
    /// When the pool was opened: the highest generation that stood in the other slot of a device, of those that were not away.
    before: Option<u64>,
    /// Devices on which only one copy of a slot holds their newest root: a power cut came between the two.
    halves: Vec<u16>,
    /// The roots of devices that were away.
    past: Vec<(u16, Vec<u8>)>,
    /// A device that was away has a newer root than the one that counts.
    jumps: bool,
    /// There are damaged slots and no valid one.
    lost: bool,
    /// The version of the root that counts, where a newer program wrote it.
    newer: Option<u32>,
    /// Copies of slots that may hold a newer root than the newest that could be read: device, slot, offset.
    unsure: Vec<(u16, usize, u64)>,
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

impl Roots {
    /// Reads the slots of all devices; the highest generation wins. Of those that were away (`returned`) only where no
    /// other has a root: theirs are of the past.
    pub(crate) fn load(devices: &[Arc<OpenDevice>], pool: &PoolId, returned: &[u16]) -> Self {
        let mut roots = Self::default();
        let mut of_the_past: Option<(u64, Vec<u8>)> = None;
        let (mut newer, mut newer_of_the_past): (Option<NewerRoot>, Option<NewerRoot>) = (None, None);
        for device in devices {
            let slots = read_root_slots(device.device.as_ref(), pool);
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
    fn next_slot(&self, number: u16) -> usize {
        self.slot_of(number).map_or(0, |(slot, _)| 1 - slot)
    }

    /// Where the newest root of each device is now.
    pub(crate) fn slots(&self) -> Slots {
        Slots(self.slots.clone(), self.generation)
    }

    /// The slot and the generation of a device's newest valid root.
    fn slot_of(&self, number: u16) -> Option<(usize, u64)> {
        slot_of(&self.slots, number)
    }

    fn set_slot(&mut self, number: u16, slot: usize) {
        self.unsure
            .retain(|(device, unsure, _)| (*device, *unsure) != (number, slot));
        self.halves.retain(|device| *device != number);
        self.slots.retain(|(device, ..)| *device != number);
        self.slots.push((number, slot, self.generation));
    }

    fn holds_newest(&self, number: u16) -> bool {
        self.slots.contains(&(number, 0, self.generation))
            || self.slots.contains(&(number, 1, self.generation))
    }

    fn holds_newest_whole(&self, number: u16) -> bool {
        self.holds_newest(number) && !self.halves.contains(&number)
    }
}

impl Pool {
    /// The payload of the newest valid root; `None` if none was ever written. `NoRoot` when all are damaged, `NewerRoot`
    /// when a newer program wrote the newest one.
    pub fn read_root(&self) -> Result<Option<Vec<u8>>, PoolError> {
        let roots = self.roots.lock();
        self.check_root(&roots)?;
        Ok(roots.newest.clone())
    }

    /// Whether the newest root can be used.
    fn check_root(&self, roots: &Roots) -> Result<(), PoolError> {
        match roots.newer {
            Some(version) => Err(PoolError::NewerRoot {
                pool: self.name(),
                version,
            }),
            None if roots.lost => Err(PoolError::NoRoot(self.name())),
            None => Ok(()),
        }
    }

    /// The newest roots that devices have which were away until this opening, each with the number of the device.
    pub fn past_roots(&self) -> Vec<(u16, Vec<u8>)> {
        self.roots.lock().past.clone()
    }

    /// Writes a root to up to four devices (fastest first) and flushes them: durable when it returns. What it refers
    /// to must be durable before. Fails when fewer than two devices took it, if the pool has two that work and lack nothing.
    pub fn write_root(&self, payload: &[u8]) -> Result<(), PoolError> {
        self.check_writable()?;
        if payload.len() > ROOT_BYTES_MAX {
            let length = payload.len();
            return Err(PoolError::Invalid(format!(
                "a root of {length} bytes; at most {ROOT_BYTES_MAX} fit"
            )));
        }
        self.write_root_locked(&mut self.roots.lock(), payload, &[])
    }

    /// Writes the newest root again, if there is one, passing over a device that is being removed. Read and written in
    /// one: a newer root that came in between would be replaced by one whose segments are given back already.
    pub(crate) fn repeat_root(&self, except: Option<u16>) -> Result<(), PoolError> {
        self.check_writable()?;
        let mut roots = self.roots.lock();
        self.check_root(&roots)?;
        self.repeat_root_locked(&mut roots, except.as_slice())
    }

    /// Writes the newest root into the other slots too, at the end of an opening: a copy of a device that was made before then has
    /// an older root than any slot of the others, by which the next opening tells it.
    ///
    /// # Errors
    /// As [`write_root`](Self::write_root); nothing relies on it.
    pub fn repeat_last_root(&self) -> Result<(), PoolError> {
        self.repeat_root(None)
    }

    /// The same by whoever holds the roots.
    pub(crate) fn repeat_root_locked(&self, roots: &mut Roots, except: &[u16]) -> Result<(), PoolError> {
        match roots.newest.clone() {
            Some(payload) => self.write_root_locked(roots, &payload, except),
            None => Ok(()),
        }
    }

    /// Makes these devices hold the newest root, also beyond those that roots are written to; returns those that do.
    pub(crate) fn carry_root_to(&self, devices: &[u16]) -> Result<Vec<u16>, PoolError> {
        let mut roots = self.roots.lock();
        let Some(payload) = roots.newest.clone() else {
            return Ok(devices.to_vec());
        };
        if !devices.iter().all(|number| roots.holds_newest(*number)) {
            // With a generation of its own: one that failed before may lie somewhere under the last one.
            self.write_root_locked(&mut roots, &payload, &[])?;
        }
        let bytes = encode_root(&self.id(), roots.generation, &payload);
        let mut holding = Vec::new();
        for number in devices {
            if !roots.holds_newest(*number) {
                let (device, slot) = (self.device(*number)?, roots.next_slot(*number));
                if let Err(error) = write_slot(&device, slot, &bytes).and_then(|()| device.flush()) {
                    tracing::warn!(device = number, %error, "it did not take the root");
                    continue;
                }
                roots.set_slot(*number, slot);
            }
            holding.push(*number);
        }
        Ok(holding)
    }

    fn write_root_locked(&self, roots: &mut Roots, payload: &[u8], except: &[u16]) -> Result<(), PoolError> {
        let holders = self.root_holders(except);
        let mut of_the_past = self.of_the_past();
        let can_count = |number: u16| !except.contains(&number) && !of_the_past.contains(&number);
        if !self.open.read().iter().any(|device| can_count(device.number)) {
            // Where all lack something there is nothing better.
            of_the_past.clear();
        }
        roots.generation += 1;
        let bytes = encode_root(&self.id(), roots.generation, payload);
        let mut failure = None;
        let counts = |device: &&Arc<OpenDevice>| !of_the_past.contains(&device.number);
        let wanted = holders.iter().filter(counts).count().min(2);
        let mut holding = 0;
        // Those first that lack the last one, by a crash or because they refused it: as long as the others have it in a slot that is
        // not the older one, these do not look like devices that missed it (`left_behind`).
        let generation_of = |device: &Arc<OpenDevice>| roots.slot_of(device.number).map(|(_, newest)| newest);
        let newest = holders.iter().filter_map(generation_of).max();
        let lags = |device: &&Arc<OpenDevice>| generation_of(device) < newest;
        let (lagging, current): (Vec<_>, Vec<_>) = holders.iter().partition(lags);
        for devices in [lagging, current] {
            let mut written = Vec::new();
            for device in devices {
                let slot = roots.next_slot(device.number);
                match write_slot(device, slot, &bytes) {
                    Ok(()) => written.push((device.clone(), slot)),
                    Err(error) => failure = Some(error),
                }
            }
            for (device, slot) in written {
                match device.flush() {
                    Ok(()) => {
                        roots.set_slot(device.number, slot);
                        holding += usize::from(counts(&&device));
                    }
                    Err(error) => failure = Some(error),
                }
            }
        }
        if holding == 0 || holding < wanted {
            return Err(failure.unwrap_or_else(|| PoolError::Invalid("no device can hold the root".into())));
        }
        roots.newest = Some(payload.to_vec());
        roots.lost = false;
        self.erase_outlived(roots, &holders, except);
        Ok(())
    }

    /// Erases the roots of devices that held them until faster ones came: opened without these, they would show what the pool was
    /// then, out of segments that were written over since. Without any root they say that others have it. What fails here is
    /// tried again with the next root; those of devices that were away do not count, but tell where their entries of the log lie.
    fn erase_outlived(&self, roots: &mut Roots, holders: &[Arc<OpenDevice>], except: &[u16]) {
        let of_the_past = self.of_the_past();
        let open = self.open.read().clone();
        let outlived = open.iter().filter(|device| {
            let number = device.number;
            let holds = holders.iter().any(|holder| holder.number == number);
            let is_current = device.state() == DeviceState::Online && !of_the_past.contains(&number);
            is_current && !holds && !except.contains(&number)
        });
        for device in outlived {
            let Some((_, newest, _)) = roots.slots.iter().find(|(number, ..)| *number == device.number)
            else {
                continue;
            };
            // The older one first: it must not become the newest.
            let erased = erase_slot(device, 1 - newest).and_then(|()| erase_slot(device, *newest));
            match erased {
                Ok(()) => {
                    let number = device.number;
                    roots.slots.retain(|(device, ..)| *device != number);
                    roots.halves.retain(|device| *device != number);
                    roots.unsure.retain(|(device, ..)| *device != number);
                }
                Err(error) => tracing::warn!(%error, "an old root could not be erased"),
            }
        }
    }

    /// Makes the root that [`read_root`](Self::read_root) gave the one that every later opening finds. To be called by
    /// whoever opened the pool, once that root proved to lead to a whole state, and before a segment is allocated: from
    /// then on a root that is older, or that could not be read, leads to segments that were written over.
    ///
    /// Before that, labels are written that say which devices are away, or came back: without them nothing is changed.
    ///
    /// Such another root would come back where a crash came between two devices, when the one that has the newest is
    /// lost; where it came between the two copies on a device, when the one that has the newest goes bad; or where a
    /// slot could not be read this time; or where a device that is not there has a newer one, and is taken back later.
    ///
    /// # Errors
    /// If no root can be written: nothing was changed then that an older or newer root relies on.
    pub fn settle_roots(&self) -> Result<(), PoolError> {
        self.settle_label()?;
        let holders = self.root_holders(&[]);
        let missing = self.label.read().members.len() > self.open.read().len();
        {
            let mut roots = self.roots.lock();
            if roots.newest.is_none() {
                return Ok(());
            }
            if missing || std::mem::take(&mut roots.jumps) || !roots.unsure.is_empty() {
                roots.generation += UNREAD_GENERATIONS;
            } else if holders
                .iter()
                .all(|device| roots.holds_newest_whole(device.number))
            {
                return Ok(());
            }
        }
        self.repeat_root(None)?;
        self.overwrite_unsure()?;
        self.roots.lock().past.clear();
        Ok(())
    }

    /// Writes the newest root over what could not be read, where that has not happened yet. A device that refuses keeps
    /// what it has: the generation of that is lower than what others hold by now.
    fn overwrite_unsure(&self) -> Result<(), PoolError> {
        let mut roots = self.roots.lock();
        let Some(payload) = roots.newest.clone() else {
            return Ok(());
        };
        let bytes = encode_root(&self.id(), roots.generation, &payload);
        // Not the other copy of the slot: it may be the only sound root of its device.
        for (number, slot, offset) in std::mem::take(&mut roots.unsure) {
            let device = self.device(number)?;
            let written = device.write_front(offset, &bytes);
            match written.and_then(|()| device.flush()) {
                Ok(()) if roots.holds_newest(number) => {}
                Ok(()) => roots.set_slot(number, slot),
                Err(error) => tracing::warn!(%error, slot, "a damaged root slot could not be written anew"),
            }
        }
        Ok(())
    }

    /// Open devices whose roots the next opening takes for those of the past, or will as soon as the labels say what they lack.
    pub(crate) fn of_the_past(&self) -> Vec<u16> {
        let lacking = self.lacking.lock().clone();
        let label = self.label.read();
        let absent = label.members.iter().filter(|member| member.is_absent());
        absent.map(|member| member.number).chain(lacking).collect()
    }

    /// The devices that hold the root: working ones only if there are any, those of the past last, fastest tiers first. Where all
    /// that work are of the past, those that fail and are not hold it too: it is by their labels and roots that the next opening goes.
    pub(crate) fn root_holders(&self, except: &[u16]) -> Vec<Arc<OpenDevice>> {
        let of_the_past = self.of_the_past();
        let open = self.open.read().clone();
        let mut holders: Vec<_> = open
            .iter()
            .filter(|device| !except.contains(&device.number))
            .cloned()
            .collect();
        let works = |device: &Arc<OpenDevice>| device.state() == DeviceState::Online;
        let counts = |device: &Arc<OpenDevice>| !of_the_past.contains(&device.number);
        if holders.iter().any(|device| works(device) && counts(device)) {
            holders.retain(works);
        } else if holders.iter().any(works) {
            holders.retain(|device| works(device) || counts(device));
        }
        holders.sort_by_key(|device| {
            let last = of_the_past.contains(&device.number);
            (last, device.tier.load(Ordering::Relaxed), device.number)
        });
        holders.truncate(HOLDERS_MAX);
        holders
    }
}

/// Empties both copies of a slot, durably.
fn erase_slot(device: &OpenDevice, slot: usize) -> Result<(), PoolError> {
    let zeroes = AlignedBuffer::zeroed(DEVICE_BLOCK_BYTES);
    for offset in ROOT_OFFSETS[slot] {
        device.write_front(offset, &zeroes)?;
    }
    device.flush()
}

/// Writes both copies of a slot. One that a device refuses is as one that cannot be read later: the other is enough.
fn write_slot(device: &OpenDevice, slot: usize, bytes: &[u8]) -> Result<(), PoolError> {
    let [first, second] = ROOT_OFFSETS[slot].map(|offset| device.write_front(offset, bytes));
    match (first, second) {
        (Err(error), Err(_)) => Err(error),
        (Err(error), Ok(())) | (Ok(()), Err(error)) => {
            tracing::warn!(%error, slot, "one of the two copies of a root could not be written");
            Ok(())
        }
        (Ok(()), Ok(())) => Ok(()),
    }
}
