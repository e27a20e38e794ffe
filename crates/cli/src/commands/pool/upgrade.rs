//! `terrace pool upgrade`: the format versions of pools, and a newer one for a pool that somebody chose.
//!
//! Invariants: nothing is upgraded unasked; a list starts no pool, and shows of a stopped one what was known when it was last seen.

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_engine::{FORMAT_NEWEST, FormatNews};

use super::running::chosen_pools;
use crate::{
    arguments::Consent,
    client::{Client, decode},
    commands::Session,
    machine::output,
};

/// Runs it.
pub fn run(session: &Session, pool: Option<&str>, consent: Consent) -> Result<(), Failure> {
    match pool {
        Some(pool) => upgrade(session, pool, consent),
        None => list(session),
    }
}

fn list(session: &Session) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for known in chosen_pools(session, None)? {
        let running = Client::open_running(&session.places, &known.name);
        let version = match session.heard(&known.name, running).flatten() {
            Some(client) => {
                let answer = client.one_of_several().call("format", json!({}));
                let answer = session.heard(&known.name, answer);
                answer.map_or_else(
                    || json!(known.format_version),
                    |answer| answer["format_version"].clone(),
                )
            }
            None => json!(known.format_version),
        };
        rows.push(json!({
            "pool": known.name, "format_version": version, "newest_format_version": FORMAT_NEWEST,
            "can_be_upgraded": version.as_u64().is_some_and(|version| (1..FORMAT_NEWEST.into()).contains(&version)),
        }));
    }
    if session.json {
        return output::json(&rows);
    }
    let cells = |row: &Value| {
        let upgrade = match row["can_be_upgraded"].as_bool() {
            Some(true) => format!(
                "'terrace pool upgrade {} -n' says what it brings",
                row["pool"].as_str().unwrap_or_default()
            ),
            _ => "-".into(),
        };
        let version = match row["format_version"].as_u64() {
            None | Some(0) => "?".into(),
            Some(version) => version.to_string(),
        };
        vec![
            row["pool"].as_str().unwrap_or_default().to_owned(),
            version,
            FORMAT_NEWEST.to_string(),
            upgrade,
        ]
    };
    let table: Vec<Vec<String>> = rows.iter().map(cells).collect();
    output::table(&["POOL", "VERSION", "NEWEST", "UPGRADE"], &table, &[1, 2])
}

fn upgrade(session: &Session, pool: &str, consent: Consent) -> Result<(), Failure> {
    let answer = session.client_for(pool)?.call("format", json!({}))?;
    let version = answer["format_version"].as_u64().unwrap_or(0);
    let news: Vec<FormatNews> = decode(answer["brings"].clone())?;
    let answered = |now: u64, done: bool| {
        json!({
            "pool": pool, "format_version": now, "newest_format_version": FORMAT_NEWEST, "upgraded": done, "brings": news,
        })
    };
    let Some(newest) = news.iter().map(|news| news.version).max() else {
        return match session.json {
            true => output::json(&answered(version, false)),
            false => output::line(&format!("pool '{pool}' has format version {version}, the newest")),
        };
    };
    if !session.json {
        output::line(&format!(
            "pool '{pool}' has format version {version}; version {newest} brings"
        ))?;
        for news in &news {
            output::line(&format!("  {}: {}", news.version, news.brings))?;
        }
        output::line(&format!(
            "programs that do not know version {newest} cannot open the pool then, and there is no way back"
        ))?;
    }
    if consent.dry_run {
        return match session.json {
            true => output::json(&answered(version, false)),
            false => output::line("nothing was changed"),
        };
    }
    output::confirm(
        &format!("upgrade pool '{pool}' to format version {newest}"),
        consent.yes,
    )?;
    let answer = session.change(pool, "upgrade", json!({}))?;
    let now = answer["format_version"].as_u64().unwrap_or(0);
    match session.json {
        true => output::json(&answered(now, true)),
        false => output::line(&format!("pool '{pool}' has format version {now} now")),
    }
}
