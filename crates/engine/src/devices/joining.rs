//! Devices that are to become part of a pool: what they hold is looked at, all of them, before anything of any is touched.
//!
//! Invariants: a device that holds anything is refused unless somebody insists, one that is in use always; all that is wrong is said at
//! once; what is checked stays held until it is used, so that nobody puts anything there in between; what was made or grown for a pool
//! that could not be is undone.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use terrace_device::{Cause, Claim, Device, DeviceError, DeviceSpec, HostShortage, Made};
use terrace_pool::{Content, DeviceAdd, DeviceInfo, DeviceState, TierSettings};

use super::{device_manager::DeviceManager, tiers::TierPlace};
use crate::EngineError;

/// A device that would join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoiningDevice {
    /// Where it is, or would be made.
    pub path: String,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// It is not there yet.
    pub is_made: bool,
    /// What it holds and would lose, in words; empty if nothing.
    pub overwrites: String,
}

/// A device that joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedDevice {
    /// Its number in the pool.
    pub number: u16,
    /// Where it is.
    pub path: String,
    /// Its size, bytes.
    pub size_bytes: u64,
}

/// Devices that were claimed and looked at.
pub(crate) struct Joining {
    claims: Vec<(Claim, String)>,
}

/// What is wrong with a device.
enum Objection {
    /// It cannot be had.
    Unusable(DeviceError),
    /// Its content may be wanted.
    Holds(Content),
}

impl Joining {
    /// Claims devices and looks at them; nothing is made or changed. What they hold is overlooked with `force`.
    pub(crate) fn of<'a>(
        specs: impl IntoIterator<Item = &'a DeviceSpec>,
        force: bool,
    ) -> Result<Self, EngineError> {
        let mut claims = Vec::new();
        let mut objections: Vec<(PathBuf, Objection)> = Vec::new();
        let mut seen: Vec<PathBuf> = Vec::new();
        for spec in specs {
            let real = real_path(&spec.path);
            if seen
                .iter()
                .any(|other| *other == real || is_same_file(other, &real))
            {
                return Err(EngineError::Invalid(format!(
                    "'{}' is given twice, and is a device of this pool already by the second time; name each device once",
                    spec.path.display()
                )));
            }
            seen.push(real);
            match look_at(spec) {
                Ok((claim, content)) => {
                    let overwrites = content.as_ref().map(ToString::to_string).unwrap_or_default();
                    if let Some(content) = content.filter(|_| !force) {
                        objections.push((spec.path.clone(), Objection::Holds(content)));
                    }
                    claims.push((claim, overwrites));
                }
                Err(error) => objections.push((spec.path.clone(), Objection::Unusable(error))),
            }
        }
        match objections.is_empty() {
            true => Ok(Self { claims }),
            false => Err(refusal(objections)),
        }
    }

    /// What would join.
    pub(crate) fn devices(&self) -> Vec<JoiningDevice> {
        let devices = self.claims.iter().map(|(claim, overwrites)| JoiningDevice {
            path: claim.path().to_string_lossy().into_owned(),
            size_bytes: claim.size_bytes(),
            is_made: claim.is_made(),
            overwrites: overwrites.clone(),
        });
        devices.collect()
    }

    /// Makes what is absent and grows what is smaller, all or nothing.
    pub(crate) fn make(self) -> Result<Vec<Made>, EngineError> {
        let mut made = Vec::new();
        for (claim, _) in self.claims {
            match claim.make() {
                Ok(device) => made.push(device),
                Err(error) => {
                    undo(made);
                    return Err(error.into());
                }
            }
        }
        Ok(made)
    }
}

/// Takes back what was made for devices that did not come to be part of a pool.
pub(crate) fn undo(made: Vec<Made>) {
    made.into_iter().for_each(Made::undo);
}

fn look_at(spec: &DeviceSpec) -> Result<(Claim, Option<Content>), DeviceError> {
    let claim = Claim::of(spec).map_err(|error| match (&error.cause, terrace_pool::is_pool_member(&spec.path)) {
        (Cause::InUse, Some(pool)) => DeviceError {
            cause: Cause::Other(format!(
                "it belongs to pool '{pool}', which is open; destroy or export that pool first, then --force uses its devices"
            )),
            ..error
        },
        _ => error,
    })?;
    let content = Content::of_claim(&claim)?;
    Ok((claim, content))
}

/// All that is wrong, in one line.
fn refusal(mut objections: Vec<(PathBuf, Objection)>) -> EngineError {
    // One that says best itself what to do.
    if let [(_, Objection::Unusable(error))] = &objections[..] {
        return error.clone().into();
    }
    // What cannot be overridden comes first, and its way out with it.
    objections.sort_by_key(|(_, objection)| matches!(objection, Objection::Holds(_)));
    let is_forced = objections
        .iter()
        .all(|(_, objection)| matches!(objection, Objection::Holds(_)));
    let told = objections.iter().map(|(path, objection)| match objection {
        Objection::Holds(content) => format!("'{}' holds {content}", path.display()),
        Objection::Unusable(error) => {
            let words = error.to_string();
            words.split("; ").next().unwrap_or_default().to_owned()
        }
    });
    let told: Vec<String> = told.collect();
    let remedy = match is_forced {
        true => "use other devices, or --force if what they hold may be lost; nothing was changed",
        false => {
            "use other devices, or free those first: --force overrides only what a device holds; nothing was changed"
        }
    };
    EngineError::Busy(format!("{}; {remedy}", told.join(", ")))
}

/// The path that all others that lead to it have in the end, also of what is not there yet.
fn real_path(path: &Path) -> PathBuf {
    if let Ok(real) = std::fs::canonicalize(path) {
        return real;
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parent = absolute
        .parent()
        .and_then(|parent| std::fs::canonicalize(parent).ok());
    match (parent, absolute.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => absolute,
    }
}

/// Whether two names are of one file or of one block device.
fn is_same_file(a: &Path, b: &Path) -> bool {
    let (Ok(a), Ok(b)) = (std::fs::metadata(a), std::fs::metadata(b)) else {
        return false;
    };
    let is_one_inode = (a.dev(), a.ino()) == (b.dev(), b.ino());
    is_one_inode || a.rdev() != 0 && a.rdev() == b.rdev()
}

impl DeviceManager {
    /// Adds devices to a tier, or to a new one at `place`: all of them are looked at before the first is touched. What was made for one
    /// that could not join is removed.
    pub(crate) fn add_devices(
        &self,
        tier: &str,
        devices: &[DeviceSpec],
        place: Option<&TierPlace>,
        copies: u8,
        force: bool,
    ) -> Result<Vec<AddedDevice>, EngineError> {
        let joining = self.check_adding_all(tier, devices, place, copies, force)?;
        let mut made = joining.make()?.into_iter();
        let mut added = Vec::new();
        let mut place = place;
        while let Some(next) = made.next() {
            match self.add_opened(tier, next.device.clone(), place, copies, force) {
                Ok(device) => added.push(device),
                Err(error) => {
                    self.undo_unjoined([next].into_iter().chain(made));
                    return Err(error);
                }
            }
            place = None;
        }
        Ok(added)
    }

    /// What would be added; nothing is made or changed.
    pub(crate) fn plan_adding(
        &self,
        tier: &str,
        devices: &[DeviceSpec],
        place: Option<&TierPlace>,
        copies: u8,
        force: bool,
    ) -> Result<Vec<JoiningDevice>, EngineError> {
        let joining = self.check_adding_all(tier, devices, place, copies, force)?;
        Ok(joining.devices())
    }

    fn check_adding_all(
        &self,
        tier: &str,
        devices: &[DeviceSpec],
        place: Option<&TierPlace>,
        copies: u8,
        force: bool,
    ) -> Result<Joining, EngineError> {
        if self.check_adding(tier, devices.len(), place, copies)?.is_some() {
            self.pool.check_new_tier()?;
        }
        self.claim(devices, force)
    }

    /// Whether so many devices can be added to a tier, or to a new one: its position is returned.
    fn check_adding(
        &self,
        tier: &str,
        devices: usize,
        place: Option<&TierPlace>,
        copies: u8,
    ) -> Result<Option<u8>, EngineError> {
        self.open.check()?;
        let position = self.tiers.check_place(tier, place)?;
        if place.is_some() && usize::from(copies) > devices {
            return Err(EngineError::Invalid(format!(
                "tier '{tier}' would keep {copies} copies on {devices} device(s); give it that many devices"
            )));
        }
        let there = self.pool.tiers().into_iter();
        let there = there.map(|tier| tier.settings).find(|there| there.name == tier);
        if let Some(kept) = there
            .map(|there| there.copies)
            .filter(|kept| copies > 1 && copies != *kept)
        {
            return Err(EngineError::Invalid(format!(
                "tier '{tier}' keeps {kept} copies; leave --copies out, and set it with 'terrace tier set copies={copies} {}/{tier}' once \
                 the device is there",
                self.pool.name()
            )));
        }
        Ok(position)
    }

    /// Adds a device that is open already: for the simulator.
    pub(crate) fn add_opened(
        &self,
        tier: &str,
        device: Arc<dyn Device>,
        place: Option<&TierPlace>,
        copies: u8,
        force: bool,
    ) -> Result<AddedDevice, EngineError> {
        self.open.check()?;
        let position = self.tiers.check_place(tier, place)?;
        let (path, size_bytes) = (device.path(), device.size_bytes());
        let add = match position {
            None => DeviceAdd::Tier(tier.to_owned()),
            Some(position) => DeviceAdd::NewTier {
                position,
                settings: TierSettings {
                    copies: copies.max(1),
                    ..TierSettings::named(tier)
                },
            },
        };
        let number = self.pool.add_device(device, add, force, &*self.randomness)?;
        if let Some(position) = position {
            self.tiers.moved(|tier| Some(tier + u8::from(tier >= position)))?;
        }
        self.events
            .add("device", &format!("'{path}' was added to tier '{tier}'"));
        self.resilver.start()?;
        Ok(AddedDevice {
            number,
            path,
            size_bytes,
        })
    }

    /// Claims devices that are to join this pool, and looks at them; nothing is made or changed.
    pub(super) fn claim(&self, specs: &[DeviceSpec], force: bool) -> Result<Joining, EngineError> {
        for spec in specs {
            self.refuse_own(spec)?;
        }
        let joining = Joining::of(specs, force)?;
        for (others, device) in (0..u16::MAX).zip(joining.devices()) {
            self.pool.check_joining(&device.path, device.size_bytes, others)?;
        }
        Ok(joining)
    }

    /// A device of this pool cannot join it, whatever anybody insists on. A new disk may have the name of one that is gone.
    fn refuse_own(&self, spec: &DeviceSpec) -> Result<(), EngineError> {
        let path = spec.path.to_string_lossy();
        let is_ours =
            || terrace_pool::is_pool_member(&spec.path).is_some_and(|name| name == self.pool.name());
        // One that is gone may have had the same path.
        let is_used = |info: &DeviceInfo| info.state == DeviceState::Online;
        match self.names.at(&path).iter().any(is_used) && is_ours() {
            true => Err(EngineError::Invalid(format!(
                "'{path}' is a device of this pool already, in use by its own daemon; name another one"
            ))),
            false => Ok(()),
        }
    }

    /// Takes back what was made for devices, unless they joined the pool before something else failed.
    pub(super) fn undo_unjoined(&self, made: impl IntoIterator<Item = Made>) {
        let is_out = |made: &Made| self.names.at(&made.device.path()).is_empty();
        undo(made.into_iter().filter(is_out).collect());
    }
}

/// The devices of each tier, in the order of the specs that they were made for.
pub(crate) fn by_tier(made: &[Made], sizes: impl IntoIterator<Item = usize>) -> Vec<Vec<Arc<dyn Device>>> {
    let mut devices = made.iter().map(|made| made.device.clone());
    let tiers = sizes.into_iter();
    tiers.map(|size| devices.by_ref().take(size).collect()).collect()
}

/// What is said of devices that are to take more than the filesystem under them has free; empty if they are not.
pub fn describe_shortage<'a>(specs: impl IntoIterator<Item = &'a DeviceSpec>) -> String {
    let shortages = HostShortage::of(specs).into_iter();
    let words: Vec<String> = shortages.map(|shortage| shortage.to_string()).collect();
    words.join("; ")
}
