//! The job that reads what lacks copies and writes these.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use terrace_chunk::{ChunkStore, ScrubCursor};
use terrace_mover::{StoreSteps, StoreWork};
use terrace_store::StoreError;

use crate::{integrity::LostFiles, reporting::counted};

/// How often it is tried to find room for what has too few copies, about a second apart.
const TRIES_MAX: u32 = 30;

/// The steps of the job.
pub(super) struct ResilverJob {
    chunks: Arc<ChunkStore>,
    lost: Arc<LostFiles>,
    devices: Vec<u16>,
    cursor: ScrubCursor,
    read_bytes: u64,
    /// Read by earlier tries, bytes.
    before_bytes: u64,
    completed: u64,
    repaired: u64,
    damaged: u64,
    short: u64,
    /// With a bad copy, for which there is no room: whoever found it comes back to it, as long as the pool is open.
    unmended: u64,
    /// Log or metadata have one copy only, still.
    is_unmirrored: bool,
    is_short: Arc<AtomicBool>,
    tries: u32,
}

impl ResilverJob {
    /// Looks for what lacks copies, and at what these devices have. `is_short` says whether something did not get its copies.
    pub(super) fn new(
        chunks: Arc<ChunkStore>,
        lost: Arc<LostFiles>,
        devices: Vec<u16>,
        is_short: Arc<AtomicBool>,
    ) -> Self {
        Self {
            chunks,
            lost,
            cursor: ScrubCursor::only(devices.clone()),
            devices,
            read_bytes: 0,
            before_bytes: 0,
            completed: 0,
            repaired: 0,
            damaged: 0,
            short: 0,
            unmended: 0,
            is_unmirrored: false,
            is_short,
            tries: 0,
        }
    }

    fn lacks_room(&self) -> bool {
        self.short > 0 || self.unmended > 0
    }

    fn describe(&self) -> String {
        let mut text = format!("{} copies written anew", self.completed + self.repaired);
        if self.damaged > 0 {
            text.push_str(&format!(
                ", {} without a good copy ('terrace scrub' names the files)",
                counted(self.damaged, "chunk")
            ));
        }
        if self.unmended > 0 {
            text.push_str(&format!(
                ", {} with a good copy and one that cannot be read, since there is no room for another",
                counted(self.unmended, "chunk")
            ));
        }
        if self.short > 0 {
            text.push_str(&format!(
                ", {} chunks still have fewer copies than their tier keeps, since there is no room beside what is set aside: add a \
                 device with 'terrace pool add', or delete something, then they get them",
                self.short
            ));
        }
        if self.is_unmirrored {
            text.push_str(
                ", metadata still lies on one device only, since there is no room on another one: add a device or delete something, \
                 then it gets its second copy",
            );
        }
        text
    }
}

impl StoreSteps for ResilverJob {
    fn step(&mut self, budget_bytes: u64) -> Result<StoreWork, StoreError> {
        let progress = self.chunks.scrub_step(&mut self.cursor, budget_bytes)?;
        self.completed += progress.completed;
        self.repaired += progress.repaired;
        self.damaged += progress.damaged.len() as u64 + progress.damaged_metadata.count();
        self.short += progress.short;
        self.unmended += progress.unmended;
        let done = self.before_bytes + progress.done_bytes;
        let bytes = done.saturating_sub(self.read_bytes);
        self.read_bytes = done;
        let mut work = StoreWork {
            bytes,
            tiers: 0,
            total_bytes: self.before_bytes + progress.total_bytes,
            finished: progress.finished,
            waits: false,
            note: None,
        };
        // Metadata that was written meanwhile lies on one device only.
        let mirrored = !progress.finished
            || match self.chunks.mirror_now() {
                // A job that failed for that would not be tried again.
                Err(StoreError::NoSpace) => false,
                mirrored => mirrored?,
            };
        self.is_unmirrored = !mirrored;
        if (!mirrored || self.lacks_room()) && self.tries < TRIES_MAX {
            // What was stored anew leaves room behind, once that is durable.
            (self.tries, self.before_bytes) = (self.tries + 1, done);
            (self.short, self.unmended, self.damaged) = (0, 0, 0);
            self.cursor = ScrubCursor::only(self.devices.clone());
            (work.finished, work.waits) = (false, true);
        }
        if work.finished {
            self.is_short
                .store(!mirrored || self.lacks_room(), Ordering::Release);
            work.note = Some(self.describe());
            self.lost.look_again();
        }
        Ok(work)
    }
}
