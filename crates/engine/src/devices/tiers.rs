//! The settings of tiers, where a new one goes, and how much of a tier is held back from the mover.
//!
//! Invariants: what was set is in force at once, and again after the next opening; more copies leave the room that is set aside; a tier
//! changes its place only together with everything that knows tiers by number.

use std::sync::Arc;

use terrace_chunk::ChunkStore;
use terrace_dataset::Datasets;
use terrace_device::format_size;
use terrace_mover::{Mover, TierPolicy};
use terrace_pool::{Landing, Pool, TierSettings, landing_tier};

use crate::{EngineError, floors::Floors, open_flag::OpenFlag, pool_properties::check_name};

/// Where a new tier goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TierPlace {
    /// It is faster than this one.
    Before(String),
    /// It is slower than this one.
    After(String),
}

/// See the module.
pub(crate) struct Tiers {
    pool: Arc<Pool>,
    chunks: Arc<ChunkStore>,
    datasets: Arc<Datasets>,
    mover: Arc<Mover>,
    open: Arc<OpenFlag>,
}

impl Tiers {
    pub(super) fn new(floors: &Floors, open: &Arc<OpenFlag>) -> Self {
        Self {
            pool: floors.pool.clone(),
            chunks: floors.chunks.clone(),
            datasets: floors.datasets.clone(),
            mover: floors.mover.clone(),
            open: open.clone(),
        }
    }

    /// Changes the settings of a tier; in force at once. Returns the tiers on which something lands no more, as it lands on this
    /// one now.
    pub(crate) fn set(
        &self,
        name: &str,
        settings: TierSettings,
    ) -> Result<Vec<(String, Landing)>, EngineError> {
        self.open.check()?;
        self.check_copies(name, settings.copies)?;
        let lands = || -> [usize; 2] {
            let tiers = self.pool.tiers();
            [true, false].map(|sequential| landing_tier(tiers.iter().map(|tier| &tier.settings), sequential))
        };
        let before = lands();
        let taken = self.pool.set_tier(name, settings)?;
        self.apply();
        // Not only once the segments that are begun are full.
        if lands() != before {
            self.chunks.land_anew()?;
        }
        self.chunks.close_short_streams()?;
        Ok(taken)
    }

    /// Gives log and metadata their second copy now, as far as there is a device with room for it; whether they have it. Who asks
    /// for copies does not wait for the next segment of the log. Takes as long as copying what metadata lies on one device.
    pub(crate) fn mirror_metadata(&self) -> Result<bool, EngineError> {
        self.open.check()?;
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

    /// Puts the settings in force.
    pub(crate) fn apply(&self) {
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
    pub(crate) fn hold_of(&self, tier: &str) -> Option<f64> {
        let level = self.pool.property(&hold_property(tier))?.parse::<f64>().ok()?;
        (level > 0.0 && level <= 1.0).then_some(level)
    }

    /// A tier is gone: another one of its name does not hold because that one did.
    pub(super) fn forget_hold(&self, tier: &str) -> Result<(), EngineError> {
        let name = hold_property(tier);
        if self.pool.property(&name).is_some() {
            self.pool.set_property(&name, None)?;
        }
        Ok(())
    }

    /// Sets it; in force at once.
    pub(crate) fn set_hold(&self, tier: &str, level: Option<f64>) -> Result<(), EngineError> {
        self.open.check()?;
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
        self.apply();
        Ok(())
    }

    /// The position of a new tier; `None`: the tier exists and no place is given.
    pub(super) fn check_place(
        &self,
        tier: &str,
        place: Option<&TierPlace>,
    ) -> Result<Option<u8>, EngineError> {
        let names: Vec<String> = self
            .pool
            .tiers()
            .into_iter()
            .map(|tier| tier.settings.name)
            .collect();
        let position = |name: &str| names.iter().position(|other| other == name);
        let listed = names.join(", ");
        match (position(tier), place) {
            (Some(_), None) => Ok(None),
            (Some(_), Some(_)) => Err(EngineError::Invalid(format!(
                "tier '{tier}' exists already; leave --before and --after out to add to it"
            ))),
            (None, None) => Err(EngineError::Invalid(format!(
                "there is no tier '{tier}'; to make it, say where it goes with --before TIER or --after TIER (there \
                 are, fastest first: {listed})"
            ))),
            (None, Some(TierPlace::Before(other) | TierPlace::After(other))) => {
                check_name("tier", tier)?;
                let at = position(other).ok_or_else(|| {
                    EngineError::Invalid(format!(
                        "there is no tier '{other}' to put '{tier}' beside; there are, fastest first: {listed}"
                    ))
                })?;
                let after = matches!(place, Some(TierPlace::After(_)));
                Ok(Some(at as u8 + u8::from(after)))
            }
        }
    }

    /// Tells everything that knows tiers by number where they are now.
    pub(super) fn moved(&self, place: impl Fn(u8) -> Option<u8>) -> Result<(), EngineError> {
        self.mover.tiers_changed(place)?;
        self.apply();
        self.datasets.tiers_changed();
        Ok(self.chunks.close_streams()?)
    }
}

/// The labels' property that keeps how far a tier holds.
fn hold_property(tier: &str) -> String {
    format!("tier.{tier}.hold")
}
