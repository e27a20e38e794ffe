//! Whether devices can be emptied, shrunk or replaced, in figures from memory alone.
//!
//! Invariant: what the figures say cannot end well has an obstacle that names them.

use std::sync::Arc;

use terrace_chunk::ChunkStore;
use terrace_device::format_size;
use terrace_pool::{DeviceInfo, DeviceState, Pool, SegmentRange};

use super::{goals::Goals, joining::JoiningDevice, resilver::is_out_of_step};
use crate::{EngineError, floors::Floors};

/// Segments that what moves fills in part, at most.
const BEGUN_SEGMENTS: u64 = 2;

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

/// What decides whether a device can leave.
struct Figures {
    /// Content alone, and with the metadata beside it.
    content_bytes: u64,
    live_bytes: u64,
    /// What that needs elsewhere.
    need_bytes: u64,
    /// Room on the others, and what of it is promised.
    all_room_bytes: u64,
    promised_bytes: u64,
    /// What others have to move that leave as well.
    others_leaving_bytes: u64,
    /// Devices that stay, in the pool and in the tier of this one.
    staying: u64,
    in_tier: usize,
    copies: usize,
    /// A device that stays, and lacks part of the log.
    out_of_step: Option<DeviceInfo>,
}

impl Figures {
    fn room_bytes(&self) -> u64 {
        self.all_room_bytes.saturating_sub(self.promised_bytes)
    }

    /// A tier that is taken apart goes through this, once it is empty.
    fn lacks_devices(&self) -> bool {
        self.in_tier > 0 && self.in_tier < self.copies
    }

    fn lacks_room(&self) -> bool {
        self.live_bytes > 0 && self.need_bytes > self.room_bytes()
            || self.promised_bytes > self.all_room_bytes
    }

    fn describe_lacking_room(&self) -> String {
        let copies = match self.copies {
            1 => String::new(),
            copies => format!(" in {copies} copies, each on a device of its own"),
        };
        let promised = match self.promised_bytes {
            0 => String::new(),
            promised if self.others_leaving_bytes > 0 => format!(
                ", beside {} that are set aside for reservations and for what leaves other devices",
                format_size(promised)
            ),
            promised => format!(
                ", beside {} that are set aside for reservations",
                format_size(promised)
            ),
        };
        format!(
            "it holds {}, which needs {} elsewhere, and the other devices have room for {}{copies}{promised}; add a device, or \
             delete something and run 'terrace compact'",
            format_size(self.live_bytes),
            format_size(self.need_bytes),
            format_size(self.room_bytes()),
        )
    }
}

/// See the module.
pub(crate) struct Planner {
    pool: Arc<Pool>,
    chunks: Arc<ChunkStore>,
    goals: Goals,
}

impl Planner {
    pub(super) fn new(floors: &Floors, goals: &Goals) -> Self {
        Self {
            pool: floors.pool.clone(),
            chunks: floors.chunks.clone(),
            goals: goals.clone(),
        }
    }

    /// Whether the other devices can hold what is on this one. `joining_bytes`: what a device about to join adds.
    pub(crate) fn leaving(&self, info: &DeviceInfo, joining_bytes: u64) -> LeavingPlan {
        let figures = self.figures(info, joining_bytes);
        let obstacle = self.obstacle(&figures);
        let tier = self.pool.tiers().into_iter().nth(usize::from(info.tier));
        let tier = tier.map_or_else(String::new, |tier| tier.settings.name);
        let warning = match figures.lacks_devices() && obstacle.is_empty() {
            true => describe_too_few(&self.pool.name(), &tier, figures.copies, figures.in_tier),
            false => String::new(),
        };
        LeavingPlan {
            path: info.path.clone(),
            tier,
            live_bytes: figures.live_bytes,
            room_bytes: figures.room_bytes(),
            obstacle,
            warning,
            loses: String::new(),
            joining: None,
        }
    }

    fn figures(&self, info: &DeviceInfo, joining_bytes: u64) -> Figures {
        let segment = u64::from(self.pool.segment_bytes());
        let load = self.chunks.load_of(SegmentRange::whole(info.number));
        let devices = self.pool.devices();
        let stays = |other: &&DeviceInfo| {
            other.number != info.number && other.state == DeviceState::Online && !other.draining
        };
        let others_leaving_bytes: u64 = devices
            .iter()
            .filter(|other| other.number != info.number && other.draining)
            .map(|other| self.chunks.load_of(SegmentRange::whole(other.number)).live_bytes)
            .sum();
        let room_bytes = self.chunks.room_for_leaving(info.number, joining_bytes);
        // What was promised stays so, but for the sake of a device that does not work; and one that is as large in its place
        // takes nothing from anybody.
        let shrinks = joining_bytes < self.joining_bytes(info.size_bytes);
        let promised_bytes = match shrinks && info.state == DeviceState::Online {
            true => self.chunks.backed_promises(),
            false => 0,
        };
        let tiers = self.pool.tiers();
        let copies = tiers
            .get(usize::from(info.tier))
            .map_or(1, |tier| usize::from(tier.settings.copies));
        let in_tier = devices
            .iter()
            .filter(stays)
            .filter(|other| other.tier == info.tier);
        // Records and the ends of segments take some more at the new place; less where that is counted by pairs, as the other
        // copies give back the same.
        let ends = self.chunks.unused_ends(load.live_bytes) / copies.max(1) as u64;
        let more = ends.max(load.live_bytes / if copies > 1 { 32 } else { 8 });
        Figures {
            content_bytes: load.live_bytes,
            live_bytes: load.live_bytes + load.metadata_bytes,
            need_bytes: load.live_bytes + more + load.metadata_bytes + 2 * segment,
            // What others still have to move is among what is promised.
            all_room_bytes: match promised_bytes {
                0 => room_bytes.saturating_sub(others_leaving_bytes),
                _ => room_bytes,
            },
            promised_bytes,
            others_leaving_bytes,
            staying: devices.iter().filter(stays).count() as u64 + u64::from(joining_bytes > 0),
            in_tier: in_tier.count() + usize::from(joining_bytes > 0),
            copies,
            out_of_step: devices.iter().filter(stays).find(is_out_of_step).cloned(),
        }
    }

    /// Why a device cannot leave; empty if it can.
    fn obstacle(&self, figures: &Figures) -> String {
        if let Some(other) = &figures.out_of_step {
            // It could not stand for the pool: nothing may leave that the labels, roots and log rely on.
            let pool = self.pool.name();
            return format!(
                "'{}' missed something and is being brought up to date; try again when 'terrace status {pool}' says no more of \
                 that, or after 'terrace stop {pool}' and 'terrace start {pool}' if it lasts",
                other.path
            );
        }
        if figures.staying == 0 {
            let last = "it is the last device of the pool that can be used; add another one first";
            return match self.goals.describe_set_aside() {
                aside if aside.is_empty() => last.into(),
                aside => format!("{last} ({aside})"),
            };
        }
        if figures.lacks_devices() && figures.content_bytes > 0 {
            return format!(
                "its tier keeps {} copies, and only {} device(s) would be left; add one to the tier first",
                figures.copies, figures.in_tier
            );
        }
        match figures.lacks_room() {
            true => figures.describe_lacking_room(),
            false => String::new(),
        }
    }

    /// The same for who only asks: emptying a device that is missing would fail at its end if it has something that no other one has.
    pub(crate) fn check_alone(
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

    /// What a device of a size would add: labels and the remainder of a segment are not for content.
    pub(crate) fn joining_bytes(&self, size_bytes: u64) -> u64 {
        size_bytes.saturating_sub(4 * u64::from(self.pool.segment_bytes()))
    }

    /// Whether a device can be shrunk to this size, in figures: what lies at its end, and the room for it elsewhere.
    pub(crate) fn shrinking(&self, info: &DeviceInfo, size_bytes: u64) -> Result<LeavingPlan, EngineError> {
        if info.state != DeviceState::Online {
            return Err(EngineError::Invalid(format!(
                "it is {}; take it out of the pool instead of shrinking it",
                info.state
            )));
        }
        if self.goals.exists(info.number) {
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
        let elsewhere = self.leaving(info, 0);
        let (room_bytes, is_usable) = self.chunks.available_without(range);
        let live_bytes = load.live_bytes + load.metadata_bytes;
        // What others still have to move is set aside.
        let need = self.bytes_to_move(range);
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

    /// What content, log and metadata in this range take elsewhere, bytes of content: an eighth for what it takes more is part of the
    /// room for that.
    pub(super) fn bytes_to_move(&self, range: SegmentRange) -> u64 {
        let load = self.chunks.load_of(range);
        let live = load.live_bytes;
        let ends = self.chunks.unused_ends(live).saturating_sub(live / 8);
        live + load.metadata_bytes + ends + BEGUN_SEGMENTS * u64::from(self.pool.segment_bytes())
    }
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
pub(crate) fn describe_too_few(pool: &str, tier: &str, copies: usize, devices: usize) -> String {
    format!(
        "tier '{tier}' keeps {copies} copies and has {devices} device(s) for them: what is written there has only so many; add one \
         ('terrace pool add {pool} {tier}=DEVICE'), or take the rest of the tier out"
    )
}
