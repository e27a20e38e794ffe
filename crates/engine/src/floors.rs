//! The floors below the engine, opened on one another, and what each takes of the memory. Each component of the engine picks those
//! that it works on.

use std::sync::Arc;

use terrace_cache::Budget;
use terrace_chunk::ChunkStore;
use terrace_dataset::{Datasets, Environment};
use terrace_device::Clock;
use terrace_mover::Mover;
use terrace_pool::Pool;
use terrace_store::Store;

/// See the module.
pub(crate) struct Floors {
    pub(crate) pool: Arc<Pool>,
    pub(crate) chunks: Arc<ChunkStore>,
    /// The same store without its maintenance.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) environment: Arc<Environment>,
    pub(crate) datasets: Arc<Datasets>,
    pub(crate) mover: Arc<Mover>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Of what the store may take of the memory: for records that are not yet in tables, and for what was read of tables.
pub(crate) fn shares_of_store(budget: &Budget) -> (usize, usize) {
    let store_bytes = budget.store_bytes() as usize;
    (
        store_bytes / 3,
        budget.less_excess(budget.store_bytes() / 2) as usize,
    )
}
