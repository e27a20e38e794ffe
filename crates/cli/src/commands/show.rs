//! What only shows: `status`, `iostat`, `events`, `command-log`, `where`, `tier`.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};
use terrace_control::{Answer, Failure};
use terrace_device::format_size;
use terrace_engine::{Entry, IoCounters, Status};

use super::{
    Session,
    pools::parse_properties,
    running::{chosen_pools, running_pools, running_pools_of},
};
use crate::{
    arguments::TierCommand,
    client::{Client, decode},
    names::split_pool,
    output,
    registry::{KnownPool, Registry},
};

/// Lines of damage and damaged files that the status shows: it is to fit on a screen.
const DAMAGE_SHOWN: usize = 3;
const FILES_SHOWN: usize = 8;

/// `terrace status`.
pub fn status(session: &Session, pool: Option<&str>) -> Result<(), Failure> {
    let pools = chosen_pools(session, pool)?;
    let mut rows: Vec<Value> = Vec::new();
    for known in &pools {
        // Who names a pool wants it; a look at all of them starts none.
        let client = match pool {
            Some(_) => Some(Client::open(&session.places, &known.name)?),
            None => Client::open_running(&session.places, &known.name)?,
        };
        rows.push(match client {
            Some(mut client) => client.call("status", json!({}))?,
            None => stopped(session, known)?,
        });
    }
    if session.json {
        return match rows.as_slice() {
            [one] => output::json(one),
            all => output::json(&all),
        };
    }
    for (index, mut row) in rows.into_iter().enumerate() {
        if index > 0 {
            output::line("")?;
        }
        super::blocks::beside_mounts(&mut row["datasets"]);
        let not_restored = super::pools::failures_of(&row["not_restored"]);
        print_status(&decode(row)?)?;
        for failure in not_restored {
            output::line(&format!("{:>12}: {failure}", "not back"))?;
        }
    }
    Ok(())
}

/// What is known of a pool that nobody holds, in the form of a status.
pub fn stopped(session: &Session, known: &KnownPool) -> Result<Value, Failure> {
    let registry = Registry::new(&session.places);
    let blocks = registry.blocks(&known.name)?;
    let waits =
        !registry.mounts(&known.name)?.is_empty() || !blocks.attached.is_empty() || !blocks.served.is_empty();
    let start = format!("'terrace start {}'", known.name);
    let status = Status {
        pool: known.name.clone(),
        pool_id: known.id.clone(),
        state: "stopped".into(),
        state_detail: match waits {
            true => format!(
                "its daemon has ended without 'terrace stop': {start} brings back what was mounted, attached and served"
            ),
            false => format!("no daemon holds it; the figures are those of the last time; {start} opens it"),
        },
        size_bytes: known.size_bytes,
        used_bytes: known.used_bytes,
        ..Status::default()
    };
    serde_json::to_value(status).map_err(|error| Failure::new("print as JSON", error, ""))
}

/// A pool's status for people.
pub fn print_status(status: &Status) -> Result<(), Failure> {
    let size = format_size;
    let line = |name: &str, value: String| output::line(&format!("{name:>12}: {value}"));
    line("pool", status.pool.clone())?;
    line("state", status.state.clone())?;
    if !status.state_detail.is_empty() {
        line("", status.state_detail.clone())?;
    }
    if status.daemon_pid == 0 {
        return line(
            "space",
            format!("{} used of {}", size(status.used_bytes), size(status.size_bytes)),
        );
    }
    line(
        "daemon",
        format!("process {}, checkpoint {}", status.daemon_pid, status.checkpoint),
    )?;
    line(
        "space",
        format!(
            "{} used of {}, {} available, {} reserve",
            size(status.used_bytes),
            size(status.size_bytes),
            size(status.available_bytes),
            size(status.reserve_bytes)
        ),
    )?;
    line(
        "data",
        format!(
            "{} written, {} unique (dedup {:.2}x), {} stored (compression {:.2}x), {} metadata",
            size(status.logical_bytes),
            size(status.unique_bytes),
            status.dedup_ratio,
            size(status.stored_bytes),
            status.compression_ratio,
            size(status.metadata_bytes)
        ),
    )?;
    if status.pending_free_bytes > 0 {
        line(
            "pending",
            format!("{} being freed", size(status.pending_free_bytes)),
        )?;
    }
    line(
        "memory",
        format!(
            "{} of {}: {} dirty, {} for readers, {} records, {} tables, {} on its way; the process holds {}",
            size(status.memory.used_bytes),
            size(status.memory.budget_bytes),
            size(status.memory.dirty_bytes),
            size(status.memory.cache_bytes),
            size(status.memory.record_bytes),
            size(status.memory.table_bytes),
            size(status.memory.append_bytes),
            size(status.memory.resident_bytes)
        ),
    )?;
    if let Some(scrub) = &status.scrub {
        line(
            "scrub",
            format!(
                "{} since {}: {} of {} read, {} errors, {} repaired",
                scrub.state,
                scrub.started,
                size(scrub.done_bytes),
                size(scrub.total_bytes),
                scrub.errors,
                scrub.repaired
            ),
        )?;
        for device in &scrub.devices {
            line(
                "",
                format!(
                    "on '{}': {} checksum errors, {} failed reads",
                    device.path, device.checksum_errors, device.read_errors
                ),
            )?;
        }
        // One screen: 'scrub --wait' and '--json' say it all.
        let rest = |shown: usize, all: usize, where_all: &str| match all.saturating_sub(shown) {
            0 => Ok(()),
            more => line("", format!("and {more} more: {where_all}")),
        };
        for damage in scrub.damage.iter().take(DAMAGE_SHOWN) {
            line("", damage.clone())?;
        }
        rest(DAMAGE_SHOWN, scrub.damage.len(), "'terrace status --json'")?;
        for file in scrub.files.iter().take(FILES_SHOWN) {
            line("damaged", file.clone())?;
        }
        let all = format!("'terrace status {} --lost'", status.pool);
        rest(FILES_SHOWN, scrub.files.len(), &all)?;
    }
    if !status.migration {
        let on = format!("'terrace pool set migration=on {}'", status.pool);
        line(
            "migration",
            format!("off: nothing moves between tiers until {on}"),
        )?;
    }
    output::line("")?;
    let mut rows = Vec::new();
    for tier in &status.tiers {
        rows.push(vec![
            tier.name.clone(),
            String::new(),
            size(tier.size_bytes),
            size(tier.used_bytes),
            String::new(),
            String::new(),
            String::new(),
        ]);
        for device in &tier.devices {
            rows.push(vec![
                format!("  {}", device.path),
                device.state.clone(),
                size(device.size_bytes),
                size(device.used_bytes),
                device.read_errors.to_string(),
                device.write_errors.to_string(),
                device.checksum_errors.to_string(),
            ]);
        }
    }
    output::table(
        &[
            "TIER / DEVICE",
            "STATE",
            "SIZE",
            "USED",
            "READ",
            "WRITE",
            "CHECKSUM",
        ],
        &rows,
        &[2, 3, 4, 5, 6],
    )?;
    output::line("")?;
    let rows: Vec<Vec<String>> = status
        .datasets
        .iter()
        .map(|dataset| {
            vec![
                dataset.name.clone(),
                dataset.kind.clone(),
                size(dataset.used_bytes),
                dataset.objects.to_string(),
                dataset.durability.clone(),
                if dataset.mounts.is_empty() {
                    "-".into()
                } else {
                    dataset.mounts.join(",")
                },
            ]
        })
        .collect();
    output::table(
        &["DATASET", "TYPE", "USED", "OBJECTS", "DURABILITY", "MOUNTED AT"],
        &rows,
        &[2, 3],
    )?;
    for dataset in status
        .datasets
        .iter()
        .filter(|dataset| dataset.durability != "barrier")
    {
        line(&dataset.name, dataset.durability_detail.clone())?;
    }
    let running: Vec<_> = status
        .jobs
        .iter()
        .filter(|job| matches!(job.state.as_str(), "running" | "waiting" | "paused"))
        .collect();
    for job in running {
        line(
            "job",
            format!(
                "{} {} {}: {} of {}, {}/s; {}",
                job.id,
                job.kind,
                job.state,
                size(job.done_bytes),
                size(job.total_bytes),
                size(job.rate as u64),
                job.reason
            ),
        )?;
    }
    Ok(())
}

/// `terrace iostat [POOL] [INTERVAL]`.
pub fn iostat(session: &Session, words: &[String], count: Option<u64>) -> Result<(), Failure> {
    let (pool, interval) = match words {
        [] => (None, None),
        [one] => match one.parse::<f64>() {
            Ok(interval) => (None, Some(interval)),
            Err(_) => (Some(one.as_str()), None),
        },
        [pool, interval, ..] => {
            let interval = interval.parse::<f64>().map_err(|_| {
                Failure::new(
                    "show I/O",
                    format!("'{interval}' is no number of seconds"),
                    "write 'terrace iostat POOL 2'",
                )
                .as_usage()
            })?;
            (Some(pool.as_str()), Some(interval))
        }
    };
    if interval.is_some_and(|interval| !(0.01..=86_400.0).contains(&interval)) {
        return Err(Failure::new(
            "show I/O",
            "the interval makes no sense",
            "give 0.01 to 86400 seconds",
        )
        .as_usage());
    }
    let mut before: Vec<(String, IoCounters)> = Vec::new();
    let reports = count.unwrap_or(if interval.is_some() { u64::MAX } else { 1 });
    for report in 0..reports {
        if report > 0 {
            std::thread::sleep(Duration::from_secs_f64(interval.unwrap_or(1.0)));
        }
        let mut now: Vec<(String, IoCounters)> = Vec::new();
        let mut pools = running_pools_of(session, pool)?;
        if report == 0 {
            pools.say_stopped();
        }
        for (known, client) in &mut pools.running {
            let counters: Vec<IoCounters> = client.ask("io_counters", json!({}))?;
            now.extend(
                counters
                    .into_iter()
                    .map(|counters| (known.name.clone(), counters)),
            );
        }
        let seconds = if report == 0 { None } else { interval };
        print_iostat(session, &now, &before, seconds)?;
        before = now;
    }
    Ok(())
}

/// How long each of some requests took, if there were any.
pub fn latency(seconds: f64, requests: u64) -> Option<f64> {
    (requests > 0).then(|| seconds.max(0.0) / requests as f64)
}

fn print_iostat(
    session: &Session,
    now: &[(String, IoCounters)],
    before: &[(String, IoCounters)],
    seconds: Option<f64>,
) -> Result<(), Failure> {
    let mut json_rows = Vec::new();
    let mut rows = Vec::new();
    for (pool, counters) in now {
        let old = before
            .iter()
            .find(|(name, old)| name == pool && old.path == counters.path);
        let old = old
            .filter(|_| seconds.is_some())
            .map(|(_, old)| old.clone())
            .unwrap_or_default();
        let divide = seconds.unwrap_or(1.0);
        let rate = |now: u64, old: u64| now.saturating_sub(old) as f64 / divide;
        let (reads, writes) = (rate(counters.reads, old.reads), rate(counters.writes, old.writes));
        let read_bytes = rate(counters.read_bytes, old.read_bytes);
        let written_bytes = rate(counters.written_bytes, old.written_bytes);
        json_rows.push(json!({
            "pool": pool, "tier": counters.tier, "path": counters.path, "size_bytes": counters.size_bytes,
            "used_bytes": counters.used_bytes, "reads": reads, "writes": writes, "read_bytes": read_bytes,
            "written_bytes": written_bytes, "interval_seconds": seconds,
            "read_latency_seconds": latency(counters.read_seconds - old.read_seconds, counters.reads - old.reads.min(counters.reads)),
            "write_latency_seconds": latency(counters.write_seconds - old.write_seconds, counters.writes - old.writes.min(counters.writes)),
            "read_errors": counters.read_errors, "write_errors": counters.write_errors,
            "checksum_errors": counters.checksum_errors,
        }));
        rows.push(vec![
            pool.clone(),
            counters.tier.clone(),
            counters.path.clone(),
            format_size(counters.used_bytes),
            format!("{reads:.0}"),
            format!("{writes:.0}"),
            format_size(read_bytes as u64),
            format_size(written_bytes as u64),
        ]);
    }
    if session.json {
        return output::json(&json_rows);
    }
    let per = if seconds.is_some() { "/S" } else { "" };
    let heading = [
        "POOL".to_owned(),
        "TIER".into(),
        "DEVICE".into(),
        "USED".into(),
        format!("READS{per}"),
        format!("WRITES{per}"),
        format!("READ{per}"),
        format!("WRITTEN{per}"),
    ];
    output::table(&heading.each_ref().map(String::as_str), &rows, &[3, 4, 5, 6, 7])
}

/// `terrace events [POOL] [-f]`.
pub fn events(session: &Session, pool: Option<&str>, follow: bool) -> Result<(), Failure> {
    let pools = running_pools(session, pool)?;
    if follow && pools.len() != 1 {
        if pools.is_empty() {
            let remedy = "name one: 'terrace events -f POOL' starts it";
            return Err(Failure::new("follow events", "no pool is running", remedy));
        }
        return Err(Failure::new(
            "follow events",
            "there is more than one pool",
            "name one: 'terrace events -f POOL'",
        )
        .as_usage());
    }
    let mut rows = Vec::new();
    for (known, mut client) in pools {
        client.call_with("events", json!({ "follow": follow }), &mut |answer| {
            let Answer::Item(item) = answer else { return Ok(()) };
            let entry: Entry = decode(item)?;
            let row = json!({
                "pool": known.name, "id": entry.id, "time": entry.time, "kind": entry.kind, "text": entry.text,
            });
            match (session.json, follow) {
                // One object per line, since there is no end.
                (true, true) => output::line(&row.to_string()),
                (true, false) => {
                    rows.push(row);
                    Ok(())
                }
                (false, _) => output::line(&format!("{} {} {}: {}", entry.time, known.name, entry.kind, entry.text)),
            }
        })?;
    }
    if session.json && !follow {
        output::json(&rows)
    } else {
        Ok(())
    }
}

/// `terrace command-log POOL`.
pub fn command_log(session: &Session, pool: &str) -> Result<(), Failure> {
    let entries: Vec<Entry> = Client::open(&session.places, pool)?.ask("command_log", json!({}))?;
    if session.json {
        let rows: Vec<Value> = entries
            .iter()
            .map(|entry| json!({ "id": entry.id, "time": entry.time, "user": entry.kind, "command": entry.text }))
            .collect();
        return output::json(&rows);
    }
    entries
        .iter()
        .try_for_each(|entry| output::line(&format!("{} {}: {}", entry.time, entry.kind, entry.text)))
}

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
        "{path}: {} files, {}",
        found["files"],
        format_size(found["size_bytes"].as_u64().unwrap_or(0))
    ))?;
    for (tier, bytes) in found["bytes_by_tier"].as_object().into_iter().flatten() {
        output::line(&format!("  {tier}: {}", format_size(bytes.as_u64().unwrap_or(0))))?;
    }
    super::lost::say_where(&found)?;
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

/// What lands on a tier; in brackets, since it is the fastest and none was set for it.
fn landing_in_words(row: &Value) -> String {
    let set = row["landing_writes"].as_str().unwrap_or("off");
    let lands = row["lands"].as_str().unwrap_or(set);
    match (set, lands) {
        (_, "off") => set.to_owned(),
        ("off", lands) => format!("({lands})"),
        ("sequential", "all") => "sequential (random)".into(),
        ("random", "all") => "random (sequential)".into(),
        _ => set.to_owned(),
    }
}

/// `terrace tier list|set`.
pub fn tier(session: &Session, command: TierCommand) -> Result<(), Failure> {
    match command {
        TierCommand::List { pool } => {
            let rows: Vec<Value> = Client::open(&session.places, &pool)?.ask("tiers", json!({}))?;
            if session.json {
                return output::json(&rows);
            }
            let percent = |value: &Value| format!("{:.0}%", value.as_f64().unwrap_or(0.0) * 100.0);
            let table: Vec<Vec<String>> = rows
                .iter()
                .map(|row| {
                    vec![
                        row["name"].as_str().unwrap_or_default().to_owned(),
                        format_size(row["size_bytes"].as_u64().unwrap_or(0)),
                        format_size(row["used_bytes"].as_u64().unwrap_or(0)),
                        row["copies"].to_string(),
                        percent(&row["high_water"]),
                        percent(&row["low_water"]),
                        landing_in_words(row),
                        match row["promote_after"].as_u64() {
                            Some(0) => "never".into(),
                            _ => row["promote_after"].to_string(),
                        },
                        match row["demote_after"].as_u64() {
                            Some(0) | None => "never".into(),
                            Some(seconds) => terrace_engine::format_duration(Duration::from_secs(seconds)),
                        },
                        match row["rate_limit"].as_u64() {
                            Some(0) | None => "none".into(),
                            Some(bytes) => format!("{}/s", format_size(bytes)),
                        },
                        match row["window"].as_str() {
                            Some("") | None => "always".into(),
                            Some(window) => window.to_owned(),
                        },
                        match row["hold"].as_f64() {
                            Some(_) => percent(&row["hold"]),
                            None => "off".into(),
                        },
                    ]
                })
                .collect();
            output::table(
                &[
                    "TIER",
                    "SIZE",
                    "USED",
                    "COPIES",
                    "HIGH",
                    "LOW",
                    "LANDING",
                    "PROMOTE AFTER",
                    "DEMOTE AFTER",
                    "RATE",
                    "WINDOW",
                    "HOLD",
                ],
                &table,
                &[1, 2, 3, 4, 5, 7],
            )
        }
        TierCommand::Devices { pool } => super::heat::devices(session, &pool),
        TierCommand::WhatIf { pool, fast } => super::heat::what_if(session, &pool, &fast),
        TierCommand::ClearHeat { pool, dry_run } => super::heat::clear(session, &pool, dry_run),
        TierCommand::Set { properties, tier } => {
            let properties = parse_properties(&properties)?;
            let (pool, name) = split_pool(&tier)?;
            if name.is_empty() {
                return Err(Failure::new(
                    format!("set tier '{tier}'"),
                    "the tier is missing",
                    "write POOL/TIER",
                )
                .as_usage());
            }
            let set = json!({ "tier": name, "properties": properties });
            let answer = session.change(pool, "tier_set", set)?;
            let taken = answer["landing_taken_from"].as_array();
            for taken in taken.filter(|_| !session.json).into_iter().flatten() {
                let writes = match taken["landing"].as_str() {
                    Some("all") => "all writes land",
                    Some("random") => "random writes land",
                    _ => "sequential writes land",
                };
                let before = taken["tier"].as_str().unwrap_or_default();
                output::line(&format!(
                    "{writes} on tier '{name}' now, and no more on '{before}'"
                ))?;
            }
            Ok(())
        }
    }
}
