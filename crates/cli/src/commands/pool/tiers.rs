//! `terrace tier …`: the tiers of a pool, their policies, and what is warm on them.

use std::{cmp::Ordering, time::Duration};

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_device::{format_size, parse_size};

use super::describe::parse_properties;
use crate::{
    arguments::{TierCommand, split_pool},
    client::Client,
    commands::{Session, logged},
    machine::output,
};

/// What lands on a tier; in brackets, since it is the fastest and none was set for it.
fn describe_landing(row: &Value) -> String {
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

/// Runs one of them.
pub fn tier(session: &Session, command: TierCommand) -> Result<(), Failure> {
    match command {
        TierCommand::List { pool } => list(session, &pool),
        TierCommand::Devices { pool } => devices(session, &pool),
        TierCommand::WhatIf { pool, fast } => what_if(session, &pool, &fast),
        TierCommand::ClearHeat { pool, dry_run } => clear(session, &pool, dry_run),
        TierCommand::Set { properties, tier } => set(session, &properties, &tier),
    }
}

/// `terrace tier list`.
fn list(session: &Session, pool: &str) -> Result<(), Failure> {
    let rows: Vec<Value> = Client::open(&session.places, pool)?.ask("tiers", json!({}))?;
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
                describe_landing(row),
                match row["promote_after"].as_u64() {
                    Some(0) => "never".into(),
                    _ => row["promote_after"].to_string(),
                },
                match row["demote_after"].as_u64() {
                    Some(0) | None => "never".into(),
                    Some(seconds) => terrace_device::format_duration(Duration::from_secs(seconds)),
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

/// `terrace tier set`.
fn set(session: &Session, properties: &[String], tier: &str) -> Result<(), Failure> {
    let properties = parse_properties(properties)?;
    let (pool, name) = split_pool(tier)?;
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
    if session.json {
        return Ok(());
    }
    for idle in answer["without_effect"].as_array().into_iter().flatten() {
        output::line(match idle.as_str() {
            Some("promote_after") => {
                "promote_after has no effect on the fastest tier: set it on those that content is to rise from"
            }
            _ => {
                "demote_after has no effect on the slowest tier: set it on those that content is to sink from"
            }
        })?;
    }
    if answer["metadata_mirrored"] == false {
        output::line(&format!(
            "log and metadata have one copy still: 'terrace status {pool}' says so until they have two"
        ))?;
    }
    let copies = |which| answer[which].as_u64();
    match copies("copies").cmp(&copies("copies_before")) {
        Ordering::Equal => Ok(()),
        Ordering::Greater => output::line(&format!(
            "what is written from now on has that many copies; what is there gets them from 'terrace scrub {pool}'"
        )),
        Ordering::Less => output::line("what is there keeps its copies until it is written anew"),
    }
}

/// `terrace tier devices`.
fn devices(session: &Session, pool: &str) -> Result<(), Failure> {
    let found: Value = Client::open(&session.places, pool)?.call("tier_devices", json!({}))?;
    if session.json {
        return output::json(&found);
    }
    let rows: Vec<Vec<String>> = found
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
            vec![
                text("tier"),
                text("path"),
                text("state"),
                output::size(&row["size_bytes"]),
                output::size(&row["used_bytes"]),
                output::size(&row["live_bytes"]),
                row["warm_regions"].to_string(),
                output::decimal(&row["average_reads"]),
                output::decimal(&row["average_writes"]),
            ]
        })
        .collect();
    let heading = [
        "TIER",
        "DEVICE",
        "STATE",
        "SIZE",
        "USED",
        "LIVE",
        "WARM REGIONS",
        "READS",
        "WRITES",
    ];
    output::table(&heading, &rows, &[3, 4, 5, 6, 7, 8])
}

/// `terrace tier what-if`.
fn what_if(session: &Session, pool: &str, sizes: &[String]) -> Result<(), Failure> {
    let parse = |text: &String| {
        let parsed = parse_size(text);
        parsed.map_err(|why| {
            Failure::new(
                format!("read size '{text}'"),
                why,
                "give sizes of the fastest tier, such as --fast 500G 1T",
            )
            .as_usage()
        })
    };
    // '--fast 1G,2G' as well.
    let words = sizes.iter().flat_map(|word| word.split(',')).map(str::to_owned);
    let words: Vec<String> = words.collect();
    let sizes = words.iter().map(parse).collect::<Result<Vec<u64>, _>>()?;
    let found: Value = Client::open(&session.places, pool)?.call("what_if", json!({ "sizes": sizes }))?;
    if session.json {
        return output::json(&found);
    }
    let rows: Vec<Vec<String>> = found["sizes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            let share = row["hit_rate"].as_f64().unwrap_or(0.0) * 100.0;
            let now = if row["current"] == json!(true) { "now" } else { "" };
            vec![
                output::size(&row["size_bytes"]),
                output::size(&row["hot_bytes_max"]),
                format!("{share:.1} %"),
                now.into(),
            ]
        })
        .collect();
    let heading = ["FAST TIER", "FOR WHAT IS HOT", "READS FROM IT", ""];
    output::table(&heading, &rows, &[0, 1, 2])?;
    output::line(&format!(
        "what is hot fills a tier up to near its high_water, beside metadata; 'terrace tier list {pool}' shows the marks"
    ))?;
    output::line(&format!(
        "by {} since the pool was opened or its heat was cleared; scans are left out",
        output::count(found["reads"].as_u64().unwrap_or(0), "read")
    ))
}

/// `terrace tier clear-heat`.
fn clear(session: &Session, pool: &str, dry_run: bool) -> Result<(), Failure> {
    let mut client = Client::open(&session.places, pool)?;
    let done: Value = match dry_run {
        true => client.call("plan_clear_heat", json!({}))?,
        false => client.call("clear_heat", logged(json!({})))?,
    };
    if session.json {
        return output::json(&done);
    }
    let objects = output::count(done["objects"].as_u64().unwrap_or(0), "object");
    output::line(&match dry_run {
        true => format!("would forget the heat of {objects}; nothing was changed"),
        false => format!("forgot the heat of {objects}"),
    })
}
