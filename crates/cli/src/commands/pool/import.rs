//! `terrace pool import`: pools found on devices become known here.
//!
//! Invariants: a pool that another one of the same name would hide, or that runs here, is left as it is; one that cannot be imported
//! does not keep the others from it; `--dry-run` changes nothing.

use std::path::PathBuf;

use serde_json::{Value, json};
use terrace_control::{Failure, RunLock};
use terrace_engine::OpenOptions;
use terrace_pool::{FoundPool, PoolState};

use super::rewind;
use crate::{
    client::Accepted,
    commands::Session,
    daemon::{describe_pool, open_pool},
    machine::{KnownPool, Registry, output},
};

/// Which pools are to be imported, and how.
pub struct Wanted<'a> {
    pub only: Option<&'a str>,
    pub destroyed: bool,
    pub accepted: Accepted,
    pub dry_run: bool,
}

/// Imports what is found in directories and on devices.
pub fn import(
    session: &Session,
    search: &[PathBuf],
    devices: &[PathBuf],
    wanted: &Wanted<'_>,
) -> Result<(), Failure> {
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let mut search: Vec<PathBuf> = search.iter().map(absolute).collect();
    let devices: Vec<PathBuf> = devices.iter().map(absolute).collect();
    for path in search.iter().chain(&devices) {
        if !path.exists() {
            return Err(Failure::new(
                "import pools",
                format!("'{}' does not exist", path.display()),
                "give directories with --search, and devices by their paths",
            ));
        }
    }
    if search.is_empty() && devices.is_empty() {
        search.push("/dev".into());
    }
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    let (found, refused) = terrace_pool::scan(&search, &devices);
    for found in found {
        let is_wanted = wanted.only.is_none_or(|only| only == found.name)
            && (found.state != PoolState::Destroyed || wanted.destroyed);
        if is_wanted {
            let (row, failure) = import_one(session, &found, wanted)?;
            rows.push(row);
            failures.extend(failure);
        }
    }
    match session.json {
        true => output::json(&rows)?,
        false => rows.iter().try_for_each(say)?,
    }
    match (failures.into_iter().next(), refused.first()) {
        (Some(failure), _) => Err(failure),
        (None, Some(error)) if rows.is_empty() => Err(crate::daemon::failure_of("import pools", error)),
        (None, None) if rows.is_empty() => Err(Failure::new(
            "import pools",
            match wanted.only {
                Some(only) => format!("no device of a pool '{only}' was found"),
                None => "no device of a pool was found".into(),
            },
            "give the directories to look in with --search, or the devices themselves",
        )),
        _ => Ok(()),
    }
}

/// Imports a pool, or says whether it could be: its row, and why not.
fn import_one(
    session: &Session,
    found: &FoundPool,
    wanted: &Wanted<'_>,
) -> Result<(Value, Option<Failure>), Failure> {
    let Wanted {
        accepted, dry_run, ..
    } = *wanted;
    let what = format!("import pool '{}'", found.name);
    let registry = Registry::new(&session.places);
    let id = terrace_pool::format_id(&found.id);
    let paths = found.paths();
    let mut row =
        json!({ "name": found.name, "id": id, "devices": paths, "imported": false, "importable": false });
    let state = format!("{:?}", found.state).to_lowercase();
    row["state"] = json!(state);
    let why = format!("devices are missing: {}", found.missing.join(", "));
    if !found.missing.is_empty() {
        row["reason"] = json!(why);
    }
    if !found.missing.is_empty() && !accepted.degraded && !found.is_apart() {
        let remedy =
            "give the directories where they are with --search, or do without them: 'pool import --degraded'";
        return Ok((row, Some(Failure::new(what, why, remedy))));
    }
    if let Some(known) = registry.find(&found.name)? {
        if known.id != id {
            let why = "another pool of this name is known here";
            row["reason"] = json!(why);
            let failure = Failure::new(what, why, "export or destroy that one first");
            return Ok((row, Some(failure)));
        }
        if RunLock::is_held(&session.places.lock_file(&found.name)) {
            row["reason"] = json!("it is running here already");
            return Ok((row, None));
        }
    }
    row["importable"] = json!(dry_run);
    let options = OpenOptions {
        threads: false,
        exported: true,
        destroyed: wanted.destroyed,
        degraded: accepted.degraded,
        rewind: accepted.rewind,
        ..OpenOptions::default()
    };
    if dry_run {
        if accepted.rewind {
            match rewind::outlook(&found.name, paths, &options) {
                Ok(outlook) => row["rewind"] = json!(outlook),
                Err(failure) => {
                    (row["importable"], row["reason"]) = (json!(false), json!(failure.why));
                    return Ok((row, Some(failure)));
                }
            }
        }
        return Ok((row, None));
    }
    match open_once(found, id, options) {
        Ok(known) => {
            registry.save(&known)?;
            (row["imported"], row["importable"]) = (json!(true), json!(true));
            row["size_bytes"] = json!(known.size_bytes);
            row["used_bytes"] = json!(known.used_bytes);
            Ok((row, None))
        }
        Err(failure) => {
            let failure = Failure { what, ..failure };
            row["reason"] = json!(failure.why);
            Ok((row, Some(failure)))
        }
    }
}

/// Opens a pool that was found, and closes it: what is to be known of it.
fn open_once(found: &FoundPool, id: String, options: OpenOptions) -> Result<KnownPool, Failure> {
    let given = found.paths();
    // Who names devices leaves out those that are there and not named.
    let is_left_out = |path: &&PathBuf| path.exists() && !given.contains(path);
    let left_out: Vec<_> = found.missing_paths.iter().filter(is_left_out).cloned().collect();
    let candidate = KnownPool {
        name: found.name.clone(),
        id,
        devices: given.clone(),
        left_out: left_out.clone(),
        ..KnownPool::default()
    };
    let engine = open_pool(&candidate, options)?;
    engine.event("import", "the pool was imported");
    let known = KnownPool {
        left_out,
        ..describe_pool(&engine)
    };
    engine
        .close()
        .map_err(|error| crate::daemon::failure_of("close the pool", &error))?;
    Ok(known)
}

fn say(row: &Value) -> Result<(), Failure> {
    let name = row["name"].as_str().unwrap_or_default();
    let devices = row["devices"].as_array().map_or(0, Vec::len);
    let said = match (row["imported"] == json!(true), row["reason"].as_str()) {
        (true, Some(reason)) => {
            format!("imported, although {reason}; 'terrace start {name} --degraded' uses it so")
        }
        (true, None) => "imported".to_owned(),
        (false, Some(reason)) if row["importable"] == json!(true) => {
            format!("can be imported, although {reason}")
        }
        (false, Some(reason)) => format!("not imported: {reason}"),
        (false, None) => "can be imported".to_owned(),
    };
    output::line(&format!("{name}: {said} ({})", output::count(devices, "device")))?;
    match serde_json::from_value(row["rewind"].clone()) {
        Ok(outlook) => output::line(&rewind::describe(name, &outlook)),
        Err(_) => Ok(()),
    }
}
