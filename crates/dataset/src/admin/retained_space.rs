//! How much of a pool the history takes that retention keeps, for who finds no room: snapshots are in a list that users look at,
//! checkpoints without a name are not.
//!
//! Invariant: from the counters of each dataset, in memory; nothing is walked.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use terrace_device::format_size;

use super::datasets::Datasets;

/// Datasets of which retention held no checkpoint for want of room, by number, with what it would have had to set aside, bytes.
#[derive(Default)]
pub(crate) struct Unretained(Mutex<BTreeMap<u32, u64>>);

impl Unretained {
    /// Retention held one of a dataset (`None`), or had no room for so many bytes.
    pub(crate) fn note(&self, number: u32, lacking_bytes: Option<u64>) {
        let mut unretained = self.0.lock();
        match lacking_bytes {
            Some(bytes) => unretained.insert(number, bytes),
            None => unretained.remove(&number),
        };
    }

    /// Those that have a name still.
    pub(crate) fn list(&self, name_of: impl Fn(u32) -> Option<String>) -> Vec<(String, u64)> {
        let mut unretained = self.0.lock();
        unretained.retain(|number, _| name_of(*number).is_some());
        let lacking = unretained.iter();
        lacking
            .filter_map(|(number, bytes)| Some((name_of(*number)?, *bytes)))
            .collect()
    }
}

impl Datasets {
    /// What status, and whoever finds no room, is told of history that retention keeps, where that is `worth_bytes` or more; empty
    /// else. It is content as it was written, and what snapshots hold as well is not told apart from it.
    pub fn describe_retained(&self, worth_bytes: u64) -> String {
        let mut keeping = Vec::new();
        let mut has_snapshots = false;
        for (name, node) in self.registry.all() {
            let held = node.state.held().read();
            let is_retained = held
                .iter()
                .any(|(_, record)| record.name.is_empty() && record.holds.is_empty());
            let bytes = node.state.counters().history_bytes();
            if is_retained && bytes > 0 {
                has_snapshots |= held.iter().any(|(_, record)| !record.name.is_empty());
                keeping.push((bytes, name));
            }
        }
        let all = keeping
            .iter()
            .fold(0u64, |sum, (bytes, _)| sum.saturating_add(*bytes));
        let Some((_, most)) = keeping.iter().max() else {
            return String::new();
        };
        if all < worth_bytes {
            return String::new();
        }
        let others = match keeping.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let snapshots = if has_snapshots { " and snapshots" } else { "" };
        format!(
            "{} of history is kept by the retention{snapshots} of '{most}'{others}: 'terrace set retention=RULES {most}' with \
             shorter rules, or none, and 'terrace prune {most}' give back what they keep no longer",
            format_size(all)
        )
    }
}
