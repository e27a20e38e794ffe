//! A pool in a few words: its state, what it lacks, a device that joins; and properties, as read and as shown.

use serde_json::{Value, json};
use terrace_control::{Failure, RunLock};
use terrace_device::format_size;

use crate::{
    arguments::split_property,
    client::Client,
    commands::Session,
    machine::{KnownPool, output},
};

/// The state of a pool whose daemon gives no answer.
pub const NOT_ANSWERING: &str = "not answering";

/// A pool's state for people: `stopped` is the word of programs for two things, which `daemon_pid` tells apart for them.
pub fn describe_state(state: &str, daemon_pid: u64) -> String {
    match (state, daemon_pid) {
        ("stopped", 0) => "stopped (no daemon runs)".into(),
        ("stopped", _) => "refuses writes (its daemon runs)".into(),
        _ => state.into(),
    }
}

/// `PROPERTY=VALUE` words as pairs.
pub fn parse_properties(words: &[String]) -> Result<Vec<(String, String)>, Failure> {
    words
        .iter()
        .map(|word| split_property(word).map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect()
}

/// What `pool list` shows; asks a running daemon and starts none. What is noted of a pool may be older than it: a device leaves
/// when the job that empties it is done.
pub fn pool_row(session: &Session, known: &KnownPool) -> Value {
    let status = Client::open_running(&session.places, &known.name).and_then(|client| match client {
        Some(client) => client.one_of_several().call("status", json!({})).map(Some),
        None => Ok(None),
    });
    let silent = status.is_err();
    match session.heard(&known.name, status).flatten() {
        Some(status) => json!({
            "name": known.name, "id": known.id, "state": status["state"], "daemon_pid": status["daemon_pid"],
            "size_bytes": status["size_bytes"], "used_bytes": status["used_bytes"], "devices": devices_in(&status),
        }),
        None => {
            let holder = RunLock::holder(&session.places.lock_file(&known.name)).filter(|_| silent);
            json!({
                "name": known.name, "id": known.id, "state": if silent { NOT_ANSWERING } else { "stopped" },
                "daemon_pid": holder.map(|holder| holder.pid),
                "size_bytes": known.size_bytes, "used_bytes": known.used_bytes, "devices": known.devices,
            })
        }
    }
}

/// The paths of all devices in a pool's status.
fn devices_in(status: &Value) -> Vec<Value> {
    let tiers = status["tiers"].as_array().into_iter().flatten();
    let devices = tiers.flat_map(|tier| tier["devices"].as_array().into_iter().flatten());
    devices.map(|device| device["path"].clone()).collect()
}

/// A device that would join: its size, and what becomes of what is there.
pub fn describe_joining(device: &Value) -> String {
    let path = device["path"].as_str().unwrap_or_default();
    let size = format_size(device["size_bytes"].as_u64().unwrap_or(0));
    let overwrites = device["overwrites"].as_str().unwrap_or_default();
    match (device["made"] == json!(true), overwrites.is_empty()) {
        (true, _) => format!("{path} ({size}) would be made"),
        (false, true) => format!("{path} ({size}) would be used"),
        (false, false) => format!("{path} ({size}) would be overwritten (it holds {overwrites})"),
    }
}

/// What a daemon says that it could not bring back.
pub fn failures_of(rows: &Value) -> Vec<Failure> {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let rows = rows.as_array().into_iter().flatten();
    rows.map(|row| Failure::new(text(row, "what"), text(row, "why"), text(row, "remedy")))
        .collect()
}

/// Prints rows of `name property value source`.
pub fn print_properties(session: &Session, rows: &[Value]) -> Result<(), Failure> {
    if session.json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| json!({ "name": row["name"], "property": row["property"], "value": row["value"], "source": row["source"] }))
            .collect();
        return output::json(&rows);
    }
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    };
    let table: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let shown = if row["text"].is_string() {
                &row["text"]
            } else {
                &row["value"]
            };
            let mut shown = text(shown);
            let sized = matches!(
                row["property"].as_str(),
                Some("used" | "referenced" | "history" | "available" | "size" | "volsize")
            );
            if sized && let Ok(bytes) = shown.parse() {
                shown = format_size(bytes);
            }
            vec![
                text(&row["name"]),
                text(&row["property"]),
                shown,
                text(&row["source"]),
            ]
        })
        .collect();
    output::table(&["NAME", "PROPERTY", "VALUE", "SOURCE"], &table, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_kinds_of_stopped_pools_are_told_apart() {
        assert_eq!(describe_state("stopped", 0), "stopped (no daemon runs)");
        assert_eq!(describe_state("stopped", 7), "refuses writes (its daemon runs)");
        assert_eq!(describe_state("online", 7), "online");
    }
}
