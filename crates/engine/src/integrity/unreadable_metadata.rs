//! Metadata of which no copy can be read although its devices are there: told as soon as a reader meets it.
//!
//! Invariants: `status` names the devices and what to do for as long as it is so, the events once for each segment; datasets of which it
//! keeps changes from being committed take no more of these, so that they do not fill the memory that all have for writing.

use terrace_chunk::UnreadableMetadata;

use super::lost_files::names_in_words;
use crate::Engine;

/// Segments and datasets that are named.
const NAMED_MAX: usize = 3;

impl Engine {
    /// Tells of metadata that turned out to be unreadable.
    pub(crate) fn tell_unreadable(&self) {
        let found = self.chunks.unreadable_metadata();
        if found.is_empty() {
            return;
        }
        self.datasets.keep_stuck_from_changes();
        let new: Vec<UnreadableMetadata> = {
            let mut told = self.alarms.unreadable.lock();
            let found = found.into_iter();
            found.filter(|found| told.insert(found.copies.clone())).collect()
        };
        if !new.is_empty() {
            self.event("lost", &self.in_words(&new));
        }
    }

    /// What `status` says of it; empty if all that was asked for could be read.
    pub(crate) fn unreadable_in_words(&self) -> String {
        let found = self.chunks.unreadable_metadata();
        match found.is_empty() {
            true => String::new(),
            false => self.in_words(&found),
        }
    }

    fn in_words(&self, found: &[UnreadableMetadata]) -> String {
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
        let (pool, places) = (self.pool.name(), names_in_words(&places, NAMED_MAX, count));
        let stuck = self.datasets.stuck();
        let stuck = match stuck.len() {
            0 => String::new(),
            count => format!(
                " Changes of {} cannot be committed, and no more of them are taken until the next start;",
                names_in_words(&stuck, NAMED_MAX, count as u64)
            ),
        };
        format!(
            "metadata cannot be read from any copy: {places}; what needs it is an error, all else goes on;{stuck} 'terrace scrub {pool} \
             --wait' writes anew what can be read again; else save what is left with 'terrace stop {pool}' and 'terrace verify {pool} \
             --rebuild NEWPOOL', and take the device out that fails"
        )
    }
}
