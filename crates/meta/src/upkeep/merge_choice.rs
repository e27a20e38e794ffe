//! `MergeChoice`: which runs are merged next, and which are left alone.
//!
//! Runs are merged by size (size-tiered, as in Bigtable and Cassandra) so that each record is rewritten a few times
//! only; the lowest run is rewritten when what lies above it has grown to half of it, which bounds the space taken: rewritten
//! at a quarter, random 4 KiB writes cost 1.6 times as many bytes of tables (docs/measurements.md).
//!
//! Invariants: a run with an extent that a merge found damaged is left alone; after a merge failed otherwise, merging rests.

use std::collections::BTreeSet;

use crate::{
    Extent,
    runs::{Layer, Run, Version},
};

/// Settled runs above the lowest one at which some are merged.
const RUNS_TRIGGER: usize = 6;
/// What an entry that is not a put stands for below, in bytes, when it is decided whether the lowest run is rewritten: a deletion
/// for a record of twice that, an addition for next to nothing.
const UNSETTLED_BYTES: u64 = 32;

/// A merge to be advanced.
pub(super) enum Chosen {
    /// The one at this place among the layers.
    Running(usize),
    /// One of these layers, the first and the last, that is to be begun.
    New(usize, usize),
}

/// See the module.
#[derive(Default)]
pub(super) struct MergeChoice {
    /// Extents that a merge found damaged; runs with them are left alone.
    damaged: BTreeSet<Extent>,
    /// Merges that failed one after another, and how many steps they are left alone for it.
    failures: u32,
    rest: u32,
}

impl MergeChoice {
    /// Whether merging rests for this step.
    pub(super) fn rests(&mut self) -> bool {
        let rests = self.rest > 0;
        self.rest = self.rest.saturating_sub(1);
        rests
    }

    pub(super) fn note_success(&mut self) {
        self.failures = 0;
    }

    /// What fails for lack of room, or on a device that does not answer, must not keep the caller from its other
    /// work, nor be tried without end.
    pub(super) fn note_failure(&mut self) {
        self.failures += 1;
        self.rest = 1 << self.failures.min(6);
    }

    /// Runs with this extent are left alone; returns how many running merges of `version` stand still.
    pub(super) fn note_damage(&mut self, extent: Extent, version: &Version) -> usize {
        (self.failures, self.rest) = (0, 0);
        self.damaged.insert(extent);
        let blocked = |layer: &&Layer| matches!(layer, Layer::Merging(_)) && self.avoids(layer);
        version.layers.iter().filter(blocked).count()
    }

    /// The merge that is to be advanced: of those that run the smallest, since it shortens the reads most for its work, unless one
    /// that is to be begun is smaller.
    pub(super) fn choose(&self, version: &Version, upper_bytes_min: u64, closely: bool) -> Option<Chosen> {
        let running = version
            .layers
            .iter()
            .enumerate()
            .filter_map(|(index, layer)| match layer {
                Layer::Merging(merge) if !self.avoids(layer) => Some((merge.input_bytes(), index)),
                _ => None,
            });
        match (running.min(), self.plan(version, upper_bytes_min, closely)) {
            (Some((_, index)), None) => Some(Chosen::Running(index)),
            (Some((bytes, index)), Some((_, _, planned_bytes))) if bytes <= planned_bytes => {
                Some(Chosen::Running(index))
            }
            (None, None) => None,
            (_, Some((first, last, _))) => Some(Chosen::New(first, last)),
        }
    }

    /// Which settled layers should be merged: the first, the last, and their bytes. The lowest run is left alone while those
    /// above it have less than `upper_bytes_min`, and less than half of what it has; unless what they delete is to go `closely`.
    fn plan(&self, version: &Version, upper_bytes_min: u64, closely: bool) -> Option<(usize, usize, u64)> {
        let settled: Vec<(u64, u64)> = version
            .layers
            .iter()
            .map_while(|layer| match layer {
                Layer::Settled(run) if !self.avoids(layer) => {
                    let unsettled: u64 = run.tables.iter().map(|table| table.facts.unsettled).sum();
                    Some((run.bytes(), unsettled))
                }
                _ => None,
            })
            .collect();
        let all = settled.len() == version.layers.len();
        if all && let [upper @ .., (lowest, _)] = &settled[..] {
            let upper_bytes: u64 = upper.iter().map(|(bytes, _)| bytes).sum();
            let weight: u64 = upper
                .iter()
                .map(|(bytes, unsettled)| bytes + unsettled * UNSETTLED_BYTES)
                .sum();
            let deletes = closely && upper.iter().any(|(_, unsettled)| *unsettled > 0);
            if deletes || (weight >= upper_bytes_min && weight >= lowest / 2) {
                return Some((0, settled.len() - 1, upper_bytes + lowest));
            }
        }
        // The lowest run of all is left to the rule above.
        let above = if all {
            settled.len().saturating_sub(1)
        } else {
            settled.len()
        };
        if above < RUNS_TRIGGER {
            return None;
        }
        let mut bytes = settled[0].0;
        let mut last = 0;
        while last + 1 < above && (last < 2 || settled[last + 1].0 <= 2 * bytes) {
            last += 1;
            bytes += settled[last].0;
        }
        Some((0, last, bytes))
    }

    /// Whether a layer holds a table that was found damaged.
    fn avoids(&self, layer: &Layer) -> bool {
        let damaged = |run: &&Run| {
            run.tables
                .iter()
                .any(|table| self.damaged.contains(&table.facts.extent))
        };
        !self.damaged.is_empty() && layer.runs().iter().any(damaged)
    }
}
