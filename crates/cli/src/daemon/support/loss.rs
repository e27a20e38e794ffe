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

use crate::daemon::open_pool::OpenPool;

/// Chunks of which it is known at a time: those of neighbouring regions are asked for again, and a dataset may have any number.
const KNOWN_MAX: usize = 1 << 16;

/// What became of chunks, as far as that was asked of late.
#[derive(Default)]
struct Known(HashMap<ChunkId, Option<Plight>>);

impl Known {
    fn plight_of(
        &mut self,
        id: ChunkId,
        ask: impl FnOnce(ChunkId) -> Result<Option<Plight>, StoreError>,
    ) -> Result<&Option<Plight>, StoreError> {
        if !self.0.contains_key(&id) {
            if self.0.len() >= KNOWN_MAX {
                self.0.clear();
            }
            let plight = ask(id)?;
            self.0.insert(id, plight);
        }
        Ok(self.0.get(&id).unwrap_or(&None))
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Loss {
    /// No device is away, cut short or failing, and none has left with content.
    nothing: bool,
    known: Known,
    /// Bytes of content by device.
    gone: BTreeMap<u16, u64>,
    failing: BTreeMap<u16, u64>,
    failing_bytes: u64,
}

impl Loss {
    /// Counts content of a chunk; whether it cannot be read.
    pub(crate) fn count(&mut self, engine: &Engine, id: ChunkId, bytes: u64) -> Result<bool, StoreError> {
        if self.nothing {
            return Ok(false);
        }
        let plight = self.known.plight_of(id, |id| engine.chunks().plight_of(id))?;
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

impl Loss {
    /// To count with.
    pub(crate) fn of(engine: &Engine) -> Self {
        let devices = engine.pool().devices();
        let is_whole = |device: &DeviceInfo| device.state == DeviceState::Online && device.cut_off_bytes == 0;
        Self {
            nothing: devices.iter().all(is_whole) && engine.chunks().live_on_absent_devices() == 0,
            ..Self::default()
        }
    }

    /// What an answer says of it: `lost_on`, `failing_bytes`, `failing_on`.
    pub(crate) fn tell(&self, engine: &Engine, answer: &mut Value) {
        let devices = engine.pool().devices();
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
        answer["lost_on"] = rows(&self.gone);
        answer["failing_on"] = rows(&self.failing);
        answer["failing_bytes"] = json!(self.failing_bytes);
    }

    /// Why some of it cannot be read, and what to do; `None` if all can.
    pub(crate) fn describe(&self, pool: &OpenPool, lost_bytes: u64) -> Option<String> {
        if lost_bytes == 0 {
            return None;
        }
        let devices = pool.engine().pool().devices();
        let named = |number: &u16| devices.iter().find(|device| device.number == *number);
        let advice = match self.gone.keys().any(|number| named(number).is_some()) {
            true => format!(
                "'terrace status {0}' says how the device is brought back, and 'terrace status {0} --lost' names all such files",
                pool.name()
            ),
            false => "what had it has left the pool: restore it from a copy, or delete it".to_owned(),
        };
        Some(format!(
            "{} of it cannot be read: {advice}",
            format_size(lost_bytes)
        ))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_any_number_of_chunks_is_bounded_and_neighbours_are_not_asked_for_twice() {
        let mut known = Known::default();
        let (mut asked, mut most) = (0, 0);
        let chunks = 3 * KNOWN_MAX as u64;
        for id in 0..chunks {
            // A chunk lies in up to 32 blocks, which come one after another.
            for _ in 0..3 {
                let plight = known.plight_of(ChunkId(id), |_| {
                    asked += 1;
                    Ok(Some(Plight::Gone(vec![1])))
                });
                assert!(matches!(plight.unwrap(), Some(Plight::Gone(devices)) if *devices == [1]));
                most = most.max(known.0.len());
            }
        }
        assert_eq!(asked, chunks);
        assert!(most <= KNOWN_MAX, "{most}");
        // One that cannot be asked for is asked for again.
        let refused = known.plight_of(ChunkId(chunks), |_| Err(StoreError::NoSpace));
        assert!(refused.is_err());
        assert!(known.plight_of(ChunkId(chunks), |_| Ok(None)).unwrap().is_none());
    }
}
