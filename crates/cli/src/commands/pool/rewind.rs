//! `--rewind`: what would be given up is told with `-n`, and asked about without `--yes`.
//!
//! Invariant: a look opens devices for reading only.

use std::path::PathBuf;

use serde_json::json;
use terrace_control::{Failure, RunLock};
use terrace_engine::{OpenOptions, RewindOutlook};

use super::verify::Source;
use crate::{
    client::Accepted,
    commands::Session,
    daemon::failure_of,
    machine::{Registry, output},
};

/// What is given up for good is asked about.
pub fn confirm_rewind(accepted: Accepted, of: &str, yes: bool) -> Result<(), Failure> {
    if !accepted.rewind {
        return Ok(());
    }
    let question = format!("give up what came after the last state of {of} that can be read");
    output::confirm(&question, yes).map_err(|failure| {
        match std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            true => failure,
            false => Failure {
                remedy: "add --yes to do it".into(),
                ..failure
            },
        }
    })
}

/// What `--rewind` would give up of the pool on these devices.
pub fn outlook(pool: &str, devices: Vec<PathBuf>, options: &OpenOptions) -> Result<RewindOutlook, Failure> {
    let what = format!("look at what '--rewind' would give up of pool '{pool}'");
    let devices = Source::unheld(pool, devices).open(&what, true)?;
    RewindOutlook::of(devices, options).map_err(|error| failure_of(&what, &error))
}

/// The same in words.
pub fn describe(pool: &str, outlook: &RewindOutlook) -> String {
    let kept = match outlook.newest_change.as_str() {
        "" => "no files".to_owned(),
        newest => format!(
            "{}{} files and directories, the newest change among them of {newest}",
            outlook.files,
            if outlook.all_counted { "" } else { " or more" }
        ),
    };
    match outlook.gives_up {
        false => format!(
            "the log of pool '{pool}' can be read to its end: '--rewind' would give up nothing ({kept}); nothing was changed"
        ),
        true => format!(
            "'--rewind' would give up what came to pool '{pool}' after the last state that can be read; that has {kept}; nothing was \
             changed. The cause: {}",
            outlook.cause
        ),
    }
}

/// `terrace start --rewind -n`.
pub fn look(session: &Session, pool: &str) -> Result<(), Failure> {
    let known = Registry::new(&session.places).require(pool)?;
    let lock = RunLock::acquire(&session.places.lock_file(pool))
        .map_err(|error| failure_of(&format!("look at pool '{pool}'"), &error))?;
    let Ok(_lock) = lock else {
        return Err(Failure::new(
            format!("look at what '--rewind' would give up of pool '{pool}'"),
            "it is in use by its daemon: it was opened, so nothing is to be given up",
            format!("'terrace status {pool}' says how it is"),
        ));
    };
    let outlook = outlook(pool, crate::daemon::device_paths(&known), &OpenOptions::default())?;
    if session.json {
        return output::json(&json!({ "pool": pool, "rewind": outlook }));
    }
    output::line(&describe(pool, &outlook))
}
