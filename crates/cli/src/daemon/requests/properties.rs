//! Requests about the properties of datasets: read, set, inherited, and what takes effect with them at once.
//!
//! Invariants: what is asked of a snapshot's properties is refused, as it stays what it was; pins and `readonly` take effect also
//! where only part of what was asked for could be done; sectors do not change under who counts in them.

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_dataset::{Source, check_readable, format_time};

use super::readonly;
use crate::daemon::{
    blocks::Blocks,
    blocks::Still,
    mounting::Mounts,
    open_pool::OpenPool,
    support::{Parameters, failed, refused},
};

pub(crate) fn get_properties(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let name = parameters.text("name")?;
    let wanted: Vec<String> = parameters.value("properties")?;
    let datasets = pool.engine().datasets();
    let what = format!("get properties of '{name}'");
    let mut rows = Vec::new();
    if name.contains('@') {
        return past_properties(pool, &what, &name, &wanted);
    }
    let mut names = vec![name.clone()];
    if parameters.flag("recursive")? {
        let below = datasets
            .list(Some(&name))
            .map_err(|error| failed(&what, &error))?;
        names = below.into_iter().map(|info| info.name).collect();
    }
    for name in names {
        for property in &wanted {
            for found in datasets
                .properties()
                .get(&name, property)
                .map_err(|error| refused(&what, &error))?
            {
                let value = property_json(&found.name, &found.value);
                rows.push(json!({
                    "name": name, "property": found.name, "value": value, "text": found.value,
                    "source": found.source.to_string(),
                }));
            }
        }
    }
    Ok(Value::Array(rows))
}

/// Of a snapshot: what was noted of it, and of a volume's the size that it had. What else datasets have is `-` of it, so that
/// many can be asked, as it is with a figure that a dataset has not.
fn past_properties(pool: &OpenPool, what: &str, name: &str, wanted: &[String]) -> Result<Value, Failure> {
    let datasets = pool.engine().datasets();
    let info = datasets
        .snapshots()
        .info(name)
        .map_err(|error| failed(what, &error))?;
    let mut facts = vec![
        ("type", json!("snapshot")),
        ("creation", json!(format_time(info.time))),
        ("checkpoint", json!(info.checkpoint)),
        ("referenced", json!(info.referenced_bytes)),
        ("objects", json!(info.objects)),
        ("note", json!(info.note)),
        ("holds", json!(info.holds.join(","))),
    ];
    // It is in a record of its own, which need not be readable for all else.
    let asks_for_size = |property: &String| ["all", "size", "volsize"].contains(&property.as_str());
    if wanted.iter().any(asks_for_size) {
        let size = datasets.snapshots().size(name);
        let size = size.map_err(|error| failed(what, &error))?;
        facts.extend(size.map(|bytes| ("size", json!(bytes))));
    }
    let mut rows = Vec::new();
    for property in wanted {
        let row = |property: &str, value: &Value| json!({ "name": name, "property": property, "value": value, "source": "-" });
        if property == "all" {
            rows.extend(facts.iter().map(|(fact, value)| row(fact, value)));
            continue;
        }
        // As zfs calls it.
        let called = if property == "volsize" { "size" } else { property };
        match facts.iter().find(|(fact, _)| *fact == called) {
            Some((_, value)) => rows.push(row(property, value)),
            None if check_readable(property).is_ok() => rows.push(row(property, &json!("-"))),
            None => {
                let names: Vec<_> = facts.iter().map(|(fact, _)| *fact).collect();
                let why = format!("a snapshot has no property '{property}'");
                return Err(Failure::new(what, why, format!("it has {}", names.join(", "))).as_usage());
            }
        }
    }
    Ok(Value::Array(rows))
}

pub(crate) fn set_properties(
    pool: &OpenPool,
    mounts: &Mounts,
    blocks: &Blocks,
    parameters: &Parameters,
) -> Result<Value, Failure> {
    let name = parameters.text("name")?;
    let properties: Vec<(String, String)> = parameters.value("properties")?;
    let datasets = pool.engine().datasets();
    if let Some((first, _)) = properties.first() {
        refuse_past(&format!("set {first} of '{name}'"), &name)?;
    }
    // A mistake in one of them leaves the others as they are too.
    for (property, value) in &properties {
        let checked = datasets.properties().check_set(&name, property, value);
        checked.map_err(|error| refused(&format!("set {property} of '{name}'"), &error))?;
    }
    let sectors = properties.iter().any(|(property, _)| property == "block_size");
    let _still = match sectors {
        true => Some(refuse_other_sectors(blocks, std::slice::from_ref(&name))?),
        false => None,
    };
    let (writable, mut answer) = (readonly::writable_from(pool, &name), Value::Null);
    for (property, value) in &properties {
        let outcome = datasets.properties().set(&name, property, value);
        outcome.map_err(|error| refused(&format!("set {property} of '{name}'"), &error))?;
        if property == "pin" {
            pin_changed(pool, &name);
        }
        if property == "readonly" {
            answer = readonly::readonly_changed(pool, mounts, blocks, &name, &writable);
        }
    }
    Ok(answer)
}

/// Whoever has a device open counts in its sectors: they stay what they are, and nobody opens one while they change.
fn refuse_other_sectors<'a>(blocks: &'a Blocks, names: &[String]) -> Result<Still<'a>, Failure> {
    let still = blocks.hold_still();
    names
        .iter()
        .try_for_each(|name| blocks.refuse_if_used(&still, "set block_size of", name))?;
    Ok(still)
}

pub(crate) fn inherit(
    pool: &OpenPool,
    mounts: &Mounts,
    blocks: &Blocks,
    parameters: &Parameters,
) -> Result<Value, Failure> {
    let (name, property) = (parameters.text("name")?, parameters.text("property")?);
    let what = |name: &str| format!("inherit {property} for '{name}'");
    refuse_past(&what(&name), &name)?;
    let datasets = pool.engine().datasets();
    // Whoever has no value of his own stays as he is, in use or not.
    let has_own = |name: &str| {
        let found = datasets.properties().get(name, &property).into_iter().flatten();
        found.into_iter().any(|found| found.source == Source::Local)
    };
    let mut names = vec![name.clone()];
    if parameters.flag("recursive")? {
        let below = datasets
            .list(Some(&name))
            .map_err(|error| failed(&what(&name), &error))?;
        let below = below.into_iter().map(|info| info.name);
        names.extend(below.filter(|below| *below != name && has_own(below)));
    }
    let _still = match property == "block_size" {
        true => {
            let changing: Vec<String> = names.iter().filter(|name| has_own(name)).cloned().collect();
            Some(refuse_other_sectors(blocks, &changing)?)
        }
        false => None,
    };
    let (writable, mut answer, mut outcome) = (readonly::writable_from(pool, &name), Value::Null, Ok(()));
    for (at, name) in names.iter().enumerate() {
        if let Err(error) = datasets.properties().inherit(name, &property) {
            let failure = refused(&what(name), &error);
            outcome = Err(Failure {
                usage: failure.usage && at == 0,
                ..failure
            });
            break;
        }
    }
    // Also what was changed before one could not be.
    match property.as_str() {
        "pin" => pin_changed(pool, &name),
        "readonly" => answer = readonly::readonly_changed(pool, mounts, blocks, &name, &writable),
        _ => {}
    }
    outcome.map(|()| answer)
}

/// The pin of a dataset, and of those below that inherit it, is another one: what lies there already moves too.
pub(crate) fn pin_changed(pool: &OpenPool, name: &str) {
    if let Err(error) = move_to_pins(pool, name) {
        tracing::warn!(%error, dataset = name, "what its pin asks for is not moved yet");
    }
}

/// Begins to move a dataset, and those below that inherit its pin, to where that says; returns the jobs.
pub(crate) fn move_to_pins(pool: &OpenPool, name: &str) -> Result<Vec<u64>, Failure> {
    let datasets = pool.engine().datasets();
    let mut jobs = Vec::new();
    for name in pinned_with(pool, name) {
        if let Ok(state) = datasets.state(&name) {
            let begun = pool.engine().mover().dataset_pin_changed(state.number());
            jobs.extend(
                begun.map_err(|error| failed(&format!("move '{name}' to where its pin says"), &error))?,
            );
        }
    }
    Ok(jobs)
}

/// A dataset, and those below that have no other pin than its.
pub(crate) fn pinned_with(pool: &OpenPool, name: &str) -> Vec<String> {
    let datasets = pool.engine().datasets();
    let has_its = |other: &str| {
        let pin = datasets
            .properties()
            .get(other, "pin")
            .ok()
            .and_then(|pins| pins.into_iter().next());
        other == name
            || match pin.map(|pin| pin.source) {
                Some(Source::Local) => false,
                Some(Source::Inherited(from)) => from.len() <= name.len(),
                _ => true,
            }
    };
    let all = datasets.list(Some(name)).into_iter().flatten();
    all.map(|info| info.name).filter(|name| has_its(name)).collect()
}

/// A snapshot has no properties of its own: whoever names one is told so.
fn refuse_past(what: &str, name: &str) -> Result<(), Failure> {
    let Some((dataset, _)) = name.split_once('@') else {
        return Ok(());
    };
    let why = "a snapshot stays as it was taken, and has no properties to set";
    Err(Failure::new(what, why, format!("name its dataset, '{dataset}'")).as_usage())
}

/// Sizes and durations as numbers, as all JSON of Terrace has them.
fn property_json(name: &str, value: &str) -> Value {
    const SIZES: [&str; 7] = [
        "quota",
        "reservation",
        "block_size",
        "chunk_size",
        "size",
        "volsize",
        "used",
    ];
    let number = match name {
        "commit_interval" => terrace_device::parse_duration(value)
            .ok()
            .map(|time| json!(time.as_secs_f64())),
        _ if SIZES.contains(&name) => terrace_device::parse_size(value).ok().map(|bytes| json!(bytes)),
        "referenced" | "history" | "available" | "objects" | "snapshot_count" | "number" => {
            value.parse::<u64>().ok().map(|number| json!(number))
        }
        _ => None,
    };
    number.unwrap_or_else(|| json!(value))
}
