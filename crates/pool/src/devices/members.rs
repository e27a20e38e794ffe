//! `Members`: the devices of a pool: what the labels in force say of them, which are there, and which lack something.
//!
//! Invariants: label and open devices change together, under one lock, and only after labels that say so are durable; the
//! open devices ascend by number, and each is a member; the lock is never held across I/O. Whoever reads, writes or flushes finds its
//! device without the lock, in the list as it was stored last: no request waits for a change of the labels, nor for a question about
//! the room that is answered beside one. A device that leaves is let go of without the lock.

use std::sync::Arc;

use arc_swap::ArcSwap;
use terrace_device::Stray;
use terrace_sync::{RwLock, RwLockReadGuard, rank};

use super::open_device::OpenDevice;
use crate::{
    DeviceState, PoolError,
    ondisk::{Label, Presence},
};

/// Whether a flush of several devices uses threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Parallelism {
    /// One after the other, in the order of their numbers: for the simulator.
    Sequential,
    /// At the same time.
    #[default]
    Threads,
}

/// What the pool consists of.
pub(crate) struct Membership {
    label: Label,
    open: Arc<Vec<Arc<OpenDevice>>>,
    /// Devices that lack something that others have, which the labels do not say yet.
    lacking: Vec<u16>,
}

impl Membership {
    /// The label in force.
    pub(crate) fn label(&self) -> &Label {
        &self.label
    }

    /// Devices that are there, ascending by number.
    pub(crate) fn open(&self) -> &[Arc<OpenDevice>] {
        &self.open
    }

    /// Tier of a device.
    pub(crate) fn tier_of(&self, number: u16) -> Option<u8> {
        self.label.member(number).map(|member| member.tier)
    }

    /// Devices of a tier that are there and may get something new.
    pub(crate) fn usable_in(&self, tier: u8) -> impl Iterator<Item = &OpenDevice> {
        let here = move |device: &&OpenDevice| self.tier_of(device.number) == Some(tier);
        let open = self.open.iter().map(|device| &**device);
        open.filter(here).filter(|device| device.is_usable())
    }

    /// Devices whose roots the next opening takes for those of the past, or will as soon as the labels say what they lack.
    pub(crate) fn of_the_past(&self) -> Vec<u16> {
        let absent = self.label.members.iter().filter(|member| member.is_absent());
        let absent = absent.map(|member| member.number);
        absent.chain(self.lacking.iter().copied()).collect()
    }

    /// Devices that fail, or lack what others have, and that the label does not call absent yet. None where all do.
    pub(crate) fn to_be_noted(&self) -> Vec<u16> {
        let is_noted =
            |device: &Arc<OpenDevice>| device.failure().is_some() || self.lacking.contains(&device.number);
        if self.open.iter().all(is_noted) {
            return Vec::new();
        }
        let noted = self.open.iter().filter(|device| is_noted(device));
        let is_present = |number: &u16| {
            self.label
                .member(*number)
                .is_some_and(|member| !member.is_absent())
        };
        noted.map(|device| device.number).filter(is_present).collect()
    }
}

/// The device of this number among those, which ascend.
fn find(open: &[Arc<OpenDevice>], number: u16) -> Option<&Arc<OpenDevice>> {
    let at = open.binary_search_by_key(&number, |device| device.number);
    Some(&open[at.ok()?])
}

/// See the module.
pub(crate) struct Members {
    now: RwLock<Membership, rank::pool::Members>,
    /// Its devices, stored with the lock.
    open: ArcSwap<Vec<Arc<OpenDevice>>>,
    pub(super) segment_bytes: u32,
    is_read_only: bool,
    pub(super) parallelism: Parallelism,
}

impl Members {
    pub(crate) fn new(
        label: Label,
        open: Vec<Arc<OpenDevice>>,
        is_read_only: bool,
        parallelism: Parallelism,
    ) -> Self {
        let open = Arc::new(open);
        Self {
            segment_bytes: label.segment_bytes,
            open: ArcSwap::new(open.clone()),
            now: RwLock::new(Membership {
                label,
                open,
                lacking: Vec::new(),
            }),
            is_read_only,
            parallelism,
        }
    }

    /// Label and devices as they are now. They do not change while this is held: not across I/O, and not twice by one thread.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Membership, rank::pool::Members> {
        self.now.read()
    }

    /// The devices that are there, ascending by number.
    pub(crate) fn open(&self) -> Arc<Vec<Arc<OpenDevice>>> {
        self.open.load_full()
    }

    /// The label in force.
    pub(crate) fn label(&self) -> Label {
        self.now.read().label.clone()
    }

    /// Takes over a label that is durable, and the devices that are open.
    pub(crate) fn adopt(&self, label: Label, open: Vec<Arc<OpenDevice>>) {
        let open = Arc::new(open);
        let before = {
            let mut now = self.now.write();
            now.label = label;
            self.open.store(open.clone());
            std::mem::replace(&mut now.open, open)
        };
        // The last who has a device closes it, and waits for its flushes.
        drop(before);
    }

    pub(crate) fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    /// Whether nothing may be changed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub(crate) fn check_writable(&self) -> Result<(), PoolError> {
        match self.is_read_only {
            true => Err(PoolError::ReadOnly),
            false => Ok(()),
        }
    }

    /// The device of this number.
    ///
    /// # Errors
    /// `NoDevice` if it is not there.
    pub(crate) fn device(&self, number: u16) -> Result<Arc<OpenDevice>, PoolError> {
        if let Some(device) = find(&self.open.load(), number) {
            return Ok(device.clone());
        }
        let is_member = self.now.read().label.member(number).is_some();
        let state = match is_member {
            true => "missing",
            false => "not part of it",
        };
        Err(PoolError::NoDevice { number, state })
    }

    /// Whether it is there, and this holds of it.
    pub(crate) fn is_there_and(&self, number: u16, holds: impl Fn(&OpenDevice) -> bool) -> bool {
        find(&self.open.load(), number).is_some_and(|device| holds(device))
    }

    /// Devices that are there and have not got yet what they missed while they were away.
    pub(crate) fn behind(&self) -> Vec<u16> {
        let now = self.now.read();
        let behind = now.label.members.iter();
        let behind = behind.filter(|member| member.presence == Presence::Behind);
        let numbers = behind.map(|member| member.number);
        numbers
            .filter(|number| find(&now.open, *number).is_some())
            .collect()
    }

    /// Whether what this device has counts at the next opening, also what no other has.
    pub(crate) fn counts_alone(&self, number: u16) -> bool {
        let now = self.now.read();
        let device = find(&now.open, number);
        device.is_some_and(|device| device.state() == DeviceState::Online)
            && !now.of_the_past().contains(&number)
    }

    /// A device that is there did not take what another one has.
    pub(crate) fn note_lacking(&self, number: u16) {
        let mut now = self.now.write();
        if !now.lacking.contains(&number) && find(&now.open, number).is_some() {
            now.lacking.push(number);
        }
    }

    /// They have it now.
    pub(crate) fn forget_lacking(&self, numbers: &[u16]) {
        self.now
            .write()
            .lacking
            .retain(|number| !numbers.contains(number));
    }

    /// Devices that count as failing since the pool was opened: number, path, and why.
    pub(crate) fn failing(&self) -> Vec<(u16, String, String)> {
        let open = self.open();
        let failing = open.iter().filter_map(|device| Some((device, device.failure()?)));
        failing
            .map(|(device, why)| (device.number, device.path(), why))
            .collect()
    }

    /// Open devices that their paths do not lead to any more, with these paths.
    pub(crate) fn strays(&self) -> Vec<(String, Stray)> {
        let open = self.open();
        // To look at the path of one that does not answer may take as long as it does.
        let answering = open.iter().filter(|device| !device.is_silent());
        let strays = answering.filter_map(|device| Some((device.path(), device.raw().stray()?)));
        strays.collect()
    }

    /// See [`Pool::look_at_devices`](crate::Pool::look_at_devices).
    pub(crate) fn look(&self, monotonic: u64, now: u64, timeout: u64) -> bool {
        let open = self.open();
        let turns = open.iter().map(|device| device.look(monotonic, now, timeout));
        let turned = turns.fold(false, |any, turned| any | turned);
        let any_answers = open.iter().any(|device| !device.is_silent());
        open.iter().for_each(|device| device.refuse(any_answers));
        turned
    }

    /// Whether there are devices, and none of them answers.
    pub(crate) fn are_silent(&self) -> bool {
        let open = self.open();
        !open.is_empty() && open.iter().all(|device| device.is_silent())
    }

    /// When the first of the devices that do not answer now was found not to, monotonic nanoseconds.
    pub(crate) fn first_found_silent(&self) -> Option<u64> {
        let open = self.open();
        open.iter().filter_map(|device| device.found_silent()).min()
    }

    /// Devices that do not answer: number, path, and since when, nanoseconds since 1970.
    pub(crate) fn silent(&self) -> Vec<(u16, String, u64)> {
        let open = self.open();
        let silent = open.iter().filter_map(|device| {
            let since = device.silent_since()?;
            Some((device.number, device.path(), since))
        });
        silent.collect()
    }
}

/// Takes over where the devices are now.
pub(crate) fn note_paths(label: &mut Label, open: &[Arc<OpenDevice>]) {
    for member in &mut label.members {
        if let Some(device) = open.iter().find(|device| device.number == member.number) {
            member.path = device.path();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{
        sync::{OnceLock, Weak, mpsc},
        time::Duration,
    };

    use terrace_device::{Device, DeviceError, MemoryDevice};

    use super::*;
    use crate::{PoolState, TierSettings, ondisk::Member};

    /// When it is closed, says whether the devices could be looked at meanwhile.
    struct Closing {
        memory: MemoryDevice,
        members: Arc<OnceLock<Weak<Members>>>,
        closed: mpsc::Sender<bool>,
    }

    impl Device for Closing {
        fn path(&self) -> String {
            self.memory.path()
        }
        fn size_bytes(&self) -> u64 {
            self.memory.size_bytes()
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
            self.memory.read_at(offset, buffer)
        }
        fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
            self.memory.write_at(offset, data)
        }
        fn flush(&self) -> Result<(), DeviceError> {
            self.memory.flush()
        }
        fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
            self.memory.discard(offset, length)
        }
    }

    impl Drop for Closing {
        fn drop(&mut self) {
            if let Some(members) = self.members.get().and_then(Weak::upgrade) {
                let _ = self.closed.send(members.now.try_read().is_some());
            }
        }
    }

    fn label(numbers: &[u16]) -> Label {
        let member = |number: &u16| Member {
            number: *number,
            id: [*number as u8; 16],
            tier: 0,
            size_bytes: 64 << 20,
            path: format!("/d{number}"),
            presence: Presence::Whole,
            begun: Vec::new(),
        };
        Label {
            pool_id: [1; 16],
            pool_name: "tank".into(),
            state: PoolState::Active,
            generation: 1,
            number: numbers[0],
            next_number: 9,
            segment_bytes: 1 << 20,
            created_nanoseconds: 1,
            tiers: vec![TierSettings::named("only")],
            members: numbers.iter().map(member).collect(),
            properties: Default::default(),
        }
    }

    /// Members with the devices 0 and 1, and what the second says when it is closed.
    fn members() -> (Arc<Members>, mpsc::Receiver<bool>) {
        let (closed, closes) = mpsc::channel();
        let known = Arc::new(OnceLock::new());
        let leaving = Closing {
            memory: MemoryDevice::new("/d1", 64 << 20),
            members: known.clone(),
            closed,
        };
        let staying: Arc<dyn Device> = Arc::new(MemoryDevice::new("/d0", 64 << 20));
        let open = [staying, Arc::new(leaving)].into_iter().zip(0..);
        let open = open.map(|(device, number)| Arc::new(OpenDevice::new(number, 60, device)));
        let members = Members::new(label(&[0, 1]), open.collect(), false, Parallelism::Sequential);
        let members = Arc::new(members);
        known.set(Arc::downgrade(&members)).unwrap();
        (members, closes)
    }

    #[test]
    fn a_request_finds_its_device_while_the_labels_change() {
        let (members, _closes) = members();
        let changing = members.now.write();
        let (asks, (found, finds)) = (members.clone(), mpsc::channel());
        let asking = std::thread::spawn(move || {
            let is_there = asks.device(1).is_ok() && asks.is_there_and(0, OpenDevice::is_usable);
            found.send((is_there, asks.open().len()))
        });
        // So long only if it waits for the change.
        let found = finds.recv_timeout(Duration::from_secs(60));
        drop(changing);
        asking.join().unwrap().unwrap();
        assert_eq!(found, Ok((true, 2)));
    }

    #[test]
    fn a_device_that_left_is_found_no_more_and_closed_without_the_lock() {
        let (members, closes) = members();
        let staying = vec![members.device(0).unwrap()];
        members.adopt(label(&[0]), staying);
        assert_eq!(closes.try_recv(), Ok(true));
        assert!(members.device(0).is_ok() && members.open().len() == 1);
        let why = members.device(1).err().map(|error| error.to_string());
        assert_eq!(why.as_deref(), Some("device 1 of the pool is not part of it"));
        assert!(!members.is_there_and(1, |_| true) && members.read().open().len() == 1);
    }
}
