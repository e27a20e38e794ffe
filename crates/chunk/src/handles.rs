//! `Handles`: what the components of a store work on, shared by all of them.

use std::sync::Arc;

use terrace_log::Log;
use terrace_meta::Tree;
use terrace_pool::Pool;

use crate::{Options, buffers::OpenSegments, ledger::Ledger, metadata::MetaStorage, worker_pool::Crew};

/// See the module.
#[derive(Clone)]
pub(crate) struct Handles {
    pub(crate) pool: Arc<Pool>,
    pub(crate) options: Options,
    pub(crate) tree: Arc<Tree>,
    pub(crate) log: Arc<Log>,
    pub(crate) meta: Arc<MetaStorage>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) open_segments: Arc<OpenSegments>,
    pub(crate) crew: Arc<Crew>,
}
