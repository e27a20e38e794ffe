//! `PropertyService`: properties of the datasets of a pool: read, set, inherited, and put in force.
//!
//! Invariants: a value is durable before it is in force; what inherits it has it at the same moment.

use std::sync::Arc;

use terrace_store::Batch;

use super::figures::{
    SIZE, canonical, check_readable, figure_names, figures, is_size, kept, resized_elsewhere,
};
use crate::{
    history::Checkpointer,
    live::Environment,
    records::{DatasetRecord, PROPERTIES_MAX, keys},
    registry::{Node, Registry},
    settings::{DatasetError, Durability, PropertyValue, properties},
};

/// See the module.
pub struct PropertyService {
    environment: Arc<Environment>,
    pub(super) registry: Arc<Registry>,
    checkpointer: Arc<Checkpointer>,
}

impl PropertyService {
    pub(crate) fn new(
        environment: &Arc<Environment>,
        registry: &Arc<Registry>,
        checkpointer: &Arc<Checkpointer>,
    ) -> Self {
        Self {
            environment: environment.clone(),
            registry: registry.clone(),
            checkpointer: checkpointer.clone(),
        }
    }

    /// The value of a property, or of all of them (`all`), with figures such as `used`. What zfs calls `volsize` is found by that
    /// name too, and is in `all` once, as `size`; a dataset that has no such figure has `-`, so that many can be asked.
    pub fn get(&self, name: &str, property: &str) -> Result<Vec<PropertyValue>, DatasetError> {
        let info = self.registry.info(name, &self.environment.store.space())?;
        let chain = self.registry.chain(name);
        let figures = figures(&info);
        let is_figure = |name: &str| name == property || name == SIZE && is_size(property);
        if figure_names().into_iter().any(is_figure) {
            let found = figures.into_iter().find(|figure| is_figure(&figure.name));
            return Ok(vec![PropertyValue {
                name: property.to_owned(),
                value: found.map_or_else(|| "-".to_owned(), |figure| figure.value),
                source: properties::Source::ReadOnly,
            }]);
        }
        if property != "all" {
            check_readable(property)?;
            let unset = || PropertyValue {
                name: property.to_owned(),
                value: "-".to_owned(),
                source: properties::Source::Default,
            };
            return Ok(vec![properties::resolve(property, &chain).unwrap_or_else(unset)]);
        }
        let mut names: Vec<String> = properties::property_names().map(str::to_owned).collect();
        let set = chain.iter().flat_map(|(_, properties)| properties.keys());
        names.extend(set.filter(|name| name.starts_with("user:")).cloned());
        names.sort();
        names.dedup();
        let found = names.iter().filter_map(|name| properties::resolve(name, &chain));
        Ok(figures.into_iter().chain(found).collect())
    }

    /// Whether [`set`](Self::set) would find the property and the value right; changes nothing.
    ///
    /// # Errors
    /// As of `set`, but for those of room, reservations and quotas.
    pub fn check_set(&self, name: &str, property: &str, value: &str) -> Result<(), DatasetError> {
        let node = self.registry.node(name)?;
        self.checked(name, &node, property, value).map(drop)
    }

    /// The value as it is kept.
    fn checked(&self, name: &str, node: &Node, property: &str, value: &str) -> Result<String, DatasetError> {
        let is_volume = node.record().kind.is_volume();
        if is_size(property) {
            return Err(resized_elsewhere(name, is_volume, value));
        }
        kept(is_volume, property, value, &self.tiers())
    }

    /// Sets a property; in force at once for it and what inherits it.
    pub fn set(&self, name: &str, property: &str, value: &str) -> Result<(), DatasetError> {
        let _admin = self.registry.administer();
        let node = self.registry.node(name)?;
        let value = self.checked(name, &node, property, value)?;
        let mut record = node.record();
        record.properties.insert(property.to_owned(), value);
        if record.properties.len() > PROPERTIES_MAX {
            return Err(DatasetError::PropertyRefused(format!(
                "'{name}' has too many properties already"
            )));
        }
        self.change_properties(name, &node, record, property)
    }

    /// Removes the value of a property, so that it is inherited or the default again.
    pub fn inherit(&self, name: &str, property: &str) -> Result<(), DatasetError> {
        let _admin = self.registry.administer();
        let node = self.registry.node(name)?;
        properties::check_name(property).map_err(DatasetError::InvalidProperty)?;
        let mut record = node.record();
        if record.properties.remove(property).is_none() {
            return Ok(());
        }
        self.change_properties(name, &node, record, property)
    }

    fn change_properties(
        &self,
        name: &str,
        node: &Arc<Node>,
        record: DatasetRecord,
        property: &str,
    ) -> Result<(), DatasetError> {
        if property == "reservation" {
            let mut chain = self.registry.chain(name);
            if let Some(own) = chain.first_mut() {
                own.1.clone_from(&record.properties);
            }
            let bytes = properties::settings(&chain, &[]).reservation_bytes;
            self.check_reservation(name, bytes)?;
            let usage = node.state.usage();
            let _more = self.environment.set_aside(usage.more_for(bytes))?;
            usage.keep_reservation(bytes);
        }
        if property == "quota" {
            let own = [(name.to_owned(), record.properties.clone())];
            self.check_quota(name, properties::settings(&own, &[]).quota_bytes)?;
        }
        let mut batch = Batch::new();
        batch.put(keys::dataset(node.number()), record.encode());
        batch.privileged();
        let sequence = self.environment.store.commit(batch)?;
        self.environment.store.flush(sequence)?;
        node.set_record(record);
        let tree = self.registry.tree(name);
        self.apply_others(&tree)
    }

    /// A value of a new dataset as it is kept.
    pub(crate) fn check(&self, property: &str, value: &str) -> Result<String, DatasetError> {
        canonical(property, value, &self.tiers())
    }

    /// Works out the settings of these again, for whom others hold now. Of those whose fsync begins to mean durable, what they were
    /// told to sync before is durable from then on too.
    pub(crate) fn apply_others(&self, tree: &[(String, Arc<Node>)]) -> Result<(), DatasetError> {
        let fsync_keeps = |node: &Arc<Node>| {
            let durability = node.state.settings().durability;
            matches!(durability, Durability::Barrier | Durability::Sync)
        };
        let mut raised: Vec<_> = tree.iter().map(|(_, node)| node.clone()).collect();
        raised.retain(|node| !fsync_keeps(node));
        tree.iter().for_each(|(name, node)| self.apply(name, node));
        raised.retain(fsync_keeps);
        if raised.is_empty() {
            return Ok(());
        }
        self.checkpointer.make_durable(raised).map_err(|error| {
            DatasetError::Refused(format!(
                "it holds from now on, but what was written before is not durable yet: {error}; 'terrace status' shows what                  is wrong"
            ))
        })
    }

    /// Works out the settings of all again: the pool's tiers changed.
    pub(crate) fn apply_all(&self) {
        let all = self.registry.all();
        all.iter().for_each(|(name, node)| self.apply(name, node));
    }

    /// Works out the settings of a dataset again.
    pub(crate) fn apply(&self, name: &str, node: &Node) {
        let settings = properties::settings(&self.registry.chain(name), &self.tiers());
        node.state.usage().set_quota(settings.quota_bytes);
        if !node.state.usage().keep_reservation(settings.reservation_bytes) {
            tracing::warn!(
                dataset = name,
                bytes = settings.reservation_bytes,
                "the pool has less room than is reserved; nobody else can write until there is as much"
            );
        }
        node.state.set_settings(settings);
    }

    fn tiers(&self) -> Vec<String> {
        self.environment
            .store
            .space()
            .tiers
            .into_iter()
            .map(|tier| tier.name)
            .collect()
    }
}
