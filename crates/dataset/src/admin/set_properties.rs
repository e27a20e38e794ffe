//! Properties of the datasets of a pool: read, set, inherited, and put in force.
//!
//! Invariants: a value is durable before it is in force; what inherits it has it at the same moment; figures such as `used` are read
//! the same way and cannot be set.

use std::sync::Arc;

use terrace_device::format_size;
use terrace_store::Batch;

use super::{
    datasets::{DatasetInfo, Datasets},
    node::Node,
};
use crate::{
    records::{DatasetRecord, Kind, keys},
    settings::{DatasetError, Durability, PropertyValue, properties},
};

/// Whether [`Datasets::set`] would find the property and the value right for the filesystem of a pool that is still to be made,
/// with these tiers.
///
/// # Errors
/// As of [`Datasets::check_set`].
pub fn check_for_new_pool(property: &str, value: &str, tiers: &[String]) -> Result<(), DatasetError> {
    kept(false, property, value, tiers).map(drop)
}

/// The value as a filesystem or volume keeps it.
fn kept(is_volume: bool, property: &str, value: &str, tiers: &[String]) -> Result<String, DatasetError> {
    let value = canonical(property, value, tiers)?;
    if property == "block_size" && !is_volume {
        return Err(DatasetError::PropertyRefused(
            "'block_size' is a property of volumes".into(),
        ));
    }
    Ok(value)
}

fn canonical(property: &str, value: &str, tiers: &[String]) -> Result<String, DatasetError> {
    if is_size(property) {
        return Err(DatasetError::InvalidProperty(
            "a volume's size is no property to set; give it with 'terrace volume create --size SIZE'".into(),
        ));
    }
    if figure_names().contains(&property) {
        return Err(DatasetError::InvalidProperty(format!(
            "'{property}' is a figure; it cannot be set"
        )));
    }
    let value = properties::canonical(property, value).map_err(DatasetError::InvalidProperty)?;
    if property == "pin" {
        // Another pool may have such a tier.
        properties::check_pin(&value, tiers).map_err(DatasetError::PropertyRefused)?;
    }
    Ok(value)
}

/// Whether there is such a property, or such a figure, to be read of any dataset.
///
/// # Errors
/// `InvalidProperty` with what there is.
pub fn check_readable(property: &str) -> Result<(), DatasetError> {
    if is_size(property) || figure_names().contains(&property) {
        return Ok(());
    }
    let beside = |why| format!("{why}, and figures: {}", figure_names().join(", "));
    properties::check_name(property).map_err(|why| DatasetError::InvalidProperty(beside(why)))
}

/// A volume's size, by its name here and in zfs.
fn is_size(property: &str) -> bool {
    property == SIZE || property == "volsize"
}

/// Who sets a size is told the command that does it: that one asks before it makes a volume smaller.
fn resized_elsewhere(name: &str, is_volume: bool, value: &str) -> DatasetError {
    DatasetError::InvalidProperty(match is_volume {
        true => format!(
            "a volume's size is changed by a command of its own, which asks before it makes one smaller; \
             'terrace volume resize {name} {value}'"
        ),
        false => format!("'{name}' is no volume; 'terrace set quota={value} {name}' limits what it takes"),
    })
}

impl Datasets {
    /// The value of a property, or of all of them (`all`), with figures such as `used`. What zfs calls `volsize` is found by that
    /// name too, and is in `all` once, as `size`; a dataset that has no such figure has `-`, so that many can be asked.
    pub fn get(&self, name: &str, property: &str) -> Result<Vec<PropertyValue>, DatasetError> {
        let info = self.info(name)?;
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
        let is_volume = node.record.read().kind.is_volume();
        if is_size(property) {
            return Err(resized_elsewhere(name, is_volume, value));
        }
        kept(is_volume, property, value, &self.tiers())
    }

    /// Sets a property; in force at once for it and what inherits it.
    pub fn set(&self, name: &str, property: &str, value: &str) -> Result<(), DatasetError> {
        let _admin = self.administer();
        let node = self.registry.node(name)?;
        let value = self.checked(name, &node, property, value)?;
        let mut record = node.record.read().clone();
        record.properties.insert(property.to_owned(), value);
        if record.properties.len() > crate::records::PROPERTIES_MAX {
            return Err(DatasetError::PropertyRefused(format!(
                "'{name}' has too many properties already"
            )));
        }
        self.change_properties(name, &node, record, property)
    }

    /// Removes the value of a property, so that it is inherited or the default again.
    pub fn inherit(&self, name: &str, property: &str) -> Result<(), DatasetError> {
        let _admin = self.administer();
        let node = self.registry.node(name)?;
        properties::check_name(property).map_err(DatasetError::InvalidProperty)?;
        let mut record = node.record.read().clone();
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
            let _more = self.set_aside(usage.more_for(bytes))?;
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
        *node.record.write() = record;
        let tree = self.registry.tree(name);
        self.apply_others(&tree)
    }

    pub(crate) fn check_property(&self, property: &str, value: &str) -> Result<String, DatasetError> {
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
        tree.iter()
            .for_each(|(name, node)| self.apply_settings(name, node));
        raised.retain(fsync_keeps);
        if raised.is_empty() {
            return Ok(());
        }
        self.make_durable(raised).map_err(|error| {
            DatasetError::Refused(format!(
                "it holds from now on, but what was written before is not durable yet: {error}; 'terrace status' shows what                  is wrong"
            ))
        })
    }

    /// Works out the settings of a dataset again; call it for all when the pool's tiers changed.
    pub(crate) fn apply_settings(&self, name: &str, node: &Node) {
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

    /// A reservation that a quota, of its own or above, does not let be used is a mistake.
    pub(crate) fn check_reservation(&self, name: &str, bytes: u64) -> Result<(), DatasetError> {
        let mut above = Some(name);
        while let Some(at) = above {
            let node = self.registry.get(at);
            let quota = node.and_then(|node| node.state.settings().quota_bytes);
            if let Some(quota) = quota.filter(|quota| bytes > *quota) {
                return Err(above_quota(name, bytes, at, quota));
            }
            above = crate::settings::parent(at);
        }
        let usage_of = |name: &str| {
            let node = self.registry.get(name);
            node.map(|node| node.state.usage().clone())
        };
        // A new one takes it of the quotas above.
        let (more, left) = match usage_of(name) {
            Some(own) => (own.more_of_quota(bytes), own.quota_left_bytes()),
            None => {
                let above = crate::settings::parent(name).and_then(usage_of);
                (bytes, above.and_then(|above| above.quota_left_bytes()))
            }
        };
        match left {
            Some(left) if more > left => Err(DatasetError::PropertyRefused(format!(
                "the reservation of '{name}' would take {} more of the quotas of it and of the datasets above, which leave {}; \
                 reserve less, or raise the quota",
                format_size(more),
                format_size(left)
            ))),
            _ => Ok(()),
        }
    }

    /// The same seen from a quota that is to be set.
    fn check_quota(&self, name: &str, quota_bytes: Option<u64>) -> Result<(), DatasetError> {
        let Some(quota) = quota_bytes else { return Ok(()) };
        let tree = self.registry.tree(name);
        // What files have preallocated is written whatever the quota, as what is used already stays.
        let mut reserves = false;
        for (below, node) in tree {
            let reserved = node.state.usage().reservation_bytes();
            reserves |= reserved > 0;
            if reserved > quota {
                return Err(above_quota(&below, reserved, name, quota));
            }
        }
        let node = self.registry.node(name)?;
        let usage = node.state.usage();
        let taken = usage.taken_of_quotas_bytes();
        // More of it than now is welcome, though not enough.
        let is_less = usage.quota_bytes().is_none_or(|now| quota < now);
        if is_less && reserves && usage.promised_bytes() > 0 && taken > quota {
            return Err(DatasetError::PropertyRefused(format!(
                "with what is reserved there, '{name}' takes {}, which would be above its quota, {}; give it at least \
                 that quota, or reserve less below it",
                format_size(taken),
                format_size(quota)
            )));
        }
        Ok(())
    }

    /// Whether what is renamed fits into the quotas that begin to count it.
    pub(crate) fn check_rename(&self, from: &str, to: &str) -> Result<(), DatasetError> {
        let taken = self.registry.node(from)?.state.usage().taken_of_quotas_bytes();
        let counts_it = |above: &&str| from.starts_with(&format!("{above}/"));
        let mut above =
            std::iter::successors(crate::settings::parent(to), |name| crate::settings::parent(name))
                .take_while(|above| !counts_it(above));
        above.try_for_each(|above| {
            let node = self.registry.node(above)?;
            let usage = node.state.usage();
            let left = |quota: u64| quota.saturating_sub(usage.taken_of_quotas_bytes());
            match usage.quota_bytes().map(left) {
                Some(left) if taken > left => Err(DatasetError::Refused(format!(
                    "'{from}' takes {}, with what is reserved there, and the quota of '{above}' leaves {}; raise the quota \
                     ('terrace set quota=… {above}'), or make '{from}' smaller",
                    format_size(taken),
                    format_size(left)
                ))),
                _ => Ok(()),
            }
        })
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

pub(crate) fn above_quota(name: &str, reservation_bytes: u64, at: &str, quota_bytes: u64) -> DatasetError {
    DatasetError::PropertyRefused(format!(
        "the reservation of '{name}', {}, would be above the quota of '{at}', {}; reserve less ('terrace set \
         reservation={} {name}', or --sparse for a new volume) or raise the quota",
        format_size(reservation_bytes),
        format_size(quota_bytes),
        terrace_device::exact_size(quota_bytes),
    ))
}

/// The figure that volumes alone have.
const SIZE: &str = "size";

fn figure_names() -> [&'static str; 10] {
    [
        "type",
        "creation",
        "used",
        "referenced",
        "history",
        "available",
        "objects",
        "snapshot_count",
        SIZE,
        "number",
    ]
}

fn figures(info: &DatasetInfo) -> Vec<PropertyValue> {
    let [
        kind,
        creation,
        used,
        referenced,
        history,
        available,
        objects,
        snapshots,
        size,
        number,
    ] = figure_names();
    let mut list = vec![
        (
            kind,
            if info.kind.is_volume() { "volume" } else { "fs" }.to_owned(),
        ),
        (creation, crate::settings::format_time(info.created)),
        (used, info.used_bytes.to_string()),
        (referenced, info.referenced_bytes.to_string()),
        (history, info.history_bytes.to_string()),
        (available, info.available_bytes.to_string()),
        (objects, info.objects.to_string()),
        (snapshots, info.snapshots.to_string()),
        (number, info.number.to_string()),
    ];
    if let Kind::Volume { size_bytes } = info.kind {
        list.push((size, size_bytes.to_string()));
    }
    let source = properties::Source::ReadOnly;
    list.into_iter()
        .map(|(name, value)| PropertyValue {
            name: name.to_owned(),
            value,
            source: source.clone(),
        })
        .collect()
}
