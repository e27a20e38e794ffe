//! `Loss`: what of some content cannot be read since the devices that have it are gone, and what lies on failing ones alone.
//!
//! Invariants: only what the pool knows without reading: of a device that is there and fails, nobody knows what of it can still
//! be read; content with copies on several devices that are gone is named with each of them, and counted once in the sum.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use terrace_device::format_size;
use terrace_engine::{Engine, Plight};
use terrace_pool::{DeviceInfo, DeviceState};
use terrace_store::{ChunkId, StoreError};

use super::Daemon;

/// Chunks of which it is known at a time: those of neighbouring regions are asked for again, and a dataset may have any number.
const KNOWN_MAX: usize = 1 << 16;

/// See the module.
#[derive(Default)]
pub(super) struct Loss {
    /// No device is away, cut short or failing, and none has left with content.
    nothing: bool,
    known: HashMap<ChunkId, Option<Plight>>,
    /// Bytes of content by device.
    gone: BTreeMap<u16, u64>,
    failing: BTreeMap<u16, u64>,
    failing_bytes: u64,
}

impl Loss {
    /// Counts content of a chunk; whether it cannot be read.
    pub(super) fn count(&mut self, engine: &Engine, id: ChunkId, bytes: u64) -> Result<bool, StoreError> {
        if self.nothing {
            return Ok(false);
        }
        let plight = match self.known.get(&id) {
            Some(known) => known,
            None => {
                if self.known.len() >= KNOWN_MAX {
                    self.known.clear();
                }
                let plight = engine.chunks().plight_of(id)?;
                self.known.entry(id).or_insert(plight)
            }
        };
        let (devices, sums) = match plight {
            None => return Ok(false),
            Some(Plight::Gone(devices)) => (devices, &mut self.gone),
            Some(Plight::Failing(devices)) => {
                self.failing_bytes += bytes;
                (devices, &mut self.failing)
            }
        };
        for device in devices {
            *sums.entry(*device).or_default() += bytes;
        }
        Ok(matches!(plight, Some(Plight::Gone(_))))
    }
}

impl Daemon {
    /// To count with.
    pub(super) fn loss(&self) -> Loss {
        let devices = self.engine.pool().devices();
        let is_whole = |device: &DeviceInfo| device.state == DeviceState::Online && device.cut_off_bytes == 0;
        Loss {
            nothing: devices.iter().all(is_whole) && self.engine.chunks().live_on_absent_devices() == 0,
            ..Loss::default()
        }
    }

    /// What an answer says of it: `lost_on`, `failing_bytes`, `failing_on`.
    pub(super) fn say_loss(&self, loss: &Loss, answer: &mut Value) {
        let devices = self.engine.pool().devices();
        let rows = |sums: &BTreeMap<u16, u64>| {
            let rows = sums.iter().map(|(number, bytes)| {
                let device = devices.iter().find(|device| device.number == *number);
                let path = device.map(|device| device.path.clone());
                let state = device.map_or("removed", |device| match device.state {
                    DeviceState::Online => "cut short",
                    state => state.as_str(),
                });
                json!({ "device": path, "number": number, "state": state, "bytes": bytes })
            });
            Value::Array(rows.collect())
        };
        answer["lost_on"] = rows(&loss.gone);
        answer["failing_on"] = rows(&loss.failing);
        answer["failing_bytes"] = json!(loss.failing_bytes);
    }

    /// Why some of it cannot be read, and what to do; `None` if all can.
    pub(super) fn loss_in_words(&self, loss: &Loss, lost_bytes: u64) -> Option<String> {
        if lost_bytes == 0 {
            return None;
        }
        let devices = self.engine.pool().devices();
        let named = |number: &u16| devices.iter().find(|device| device.number == *number);
        let advice = match loss.gone.keys().any(|number| named(number).is_some()) {
            true => format!(
                "'terrace status {0}' says how the device is brought back, and 'terrace status {0} --lost' names all such files",
                self.pool
            ),
            false => "what had it has left the pool: restore it from a copy, or delete it".to_owned(),
        };
        Some(format!(
            "{} of it cannot be read: {advice}",
            format_size(lost_bytes)
        ))
    }
}
