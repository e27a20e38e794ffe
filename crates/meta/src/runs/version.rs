//! `Version`: which runs make up the tables' part of a tree, in which order they are read.
//!
//! Invariants: layers are ordered newest first: of two layers that hold a key, the one in front is newer. Within a
//! merge, keys up to the cursor are in the output alone, keys after it in the inputs alone (newest first); inputs keep
//! the table that the cursor stands in until it is consumed. A version never changes; a step makes a new one.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use super::{run::Run, wanted::Wanted};
use crate::{
    MetaError,
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
    /// Looks a key up, newest layer first; additions that were found before are folded in.
    pub(crate) fn get(&self, reader: &TableReader, wanted: &mut Wanted<'_>) -> Result<(), MetaError> {
        let key = wanted.key();
        let mut look = |run: &Run| -> Result<bool, MetaError> {
            if let Some(older) = run.get(reader, key, wanted.hash)? {
                wanted.put_under(older);
            }
            Ok(wanted.is_settled())
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
        Ok(())
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

    /// Makes the layers `first..=last` the inputs of a merge.
    pub(crate) fn begin_merge(&mut self, first: usize, last: usize) {
        let inputs = self.layers.drain(first..=last).filter_map(|layer| match layer {
            Layer::Settled(run) => Some(run),
            Layer::Merging(_) => None,
        });
        let inputs = inputs.collect();
        self.layers.insert(
            first,
            Layer::Merging(Merge {
                inputs,
                output: Run::default(),
                cursor: None,
            }),
        );
    }

    /// Takes over what a slice of the merge at `index` made, up to the key `cursor` (`None`: the inputs are at their end). Returns
    /// the tables that were consumed.
    pub(crate) fn advance_merge(
        &mut self,
        index: usize,
        made: &[Arc<Table>],
        cursor: Option<&Bytes>,
    ) -> Vec<Arc<Table>> {
        let Some(Layer::Merging(merge)) = self.layers.get_mut(index) else {
            return Vec::new();
        };
        let mut output = Vec::with_capacity(merge.output.tables.len() + made.len());
        output.extend(merge.output.tables.iter().cloned());
        output.extend(made.iter().cloned());
        let output = Run::new(output);
        let mut consumed = Vec::new();
        for run in &mut merge.inputs {
            let count = match cursor {
                Some(cursor) => run.tables.partition_point(|table| *table.facts.last <= **cursor),
                None => run.tables.len(),
            };
            if count > 0 {
                consumed.extend(run.tables[..count].iter().cloned());
                *run = Run::new(run.tables[count..].to_vec());
            }
        }
        merge.output = output;
        merge.cursor = cursor.cloned();
        if cursor.is_none() {
            let output = std::mem::take(&mut merge.output);
            if output.tables.is_empty() {
                self.layers.remove(index);
            } else {
                self.layers[index] = Layer::Settled(output);
            }
        }
        consumed
    }

    /// Puts other tables in the place of those with the given numbers.
    pub(crate) fn replace_tables(&mut self, fresh: &BTreeMap<u64, Arc<Table>>) {
        let replace = |run: &mut Run| {
            if run
                .tables
                .iter()
                .any(|table| fresh.contains_key(&table.facts.number))
            {
                let tables = run
                    .tables
                    .iter()
                    .map(|table| fresh.get(&table.facts.number).unwrap_or(table).clone());
                *run = Run::new(tables.collect());
            }
        };
        for layer in &mut self.layers {
            match layer {
                Layer::Settled(run) => replace(run),
                Layer::Merging(merge) => merge
                    .inputs
                    .iter_mut()
                    .chain([&mut merge.output])
                    .for_each(replace),
            }
        }
    }
}
