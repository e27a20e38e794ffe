//! What goes wrong with devices while a pool is open, told in its events.
//!
//! Invariants: each device is told of once per opening, and each time that it falls silent; what cannot be written down stops nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use terrace_chunk::ChunkStore;
use terrace_dataset::Datasets;
use terrace_device::format_size;
use terrace_pool::{DeviceState, Pool};
use terrace_sync::{Mutex, rank};

use super::{
    event_log::{EventLog, rfc3339},
    words::describe_outdated,
};
use crate::floors::Floors;

/// What was told since the pool was opened.
pub(crate) struct Alarms {
    pool: Arc<Pool>,
    chunks: Arc<ChunkStore>,
    datasets: Arc<Datasets>,
    events: Arc<EventLog>,
    /// Devices that fail.
    failing: Mutex<BTreeSet<u16>, rank::engine::FailingTold>,
    /// Devices that do not answer.
    silent: Mutex<BTreeMap<u16, String>, rank::engine::SilentTold>,
    /// Datasets of which retention can hold no checkpoint.
    unretained: Mutex<BTreeSet<String>, rank::engine::UnretainedTold>,
    /// That nothing is written any more.
    stopped: AtomicBool,
}

impl Alarms {
    pub(crate) fn new(floors: &Floors, events: &Arc<EventLog>) -> Self {
        Self {
            pool: floors.pool.clone(),
            chunks: floors.chunks.clone(),
            datasets: floors.datasets.clone(),
            events: events.clone(),
            failing: Mutex::default(),
            silent: Mutex::default(),
            unretained: Mutex::default(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Tells of all that went wrong since this was called last.
    pub(crate) fn report(&self) {
        self.report_failing();
        self.report_silent();
        self.report_unretained();
        self.report_stopped();
    }

    /// Tells of devices that began to fail.
    fn report_failing(&self) {
        for (number, path, why) in self.pool.failing() {
            if self.failing.lock().insert(number) {
                let pool = self.pool.name();
                let text = format!(
                    "'{path}' is failing, nothing new is put on it: {why}; 'terrace status {pool}' says what to do"
                );
                self.events.add("device", &text);
            }
        }
    }

    /// Tells of devices that do not answer any more, and of those that do again.
    fn report_silent(&self) {
        let silent = self.pool.silent();
        let mut told = self.silent.lock();
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
        events.iter().for_each(|text| self.events.add("device", text));
    }

    /// Tells of datasets of which retention held no checkpoint for want of room, and of those where it does again.
    fn report_unretained(&self) {
        let lacking = self.datasets.retained().without_room();
        let mut told = self.unretained.lock();
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
        events.iter().for_each(|text| self.events.add("retention", text));
    }

    /// Tells that an error ended all writing. The store takes no record of it any more: it is told as long as the pool is open.
    pub(crate) fn report_stopped(&self) {
        let Some(why) = self.chunks.stopped() else { return };
        if !self.stopped.swap(true, Ordering::AcqRel) {
            let pool = self.pool.name();
            let text = format!(
                "the pool accepts no writes any more after an error: {why}; 'terrace status {pool}' says what to do"
            );
            self.events.add("stopped", &text);
        }
    }

    /// That the pool was opened, and without which of its devices.
    pub(crate) fn report_opened(&self, new: bool) {
        let devices = self.pool.devices().into_iter();
        let missing = devices.filter(|device| device.state == DeviceState::Missing);
        let missing: Vec<String> = missing.map(|device| format!("'{}'", device.path)).collect();
        let text = match (new, missing.is_empty()) {
            (true, _) => "the pool was made".to_owned(),
            (false, true) => "the pool was opened".to_owned(),
            (false, false) => format!("the pool was opened without {}", missing.join(", ")),
        };
        self.events.add("opened", &text);
        let outdated = self.pool.outdated();
        for device in self.pool.devices() {
            if outdated.contains(&device.number) {
                self.events.add("device", &describe_outdated(&device.path));
            }
        }
    }
}
