//! Replacing a device: another one joins its tier, it is emptied and taken out.
//!
//! Invariants: a replacement that is given up leaves the pool as it was, as when the new half is detached in other pools: the old
//! device is used again and the new one is emptied and leaves, also over a restart; where that cannot be, whoever gave it up is
//! told that both are in the pool, and what to type. One that failed keeps what it has moved on the new device.

use std::sync::Arc;

use terrace_device::{Device, DeviceSpec, format_size};
use terrace_pool::{DeviceInfo, DeviceState, SegmentRange};

use super::{
    device_manager::DeviceManager, drain::Drains, goals::Goal, joining::describe_shortage, plan::LeavingPlan,
};
use crate::EngineError;

impl DeviceManager {
    /// What a replacement would come to, in figures; nothing is made or changed.
    pub(crate) fn plan_replacing(
        &self,
        info: &DeviceInfo,
        new: &DeviceSpec,
        force: bool,
    ) -> Result<LeavingPlan, EngineError> {
        self.open.check()?;
        let joining = self.claim(std::slice::from_ref(new), force)?.devices();
        let size_bytes = joining.first().map_or(0, |device| device.size_bytes);
        let mut plan = self.plans.leaving(info, self.plans.joining_bytes(size_bytes));
        if plan.obstacle.is_empty() {
            self.drains.check_stays(info.number)?;
            let shortage = describe_shortage(std::slice::from_ref(new));
            let warnings = [plan.warning, shortage]
                .into_iter()
                .filter(|words| !words.is_empty());
            plan.warning = warnings.collect::<Vec<_>>().join("; ");
        }
        plan.loses = self.describe_loss(new);
        plan.joining = joining.into_iter().next();
        Ok(plan)
    }

    /// What is lost where the device that is to come is one of this pool that is not in use, and has content of it that may lie
    /// nowhere else.
    fn describe_loss(&self, new: &DeviceSpec) -> String {
        let Some(number) = self.pool.member_at(&new.path) else {
            return String::new();
        };
        let Some(info) = self.names.get(number) else {
            return String::new();
        };
        let live_bytes = self.chunks.load_of(SegmentRange::whole(number)).live_bytes;
        let files = self.integrity.lost_status().map_or(0, |lost| lost.files);
        let has_copies = self.pool.copies_in(info.tier) > 1;
        if info.state == DeviceState::Online || live_bytes == 0 || has_copies && files == 0 {
            return String::new();
        }
        let (path, pool) = (new.path.display(), self.pool.name());
        let of_it = match files {
            0 => String::new(),
            1 => ", of it parts of a file that nothing else has".to_owned(),
            files => format!(", of it parts of {files} files that nothing else has"),
        };
        format!(
            "'{path}' is device {number} of this pool, and {} of its content lies there{of_it}: what has no other copy is lost for \
             good if it is overwritten; 'terrace stop {pool}' and 'terrace start {pool} --degraded' take the device in as it is, if it \
             was not used without the others",
            format_size(live_bytes),
        )
    }

    /// Puts a new device in the place of another one, which is emptied and taken out. Returns the job.
    pub(crate) fn replace_device(
        &self,
        old: &str,
        new: &DeviceSpec,
        force: bool,
    ) -> Result<u64, EngineError> {
        self.open.check()?;
        self.names.find(old)?;
        let mut made = self.claim(std::slice::from_ref(new), force)?.make()?;
        let Some(device) = made.first().map(|made| made.device.clone()) else {
            return Err(EngineError::Invalid("no device was given; name one".into()));
        };
        let replaced = self.replace_opened(old, device, force);
        if replaced.is_err() {
            self.undo_unjoined(made.drain(..));
        }
        replaced
    }

    /// Replaces by a device that is open already: for the simulator.
    pub(crate) fn replace_opened(
        &self,
        old: &str,
        device: Arc<dyn Device>,
        force: bool,
    ) -> Result<u64, EngineError> {
        self.open.check()?;
        let info = self.names.find(old)?;
        self.drains.check_stays(info.number)?;
        let plan = self
            .plans
            .leaving(&info, self.plans.joining_bytes(device.size_bytes()));
        if !plan.obstacle.is_empty() {
            return Err(EngineError::Invalid(plan.obstacle));
        }
        let new = self.add_opened(&plan.tier, device, None, 1, force)?.number;
        let begun = self.drains.start(info.number, Goal::Replace(new), None);
        if begun.is_err()
            && let Err(error) = self.drains.take_out(new, false)
        {
            self.complaints.add("devices", &error);
        }
        begun
    }
}

impl Drains {
    /// The old and the new device of the replacement that a job does.
    pub(crate) fn replacement_of(&self, job: u64) -> Option<(u16, u16)> {
        let wanted = self.wanted.lock();
        let entry = wanted.iter().find(|entry| entry.job == job)?;
        Some((entry.device, entry.replaced_by()?))
    }

    /// Whatever becomes of the job that empties a device now, what was to take its place stays.
    pub(super) fn keep_replacement(&self, old: u16) -> Result<(), EngineError> {
        let mut wanted = self.wanted.lock();
        let of_it = wanted.iter_mut().find(|entry| entry.device == old);
        if let Some(entry) = of_it.filter(|entry| entry.replaced_by().is_some()) {
            self.goals.want(old, Goal::Remove)?;
            entry.goal = Goal::Remove;
        }
        Ok(())
    }

    /// Uses the old device again and lets the new one leave, if the others can hold what came to it meanwhile. What an error
    /// interrupts is done by the next call.
    pub(super) fn undo_replacement(&self, old: u16, new: u16) -> Result<(), EngineError> {
        self.goals.drain(old, false)?;
        if let Some(joined) = self.names.get(new).filter(|_| !self.goals.exists(new))
            && self.is_well(old)
            && self.plans.leaving(&joined, 0).obstacle.is_empty()
        {
            self.start(new, Goal::Remove, None)?;
        }
        self.goals.forget(old)?;
        self.wanted.lock().retain(|entry| entry.device != old);
        self.events.add("device", &self.after_replacing(old, new));
        Ok(())
    }

    /// What is in the pool behind a replacement that did not come to its end, and what to type.
    pub(crate) fn after_replacing(&self, old: u16, new: u16) -> String {
        let (old, joined, pool) = (self.names.name(old), self.names.name(new), self.pool.name());
        // First the job: behind its end the device is gone.
        if let Some(job) = self.job_of(new) {
            return format!(
                "'{old}' is used as before; '{joined}', which was to take its place, leaves the pool again by job {job} \
                 ('terrace jobs {pool}' shows how far it is)"
            );
        }
        let Some(info) = self.names.get(new) else {
            return format!("'{old}' is used as before, and what was to take its place is not in the pool");
        };
        let obstacle = self.plans.leaving(&info, 0).obstacle;
        let why = match obstacle.is_empty() {
            true => String::new(),
            false => format!(", and the new one cannot leave now ({obstacle})"),
        };
        format!(
            "'{old}' and '{joined}' are both in the pool{why}: 'terrace pool remove {pool} {old}' goes on with the replacement, \
             'terrace pool remove {pool} {joined}' goes back"
        )
    }
}
