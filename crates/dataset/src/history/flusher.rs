//! `Flusher`: commits what is dirty when it is time, and knows the datasets whose commits fail again and again.
//!
//! Invariants: content kept only in RAM is left out; a dataset that cannot be committed keeps no other from being committed.

use std::{cell::Cell, sync::Arc};

use super::{checkpointer::Checkpointer, retained_checkpoints::RetainedCheckpoints};
use crate::{
    live::Environment,
    records::keys,
    registry::{Borrowed, Node, Registry},
    settings::{DatasetError, Durability},
};

/// See the module.
pub struct Flusher {
    environment: Arc<Environment>,
    registry: Arc<Registry>,
    checkpointer: Arc<Checkpointer>,
    retained: Arc<RetainedCheckpoints>,
}

impl Flusher {
    pub(crate) fn new(
        environment: &Arc<Environment>,
        registry: &Arc<Registry>,
        checkpointer: &Arc<Checkpointer>,
        retained: &Arc<RetainedCheckpoints>,
    ) -> Self {
        Self {
            environment: environment.clone(),
            registry: registry.clone(),
            checkpointer: checkpointer.clone(),
            retained: retained.clone(),
        }
    }

    /// Closes the current checkpoint as one state of the whole pool and hands it to the store: what the ticker
    /// does every `commit_interval`. Datasets with `durability=ram` are left out. Returns its number.
    /// Checkpoints that retention wants are held, those it lets go are given to the sweep.
    pub fn commit_all(&self) -> Result<u64, DatasetError> {
        let nodes = self
            .registry
            .nodes_where(|node| node.state.settings().durability != Durability::Ram);
        let (checkpoint, failed) = self.commit_what_can_be(nodes, |_| {});
        self.retained.thin()?;
        failed.map_or(Ok(checkpoint), Err)
    }

    /// Commits these as one state; where one of them cannot be committed, the others are all the same, each as a state of its own.
    /// Gives those that are to `done`; returns the newest checkpoint, and the first error.
    fn commit_what_can_be(&self, nodes: Vec<Arc<Node>>, done: impl Fn(&Node)) -> (u64, Option<DatasetError>) {
        let environment = &self.environment;
        environment
            .room
            .clear_landing(environment.budget.dirty_bytes() + environment.ahead.bytes());
        let close = |nodes| {
            let retain = |checkpoint, nodes: &[Arc<Node>]| self.retained.retain(checkpoint, nodes);
            self.checkpointer.close(nodes, retain)
        };
        let note = |node: &Arc<Node>| {
            node.state.note_commit(true);
            done(node);
        };
        let first = match close(nodes.clone()) {
            Ok((checkpoint, _)) => {
                nodes.iter().for_each(note);
                return (checkpoint, None);
            }
            Err(error) => error,
        };
        let (mut newest, mut failed) = (0, None);
        for node in nodes {
            match close(vec![node.clone()]) {
                Ok((checkpoint, _)) => {
                    newest = newest.max(checkpoint);
                    note(&node);
                }
                Err(error) => {
                    // Of one that is merely full, say, nobody knows that it will not be better by itself.
                    if error.is_unreadable_metadata() {
                        node.state.note_commit(false);
                    }
                    failed = failed.or(Some(error));
                }
            }
        }
        // What failed at first may be made up for by now.
        (
            newest,
            failed.inspect(|_| tracing::debug!(%first, "some datasets could not be committed")),
        )
    }

    /// Keeps datasets from being changed whose commits fail again and again for metadata that cannot be read: what they have not committed would else fill the memory
    /// that all have for writing. For who knows that it will not be better by itself.
    pub fn keep_stuck_from_changes(&self) {
        for node in self.registry.nodes_where(|node| node.state.is_stuck()) {
            node.state.keep_from_changes();
        }
    }

    /// Names of datasets whose commits fail again and again for metadata that cannot be read.
    pub fn stuck(&self) -> Vec<String> {
        let nodes = self.registry.nodes_where(|node| node.state.is_stuck());
        nodes.iter().map(|node| node.state.name().to_string()).collect()
    }

    /// Hands a bounded part of what streams have written to the store, ahead of the commit that will make it part of
    /// their files; whether there was any.
    pub fn write_ahead_step(&self) -> bool {
        if !self.environment.ahead.any_waits() {
            return false;
        }
        let nodes = self.registry.nodes_where(|_| true);
        let handles: Vec<_> = nodes.iter().filter_map(Borrowed::of).collect();
        let mut worked = false;
        for live in handles.iter().filter_map(Borrowed::live) {
            worked |= live.write_ahead();
        }
        worked
    }

    /// Whether so much is dirty that it should be committed before the interval is over. What `durability=ram` keeps does not
    /// count: it is not for the flusher.
    pub fn wants_flush(&self) -> bool {
        let budget = &self.environment.budget;
        if !budget.wants_flush(0, 0) {
            return false;
        }
        let kept = self
            .registry
            .nodes_where(|node| node.state.settings().durability == Durability::Ram);
        let (mut kept_bytes, mut kept_metadata_bytes) = (0, 0);
        let handles: Vec<_> = kept.iter().filter_map(Borrowed::of).collect();
        for live in handles.iter().filter_map(Borrowed::live) {
            kept_bytes += live.dirty_bytes();
            kept_metadata_bytes += live.unfrozen_metadata_bytes();
        }
        budget.wants_flush(kept_bytes, kept_metadata_bytes)
    }

    /// Commits and flushes the datasets whose `commit_interval` is over, as one state of all of them; those without
    /// one of their own take `interval_nanoseconds`. Returns for how many nanoseconds none will be due.
    pub fn commit_due(&self, interval_nanoseconds: u64) -> Result<u64, DatasetError> {
        let now = self.environment.clock.monotonic_nanoseconds();
        let wait = Cell::new(interval_nanoseconds);
        let nodes = self.registry.nodes_where(|node| {
            let settings = node.state.settings();
            if settings.durability == Durability::Ram {
                return false;
            }
            let own = settings.commit_interval_seconds;
            let interval = own.map_or(interval_nanoseconds, |seconds| seconds * 1_000_000_000);
            let last = node.state.committed_nanoseconds();
            let left = last
                .saturating_add(interval)
                .saturating_sub(now.saturating_add(1));
            let due = last == 0 || left == 0;
            wait.set(wait.get().min(if due { interval } else { left }));
            due
        });
        if nodes.is_empty() {
            return Ok(wait.get());
        }
        let (_, failed) = self.commit_what_can_be(nodes, |node| {
            node.state.set_committed(now.saturating_add(1));
        });
        // The others keep their word.
        self.environment.store.flush(self.environment.store.newest())?;
        self.retained.thin()?;
        failed.map_or(Ok(wait.get()), Err)
    }

    /// Keeps datasets of which records lie between such keys (first and last) from being changed until the pool is opened again:
    /// these cannot be looked up, so that a change that meets one could not be committed, nor anything that was changed with it.
    /// Returns their names.
    pub fn keep_from_changes(&self, keys: &[(Vec<u8>, Vec<u8>)]) -> Vec<String> {
        let tables = [
            keys::TABLE_COUNTERS,
            keys::TABLE_INODE,
            keys::TABLE_ENTRY,
            keys::TABLE_XATTR,
            keys::TABLE_REGION,
            keys::TABLE_HISTORY,
        ];
        let has_some = |dataset: u32| {
            tables.iter().any(|table| {
                let (from, to) = keys::dataset_range(*table, dataset);
                keys.iter().any(|(first, last)| *first < to && *last >= from)
            })
        };
        let nodes = self.registry.nodes_where(|node| has_some(node.state.number()));
        nodes.iter().for_each(|node| node.state.keep_from_changes());
        nodes.iter().map(|node| node.state.name().to_string()).collect()
    }
}
