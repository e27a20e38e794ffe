//! The job that empties a device, or its end.
//!
//! Invariants: what still has to move from it has its room set aside elsewhere, so that nobody is promised that meanwhile; what cannot be
//! read is named once everything else has left.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use terrace_chunk::{ChunkStore, EvacuateCursor};
use terrace_device::format_size;
use terrace_mover::{StoreSteps, StoreWork};
use terrace_pool::SegmentRange;
use terrace_store::{Reservation, StoreError};

use super::plan::Planner;
use crate::{
    integrity::{DamageWalk, Damaged, LostFiles},
    reporting::list_names,
};

/// Records that one step reads when files are named.
const NAMING_RECORDS: usize = 2000;
/// Files that the reason of a job names.
const NAMED_MAX: usize = 5;

/// Room for what still has to move off a device, as far as there was.
pub(super) struct Room {
    reservation: Reservation,
    all_bytes: Arc<AtomicU64>,
}

impl Room {
    pub(super) fn new(reservation: Reservation, all_bytes: Arc<AtomicU64>) -> Self {
        all_bytes.fetch_add(reservation.bytes(), Ordering::AcqRel);
        Self {
            reservation,
            all_bytes,
        }
    }

    fn shrink_to(&mut self, bytes: u64) {
        let given_back = self.reservation.bytes().saturating_sub(bytes);
        self.reservation.shrink_to(bytes);
        self.all_bytes.fetch_sub(given_back, Ordering::AcqRel);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// The steps of the job.
pub(super) struct Emptying {
    pub(super) chunks: Arc<ChunkStore>,
    pub(super) plans: Arc<Planner>,
    pub(super) range: SegmentRange,
    pub(super) cursor: EvacuateCursor,
    pub(super) done_bytes: u64,
    pub(super) remaining_bytes: u64,
    /// What cannot be read is given up.
    pub(super) gives_up: bool,
    pub(super) pool: String,
    pub(super) path: String,
    /// What it is called in a command.
    pub(super) name: String,
    pub(super) lost: Arc<LostFiles>,
    /// What has no readable copy is known; its files are being named.
    pub(super) naming: Option<(DamageWalk, u64)>,
    pub(super) room: Room,
}

impl Emptying {
    /// Everything else has left.
    fn only_unreadable_left(&mut self, walk: &DamageWalk, chunks: u64) -> Result<StoreWork, StoreError> {
        let (files, whole) = walk.files(&*self.chunks);
        let count = files.len() as u64;
        let names: Vec<String> = files
            .iter()
            .take(NAMED_MAX)
            .map(|file| file.path.clone())
            .collect();
        let held = files.iter().filter(|file| !file.snapshots.is_empty()).count();
        let bytes = format_size(self.remaining_bytes);
        let mut text = format!(
            "{bytes} of '{}' ({chunks} chunks) cannot be read and have no other copy; they belong to {}",
            self.path,
            list_names(&names, NAMED_MAX, count)
        );
        if held > 0 {
            text.push_str(&format!(" (snapshots hold them of {held} of these)"));
        }
        if !whole {
            text.push_str(", and not all could be named");
        }
        self.lost.told(files, whole, self.remaining_bytes);
        if !self.gives_up {
            let pool = &self.pool;
            text.push_str(&format!(
                "; everything else was moved; 'terrace status {pool} --lost' lists all files; delete or restore them and \
                 try again, or take the device out without them by 'terrace pool remove {pool} {} --lost'",
                self.name
            ));
            return Err(StoreError::Device(text.into()));
        }
        Ok(StoreWork {
            bytes: 0,
            tiers: 0,
            total_bytes: self.done_bytes,
            finished: true,
            waits: false,
            note: Some(format!("given up: {text}")),
        })
    }
}

impl StoreSteps for Emptying {
    fn step(&mut self, budget_bytes: u64) -> Result<StoreWork, StoreError> {
        if let Some((mut walk, chunks)) = self.naming.take() {
            if walk.step(&*self.chunks, NAMING_RECORDS) {
                self.naming = Some((walk, chunks));
                return Ok(StoreWork {
                    bytes: 0,
                    tiers: 0,
                    total_bytes: self.done_bytes + self.remaining_bytes,
                    finished: false,
                    waits: false,
                    note: None,
                });
            }
            return self.only_unreadable_left(&walk, chunks);
        }
        let progress = self
            .chunks
            .evacuate_step(self.range, &mut self.cursor, budget_bytes)?;
        let bytes = self.remaining_bytes.saturating_sub(progress.remaining_bytes);
        self.done_bytes += bytes;
        self.remaining_bytes = progress.remaining_bytes;
        self.room.shrink_to(self.plans.bytes_to_move(self.range));
        if progress.unreadable_count > 0 {
            let damaged = match self.chunks.pool().has_device(self.range.device) {
                true => Damaged::Chunks(progress.unreadable),
                false => Damaged::Gone(self.chunks.clone()),
            };
            let walk = DamageWalk::new(&self.pool, damaged);
            self.naming = Some((walk, progress.unreadable_count));
        }
        Ok(StoreWork {
            bytes,
            tiers: progress.tiers,
            total_bytes: self.done_bytes + progress.remaining_bytes,
            finished: progress.finished,
            waits: progress.waits,
            note: None,
        })
    }
}
