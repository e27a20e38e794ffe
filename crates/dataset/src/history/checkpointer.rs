//! `Checkpointer`: freezes datasets in one moment, and commits them as one state of the pool.
//!
//! Invariants: what a checkpoint has of several datasets is of one moment; nothing later of them is committed before it is known
//! which checkpoints are held.

use std::sync::Arc;

use terrace_store::{Batch, Sequence};

use crate::{
    live::Environment,
    registry::{Borrowed, Node, PoolFacts, Registry},
    settings::DatasetError,
};

/// See the module.
pub(crate) struct Checkpointer {
    environment: Arc<Environment>,
    registry: Arc<Registry>,
    facts: Arc<PoolFacts>,
}

impl Checkpointer {
    pub(crate) fn new(
        environment: &Arc<Environment>,
        registry: &Arc<Registry>,
        facts: &Arc<PoolFacts>,
    ) -> Self {
        Self {
            environment: environment.clone(),
            registry: registry.clone(),
            facts: facts.clone(),
        }
    }

    /// Commits and flushes these, like an fsync of each: which checkpoints retention holds is for the ticker.
    pub(crate) fn make_durable(&self, nodes: Vec<Arc<Node>>) -> Result<(), DatasetError> {
        let (_, sequence) = self.close(nodes, |_, _| Ok(()))?;
        self.environment.store.flush(sequence)?;
        Ok(())
    }

    /// Commits and flushes everything, also what is kept only in RAM: before the pool is closed.
    pub(crate) fn save_all(&self) -> Result<(), DatasetError> {
        let save = || self.close(self.registry.nodes_where(|_| true), |_, _| Ok(()));
        // What an earlier commit could not write is made up for by the first try, what came later by the second.
        save().or_else(|_| save())?;
        // Numbers that nothing was changed under are nowhere else, and must not be given again.
        let sequence = self.facts.commit(Batch::new())?;
        self.environment.store.flush(sequence)?;
        Ok(())
    }

    /// Freezes `nodes` in one moment, commits them, and calls `held` with the number before any later change of
    /// them can be committed.
    pub(crate) fn close(
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
        let still: Vec<_> = live().map(|live| live.stand_still()).collect::<Result<_, _>>()?;
        let paused: Vec<_> = still.into_iter().map(|still| still.pause()).collect();
        let checkpoint = self.facts.checkpoints().close();
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
