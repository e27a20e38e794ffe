//! `Loader`: puts stored datasets into the registry.
//!
//! Invariant: the checkpoint counter is then above every number in any of their records.

use std::sync::Arc;

use crate::{
    history::Recounter,
    live::{DatasetState, Environment},
    properties::PropertyService,
    quota::{Usage, WorkingRoom},
    records::DatasetRecord,
    registry::{Node, PoolFacts, Registry},
    settings::{DatasetError, Settings, name as names},
};

/// See the module.
pub(super) struct Loader {
    pub(super) environment: Arc<Environment>,
    pub(super) registry: Arc<Registry>,
    pub(super) facts: Arc<PoolFacts>,
    pub(super) recounter: Arc<Recounter>,
    pub(super) properties: Arc<PropertyService>,
    /// What the usage of all of them shares.
    pub(super) common: Arc<WorkingRoom>,
}

impl Loader {
    /// Those above come before those below.
    pub(super) fn load_all(&self, records: Vec<(u32, DatasetRecord)>) -> Result<(), DatasetError> {
        let mut records = records.into_iter();
        records.try_for_each(|(number, record)| self.load(number, record))
    }

    fn load(&self, number: u32, record: DatasetRecord) -> Result<(), DatasetError> {
        let records = self.environment.records().dataset(number);
        let counters = records.counters()?.unwrap_or_default();
        let held = records.held()?;
        let newest = counters
            .newest_checkpoint
            .max(held.newest_until(u64::MAX).unwrap_or(0));
        let checkpoints = self.facts.checkpoints();
        checkpoints.raise(newest.saturating_add(1));
        let name = self.registry.full_name(&record.name);
        let above = names::parent(&name).and_then(|above| self.registry.get(above));
        let above = above.map(|above| above.state.usage().clone());
        let usage = Usage::new(self.environment.store.clone(), self.common.clone(), above);
        usage.add_live_blocks(i64::try_from(counters.live_blocks).unwrap_or(i64::MAX));
        let state = Arc::new(DatasetState::new(
            number,
            record.kind,
            &name,
            self.environment.clone(),
            checkpoints.clone(),
            Settings::default(),
            held,
            counters,
            usage,
        ));
        self.recounter.resume(&state);
        let node = Node::new(state, record);
        self.registry.insert(name.clone(), node.clone());
        self.properties.apply(&name, &node);
        Ok(())
    }
}
