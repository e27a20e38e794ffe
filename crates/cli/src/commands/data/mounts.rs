//! `terrace mount` and `unmount`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use terrace_control::Failure;

use crate::{
    arguments::split_pool,
    client::Client,
    commands::{Session, logged, tell_note},
    machine::{Registry, output},
};

/// `terrace mount`; without arguments it lists the mounts.
pub fn mount(
    session: &Session,
    dataset: Option<&str>,
    directory: Option<&Path>,
    options: &[String],
) -> Result<(), Failure> {
    let Some(dataset) = dataset else {
        return list(session);
    };
    let usual = match directory {
        Some(_) => None,
        None => usual_directory(session, dataset)?,
    };
    let Some(directory) = directory.or(usual.as_deref()) else {
        let usual = match dataset.contains('@') {
            true => String::new(),
            false => format!(", or set the usual one with 'terrace set mountpoint=DIRECTORY {dataset}'"),
        };
        return Err(Failure::new(
            format!("mount '{dataset}'"),
            "the directory is missing",
            format!("write 'terrace mount {dataset} DIRECTORY'{usual}"),
        )
        .as_usage());
    };
    crate::client::check_answers(&session.places, directory)?;
    let real = std::fs::canonicalize(directory).map_err(|error| {
        Failure::new(
            format!("mount '{dataset}' at '{}'", directory.display()),
            error,
            format!("make the directory with 'mkdir -p {}'", directory.display()),
        )
    })?;
    let Some(real) = real.to_str() else {
        return Err(Failure::new(
            format!("mount '{dataset}'"),
            "the directory's name is not UTF-8",
            "use another one",
        ));
    };
    let arguments = json!({ "dataset": dataset, "directory": real, "options": split(options) });
    tell_note(&session.change(dataset, "mount", arguments)?);
    Ok(())
}

/// The words of options as they were given: commas part them, except between double quotes, which labels of SELinux need.
fn split(given: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    for text in given {
        let mut quoted = false;
        let parts = text.split(|letter| {
            quoted ^= letter == '"';
            letter == ',' && !quoted
        });
        words.extend(parts.filter(|word| !word.is_empty()).map(str::to_owned));
    }
    words
}

/// Where a filesystem is mounted when nothing else is said: its property `mountpoint`.
fn usual_directory(session: &Session, dataset: &str) -> Result<Option<PathBuf>, Failure> {
    let name = dataset.split('@').next().unwrap_or(dataset);
    let (pool, _) = split_pool(name)?;
    let question = json!({ "name": name, "properties": ["mountpoint"] });
    let rows: Vec<Value> = Client::open(&session.places, pool)?.ask("get_properties", question)?;
    let value = rows.first().and_then(|row| row["value"].as_str());
    Ok(value.filter(|value| value.starts_with('/')).map(PathBuf::from))
}

fn list(session: &Session) -> Result<(), Failure> {
    let mut rows: Vec<Value> = Vec::new();
    for pool in Registry::new(&session.places).pools()? {
        let client = Client::open_running(&session.places, &pool.name);
        if let Some(Some(client)) = session.heard(&pool.name, client) {
            let found = client.one_of_several().ask::<Vec<Value>>("mounts", json!({}));
            rows.extend(session.heard(&pool.name, found).into_iter().flatten());
        }
    }
    if session.json {
        return output::json(&rows);
    }
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let options: Vec<&str> = row["options"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let options = if options.is_empty() {
            String::new()
        } else {
            format!(" ({})", options.join(","))
        };
        output::line(&format!("{} on {}{options}", text("dataset"), text("directory")))?;
    }
    Ok(())
}

/// `terrace unmount DIR|DATASET`.
pub fn unmount(session: &Session, target: &str, force: bool) -> Result<(), Failure> {
    let registry = Registry::new(&session.places);
    crate::client::check_answers(&session.places, Path::new(target))?;
    // A dead mount cannot be looked at: then the name as it was given must do.
    let directory = std::fs::canonicalize(target)
        .or_else(|_| std::path::absolute(target))
        .unwrap_or_else(|_| PathBuf::from(target));
    let mut owner = None;
    for pool in registry.pools()? {
        let mounts = registry.mounts(&pool.name)?;
        if mounts
            .iter()
            .any(|mount| mount.directory == directory || mount.dataset == target)
        {
            owner = Some(pool.name);
            break;
        }
    }
    if owner.is_none()
        && let Ok((pool, _)) = split_pool(target)
        && registry.find(pool)?.is_some()
    {
        owner = Some(pool.to_owned());
    }
    let nothing = || {
        Failure::new(
            format!("unmount '{target}'"),
            "nothing of Terrace is mounted there",
            "'terrace mount' without arguments lists the mounts",
        )
    };
    let pool = owner.ok_or_else(nothing)?;
    match Client::open_running(&session.places, &pool)? {
        Some(mut client) => {
            let arguments = json!({ "target": target, "directory": directory.to_str(), "force": force });
            tell_note(&client.call("unmount", logged(arguments))?);
            Ok(())
        }
        // The daemon is dead: only what it left has to be taken away.
        None => {
            let mut mounts = registry.mounts(&pool)?;
            let mut found = false;
            for mount in mounts
                .iter()
                .filter(|mount| mount.directory == directory || mount.dataset == target)
            {
                found = true;
                terrace_fuse::clear_stale(&mount.directory).map_err(|error| {
                    crate::daemon::failure_of(&format!("unmount '{}'", mount.directory.display()), &error)
                })?;
            }
            mounts.retain(|mount| mount.directory != directory && mount.dataset != target);
            registry.save_mounts(&pool, &mounts)?;
            if found { Ok(()) } else { Err(nothing()) }
        }
    }
}
