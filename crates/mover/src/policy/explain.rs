//! What the policies would do next with content on a tier, and what keeps them from it: for people who ask where something
//! lies and why.
//!
//! Invariants: it promises only what the settings of now allow, by the same rules that the policies go by; asking changes
//! nothing.

use terrace_dataset::FileKind;
use terrace_store::TierUsage;

use crate::{
    jobs::{JobKind, JobState},
    mover::{BENEATH, Inner, Mover, in_window, tier_name},
    pins::pins,
    tiers::{filled_bytes, holds, may_rise, minute_of_day, room, room_below},
};

/// What must fit on a tier before anything rises to it, bytes.
const REGION_BYTES: u64 = 1 << 20;

/// A move of something by hand, or for its pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnderWay {
    /// The job.
    pub id: u64,
    /// Name of the tier that it moves to.
    pub target: String,
    /// Why it does not go on at the moment, if so.
    pub obstacle: Option<String>,
}

impl Mover {
    /// The tier that policies would move hot content of this tier up to now; else what keeps them from it.
    pub fn rises_to(&self, tier: u8) -> Result<u8, String> {
        let inner = &mut *self.inner.lock();
        let after = inner
            .policies
            .get(usize::from(tier))
            .map_or(0, |policy| policy.promote_after);
        if tier == 0 {
            return Err("there is no faster tier".into());
        }
        if after == 0 {
            return Err(format!(
                "promote_after=never keeps content on tier '{}'",
                tier_name(inner, tier)
            ));
        }
        self.may_migrate()?;
        if tier >= self.resting_from(inner) {
            return Err(self.describe_rest(inner));
        }
        let tiers = self.usage(inner);
        let found = (0..usize::from(tier).min(tiers.len()))
            .find(|at| may_rise(&tiers[*at], inner.policies.get(*at), REGION_BYTES));
        let Some(target) = found.map(|at| at as u8) else {
            return Err(format!(
                "tier '{}' has no room up to its marks, so that something colder has to make way there first",
                tier_name(inner, 0)
            ));
        };
        self.is_open(inner, tier)?;
        // What rises is looked for only while the fastest may be moved to.
        self.is_open(inner, 0)?;
        self.is_open(inner, target)?;
        Ok(target)
    }

    /// What policies would let lie of hot content on the fastest tier if that had this size, bytes: up to the mark that content
    /// is moved up to, or the level up to which it holds what is written, but for the metadata that lies there.
    pub fn hot_bytes_max(&self, size_bytes: u64) -> u64 {
        let inner = &mut *self.inner.lock();
        let metadata_bytes = self.usage(inner).first().map_or(0, |tier| tier.metadata_bytes);
        let tier = TierUsage {
            size_bytes,
            metadata_bytes,
            ..TierUsage::default()
        };
        let policy = inner.policies.first();
        let held = policy.and_then(|policy| policy.hold).unwrap_or(0.0) * size_bytes as f64;
        room(&tier, policy).max((held as u64).saturating_sub(metadata_bytes))
    }

    /// The tier that policies move cold content of this tier down to now, since it is above its mark or has held what was written
    /// up to its level; else what keeps them from it.
    pub fn sinks_to(&self, tier: u8) -> Result<u8, String> {
        let inner = &mut *self.inner.lock();
        let tiers = self.usage(inner);
        let at = usize::from(tier);
        let (Some(usage), Some(policy)) = (tiers.get(at), inner.policies.get(at)) else {
            return Err("its tier is gone".into());
        };
        let name = &policy.name;
        let pending = self.environment.store.space().pending_free_bytes;
        let filled = filled_bytes(usage).saturating_sub(pending) as f64;
        let sinking = inner.demotion_of(tier) == Some(JobState::Running);
        match policy.hold {
            _ if sinking => {}
            Some(level) if holds(usage, level) => {
                return Err(format!(
                    "tier '{name}' holds what is written until it is {:.0} % full",
                    level * 100.0
                ));
            }
            None if filled <= policy.high_water * usage.size_bytes as f64 => {
                return Err(format!("tier '{name}' has room below its high-water mark"));
            }
            _ => {}
        }
        self.goes_down(inner, tier)
    }

    /// The tier that policies move what was not used for `demote_after` down to now; else what keeps them from it.
    pub fn ages_to(&self, tier: u8) -> Result<u8, String> {
        self.goes_down(&mut self.inner.lock(), tier)
    }

    fn goes_down(&self, inner: &mut Inner, tier: u8) -> Result<u8, String> {
        let tiers = self.usage(inner);
        let Some(target) = room_below(&tiers, &inner.policies, tier) else {
            return Err(match usize::from(tier) + 1 < tiers.len() {
                true => "no slower tier has room below its high-water mark".into(),
                false => "there is no slower tier".into(),
            });
        };
        self.may_migrate()?;
        if target >= self.resting_from(inner) {
            return Err(self.describe_rest(inner));
        }
        self.is_open(inner, tier)?;
        self.is_open(inner, target)?;
        Ok(target)
    }

    fn may_migrate(&self) -> Result<(), String> {
        match self.is_enabled() {
            true => Ok(()),
            false => Err("migration is off ('terrace pool set migration=on' lets it go on)".into()),
        }
    }

    fn is_open(&self, inner: &Inner, tier: u8) -> Result<(), String> {
        let minute = minute_of_day(self.environment.clock.now_nanoseconds());
        if in_window(&inner.policies, tier, minute) {
            return Ok(());
        }
        let window = inner.policies.get(usize::from(tier)).map(|policy| &policy.window);
        Err(format!(
            "policies move to and from tier '{}' only at {}",
            tier_name(inner, tier),
            window.map_or("", |window| window)
        ))
    }

    fn describe_rest(&self, inner: &Inner) -> String {
        let holding = self.resting_from(inner).saturating_sub(1);
        format!(
            "tier '{}' holds what is written, and slower tiers rest meanwhile",
            tier_name(inner, holding)
        )
    }

    /// Whether somebody moved this down by hand so lately that policies do not bring it up again yet. `object` 0: never.
    pub fn is_kept_down(&self, dataset: u32, object: u64) -> bool {
        let body = pins::body_of(self.environment.store.as_ref(), dataset, object);
        let inner = self.inner.lock();
        body.ok()
            .flatten()
            .is_some_and(|body| inner.by_hand.holds(dataset, body))
    }

    /// The newest move by hand or for a pin that concerns this object (0: the dataset), if one is not over.
    pub fn move_of(&self, dataset: u32, object: u64) -> Option<UnderWay> {
        let store = self.environment.store.as_ref();
        let inode = match object {
            0 => None,
            _ => pins::inode_of(store, dataset, object).ok().flatten(),
        };
        let is_directory = inode
            .as_ref()
            .is_some_and(|inode| inode.kind == FileKind::Directory);
        let body = match &inode {
            Some(_) if is_directory => object,
            Some(inode) => inode.body,
            None => 0,
        };
        let inner = self.inner.lock();
        let found = inner.jobs.iter().rev().find(|(_, active)| {
            let job = &active.job;
            let beneath = job.body == BENEATH && body != 0 && {
                let pin = self.pin_of(&inner, dataset, body);
                pin.is_some_and(|pin| pin == tier_name(&inner, job.target))
            };
            let walked = active.subtree.as_ref();
            let inside = walked.is_some_and(|all| all.holds(dataset, body));
            let own = job.body == body && job.is_directory == is_directory;
            job.kind == JobKind::Move
                && !job.state.is_over()
                && job.dataset == dataset
                && (own || job.body == 0 || beneath || inside)
        });
        let (id, active) = found?;
        let retry = active.retry.as_ref();
        let now = self.environment.clock.monotonic_nanoseconds();
        let obstacle = match active.job.state {
            JobState::Paused => Some(format!("it is paused ('terrace jobs resume {id}' lets it go on)")),
            _ if self.may_migrate().is_err() => self.may_migrate().err(),
            _ => retry.map(|retry| retry.describe(now)),
        };
        Some(UnderWay {
            id: *id,
            target: tier_name(&inner, active.job.target).to_owned(),
            obstacle,
        })
    }
}
