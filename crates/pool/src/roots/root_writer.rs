//! `Roots`: the root record of an open pool: read, written, and carried to devices that came back.
//!
//! Invariants: one root is written at a time; it counts once it is on as many devices as it must be; a device that holds none
//! of the newest roots any more shows none at all, or one that later openings know to be of the past.

use std::sync::Arc;

use terrace_device::{AlignedBuffer, DEVICE_BLOCK_BYTES};
use terrace_sync::{Mutex, MutexGuard, rank};

use super::known_roots::{KnownRoots, Slots};
use crate::{
    DeviceState, PoolError, PoolId,
    devices::{Members, Membership, OpenDevice},
    ondisk::{ROOT_BYTES_MAX, ROOT_OFFSETS, encode_root},
};

/// Devices that a root is written to.
pub(crate) const HOLDERS_MAX: usize = 4;
/// How far the generation jumps over roots that may be there but could not be read, or are on a device that is not there.
const UNREAD_GENERATIONS: u64 = 1 << 16;

/// See the module.
pub(crate) struct Roots {
    members: Arc<Members>,
    known: Mutex<KnownRoots, rank::pool::Roots>,
}

/// The roots while nobody else writes one.
pub(crate) struct LockedRoots<'a> {
    members: &'a Members,
    known: MutexGuard<'a, KnownRoots, rank::pool::Roots>,
}

impl Roots {
    pub(crate) fn new(members: Arc<Members>, known: KnownRoots) -> Self {
        Self {
            members,
            known: Mutex::new(known),
        }
    }

    /// The payload of the newest valid root; see [`Pool::read_root`](crate::Pool::read_root).
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>, PoolError> {
        let roots = self.lock();
        roots.check()?;
        Ok(roots.known.newest.clone())
    }

    /// The newest roots that devices have which were away until this opening, each with the number of the device.
    pub(crate) fn past(&self) -> Vec<(u16, Vec<u8>)> {
        self.known.lock().past.clone()
    }

    /// Where the newest root of each device is now.
    pub(crate) fn slots(&self) -> Slots {
        self.known.lock().slots()
    }

    /// Waits until no root is being written, and keeps others from it.
    pub(crate) fn lock(&self) -> LockedRoots<'_> {
        LockedRoots {
            members: &self.members,
            known: self.known.lock(),
        }
    }

    /// Whether somebody writes a root, or keeps others from it.
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.known.try_lock().is_none()
    }

    /// Writes a root; durable when it returns. See [`Pool::write_root`](crate::Pool::write_root).
    pub(crate) fn write(&self, payload: &[u8]) -> Result<(), PoolError> {
        self.members.check_writable()?;
        if payload.len() > ROOT_BYTES_MAX {
            let length = payload.len();
            return Err(PoolError::Invalid(format!(
                "a root of {length} bytes; at most {ROOT_BYTES_MAX} fit"
            )));
        }
        self.lock().write(payload, &[])
    }

    /// Writes the newest root again, if there is one, passing over a device that is being removed. Read and written in
    /// one: a newer root that came in between would be replaced by one whose segments are given back already.
    pub(crate) fn repeat(&self, except: Option<u16>) -> Result<(), PoolError> {
        self.members.check_writable()?;
        let mut roots = self.lock();
        roots.check()?;
        roots.repeat(except.as_slice())
    }

    /// Makes these devices hold the newest root, also beyond those that roots are written to; returns those that do.
    pub(crate) fn carry_to(&self, devices: &[u16]) -> Result<Vec<u16>, PoolError> {
        let mut roots = self.lock();
        let Some(payload) = roots.known.newest.clone() else {
            return Ok(devices.to_vec());
        };
        if !devices.iter().all(|number| roots.known.holds_newest(*number)) {
            // With a generation of its own: one that failed before may lie somewhere under the last one.
            roots.write(&payload, &[])?;
        }
        let bytes = roots.encode(&payload);
        let mut holding = Vec::new();
        for number in devices {
            if !roots.known.holds_newest(*number) {
                let (device, slot) = (self.members.device(*number)?, roots.known.next_slot(*number));
                if let Err(error) = write_slot(&device, slot, &bytes).and_then(|()| device.flush()) {
                    tracing::warn!(device = number, %error, "it did not take the root");
                    continue;
                }
                roots.known.set_slot(*number, slot);
            }
            holding.push(*number);
        }
        Ok(holding)
    }

    /// Makes the newest root the one that every later opening finds; see [`Pool::settle_roots`](crate::Pool::settle_roots).
    pub(crate) fn settle(&self) -> Result<(), PoolError> {
        let (holders, missing) = {
            let members = self.members.read();
            let missing = members.label().members.len() > members.open().len();
            (root_holders(&members, &[]), missing)
        };
        {
            let mut known = self.known.lock();
            if known.newest.is_none() {
                return Ok(());
            }
            if missing || std::mem::take(&mut known.jumps) || !known.unsure.is_empty() {
                known.generation += UNREAD_GENERATIONS;
            } else if holders
                .iter()
                .all(|device| known.holds_newest_whole(device.number))
            {
                return Ok(());
            }
        }
        self.repeat(None)?;
        self.overwrite_unsure()?;
        self.known.lock().past.clear();
        Ok(())
    }

    /// Writes the newest root over what could not be read, where that has not happened yet. A device that refuses keeps
    /// what it has: the generation of that is lower than what others hold by now.
    fn overwrite_unsure(&self) -> Result<(), PoolError> {
        let mut roots = self.lock();
        let Some(payload) = roots.known.newest.clone() else {
            return Ok(());
        };
        let bytes = roots.encode(&payload);
        // Not the other copy of the slot: it may be the only sound root of its device.
        for (number, slot, offset) in std::mem::take(&mut roots.known.unsure) {
            let device = self.members.device(number)?;
            let written = device.write_front(offset, &bytes);
            match written.and_then(|()| device.flush()) {
                Ok(()) if roots.known.holds_newest(number) => {}
                Ok(()) => roots.known.set_slot(number, slot),
                Err(error) => tracing::warn!(%error, slot, "a damaged root slot could not be written anew"),
            }
        }
        Ok(())
    }

    /// The devices that hold the root now.
    pub(crate) fn holders(&self) -> Vec<Arc<OpenDevice>> {
        root_holders(&self.members.read(), &[])
    }
}

impl LockedRoots<'_> {
    fn check(&self) -> Result<(), PoolError> {
        self.known.check(&self.members.read().label().pool_name)
    }

    /// The bytes of a slot with the generation that was tried last.
    fn encode(&self, payload: &[u8]) -> AlignedBuffer {
        let pool: PoolId = self.members.read().label().pool_id;
        encode_root(&pool, self.known.generation, payload)
    }

    /// Where the newest root of each device is now.
    pub(crate) fn slots(&self) -> Slots {
        self.known.slots()
    }

    /// Writes the newest root again, if there is one, but not on these devices.
    pub(crate) fn repeat(&mut self, except: &[u16]) -> Result<(), PoolError> {
        match self.known.newest.clone() {
            Some(payload) => self.write(&payload, except),
            None => Ok(()),
        }
    }

    fn write(&mut self, payload: &[u8], except: &[u16]) -> Result<(), PoolError> {
        let (holders, of_the_past) = {
            let members = self.members.read();
            let mut of_the_past = members.of_the_past();
            let can_count = |number: u16| !except.contains(&number) && !of_the_past.contains(&number);
            if !members.open().iter().any(|device| can_count(device.number)) {
                // Where all lack something there is nothing better.
                of_the_past.clear();
            }
            (root_holders(&members, except), of_the_past)
        };
        self.known.generation += 1;
        let bytes = self.encode(payload);
        let known = &mut *self.known;
        let mut failure = None;
        let counts = |device: &&Arc<OpenDevice>| !of_the_past.contains(&device.number);
        let wanted = holders.iter().filter(counts).count().min(2);
        let mut holding = 0;
        // Those first that lack the last one, by a crash or because they refused it: as long as the others have it in a slot that is
        // not the older one, these do not look like devices that missed it (`left_behind`).
        let generation_of = |device: &Arc<OpenDevice>| known.slot_of(device.number).map(|(_, newest)| newest);
        let newest = holders.iter().filter_map(generation_of).max();
        let lags = |device: &&Arc<OpenDevice>| generation_of(device) < newest;
        let (lagging, current): (Vec<_>, Vec<_>) = holders.iter().partition(lags);
        for devices in [lagging, current] {
            let mut written = Vec::new();
            for device in devices {
                let slot = known.next_slot(device.number);
                match write_slot(device, slot, &bytes) {
                    Ok(()) => written.push((device.clone(), slot)),
                    Err(error) => failure = Some(error),
                }
            }
            for (device, slot) in written {
                match device.flush() {
                    Ok(()) => {
                        known.set_slot(device.number, slot);
                        holding += usize::from(counts(&&device));
                    }
                    Err(error) => failure = Some(error),
                }
            }
        }
        if holding == 0 || holding < wanted {
            return Err(failure.unwrap_or_else(|| PoolError::Invalid("no device can hold the root".into())));
        }
        known.newest = Some(payload.to_vec());
        known.lost = false;
        self.erase_outlived(&holders, except);
        Ok(())
    }

    /// Erases the roots of devices that held them until faster ones came: opened without these, they would show what the pool was
    /// then, out of segments that were written over since. Without any root they say that others have it. What fails here is
    /// tried again with the next root; those of devices that were away do not count, but tell where their entries of the log lie.
    fn erase_outlived(&mut self, holders: &[Arc<OpenDevice>], except: &[u16]) {
        let (open, of_the_past) = (self.members.open(), self.members.read().of_the_past());
        let outlived = open.iter().filter(|device| {
            let number = device.number;
            let holds = holders.iter().any(|holder| holder.number == number);
            let is_current = device.state() == DeviceState::Online && !of_the_past.contains(&number);
            is_current && !holds && !except.contains(&number)
        });
        for device in outlived {
            let Some((newest, _)) = self.known.slot_of(device.number) else {
                continue;
            };
            // The older one first: it must not become the newest.
            let erased = erase_slot(device, 1 - newest).and_then(|()| erase_slot(device, newest));
            match erased {
                Ok(()) => self.known.forget(device.number),
                Err(error) => tracing::warn!(%error, "an old root could not be erased"),
            }
        }
    }
}

/// The devices that hold the root: working ones only if there are any, those of the past last, fastest tiers first. Where all
/// that work are of the past, those that fail and are not hold it too: it is by their labels and roots that the next opening goes.
fn root_holders(members: &Membership, except: &[u16]) -> Vec<Arc<OpenDevice>> {
    let of_the_past = members.of_the_past();
    let mut holders: Vec<_> = members.open().to_vec();
    holders.retain(|device| !except.contains(&device.number));
    let works = |device: &Arc<OpenDevice>| device.state() == DeviceState::Online;
    let counts = |device: &Arc<OpenDevice>| !of_the_past.contains(&device.number);
    if holders.iter().any(|device| works(device) && counts(device)) {
        holders.retain(works);
    } else if holders.iter().any(works) {
        holders.retain(|device| works(device) || counts(device));
    }
    holders.sort_by_key(|device| {
        let last = of_the_past.contains(&device.number);
        (last, members.tier_of(device.number), device.number)
    });
    holders.truncate(HOLDERS_MAX);
    holders
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
