//! `Version`: which runs make up the tables' part of a tree, in which order they are read.
//!
//! Invariants: layers are ordered newest first: of two layers that hold a key, the one in front is newer. Within a
//! merge, keys up to the cursor are in the output alone, keys after it in the inputs alone (newest first); inputs keep
//! the table that the cursor stands in until it is consumed. A version never changes; a step makes a new one.

use std::sync::Arc;

use bytes::Bytes;

use super::run::Run;
use crate::{
    MetaError, Operation,
    table::{Table, TableReader},
};

/// Runs that are being merged into one, slice by slice.
#[derive(Clone)]
pub(crate) struct Merge {
    /// Newest first.
    pub(crate) inputs: Vec<Run>,
    pub(crate) output: Run,
    /// The last key merged; `None`: nothing yet.
    pub(crate) cursor: Option<Bytes>,
}

/// A place in the order of age.
#[derive(Clone)]
pub(crate) enum Layer {
    Settled(Run),
    Merging(Merge),
}

impl Layer {
    /// The runs, whatever their role.
    pub(crate) fn runs(&self) -> Vec<&Run> {
        match self {
            Layer::Settled(run) => vec![run],
            Layer::Merging(merge) => merge.inputs.iter().chain([&merge.output]).collect(),
        }
    }
}

impl Merge {
    /// The batches that are merged: above the one, up to the other. Tables that were consumed are remembered by those
    /// of the output.
    pub(crate) fn sequences(&self) -> (u64, u64) {
        let runs = self.inputs.iter().chain([&self.output]);
        let tables = runs.flat_map(|run| run.tables.iter());
        tables.fold((u64::MAX, 0), |(above, up_to), table| {
            (above.min(table.facts.above), up_to.max(table.facts.up_to))
        })
    }

    pub(crate) fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(Run::bytes).sum()
    }
}

/// All runs of a tree at one moment.
#[derive(Clone, Default)]
pub(crate) struct Version {
    /// Newest first.
    pub(crate) layers: Vec<Layer>,
    /// Batches up to this are in the tables.
    pub(crate) flushed_sequence: u64,
}

impl Version {
    /// Looks `key`, which has this `filter_hash`, up, newest layer first; additions in `newer` are folded in.
    pub(crate) fn get(
        &self,
        reader: &TableReader,
        key: &[u8],
        hash: u64,
        newer: Option<Operation>,
    ) -> Result<Option<Operation>, MetaError> {
        let mut found = newer;
        // True when nothing older can matter.
        let mut look = |run: &Run| -> Result<bool, MetaError> {
            let Some(older) = run.get(reader, key, hash)? else {
                return Ok(false);
            };
            let folded = match found.take() {
                Some(newer) => older.then(newer),
                None => older,
            };
            let settled = !matches!(folded, Operation::Add(_));
            found = Some(folded);
            Ok(settled)
        };
        for layer in &self.layers {
            let settled = match layer {
                Layer::Settled(run) => look(run)?,
                Layer::Merging(merge) if merge.cursor.as_deref().is_some_and(|cursor| key <= cursor) => {
                    look(&merge.output)?
                }
                Layer::Merging(merge) => {
                    let mut settled = false;
                    for run in &merge.inputs {
                        settled = look(run)?;
                        if settled {
                            break;
                        }
                    }
                    settled
                }
            };
            if settled {
                break;
            }
        }
        Ok(found)
    }

    /// Every table, newest layer first.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.layers
            .iter()
            .flat_map(Layer::runs)
            .flat_map(|run| run.tables.iter())
    }

    /// How many runs a get may have to look into.
    pub(crate) fn depth(&self) -> usize {
        let depth = |layer: &Layer| match layer {
            Layer::Settled(_) => 1,
            Layer::Merging(merge) => merge.inputs.len().max(1),
        };
        self.layers.iter().map(depth).sum()
    }
}
