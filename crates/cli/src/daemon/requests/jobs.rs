//! Requests about work in the background: scrub, compaction, jobs, events, the command log.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use terrace_control::{Exchange, Failure, Progress};
use terrace_engine::SCRUB_JOB;

use super::devices;
use crate::daemon::{
    open_pool::OpenPool,
    support::{Parameters, encode, failed, in_progress},
};

/// How often progress is told.
const TELL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest that `compact` works.
const COMPACT_PATIENCE: Duration = Duration::from_secs(3600);

pub(crate) fn scrub(
    pool: &OpenPool,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let what = format!("scrub pool '{}'", pool.name());
    pool.sync()?;
    pool.engine()
        .start_scrub()
        .map_err(|error| failed(&what, &error))?;
    while parameters.flag("wait")? {
        let status = pool.engine().status().scrub.unwrap_or_default();
        exchange.progress(Progress {
            what: in_progress(pool.name(), SCRUB_JOB, "scrub", &status.state, ""),
            done_bytes: status.done_bytes,
            total_bytes: status.total_bytes,
        })?;
        // It may be paused by somebody, and goes on when they say so.
        if !matches!(status.state.as_str(), "running" | "paused") {
            break;
        }
        if exchange.is_stopping() {
            return Err(Failure::new(
                what,
                "the pool is being stopped",
                format!(
                    "the scrub goes on when it is started: 'terrace start {}'",
                    pool.name()
                ),
            ));
        }
        std::thread::sleep(TELL_INTERVAL);
    }
    encode(&pool.engine().status().scrub)
}

/// What `compact` could give back; an operation of its own, so that no daemon takes the question for the order.
pub(crate) fn plan_compact(pool: &OpenPool) -> Result<Value, Failure> {
    // What was deleted a moment ago counts as well.
    pool.sync()?;
    let status = pool.engine().status();
    let live: u64 = status.tiers.iter().map(|tier| tier.live_bytes).sum();
    let kept = live.saturating_add(status.metadata_bytes);
    Ok(json!({
        "used_bytes": status.used_bytes,
        "pending_free_bytes": status.pending_free_bytes,
        "garbage_bytes_max": status.used_bytes.saturating_sub(kept),
        "compacted": false,
    }))
}

pub(crate) fn compact(
    pool: &OpenPool,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let what = format!("compact pool '{}'", pool.name());
    let before = pool.engine().store().space();
    pool.engine().tick().map_err(|error| failed(&what, &error))?;
    pool.engine()
        .chunks()
        .checkpoint()
        .map_err(|error| failed(&what, &error))?;
    let deadline = Instant::now() + COMPACT_PATIENCE;
    while parameters.flag("wait")? && !exchange.is_stopping() && Instant::now() < deadline {
        let more = pool.engine().step().map_err(|error| failed(&what, &error))?;
        let pending = pool.engine().store().space().pending_free_bytes;
        if !more && pending == 0 {
            break;
        }
        let gone = before.pending_free_bytes.saturating_sub(pending);
        exchange.progress(Progress {
            what: "compact".into(),
            done_bytes: gone,
            total_bytes: before.pending_free_bytes.max(gone),
        })?;
        if !more {
            // Another thread does the work, or it waits for the next checkpoint.
            pool.engine().tick().map_err(|error| failed(&what, &error))?;
            std::thread::sleep(Duration::from_millis(20));
            if Instant::now() + COMPACT_PATIENCE > deadline + Duration::from_secs(30) {
                break;
            }
        }
    }
    let after = pool.engine().store().space();
    if parameters.flag("wait")? && after.pending_free_bytes == 0 {
        exchange.progress(Progress {
            what: "compact".into(),
            done_bytes: before.pending_free_bytes,
            total_bytes: before.pending_free_bytes,
        })?;
    }
    Ok(json!({
        "compacted": true,
        "used_bytes_before": before.used_bytes,
        "used_bytes": after.used_bytes,
        "pending_free_bytes": after.pending_free_bytes,
    }))
}

/// Everything that was written is durable afterwards.
pub(crate) fn sync(pool: &OpenPool) -> Result<Value, Failure> {
    Ok(json!({ "checkpoint": pool.sync()? }))
}

pub(crate) fn job_action(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let id = parameters.number("id")?;
    let action = parameters.text("action")?;
    let fail = |error| failed(&format!("{action} job {id}"), &error);
    let replacement = pool.engine().replacement_of(id).filter(|_| action == "cancel");
    pool.engine().job_action(id, &action).map_err(fail)?;
    let note = devices::after_leaving(pool, replacement).map_err(fail)?;
    Ok(json!({ "note": note }))
}

pub(crate) fn events(
    pool: &OpenPool,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let what = format!("read the events of pool '{}'", pool.name());
    let mut next = 0;
    loop {
        for entry in pool
            .engine()
            .events(next)
            .map_err(|error| failed(&what, &error))?
        {
            next = entry.id + 1;
            exchange.item(&entry)?;
        }
        if !parameters.flag("follow")? || exchange.is_stopping() {
            return Ok(Value::Null);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

pub(crate) fn command_log(pool: &OpenPool) -> Result<Value, Failure> {
    let entries = pool.engine().commands();
    encode(&entries.map_err(|error| failed(&format!("read the command log of '{}'", pool.name()), &error))?)
}
