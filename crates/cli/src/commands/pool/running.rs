//! Which pools a command is about: the one that it names, which is started, or all that run.
//!
//! Invariants: a command that names no pool starts none; the pools that it passes over are named on standard error; one whose daemon
//! does not answer keeps nobody from seeing the others.

use terrace_control::Failure;

use crate::{
    client::Client,
    commands::Session,
    machine::{KnownPool, Registry},
};

/// The pools that a command without a pool is about.
pub fn chosen_pools(session: &Session, pool: Option<&str>) -> Result<Vec<KnownPool>, Failure> {
    let registry = Registry::new(&session.places);
    match pool {
        Some(pool) => Ok(vec![registry.require(pool)?]),
        None => {
            let pools = registry.pools()?;
            if pools.is_empty() {
                return Err(Failure::new(
                    "find a pool",
                    "this machine knows none",
                    "make one with 'terrace pool create', or find one with 'terrace pool import'",
                ));
            }
            Ok(pools)
        }
    }
}

/// Pools that run, and the names of those that do not.
pub struct RunningPools {
    /// Each with its daemon.
    pub running: Vec<(KnownPool, Client)>,
    /// Those that do not run, by name.
    pub stopped: Vec<String>,
}

/// `pool 'a' is`, `pools 'a', 'b' are`.
pub fn describe_names(pools: &[String]) -> String {
    match pools {
        [one] => format!("pool '{one}' is"),
        all => format!("pools '{}' are", all.join("', '")),
    }
}

impl RunningPools {
    /// Tells people which pools are left out; what programs read stays as it is.
    pub fn say_stopped(&self) {
        if !self.stopped.is_empty() {
            let pools = describe_names(&self.stopped);
            eprintln!("terrace: {pools} stopped and left out; 'terrace start POOL' opens one");
        }
    }
}

/// The pool that is named, started if need be, or else those that run.
pub fn running_pools_of(session: &Session, pool: Option<&str>) -> Result<RunningPools, Failure> {
    let mut pools = RunningPools {
        running: Vec::new(),
        stopped: Vec::new(),
    };
    for known in chosen_pools(session, pool)? {
        if pool.is_some() {
            let client = Client::open(&session.places, &known.name)?;
            pools.running.push((known, client));
            continue;
        }
        let client = Client::open_running(&session.places, &known.name);
        match session.heard(&known.name, client) {
            Some(Some(client)) => pools.running.push((known, client.one_of_several())),
            Some(None) => pools.stopped.push(known.name),
            None => {}
        }
    }
    Ok(pools)
}

/// What a pool answered; nothing of one that does not, if nobody named it: the others are shown.
pub fn answered<T>(
    session: &Session,
    named: Option<&str>,
    pool: &str,
    answer: Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    match named {
        Some(_) => answer.map(Some),
        None => Ok(session.heard(pool, answer)),
    }
}

/// The same; which ones are left out is said.
pub fn running_pools(session: &Session, pool: Option<&str>) -> Result<Vec<(KnownPool, Client)>, Failure> {
    let pools = running_pools_of(session, pool)?;
    pools.say_stopped();
    Ok(pools.running)
}
