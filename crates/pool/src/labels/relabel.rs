//! One change of the labels of an open pool, with whichever devices take it.
//!
//! Invariants: changes happen one at a time, and none is visible in RAM before labels that say so are durable; a device that
//! does not take a label is noted on the others as absent before the change is in force, so that what it knows is never
//! taken for the newest state later; no device is noted so before one that is not has the newest root, since roots of devices
//! that were away do not count; no generation is used for two labels.

use std::sync::{Arc, atomic::Ordering};

use super::label_io::write_labels;
use crate::{
    Pool, PoolError, Presence,
    devices::OpenDevice,
    lifecycle::note_paths,
    ondisk::{Label, Member},
};

impl Pool {
    pub(crate) fn update(
        &self,
        change: impl FnOnce(&mut Label) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        self.check_writable()?;
        let _updating = self.updating.lock();
        let mut label = self.next_label();
        change(&mut label)?;
        let open = self.open.read().to_vec();
        self.relabel(label, open).map(drop)
    }

    /// Writes a label that was made while opening.
    pub(crate) fn replace_label(&self, label: Label) -> Result<(), PoolError> {
        let _updating = self.updating.lock();
        let open = self.open.read().to_vec();
        self.relabel(label, open).map(drop)
    }

    /// Writes what the opening found that the labels must say, now that the pool proved to open.
    pub(crate) fn settle_label(&self) -> Result<(), PoolError> {
        let _updating = self.updating.lock();
        let pending = self.pending.lock().clone();
        let Some(mut label) = pending else { return Ok(()) };
        // What was tried in vain before, here or by a change, may lie on some device and say something else.
        let tried = self.tried_generation.load(Ordering::Relaxed);
        label.generation = label.generation.max(tried + 1);
        let open = self.open.read().to_vec();
        self.relabel(label, open).map(drop)
    }

    /// Devices that the labels call absent, and which are there, have a whole copy now of what of the log is to be on them; they
    /// get the newest root, and from here on can stand for the others; one that does not take it stays absent. What else they
    /// missed is still to be brought to them.
    ///
    /// # Errors
    /// If no device takes the root or the label.
    pub fn take_back(&self, devices: &[u16]) -> Result<(), PoolError> {
        let is_out = |member: &Member| devices.contains(&member.number) && member.is_absent();
        let any = self.label.read().members.iter().any(is_out);
        if self.read_only || !any {
            return Ok(());
        }
        self.lacking.lock().retain(|number| !devices.contains(number));
        let devices = self.carry_root_to(devices)?;
        let is_out = |member: &Member| devices.contains(&member.number) && member.is_absent();
        self.update(|label| {
            for member in label.members.iter_mut().filter(|member| is_out(member)) {
                member.set_presence(Presence::Behind);
            }
            Ok(())
        })
    }

    /// A device did not take what another one has, and is otherwise in use: the next
    /// [`note_failing`](Self::note_failing) says so on the labels. One that is missing is known to be.
    pub fn note_lacking(&self, device: u16) {
        let mut lacking = self.lacking.lock();
        if !lacking.contains(&device) && self.has_device(device) {
            lacking.push(device);
        }
    }

    /// Notes devices on the labels of the others that fail, or lack what others have: without these they are of the past.
    ///
    /// # Errors
    /// If no other device takes the label.
    pub fn note_failing(&self) -> Result<(), PoolError> {
        let open = self.open.read().clone();
        let lacking = self.lacking.lock().clone();
        let is_noted =
            |device: &Arc<OpenDevice>| device.failure().is_some() || lacking.contains(&device.number);
        if self.read_only || !open.iter().any(is_noted) || open.iter().all(is_noted) {
            return Ok(());
        }
        let failing: Vec<u16> = {
            let label = self.label.read();
            let here = open.iter().filter(|device| is_noted(device));
            here.map(|device| device.number)
                .filter(|number| label.member(*number).is_some_and(|member| !member.is_absent()))
                .collect()
        };
        if failing.is_empty() {
            return Ok(());
        }
        self.update(|label| {
            let since = label.generation - 1;
            let noted = label
                .members
                .iter_mut()
                .filter(|member| failing.contains(&member.number));
            noted.for_each(|member| member.set_presence(Presence::Absent { since }));
            Ok(())
        })
    }

    /// A device that came back has all again that is to be on it.
    ///
    /// # Errors
    /// If no device takes the label.
    pub fn note_whole(&self, device: u16) -> Result<(), PoolError> {
        self.update(|label| {
            let mut members = label.members.iter_mut();
            let behind =
                members.find(|member| member.number == device && member.presence == Presence::Behind);
            if let Some(member) = behind {
                member.set_presence(Presence::Whole);
            }
            Ok(())
        })
    }

    /// Writes a label on those of `devices` that it does not call absent, and takes over both. A device that refuses it is
    /// noted as absent, as long as another one is left. Returns whether every device has it for good.
    pub(crate) fn relabel(&self, mut label: Label, devices: Vec<Arc<OpenDevice>>) -> Result<bool, PoolError> {
        let in_force = self.label.read().clone();
        let mut everywhere = true;
        let mut out = Vec::new();
        let is_absent = |label: &Label, number: u16| label.member(number).is_some_and(Member::is_absent);
        let mut carrying_roots = None;
        loop {
            let carries = |device: &&Arc<OpenDevice>| !is_absent(&label, device.number);
            let carriers: Vec<_> = devices.iter().filter(carries).cloned().collect();
            everywhere &= carriers.len() == devices.len();
            if carriers.is_empty() {
                return Err(PoolError::Invalid(
                    "no device of the pool can take a label".into(),
                ));
            }
            let newly_noted = |device: &Arc<OpenDevice>| {
                is_absent(&label, device.number) && !is_absent(&in_force, device.number)
            };
            if devices.iter().any(newly_noted) {
                // Held until the label is in force: a root that came in between might reach those alone that it calls absent.
                let roots = carrying_roots.get_or_insert_with(|| self.roots.lock());
                let carry = |number: &u16| carriers.iter().any(|device| device.number == *number);
                let mut others: Vec<u16> = self.open.read().iter().map(|device| device.number).collect();
                others.retain(|number| !carry(number));
                self.repeat_root_locked(roots, &others)?;
            }
            self.tried_generation
                .fetch_max(label.generation, Ordering::Relaxed);
            // Whoever carries this one may have left.
            label.number = carriers[0].number;
            let refused = match write_labels(&carriers, &label, Some(&in_force)) {
                Ok(all) => {
                    self.adopt(label, devices);
                    out.iter()
                        .for_each(|(device, error): &(Arc<OpenDevice>, PoolError)| device.give_up(error));
                    return Ok(everywhere && all);
                }
                Err(refused) => refused,
            };
            let refusing = carriers
                .iter()
                .find(|device| Some(device.number) == refused.device);
            let is_member = |device: &&Arc<OpenDevice>| in_force.member(device.number).is_some();
            let Some(refusing) = refusing.filter(|_| carriers.len() > 1).filter(is_member) else {
                return Err(refused.error);
            };
            out.push((refusing.clone(), refused.error));
            let since = label.generation;
            label.generation += 1;
            let number = refusing.number;
            let noted = label.members.iter_mut().find(|member| member.number == number);
            if let Some(member) = noted {
                member.set_presence(Presence::Absent { since });
            }
        }
    }

    /// What the labels say, or are about to, to be changed.
    pub(crate) fn next_label(&self) -> Label {
        let pending = self.pending.lock().clone();
        let mut label = pending.unwrap_or_else(|| self.label.read().clone());
        let tried = self.tried_generation.load(Ordering::Relaxed);
        label.generation = label.generation.max(tried) + 1;
        note_paths(&mut label, &self.open.read());
        label
    }

    /// Takes over a label that is durable and the devices that are open.
    fn adopt(&self, label: Label, devices: Vec<Arc<OpenDevice>>) {
        let tier_of = |number: u16| label.member(number).map(|member| member.tier);
        for device in &devices {
            device
                .tier
                .store(tier_of(device.number).unwrap_or(0), Ordering::Relaxed);
        }
        *self.pending.lock() = None;
        let mut current = self.label.write();
        self.allocator.lock().set_tiers(tier_of);
        *self.open.write() = Arc::new(devices);
        *current = label;
    }
}
