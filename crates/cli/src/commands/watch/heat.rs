//! `terrace where --regions`, `terrace tier devices|what-if|clear-heat`: what is warm, and what that means.

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_device::{format_size, parse_size};

use crate::{
    commands::{Session, data::dataset_path, logged},
    machine::{Client, output},
};

fn size(value: &Value) -> String {
    format_size(value.as_u64().unwrap_or(0))
}

fn decimal(value: &Value) -> String {
    format!("{:.1}", value.as_f64().unwrap_or(0.0))
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
            .map(|(tier, bytes)| format!("{tier} {}", size(bytes)))
            .collect();
        if row["lost_bytes"].as_u64().is_some_and(|lost| lost > 0) {
            tiers.push(format!("lost {}", size(&row["lost_bytes"])));
        }
        vec![
            match row["path"].as_str() {
                Some(path) => format!("{path}:{}", row["region"]),
                None => row["region"].to_string(),
            },
            decimal(&row["reads"]),
            decimal(&row["writes"]),
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
    super::lost::say_where(&found)?;
    match found["next"].as_u64() {
        Some(next) => output::line(&format!("more: --from {next}")),
        None => Ok(()),
    }
}

/// `terrace tier devices`.
pub fn devices(session: &Session, pool: &str) -> Result<(), Failure> {
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
                size(&row["size_bytes"]),
                size(&row["used_bytes"]),
                size(&row["live_bytes"]),
                row["warm_regions"].to_string(),
                decimal(&row["average_reads"]),
                decimal(&row["average_writes"]),
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
pub fn what_if(session: &Session, pool: &str, sizes: &[String]) -> Result<(), Failure> {
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
                size(&row["size_bytes"]),
                size(&row["hot_bytes_max"]),
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
pub fn clear(session: &Session, pool: &str, dry_run: bool) -> Result<(), Failure> {
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
