//! `terrace pool add|remove|replace|resize`, `terrace evacuate`.

use std::path::Path;

use serde_json::{Value, json};
use terrace_control::{Answer, Failure};
use terrace_device::{DeviceSpec, format_size, parse_size};

use super::describe::describe_joining;
use crate::{
    arguments::{DeviceCommand, EvacuateArguments, Waiting},
    client::Client,
    commands::{Session, logged},
    machine::output,
};

/// Runs one of them.
pub fn run(session: &Session, command: DeviceCommand) -> Result<(), Failure> {
    match command {
        DeviceCommand::Add { .. } => add(session, command),
        DeviceCommand::Remove {
            pool,
            device,
            lost,
            yes,
            dry_run,
            waiting,
        } => {
            if lost && !dry_run {
                output::confirm(
                    &format!("give up device '{device}' of pool '{pool}' and what is only there"),
                    yes,
                )?;
            }
            // What is lost is told when it is known.
            let wait = waiting.waits() || lost && !waiting.no_wait;
            let arguments = json!({
                "device": absolute(&device), "action": "remove", "lost": lost && !dry_run, "gives_up": lost, "dry_run": dry_run,
                "wait": wait,
            });
            leave(session, &pool, &device, "remove", dry_run, arguments)
        }
        DeviceCommand::Replace {
            pool,
            old,
            new,
            force,
            yes,
            dry_run,
            waiting,
        } => {
            let spec = absolute_spec(&new)?;
            let arguments = |dry_run| {
                json!({
                    "device": absolute(&old), "new": spec, "force": force, "wait": waiting.waits(), "dry_run": dry_run,
                })
            };
            if dry_run || force {
                let plan = Client::open(&session.places, &pool)?.call("device_replace", arguments(true))?;
                let loses = plan["loses"].as_str().unwrap_or_default();
                if dry_run {
                    if !loses.is_empty() && !session.json {
                        eprintln!("terrace: {loses}");
                    }
                    return say_plan(session, &pool, &old, &plan, "replace", "replaced");
                }
                if !loses.is_empty() {
                    output::confirm(&format!("replace '{old}' by '{new}': {loses}"), yes)?;
                }
            }
            let done = call_warned(session, &pool, "device_replace", logged(arguments(false)))?;
            say_job(
                session,
                &done,
                waiting.waits(),
                &format!("replaced {old} by {new}"),
            )
        }
        DeviceCommand::Resize {
            pool,
            device,
            size: Some(size),
            yes,
            dry_run,
            waiting,
        } => shrink(session, &pool, &device, &size, yes, dry_run, waiting),
        DeviceCommand::Resize { pool, device, .. } => {
            let arguments = logged(json!({ "device": absolute(&device) }));
            let done = Client::open(&session.places, &pool)?.call("device_resize", arguments)?;
            if session.json {
                return output::json(&done);
            }
            let bytes = |key: &str| format_size(done[key].as_u64().unwrap_or(0));
            output::line(&format!(
                "{device}: {} before, {} now",
                bytes("size_bytes_before"),
                bytes("size_bytes")
            ))
        }
    }
}

/// `terrace pool add`.
fn add(session: &Session, command: DeviceCommand) -> Result<(), Failure> {
    let DeviceCommand::Add {
        pool,
        devices,
        before,
        after,
        copies,
        force,
        dry_run,
    } = command
    else {
        return Ok(());
    };
    let Some((tier, words)) = devices.split_once('=') else {
        return Err(Failure::new(
            format!("add '{devices}' to pool '{pool}'"),
            "the tier is missing",
            "write TIER=DEVICE, for example slow=/dev/sdb",
        )
        .as_usage());
    };
    let words = words.split(',').map(absolute_spec);
    let words = words.collect::<Result<Vec<_>, _>>()?;
    let arguments = json!({
        "tier": tier, "devices": words, "before": before, "after": after, "copies": copies, "force": force,
        "dry_run": dry_run,
    });
    let arguments = if dry_run { arguments } else { logged(arguments) };
    let added = Client::open(&session.places, &pool)?.call("device_add", arguments)?;
    if session.json {
        return output::json(&added);
    }
    for device in added.as_array().into_iter().flatten() {
        warn(device);
        let path = device["path"].as_str().unwrap_or_default();
        let size = format_size(device["size_bytes"].as_u64().unwrap_or(0));
        if dry_run {
            output::line(&format!(
                "{} and added to tier '{tier}'",
                describe_joining(device)
            ))?;
            continue;
        }
        output::line(&format!(
            "added {path} ({size}) to tier '{tier}'; 'terrace pool remove {pool} {path}' undoes it"
        ))?;
    }
    if dry_run {
        output::line("nothing was changed")?;
    }
    Ok(())
}

/// `terrace pool resize` to a smaller size.
fn shrink(
    session: &Session,
    pool: &str,
    device: &str,
    size: &str,
    yes: bool,
    dry_run: bool,
    waiting: Waiting,
) -> Result<(), Failure> {
    let usage = |why: &dyn std::fmt::Display, remedy: &str| {
        Failure::new(format!("resize device '{device}' to '{size}'"), why, remedy).as_usage()
    };
    let size_bytes = parse_size(size).map_err(|error| usage(&error, ""))?;
    if size_bytes == 0 {
        // Without a size it would grow.
        let remedy = format!(
            "name what is to be left, such as 512M, or take it out: 'terrace pool remove {pool} {device}'"
        );
        return Err(usage(&"a device cannot have no bytes", &remedy));
    }
    let arguments = |dry_run| json!({ "device": absolute(device), "size_bytes": size_bytes, "dry_run": dry_run, "wait": waiting.waits() });
    // Nobody is asked about what makes no sense.
    let plan = Client::open(&session.places, pool)?.call("device_resize", arguments(true))?;
    if dry_run {
        let refused = check_obstacle(pool, device, &plan, "resize");
        if session.json {
            output::json(&plan)?;
            return refused;
        }
        let bytes = |key: &str| format_size(plan[key].as_u64().unwrap_or(0));
        output::line(&format!(
            "beyond {} {device} holds {}; elsewhere there is room for {}",
            format_size(size_bytes),
            bytes("live_bytes"),
            bytes("room_bytes")
        ))?;
        refused?;
        return output::line("it could be shrunk; nothing was changed");
    }
    output::confirm(
        &format!("cut device '{device}' of pool '{pool}' off at {size}, after its end was emptied"),
        yes,
    )?;
    let done = Client::open(&session.places, pool)?.call("device_resize", logged(arguments(false)))?;
    let said = format!(
        "{device} has {} now; nothing of the pool was lost",
        format_size(size_bytes)
    );
    say_job(session, &done, waiting.waits(), &said)
}

/// `terrace evacuate`.
pub fn evacuate(session: &Session, arguments: &EvacuateArguments) -> Result<(), Failure> {
    let (pool, device) = (&arguments.pool, &arguments.device);
    let request = json!({
        "device": absolute(device), "action": "evacuate", "undo": arguments.undo, "dry_run": arguments.dry_run,
        "wait": arguments.waiting.waits(),
    });
    leave(session, pool, device, "evacuate", arguments.dry_run, request)
}

fn leave(
    session: &Session,
    pool: &str,
    device: &str,
    action: &str,
    dry_run: bool,
    arguments: Value,
) -> Result<(), Failure> {
    let wait = arguments["wait"] == json!(true);
    let arguments = if dry_run { arguments } else { logged(arguments) };
    let done = call_warned(session, pool, "device_leave", arguments)?;
    if done["undo"] == json!(true) {
        return match (session.json, dry_run) {
            (true, _) => output::json(&json!({ "device": device, "used_again": !dry_run })),
            (false, true) => output::line(&format!(
                "{device} could be put to use again; nothing was changed"
            )),
            (false, false) => output::line(&format!("{device} is used again")),
        };
    }
    if dry_run {
        return say_plan(session, pool, device, &done, action, "emptied");
    }
    if done["lost_bytes"].is_u64() && !session.json {
        if done["job"].is_u64() && !wait {
            return say_job(session, &done, wait, "");
        }
        if done["lost_files"] == json!(0) {
            return output::line(&format!("took out {device}; no file is known to be lost with it"));
        }
        output::line(&format!(
            "gave up {device}; {} lost content with it; 'terrace status {pool} --lost' lists all:",
            output::count(done["lost_files"].as_u64().unwrap_or(0), "file")
        ))?;
        let names = done["lost_names"].as_array().into_iter().flatten();
        return names
            .filter_map(Value::as_str)
            .try_for_each(|name| output::line(&format!("  lost: {name}")));
    }
    let said = if action == "remove" {
        format!("{device} was taken out")
    } else {
        format!("{device} is empty; 'terrace evacuate {pool} {device} --undo' puts it to use again")
    };
    say_job(session, &done, wait, &said)
}

/// What leaving would come to.
fn say_plan(
    session: &Session,
    pool: &str,
    device: &str,
    plan: &Value,
    action: &str,
    done: &str,
) -> Result<(), Failure> {
    let refused = check_obstacle(pool, device, plan, action);
    if session.json {
        output::json(plan)?;
        return refused;
    }
    let bytes = |key: &str| format_size(plan[key].as_u64().unwrap_or(0));
    output::line(&format!(
        "{device} holds {}; the other devices have room for {}",
        bytes("live_bytes"),
        bytes("room_bytes")
    ))?;
    refused?;
    warn(plan);
    if plan["new"].is_object() {
        output::line(&describe_joining(&plan["new"]))?;
    }
    output::line(&format!("it could be {done}; nothing was changed"))
}

/// Asks for a device to leave; what will be worse than before is said at once, as it may take hours.
fn call_warned(session: &Session, pool: &str, operation: &str, arguments: Value) -> Result<Value, Failure> {
    Client::open(&session.places, pool)?.call_with(operation, arguments, &mut |answer| {
        if let (Answer::Item(item), false) = (&answer, session.json) {
            warn(item);
        }
        Ok(())
    })
}

/// What will be worse than before.
fn warn(answer: &Value) {
    if let Some(warning) = answer["warning"].as_str().filter(|warning| !warning.is_empty()) {
        eprintln!("terrace: {warning}");
    }
}

/// What would be refused is refused with `-n` too.
fn check_obstacle(pool: &str, device: &str, plan: &Value, action: &str) -> Result<(), Failure> {
    let obstacle = plan["obstacle"].as_str().unwrap_or_default();
    if obstacle.is_empty() {
        return Ok(());
    }
    Err(crate::daemon::failure_of(
        &format!("{action} device '{device}' of pool '{pool}'"),
        &obstacle,
    ))
}

fn say_job(session: &Session, done: &Value, waited: bool, said: &str) -> Result<(), Failure> {
    if session.json {
        return output::json(done);
    }
    if !waited {
        warn(done);
    }
    match done["job"].as_u64() {
        Some(id) if !waited => output::line(&format!("job {id} does it; 'terrace jobs' shows how far it is")),
        Some(_) => output::line(said),
        None => Ok(()),
    }
}

/// The daemon lives elsewhere: relative paths are resolved here. Numbers stay, `2` as well as `device:2`.
fn absolute(device: &str) -> String {
    let number = device.strip_prefix("device:").unwrap_or(device);
    let is_number = number.chars().all(|c| c.is_ascii_digit()) && !Path::new(device).exists();
    match std::path::absolute(device) {
        Ok(path) if !is_number => path.display().to_string(),
        _ => device.to_owned(),
    }
}

fn absolute_spec(word: &str) -> Result<String, Failure> {
    let here = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let spec: DeviceSpec = word.parse().map_err(|error: terrace_device::SpecError| {
        Failure::new(format!("use device '{word}'"), error, "").as_usage()
    })?;
    Ok(spec.absolute(&here).to_string())
}
