//! Opening the store again after a cut, a kill or an error, checking everything in it, and the end of a run.

use terrace_pool::DeviceState;
use terrace_store::{Store, StoreError};

use super::Run;
use crate::{
    ensure,
    hardware::FaultKind,
    run::{Check, Violation},
    store::model::{MARKER_KEY, marker_number},
    trace, violation,
};

impl Run {
    /// Opens again after a cut, a kill or an error, and checks everything. The power may go again meanwhile.
    pub(super) fn recover(&mut self, cleanly: bool) -> Check {
        if self.lying {
            self.broken = true;
            return Ok(());
        }
        // Within one turn it may be opened and end more than once, with metadata written while a disk was left out.
        self.look_at_mirrors();
        self.store = None;
        self.held.clear();
        (self.mended, self.healed) = (false, false);
        // Faults of single operations end here: what is checked below is what is on the disks.
        self.ragged |= self.rig.machine.lacks_a_disk();
        self.calm();
        self.hurt = false;
        let machine = self.rig.machine.clone();
        let cut = !machine.is_powered() || (!cleanly && self.random.chance(1, 4));
        self.ragged |= cut;
        if cut {
            self.coverage.hit(FaultKind::PowerCut);
            machine.cut_power();
            machine.settle();
        } else {
            machine.kill();
        }
        self.lose_a_disk()?;
        for attempt in 0.. {
            let again = attempt < 4 && !cleanly && self.random.chance(1, 4);
            machine.cut_power_after(again.then(|| self.random.skewed(300)));
            let may_misread = !cut && attempt == 0 && !cleanly && !self.ending && self.leaving.chance(1, 4);
            let spoiled = may_misread && machine.spoil_for_opening(!self.stormed, &mut self.leaving);
            match self.rig.open(false) {
                Ok(store) => {
                    machine.repair();
                    machine.cut_power_after(None);
                    if machine.is_powered() {
                        let outdated = store.pool().outdated();
                        ensure!(
                            outdated.is_empty() || self.stormed,
                            "devices {outdated:?} count as old copies, and refused nothing"
                        );
                        // What could not be read too often is not used for anything new until the next opening.
                        let mut devices = store.pool().devices().into_iter();
                        self.hurt = devices.any(|device| device.state != DeviceState::Online);
                        self.store = Some(store);
                        break;
                    }
                }
                Err(error) => {
                    machine.repair();
                    if spoiled && machine.is_powered() {
                        trace!(self.trace, "opening: {error}");
                        machine.kill();
                        continue;
                    }
                    ensure!(!machine.is_powered(), "the pool does not open: {error}");
                    trace!(self.trace, "opening, power went: {error}");
                }
            }
            self.ragged = true;
            self.coverage.hit(FaultKind::PowerCutInRecovery);
            machine.cut_power();
            machine.settle();
        }
        self.check_all()?;
        self.write_again()?;
        if self.random.chance(1, 3) {
            self.plan_cut()?;
        }
        Ok(())
    }

    /// Everything in the store against the model; the number of batches is read from the store.
    pub(super) fn check_all(&mut self) -> Check {
        self.check_version()?;
        let store = self.store()?;
        let wrong = |doing: &str| {
            let doing = doing.to_string();
            move |error: StoreError| Violation(format!("after opening, {doing} failed: {error}"))
        };
        let number = marker_number(store.get(MARKER_KEY).map_err(wrong("get"))?.as_deref())?;
        trace!(
            self.trace,
            "recovered {number} of {} batches, {} durable",
            self.model.newest(),
            self.model.durable()
        );
        self.model.recovered(number, store.newest())?;
        self.known = self.model.references().into_keys().collect();
        self.told.clear();
        self.moved_after = 0;
        let mut from = vec![0x20];
        let mut found = 0;
        let mut expected = self.model.live().iter();
        loop {
            let records = store.scan(&from, &[], 64).map_err(wrong("scan"))?;
            let Some((last, _)) = records.last() else { break };
            from = [&last[..], &[0]].concat();
            for (key, value) in &records {
                let Some((wanted, of_model)) = expected.next() else {
                    violation!("a record too many: {key:02x?}");
                };
                ensure!(
                    &key[..] == wanted.as_slice(),
                    "the store has {key:02x?} where the model has {wanted:02x?}"
                );
                ensure!(
                    value[..] == of_model.encode(),
                    "{key:02x?} has another value than batch {number} left"
                );
                found += 1;
            }
        }
        ensure!(
            expected.next().is_none(),
            "only {found} of {} records are there",
            self.model.live().len()
        );
        let mut seen = std::collections::BTreeSet::new();
        for chunk in self.model.live().values().flat_map(|value| &value.uses) {
            if seen.insert(chunk.id) {
                let bytes = store.read_chunk(chunk.id).map_err(wrong("reading a chunk"))?;
                ensure!(
                    bytes == chunk.content.bytes(),
                    "chunk {} has other content than was written",
                    chunk.id
                );
            }
        }
        self.audit()
    }

    pub(super) fn finish(&mut self) -> Check {
        self.calm();
        self.ending = true;
        self.rig.machine.cut_power_after(None);
        self.recover(false)?;
        self.rig.machine.cut_power_after(None);
        self.held.clear();
        let keys: Vec<Vec<u8>> = self
            .model
            .live()
            .keys()
            .filter(|key| key.as_slice() != MARKER_KEY)
            .cloned()
            .collect();
        for keys in keys.chunks(20) {
            self.commit(
                keys.iter().map(|key| (key.clone(), None)).collect(),
                Vec::new(),
                true,
            )?;
        }
        self.flush()?;
        self.rest()?;
        self.checkpoint()?;
        self.rest()?;
        let space = self.store()?.space();
        trace!(
            self.trace,
            "at the end {} chunks, {} bytes available", space.chunks, space.available_bytes
        );
        ensure!(
            space.chunks == 0,
            "{} chunks are left after everything was deleted",
            space.chunks
        );
        ensure!(
            space.logical_bytes == 0 && space.unique_bytes == 0 && space.chunk_stored_bytes == 0,
            "after everything was deleted there are {} logical, {} unique, {} stored bytes",
            space.logical_bytes,
            space.unique_bytes,
            space.chunk_stored_bytes
        );
        // A quarter of the pool must be writable at the least; with data on a copy each, half of that.
        let size = self.rig.shape.usable_bytes();
        ensure!(
            space.available_bytes >= size / 10,
            "only {} of {size} bytes are available after everything was deleted",
            space.available_bytes
        );
        self.close_and_open()
    }
}
