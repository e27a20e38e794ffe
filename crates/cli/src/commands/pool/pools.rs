//! `terrace pool …` and `start`.

use std::process::ExitCode;

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_device::format_size;
use terrace_engine::{Engine, OpenOptions, PoolSpec, describe_lost_device, describe_shortage};

use super::{
    describe::{describe_joining, describe_state, failures_of, parse_properties, pool_row, print_properties},
    import::{Wanted, import},
    rewind, stop,
};
use crate::{
    arguments::PoolCommand,
    client::{Accepted, Client},
    commands::Session,
    crash::Crashes,
    daemon::describe_pool,
    machine::{KnownPool, Registry, check_pool_name, output},
};

/// Runs one of them.
pub fn run(session: &Session, command: PoolCommand) -> Result<(), Failure> {
    match command {
        PoolCommand::Create {
            pool,
            tiers,
            copies,
            options,
            force,
            dry_run,
            encrypt,
        } => {
            if encrypt {
                return Err(Failure::new(
                    format!("create pool '{pool}'"),
                    "encryption is not built yet",
                    "leave --encrypt out, or put the pool on encrypted devices (cryptsetup)",
                ));
            }
            match dry_run {
                true => plan(session, &pool, &tiers, &copies, &options, force),
                false => create(session, &pool, &tiers, &copies, &options, force),
            }
        }
        PoolCommand::List => list(session),
        PoolCommand::Destroy { pool, force, consent } => stop::destroy(session, &pool, force, consent),
        PoolCommand::Export { pool, force } => stop::export(session, &pool, force),
        PoolCommand::Import {
            search,
            devices,
            pool,
            destroyed,
            degraded,
            rewind,
            yes,
            dry_run,
        } => {
            let accepted = Accepted::of(degraded, rewind);
            if !dry_run {
                rewind::confirm_rewind(
                    accepted,
                    &pool
                        .as_ref()
                        .map_or("all pools found".into(), |pool| format!("pool '{pool}'")),
                    yes,
                )?;
            }
            let wanted = Wanted {
                only: pool.as_deref(),
                destroyed,
                accepted,
                dry_run,
            };
            import(session, &search, &devices, &wanted)
        }
        PoolCommand::Upgrade { pool, consent } => super::upgrade::run(session, pool.as_deref(), consent),
        PoolCommand::Devices(command) => super::devices::run(session, command),
        PoolCommand::Get { property, pool } => get(session, &property, &pool),
        PoolCommand::Set { properties, pool } => {
            let properties = parse_properties(&properties)?;
            session
                .change(&pool, "pool_set", json!({ "properties": properties }))
                .map(drop)
        }
    }
}

fn create(
    session: &Session,
    name: &str,
    tiers: &[String],
    copies: &[String],
    options: &[String],
    force: bool,
) -> Result<(), Failure> {
    let known = make(session, name, tiers, copies, options, force)?;
    if session.json {
        return output::json(&known);
    }
    Ok(())
}

/// Makes a pool and closes it.
pub fn make(
    session: &Session,
    name: &str,
    tiers: &[String],
    copies: &[String],
    options: &[String],
    force: bool,
) -> Result<KnownPool, Failure> {
    let what = format!("create pool '{name}'");
    let fail = |error: &dyn std::fmt::Display| crate::daemon::failure_of(&what, error);
    let spec = spec_of(session, name, tiers, copies, options)?;
    let options = OpenOptions {
        threads: false,
        owner: crate::machine::own_ids(),
        ..OpenOptions::default()
    };
    let engine = Engine::create(&spec, force, options).map_err(|error| fail(&error))?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    engine.log_command("", &format!("terrace {}", words.join(" ")));
    let known = describe_pool(&engine);
    engine.close().map_err(|error| fail(&error))?;
    drop(engine);
    Registry::new(&session.places).save(&known)?;
    warn_of(&spec);
    Ok(known)
}

/// What is to be made, if a pool of this name can be.
fn spec_of(
    session: &Session,
    name: &str,
    tiers: &[String],
    copies: &[String],
    options: &[String],
) -> Result<PoolSpec, Failure> {
    check_pool_name(name)?;
    let what = format!("create pool '{name}'");
    if Registry::new(&session.places).find(name)?.is_some() {
        return Err(Failure::new(
            what,
            "this machine knows a pool of this name already",
            format!("choose another name, or run 'terrace pool destroy {name}' first"),
        ));
    }
    PoolSpec::parse(name, tiers, copies, options)
        .map_err(|error| crate::daemon::failure_of(&what, &error).as_usage())
}

/// What whoever makes a pool should know.
fn warn_of(spec: &PoolSpec) {
    let shortage = describe_shortage(spec.tiers.iter().flat_map(|tier| &tier.devices));
    let loss = spec
        .tiers
        .iter()
        .filter_map(|tier| describe_lost_device(&spec.name, &tier.name, tier.copies, tier.devices.len()));
    for warning in loss.chain([shortage]).filter(|words| !words.is_empty()) {
        eprintln!("terrace: {warning}");
    }
}

/// `terrace pool create --dry-run`: what would be made; nothing is changed.
fn plan(
    session: &Session,
    name: &str,
    tiers: &[String],
    copies: &[String],
    options: &[String],
    force: bool,
) -> Result<(), Failure> {
    let spec = spec_of(session, name, tiers, copies, options)?;
    let planned = Engine::plan(&spec, force)
        .map_err(|error| crate::daemon::failure_of(&format!("create pool '{name}'"), &error))?;
    let mut planned = planned.into_iter();
    let mut rows = Vec::new();
    for tier in &spec.tiers {
        let devices: Vec<_> = planned.by_ref().take(tier.devices.len()).collect();
        let size_bytes: u64 = devices.iter().map(|device| device.size_bytes).sum();
        let devices: Vec<Value> = devices
            .iter()
            .map(|device| {
                json!({
                    "path": device.path, "size_bytes": device.size_bytes, "made": device.is_made,
                    "overwrites": device.overwrites,
                })
            })
            .collect();
        rows.push(json!({
            "name": tier.name, "copies": tier.copies, "size_bytes": size_bytes, "devices": devices,
        }));
    }
    if session.json {
        return output::json(&json!({ "name": name, "dry_run": true, "tiers": rows }));
    }
    for tier in &rows {
        let copies = match tier["copies"].as_u64() {
            Some(copies @ 2..) => format!(", {copies} copies"),
            _ => String::new(),
        };
        output::line(&format!(
            "tier '{}': {}{copies}",
            tier["name"].as_str().unwrap_or_default(),
            format_size(tier["size_bytes"].as_u64().unwrap_or(0))
        ))?;
        for device in tier["devices"].as_array().into_iter().flatten() {
            output::line(&format!("  {}", describe_joining(device)))?;
        }
    }
    warn_of(&spec);
    output::line(&format!("pool '{name}' could be made; nothing was changed"))
}

fn list(session: &Session) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for known in Registry::new(&session.places).pools()? {
        rows.push(pool_row(session, &known));
    }
    if session.json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        return output::line(
            "no pools; make one with 'terrace pool create', or find one with 'terrace pool import'",
        );
    }
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let bytes = |row: &Value, key: &str| format_size(row[key].as_u64().unwrap_or(0));
    let table: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let free = row["size_bytes"]
                .as_u64()
                .unwrap_or(0)
                .saturating_sub(row["used_bytes"].as_u64().unwrap_or(0));
            vec![
                text(row, "name"),
                bytes(row, "size_bytes"),
                bytes(row, "used_bytes"),
                format_size(free),
                describe_state(&text(row, "state"), row["daemon_pid"].as_u64().unwrap_or(0)),
            ]
        })
        .collect();
    output::table(&["NAME", "SIZE", "USED", "FREE", "STATE"], &table, &[1, 2, 3])
}

fn get(session: &Session, property: &str, pool: &str) -> Result<(), Failure> {
    let rows: Vec<Value> = Client::open(&session.places, pool)?.ask("pool_properties", json!({}))?;
    let mut wanted = Vec::new();
    for name in property.split(',') {
        let found: Vec<&Value> = rows
            .iter()
            .filter(|row| name == "all" || row["property"] == json!(name))
            .collect();
        if found.is_empty() {
            let names: Vec<&str> = rows.iter().filter_map(|row| row["property"].as_str()).collect();
            return Err(Failure::new(
                format!("get {name} of pool '{pool}'"),
                "there is no such property",
                format!("there are {}", names.join(", ")),
            )
            .as_usage());
        }
        wanted.extend(found.into_iter().cloned());
    }
    print_properties(session, &wanted)
}

/// `terrace start`.
pub fn start(session: &Session, pool: &str, accepted: Accepted) -> Result<ExitCode, Failure> {
    let known = Registry::new(&session.places).require(pool)?;
    let running = Client::open_running(&session.places, pool)?;
    // What a daemon that runs could not bring back, it tries again.
    let retry = running.is_some();
    let mut client = match running {
        Some(client) => client,
        None => {
            Crashes::of(&session.places, pool).forgive(&known.id);
            Client::start(&session.places, pool, accepted)?
        }
    };
    let answer = client.call("ping", json!({ "retry": retry }))?;
    // It runs, and that is all: whoever reads 'started' would find nothing to work with.
    if let Ok(Some(refuses)) = serde_json::from_value::<Option<Failure>>(answer["refuses"].clone()) {
        return Err(refuses);
    }
    let not_restored = failures_of(&answer["not_restored"]);
    if session.json {
        output::json(&json!({
            "pool": pool, "daemon_pid": answer["pid"], "not_restored": answer["not_restored"],
        }))?;
    }
    for failure in &not_restored {
        eprintln!("terrace: {failure}");
    }
    if !retry {
        // What it does without is known now, and not only to who asks.
        let mut client = Client::open(&session.places, pool)?;
        let status = client.call("status", json!({}))?;
        let mut told = "";
        if let (true, Some("degraded"), Some(detail)) = (
            accepted.degraded,
            status["state"].as_str(),
            status["state_detail"].as_str(),
        ) {
            eprintln!("terrace: pool '{pool}' is degraded: {detail}");
            told = detail;
        }
        let tiers = status["tiers"].as_array().into_iter().flatten();
        let devices = tiers.flat_map(|tier| tier["devices"].as_array().into_iter().flatten());
        for device in devices.filter(|device| device["outdated"] == json!(true)) {
            let path = device["path"].as_str().unwrap_or_default();
            // What makes the pool degraded may be just that.
            if told.contains(&format!("'{path}' is older than the pool")) {
                continue;
            }
            eprintln!(
                "terrace: device '{path}' is older than pool '{pool}': an old copy, or it lost what was written to it; it was taken as \
                 it is, and 'terrace status {pool}' says how it is brought up to date; 'terrace scrub {pool}' names what it lacks and no \
                 other device has"
            );
        }
    }
    Ok(match not_restored.is_empty() {
        true => ExitCode::SUCCESS,
        // The pool is open, and not all is as it was.
        false => ExitCode::from(1),
    })
}
