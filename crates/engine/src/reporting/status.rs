//! `Status`: what `terrace status --json` prints. The names of the fields are part of the user's interface: they
//! may be added to, not changed. Sizes are bytes, times RFC 3339, durations seconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_dataset::Durability;
use terrace_device::format_duration;

/// Number of the scrub among the jobs.
pub const SCRUB_JOB: u64 = 1;

/// Lines of damage that are kept of a scrub in any case, also after a restart.
const DAMAGE_LINES_SURE: usize = 32;

/// A pool as it is now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Name of the pool.
    pub pool: String,
    /// Its id, as on the labels.
    pub pool_id: String,
    /// `online`, `degraded` (a device failing, missing, or not yet up to date after that, or a tier with fewer devices than copies), `stopped` (no daemon holds it; with a
    /// `daemon_pid`: writes are refused after an error).
    pub state: String,
    /// What the state means and what to do, in words; empty if there is nothing to say.
    pub state_detail: String,
    /// Its format version; 0 if that is not known.
    pub format_version: u32,
    /// The newest one that there is: `pool upgrade` brings the pool there.
    pub newest_format_version: u32,
    /// Process that holds the pool; 0 if there is none.
    pub daemon_pid: u32,
    /// When it was opened.
    pub opened: String,
    /// Newest checkpoint.
    pub checkpoint: u64,
    /// Sum of all devices, less labels.
    pub size_bytes: u64,
    /// In segments that are not free.
    pub used_bytes: u64,
    /// What writers can still get.
    pub available_bytes: u64,
    /// `enough`, `low` (writes will be refused soon) or `none` (they are, but for a little); empty if no daemon holds the pool.
    pub room: String,
    /// What to do about it, in words; empty if nothing.
    pub room_detail: String,
    /// What users see: every reference counted.
    pub logical_bytes: u64,
    /// Each chunk counted once, uncompressed; with what was overwritten in them.
    pub unique_bytes: u64,
    /// Of it, what was written over or cut off while the rest of its chunk is in use: at least so much. Compaction and the mover bring
    /// it back.
    pub overwritten_bytes: u64,
    /// What chunks and metadata take on devices, one copy.
    pub stored_bytes: u64,
    /// Of it, metadata and log.
    pub metadata_bytes: u64,
    /// `logical_bytes / (unique_bytes - overwritten_bytes)`: 1 where nothing is shared, never less.
    pub dedup_ratio: f64,
    /// `unique_bytes / stored_bytes`, data alone; 1 when there is nothing.
    pub compression_ratio: f64,
    /// Deleted, not yet writable again.
    pub pending_free_bytes: u64,
    /// Never given to writers.
    pub reserve_bytes: u64,
    /// Live chunks.
    pub chunks: u64,
    /// The memory budget.
    pub memory: MemoryStatus,
    /// Whether the mover may move data.
    pub migration: bool,
    /// Fastest first.
    pub tiers: Vec<TierStatus>,
    /// Work in the background.
    pub jobs: Vec<JobStatus>,
    /// Filesystems and volumes.
    pub datasets: Vec<DatasetStatus>,
    /// The running scrub, or the last one that ended, also before the pool was opened.
    pub scrub: Option<ScrubStatus>,
    /// What was lost with devices, if anything; also while it is being found out whether anything was.
    pub lost: Option<LostStatus>,
}

/// Files whose content was lost with devices that are missing, failed or were given up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LostStatus {
    /// `looking` while the files are being found, then `known`.
    pub state: String,
    /// Content on devices that are gone, copies included, bytes.
    pub bytes: u64,
    /// How many files that concerns.
    pub files: u64,
    /// Whether these are surely all.
    pub complete: bool,
    /// The first twenty: `POOL/DATASET/PATH`. `terrace status POOL --lost` lists all.
    pub names: Vec<String>,
}

/// The memory budget, bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// The `memory` property.
    pub budget_bytes: u64,
    /// Taken now by dirty data, caches and tables.
    pub used_bytes: u64,
    /// Of it, data not yet written.
    pub dirty_bytes: u64,
    /// Of it, content kept for readers.
    pub cache_bytes: u64,
    /// Of it, records that are not in tables yet.
    pub record_bytes: u64,
    /// Of it, parts of tables kept for look-ups.
    pub table_bytes: u64,
    /// Of it, buffers of data on its way to the devices.
    pub append_bytes: u64,
    /// Of it, objects, region records and names kept decoded.
    pub object_bytes: u64,
    /// Of it, what says how often content is used.
    pub heat_bytes: u64,
    /// Of it, what mounts keep of the objects that the kernel knows.
    pub front_end_bytes: u64,
    /// Of it, what is known of segments and of chunks on their way.
    pub ledger_bytes: u64,
    /// What the process holds, the program included.
    pub resident_bytes: u64,
    /// Chunks that readers found in memory since the pool was opened.
    pub cache_hits: u64,
    /// Chunks that had to be read from devices for them.
    pub cache_misses: u64,
}

/// One tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Its name.
    pub name: String,
    /// Sum of its devices.
    pub size_bytes: u64,
    /// In segments that are not free.
    pub used_bytes: u64,
    /// In live chunks.
    pub live_bytes: u64,
    /// On how many of its devices each chunk is kept.
    pub copies: u8,
    /// What the loss of one of its devices would cost and what to type, in words, where all of it lies on several devices in one copy;
    /// empty where that is not so, and in a tier of one device.
    pub lost_device_detail: String,
    /// Its devices.
    pub devices: Vec<DeviceStatus>,
}

/// One device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Where it was opened.
    pub path: String,
    /// `online`, `failing`, `not answering`, `missing`.
    pub state: String,
    /// Bytes.
    pub size_bytes: u64,
    /// In segments that are not free.
    pub used_bytes: u64,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes and flushes.
    pub write_errors: u64,
    /// Content that did not match its checksum.
    pub checksum_errors: u64,
    /// Its number in the pool.
    pub number: u16,
    /// `evacuating`, `removing` or `empty`: nothing new is put on it; `shrinking`: not at its end; empty text: it is used
    /// as usual.
    pub leaving: String,
    /// It was away, or is new, and may lack content that is to have a copy on it.
    pub behind: bool,
    /// It turned out to be older than the pool when that was opened, though nobody had noted it as away.
    pub outdated: bool,
    /// Since when it does not answer.
    pub silent_since: Option<String>,
}

/// Work in the background.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Number of the job.
    pub id: u64,
    /// `demote`, `promote`, `scrub`, `compact`, …
    pub kind: String,
    /// `running`, `paused`, `waiting`, `done`, `failed`, `cancelled`.
    pub state: String,
    /// Why it runs, or why it failed.
    pub reason: String,
    /// Done so far, bytes.
    pub done_bytes: u64,
    /// All of it, bytes.
    pub total_bytes: u64,
    /// Bytes per second.
    pub rate: f64,
    /// Seconds left, if known.
    pub eta_seconds: Option<f64>,
    /// When it started.
    pub started: String,
}

/// A filesystem or volume, as in `status` and `list`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DatasetStatus {
    /// Full name, pool first.
    pub name: String,
    /// `filesystem`, `volume` or `snapshot`.
    pub kind: String,
    /// Bytes as users count them.
    pub used_bytes: u64,
    /// Files, directories and other objects.
    pub objects: u64,
    /// Effective durability.
    pub durability: String,
    /// The durability in words: what can be lost when.
    pub durability_detail: String,
    /// What a crash may take of changes that were not synced (with `timed` of synced ones too), seconds before it; none with
    /// `ram`, which loses all since the last clean stop.
    pub loss_window_seconds: Option<f64>,
    /// Where it is mounted, if it is.
    pub mounts: Vec<String>,
    /// When it was made.
    pub created: String,
}

/// A scrub: everything is read and verified.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// `running`, `paused`, `done`, `cancelled`, `failed`.
    pub state: String,
    /// When it started; one that goes on after a restart, before that.
    pub started: String,
    /// When it was done; empty if it was not.
    pub ended: String,
    /// Chunks read.
    pub chunks: u64,
    /// Bytes read.
    pub done_bytes: u64,
    /// Bytes to read, as estimated at the start.
    pub total_bytes: u64,
    /// Damage found.
    pub errors: u64,
    /// Of it, repaired from another copy.
    pub repaired: u64,
    /// Of it, what has a good copy and keeps the bad one until there is room for another.
    pub unmended: u64,
    /// Chunks that lack copies which their tier keeps, since there was no room for these; they get them when there is.
    pub short: u64,
    /// Bytes per second.
    pub rate: f64,
    /// Seconds left, if known.
    pub eta_seconds: Option<f64>,
    /// The damage, in words, at most 100 lines; see [`damage_left_out`](Self::damage_left_out).
    pub damage: Vec<String>,
    /// Of labels and roots, what was written anew, in words: a line for each device.
    pub mended: Vec<String>,
    /// Files with damaged content: `POOL/DATASET/PATH`, at most 1000.
    pub files: Vec<String>,
    /// Failed reads and checksum errors that were met after it was done, since the pool was opened.
    pub errors_since: u64,
    /// Devices on which reading met errors while it ran; those that readers met meanwhile are counted too.
    pub devices: Vec<ScrubbedDevice>,
}

impl ScrubStatus {
    /// Damage of which there is no good copy.
    pub fn lost(&self) -> u64 {
        self.errors
            .saturating_sub(self.repaired)
            .saturating_sub(self.unmended)
    }

    /// What had no room, and what helps; empty if nothing lacked any.
    pub fn describe_short(&self, pool: &str) -> String {
        let mut what = Vec::new();
        if self.unmended > 0 {
            what.push(format!(
                "{} have a good copy and one that cannot be read",
                self.unmended
            ));
        }
        if self.short > 0 {
            what.push(format!("{} have fewer copies than their tier keeps", self.short));
        }
        if what.is_empty() {
            return String::new();
        }
        format!(
            "no room for copies: of chunks, {}; add a device ('terrace pool add {pool} TIER=DEVICE') or delete something, then they get \
             them",
            what.join(" and ")
        )
    }

    /// How many lines of damage there would be beside those that are kept.
    pub fn damage_left_out(&self) -> u64 {
        // Of a short list none is left out: a device has one line for whatever is wrong with its labels and roots.
        let is_long = self.damage.len() >= DAMAGE_LINES_SURE;
        let found = self.lost();
        found.saturating_sub(self.damage.len() as u64) * u64::from(is_long)
    }
}

/// What a scrub met on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubbedDevice {
    /// Where it was opened.
    pub path: String,
    /// Failed reads.
    pub read_errors: u64,
    /// Content that did not match its checksum.
    pub checksum_errors: u64,
}

/// Counters of a device since the pool was opened: `terrace iostat` shows their differences.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IoCounters {
    /// Tier.
    pub tier: String,
    /// Device.
    pub path: String,
    /// Bytes.
    pub size_bytes: u64,
    /// In segments that are not free.
    pub used_bytes: u64,
    /// Reads done.
    pub reads: u64,
    /// Writes done.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes and flushes.
    pub write_errors: u64,
    /// Content that did not match its checksum.
    pub checksum_errors: u64,
    /// How long was waited for all reads together, seconds.
    pub read_seconds: f64,
    /// The same of writes.
    pub write_seconds: f64,
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
pub fn describe_durability(durability: Durability, interval: Duration) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_beyond_the_lines_that_are_kept_is_counted() {
        let mut scrub = ScrubStatus {
            errors: 1000,
            repaired: 100,
            damage: vec![String::new(); 100],
            ..ScrubStatus::default()
        };
        assert_eq!(scrub.damage_left_out(), 800);
        // One line for a device with three bad labels.
        (scrub.errors, scrub.repaired) = (3, 0);
        scrub.damage.truncate(1);
        assert_eq!(scrub.damage_left_out(), 0);
    }
}
