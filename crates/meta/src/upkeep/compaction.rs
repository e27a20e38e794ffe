//! The background work of a tree: writing sealed memtables as runs, and merging runs, a bounded slice at a time.
//!
//! Runs are merged by size (size-tiered, as in Bigtable and Cassandra) so that each record is rewritten a few times
//! only; the lowest run is rewritten when what lies above it has grown to half of it, which bounds the space taken: rewritten
//! at a quarter, random 4 KiB writes cost 1.6 times as many bytes of tables (docs/measurements.md).
//! A merge advances slice by slice: each slice is installed with the tables it made, and the tables it consumed
//! are given back at once, so a merge never needs room for a second copy of its inputs. A table that no other input
//! reaches into is taken over as it is.
//! Invariants: only one step runs at a time, and only steps change the layers; a failed step changes nothing; a
//! deletion is dropped only where nothing older can lie below.

use std::{
    collections::BTreeSet,
    ops::Bound,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;

use crate::{
    Extent, MetaError, Operation, Progress, Value,
    entries::{Key, Memtable, OperationRef},
    runs::{Access, Folded, Layer, Merge, MergeCursor, Run, RunCursor, Source, Version},
    table::{Table, TableWriter},
    tree::{State, Tree},
};

/// The least that a step works on, bytes.
const BUDGET_BYTES_MIN: usize = 4 << 10;
/// Settled runs above the lowest one at which some are merged.
const RUNS_TRIGGER: usize = 6;
/// At this many runs a merge gets every second step, even while memtables wait.
const RUNS_URGENT: usize = 10;
/// What an entry that is not a put stands for below, in bytes, when it is decided whether the lowest run is rewritten: a deletion
/// for a record of twice that, an addition for next to nothing.
const UNSETTLED_BYTES: u64 = 32;

/// What the steps remember between each other.
#[derive(Default)]
pub(crate) struct Worker {
    flush: Option<Flush>,
    /// Extents that a merge found damaged; runs with them are left alone.
    damaged: BTreeSet<Extent>,
    /// Whether the last step wrote a memtable.
    flushed_last: bool,
    /// Merges that failed one after another, and how many steps they are left alone for it.
    failures: u32,
    rest: u32,
}

/// A memtable on its way into tables.
struct Flush {
    memtable: Arc<Memtable>,
    tables: Vec<Arc<Table>>,
    /// The last key written.
    resume: Option<Key>,
}

impl Tree {
    /// Does one piece of background work that reads or writes about `budget_bytes`: writes part of the oldest sealed
    /// memtable, else a slice of a merge. An error leaves the tree as it was; the step can be tried again. After a merge
    /// failed, merging rests for a few steps (up to 64): a step that finds nothing else to do says `Idle` meanwhile.
    pub fn step(&self, budget_bytes: usize) -> Result<Progress, MetaError> {
        let budget_bytes = budget_bytes.max(BUDGET_BYTES_MIN);
        let mut worker = self.worker.lock();
        let state = self.current();
        let merge_first = worker.flushed_last && state.version.depth() >= RUNS_URGENT;
        if !merge_first && self.flush_slice(&mut worker, &state, budget_bytes)? {
            worker.flushed_last = true;
            return Ok(Progress::More);
        }
        worker.flushed_last = false;
        if worker.rest > 0 {
            worker.rest -= 1;
        } else if self.merge_slice(&mut worker, &state, budget_bytes)? {
            worker.failures = 0;
            return Ok(Progress::More);
        }
        if merge_first && self.flush_slice(&mut worker, &state, budget_bytes)? {
            return Ok(Progress::More);
        }
        Ok(Progress::Idle)
    }

    /// Writes the content of a table into an extent.
    pub(crate) fn write_content(&self, content: &[u8]) -> Result<Extent, MetaError> {
        let failed = |cause| MetaError::Storage {
            action: "writing a metadata table".into(),
            cause,
        };
        let extent = self.reader.storage.write(content).map_err(failed)?;
        if extent.bytes as usize != content.len() {
            let cause = format!("{} bytes became {extent}", content.len());
            return Err(failed(crate::ExtentError::Failed(cause)));
        }
        Ok(extent)
    }

    fn write_table(&self, writer: TableWriter, sequences: (u64, u64)) -> Result<Arc<Table>, MetaError> {
        let number = self.next_table.fetch_add(1, Ordering::SeqCst);
        let (content, mut facts) = writer.finish(self.options.identity, number, sequences);
        facts.extent = self.write_content(&content)?;
        Ok(Table::new(facts, self.released.clone()))
    }

    /// Writes part of the oldest sealed memtable; false if there is none.
    fn flush_slice(
        &self,
        worker: &mut Worker,
        state: &State,
        budget_bytes: usize,
    ) -> Result<bool, MetaError> {
        let Some(memtable) = state.sealed.last() else {
            return Ok(false);
        };
        let mut flush = match worker.flush.take() {
            Some(flush) if Arc::ptr_eq(&flush.memtable, memtable) => flush,
            _ => Flush {
                memtable: memtable.clone(),
                tables: Vec::new(),
                resume: None,
            },
        };
        let outcome = self.flush_some(&mut flush, &state.version, budget_bytes);
        match outcome {
            Ok(true) => {}
            Ok(false) => {
                worker.flush = Some(flush);
                return Ok(true);
            }
            Err(cause) => {
                worker.flush = Some(flush);
                return Err(cause);
            }
        }
        let sequence = memtable.sequence();
        self.install(|state| {
            state.sealed.pop();
            let mut version = Version::clone(&state.version);
            if !flush.tables.is_empty() {
                version.layers.insert(0, Layer::Settled(Run::new(flush.tables)));
            }
            version.flushed_sequence = sequence;
            state.version = Arc::new(version);
        });
        Ok(true)
    }

    /// Writes tables of a memtable until the budget is spent; true when all of it is written.
    fn flush_some(
        &self,
        flush: &mut Flush,
        version: &Version,
        budget_bytes: usize,
    ) -> Result<bool, MetaError> {
        let bottom = version.layers.is_empty();
        let sequences = (version.flushed_sequence, flush.memtable.sequence());
        let mut writer = TableWriter::new(self.options.table_bytes);
        let mut page: Vec<(Key, Operation)> = Vec::new();
        let mut at = flush.resume.clone();
        let mut written = 0;
        loop {
            page.clear();
            let from = at
                .as_ref()
                .map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_slice()));
            let more = flush.memtable.page(from, &[], u64::MAX, 512, &mut page);
            for (key, operation) in &page {
                let settled;
                match (bottom, operation) {
                    (true, Operation::Delete | Operation::Add(0)) => continue,
                    (true, Operation::Add(sum)) => {
                        settled = Value::of_count(*sum);
                        writer.add(key.as_slice(), OperationRef::Put(&settled));
                    }
                    (_, operation) => writer.add(key.as_slice(), OperationRef::from(operation)),
                }
                if writer.is_full() {
                    let full = std::mem::replace(&mut writer, TableWriter::new(self.options.table_bytes));
                    written += full.bytes();
                    flush.tables.push(self.write_table(full, sequences)?);
                    flush.resume = Some(key.clone());
                    if written >= budget_bytes {
                        return Ok(false);
                    }
                }
            }
            if !more {
                break;
            }
            at = page.last().map(|(key, _)| key.clone());
        }
        if !writer.is_empty() {
            flush.tables.push(self.write_table(writer, sequences)?);
        }
        Ok(true)
    }

    /// Merges a slice; false if nothing is to be merged.
    fn merge_slice(
        &self,
        worker: &mut Worker,
        state: &State,
        budget_bytes: usize,
    ) -> Result<bool, MetaError> {
        let running = state
            .version
            .layers
            .iter()
            .enumerate()
            .filter_map(|(index, layer)| match layer {
                Layer::Merging(merge) if !worker.avoids(layer) => Some((merge.input_bytes(), index)),
                _ => None,
            });
        // The smallest first: it shortens the reads most for its work.
        let closely = self.closely.load(Ordering::Relaxed);
        let upper_bytes_min = self.options.table_bytes as u64 / 4;
        let planned = state.version.plan(worker, upper_bytes_min, closely);
        let index = match (running.min(), planned) {
            (Some((_, index)), None) => index,
            (Some((bytes, index)), Some((_, _, planned_bytes))) if bytes <= planned_bytes => index,
            (None, None) => return Ok(false),
            (_, Some((first, last, _))) => {
                self.install(|state| {
                    let mut version = Version::clone(&state.version);
                    version.begin_merge(first, last);
                    state.version = Arc::new(version);
                });
                first
            }
        };
        let state = self.current();
        let Some(Layer::Merging(merge)) = state.version.layers.get(index) else {
            return Ok(false);
        };
        let bottom = index + 1 == state.version.layers.len();
        let mut slice = Slice::default();
        let merged = self.merge_some(merge, bottom, budget_bytes, &mut slice);
        if let Err(cause) = merged {
            for table in &slice.written {
                table.replace();
            }
            // What fails for lack of room, or on a device that does not answer, must not keep the caller from its other
            // work, nor be tried without end.
            worker.failures += 1;
            worker.rest = 1 << worker.failures.min(6);
            if let MetaError::Damaged { extent, .. } = &cause {
                (worker.failures, worker.rest) = (0, 0);
                worker.damaged.insert(*extent);
                let blocked = |layer: &&Layer| matches!(layer, Layer::Merging(_)) && worker.avoids(layer);
                let blocked = state.version.layers.iter().filter(blocked).count();
                self.blocked_merges.store(blocked, Ordering::Relaxed);
            }
            return Err(cause);
        }
        let kept: BTreeSet<u64> = slice.outputs.iter().map(|table| table.facts.number).collect();
        let mut replaced: Vec<Arc<Table>> = Vec::new();
        self.install(|state| {
            let mut version = Version::clone(&state.version);
            replaced = version.advance_merge(index, &slice);
            state.version = Arc::new(version);
        });
        for table in replaced {
            if !kept.contains(&table.facts.number) {
                table.replace();
                self.reader.forget(&table);
            }
        }
        Ok(true)
    }

    /// Merges from the cursor on until the budget is spent.
    fn merge_some(
        &self,
        merge: &Merge,
        bottom: bool,
        budget_bytes: usize,
        slice: &mut Slice,
    ) -> Result<(), MetaError> {
        let mut sources = Vec::with_capacity(merge.inputs.len());
        let from = merge.cursor.as_deref().unwrap_or_default();
        for run in &merge.inputs {
            let cursor = RunCursor::new(
                &self.reader,
                run.clone(),
                Access::Merge,
                from,
                merge.cursor.is_some(),
                &[],
            )?;
            sources.push(Source::Run(Box::new(cursor)));
        }
        let mut cursor = MergeCursor::new(sources);
        let target = self.options.table_bytes;
        let mut writer = TableWriter::new(target);
        slice.sequences = merge.sequences();
        let mut processed = 0;
        loop {
            if !cursor.find_least() {
                slice.cut(self, &mut writer)?;
                slice.cursor = None;
                return Ok(());
            }
            if (writer.is_empty() || writer.bytes() >= target / 4)
                && let Some(run) = cursor.lone_table()
                && let Some(table) = run.unopened_table().cloned()
                && (!bottom || table.facts.unsettled == 0)
                && table.facts.extent.bytes as usize >= target / 4
            {
                run.skip_table();
                slice.cut(self, &mut writer)?;
                slice.cursor = Some(Bytes::copy_from_slice(&table.facts.last));
                processed += 4096 + table.facts.extent.bytes as usize / 64;
                slice.outputs.push(table);
                if processed >= budget_bytes {
                    return Ok(());
                }
                continue;
            }
            let inputs = cursor.least();
            let folded = cursor.take_least()?;
            let key = cursor.key();
            let value = match folded {
                Folded::Value => {
                    writer.add(key, OperationRef::Put(cursor.value()));
                    cursor.value().len()
                }
                Folded::Delete | Folded::Add(0) if bottom => 0,
                Folded::Add(sum) if bottom => {
                    writer.add(key, OperationRef::Put(&Value::of_count(sum)));
                    8
                }
                Folded::Delete => {
                    writer.add(key, OperationRef::Delete);
                    0
                }
                Folded::Add(sum) => {
                    writer.add(key, OperationRef::Add(sum));
                    8
                }
            };
            processed += inputs * (key.len() + value + 4);
            // A slice ends with a table, unless so much was dropped that none gets full.
            if writer.is_full() || processed >= 4 * budget_bytes + 2 * target {
                slice.cut(self, &mut writer)?;
                if processed >= budget_bytes {
                    slice.cursor = Some(Bytes::copy_from_slice(cursor.key()));
                    return Ok(());
                }
            }
        }
    }
}

/// What a slice of a merge made.
#[derive(Default)]
pub(crate) struct Slice {
    /// In order of keys: tables written and tables taken over.
    outputs: Vec<Arc<Table>>,
    written: Vec<Arc<Table>>,
    /// Batches above the one and up to the other are in what is merged.
    sequences: (u64, u64),
    /// The last key consumed; `None`: the inputs are at their end.
    cursor: Option<Bytes>,
}

impl Slice {
    fn cut(&mut self, tree: &Tree, writer: &mut TableWriter) -> Result<(), MetaError> {
        if writer.is_empty() {
            return Ok(());
        }
        let full = std::mem::replace(writer, TableWriter::new(tree.options.table_bytes));
        let table = tree.write_table(full, self.sequences)?;
        self.written.push(table.clone());
        self.outputs.push(table);
        Ok(())
    }
}

impl Worker {
    /// The tables of a memtable that is not wholly written yet.
    pub(crate) fn on_the_way(&self) -> &[Arc<Table>] {
        self.flush.as_ref().map_or(&[], |flush| &flush.tables)
    }

    /// The same, to put others in their place.
    pub(crate) fn on_the_way_mut(&mut self) -> &mut [Arc<Table>] {
        self.flush.as_mut().map_or(&mut [], |flush| &mut flush.tables)
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

impl Version {
    /// Which settled layers should be merged: the first, the last, and their bytes. The lowest run is left alone while those
    /// above it have less than `upper_bytes_min`, and less than half of what it has; unless what they delete is to go `closely`.
    fn plan(&self, worker: &Worker, upper_bytes_min: u64, closely: bool) -> Option<(usize, usize, u64)> {
        let settled: Vec<(u64, u64)> = self
            .layers
            .iter()
            .map_while(|layer| match layer {
                Layer::Settled(run) if !worker.avoids(layer) => {
                    let unsettled: u64 = run.tables.iter().map(|table| table.facts.unsettled).sum();
                    Some((run.bytes(), unsettled))
                }
                _ => None,
            })
            .collect();
        let all = settled.len() == self.layers.len();
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

    /// Makes the layers `first..=last` the inputs of a merge.
    fn begin_merge(&mut self, first: usize, last: usize) {
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

    /// Installs a slice of the merge at `index`. Returns the tables that were consumed.
    fn advance_merge(&mut self, index: usize, slice: &Slice) -> Vec<Arc<Table>> {
        let Some(Layer::Merging(merge)) = self.layers.get_mut(index) else {
            return Vec::new();
        };
        let mut output = Vec::with_capacity(merge.output.tables.len() + slice.outputs.len());
        output.extend(merge.output.tables.iter().cloned());
        output.extend(slice.outputs.iter().cloned());
        let output = Run::new(output);
        let mut consumed = Vec::new();
        for run in &mut merge.inputs {
            let count = match &slice.cursor {
                Some(cursor) => run.tables.partition_point(|table| *table.facts.last <= **cursor),
                None => run.tables.len(),
            };
            if count > 0 {
                consumed.extend(run.tables[..count].iter().cloned());
                *run = Run::new(run.tables[count..].to_vec());
            }
        }
        merge.output = output;
        merge.cursor = slice.cursor.clone();
        if slice.cursor.is_none() {
            let output = std::mem::take(&mut merge.output);
            if output.tables.is_empty() {
                self.layers.remove(index);
            } else {
                self.layers[index] = Layer::Settled(output);
            }
        }
        consumed
    }
}
