//! `Members`: the devices of a pool: what the labels in force say of them, which are there, and which lack something.
//!
//! Invariants: label and open devices change together, under one lock, and only after labels that say so are durable; the
//! open devices ascend by number, and each is a member; the lock is never held across I/O.

use std::sync::Arc;

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

    fn find(&self, number: u16) -> Option<&Arc<OpenDevice>> {
        let at = self.open.binary_search_by_key(&number, |device| device.number);
        Some(&self.open[at.ok()?])
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

/// See the module.
pub(crate) struct Members {
    now: RwLock<Membership, rank::pool::Members>,
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
        Self {
            segment_bytes: label.segment_bytes,
            now: RwLock::new(Membership {
                label,
                open: Arc::new(open),
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
        self.now.read().open.clone()
    }

    /// The label in force.
    pub(crate) fn label(&self) -> Label {
        self.now.read().label.clone()
    }

    /// Takes over a label that is durable, and the devices that are open.
    pub(crate) fn adopt(&self, label: Label, open: Vec<Arc<OpenDevice>>) {
        let mut now = self.now.write();
        now.open = Arc::new(open);
        now.label = label;
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
        let now = self.now.read();
        now.find(number).cloned().ok_or_else(|| PoolError::NoDevice {
            number,
            state: match now.label.member(number) {
                Some(_) => "missing",
                None => "not part of it",
            },
        })
    }

    /// Whether it is there, and this holds of it.
    pub(crate) fn is_there_and(&self, number: u16, holds: impl Fn(&OpenDevice) -> bool) -> bool {
        self.now.read().find(number).is_some_and(|device| holds(device))
    }

    /// Devices that are there and have not got yet what they missed while they were away.
    pub(crate) fn behind(&self) -> Vec<u16> {
        let now = self.now.read();
        let behind = now.label.members.iter();
        let behind = behind.filter(|member| member.presence == Presence::Behind);
        let numbers = behind.map(|member| member.number);
        numbers.filter(|number| now.find(*number).is_some()).collect()
    }

    /// Whether what this device has counts at the next opening, also what no other has.
    pub(crate) fn counts_alone(&self, number: u16) -> bool {
        let now = self.now.read();
        let device = now.find(number);
        device.is_some_and(|device| device.state() == DeviceState::Online)
            && !now.of_the_past().contains(&number)
    }

    /// A device that is there did not take what another one has.
    pub(crate) fn note_lacking(&self, number: u16) {
        let mut now = self.now.write();
        if !now.lacking.contains(&number) && now.find(number).is_some() {
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
