//! Devices that come and go while the pool is in use: adding, emptying, removing, replacing, growing, shrinking.
//!
//! Invariants: nothing is begun that the figures say cannot end well, and the refusal names them; a tier changes its
//! place only together with everything that knows tiers by number.

use std::{collections::HashSet, path::Path, sync::Arc};

use terrace_device::{Device, DeviceSpec, HostShortage, format_size};
use terrace_mover::MoverError;
use terrace_pool::{DeviceAdd, DeviceInfo, DeviceState, SegmentRange, TierSettings};

use super::{
    drain::{Goal, room_to_move},
    joining::JoiningDevice,
    resilver::is_out_of_step,
};
use crate::{DamagedFile, DeviceStatus, Engine, EngineError, lifecycle::check_name, reporting::rfc3339};

/// Where a new tier goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TierPlace {
    /// It is faster than this one.
    Before(String),
    /// It is slower than this one.
    After(String),
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

/// Whether a device can be emptied, in figures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeavingPlan {
    /// Where it is.
    pub path: String,
    /// Its tier.
    pub tier: String,
    /// Live content on it, metadata included, bytes.
    pub live_bytes: u64,
    /// Room on the other devices beyond the reserve, bytes.
    pub room_bytes: u64,
    /// Why not; empty if it can be.
    pub obstacle: String,
    /// What will be worse than before although it can be; empty if nothing.
    pub warning: String,
    /// What of the pool is lost by it for good, since the device that comes has it; empty if nothing.
    pub loses: String,
    /// The device that would take its place, if one would.
    pub joining: Option<JoiningDevice>,
}

impl Engine {
    /// A device by its path or number (`2`, `device:2`).
    ///
    /// # Errors
    /// `Invalid` if there is none, or if there are several at that path: a device that is gone, and the one in its place.
    pub fn find_device(&self, name: &str) -> Result<DeviceInfo, EngineError> {
        let found = self.devices_at(name);
        if let [first, second, ..] = &found[..] {
            return Err(EngineError::Invalid(format!(
                "two devices of the pool have the path '{name}': name one by its number, 'device:{}' ({}) or 'device:{}' ({})",
                first.number, first.state, second.number, second.state
            )));
        }
        let devices = self.pool.devices();
        let by_number = || {
            let number = name.strip_prefix("device:").unwrap_or(name);
            let number = number.parse::<u16>().ok()?;
            devices.iter().find(|info| info.number == number).cloned()
        };
        found.into_iter().next().or_else(by_number).ok_or_else(|| {
            let paths: Vec<_> = devices
                .iter()
                .map(|info| format!("{} (device:{})", info.path, info.number))
                .collect();
            EngineError::Invalid(format!(
                "the pool has no device '{name}'; its devices are {}",
                paths.join(", ")
            ))
        })
    }

    /// The devices that are, or were last seen, at a path.
    pub(crate) fn devices_at(&self, path: &str) -> Vec<DeviceInfo> {
        let real = std::fs::canonicalize(path).ok();
        let is_it = |info: &DeviceInfo| {
            info.path == path
                || Path::new(&info.path) == Path::new(path)
                || real.is_some() && std::fs::canonicalize(&info.path).ok() == real
        };
        let mut devices = self.pool.devices();
        devices.retain(|info| info.state != DeviceState::Removed && is_it(info));
        devices
    }

    /// What a device is called where it must be told from all others: its path, or its number if another one has that path.
    pub(crate) fn device_name(&self, device: u16) -> String {
        let path = self.device_path(device);
        match self.devices_at(&path).len() {
            0 | 1 => path,
            _ => format!("device:{device}"),
        }
    }

    pub(crate) fn device_path(&self, device: u16) -> String {
        let devices = self.pool.devices();
        let found = devices.into_iter().find(|info| info.number == device);
        found.map_or_else(|| format!("device {device}"), |info| info.path)
    }

    /// Whether so many devices can be added to a tier, or to a new one: its position is returned.
    pub(crate) fn check_adding(
        &self,
        tier: &str,
        devices: usize,
        place: Option<&TierPlace>,
        copies: u8,
    ) -> Result<Option<u8>, EngineError> {
        self.check_open()?;
        let position = self.check_place(tier, place)?;
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
    ///
    /// # Errors
    /// As [`add_devices`](Self::add_devices).
    pub fn add_opened(
        &self,
        tier: &str,
        device: Arc<dyn Device>,
        place: Option<&TierPlace>,
        copies: u8,
        force: bool,
    ) -> Result<AddedDevice, EngineError> {
        self.check_open()?;
        let position = self.check_place(tier, place)?;
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
            self.tiers_moved(|tier| Some(tier + u8::from(tier >= position)))?;
        }
        self.event("device", &format!("'{path}' was added to tier '{tier}'"));
        self.start_resilver()?;
        Ok(AddedDevice {
            number,
            path,
            size_bytes,
        })
    }

    /// The position of a new tier; `None`: the tier exists and no place is given.
    fn check_place(&self, tier: &str, place: Option<&TierPlace>) -> Result<Option<u8>, EngineError> {
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
    pub(crate) fn tiers_moved(&self, place: impl Fn(u8) -> Option<u8>) -> Result<(), EngineError> {
        self.mover.tiers_changed(place)?;
        self.apply_tiers();
        self.datasets.tiers_changed();
        Ok(self.chunks.close_streams()?)
    }

    /// Whether the other devices can hold what is on this one. `joining_bytes`: what a device about to join adds.
    pub fn plan_leaving(&self, info: &DeviceInfo, joining_bytes: u64) -> LeavingPlan {
        let segment = u64::from(self.pool.segment_bytes());
        let load = self.chunks.load_of(SegmentRange::whole(info.number));
        let devices = self.pool.devices();
        let stays = |other: &&DeviceInfo| {
            other.number != info.number && other.state == DeviceState::Online && !other.draining
        };
        let others_leaving: u64 = devices
            .iter()
            .filter(|other| other.number != info.number && other.draining)
            .map(|other| self.chunks.load_of(SegmentRange::whole(other.number)).live_bytes)
            .sum();
        let room = self.chunks.room_for_leaving(info.number, joining_bytes);
        // What was promised stays so, but for the sake of a device that does not work; and one that is as large in its place
        // takes nothing from anybody.
        let shrinks = joining_bytes < self.joining_bytes(info.size_bytes);
        let promised = match shrinks && info.state == DeviceState::Online {
            true => self.chunks.backed_promises(),
            false => 0,
        };
        // What others still have to move is among that.
        let room = match promised {
            0 => room.saturating_sub(others_leaving),
            _ => room,
        };
        let room_bytes = room.saturating_sub(promised);
        let live_bytes = load.live_bytes + load.metadata_bytes;
        let tiers = self.pool.tiers();
        let tier = tiers.get(usize::from(info.tier));
        let staying = devices.iter().filter(stays).count() as u64 + u64::from(joining_bytes > 0);
        let in_tier = devices
            .iter()
            .filter(stays)
            .filter(|other| other.tier == info.tier);
        let in_tier = in_tier.count() + usize::from(joining_bytes > 0);
        let copies = tier.map_or(1, |tier| usize::from(tier.settings.copies));
        // A tier that is taken apart goes through this, once it is empty.
        let lacks_devices = in_tier > 0 && in_tier < copies;
        // Records and the ends of segments take some more at the new place; less where that is counted by pairs, as the other
        // copies give back the same.
        let ends = self.chunks.unused_ends(load.live_bytes) / copies.max(1) as u64;
        let more = ends.max(load.live_bytes / if copies > 1 { 32 } else { 8 });
        let need = load.live_bytes + more + load.metadata_bytes + 2 * segment;
        let mut obstacle = String::new();
        if let Some(other) = devices.iter().filter(stays).find(is_out_of_step) {
            // It could not stand for the pool: nothing may leave that the labels, roots and log rely on.
            let pool = self.pool.name();
            obstacle = format!(
                "'{}' missed something and is being brought up to date; try again when 'terrace status {pool}' says no more of \
                 that, or after 'terrace stop {pool}' and 'terrace start {pool}' if it lasts",
                other.path
            );
        } else if staying == 0 {
            let aside = self.set_aside_in_words();
            obstacle = "it is the last device of the pool that can be used; add another one first".into();
            if !aside.is_empty() {
                obstacle.push_str(&format!(" ({aside})"));
            }
        } else if lacks_devices && load.live_bytes > 0 {
            obstacle = format!(
                "its tier keeps {copies} copies, and only {in_tier} device(s) would be left; add one to the tier first"
            );
        } else if live_bytes > 0 && need > room_bytes || promised > room {
            let copies = match copies {
                1 => String::new(),
                copies => format!(" in {copies} copies, each on a device of its own"),
            };
            let promised = match promised {
                0 => String::new(),
                promised if others_leaving > 0 => format!(
                    ", beside {} that are set aside for reservations and for what leaves other devices",
                    format_size(promised)
                ),
                promised => format!(
                    ", beside {} that are set aside for reservations",
                    format_size(promised)
                ),
            };
            obstacle = format!(
                "it holds {}, which needs {} elsewhere, and the other devices have room for {}{copies}{promised}; add a device, or \
                 delete something and run 'terrace compact'",
                format_size(live_bytes),
                format_size(need),
                format_size(room_bytes),
            );
        }
        let tier = tier.map_or_else(String::new, |tier| tier.settings.name.clone());
        let warning = match lacks_devices && obstacle.is_empty() {
            true => too_few_in_words(&self.pool.name(), &tier, copies, in_tier),
            false => String::new(),
        };
        LeavingPlan {
            path: info.path.clone(),
            tier,
            live_bytes,
            room_bytes,
            obstacle,
            warning,
            loses: String::new(),
            joining: None,
        }
    }

    /// The same for who only asks: emptying a device that is missing would fail at its end if it has something that no other one has.
    ///
    /// # Errors
    /// What the store says.
    pub fn plan_leaving_whole(
        &self,
        info: &DeviceInfo,
        mut plan: LeavingPlan,
    ) -> Result<LeavingPlan, EngineError> {
        if !plan.obstacle.is_empty() || info.state != DeviceState::Missing {
            return Ok(plan);
        }
        let (pool, number) = (self.pool.name(), info.number);
        let alone = self.chunks.has_alone(number)?;
        if alone.unknown > 0 {
            let unknown = format!(
                "of {} chunks it is not known whether they have another copy, since their records are damaged: 'terrace scrub {pool} \
                 --wait' names them",
                alone.unknown
            );
            plan.warning = match plan.warning.is_empty() {
                true => unknown,
                false => format!("{}; {unknown}", plan.warning),
            };
        }
        if alone.found {
            // Another one may be at its path by now.
            plan.obstacle = format!(
                "it is missing, and some of what it holds has no other copy; bring it back, or take it out without that by 'terrace pool \
                 remove {pool} {number} --lost' ('terrace status {pool} --lost' names the files)"
            );
        }
        Ok(plan)
    }

    /// Empties a device in the background; it stays in the pool and takes nothing new. Returns the job.
    ///
    /// # Errors
    /// `Invalid` with figures if the other devices cannot hold what is on it.
    pub fn evacuate_device(&self, name: &str) -> Result<u64, EngineError> {
        self.leave(name, Goal::Evacuate)
    }

    /// Lets a device that was emptied, or is being, take content again; only says whether it could if `dry_run`.
    ///
    /// # Errors
    /// `Invalid` if it was not emptied, `Busy` if it is being taken out or shrunk.
    pub fn use_device_again(&self, name: &str, dry_run: bool) -> Result<(), EngineError> {
        self.check_open()?;
        let info = self.find_device(name)?;
        self.use_again(info.number, dry_run)?;
        if dry_run {
            return Ok(());
        }
        self.event("device", &format!("'{}' is used again", info.path));
        Ok(())
    }

    /// Empties a device in the background and takes it out of the pool. Returns the job.
    ///
    /// # Errors
    /// As [`evacuate_device`](Self::evacuate_device).
    pub fn remove_device(&self, name: &str) -> Result<u64, EngineError> {
        self.leave(name, Goal::Remove)
    }

    fn leave(&self, name: &str, goal: Goal) -> Result<u64, EngineError> {
        self.check_open()?;
        let info = self.find_device(name)?;
        // Of one that leaves already the plan says there is no room: that is set aside for it.
        self.check_stays(info.number)?;
        let plan = self.plan_leaving(&info, 0);
        if !plan.obstacle.is_empty() {
            return Err(EngineError::Invalid(plan.obstacle));
        }
        self.start_emptying(info.number, goal, None)
    }

    /// Moves what can be read off a device, or was copied elsewhere, and takes it out of the pool with the rest, which is
    /// lost. Returns the job; none if the device is missing and there is no room to copy anything anew: then it is
    /// struck from the pool at once.
    ///
    /// # Errors
    /// As [`evacuate_device`](Self::evacuate_device), for a device that is there.
    pub fn give_up_device(&self, name: &str) -> Result<Option<u64>, EngineError> {
        self.check_open()?;
        let info = self.find_device(name)?;
        let plan = self.plan_leaving(&info, 0);
        // What gives nothing up makes way.
        if let Some(job) = self.emptying_job(info.number) {
            self.keep_replacement(info.number)?;
            match self.mover.cancel(job) {
                Ok(()) | Err(MoverError::Over { .. }) => self.settle_leaving()?,
                Err(error) => return Err(error.into()),
            }
        }
        let info = self.find_device(&info.number.to_string())?;
        if plan.obstacle.is_empty() {
            return self.start_emptying(info.number, Goal::GiveUp, None).map(Some);
        }
        if info.state != DeviceState::Missing {
            return Err(EngineError::Invalid(plan.obstacle));
        }
        self.take_out(info.number, true)?;
        Ok(None)
    }

    /// What is known to be lost with devices that are gone, could not be read when one was emptied, or was found damaged by
    /// the last scrub: files from number `from` on, and whether there are more.
    pub fn lost_files(&self, from: usize, limit: usize) -> (Vec<DamagedFile>, bool) {
        let (mut others, _) = self.scrub.damaged_files();
        others.extend(self.met.files());
        if others.is_empty() {
            return self.losses.page(from, limit);
        }
        let (mut files, _) = self.losses.page(0, usize::MAX);
        let mut known: HashSet<String> = files.iter().map(|file| file.path.clone()).collect();
        files.extend(others.into_iter().filter(|file| known.insert(file.path.clone())));
        let more = files.len() > from.saturating_add(limit);
        (files.into_iter().skip(from).take(limit).collect(), more)
    }

    /// Whether [`lost_files`](Self::lost_files) are surely all that the last scrub found.
    pub fn all_damaged_are_named(&self) -> bool {
        self.scrub.damaged_files().1
    }

    /// What a device of a size would add: labels and the remainder of a segment are not for content.
    pub(crate) fn joining_bytes(&self, size_bytes: u64) -> u64 {
        size_bytes.saturating_sub(4 * u64::from(self.pool.segment_bytes()))
    }

    /// Whether a device can be shrunk to this size, in figures: what lies at its end, and the room for it elsewhere.
    ///
    /// # Errors
    /// `Invalid` for a size that is none for it, or a device that is not well.
    pub fn plan_shrinking(&self, info: &DeviceInfo, size_bytes: u64) -> Result<LeavingPlan, EngineError> {
        if info.state != DeviceState::Online {
            return Err(EngineError::Invalid(format!(
                "it is {}; take it out of the pool instead of shrinking it",
                info.state
            )));
        }
        if self.has_goal(info.number) {
            return Err(EngineError::Busy(
                "it is being emptied or was; 'terrace jobs' shows by which job, 'terrace evacuate --undo' lets an empty \
                 one be used again"
                    .into(),
            ));
        }
        let measured = self.pool.measure_shrunk(info.number, size_bytes);
        let (_, segments) = measured.map_err(|error| EngineError::Invalid(error.to_string()))?;
        let range = SegmentRange {
            device: info.number,
            from: segments,
        };
        let load = self.chunks.load_of(range);
        let elsewhere = self.plan_leaving(info, 0);
        let (room_bytes, is_usable) = self.chunks.available_without(range);
        let live_bytes = load.live_bytes + load.metadata_bytes;
        // What others still have to move is set aside.
        let need = room_to_move(&self.chunks, range);
        let mut obstacle = String::new();
        if !is_usable {
            obstacle = "the pool would be left with next to no room beside its reserve and metadata; shrink it by less"
                .into();
        } else if need > room_bytes {
            let aside = match self.chunks.reserved_bytes() {
                0 => String::new(),
                aside => format!(
                    ", beside {} that are set aside for reservations and what leaves other devices",
                    format_size(aside)
                ),
            };
            obstacle = format!(
                "its end holds {}, which needs {} elsewhere, and there is room for {}{aside}; shrink it by less, add a device, \
                 or delete something and run 'terrace compact'",
                format_size(live_bytes),
                format_size(need),
                format_size(room_bytes)
            );
        }
        Ok(LeavingPlan {
            live_bytes,
            room_bytes,
            obstacle,
            warning: String::new(),
            ..elsewhere
        })
    }

    /// Empties the end of a device in the background and cuts it off: labels first, then a file or directory itself.
    /// Returns the job.
    ///
    /// # Errors
    /// As [`plan_shrinking`](Self::plan_shrinking), with figures if there is no room for what lies there.
    pub fn shrink_device(&self, name: &str, size_bytes: u64) -> Result<u64, EngineError> {
        self.check_open()?;
        let info = self.find_device(name)?;
        let plan = self.plan_shrinking(&info, size_bytes)?;
        if !plan.obstacle.is_empty() {
            return Err(EngineError::Invalid(plan.obstacle));
        }
        let (size_bytes, _) = self.pool.measure_shrunk(info.number, size_bytes)?;
        self.start_emptying(info.number, Goal::Shrink(size_bytes), None)
    }

    /// Uses what a device has grown by; returns its size before and now, bytes.
    ///
    /// # Errors
    /// `Invalid` for a device that is missing, `Busy` while it is emptied, `Device` if it cannot be measured.
    pub fn resize_device(&self, name: &str) -> Result<(u64, u64), EngineError> {
        self.check_open()?;
        let before = self.find_device(name)?;
        if self.leaving_in_words(before.number) == "shrinking" {
            return Err(EngineError::Busy(
                "it is being shrunk; 'terrace jobs' shows the job, 'terrace jobs cancel ID' ends that".into(),
            ));
        }
        self.pool.resize_device(before.number)?;
        let after = self.find_device(&before.number.to_string())?.size_bytes;
        if after > before.size_bytes {
            let text = format!("'{}' has grown to {}", before.path, format_size(after));
            self.event("device", &text);
        }
        Ok((before.size_bytes, after))
    }

    /// What to type to be rid of a device that is not well: taking it out only where the others can hold what it has.
    fn ways_off(&self, info: Option<&DeviceInfo>, name: &str) -> String {
        let pool = self.pool.name();
        let replace = format!("'terrace pool replace {pool} {name} NEW'");
        match info.is_some_and(|info| self.plan_leaving(info, 0).obstacle.is_empty()) {
            true => format!("{replace}, or 'terrace pool remove {pool} {name}',"),
            false => replace,
        }
    }

    /// What `status` says of a device that is not well.
    pub(crate) fn bad_device_in_words(&self, device: &DeviceStatus) -> String {
        let mut known = self.pool.devices().into_iter();
        let known = known.find(|known| known.number == device.number);
        let cut_off = known.as_ref().map_or(0, |known| known.cut_off_bytes);
        if device.state != "missing" && cut_off > 0 {
            return format!(
                "device '{}' was cut short, its last {} are not there: what lay in them and has no other copy cannot be \
                 read, everything else can; give it its size back, or {} moves what can be read off it and names the rest",
                device.path,
                format_size(cut_off),
                self.ways_off(known.as_ref(), &self.device_name(device.number))
            );
        }
        if let Some(since) = known.as_ref().and_then(|known| known.silent_since) {
            return format!(
                "device '{}' has not answered since {}: it is asked for nothing more until it does, what has another copy is read from \
                 there, and what was asked of it before waits with the kernel ('dmesg' may say why); mend or reconnect it, and it is used \
                 again by itself; {} moves what has another copy, once it answers or is gone",
                device.path,
                rfc3339(since),
                self.ways_off(known.as_ref(), &self.device_name(device.number))
            );
        }
        if device.state != "missing" {
            let ways = self.ways_off(known.as_ref(), &self.device_name(device.number));
            let why = known.and_then(|known| known.failure);
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            return format!(
                "device '{}' is {}{why}; {ways} moves what can be read off it and names the rest",
                device.path, device.state,
            );
        }
        let live = self.chunks.load_of(SegmentRange::whole(device.number)).live_bytes;
        let held = match live {
            0 => "no content was on it".to_owned(),
            live => format!(
                "{} of content was on it: what has no other copy cannot be read, everything else can; bring it back, or {} \
                 copies anew what is elsewhere and names the rest",
                format_size(live),
                self.ways_off(known.as_ref(), &device.number.to_string())
            ),
        };
        let newest = match self.chunks.end_without() {
            Some(end) if end.device == device.number => format!("; {}", END_WITHOUT_IN_WORDS),
            _ => String::new(),
        };
        format!("device '{}' is missing; {held}{newest}", device.path)
    }
}

/// What is said of devices that are to take more than the filesystem under them has free; empty if they are not.
pub fn shortage_in_words<'a>(specs: impl IntoIterator<Item = &'a DeviceSpec>) -> String {
    let shortages = HostShortage::of(specs).into_iter();
    let words: Vec<String> = shortages.map(|shortage| shortage.to_string()).collect();
    words.join("; ")
}

/// What the loss of one device costs a tier that spreads one copy over several; `None` where it has one device, or more copies.
pub fn describe_lost_device(pool: &str, tier: &str, copies: u8, devices: usize) -> Option<String> {
    (copies < 2 && devices > 1).then(|| {
        format!(
            "tier '{tier}' keeps one copy, spread over {devices} devices: the loss of any one of them damages nearly every file in it; \
             'terrace tier set copies=2 {pool}/{tier}' (with 'pool create': '--copies {tier}=2') keeps two, for twice the room"
        )
    })
}

/// What is said of a tier that has fewer devices than it keeps copies, but has some: what comes to it has fewer copies.
pub(crate) fn too_few_in_words(pool: &str, tier: &str, copies: usize, devices: usize) -> String {
    format!(
        "tier '{tier}' keeps {copies} copies and has {devices} device(s) for them: what is written there has only so many; add one \
         ('terrace pool add {pool} {tier}=DEVICE'), or take the rest of the tier out"
    )
}

/// What it means when the newest part of the log may have gone with a device.
pub(crate) const END_WITHOUT_IN_WORDS: &str = "the newest part of the log may have been on it alone: the pool is in one \
    whole state from before it was lost, and what was acknowledged in the last seconds before that (the pool's \
    commit_interval at most) may be gone";
