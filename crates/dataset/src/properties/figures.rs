//! Names and values of properties, and of figures such as `used`, which are read the same way and cannot be set.

use crate::{
    records::Kind,
    registry::DatasetInfo,
    settings::{DatasetError, PropertyValue, properties},
};

/// Whether [`PropertyService::set`](super::PropertyService::set) would find the property and the value right for the filesystem of a pool that is still to be made,
/// with these tiers.
///
/// # Errors
/// As of [`PropertyService::check_set`](super::PropertyService::check_set).
pub fn check_for_new_pool(property: &str, value: &str, tiers: &[String]) -> Result<(), DatasetError> {
    kept(false, property, value, tiers).map(drop)
}

/// The value as a filesystem or volume keeps it.
pub(super) fn kept(
    is_volume: bool,
    property: &str,
    value: &str,
    tiers: &[String],
) -> Result<String, DatasetError> {
    let value = canonical(property, value, tiers)?;
    if property == "block_size" && !is_volume {
        return Err(DatasetError::PropertyRefused(
            "'block_size' is a property of volumes".into(),
        ));
    }
    Ok(value)
}

pub(super) fn canonical(property: &str, value: &str, tiers: &[String]) -> Result<String, DatasetError> {
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
pub(super) fn is_size(property: &str) -> bool {
    property == SIZE || property == "volsize"
}

/// Who sets a size is told the command that does it: that one asks before it makes a volume smaller.
pub(super) fn resized_elsewhere(name: &str, is_volume: bool, value: &str) -> DatasetError {
    DatasetError::InvalidProperty(match is_volume {
        true => format!(
            "a volume's size is changed by a command of its own, which asks before it makes one smaller; \
             'terrace volume resize {name} {value}'"
        ),
        false => format!("'{name}' is no volume; 'terrace set quota={value} {name}' limits what it takes"),
    })
}

/// The figure that volumes alone have.
pub(super) const SIZE: &str = "size";

pub(super) fn figure_names() -> [&'static str; 10] {
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

pub(super) fn figures(info: &DatasetInfo) -> Vec<PropertyValue> {
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
