//! Building [`Status`] and the I/O counters from what the floors below count. From memory alone: no device is read.

use std::{sync::atomic::Ordering, time::Duration};

use terrace_dataset::Durability;
use terrace_device::format_duration;
use terrace_pool::{DeviceState, Presence};

use super::{event_log::rfc3339, fullness::fullness};
use crate::{
    DeviceStatus, Engine, EngineError, IoCounters, JobStatus, LostStatus, MemoryStatus, ScrubStatus, Status,
    TierStatus,
    devices::{describe_lost_device, too_few_in_words},
    integrity::{names_in_words, read_errors},
};

/// What this process holds in memory, bytes; 0 where the system does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

/// Whether new content goes to a device: one that is being shrunk stays.
fn stays(device: &DeviceStatus) -> bool {
    matches!(&*device.leaving, "" | "shrinking")
}

impl Engine {
    /// The pool as it is now.
    pub fn status(&self) -> Status {
        let space = self.store.space();
        let budget = &self.environment.budget;
        let cache = self.environment.cache.counters();
        let cached = cache.bytes;
        let environment = &self.environment;
        let object_bytes = environment.caches.used_bytes();
        let heat_bytes = environment.heat_bytes();
        let front_end_bytes = environment.front_end_bytes.load(Ordering::Relaxed);
        let ledger_bytes = self.chunks.ledger_bytes();
        let others = object_bytes + heat_bytes + front_end_bytes + ledger_bytes;
        let (room, room_detail) = fullness(&space, &self.pool.name(), &self.retained_in_words());
        let mut status = Status {
            room: room.into(),
            room_detail,
            pool: self.pool.name(),
            pool_id: terrace_pool::format_id(&self.pool.id()),
            format_version: self.format_version(),
            newest_format_version: terrace_chunk::FORMAT_NEWEST.into(),
            daemon_pid: std::process::id(),
            opened: rfc3339(self.opened_nanoseconds),
            checkpoint: self.datasets.checkpoint(),
            size_bytes: space.size_bytes,
            used_bytes: space.used_bytes,
            available_bytes: space.available_bytes,
            logical_bytes: space.logical_bytes,
            unique_bytes: space.unique_bytes,
            overwritten_bytes: space.overwritten_bytes(),
            stored_bytes: space.stored_bytes,
            metadata_bytes: space.metadata_bytes,
            dedup_ratio: space.dedup_ratio(),
            compression_ratio: ratio(space.unique_bytes, space.chunk_stored_bytes),
            pending_free_bytes: space.pending_free_bytes,
            reserve_bytes: space.reserve_bytes,
            chunks: space.chunks,
            memory: MemoryStatus {
                budget_bytes: budget.limit_bytes(),
                used_bytes: budget.dirty_bytes() + cached + space.memory.total_bytes() + others,
                dirty_bytes: budget.dirty_bytes(),
                cache_bytes: cached,
                record_bytes: space.memory.record_bytes,
                table_bytes: space.memory.table_bytes,
                append_bytes: space.memory.append_bytes,
                object_bytes,
                heat_bytes,
                front_end_bytes,
                ledger_bytes,
                resident_bytes: resident_bytes(),
                cache_hits: cache.hits,
                cache_misses: cache.misses,
            },
            migration: self.migration(),
            tiers: self.tier_status(),
            jobs: self.jobs(),
            datasets: Vec::new(),
            scrub: self.scrub.status_with(&self.pool.devices()),
            lost: None,
            state: String::new(),
            state_detail: String::new(),
        };
        let mut devices = self.pool.devices().into_iter();
        let gone = devices.any(|device| device.state == DeviceState::Missing || device.cut_off_bytes > 0);
        status.lost = read_errors::both(self.losses.status(gone), self.met.status(&self.chunks));
        (status.state, status.state_detail) = self.state_in_words(&status);
        // Nothing has room in a pool that refuses writes after an error, and deleting files gives it none.
        if self.chunks.stopped().is_some() {
            status.room_detail.clear();
        }
        status
    }

    /// What `status`, and whoever finds no room, is told of history that retention keeps; empty where it is next to nothing.
    pub fn retained_in_words(&self) -> String {
        let segment = u64::from(self.pool.segment_bytes());
        let size = self.pool.total_segments() * segment;
        self.datasets
            .retained_in_words((size / RETAINED_PART).max(segment))
    }

    fn tier_status(&self) -> Vec<TierStatus> {
        let space = self.store.space();
        let devices = self.pool.devices();
        let outdated = self.pool.outdated();
        let segment_bytes = u64::from(self.pool.segment_bytes());
        let tiers = self.pool.tiers().into_iter().enumerate();
        tiers
            .map(|(number, tier)| {
                let devices: Vec<DeviceStatus> = devices
                    .iter()
                    .filter(|device| {
                        usize::from(device.tier) == number && device.state != DeviceState::Removed
                    })
                    .map(|device| DeviceStatus {
                        path: device.path.clone(),
                        state: device.state.to_string(),
                        size_bytes: u64::from(device.segments) * segment_bytes,
                        used_bytes: u64::from(device.segments.saturating_sub(device.free_segments))
                            * segment_bytes,
                        read_errors: device.counters.read_errors,
                        write_errors: device.counters.write_errors,
                        checksum_errors: device.counters.checksum_errors,
                        number: device.number,
                        leaving: self.leaving_in_words(device.number),
                        behind: device.presence == Presence::Behind,
                        silent_since: device.silent_since.map(rfc3339),
                        outdated: outdated.contains(&device.number),
                    })
                    .collect();
                let (name, copies) = (tier.settings.name, tier.settings.copies);
                let staying = devices.iter().filter(|device| stays(device)).count();
                TierStatus {
                    copies,
                    lost_device_detail: describe_lost_device(&self.pool.name(), &name, copies, staying)
                        .unwrap_or_default(),
                    name,
                    size_bytes: devices.iter().map(|device| device.size_bytes).sum(),
                    used_bytes: devices.iter().map(|device| device.used_bytes).sum(),
                    live_bytes: (space.tiers.get(number)).map_or(0, |tier| {
                        tier.devices.iter().map(|device| device.live_bytes).sum()
                    }),
                    devices,
                }
            })
            .collect()
    }

    fn state_in_words(&self, status: &Status) -> (String, String) {
        let pool = &status.pool;
        if let Some(why) = self.chunks.stopped() {
            return (
                "stopped".into(),
                format!(
                    "writes are refused after an error: {why}; mend the cause, then 'terrace stop {pool} --force' and 'terrace start {pool}' \
                     (what fsync made durable is safe, what was written since is not saved any more)"
                ),
            );
        }
        let bad = status
            .tiers
            .iter()
            .flat_map(|tier| &tier.devices)
            .find(|device| device.state != "online");
        if let Some(device) = bad {
            let mut detail = self.bad_device_in_words(device);
            let others = status.tiers.iter().flat_map(|tier| &tier.devices);
            let others = others.filter(|other| other.state != "online" && other.number != device.number);
            let others: Vec<String> = others
                .map(|other| format!("'{}' ({})", other.path, other.state))
                .collect();
            if !others.is_empty() {
                let count = others.len() as u64;
                detail.push_str(&format!(
                    "; so it is with {}",
                    names_in_words(&others, NAMED_MAX, count)
                ));
            }
            if let Some(lost) = &status.lost {
                detail.push_str(&format!("; {}", lost_in_words(&status.pool, lost)));
            }
            if let Some(cause) = self.chunks.given_up() {
                detail.push_str(&format!("; {}", given_up_in_words(cause)));
            }
            detail.push_str(&self.out_of_reach_in_words());
            let unreadable = self.unreadable_in_words();
            if !unreadable.is_empty() {
                detail.push_str(&format!("; {unreadable}"));
            }
            return ("degraded".into(), detail);
        }
        let unreadable = self.unreadable_in_words();
        if !unreadable.is_empty() {
            return ("degraded".into(), unreadable);
        }
        let behind = self.behind_in_words();
        if !behind.is_empty() {
            return ("degraded".into(), behind);
        }
        let few = self.too_few_devices_in_words(status);
        if !few.is_empty() {
            return ("degraded".into(), few);
        }
        let damaged = status.scrub.as_ref().map_or(0, ScrubStatus::lost);
        if damaged > 0 {
            let files = status.scrub.as_ref().map_or(&[][..], |scrub| &scrub.files);
            let named = match files {
                [] => "restore the files that it names".to_owned(),
                files => format!(
                    "restore {}; 'terrace status {} --lost' lists all",
                    names_in_words(files, NAMED_MAX, files.len() as u64),
                    status.pool
                ),
            };
            let since = match status.scrub.as_ref().map_or(0, |scrub| scrub.errors_since) {
                0 => String::new(),
                errors => format!(
                    "; reading has met {} since then: 'terrace scrub {pool} --wait' looks again",
                    counted(errors, "error")
                ),
            };
            return (
                "degraded".into(),
                format!(
                    "the last scrub found {} without a good copy; {named}{since}",
                    counted(damaged, "damaged chunk")
                ),
            );
        }
        let met = self.chunks.unreadable_count();
        if met > 0 {
            return ("degraded".into(), met_in_words(status, met));
        }
        if let Some(lost) = status.lost.as_ref().filter(|lost| lost.files > 0) {
            let detail = format!(
                "{}; restore those files from a backup or a snapshot, or delete them",
                lost_in_words(&status.pool, lost)
            );
            return ("degraded".into(), detail);
        }
        let words = [
            self.chunks.given_up().map(given_up_in_words).unwrap_or_default(),
            errors_in_words(status),
            self.set_aside_in_words(),
            self.metadata_in_words(),
        ];
        let words: Vec<String> = words.into_iter().filter(|words| !words.is_empty()).collect();
        ("online".into(), words.join("; "))
    }

    /// Of a tier that takes content, and has fewer devices for it than it keeps copies; empty if there is none.
    fn too_few_devices_in_words(&self, status: &Status) -> String {
        let kept = self.pool.tiers().into_iter();
        let kept = kept.map(|tier| usize::from(tier.settings.copies));
        for (tier, copies) in status.tiers.iter().zip(kept) {
            let devices = tier.devices.iter().filter(|device| stays(device)).count();
            if devices > 0 && devices < copies {
                return too_few_in_words(&status.pool, &tier.name, copies, devices);
            }
        }
        String::new()
    }

    /// A warning while metadata comes near to what a root can list, or would be lost with one device of several; empty else.
    fn metadata_in_words(&self) -> String {
        let near = metadata_warning(self.chunks.metadata_segments());
        let several = self.pool.device_count() > 1;
        match near.is_empty() && several && !self.chunks.is_mirrored() {
            true => ALONE.into(),
            false => near,
        }
    }

    /// Work in the background.
    pub fn jobs(&self) -> Vec<JobStatus> {
        let mut jobs = Vec::new();
        if let Some(scrub) = self.scrub.status().filter(|_| !self.scrub.is_from_before()) {
            jobs.push(JobStatus {
                id: SCRUB_JOB,
                kind: "scrub".into(),
                state: scrub.state,
                reason: format!("asked for by 'terrace scrub'{}", self.scrub.awaits_in_words()),
                done_bytes: scrub.done_bytes,
                total_bytes: scrub.total_bytes,
                rate: scrub.rate,
                eta_seconds: scrub.eta_seconds,
                started: scrub.started,
            });
        }
        jobs.extend(self.mover.jobs().into_iter().map(|job| JobStatus {
            id: job.id,
            kind: job.kind.into(),
            state: job.state.into(),
            reason: job.reason,
            done_bytes: job.done_bytes,
            total_bytes: job.total_bytes,
            rate: job.rate,
            eta_seconds: job.eta_seconds,
            started: job.started,
        }));
        jobs
    }

    /// Pauses, resumes or cancels a job.
    ///
    /// # Errors
    /// `Invalid` if there is no such job or it cannot do that.
    pub fn job_action(&self, id: u64, action: &str) -> Result<(), EngineError> {
        match (id, action) {
            (SCRUB_JOB, "cancel") if self.scrub.cancel() => self.keep_scrub_durably(),
            (SCRUB_JOB, "cancel") => Err(EngineError::Invalid(
                "no scrub is running; 'terrace jobs' lists what runs".into(),
            )),
            (SCRUB_JOB, "pause") if self.scrub.pause(self.clock.monotonic_nanoseconds()) => {
                self.keep_scrub_durably()
            }
            (SCRUB_JOB, "resume") if self.scrub.resume(self.clock.monotonic_nanoseconds()) => {
                self.keep_scrub_durably()
            }
            (SCRUB_JOB, "pause" | "resume") => Err(EngineError::Invalid(
                "no scrub is running; 'terrace jobs' lists what runs".into(),
            )),
            (_, "pause") => Ok(self.mover.pause(id)?),
            (_, "resume") => Ok(self.mover.resume(id)?),
            (_, "cancel") => {
                self.mover.cancel(id)?;
                self.settle_leaving()
            }
            _ => Err(EngineError::Invalid(format!(
                "a job cannot '{action}'; it can pause, resume and cancel"
            ))),
        }
    }

    /// I/O counters of each device since the pool was opened.
    pub fn io_counters(&self) -> Vec<IoCounters> {
        let tiers = self.pool.tiers();
        let segment_bytes = u64::from(self.pool.segment_bytes());
        let devices = self
            .pool
            .devices()
            .into_iter()
            .filter(|device| device.state != DeviceState::Removed);
        devices
            .map(|device| IoCounters {
                tier: tiers
                    .get(usize::from(device.tier))
                    .map_or_else(String::new, |tier| tier.settings.name.clone()),
                path: device.path,
                size_bytes: u64::from(device.segments) * segment_bytes,
                used_bytes: u64::from(device.segments.saturating_sub(device.free_segments)) * segment_bytes,
                reads: device.counters.reads,
                writes: device.counters.writes,
                read_bytes: device.counters.read_bytes,
                written_bytes: device.counters.write_bytes,
                read_errors: device.counters.read_errors,
                write_errors: device.counters.write_errors,
                checksum_errors: device.counters.checksum_errors,
                read_seconds: device.counters.read_nanoseconds as f64 / 1e9,
                write_seconds: device.counters.write_nanoseconds as f64 / 1e9,
            })
            .collect()
    }
}

/// Lost files that the state's detail names.
const NAMED_MAX: usize = 5;
/// Of the pool, what is worth a word of history that retention keeps.
const RETAINED_PART: u64 = 100;
/// Number of the scrub among the jobs.
pub const SCRUB_JOB: u64 = 1;

fn ratio(before: u64, after: u64) -> f64 {
    if before == 0 || after == 0 {
        1.0
    } else {
        before as f64 / after as f64
    }
}

/// What a dataset may lose in a crash although a program did all that it can: the time before it, at most. `None`: all
/// since the pool was stopped last. `interval` is the effective `commit_interval`.
pub fn loss_window(durability: Durability, interval: Duration) -> Option<Duration> {
    match durability {
        Durability::Ram => None,
        Durability::Timed | Durability::Barrier => Some(interval),
        Durability::Sync => Some(Duration::ZERO),
    }
}

/// What a durability means, for people; `interval` is the effective `commit_interval`.
pub fn durability_in_words(durability: Durability, interval: Duration) -> String {
    let interval = format_duration(interval);
    match durability {
        Durability::Ram => "kept in memory only: lost on a crash, saved when the pool is stopped".into(),
        Durability::Timed => {
            format!("fsync returns at once: a crash loses at most the last {interval} (commit_interval)")
        }
        Durability::Barrier => format!(
            "fsync makes durable; of what was not synced a crash loses at most the last {interval} (commit_interval)"
        ),
        Durability::Sync => "every write is durable before it returns".into(),
    }
}

/// Errors that were met on devices which are there all the same; empty if there were none, or a scrub that began after the
/// pool was opened has read all and left nothing.
fn errors_in_words(status: &Status) -> String {
    let devices = status.tiers.iter().flat_map(|tier| &tier.devices);
    let met = |device: &&DeviceStatus| device.read_errors + device.write_errors + device.checksum_errors > 0;
    let devices: Vec<_> = devices.filter(met).collect();
    let Some(device) = devices.first() else {
        return String::new();
    };
    let more = match devices.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} other devices)"),
    };
    let pool = &status.pool;
    let scrub = status.scrub.as_ref().filter(|scrub| scrub.state == "done");
    let advice = match scrub.map(|scrub| scrub.errors_since) {
        Some(0) => format!(
            "the last scrub left nothing damaged; if they go on, 'terrace pool replace {pool} {} NEW'",
            device.path
        ),
        Some(since) => format!("{since} of them since the last scrub: {}", scrub_advice(pool)),
        None => scrub_advice(pool),
    };
    format!(
        "device '{}'{more} met {} read, {} write and {} checksum errors since the pool was opened: {advice}",
        device.path, device.read_errors, device.write_errors, device.checksum_errors
    )
}

fn scrub_advice(pool: &str) -> String {
    format!(
        "'terrace scrub {pool} --wait' reads everything, repairs what has a good copy and names the files of the rest"
    )
}

/// Damage that readers met since the last scrub.
fn met_in_words(status: &Status, met: usize) -> String {
    let scrubbed = match status.scrub.as_ref().is_some_and(|scrub| scrub.state == "done") {
        true => "since the last scrub",
        false => "and no scrub has looked at them",
    };
    let named = match status.lost.as_ref().filter(|lost| !lost.names.is_empty()) {
        Some(lost) => format!(
            "restore {} from a backup or a snapshot ('terrace status {} --lost' lists all)",
            names_in_words(&lost.names, NAMED_MAX, lost.files),
            status.pool
        ),
        None => "its files are being looked for".to_owned(),
    };
    let errors = match errors_in_words(status) {
        errors if errors.is_empty() => scrub_advice(&status.pool),
        errors => errors,
    };
    let met = counted(met as u64, "damaged chunk");
    format!("reading met {met} without a good copy {scrubbed}: {named}; {errors}")
}

/// `1 file`, `2 files`.
pub(crate) fn counted(number: u64, thing: &str) -> String {
    let more = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{more}")
}

fn lost_in_words(pool: &str, lost: &LostStatus) -> String {
    if lost.state == "looking" {
        return "whether files lost content with it is being found out".into();
    }
    let least = if lost.complete { "" } else { "at least " };
    format!(
        "{least}{} cannot be read whole: {}; 'terrace status {pool} --lost' lists all",
        counted(lost.files, "file"),
        names_in_words(&lost.names, NAMED_MAX, lost.files)
    )
}

/// What is said while metadata has no second copy although there is a second device.
const ALONE: &str = "part of the metadata lies on one device only, since no other had room: it gets its second copy once there is room \
                     (delete files, destroy snapshots or 'terrace pool add' a device)";

/// What is said where the end of the log was given up.
pub(crate) fn given_up_in_words(cause: &str) -> String {
    format!(
        "the pool was opened in the last whole state that can be read, and what came after it was given up, as was asked for: {}",
        cause.split("; nothing was changed").next().unwrap_or(cause)
    )
}

/// From three quarters of the limit on.
fn metadata_warning((segments, most): (u64, u64)) -> String {
    if segments < most / 4 * 3 {
        return String::new();
    }
    format!(
        "metadata takes {segments} of at most {most} segments; beyond that no checkpoint can be made and writes end: \
         destroy snapshots or delete files"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_near_its_limit_is_told_before_it_is_too_late() {
        assert_eq!(metadata_warning((2999, 4000)), "");
        assert!(metadata_warning((3000, 4000)).contains("3000 of at most 4000"));
    }
}
