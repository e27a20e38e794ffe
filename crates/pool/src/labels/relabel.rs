//! `Labels`: changes of the labels of an open pool, with whichever devices take them.
//!
//! Invariants: changes happen one at a time, and none is visible in RAM before labels that say so are durable; a device that
//! does not take a label is noted on the others as absent before the change is in force, so that what it knows is never
//! taken for the newest state later; no device is noted so before one that is not has the newest root, since roots of devices
//! that were away do not count; no generation is used for two labels.

use std::sync::Arc;

use terrace_sync::{Mutex, MutexGuard, rank};

use super::label_io::write_labels;
use crate::{
    PoolError,
    devices::{Members, OpenDevice, note_paths},
    ondisk::{Label, Member, Presence},
    roots::Roots,
};

/// What was tried, besides what is in force.
struct Tried {
    /// The highest generation that any label may bear that was written, or begun to be.
    generation: u64,
    /// What the labels are to say once the pool proved to open.
    pending: Option<Label>,
}

/// See the module.
pub(crate) struct Labels {
    members: Arc<Members>,
    roots: Arc<Roots>,
    /// Serialises changes; held across their I/O, and taken before the locks of roots and devices.
    tried: Mutex<Tried, rank::pool::Labels>,
}

/// The labels while nobody else changes them.
pub(crate) struct LockedLabels<'a> {
    members: &'a Members,
    roots: &'a Roots,
    tried: MutexGuard<'a, Tried, rank::pool::Labels>,
}

impl Labels {
    /// `generation`: the highest that was found on any device.
    pub(crate) fn new(
        members: Arc<Members>,
        roots: Arc<Roots>,
        generation: u64,
        pending: Option<Label>,
    ) -> Self {
        Self {
            members,
            roots,
            tried: Mutex::new(Tried { generation, pending }),
        }
    }

    /// Waits until the labels are not being changed, and keeps others from it.
    pub(crate) fn lock(&self) -> LockedLabels<'_> {
        LockedLabels {
            members: &self.members,
            roots: &self.roots,
            tried: self.tried.lock(),
        }
    }

    /// Changes what the labels say; durable when it returns.
    pub(crate) fn update<T>(
        &self,
        change: impl FnOnce(&mut Label) -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        self.members.check_writable()?;
        let mut labels = self.lock();
        let mut label = labels.next();
        let changed = change(&mut label)?;
        labels.write(label, self.members.open().to_vec())?;
        Ok(changed)
    }

    /// Writes what the opening found that the labels must say, now that the pool proved to open.
    pub(crate) fn settle(&self) -> Result<(), PoolError> {
        let mut labels = self.lock();
        let Some(mut label) = labels.tried.pending.clone() else {
            return Ok(());
        };
        // What was tried in vain before, here or by a change, may lie on some device and say something else.
        label.generation = label.generation.max(labels.tried.generation + 1);
        labels.write(label, self.members.open().to_vec()).map(drop)
    }

    /// Devices that came back stand for the others again; see [`Pool::take_back`](crate::Pool::take_back).
    pub(crate) fn take_back(&self, devices: &[u16]) -> Result<(), PoolError> {
        let is_out = |member: &Member| devices.contains(&member.number) && member.is_absent();
        let any = self.members.read().label().members.iter().any(is_out);
        if self.members.is_read_only() || !any {
            return Ok(());
        }
        self.members.forget_lacking(devices);
        let devices = self.roots.carry_to(devices)?;
        let is_out = |member: &Member| devices.contains(&member.number) && member.is_absent();
        self.update(|label| {
            for member in label.members.iter_mut().filter(|member| is_out(member)) {
                member.set_presence(Presence::Behind);
            }
            Ok(())
        })
    }

    /// Notes on the labels of the others the devices that fail or lack something; see [`Pool::note_failing`](crate::Pool::note_failing).
    pub(crate) fn note_failing(&self) -> Result<(), PoolError> {
        let noted = self.members.read().to_be_noted();
        if self.members.is_read_only() || noted.is_empty() {
            return Ok(());
        }
        self.update(|label| {
            let since = label.generation - 1;
            let members = label.members.iter_mut();
            let noted = members.filter(|member| noted.contains(&member.number));
            noted.for_each(|member| member.set_presence(Presence::Absent { since }));
            Ok(())
        })
    }

    /// A device that came back has all again that is to be on it.
    pub(crate) fn note_whole(&self, device: u16) -> Result<(), PoolError> {
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
}

impl LockedLabels<'_> {
    /// What the labels say, or are about to, to be changed.
    pub(crate) fn next(&self) -> Label {
        let mut label = match &self.tried.pending {
            Some(pending) => pending.clone(),
            None => self.members.label(),
        };
        label.generation = label.generation.max(self.tried.generation) + 1;
        note_paths(&mut label, &self.members.open());
        label
    }

    /// Writes a label on those of `devices` that it does not call absent, and takes over both. A device that refuses it is
    /// noted as absent, as long as another one is left. Returns whether every device has it for good.
    pub(crate) fn write(
        &mut self,
        mut label: Label,
        devices: Vec<Arc<OpenDevice>>,
    ) -> Result<bool, PoolError> {
        let in_force = self.members.label();
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
                let mut others: Vec<u16> = self.members.open().iter().map(|device| device.number).collect();
                others.retain(|number| !carry(number));
                roots.repeat(&others)?;
            }
            self.tried.generation = self.tried.generation.max(label.generation);
            // Whoever carries this one may have left.
            label.number = carriers[0].number;
            let refused = match write_labels(&carriers, &label, Some(&in_force)) {
                Ok(all) => {
                    self.tried.pending = None;
                    self.members.adopt(label, devices);
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
}
