//! Loading: puts stored datasets into the registry.
//!
//! Invariant: the checkpoint counter is then above every number in any of their records.

use std::{collections::BTreeMap, sync::Arc};

use super::lifecycle::Lifecycle;
use crate::{
    live::DatasetState,
    quota::Usage,
    records::{DatasetRecord, Kind},
    registry::Node,
    settings::{DatasetError, Settings, name as names},
};

impl Lifecycle {
    /// Puts all stored datasets into the registry; a new pool gets its root dataset.
    pub(super) fn open_all(&self) -> Result<(), DatasetError> {
        let mut records = self.environment.records().datasets()?;
        records.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        if records.is_empty() {
            return self.finish_create(vec![self.prepare(
                String::new(),
                Kind::Filesystem,
                BTreeMap::new(),
            )?]);
        }
        self.load_all(records)
    }

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
