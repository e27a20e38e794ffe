//! `terrace status --lost`: every file that lost content with a device.

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_engine::DamagedFile;

use crate::{
    client::{Client, decode},
    commands::{Session, pool::running_pools},
    machine::output,
};

/// Asks for page after page, so that lists of any length pass.
pub fn lost(session: &Session, pool: Option<&str>) -> Result<(), Failure> {
    let mut rows: Vec<DamagedFile> = Vec::new();
    for (known, client) in running_pools(session, pool)? {
        let mut first = Some(client);
        let mut from = 0;
        loop {
            // A connection carries one request.
            let mut client = match first.take() {
                Some(client) => client,
                None => Client::open(&session.places, &known.name)?,
            };
            let page = client.call("lost", json!({ "from": from }))?;
            let files: Vec<DamagedFile> = decode(page["files"].clone())?;
            from += files.len();
            for file in files {
                if session.json {
                    rows.push(file);
                } else {
                    output::line(&describe(&file))?;
                }
            }
            if page["more"] != Value::Bool(true) {
                if !session.json {
                    say_how_whole(&known.name, from, &page)?;
                }
                break;
            }
        }
    }
    if session.json { output::json(&rows) } else { Ok(()) }
}

fn describe(file: &DamagedFile) -> String {
    let history = if file.only_history {
        ", only in snapshots"
    } else {
        ""
    };
    let snapshots = match file.snapshots.as_slice() {
        [] => String::new(),
        names => format!(", held by snapshots {}", names.join(", ")),
    };
    format!(
        "{} ({} of 4 KiB{history}{snapshots})",
        file.path,
        output::count(file.blocks, "block")
    )
}

fn say_how_whole(pool: &str, count: usize, page: &Value) -> Result<(), Failure> {
    if page["state"] == "looking" {
        output::line(&format!("{pool}: they are still being looked for; ask again"))
    } else if page["complete"] == Value::Bool(false) {
        output::line(&format!(
            "{pool}: there may be more files, which could not be named"
        ))
    } else if count == 0 {
        output::line(&format!("{pool}: no file is known to have lost anything"))
    } else {
        Ok(())
    }
}
