//! What goes wrong with devices while a pool is open, told in its events.
//!
//! Invariants: each device is told of once per opening, and each time that it falls silent; what cannot be written down stops nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use terrace_device::format_size;
use terrace_pool::{DeviceState, SegmentId};

use super::event_log::rfc3339;
use crate::Engine;

/// What was told since the pool was opened.
#[derive(Default)]
pub(crate) struct Alarms {
    /// Devices that fail.
    failing: Mutex<BTreeSet<u16>>,
    /// Devices that do not answer.
    silent: Mutex<BTreeMap<u16, String>>,
    /// Segments of metadata of which a part cannot be read.
    pub(crate) unreadable: Mutex<BTreeSet<Vec<SegmentId>>>,
    /// Datasets of which retention can hold no checkpoint.
    unretained: Mutex<BTreeSet<String>>,
    /// That nothing is written any more.
    stopped: AtomicBool,
}

impl Engine {
    /// Tells of devices that began to fail.
    pub(crate) fn tell_failing(&self) {
        for (number, path, why) in self.pool.failing() {
            if self.alarms.failing.lock().insert(number) {
                let pool = self.pool.name();
                let text = format!(
                    "'{path}' is failing, nothing new is put on it: {why}; 'terrace status {pool}' says what to do"
                );
                self.event("device", &text);
            }
        }
    }

    /// Paths of the devices that do not answer. Waits for nothing.
    pub fn silent_devices(&self) -> Vec<String> {
        self.pool.silent().into_iter().map(|(_, path, _)| path).collect()
    }

    /// Tells of devices that do not answer any more, and of those that do again.
    pub(crate) fn tell_silent(&self) {
        let silent = self.pool.silent();
        let mut told = self.alarms.silent.lock();
        if silent.is_empty() && told.is_empty() {
            return;
        }
        let mut events = Vec::new();
        told.retain(|number, path| {
            let is_silent = silent.iter().any(|(silent, ..)| silent == number);
            if !is_silent {
                events.push(format!("'{path}' answers again, and is used again"));
            }
            is_silent
        });
        let pool = self.pool.name();
        for (number, path, since) in silent {
            if told.insert(number, path.clone()).is_none() {
                events.push(format!(
                    "'{path}' has not answered since {}: it is asked for nothing more until it does; 'terrace status {pool}' says what to \
                     do",
                    rfc3339(since)
                ));
            }
        }
        drop(told);
        events.iter().for_each(|text| self.event("device", text));
    }

    /// Tells of datasets of which retention held no checkpoint for want of room, and of those where it does again.
    pub(crate) fn tell_unretained(&self) {
        let lacking = self.datasets().without_room_to_retain();
        let mut told = self.alarms.unretained.lock();
        if lacking.is_empty() && told.is_empty() {
            return;
        }
        let mut events = Vec::new();
        told.retain(|name| {
            let lacks = lacking.iter().any(|(lacking, _)| lacking == name);
            if !lacks {
                events.push(format!("retention holds past states of '{name}' again"));
            }
            lacks
        });
        for (name, bytes) in lacking {
            if told.insert(name.clone()) {
                events.push(format!(
                    "retention holds no past state of '{name}': {} would have to be set aside so that what is reserved or preallocated in \
                     it can still be written over; delete something, destroy snapshots, or add a device with 'terrace pool add'",
                    format_size(bytes)
                ));
            }
        }
        drop(told);
        events.iter().for_each(|text| self.event("retention", text));
    }

    /// Tells that an error ended all writing. The store takes no record of it any more: it is told as long as the pool is open.
    pub(crate) fn tell_stopped(&self) {
        let Some(why) = self.chunks.stopped() else { return };
        if !self.alarms.stopped.swap(true, Ordering::AcqRel) {
            let pool = self.pool.name();
            let text = format!(
                "the pool accepts no writes any more after an error: {why}; 'terrace status {pool}' says what to do"
            );
            self.event("stopped", &text);
        }
    }

    /// That the pool was opened, and without which of its devices.
    pub(crate) fn tell_opened(&self, new: bool) {
        let devices = self.pool.devices().into_iter();
        let missing = devices.filter(|device| device.state == DeviceState::Missing);
        let missing: Vec<String> = missing.map(|device| format!("'{}'", device.path)).collect();
        let text = match (new, missing.is_empty()) {
            (true, _) => "the pool was made".to_owned(),
            (false, true) => "the pool was opened".to_owned(),
            (false, false) => format!("the pool was opened without {}", missing.join(", ")),
        };
        self.event("opened", &text);
        for number in self.pool.outdated() {
            self.event("device", &self.outdated_in_words(number));
        }
    }

    /// What is said of a device that turned out to be older than the pool when that was opened.
    pub(crate) fn outdated_in_words(&self, device: u16) -> String {
        format!(
            "'{}' is older than the pool, though nobody had noted it as away: it is an old copy, or lost what was written to it; it \
             was taken as it is, and what it lacks is read from copies on other devices, or gives errors",
            self.device_path(device)
        )
    }
}
