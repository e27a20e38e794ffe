//! Checkpoints of the whole pool: all datasets frozen in one moment, committed, and held as long as retention wants.
//!
//! Invariants: what a checkpoint has of several datasets is of one moment; nothing later of them is committed before it is known
//! which checkpoints are held; content kept only in RAM is left out until the pool is closed.

use std::{
    cell::Cell,
    sync::{Arc, atomic::Ordering},
};

use terrace_store::{Batch, Sequence};

use crate::{
    admin::{Borrowed, Datasets, Node},
    records::keys,
    settings::{DatasetError, Durability},
};

/// Commits of a dataset that fail one after another, for metadata that cannot be read, until it is called stuck.
const STUCK_COMMITS: u32 = 3;

impl Datasets {
    /// Closes the current checkpoint as one state of the whole pool and hands it to the store: what the ticker
    /// does every `commit_interval`. Datasets with `durability=ram` are left out. Returns its number.
    /// Checkpoints that retention wants are held, those it lets go are given to the sweep.
    pub fn commit_all(&self) -> Result<u64, DatasetError> {
        let nodes = self
            .registry
            .nodes_where(|node| node.state.settings().durability != Durability::Ram);
        let (checkpoint, failed) = self.commit_what_can_be(nodes, |_| {});
        self.thin()?;
        failed.map_or(Ok(checkpoint), Err)
    }

    /// Commits these as one state; where one of them cannot be committed, the others are all the same, each as a state of its own.
    /// Gives those that are to `done`; returns the newest checkpoint, and the first error.
    fn commit_what_can_be(&self, nodes: Vec<Arc<Node>>, done: impl Fn(&Node)) -> (u64, Option<DatasetError>) {
        let environment = &self.environment;
        environment
            .room
            .clear_landing(environment.budget.dirty_bytes() + environment.ahead.bytes());
        let close = |nodes| self.close_checkpoint(nodes, |checkpoint, nodes| self.retain(checkpoint, nodes));
        let note = |node: &Arc<Node>| {
            node.state.failed_commits().store(0, Ordering::Relaxed);
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
                        node.state.failed_commits().fetch_add(1, Ordering::Relaxed);
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
        let is_stuck = |node: &Node| node.state.failed_commits().load(Ordering::Relaxed) >= STUCK_COMMITS;
        for node in self.registry.nodes_where(is_stuck) {
            node.state.keep_from_changes();
        }
    }

    /// Names of datasets whose commits fail again and again for metadata that cannot be read.
    pub fn stuck(&self) -> Vec<String> {
        let is_stuck = |node: &Node| node.state.failed_commits().load(Ordering::Relaxed) >= STUCK_COMMITS;
        let nodes = self.registry.nodes_where(is_stuck);
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

    /// The budget of memory has changed: so do the caches. What counts heat keeps its size until the next start.
    pub fn size_caches(&self) {
        self.environment.size_cache();
    }

    /// Bytes that were written ahead and wait for a commit.
    pub fn ahead_bytes(&self) -> u64 {
        self.environment.ahead.bytes()
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
            let last = node.state.committed_nanoseconds().load(Ordering::Relaxed);
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
            let committed = node.state.committed_nanoseconds();
            committed.store(now.saturating_add(1), Ordering::Relaxed);
        });
        // The others keep their word.
        self.environment.store.flush(self.environment.store.newest())?;
        self.thin()?;
        failed.map_or(Ok(wait.get()), Err)
    }

    /// Commits and flushes these, like an fsync of each: which checkpoints retention holds is for the ticker.
    pub(crate) fn make_durable(&self, nodes: Vec<Arc<Node>>) -> Result<(), DatasetError> {
        let (_, sequence) = self.close_checkpoint(nodes, |_, _| Ok(()))?;
        self.environment.store.flush(sequence)?;
        Ok(())
    }

    /// Commits and flushes everything, also what is kept only in RAM: before the pool is closed.
    pub fn save_all(&self) -> Result<(), DatasetError> {
        let save = || self.close_checkpoint(self.registry.nodes_where(|_| true), |_, _| Ok(()));
        // What an earlier commit could not write is made up for by the first try, what came later by the second.
        save().or_else(|_| save())?;
        // Numbers that nothing was changed under are nowhere else, and must not be given again.
        let sequence = self.facts.commit(&self.environment.store, Batch::new())?;
        self.environment.store.flush(sequence)?;
        Ok(())
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

    /// Freezes `nodes` in one moment, commits them, and calls `held` with the number before any later change of
    /// them can be committed.
    pub(crate) fn close_checkpoint(
        &self,
        mut nodes: Vec<Arc<Node>>,
        held: impl FnOnce(u64, &[Arc<Node>]) -> Result<(), DatasetError>,
    ) -> Result<(u64, Sequence), DatasetError> {
        nodes.sort_by_key(|node| node.number());
        nodes.dedup_by_key(|node| node.number());
        // A dataset that nobody opened has nothing to freeze, but nothing may be committed to it meanwhile either.
        let handles: Vec<_> = nodes.iter().filter_map(Borrowed::of).collect();
        let locks = nodes.iter().map(|node| node.state.commit_lock_while_answered());
        let locks: Vec<_> = locks.collect::<Result<_, _>>()?;
        let live = || handles.iter().filter_map(Borrowed::live);
        let paused: Vec<_> = live().map(|live| live.pause()).collect::<Result<_, _>>()?;
        let checkpoint = self.checkpoints.close();
        paused.into_iter().for_each(|paused| paused.freeze(checkpoint));
        let mut failed = None;
        for live in live() {
            if let Err(error) = live.commit_frozen() {
                failed = failed.or(Some(error));
            }
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        held(checkpoint, &nodes)?;
        drop(locks);
        Ok((checkpoint, self.environment.store.newest()))
    }
}
