//! `DeviceManager`: devices that come and go while the pool is in use: adding, emptying, removing, replacing, growing, shrinking.
//!
//! Invariant: nothing is begun that the figures say cannot end well, and the refusal names them.

use std::sync::Arc;

use terrace_chunk::ChunkStore;
use terrace_device::{Randomness, format_size};
use terrace_mover::{Mover, MoverError};
use terrace_pool::{DeviceState, Pool};

use super::{
    drain::Drains,
    goals::{Goal, Goals},
    names::DeviceNames,
    plan::Planner,
    resilver::Resilver,
    tiers::Tiers,
};
use crate::{
    EngineError,
    floors::Floors,
    integrity::Integrity,
    open_flag::OpenFlag,
    reporting::{Complaints, EventLog},
};

/// See the module. Its parts are for who asks them; what changes devices goes through it.
pub(crate) struct DeviceManager {
    pub(super) pool: Arc<Pool>,
    pub(super) chunks: Arc<ChunkStore>,
    mover: Arc<Mover>,
    pub(super) randomness: Arc<dyn Randomness>,
    pub(super) open: Arc<OpenFlag>,
    pub(super) events: Arc<EventLog>,
    pub(super) complaints: Arc<Complaints>,
    pub(super) integrity: Arc<Integrity>,
    pub(crate) names: DeviceNames,
    pub(crate) goals: Goals,
    pub(crate) tiers: Arc<Tiers>,
    pub(crate) plans: Arc<Planner>,
    pub(crate) drains: Drains,
    pub(crate) resilver: Resilver,
}

impl DeviceManager {
    /// Of a pool that has just been opened; nothing goes on yet.
    pub(crate) fn new(
        floors: &Floors,
        randomness: Arc<dyn Randomness>,
        open: &Arc<OpenFlag>,
        events: &Arc<EventLog>,
        complaints: &Arc<Complaints>,
        integrity: &Arc<Integrity>,
    ) -> Self {
        let names = DeviceNames::new(&floors.pool);
        let goals = Goals::new(&floors.pool, &names);
        let tiers = Arc::new(Tiers::new(floors, open));
        let plans = Arc::new(Planner::new(floors, &goals));
        let parts = (&names, &goals, &tiers, &plans);
        Self {
            pool: floors.pool.clone(),
            chunks: floors.chunks.clone(),
            mover: floors.mover.clone(),
            randomness,
            open: open.clone(),
            events: events.clone(),
            complaints: complaints.clone(),
            integrity: integrity.clone(),
            drains: Drains::new(floors, integrity, events, complaints, parts),
            resilver: Resilver::new(floors, integrity, events, &names),
            names,
            goals,
            tiers,
            plans,
        }
    }

    /// Goes on with what was under way when the pool was closed or crashed.
    pub(crate) fn resume(&self) {
        self.drains.resume();
        if let Err(error) = self.resilver.start() {
            self.complaints.add("devices", &error);
        }
        self.resilver.await_room_for_scrubbed();
    }

    /// Takes back what works again, and gives content its copies where there is room for them now. Cheap while there is nothing
    /// of that.
    pub(crate) fn bring_up_to_date(&self) {
        let taken_back = self.resilver.take_back_out_of_step();
        let begun = self.resilver.start_with_more_room();
        for error in [taken_back.err(), begun.err()].into_iter().flatten() {
            self.complaints.add("devices", &error);
        }
    }

    /// Draws the consequences of jobs that ended.
    pub(crate) fn settle(&self) -> Result<(), EngineError> {
        let drained = self.drains.settle();
        self.resilver.settle()?;
        drained
    }

    /// Empties a device in the background; it stays in the pool and takes nothing new. Returns the job.
    pub(crate) fn evacuate(&self, name: &str) -> Result<u64, EngineError> {
        self.leave(name, Goal::Evacuate)
    }

    /// Lets a device that was emptied, or is being, take content again; only says whether it could if `dry_run`.
    pub(crate) fn use_again(&self, name: &str, dry_run: bool) -> Result<(), EngineError> {
        self.open.check()?;
        let info = self.names.find(name)?;
        self.drains.use_again(info.number, dry_run)?;
        if dry_run {
            return Ok(());
        }
        self.events
            .add("device", &format!("'{}' is used again", info.path));
        Ok(())
    }

    /// Empties a device in the background and takes it out of the pool. Returns the job.
    pub(crate) fn remove(&self, name: &str) -> Result<u64, EngineError> {
        self.leave(name, Goal::Remove)
    }

    fn leave(&self, name: &str, goal: Goal) -> Result<u64, EngineError> {
        self.open.check()?;
        let info = self.names.find(name)?;
        // Of one that leaves already the plan says there is no room: that is set aside for it.
        self.drains.check_stays(info.number)?;
        let plan = self.plans.leaving(&info, 0);
        if !plan.obstacle.is_empty() {
            return Err(EngineError::Invalid(plan.obstacle));
        }
        self.drains.start(info.number, goal, None)
    }

    /// Moves what can be read off a device, or was copied elsewhere, and takes it out of the pool with the rest, which is
    /// lost. Returns the job; none if the device is missing and there is no room to copy anything anew: then it is
    /// struck from the pool at once.
    pub(crate) fn give_up(&self, name: &str) -> Result<Option<u64>, EngineError> {
        self.open.check()?;
        let info = self.names.find(name)?;
        let plan = self.plans.leaving(&info, 0);
        // What gives nothing up makes way.
        if let Some(job) = self.drains.job_of(info.number) {
            self.drains.keep_replacement(info.number)?;
            match self.mover.cancel(job) {
                Ok(()) | Err(MoverError::Over { .. }) => self.drains.settle()?,
                Err(error) => return Err(error.into()),
            }
        }
        let info = self.names.find(&info.number.to_string())?;
        if plan.obstacle.is_empty() {
            return self.drains.start(info.number, Goal::GiveUp, None).map(Some);
        }
        if info.state != DeviceState::Missing {
            return Err(EngineError::Invalid(plan.obstacle));
        }
        self.drains.take_out(info.number, true)?;
        Ok(None)
    }

    /// Empties the end of a device in the background and cuts it off: labels first, then a file or directory itself.
    /// Returns the job.
    pub(crate) fn shrink(&self, name: &str, size_bytes: u64) -> Result<u64, EngineError> {
        self.open.check()?;
        let info = self.names.find(name)?;
        let plan = self.plans.shrinking(&info, size_bytes)?;
        if !plan.obstacle.is_empty() {
            return Err(EngineError::Invalid(plan.obstacle));
        }
        let (size_bytes, _) = self.pool.measure_shrunk(info.number, size_bytes)?;
        self.drains.start(info.number, Goal::Shrink(size_bytes), None)
    }

    /// Uses what a device has grown by; returns its size before and now, bytes.
    pub(crate) fn resize(&self, name: &str) -> Result<(u64, u64), EngineError> {
        self.open.check()?;
        let before = self.names.find(name)?;
        if self.goals.describe(before.number) == "shrinking" {
            return Err(EngineError::Busy(
                "it is being shrunk; 'terrace jobs' shows the job, 'terrace jobs cancel ID' ends that".into(),
            ));
        }
        self.pool.resize_device(before.number)?;
        let after = self.names.find(&before.number.to_string())?.size_bytes;
        if after > before.size_bytes {
            let text = format!("'{}' has grown to {}", before.path, format_size(after));
            self.events.add("device", &text);
        }
        Ok((before.size_bytes, after))
    }
}
