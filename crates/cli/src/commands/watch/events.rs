//! `terrace events`, `terrace command-log`: what happened in a pool, and what was asked of it.

use serde_json::{Value, json};
use terrace_control::{Answer, Failure};
use terrace_engine::Entry;

use crate::{
    client::{Client, decode},
    commands::{
        Session,
        pool::{answered, running_pools},
    },
    machine::output,
};

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
        let told = client.call_with("events", json!({ "follow": follow }), &mut |answer| {
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
        });
        answered(session, pool, &known.name, told)?;
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
