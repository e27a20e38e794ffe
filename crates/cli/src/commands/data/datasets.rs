//! `terrace fs`, `volume`, `list`, `rename`, `destroy`, `snapshot`, `prune`.

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_device::{format_size, parse_size};

use crate::{
    arguments::{Consent, FsCommand, ListArguments, ListKind, VolumeCommand, split_pool},
    commands::{
        Session, logged,
        pool::{parse_properties, running_pools},
    },
    machine::{Registry, output},
};

/// `terrace fs create`.
pub fn fs(session: &Session, command: FsCommand) -> Result<(), Failure> {
    let FsCommand::Create {
        dataset,
        options,
        parents,
    } = command;
    let properties = parse_properties(&options)?;
    require_below_pool(&dataset)?;
    session
        .change(
            &dataset,
            "create",
            json!({ "name": dataset, "properties": properties, "parents": parents }),
        )
        .map(drop)
}

/// `terrace volume create|resize`.
pub fn volume(session: &Session, command: VolumeCommand) -> Result<(), Failure> {
    let bytes = |size: &str| {
        parse_size(size).map_err(|error| crate::daemon::failure_of("understand the size", &error).as_usage())
    };
    match command {
        VolumeCommand::Create {
            dataset,
            size,
            sparse,
            block_size,
            mut options,
            parents,
        } => {
            let named = |property: &String| property.starts_with("block_size=");
            if block_size.is_some() && options.iter().any(named) {
                let why = "--block-size and -o block_size both say how large its sectors are";
                let what = format!("create volume '{dataset}'");
                return Err(Failure::new(what, why, "give one of them").as_usage());
            }
            options.extend(block_size.map(|size| format!("block_size={size}")));
            let properties = parse_properties(&options)?;
            require_below_pool(&dataset)?;
            let size_bytes = bytes(&size)?;
            let arguments = json!({
                "name": dataset, "volume_bytes": size_bytes, "sparse": sparse, "properties": properties,
                "parents": parents,
            });
            session.change(&dataset, "create", arguments)?;
            tell_rounded(&dataset, size_bytes);
            Ok(())
        }
        VolumeCommand::Resize {
            volume,
            size,
            consent,
        } => resize(session, &volume, bytes(&size)?, consent),
    }
}

fn resize(session: &Session, volume: &str, size_bytes: u64, consent: Consent) -> Result<(), Failure> {
    let mut arguments = json!({ "name": volume, "size_bytes": size_bytes });
    let plan = session
        .client_for(volume)?
        .call("plan_resize", arguments.clone())?;
    let number = |key: &str| plan[key].as_u64().unwrap_or(0);
    let (before, now) = (number("before_bytes"), number("size_bytes"));
    let mut change = format!(
        "change the size of '{volume}' from {} to {}",
        format_size(before),
        format_size(now)
    );
    let in_use = plan["in_use"].as_array().into_iter().flatten();
    let in_use: Vec<&str> = in_use.filter_map(Value::as_str).collect();
    let shrinks = now < before;
    if shrinks {
        change.push_str(", by which what is behind the new end is lost");
        if !in_use.is_empty() {
            change.push_str(&format!(", while it is in use ({})", in_use.join(", ")));
        }
    }
    if consent.dry_run {
        if session.json {
            return output::json(&plan);
        }
        return match now == before {
            true => output::line(&format!(
                "would change nothing: '{volume}' has {}",
                format_size(now)
            )),
            false => output::line(&format!("would {change}")),
        };
    }
    if shrinks {
        output::confirm(&change, consent.yes)?;
    }
    arguments["shrink"] = json!(shrinks);
    let resized = session.change(volume, "resize", arguments)?;
    tell_rounded(volume, size_bytes);
    if session.json {
        return output::json(&resized);
    }
    for address in resized["served"].as_array().into_iter().flatten() {
        let address = address.as_str().unwrap_or_default();
        if address.starts_with('/') {
            output::line(&format!(
                "{address} is in use and shows the new size of '{volume}' when it is detached and attached again"
            ))?;
        } else {
            output::line(&format!(
                "who uses '{volume}' at {address} sees the new size when they connect again"
            ))?;
        }
    }
    Ok(())
}

/// Volumes have whole blocks: one that was asked for otherwise got a little more.
fn tell_rounded(volume: &str, size_bytes: u64) {
    if let Some(has) = size_bytes.checked_next_multiple_of(4096)
        && has != size_bytes
    {
        eprintln!("'{volume}' has {has} bytes, not {size_bytes}: volumes have whole blocks of 4096");
    }
}

fn require_below_pool(dataset: &str) -> Result<(), Failure> {
    let (pool, rest) = split_pool(dataset)?;
    if rest.is_empty() || rest.contains('@') {
        return Err(Failure::new(
            format!("create '{dataset}'"),
            "a dataset lies below its pool",
            format!("write POOL/NAME, for example {pool}/data"),
        )
        .as_usage());
    }
    Ok(())
}

/// `terrace list`.
pub fn list(session: &Session, arguments: &ListArguments) -> Result<(), Failure> {
    let all = arguments.kinds.contains(&ListKind::All);
    let wants = |kind: ListKind| all || arguments.kinds.contains(&kind);
    let none = arguments.kinds.is_empty();
    let request = |target: Option<&str>| {
        json!({
            "target": target,
            "recursive": arguments.recursive,
            "filesystems": none || wants(ListKind::Fs),
            "volumes": none || wants(ListKind::Volume),
            "snapshots": wants(ListKind::Snapshot),
        })
    };
    let mut rows: Vec<Value> = Vec::new();
    for target in &arguments.targets {
        let mut client = session.client_for(target)?;
        for row in client.ask::<Vec<Value>>("list", request(Some(target)))? {
            // One may lie below another.
            if !rows.iter().any(|other| other["name"] == row["name"]) {
                rows.push(row);
            }
        }
    }
    // A machine without pools has no datasets.
    if arguments.targets.is_empty() && !Registry::new(&session.places).pools()?.is_empty() {
        for (known, mut client) in running_pools(session, None)? {
            let found = client.ask::<Vec<Value>>("list", request(None));
            rows.extend(session.heard(&known.name, found).into_iter().flatten());
        }
    }
    if session.json {
        return output::json(&rows);
    }
    let mut rows = Value::Array(rows);
    super::blocks::beside_mounts(&mut rows);
    let bytes = |row: &Value, key: &str| row[key].as_u64().map_or_else(|| "-".into(), format_size);
    let table: Vec<Vec<String>> = rows
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            let mounts: Vec<&str> = row["mounts"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            vec![
                row["name"].as_str().unwrap_or_default().to_owned(),
                row["type"].as_str().unwrap_or_default().to_owned(),
                bytes(row, "used_bytes"),
                bytes(row, "available_bytes"),
                bytes(row, "referenced_bytes"),
                if mounts.is_empty() {
                    "-".to_owned()
                } else {
                    mounts.join(",")
                },
            ]
        })
        .collect();
    output::table(
        &["NAME", "TYPE", "USED", "AVAILABLE", "REFERENCED", "MOUNTED AT"],
        &table,
        &[2, 3, 4],
    )
}

/// `terrace rename`.
pub fn rename(session: &Session, from: &str, to: &str) -> Result<(), Failure> {
    // `rename tank/a@x y`, as in ZFS, means `tank/a@y`.
    let to = match from.split_once('@') {
        Some((dataset, _)) if !to.contains(['/', '@']) => format!("{dataset}@{to}"),
        _ => to.to_owned(),
    };
    let (pool, below) = split_pool(from)?;
    let (other, new) = split_pool(&to)?;
    let refused = |why: &str, remedy: &str| Failure::new(format!("rename '{from}' to '{to}'"), why, remedy);
    if below.is_empty() {
        let why = "a pool keeps the name that it was made with";
        return Err(refused(why, "rename the datasets in it").as_usage());
    }
    if new.is_empty() && pool != other {
        let remedy = format!("write '{pool}/{to}'");
        return Err(refused("the new name has to be whole", &remedy).as_usage());
    }
    if pool != other {
        return Err(refused("these are different pools", "copy the files instead"));
    }
    session
        .change(from, "rename", json!({ "from": from, "to": to }))
        .map(drop)
}

/// `terrace destroy`.
pub fn destroy(session: &Session, target: &str, recursive: bool, consent: Consent) -> Result<(), Failure> {
    let mut client = session.client_for(target)?;
    let arguments = |dry_run: bool| json!({ "name": target, "recursive": recursive, "dry_run": dry_run });
    let plan = client.call("destroy", arguments(true))?;
    let list = |key: &str| -> Vec<String> {
        plan[key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let (datasets, snapshots) = (list("datasets"), list("snapshots"));
    if consent.dry_run {
        if session.json {
            return output::json(&plan);
        }
        for name in datasets.iter().chain(&snapshots) {
            output::line(&format!("would destroy {name}"))?;
        }
        return output::line(&format!(
            "would free at most {}",
            format_size(plan["bytes"].as_u64().unwrap_or(0))
        ));
    }
    let question = match datasets.len() + snapshots.len() {
        0 | 1 => format!("destroy '{target}' with everything in it"),
        count => format!("destroy '{target}' and {} more datasets and snapshots", count - 1),
    };
    output::confirm(&question, consent.yes)?;
    let done = session
        .client_for(target)?
        .call("destroy", logged(arguments(false)))?;
    if session.json {
        return output::json(&done);
    }
    Ok(())
}

/// `terrace snapshot`.
pub fn snapshot(session: &Session, name: &str, recursive: bool, note: &str) -> Result<(), Failure> {
    if !name.contains('@') {
        return Err(Failure::new(
            format!("take snapshot '{name}'"),
            "its name is missing",
            format!("write DATASET@NAME, for example {name}@today"),
        )
        .as_usage());
    }
    let arguments = json!({ "name": name, "recursive": recursive, "note": note });
    let taken = session.change(name, "snapshot", arguments)?;
    if session.json {
        return output::json(&taken);
    }
    Ok(())
}

/// `terrace prune`.
pub fn prune(session: &Session, dataset: &str, dry_run: bool) -> Result<(), Failure> {
    let arguments = json!({ "name": dataset, "dry_run": dry_run });
    let report = match dry_run {
        true => session.client_for(dataset)?.call("prune", arguments)?,
        false => session.change(dataset, "prune", arguments)?,
    };
    if session.json {
        return output::json(&report);
    }
    let verb = if dry_run { "would let go of" } else { "let go of" };
    let checkpoints = report["checkpoints"].as_array().into_iter().flatten();
    let checkpoints: Vec<&str> = checkpoints.filter_map(Value::as_str).collect();
    if dry_run && checkpoints.is_empty() {
        return output::line(&format!("would let go of nothing of '{dataset}'"));
    }
    checkpoints
        .into_iter()
        .try_for_each(|name| output::line(&format!("{verb} {name}")))
}
