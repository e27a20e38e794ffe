//! The course of a replacement of a disk that is gone for good: begun, driven, stopped, given up and begun again.
//!
//! Invariant: it comes to an end, however often it is stopped; what could be read before can be read after every stop.

use std::sync::Arc;

use terrace_engine::{Engine, EngineError};
use terrace_mover::JobState;

use super::{Gone, PAUSE_NANOSECONDS, Replacement, STEPS_MAX, add_fresh_disk, has_device, replacement_job};
use crate::{ensure, fs::checks::Lost, hardware::FaultKind, trace, violation, violation::Check};

/// Times that a replacement is begun at most.
const BEGINNINGS_MAX: usize = 12;

/// How a replacement ended.
pub(super) enum End {
    /// The disk has left.
    Replaced,
    /// All that can be read was moved, and the rest is told.
    HoldsLost,
    /// There was no room.
    Full,
}

/// How the steps of a replacement ended.
enum Driven {
    /// The power went, or the process ended.
    Stopped,
    Full,
    Over,
    Failed(String),
}

impl Replacement<'_> {
    /// The replacement, begun again as often as it must be. `None` if the run cannot tell what comes of it.
    pub(super) fn replace_until_the_end(
        &mut self,
        mut engine: Arc<Engine>,
        lost: &Lost,
    ) -> Check<Option<(Arc<Engine>, End)>> {
        let mut troubles = self.random.below(4);
        let mut refused = 0;
        for _ in 0..BEGINNINGS_MAX {
            if !has_device(&engine, self.gone.number) {
                return Ok(Some((engine, End::Replaced)));
            }
            if engine.check_stays(self.gone.number).is_ok() {
                if troubles > 0 && self.random.chance(1, 3) {
                    troubles -= 1;
                    let after = self.random.skewed(400);
                    self.world.rig.machine.cut_power_after(Some(after));
                }
                let begun = self.begin_replacing(&engine);
                self.world.rig.machine.cut_power_after(None);
                if !self.world.rig.is_powered() {
                    let Some(opened) = self.open_without(engine, lost)? else {
                        return Ok(None);
                    };
                    engine = opened;
                    continue;
                }
                if let Err(error) = begun {
                    let words = error.to_string();
                    trace!(self.world.rig.trace, "the replacement does not begin: {words}");
                    if has_stopped(&words, &self.gone) {
                        return Ok(None);
                    }
                    // What was taken back, or is being brought up to date, first comes to its end.
                    refused += 1;
                    ensure!(
                        refused < 5 || words.contains("full") || words.contains("room"),
                        "a missing disk cannot be replaced: {words}"
                    );
                    self.settle(&engine)?;
                    if refused == 5 {
                        return Ok(None);
                    }
                    continue;
                }
            }
            match self.drive(&engine, lost, &mut troubles)? {
                Driven::Stopped => {
                    let Some(opened) = self.open_without(engine, lost)? else {
                        return Ok(None);
                    };
                    engine = opened;
                }
                Driven::Full => return Ok(Some((engine, End::Full))),
                Driven::Over => {}
                Driven::Failed(reason) => {
                    if reason.contains("full") || reason.contains("no room") {
                        return Ok(Some((engine, End::Full)));
                    }
                    ensure!(
                        reason.contains("cannot be read") || reason.contains("lies on device"),
                        "a missing disk was not replaced: {reason}"
                    );
                    return Ok(Some((engine, End::HoldsLost)));
                }
            }
        }
        violation!("a missing disk was not replaced in {BEGINNINGS_MAX} times")
    }

    /// Puts a fresh disk in the place of the missing one, or goes on with one that is in the pool already.
    fn begin_replacing(&mut self, engine: &Engine) -> Result<u64, EngineError> {
        let number = self.gone.number.to_string();
        let newest = self.world.rig.machine.disk_count() - 1;
        let joined = engine.find_device(&format!("/simulated/disk{newest}"));
        if newest != self.gone.disk
            && !self.world.rig.members.contains(newest)
            && joined.is_ok_and(|info| !info.draining)
        {
            let begun = engine.remove_device(&number);
            if !lacks_devices(&begun) {
                return begun;
            }
        }
        let fresh = add_fresh_disk(&self.world.rig, self.random);
        let begun = engine.replace_opened(&number, self.world.rig.machine.device(fresh), false);
        if !lacks_devices(&begun) {
            return begun;
        }
        // A tier that has fewer devices than copies gets one first, as it says.
        trace!(self.world.rig.trace, "the tier gets disk {fresh} first");
        let tier = engine.find_device(&number)?.tier;
        let tier = engine.pool().tiers()[usize::from(tier)].settings.name.clone();
        engine.add_opened(&tier, self.world.rig.machine.device(fresh), None, 1, false)?;
        let second = add_fresh_disk(&self.world.rig, self.random);
        engine.replace_opened(&number, self.world.rig.machine.device(second), false)
    }

    /// Steps until the job of the replacement is over; now and then something comes in between.
    fn drive(&mut self, engine: &Engine, lost: &Lost, troubles: &mut u64) -> Check<Driven> {
        let in_the_way = || {
            let busy = engine.check_stays(self.gone.number).err();
            busy.and_then(|busy| job_named(&busy))
        };
        let job = replacement_job(engine, self.gone.number).or_else(in_the_way);
        let state = job.and_then(|job| engine.mover().state_of(job));
        if let (Some(job), Some((JobState::Paused, reason))) = (job, state) {
            // What was paused before the disk went never ends by itself: who wants it replaced gives that up, as he is told.
            let given_up = engine.job_action(job, "cancel");
            trace!(
                self.world.rig.trace,
                "{reason}: paused, given up: {}",
                given_up.is_ok()
            );
            self.settle(engine)?;
            return Ok(Driven::Over);
        }
        for _ in 0..STEPS_MAX {
            if *troubles > 0 && self.random.chance(1, 12) {
                *troubles -= 1;
                if self.come_between(engine, job, lost)? {
                    return Ok(Driven::Stopped);
                }
            }
            let stepped = engine.step();
            if !self.world.rig.is_powered() {
                return Ok(Driven::Stopped);
            }
            if let Err(error) = stepped {
                let words = error.to_string();
                if waits_for_the_gone(&words) {
                    continue;
                }
                ensure!(
                    words.contains("full")
                        || has_stopped(&words, &self.gone)
                        || misses_the_gone(&words, &self.gone),
                    "a step while a missing disk is replaced: {error}"
                );
                return Ok(Driven::Full);
            }
            if engine.check_stays(self.gone.number).is_ok() {
                break;
            }
        }
        self.world.rig.machine.cut_power_after(None);
        let state = job.and_then(|job| engine.mover().state_of(job));
        trace!(self.world.rig.trace, "the replacement: {state:?}");
        match state {
            Some((JobState::Failed, reason)) => Ok(Driven::Failed(reason)),
            _ if engine.check_stays(self.gone.number).is_err() => {
                violation!("a missing disk is replaced without end: {state:?}")
            }
            _ => {
                // What was given up leaves again, or is in the pool beside the other.
                self.settle(engine)?;
                Ok(Driven::Over)
            }
        }
    }

    /// Something comes in between: a stop, an end of the replacement, or a look at everything. Whether the process has ended.
    fn come_between(&mut self, engine: &Engine, job: Option<u64>, lost: &Lost) -> Check<bool> {
        match self.random.below(4) {
            0 => {
                let after = self.random.skewed(200);
                self.world.rig.machine.cut_power_after(Some(after));
            }
            1 => {
                self.world.rig.machine.kill();
                return Ok(true);
            }
            2 => {
                if let Some(job) = job {
                    let cancelled = engine.job_action(job, "cancel");
                    trace!(
                        self.world.rig.trace,
                        "replacement given up: {}",
                        cancelled.is_ok()
                    );
                }
            }
            _ => {
                self.world.rig.machine.cut_power_after(None);
                let now = self.survivors(engine)?;
                now.is_no_more_than(lost)?;
            }
        }
        Ok(false)
    }

    /// Ticks and steps until the background rests; a full pool, and the power, excuse what fails.
    pub(super) fn settle(&self, engine: &Engine) -> Check {
        for _ in 0..4 {
            self.world.rig.machine.clock.advance(PAUSE_NANOSECONDS);
            let mut outcome = engine.tick().map(drop).map_err(|error| error.to_string());
            for _ in 0..STEPS_MAX {
                match engine.step() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        outcome = Err(error.to_string());
                        break;
                    }
                }
            }
            if let Err(words) = outcome {
                ensure!(
                    words.contains("full")
                        || waits_for_the_gone(&words)
                        || has_stopped(&words, &self.gone)
                        || misses_the_gone(&words, &self.gone)
                        || !self.world.rig.is_powered(),
                    "the background while a disk is missing: {words}"
                );
            }
        }
        Ok(())
    }

    /// The machine stopped in the middle: the pool opens again, without the disk, and shows the same. `None` if it never was open
    /// without it, and what that needs had no other copy.
    fn open_without(&mut self, engine: Arc<Engine>, lost: &Lost) -> Check<Option<Arc<Engine>>> {
        drop(engine);
        let machine = self.world.rig.machine.clone();
        match machine.is_powered() && self.random.chance(1, 2) {
            true => machine.kill(),
            false => {
                self.world.rig.coverage.hit(FaultKind::PowerCut);
                machine.cut_power();
                machine.settle();
            }
        }
        for attempt in 0.. {
            let again = attempt < 3 && self.random.chance(1, 4);
            machine.cut_power_after(again.then(|| self.random.skewed(300)));
            let opened = self.world.rig.open(true);
            machine.cut_power_after(None);
            match opened {
                Ok(engine) if machine.is_powered() => {
                    let now = self.survivors(&engine)?;
                    now.is_no_more_than(lost)?;
                    trace!(
                        self.world.rig.trace,
                        "open again, with the old one: {}",
                        has_device(&engine, self.gone.number)
                    );
                    self.gone.opened_without = true;
                    return Ok(Some(engine));
                }
                Err(error) if machine.is_powered() && !self.gone.covered && !self.gone.opened_without => {
                    trace!(self.world.rig.trace, "opening without it: {error}");
                    return Ok(None);
                }
                Err(error) if machine.is_powered() => {
                    violation!(
                        "the pool opened without disk {}, and does not any more: {error}",
                        self.gone.disk
                    )
                }
                _ => {}
            }
            self.world.rig.coverage.hit(FaultKind::PowerCutInRecovery);
            machine.cut_power();
            machine.settle();
        }
        violation!("the pool is never opened")
    }
}

/// The job that is to be cancelled first, as these words say.
fn job_named(busy: &EngineError) -> Option<u64> {
    let words = busy.to_string();
    let (_, behind) = words.split_once("jobs cancel ")?;
    behind.split('\'').next()?.parse().ok()
}

/// The tier would have fewer devices than copies.
fn lacks_devices(begun: &Result<u64, EngineError>) -> bool {
    matches!(begun, Err(EngineError::Invalid(words)) if words.contains("add one to the tier first"))
}

/// The pool stopped, since it had its log on the disk that is gone alone.
fn has_stopped(words: &str, gone: &Gone) -> bool {
    !gone.covered && words.contains("stopped accepting writes")
}

/// The end of another disk is cut off once every device has taken the label that says so, or has left.
fn waits_for_the_gone(words: &str) -> bool {
    words.contains("is not cut off yet")
}

/// What the background comes upon that lay on the disk that is gone alone; a checkpoint needs nothing of it.
fn misses_the_gone(words: &str, gone: &Gone) -> bool {
    !gone.covered && gone.is_named(words) && !words.contains("metadata manifest")
}
