//! Metadata that cannot be read: offline, since it lies only on devices that are not there, which is known when the pool is opened; or
//! unreadable from any copy although its devices are there, which is told as soon as a reader meets it.
//!
//! Invariants: `status` names what it is and what to do for as long as it is so, the events once; datasets of which a part was offline
//! when the pool was opened cannot be changed until it is opened again, since one change of what cannot be looked up would keep all
//! others from being committed; those of which unreadable metadata keeps changes from being committed take no more of these, so that
//! they do not fill the memory that all have for writing. What is to be read there is an error, never taken for empty.

use std::{collections::BTreeSet, sync::Arc};

use terrace_chunk::{ChunkStore, UnreadableMetadata};
use terrace_dataset::Datasets;
use terrace_pool::{Pool, SegmentId};
use terrace_sync::{Mutex, rank};

use crate::{
    floors::Floors,
    reporting::{EventLog, list_names},
};

/// Segments and datasets that are named, and datasets of which a part is offline.
const NAMED_MAX: usize = 3;
const OFFLINE_NAMED_MAX: usize = 10;

/// See the module.
pub(crate) struct LostMetadata {
    pool: Arc<Pool>,
    chunks: Arc<ChunkStore>,
    datasets: Arc<Datasets>,
    events: Arc<EventLog>,
    /// Datasets of which metadata was offline when the pool was opened.
    kept_from_changes: Vec<String>,
    /// Segments that were told since then.
    told: Mutex<BTreeSet<Vec<SegmentId>>, rank::engine::MetadataTold>,
}

impl LostMetadata {
    /// Looks, when the pool was opened, for datasets of which metadata is offline, and keeps these from being changed.
    pub(super) fn new(floors: &Floors, events: &Arc<EventLog>) -> Self {
        let keys = floors.chunks.keys_out_of_reach();
        let kept = (!keys.is_empty()).then(|| floors.datasets.flusher().keep_from_changes(&keys));
        let found = Self {
            pool: floors.pool.clone(),
            chunks: floors.chunks.clone(),
            datasets: floors.datasets.clone(),
            events: events.clone(),
            kept_from_changes: kept.unwrap_or_default(),
            told: Mutex::default(),
        };
        if !keys.is_empty() {
            events.add("lost", found.describe_offline().trim_start_matches("; "));
        }
        found
    }

    /// What is said of a degraded pool besides, if part of its metadata is gone with a device; empty else.
    pub(crate) fn describe_offline(&self) -> String {
        let (pool, segments) = (self.pool.name(), self.chunks.metadata_out_of_reach());
        if segments == 0 {
            return String::new();
        }
        let named = &self.kept_from_changes;
        let concerned = match named.len() {
            0 => String::new(),
            count => format!(
                ": files of {} may not be found or be read, and can only be read until it is back",
                list_names(named, OFFLINE_NAMED_MAX, count as u64)
            ),
        };
        format!(
            "; {segments} segments of metadata lay on it alone, since no other device had room{concerned}; bring it back, or save what is \
             left with 'terrace verify {pool} --rebuild NEWPOOL'"
        )
    }

    /// Tells of metadata that turned out to be unreadable.
    pub(crate) fn report_unreadable(&self) {
        let found = self.chunks.unreadable_metadata();
        if found.is_empty() {
            return;
        }
        self.datasets.flusher().keep_stuck_from_changes();
        let new: Vec<UnreadableMetadata> = {
            let mut told = self.told.lock();
            let found = found.into_iter();
            found.filter(|found| told.insert(found.copies.clone())).collect()
        };
        if !new.is_empty() {
            self.events.add("lost", &self.describe_found(&new));
        }
    }

    /// What `status` says of it; empty if all that was asked for could be read.
    pub(crate) fn describe_unreadable(&self) -> String {
        let found = self.chunks.unreadable_metadata();
        match found.is_empty() {
            true => String::new(),
            false => self.describe_found(&found),
        }
    }

    fn describe_found(&self, found: &[UnreadableMetadata]) -> String {
        let devices = self.pool.devices();
        let path = |number: u16| {
            let device = devices.iter().find(|device| device.number == number);
            device.map_or_else(
                || format!("device {number}"),
                |device| format!("'{}'", device.path),
            )
        };
        let places: Vec<String> = found
            .iter()
            .map(|found| {
                let copies = found.copies.iter();
                let copies: Vec<String> = copies
                    .map(|copy| format!("segment {} of {}", copy.index, path(copy.device)))
                    .collect();
                format!("{} ({})", copies.join(" and "), found.cause)
            })
            .collect();
        let count = places.len() as u64;
        let (pool, places) = (self.pool.name(), list_names(&places, NAMED_MAX, count));
        let stuck = self.datasets.flusher().stuck();
        let stuck = match stuck.len() {
            0 => String::new(),
            count => format!(
                " Changes of {} cannot be committed, and no more of them are taken until the next start;",
                list_names(&stuck, NAMED_MAX, count as u64)
            ),
        };
        format!(
            "metadata cannot be read from any copy: {places}; what needs it is an error, all else goes on;{stuck} 'terrace scrub {pool} \
             --wait' writes anew what can be read again; else save what is left with 'terrace stop {pool}' and 'terrace verify {pool} \
             --rebuild NEWPOOL', and take the device out that fails"
        )
    }
}
