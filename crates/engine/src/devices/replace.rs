//! Replacing a device: another one joins its tier, it is emptied and taken out.
//!
//! Invariants: a replacement that is given up leaves the pool as it was, as when the new half is detached in other pools: the old
//! device is used again and the new one is emptied and leaves, also over a restart; where that cannot be, whoever gave it up is
//! told that both are in the pool, and what to type. One that failed keeps what it has moved on the new device.

use std::sync::Arc;

use terrace_device::{Device, DeviceSpec, format_size};
use terrace_pool::{DeviceInfo, DeviceState, SegmentRange};

use super::{change::shortage_in_words, drain::Goal};
use crate::{Engine, EngineError, LeavingPlan};

impl Engine {
    /// What [`replace_device`](Self::replace_device) would come to, in figures; nothing is made or changed.
    ///
    /// # Errors
    /// `Invalid` or `Device` if the new device cannot be used.
    pub fn plan_replacing(
        &self,
        info: &DeviceInfo,
        new: &DeviceSpec,
        force: bool,
    ) -> Result<LeavingPlan, EngineError> {
        self.check_open()?;
        let joining = self.claim(std::slice::from_ref(new), force)?.devices();
        let size_bytes = joining.first().map_or(0, |device| device.size_bytes);
        let mut plan = self.plan_leaving(info, self.joining_bytes(size_bytes));
        if plan.obstacle.is_empty() {
            self.check_stays(info.number)?;
            let shortage = shortage_in_words(std::slice::from_ref(new));
            let warnings = [plan.warning, shortage]
                .into_iter()
                .filter(|words| !words.is_empty());
            plan.warning = warnings.collect::<Vec<_>>().join("; ");
        }
        plan.loses = self.loses_in_words(new);
        plan.joining = joining.into_iter().next();
        Ok(plan)
    }

    /// What is lost where the device that is to come is one of this pool that is not in use, and has content of it that may lie
    /// nowhere else.
    fn loses_in_words(&self, new: &DeviceSpec) -> String {
        let Some(number) = self.pool.member_at(&new.path) else {
            return String::new();
        };
        let devices = self.pool.devices();
        let Some(info) = devices.iter().find(|info| info.number == number) else {
            return String::new();
        };
        let live_bytes = self.chunks.load_of(SegmentRange::whole(number)).live_bytes;
        let files = self.status().lost.map_or(0, |lost| lost.files);
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
    ///
    /// # Errors
    /// As [`add_devices`](Self::add_devices) and [`evacuate_device`](Self::evacuate_device).
    pub fn replace_device(&self, old: &str, new: &DeviceSpec, force: bool) -> Result<u64, EngineError> {
        self.check_open()?;
        self.find_device(old)?;
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
    ///
    /// # Errors
    /// As [`replace_device`](Self::replace_device).
    pub fn replace_opened(
        &self,
        old: &str,
        device: Arc<dyn Device>,
        force: bool,
    ) -> Result<u64, EngineError> {
        self.check_open()?;
        let info = self.find_device(old)?;
        self.check_stays(info.number)?;
        let plan = self.plan_leaving(&info, self.joining_bytes(device.size_bytes()));
        if !plan.obstacle.is_empty() {
            return Err(EngineError::Invalid(plan.obstacle));
        }
        let new = self.add_opened(&plan.tier, device, None, 1, force)?.number;
        let begun = self.start_emptying(info.number, Goal::Replace(new), None);
        if begun.is_err()
            && let Err(error) = self.take_out(new, false)
        {
            self.complain("devices", &error);
        }
        begun
    }

    /// The old and the new device of the replacement that a job does.
    pub fn replacement_of(&self, job: u64) -> Option<(u16, u16)> {
        let wanted = self.leaving.wanted.lock();
        let entry = wanted.iter().find(|entry| entry.job == job)?;
        Some((entry.device, entry.replaced_by()?))
    }

    /// Whatever becomes of the job that empties a device now, what was to take its place stays.
    pub(crate) fn keep_replacement(&self, old: u16) -> Result<(), EngineError> {
        let mut wanted = self.leaving.wanted.lock();
        let of_it = wanted.iter_mut().find(|entry| entry.device == old);
        if let Some(entry) = of_it.filter(|entry| entry.replaced_by().is_some()) {
            self.want(old, Goal::Remove)?;
            entry.goal = Goal::Remove;
        }
        Ok(())
    }

    /// Uses the old device again and lets the new one leave, if the others can hold what came to it meanwhile. What an error
    /// interrupts is done by the next call.
    pub(crate) fn undo_replacement(&self, old: u16, new: u16) -> Result<(), EngineError> {
        self.drain(old, false)?;
        let devices = self.pool.devices();
        let joined = devices.into_iter().find(|info| info.number == new);
        if let Some(joined) = joined.filter(|_| !self.has_goal(new))
            && self.is_well(old)
            && self.plan_leaving(&joined, 0).obstacle.is_empty()
        {
            self.start_emptying(new, Goal::Remove, None)?;
        }
        self.forget_goal(old)?;
        self.leaving.wanted.lock().retain(|entry| entry.device != old);
        self.event("device", &self.after_replacing(old, new));
        Ok(())
    }

    fn is_well(&self, device: u16) -> bool {
        let devices = self.pool.devices();
        let mut well = devices.iter().filter(|info| info.state == DeviceState::Online);
        well.any(|info| info.number == device)
    }

    /// What is in the pool behind a replacement that did not come to its end, and what to type.
    pub fn after_replacing(&self, old: u16, new: u16) -> String {
        let (old, joined, pool) = (self.device_name(old), self.device_name(new), self.pool.name());
        // First the job: behind its end the device is gone.
        if let Some(job) = self.emptying_job(new) {
            return format!(
                "'{old}' is used as before; '{joined}', which was to take its place, leaves the pool again by job {job} \
                 ('terrace jobs {pool}' shows how far it is)"
            );
        }
        let devices = self.pool.devices();
        let Some(info) = devices.iter().find(|info| info.number == new) else {
            return format!("'{old}' is used as before, and what was to take its place is not in the pool");
        };
        let obstacle = self.plan_leaving(info, 0).obstacle;
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
