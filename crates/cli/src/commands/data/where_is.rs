//! `terrace where`: on which tiers a file or dataset lies, and why; which of its regions are warm; and what dataset a local path belongs to.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_device::format_size;

use crate::{
    arguments::split_pool,
    commands::Session,
    machine::{Registry, output},
};

/// `terrace where PATH|DATASET`.
pub fn where_is(session: &Session, path: &str) -> Result<(), Failure> {
    let name = dataset_path(session, path)?;
    let mut found: Value = session
        .client_for(&name)?
        .call("where", json!({ "path": name }))?;
    found["path"] = json!(path);
    if session.json {
        return output::json(&found);
    }
    output::line(&format!(
        "{path}: {}, {}",
        output::count(found["files"].as_u64().unwrap_or(0), "file"),
        format_size(found["size_bytes"].as_u64().unwrap_or(0))
    ))?;
    for (tier, bytes) in found["bytes_by_tier"].as_object().into_iter().flatten() {
        output::line(&format!("  {tier}: {}", format_size(bytes.as_u64().unwrap_or(0))))?;
    }
    say_where(&found)?;
    output::line(&format!(
        "  heat: {:.1} reads, {:.1} writes",
        found["heat"]["reads"].as_f64().unwrap_or(0.0),
        found["heat"]["writes"].as_f64().unwrap_or(0.0)
    ))?;
    if let Some(pin) = found["pin"].as_str() {
        output::line(&format!("  pinned to {pin}"))?;
    }
    output::line(&format!("  why: {}", found["reason"].as_str().unwrap_or("-")))?;
    output::line(&format!(
        "  next: {}",
        found["next_move"].as_str().unwrap_or("stays")
    ))
}

/// `terrace where PATH --regions`.
pub fn regions(session: &Session, path: &str, from: u64, limit: u64) -> Result<(), Failure> {
    let name = dataset_path(session, path)?;
    let mut found: Value = session
        .client_for(&name)?
        .call("regions", json!({ "path": name, "from": from, "limit": limit }))?;
    found["path"] = json!(path);
    if session.json {
        return output::json(&found);
    }
    let text = |row: &Value| {
        let tiers = row["bytes_by_tier"].as_object().into_iter().flatten();
        let tiers = tiers.filter(|(_, bytes)| bytes.as_u64() != Some(0));
        let mut tiers: Vec<_> = tiers
            .map(|(tier, bytes)| format!("{tier} {}", output::size(bytes)))
            .collect();
        if row["lost_bytes"].as_u64().is_some_and(|lost| lost > 0) {
            tiers.push(format!("lost {}", output::size(&row["lost_bytes"])));
        }
        vec![
            match row["path"].as_str() {
                Some(path) => format!("{path}:{}", row["region"]),
                None => row["region"].to_string(),
            },
            output::decimal(&row["reads"]),
            output::decimal(&row["writes"]),
            if tiers.is_empty() {
                "-".into()
            } else {
                tiers.join(", ")
            },
        ]
    };
    let rows: Vec<Vec<String>> = found["regions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(text)
        .collect();
    output::table(&["REGION", "READS", "WRITES", "LIES ON"], &rows, &[0, 1, 2])?;
    say_where(&found)?;
    match found["next"].as_u64() {
        Some(next) => output::line(&format!("more: --from {next}")),
        None => Ok(()),
    }
}

/// Which devices that are gone, or fail, content lies on: a line each.
fn say_where(found: &Value) -> Result<(), Failure> {
    let rows = |key: &str| found[key].as_array().cloned().unwrap_or_default();
    let describe = |row: &Value| {
        let device = match row["device"].as_str() {
            Some(path) => format!("'{path}'"),
            None => format!("device number {}", row["number"]),
        };
        let state = match row["state"].as_str() {
            Some("removed") | None => "which has left the pool",
            Some("missing") => "which is missing",
            Some("cut short") => "which has become too short",
            Some(_) => "which gives errors",
        };
        let bytes = format_size(row["bytes"].as_u64().unwrap_or(0));
        (bytes, format!("{device}, {state}"))
    };
    for (bytes, device) in rows("lost_on").iter().map(describe) {
        output::line(&format!("  lost: {bytes} cannot be read: on {device}"))?;
    }
    for (bytes, device) in rows("failing_on").iter().map(describe) {
        output::line(&format!("  at risk: {bytes} only on {device}"))?;
    }
    Ok(())
}

/// A path below one of our mounts as `DATASET/PATH`; what is none is taken as it is.
pub fn dataset_path(session: &Session, path: &str) -> Result<String, Failure> {
    let registry = Registry::new(&session.places);
    let looks_local = path.starts_with(['/', '.']);
    if !looks_local
        && let Ok((pool, _)) = split_pool(path)
        && registry.find(pool)?.is_some()
    {
        return Ok(path.to_owned());
    }
    crate::client::check_answers(&session.places, Path::new(path))?;
    let what = format!("find '{path}'");
    let absolute = std::fs::canonicalize(path).map_err(|error| {
        Failure::new(
            what.clone(),
            error,
            "give a path below a mount, or POOL/DATASET/PATH",
        )
    })?;
    let mut best: Option<(PathBuf, String)> = None;
    for pool in registry.pools()? {
        for mount in registry.mounts(&pool.name)? {
            let longer = best
                .as_ref()
                .is_none_or(|(directory, _)| mount.directory.starts_with(directory));
            if absolute.starts_with(&mount.directory) && longer {
                best = Some((mount.directory, mount.dataset));
            }
        }
    }
    let Some((directory, dataset)) = best else {
        return Err(Failure::new(
            what,
            "it does not lie on a mount of Terrace",
            "give a path below a mount, or POOL/DATASET/PATH",
        ));
    };
    let below = absolute.strip_prefix(&directory).unwrap_or(&absolute);
    match below.to_str() {
        Some("") => Ok(dataset),
        Some(below) => Ok(format!("{dataset}/{below}")),
        None => Err(Failure::new(
            what,
            "its name is not UTF-8",
            "ask for the directory that holds it",
        )),
    }
}
