//! The settings of tiers, and how much of a tier is held back from the mover.
//!
//! Invariants: what was set is in force at once, and again after the next opening; more copies leave the room that is set aside.

use terrace_device::format_size;
use terrace_mover::TierPolicy;
use terrace_pool::{Landing, TierSettings, landing_tier};

use crate::{EngineError, engine::Engine};

impl Engine {
    /// Changes the settings of a tier; in force at once. Returns the tiers on which something lands no more, as it lands on this
    /// one now.
    ///
    /// # Errors
    /// `Pool` if there is no such tier or the labels cannot be written; `Invalid` with figures if more copies would take what is
    /// set aside.
    pub fn set_tier(
        &self,
        name: &str,
        settings: TierSettings,
    ) -> Result<Vec<(String, Landing)>, EngineError> {
        self.check_open()?;
        self.check_copies(name, settings.copies)?;
        let lands = || -> [usize; 2] {
            let tiers = self.pool.tiers();
            [true, false].map(|sequential| landing_tier(tiers.iter().map(|tier| &tier.settings), sequential))
        };
        let before = lands();
        let taken = self.pool.set_tier(name, settings)?;
        self.apply_tiers();
        // Not only once the segments that are begun are full.
        if lands() != before {
            self.chunks.land_anew()?;
        }
        self.chunks.close_short_streams()?;
        Ok(taken)
    }

    /// Gives log and metadata their second copy now, as far as there is a device with room for it; whether they have it. Who asks
    /// for copies does not wait for the next segment of the log. Takes as long as copying what metadata lies on one device.
    ///
    /// # Errors
    /// `Store` if a device fails.
    pub fn mirror_metadata(&self) -> Result<bool, EngineError> {
        self.check_open()?;
        Ok(self.chunks.mirror_now()?)
    }

    /// Whether as many copies leave room for what was promised, as far as there is room for that now.
    fn check_copies(&self, name: &str, copies: u8) -> Result<(), EngineError> {
        let tiers = self.pool.tiers();
        let tier = tiers.iter().find(|tier| tier.settings.name == name);
        if tier.is_none_or(|tier| copies <= tier.settings.copies) {
            return Ok(());
        }
        let promised = self.chunks.backed_promises();
        let room = self.chunks.room_with_copies(name, copies);
        if promised <= room {
            return Ok(());
        }
        let pool = self.pool.name();
        Err(EngineError::Invalid(format!(
            "with {copies} copies tier '{name}' would leave room for {}, and {} are set aside for reservations and for what is \
             being written or leaves devices; add a device with 'terrace pool add {pool}', delete something, or reserve less with \
             'terrace set reservation=SIZE DATASET'",
            format_size(room),
            format_size(promised)
        )))
    }

    pub(crate) fn apply_tiers(&self) {
        let tiers = self.pool.tiers().into_iter().map(|tier| tier.settings);
        let policies: Vec<_> = tiers
            .map(|settings| TierPolicy {
                hold: self.hold_of(&settings.name),
                name: settings.name,
                high_water: settings.high_water,
                low_water: settings.low_water,
                promote_after: settings.promote_after,
                demote_after_seconds: settings.demote_after_seconds,
                rate_limit: settings.rate_limit,
                window: settings.window,
            })
            .collect();
        self.pool
            .set_holds(policies.iter().map(|policy| policy.hold).collect());
        self.mover.set_policies(policies);
        self.chunks.set_resting_from(self.mover.resting_tiers());
    }

    /// Fill level up to which a tier keeps what is written, so that the disks below may sleep.
    pub fn hold_of(&self, tier: &str) -> Option<f64> {
        let level = self.pool.property(&hold_property(tier))?.parse::<f64>().ok()?;
        (level > 0.0 && level <= 1.0).then_some(level)
    }

    /// A tier is gone: another one of its name does not hold because that one did.
    pub(crate) fn forget_hold(&self, tier: &str) -> Result<(), EngineError> {
        let name = hold_property(tier);
        if self.pool.property(&name).is_some() {
            self.pool.set_property(&name, None)?;
        }
        Ok(())
    }

    /// Sets it; in force at once.
    ///
    /// # Errors
    /// `Invalid` for a level below the low-water mark, `Pool` if there is no such tier or the labels cannot be written.
    pub fn set_hold(&self, tier: &str, level: Option<f64>) -> Result<(), EngineError> {
        self.check_open()?;
        let tiers = self.pool.tiers();
        let Some(found) = tiers.iter().find(|found| found.settings.name == tier) else {
            return Err(EngineError::Invalid(format!("the pool has no tier '{tier}'")));
        };
        if let Some(level) = level
            && !(level > found.settings.low_water && level <= 1.0)
        {
            return Err(EngineError::Invalid(format!(
                "hold must be above low_water ({}), down to which the tier is emptied when it is reached, and at most 100%; \
                 set low_water first",
                found.settings.low_water
            )));
        }
        let text = level.map(|level| level.to_string());
        self.pool.set_property(&hold_property(tier), text.as_deref())?;
        self.apply_tiers();
        Ok(())
    }
}

/// The labels' property that keeps how far a tier holds.
fn hold_property(tier: &str) -> String {
    format!("tier.{tier}.hold")
}
