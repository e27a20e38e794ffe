//! Looking many keys up at once: what neighbours share – the head of a table, a block of it – is fetched once for all, and
//! what they need of one run is read together (`batch_lookup.rs`).
//!
//! Invariants: the answer for a key is what [`Version::get`] gives for it; no lock is held across a read of the storage.

use super::{
    batch_lookup::Stretch,
    run::Run,
    version::{Layer, Version},
    wanted::{Answers, Wanted},
};
use crate::{MetaError, table::TableReader};

impl Version {
    /// Takes `wanted`, ascending by key, through the layers.
    pub(crate) fn get_many(
        &self,
        reader: &TableReader,
        wanted: &mut Vec<Wanted<'_>>,
        done: &mut Answers,
    ) -> Result<(), MetaError> {
        for layer in &self.layers {
            match layer {
                Layer::Settled(run) => look(reader, run, wanted, done, |_| true)?,
                Layer::Merging(merge) => {
                    let merged = |key: &[u8]| merge.cursor.as_deref().is_some_and(|cursor| key <= cursor);
                    // Before the others: what is looked up in an input afterwards was not in the output.
                    look(reader, &merge.output, wanted, done, merged)?;
                    for run in &merge.inputs {
                        look(reader, run, wanted, done, |key| !merged(key))?;
                    }
                }
            }
            if wanted.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// Looks those of `wanted` that are `there` up in a run; what is settled goes to the answers.
fn look(
    reader: &TableReader,
    run: &Run,
    wanted: &mut Vec<Wanted<'_>>,
    done: &mut Answers,
    there: impl Fn(&[u8]) -> bool,
) -> Result<(), MetaError> {
    let mut rest = wanted.as_mut_slice();
    while !rest.is_empty() {
        let stretch = Stretch::read(reader, run, rest, &there)?;
        stretch.answer(rest)?;
        rest = rest.split_at_mut(stretch.keys()).1;
    }
    wanted.retain_mut(|one| {
        if one.is_settled() {
            done.take(one);
        }
        !one.is_settled()
    });
    Ok(())
}
