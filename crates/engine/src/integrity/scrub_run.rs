//! A scrub that is under way, or the last one: what it has read and found.
//!
//! Invariant: all of it lies under the lock of [`Scrub`](super::scrub::Scrub).

use std::collections::{BTreeMap, BTreeSet};

use terrace_chunk::ScrubCursor;
use terrace_pool::{DeviceInfo, DeviceState, FrontDamage};
use terrace_store::ChunkId;

use super::{
    damaged_files::{DamageWalk, DamagedFile},
    scrub_progress::{KEEP_INTERVAL_NANOSECONDS, Progress},
    scrub_record::Outcome,
};
use crate::{ScrubStatus, reporting::SCRUB_JOB};

/// See the module.
pub(super) struct Run {
    /// Which one since the pool was opened: a step of one that was given up changes nothing of the next one.
    pub(super) number: u64,
    pub(super) cursor: Option<ScrubCursor>,
    /// Labels and roots were read.
    pub(super) fronts_read: bool,
    /// What is still to be told as events.
    pub(super) untold: Vec<String>,
    /// Where it was after its last step.
    pub(super) at: ScrubCursor,
    /// When it began, or went on after a restart, and what was done before that.
    pub(super) started_monotonic: u64,
    pub(super) earlier_bytes: u64,
    /// Devices that lacked content when it began. After a restart none: it may have passed over what they lack.
    pub(super) behind_before: Vec<u16>,
    pub(super) is_resumed: bool,
    /// It rests since this device is away, until somebody says that it is to go on without it, or a restart finds it again.
    pub(super) awaits: Option<String>,
    /// When its progress is to be kept next, and that of which errors was.
    pub(super) next_keep: u64,
    pub(super) kept_errors: u64,
    /// Since when it is paused.
    pub(super) paused_monotonic: Option<u64>,
    pub(super) status: ScrubStatus,
    pub(super) lost: BTreeSet<ChunkId>,
    pub(super) lost_are_all: bool,
    pub(super) naming: Option<DamageWalk>,
    /// The files of what has no good copy, as far as they are named, and whether these are all.
    pub(super) damaged: Vec<DamagedFile>,
    pub(super) all_named: bool,
    /// Failed reads and checksum errors of each device when it began.
    pub(super) errors_before: BTreeMap<u16, (u64, u64)>,
    /// Those of before a restart.
    pub(super) errors_earlier: BTreeMap<u16, (u64, u64)>,
    /// Failed reads and checksum errors of each device when it was done; none if that was before the pool was opened.
    pub(super) errors_after: BTreeMap<u16, (u64, u64)>,
    /// It ended before the pool was opened.
    pub(super) from_record: bool,
}

impl Run {
    pub(super) fn new(status: ScrubStatus) -> Self {
        Self {
            number: 0,
            cursor: None,
            fronts_read: true,
            untold: Vec::new(),
            at: ScrubCursor::default(),
            started_monotonic: 0,
            earlier_bytes: 0,
            behind_before: Vec::new(),
            is_resumed: false,
            awaits: None,
            next_keep: 0,
            kept_errors: 0,
            paused_monotonic: None,
            status,
            lost: BTreeSet::new(),
            lost_are_all: true,
            naming: None,
            damaged: Vec::new(),
            all_named: true,
            errors_before: BTreeMap::new(),
            errors_earlier: BTreeMap::new(),
            errors_after: BTreeMap::new(),
            from_record: false,
        }
    }

    /// Failed reads and checksum errors of a device since it began.
    pub(super) fn errors_of(&self, device: &DeviceInfo) -> (u64, u64) {
        let counters = &device.counters;
        let (reads, sums) = self
            .errors_before
            .get(&device.number)
            .copied()
            .unwrap_or_default();
        let earlier = self
            .errors_earlier
            .get(&device.number)
            .copied()
            .unwrap_or_default();
        (
            counters
                .read_errors
                .saturating_sub(reads)
                .saturating_add(earlier.0),
            counters
                .checksum_errors
                .saturating_sub(sums)
                .saturating_add(earlier.1),
        )
    }

    /// What is kept of it.
    pub(super) fn progress(&self, devices: &[DeviceInfo]) -> Progress {
        let errors = devices
            .iter()
            .map(|device| (device.number, self.errors_of(device)));
        Progress {
            is_paused: self.paused_monotonic.is_some() && self.awaits.is_none(),
            cursor: self.at.clone(),
            status: self.status.clone(),
            lost: self.lost.clone(),
            lost_are_all: self.lost_are_all,
            errors: errors.filter(|(_, errors)| *errors != (0, 0)).collect(),
        }
    }

    /// Goes on with one that a restart interrupted.
    pub(super) fn resumed(progress: Progress, devices: &[DeviceInfo], monotonic_nanoseconds: u64) -> Self {
        let away = devices.iter().find(|device| device.state == DeviceState::Missing);
        let awaits = away
            .map(|device| device.path.clone())
            .filter(|_| !progress.is_paused);
        let rests = progress.is_paused || awaits.is_some();
        let state = if rests { "paused" } else { "running" };
        Self {
            // They were read before anything else was.
            fronts_read: progress.cursor != ScrubCursor::default(),
            cursor: Some(progress.cursor.clone()),
            at: progress.cursor,
            started_monotonic: monotonic_nanoseconds,
            earlier_bytes: progress.status.done_bytes,
            is_resumed: true,
            next_keep: monotonic_nanoseconds.saturating_add(KEEP_INTERVAL_NANOSECONDS),
            kept_errors: progress.status.errors,
            paused_monotonic: rests.then_some(monotonic_nanoseconds),
            awaits,
            lost: progress.lost,
            lost_are_all: progress.lost_are_all,
            errors_earlier: progress.errors,
            ..Self::new(ScrubStatus {
                state: state.into(),
                ..progress.status
            })
        }
    }

    pub(super) fn describe_awaited(&self) -> String {
        let away = self.awaits.as_ref().map(|path| {
            format!(
                "; device '{path}' is away: make it available and start the pool anew, or 'terrace jobs resume {SCRUB_JOB}' goes \
                 on without it"
            )
        });
        away.unwrap_or_default()
    }

    /// What is kept of it when it is over.
    pub(super) fn outcome(&self) -> Vec<u8> {
        let outcome = Outcome {
            status: self.status.clone(),
            damaged: self.damaged.clone(),
            all_named: self.all_named,
        };
        outcome.encode()
    }

    /// It is not over.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.status.state.as_str(), "running" | "paused")
    }

    /// Labels and roots of a device were not as they should be.
    pub(super) fn note_front(&mut self, damage: &FrontDamage, pool: &str) {
        let FrontDamage {
            path, found, left, ..
        } = damage;
        self.status.errors += found.len() as u64;
        self.status.repaired += found.len().saturating_sub(left.len()) as u64;
        if left.is_empty() {
            let line = format!(
                "labels and roots of {path} were written anew: {}",
                found.join("; ")
            );
            self.untold.push(line.clone());
            self.status.mended.push(line);
        } else {
            let line = format!(
                "labels and roots of {path} cannot be written anew: {}; 'terrace pool replace {pool} {path} NEW'",
                left.join("; ")
            );
            self.untold.push(line.clone());
            self.status.damage.push(line);
        }
    }
}

/// Failed reads and checksum errors of each device since the pool was opened.
pub(super) fn errors_by_device(devices: &[DeviceInfo]) -> BTreeMap<u16, (u64, u64)> {
    let errors = devices.iter().map(|device| {
        let counters = &device.counters;
        (device.number, (counters.read_errors, counters.checksum_errors))
    });
    errors.collect()
}
