//! `terrace stop`, `pool export` and `pool destroy`: how a pool ends here.
//!
//! Invariants: nothing is marked or forgotten while a daemon holds the pool; what is destroyed by force is forgotten whatever state it
//! is in, and whoever can still find it by a label is told of; whoever gives a pool up by force waits a bounded time for a daemon that
//! does not answer.

use std::time::Duration;

use serde_json::{Value, json};
use terrace_control::{Failure, RunLock};
use terrace_device::format_size;
use terrace_engine::OpenOptions;
use terrace_pool::PoolState;

use super::describe::pool_row;
use crate::{
    arguments::Consent,
    client::{ANSWER_PATIENCE, Client, Unanswered, launch},
    commands::{Session, logged},
    daemon::{open_pool, open_when_free},
    machine::{KnownPool, Registry, output},
};

/// `terrace pool destroy`.
pub fn destroy(session: &Session, pool: &str, force: bool, consent: Consent) -> Result<(), Failure> {
    let known = Registry::new(&session.places).require(pool)?;
    if consent.dry_run {
        if let Some(mut client) = Client::open_running(&session.places, pool)? {
            client.call("check_stop", json!({ "force": force, "spare_clients": true }))?;
        }
        let row = pool_row(session, &known);
        if session.json {
            return output::json(
                &json!({ "destroyed": false, "pool": known.name, "devices": row["devices"] }),
            );
        }
        output::line(&format!(
            "would destroy pool '{pool}' ({}) on",
            format_size(row["size_bytes"].as_u64().unwrap_or(0))
        ))?;
        let devices = row["devices"].as_array().into_iter().flatten();
        return devices
            .filter_map(Value::as_str)
            .try_for_each(|device| output::line(&format!("  {device}")));
    }
    output::confirm(
        &format!("destroy pool '{pool}' with everything in it"),
        consent.yes,
    )?;
    end(session, &known, force, PoolState::Destroyed, launch::PATIENCE)
}

/// `terrace pool export`.
pub fn export(session: &Session, pool: &str, force: bool) -> Result<(), Failure> {
    let known = Registry::new(&session.places).require(pool)?;
    end(session, &known, force, PoolState::Exported, launch::PATIENCE)
}

/// Stops a pool, marks its labels, and forgets it. What is destroyed by force is given up whatever becomes of each step; what of it
/// stays behind is the error. `patience`: how long a daemon may take to say anything, and to end where nothing is to be saved.
fn end(
    session: &Session,
    known: &KnownPool,
    force: bool,
    state: PoolState,
    patience: Duration,
) -> Result<(), Failure> {
    let destroys = state == PoolState::Destroyed;
    let verb = if destroys { "destroy" } else { "export" };
    let gives_up = force && destroys;
    let what = format!("{verb} pool '{}'", known.name);
    let ends = Ends {
        force,
        spare_clients: destroys,
        saves: !gives_up,
        patience,
    };
    let told = |error: Unanswered| error.into_failure(&session.places, &known.name, &what);
    match stop_daemon(session, &known.name, ends) {
        // It ends although it could not save, and leaves nothing that has to be cleared but what it could not.
        Err(Unanswered::Refused(failure)) if gives_up => {
            tracing::warn!(%failure, "a pool that is destroyed could not be stopped as others are");
            let lock = session.places.lock_file(&known.name);
            launch::wait_for_end(&session.places, &known.name, RunLock::holder(&lock))?;
            stop_daemon(session, &known.name, ends).map_err(told)?;
        }
        stopped => {
            if let (Some(why), false) = (stopped.map_err(told)?, destroys) {
                eprintln!("terrace: pool '{}' could not be saved: {why}", known.name);
            }
        }
    }
    let absent = gives_up && known.devices.iter().all(|device| !device.exists());
    if absent {
        eprintln!(
            "none of the devices of '{}' is there: it is forgotten",
            known.name
        );
    } else {
        match mark(known, gives_up, state, verb) {
            Err(failure) if gives_up => {
                tracing::warn!(%failure, "a pool that is destroyed could not be opened for that");
            }
            marked => marked?,
        }
    }
    let left = match gives_up {
        true => mark_each(known),
        false => Vec::new(),
    };
    Registry::new(&session.places).forget(&known.name)?;
    session.places.forget_daemon(&known.name);
    if left.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        format!("{verb} pool '{}'", known.name),
        format!(
            "it is forgotten here, but labels of it are left that could not be written: {}",
            left.join(", ")
        ),
        "'terrace pool create --force' takes such a device all the same; until then 'terrace pool import' may find it",
    ))
}

/// Opens a pool that nobody holds, and closes it with this state on its labels.
fn mark(known: &KnownPool, gives_up: bool, state: PoolState, verb: &str) -> Result<(), Failure> {
    let destroys = state == PoolState::Destroyed;
    let opened = open_pool(
        known,
        OpenOptions {
            threads: false,
            // What is given up need not be whole, and may have been destroyed from elsewhere.
            degraded: gives_up,
            destroyed: destroys,
            ..OpenOptions::default()
        },
    );
    let engine = opened.map_err(|failure| match destroys {
        true => Failure {
            remedy: match failure.remedy.is_empty() {
                true => "mend that, or destroy what is left of it with --force".to_owned(),
                false => format!("{}; or destroy what is left of it with --force", failure.remedy),
            },
            ..failure
        },
        false => failure,
    })?;
    engine.event(verb, &format!("the pool is {verb}ed"));
    let what = format!("{verb} pool '{}'", known.name);
    engine
        .close_as(state)
        .map_err(|error| crate::daemon::failure_of(&what, &error))
}

/// Marks the devices of a pool that is given up, each by itself: it may not open any more, and a device that did not take its label is
/// left out by those that did. Returns those that are there and could not be marked, with why.
fn mark_each(known: &KnownPool) -> Vec<String> {
    let there = known.devices.iter().filter(|path| path.exists());
    there
        .filter_map(|path| {
            let marked = match open_when_free(path) {
                Ok(device) => {
                    terrace_pool::mark_destroyed(&*device, &known.id).map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            let why = marked.err()?;
            // Each has its own way out, which is none for a pool that is no more.
            let why = why.split("; ").next().unwrap_or_default().to_owned();
            let path = path.display().to_string();
            Some(match why.contains(&path) {
                true => why,
                false => format!("'{path}': {why}"),
            })
        })
        .collect()
}

/// `terrace stop`.
pub fn stop(session: &Session, pool: &str, force: bool) -> Result<(), Failure> {
    Registry::new(&session.places).require(pool)?;
    let ends = Ends {
        force,
        spare_clients: false,
        saves: true,
        patience: launch::PATIENCE,
    };
    let what = format!("stop pool '{pool}'");
    let lost = match stop_daemon(session, pool, ends) {
        // Who insists does not wait for one that gives no sign of life.
        Err(Unanswered::Silent(_)) if force => Some(kill_daemon(session, pool, ends)?),
        stopped => stopped.map_err(|error| error.into_failure(&session.places, pool, &what))?,
    };
    if let Some(why) = &lost {
        // The cause alone: its own way out is not that of who has ended the pool already.
        let why = why.split("; ").next().unwrap_or_default();
        eprintln!(
            "terrace: pool '{pool}' was ended and could not be saved: {why}; what was written after the last fsync or commit is lost, \
             'terrace start {pool}' opens it as it was saved last"
        );
    }
    if session.json {
        return output::json(&json!({ "pool": pool, "state": "stopped", "lost": lost }));
    }
    Ok(())
}

/// Ends a daemon that does not answer, as `kill -9` does, and clears what it leaves. Returns why nothing was saved.
fn kill_daemon(session: &Session, pool: &str, ends: Ends) -> Result<String, Failure> {
    let what = format!("stop pool '{pool}'");
    let lock = session.places.lock_file(pool);
    let Some(daemon) = RunLock::holder(&lock) else {
        let why = "its daemon does not answer, and who it is is not known";
        return Err(Failure::new(what, why, "'fuser' names who has its devices open"));
    };
    let pid = daemon.pid;
    daemon.kill().map_err(|error| {
        let remedy = format!("end it as root: 'kill -9 {pid}'");
        Failure::new(
            &what,
            format!("its daemon, process {pid}, cannot be ended: {error}"),
            remedy,
        )
    })?;
    launch::wait_for_end(&session.places, pool, Some(daemon))?;
    stop_daemon(session, pool, ends).map_err(|error| error.into_failure(&session.places, pool, &what))?;
    Ok(format!(
        "its daemon, process {pid}, did not answer and was killed"
    ))
}

/// How a daemon is to end.
#[derive(Clone, Copy)]
struct Ends {
    force: bool,
    spare_clients: bool,
    /// What is not saved yet is worth waiting for, however long that takes.
    saves: bool,
    /// How long it may take to give a sign of life, and for all else where nothing is to be saved.
    patience: Duration,
}

/// Stops the daemon of a pool if there is one, and clears what a dead one left mounted. Returns why not all was saved, if that was
/// given up by force.
fn stop_daemon(session: &Session, pool: &str, ends: Ends) -> Result<Option<String>, Unanswered> {
    match Client::find(&session.places, pool, ends.patience.min(ANSWER_PATIENCE))? {
        Some(mut client) => {
            let arguments = json!({ "force": ends.force, "spare_clients": ends.spare_clients });
            // Whoever answers holds it until then.
            let daemon = RunLock::holder(&session.places.lock_file(pool));
            let answer = match ends.saves {
                true => client.call("stop", logged(arguments))?,
                false => client.call_within("stop", logged(arguments), ends.patience)?,
            };
            launch::wait_for_end(&session.places, pool, daemon)?;
            Ok(answer["lost"].as_str().map(str::to_owned))
        }
        None => {
            let registry = Registry::new(&session.places);
            for mount in registry.mounts(pool)? {
                terrace_fuse::clear_stale(&mount.directory).map_err(|error| {
                    crate::daemon::failure_of(&format!("unmount '{}'", mount.directory.display()), &error)
                })?;
            }
            crate::daemon::clear_dead_blocks(&session.places, pool)?;
            registry.save_mounts(pool, &[])?;
            Ok(None)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{Arc, Condvar, Mutex};

    use terrace_control::{Exchange, Handler, Request, Server};

    use super::*;
    use crate::machine::Places;

    /// Answers who asks for a sign of life, and nobody else until it is over.
    #[derive(Default)]
    struct Hanging {
        over: Mutex<bool>,
        told: Condvar,
    }

    impl Handler for Hanging {
        fn handle(&self, request: Request, _: &mut Exchange) -> Result<Value, Failure> {
            if request.operation != "ping" {
                let over = self.over.lock().unwrap();
                drop(self.told.wait_while(over, |over| !*over).unwrap());
            }
            Ok(Value::Null)
        }
    }

    /// Who gives a pool up is told which process stands in the way, however long that would.
    #[test]
    fn a_daemon_that_hangs_is_named_to_who_destroys_its_pool_by_force() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::below(directory.path());
        let known = KnownPool {
            name: "tank".into(),
            ..KnownPool::default()
        };
        Registry::new(&places).save(&known).unwrap();
        let lock = RunLock::acquire(&places.lock_file("tank")).unwrap().unwrap();
        let server = Server::bind(&places.socket("tank")).unwrap();
        let handler = Arc::new(Hanging::default());
        let (serving, served) = (server.clone(), handler.clone());
        let thread = std::thread::spawn(move || serving.run(served, Duration::from_secs(60)));
        let session = Session {
            places: places.clone(),
            json: false,
            unanswered: Default::default(),
        };
        let patience = Duration::from_secs(1);
        let failure = end(&session, &known, true, PoolState::Destroyed, patience).unwrap_err();
        let pid = std::process::id();
        assert!(
            failure.why.contains(&format!("process {pid}")) && failure.why.contains("not answered"),
            "{failure}"
        );
        assert!(failure.remedy.contains(&format!("kill -9 {pid}")), "{failure}");
        // It is not forgotten while somebody holds it.
        assert!(Registry::new(&places).find("tank").unwrap().is_some());
        *handler.over.lock().unwrap() = true;
        handler.told.notify_all();
        server.stop();
        thread.join().unwrap().unwrap();
        drop(lock);
    }
}
