//! Requests about devices that come and go.

use std::time::Duration;

use serde_json::{Value, json};
use terrace_control::{Exchange, Failure, Progress};
use terrace_device::{DeviceSpec, format_size};
use terrace_engine::{EngineError, LeavingPlan, TierPlace, describe_shortage};

use crate::daemon::{
    open_pool::OpenPool,
    support::{Parameters, answers, failed},
};

/// Lost files that one answer names.
const LOST_PAGE: usize = 500;
/// How often progress is told.
const TELL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn device_add(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let tier = parameters.text("tier")?;
    let words: Vec<String> = parameters.value("devices")?;
    let what = format!("add to tier '{tier}' of pool '{}'", pool.name());
    let specs = words.iter().map(|word| parse(&what, word));
    let specs = specs.collect::<Result<Vec<_>, _>>()?;
    let place = match (
        parameters.optional_text("before")?,
        parameters.optional_text("after")?,
    ) {
        (Some(other), _) => Some(TierPlace::Before(other)),
        (None, Some(other)) => Some(TierPlace::After(other)),
        (None, None) => None,
    };
    let copies = u8::try_from(parameters.number("copies")?).unwrap_or(u8::MAX);
    let force = parameters.flag("force")?;
    if parameters.flag("dry_run")? {
        let plan = pool
            .engine()
            .plan_adding(&tier, &specs, place.as_ref(), copies, force);
        let plan = plan.map_err(|error| failed(&what, &error))?;
        let rows = plan.iter().zip(&specs).map(|(device, spec)| {
            json!({
                "path": device.path, "size_bytes": device.size_bytes, "made": device.is_made,
                "overwrites": device.overwrites, "warning": describe_shortage([spec]),
            })
        });
        return Ok(Value::Array(rows.collect()));
    }
    let added = pool
        .engine()
        .add_devices(&tier, &specs, place.as_ref(), copies, force);
    pool.remember();
    let added = added.map_err(|error| failed(&what, &error))?;
    let rows = added.iter().zip(&specs).map(|(device, spec)| {
        json!({
            "number": device.number, "path": device.path, "size_bytes": device.size_bytes,
            "warning": describe_shortage([spec]),
        })
    });
    Ok(Value::Array(rows.collect()))
}

/// A page of the files that are known to be lost, or damaged on a device that could not be emptied.
pub(crate) fn lost(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let from = usize::try_from(parameters.number("from")?).unwrap_or(usize::MAX);
    let (files, more) = pool.engine().lost_files(from, LOST_PAGE);
    let status = pool.engine().status().lost;
    Ok(json!({
        "files": answers::encode(&files)?, "more": more,
        "state": status.as_ref().map_or("known", |lost| lost.state.as_str()),
        "complete": status.as_ref().is_none_or(|lost| lost.complete) && pool.engine().all_damaged_are_named(),
    }))
}

/// `remove` and `evacuate`.
pub(crate) fn device_leave(
    pool: &OpenPool,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let name = parameters.text("device")?;
    let action = parameters.text("action")?;
    let what = format!("{action} device '{name}' of pool '{}'", pool.name());
    let fail = |error: &dyn std::fmt::Display| failed(&what, error);
    if parameters.flag("undo")? {
        let dry_run = parameters.flag("dry_run")?;
        let undone = pool.engine().use_device_again(&name, dry_run);
        undone.map_err(|error| fail(&error))?;
        return Ok(json!({ "undo": true }));
    }
    let info = pool.engine().find_device(&name).map_err(|error| fail(&error))?;
    if parameters.flag("lost")? {
        let job = pool
            .engine()
            .give_up_device(&name)
            .map_err(|error| fail(&error))?;
        let mut done = match job {
            Some(id) => wait_for_leaving(pool, &what, id, parameters, exchange)?,
            None => json!({}),
        };
        pool.remember();
        let lost = pool.engine().status().lost.unwrap_or_default();
        done["path"] = json!(info.path);
        done["lost_bytes"] = json!(lost.bytes);
        done["lost_files"] = json!(lost.files);
        done["lost_names"] = json!(lost.names);
        return Ok(done);
    }
    // What is still in memory has no place yet.
    pool.sync()?;
    if parameters.flag("dry_run")? {
        pool.engine()
            .check_stays(info.number)
            .map_err(|error| fail(&error))?;
        let plan = pool.engine().plan_leaving(&info, 0);
        // Who gives that up is told what it was at the end.
        let plan = match parameters.flag("gives_up")? {
            true => plan,
            false => pool
                .engine()
                .plan_leaving_whole(&info, plan)
                .map_err(|error| fail(&error))?,
        };
        return Ok(plan_json(&plan, info.state.as_str()));
    }
    let warning = pool.engine().plan_leaving(&info, 0).warning;
    let job = match action.as_str() {
        "remove" => pool.engine().remove_device(&name),
        "evacuate" => pool.engine().evacuate_device(&name),
        _ => return Err(Failure::new(what, "this is not known", "")),
    };
    let job = job.map_err(|error| fail(&error))?;
    warn_before(&warning, parameters, exchange)?;
    let mut done = wait_for_leaving(pool, &what, job, parameters, exchange)?;
    done["warning"] = json!(warning);
    Ok(done)
}

pub(crate) fn device_replace(
    pool: &OpenPool,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let old = parameters.text("device")?;
    let what = format!("replace device '{old}' of pool '{}'", pool.name());
    let new = parse(&what, &parameters.text("new")?)?;
    let force = parameters.flag("force")?;
    pool.sync()?;
    if parameters.flag("dry_run")? {
        let info = pool
            .engine()
            .find_device(&old)
            .map_err(|error| failed(&what, &error))?;
        let plan = pool.engine().plan_replacing(&info, &new, force);
        let plan = plan.and_then(|plan| pool.engine().plan_leaving_whole(&info, plan));
        let plan = plan.map_err(|error| failed(&what, &error))?;
        return Ok(plan_json(&plan, info.state.as_str()));
    }
    let job = pool.engine().replace_device(&old, &new, force);
    pool.remember();
    let job = job.map_err(|error| failed(&what, &error))?;
    let warning = describe_shortage([&new]);
    warn_before(&warning, parameters, exchange)?;
    let mut done = wait_for_leaving(pool, &what, job, parameters, exchange)?;
    if parameters.flag("wait")? {
        wait_for_copies(pool, &what, parameters, exchange)?;
    }
    done["warning"] = json!(warning);
    Ok(done)
}

/// Tells how far the job is that gives a new device what the one before it had, where that was missing; it may take longer than
/// emptying that, which is nothing to move.
fn wait_for_copies(
    pool: &OpenPool,
    what: &str,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<(), Failure> {
    while let Some(id) = pool.engine().resilver_job() {
        let Some(job) = pool.engine().jobs().into_iter().find(|job| job.id == id) else {
            break;
        };
        if matches!(job.state.as_str(), "failed" | "cancelled") {
            break;
        }
        exchange.progress(Progress {
            what: answers::in_progress(pool.name(), id, &job.kind, &job.state, &job.reason),
            done_bytes: job.done_bytes,
            total_bytes: job.total_bytes,
        })?;
        if exchange.is_stopping() {
            return Err(Failure::new(
                what,
                "the pool is being stopped",
                "the job goes on after the next start",
            ));
        }
        std::thread::sleep(TELL_INTERVAL);
    }
    warn_before(&pool.engine().describe_behind(), parameters, exchange)
}

/// Without a size: what it has grown by is used; with one: its end is emptied and cut off.
pub(crate) fn device_resize(
    pool: &OpenPool,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let name = parameters.text("device")?;
    let what = format!("resize device '{name}' of pool '{}'", pool.name());
    let size_bytes = parameters.number("size_bytes")?;
    if size_bytes > 0 {
        return device_shrink(pool, &what, &name, size_bytes, parameters, exchange);
    }
    let resized = pool.engine().resize_device(&name);
    let (before, now) = resized.map_err(|error| failed(&what, &error))?;
    if now <= before {
        return Err(Failure::new(
            what,
            format!("it has not grown: it has {} as before", format_size(before)),
            "make the file or volume under it larger first; to make it smaller, name the size that it shall have",
        ));
    }
    pool.remember();
    Ok(json!({ "size_bytes_before": before, "size_bytes": now }))
}

fn device_shrink(
    pool: &OpenPool,
    what: &str,
    name: &str,
    size_bytes: u64,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let fail = |error: &dyn std::fmt::Display| failed(what, error);
    let info = pool.engine().find_device(name).map_err(|error| fail(&error))?;
    if size_bytes >= info.size_bytes {
        return Err(Failure::new(
            what,
            format!("it has {} already", format_size(info.size_bytes)),
            "a size makes it smaller; to make it larger, enlarge the file or volume under it and leave the size out",
        ));
    }
    // What is still in memory has no place yet.
    pool.sync()?;
    if parameters.flag("dry_run")? {
        let plan = pool.engine().plan_shrinking(&info, size_bytes);
        let plan = plan.map_err(|error| fail(&error))?;
        return Ok(json!({
            "path": plan.path, "tier": plan.tier, "size_bytes_before": info.size_bytes, "size_bytes": size_bytes,
            "live_bytes": plan.live_bytes, "room_bytes": plan.room_bytes, "obstacle": plan.obstacle,
        }));
    }
    let job = pool.engine().shrink_device(name, size_bytes);
    let job = job.map_err(|error| fail(&error))?;
    let mut done = wait_for_leaving(pool, what, job, parameters, exchange)?;
    done["size_bytes_before"] = json!(info.size_bytes);
    done["size_bytes"] = json!(size_bytes / 4096 * 4096);
    Ok(done)
}

/// Tells the progress of a job until the device is empty (and gone, if it shall be).
fn wait_for_leaving(
    pool: &OpenPool,
    what: &str,
    id: u64,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let mut done_bytes = 0;
    let replacement = pool.engine().replacement_of(id);
    while parameters.flag("wait")? {
        pool.engine()
            .settle_leaving()
            .map_err(|error| failed(what, &error))?;
        let Some(job) = pool.engine().jobs().into_iter().find(|job| job.id == id) else {
            break;
        };
        done_bytes = job.done_bytes;
        exchange.progress(Progress {
            what: answers::in_progress(pool.name(), id, &job.kind, &job.state, &job.reason),
            done_bytes: job.done_bytes,
            total_bytes: job.total_bytes,
        })?;
        match job.state.as_str() {
            "done" if !pool.engine().is_leaving(id) => break,
            "failed" | "cancelled" => {
                let left = after_leaving(pool, replacement);
                let left = left.map_err(|error| failed(what, &error))?;
                let left = left.unwrap_or_else(|| "the device is used as before".into());
                return Err(failed(
                    what,
                    &format!("job {id} {}: {}; {left}", job.state, job.reason),
                ));
            }
            _ => {}
        }
        if exchange.is_stopping() {
            return Err(Failure::new(
                what,
                "the pool is being stopped",
                "the job goes on after the next start",
            ));
        }
        std::thread::sleep(TELL_INTERVAL);
    }
    pool.remember();
    Ok(json!({ "job": id, "done_bytes": done_bytes }))
}

/// What is in the pool now that the job of this replacement has ended, if there is one.
pub(crate) fn after_leaving(
    pool: &OpenPool,
    replacement: Option<(u16, u16)>,
) -> Result<Option<String>, EngineError> {
    let Some((old, new)) = replacement else {
        return Ok(None);
    };
    pool.engine().settle_leaving()?;
    pool.remember();
    Ok(Some(pool.engine().after_replacing(old, new)))
}

/// Whoever waits is warned before, and of nothing anew at the end.
fn warn_before(warning: &str, parameters: &Parameters, exchange: &mut Exchange) -> Result<(), Failure> {
    if !warning.is_empty() && parameters.flag("wait")? {
        exchange.item(&json!({ "warning": warning }))?;
    }
    Ok(())
}

fn plan_json(plan: &LeavingPlan, state: &str) -> Value {
    json!({
        "path": plan.path, "tier": plan.tier, "live_bytes": plan.live_bytes, "room_bytes": plan.room_bytes,
        "obstacle": plan.obstacle, "warning": plan.warning, "loses": plan.loses, "state": state,
        "new": plan.joining.as_ref().map(|device| json!({
            "path": device.path, "size_bytes": device.size_bytes, "made": device.is_made, "overwrites": device.overwrites,
        })),
    })
}

fn parse(what: &str, word: &str) -> Result<DeviceSpec, Failure> {
    word.parse()
        .map_err(|error: terrace_device::SpecError| failed(what, &error).as_usage())
}
