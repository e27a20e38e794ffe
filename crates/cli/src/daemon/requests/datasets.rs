//! Requests about datasets and snapshots, and the pool's status.

use std::time::Duration;

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_dataset::{DatasetInfo, Kind, NewDataset, SnapshotInfo, format_time};
use terrace_engine::{DatasetStatus, Status, describe_durability, loss_window};

use crate::daemon::{
    blocks::Blocks,
    mounting::Mounts,
    open_pool::OpenPool,
    support::{Parameters, failed, refused},
};

fn kind_name(kind: Kind) -> &'static str {
    if kind.is_volume() { "volume" } else { "fs" }
}

/// The pool as it is now, with its datasets and where they are mounted.
pub(crate) fn status(pool: &OpenPool, mounts: &Mounts) -> Status {
    let mut status = pool.engine().status();
    let mounted = mounts.list();
    let datasets = pool.engine().datasets().list(None).unwrap_or_default();
    status.datasets = datasets
        .into_iter()
        .map(|info| (commit_interval_of(pool, &info), info))
        .map(|(interval, info)| DatasetStatus {
            kind: kind_name(info.kind).into(),
            used_bytes: info.used_bytes,
            objects: info.objects,
            durability: durability_name(&info).into(),
            durability_detail: describe_durability(info.settings.durability, interval),
            loss_window_seconds: loss_window(info.settings.durability, interval)
                .map(|window| window.as_secs_f64()),
            mounts: mounted
                .iter()
                .filter(|mount| mount.dataset.split('@').next() == Some(&*info.name))
                .map(|mount| mount.directory.display().to_string())
                .collect(),
            created: format_time(info.created),
            name: info.name,
        })
        .collect();
    status
}

fn commit_interval_of(pool: &OpenPool, info: &DatasetInfo) -> Duration {
    let own = info.settings.commit_interval_seconds;
    own.map_or_else(|| pool.engine().commit_interval(), Duration::from_secs)
}

/// Adds to a volume where it is attached and served.
pub(crate) fn add_blocks(blocks: &Blocks, row: &mut Value) {
    let name = row["name"].as_str().unwrap_or_default().to_owned();
    if let Some(row) = row.as_object_mut() {
        row.insert("attached".into(), json!(blocks.devices_of(&name)));
        row.insert("served".into(), json!(blocks.addresses_of(&name)));
    }
}

/// A snapshot, with where it is mounted, attached and served itself.
fn snapshot_row(mounts: &Mounts, blocks: &Blocks, info: &SnapshotInfo) -> Value {
    let mut row = snapshot_json(info);
    if let Some(row) = row.as_object_mut() {
        let mounted = mounts.list();
        let at = mounted.iter().filter(|mount| mount.dataset == info.name);
        let at: Vec<_> = at.map(|mount| mount.directory.display().to_string()).collect();
        row.insert("mounts".into(), json!(at));
        row.insert("attached".into(), json!(blocks.devices_of(&info.name)));
        row.insert("served".into(), json!(blocks.addresses_of(&info.name)));
    }
    row
}

pub(crate) fn list(
    pool: &OpenPool,
    mounts: &Mounts,
    blocks: &Blocks,
    parameters: &Parameters,
) -> Result<Value, Failure> {
    let target = parameters.optional_text("target")?;
    // A pool's name stands for everything in it.
    let recursive = parameters.flag("recursive")? || target.as_deref() == Some(pool.name());
    let (filesystems, volumes) = (parameters.flag("filesystems")?, parameters.flag("volumes")?);
    let what = format!("list '{}'", target.as_deref().unwrap_or(pool.name()));
    let datasets = pool.engine().datasets();
    let mounted = mounts.list();
    let wanted = |name: &str| recursive || target.as_deref().is_none_or(|target| target == name);
    // A snapshot by its own name.
    if let Some(name) = target.as_deref().filter(|target| target.contains('@')) {
        let info = datasets
            .snapshots()
            .info(name)
            .map_err(|error| failed(&what, &error))?;
        return Ok(json!([snapshot_row(mounts, blocks, &info)]));
    }
    let mut rows = Vec::new();
    for info in datasets
        .list(target.as_deref())
        .map_err(|error| failed(&what, &error))?
    {
        let shown = if info.kind.is_volume() {
            volumes
        } else {
            filesystems
        };
        if shown && wanted(&info.name) {
            let at = mounted.iter().filter(|mount| mount.dataset == info.name);
            let at: Vec<String> = at.map(|mount| mount.directory.display().to_string()).collect();
            let mut row = dataset_json(&info, &at);
            add_blocks(blocks, &mut row);
            rows.push(row);
        }
    }
    if parameters.flag("snapshots")? {
        let snapshots = datasets
            .snapshots()
            .list(target.as_deref(), false)
            .map_err(|error| failed(&what, &error))?;
        rows.extend(
            snapshots
                .iter()
                .filter(|info| wanted(&info.dataset))
                .map(|info| snapshot_row(mounts, blocks, info)),
        );
    }
    Ok(Value::Array(rows))
}

pub(crate) fn create(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let name = parameters.text("name")?;
    let new = NewDataset {
        volume_bytes: parameters.optional_number("volume_bytes")?,
        sparse: parameters.flag("sparse")?,
        parents: parameters.flag("parents")?,
        properties: parameters.value("properties")?,
    };
    let datasets = pool.engine().datasets();
    datasets
        .create(&name, &new)
        .map_err(|error| refused(&format!("create '{name}'"), &error))?;
    pool.engine().event("create", &format!("'{name}' was created"));
    Ok(json!({ "name": name }))
}

/// What `resize` would do, or why it would not; an operation of its own, so that no daemon takes the question for the
/// order.
pub(crate) fn plan_resize(
    pool: &OpenPool,
    blocks: &Blocks,
    parameters: &Parameters,
) -> Result<Value, Failure> {
    let name = parameters.text("name")?;
    let what = format!("resize '{name}'");
    if let Some((volume, _)) = name.split_once('@') {
        let remedy = format!("name the volume: 'terrace volume resize {volume} SIZE'");
        return Err(Failure::new(
            what,
            "a snapshot keeps the size that its volume had",
            remedy,
        ));
    }
    let plan = pool
        .engine()
        .datasets()
        .check_resize(&name, parameters.number("size_bytes")?);
    let (before_bytes, size_bytes) = plan.map_err(|error| refused(&what, &error))?;
    Ok(json!({
        "name": name, "before_bytes": before_bytes, "size_bytes": size_bytes, "in_use": blocks.uses_of(&name),
        "resized": false, "served": [],
    }))
}

pub(crate) fn resize(pool: &OpenPool, blocks: &Blocks, parameters: &Parameters) -> Result<Value, Failure> {
    let mut plan = plan_resize(pool, blocks, parameters)?;
    let name = parameters.text("name")?;
    let what = format!("resize '{name}'");
    let size_bytes = plan["size_bytes"].as_u64().unwrap_or(u64::MAX);
    if plan["before_bytes"].as_u64() > Some(size_bytes) && !parameters.flag("shrink")? {
        return Err(Failure::new(
            what,
            "it would get smaller: what is behind the new end is lost",
            "add --yes to do it, or --dry-run to see what would be done",
        ));
    }
    pool.engine()
        .datasets()
        .resize_volume(&name, size_bytes)
        .map_err(|error| refused(&what, &error))?;
    plan["served"] = json!(blocks.resized(pool.engine(), &name)?);
    plan["resized"] = json!(true);
    Ok(plan)
}

pub(crate) fn rename(
    pool: &OpenPool,
    mounts: &Mounts,
    blocks: &Blocks,
    parameters: &Parameters,
) -> Result<Value, Failure> {
    let (from, to) = (parameters.text("from")?, parameters.text("to")?);
    let datasets = pool.engine().datasets();
    let held = blocks.hold_still();
    blocks.refuse_if_used(&held, "rename", &from)?;
    let still = mounts.hold_still();
    let outcome = if from.contains('@') {
        datasets.snapshots().rename(&from, &to)
    } else {
        datasets.rename(&from, &to)
    };
    outcome.map_err(|error| refused(&format!("rename '{from}' to '{to}'"), &error))?;
    mounts.renamed(&still, &from, &to);
    drop(still);
    blocks.renamed(&held, &from, &to);
    // What it inherits may be another thing there.
    mounts.readonly_changed(pool.engine());
    pool.engine().event("rename", &format!("'{from}' is now '{to}'"));
    Ok(Value::Null)
}

pub(crate) fn destroy(
    pool: &OpenPool,
    mounts: &Mounts,
    blocks: &Blocks,
    parameters: &Parameters,
) -> Result<Value, Failure> {
    let name = parameters.text("name")?;
    let (recursive, dry_run) = (parameters.flag("recursive")?, parameters.flag("dry_run")?);
    let what = format!("destroy '{name}'");
    let datasets = pool.engine().datasets();
    if !name.contains(['@', '/']) {
        return Err(Failure::new(
            what,
            "it is the pool itself",
            format!("use 'terrace pool destroy {name}' to destroy the whole pool"),
        ));
    }
    let held = blocks.hold_still();
    blocks.refuse_if_used(&held, "destroy", &name)?;
    let still = mounts.hold_still();
    mounts.refuse_if_mounted("destroy", &name, recursive)?;
    let report = if name.contains('@') {
        datasets.snapshots().destroy(&name, recursive, dry_run)
    } else {
        datasets.destroy(&name, recursive, false, dry_run)
    };
    let report = report.map_err(|error| failed(&what, &error))?;
    if !dry_run {
        mounts.destroyed(&still, &report.datasets, &report.snapshots);
        drop(still);
        blocks.destroyed(&held, &report.datasets, &report.snapshots);
        pool.engine().event("destroy", &format!("'{name}' was destroyed"));
    }
    Ok(json!({
        "destroyed": !dry_run, "datasets": report.datasets, "snapshots": report.snapshots, "bytes": report.bytes,
    }))
}

pub(crate) fn snapshot(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let name = parameters.text("name")?;
    let note = parameters.optional_text("note")?.unwrap_or_default();
    let checkpoint = pool
        .engine()
        .datasets()
        .snapshots()
        .take(&name, parameters.flag("recursive")?, &note);
    let checkpoint = checkpoint.map_err(|error| refused(&format!("take snapshot '{name}'"), &error))?;
    pool.engine().event("snapshot", &format!("'{name}' was taken"));
    Ok(json!({ "name": name, "checkpoint": checkpoint }))
}

/// `hold` and `release`.
pub(crate) fn hold(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let (tag, name) = (parameters.text("tag")?, parameters.text("name")?);
    let datasets = pool.engine().datasets();
    let (what, outcome) = if parameters.flag("release")? {
        (
            format!("release '{name}'"),
            datasets.snapshots().release(&tag, &name),
        )
    } else {
        (format!("hold '{name}'"), datasets.snapshots().hold(&tag, &name))
    };
    outcome.map_err(|error| refused(&what, &error))?;
    Ok(Value::Null)
}

pub(crate) fn prune(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let name = parameters.text("name")?;
    let dry_run = parameters.flag("dry_run")?;
    if let Some((dataset, _)) = name.split_once('@') {
        return Err(Failure::new(
            format!("prune '{name}'"),
            "a snapshot has a name, and 'retention' lets go of none that has one",
            format!("name its dataset, '{dataset}', or use 'terrace destroy {name}'"),
        )
        .as_usage());
    }
    let report = pool.engine().datasets().retained().prune(&name, dry_run);
    let report = report.map_err(|error| failed(&format!("prune '{name}'"), &error))?;
    Ok(json!({ "pruned": !dry_run, "checkpoints": report.snapshots }))
}

fn durability_name(info: &DatasetInfo) -> &'static str {
    use terrace_dataset::Durability;
    match info.settings.durability {
        Durability::Ram => "ram",
        Durability::Timed => "timed",
        Durability::Barrier => "barrier",
        Durability::Sync => "sync",
    }
}

fn dataset_json(info: &DatasetInfo, mounts: &[String]) -> Value {
    let mut row = json!({
        "name": info.name,
        "type": kind_name(info.kind),
        "used_bytes": info.used_bytes,
        "referenced_bytes": info.referenced_bytes,
        "history_bytes": info.history_bytes,
        "available_bytes": info.available_bytes,
        "objects": info.objects,
        "snapshots": info.snapshots,
        "retained": info.retained,
        "created": format_time(info.created),
        "mounts": mounts,
    });
    if let (Kind::Volume { size_bytes }, Some(row)) = (info.kind, row.as_object_mut()) {
        row.insert("size_bytes".into(), json!(size_bytes));
    }
    row
}

fn snapshot_json(info: &SnapshotInfo) -> Value {
    json!({
        "name": info.name,
        "type": "snapshot",
        "dataset": info.dataset,
        "checkpoint": info.checkpoint,
        "referenced_bytes": info.referenced_bytes,
        "objects": info.objects,
        "created": format_time(info.time),
        "note": info.note,
        "holds": info.holds,
    })
}
