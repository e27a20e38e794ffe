//! `terrace scrub`, `compact`, `jobs`.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_device::format_size;
use terrace_engine::{JobStatus, SCRUB_JOB, ScrubStatus};

use crate::{
    arguments::{JobAction, JobChoice, JobsArguments, Waiting},
    client::{Client, decode},
    commands::{
        Session, logged,
        pool::{RunningPools, answered, describe_names, running_pools, running_pools_of},
    },
    machine::output,
};

impl Waiting {
    /// Whether to wait: as asked for, else if somebody is watching.
    pub fn waits(self) -> bool {
        self.wait || (!self.no_wait && io::stdout().is_terminal())
    }
}

/// `terrace scrub`: with --wait the exit status is 1 if damage is left.
pub fn scrub(session: &Session, pool: &str, waiting: Waiting) -> Result<ExitCode, Failure> {
    let mut client = Client::open(&session.places, pool)?;
    let status = client.call("scrub", logged(json!({ "wait": waiting.waits() })))?;
    if session.json {
        output::json(&status)?;
    }
    let status: ScrubStatus = decode(status)?;
    if !waiting.waits() {
        if !session.json {
            output::line(&match &*status.state {
                "paused" => format!(
                    "the scrub of '{pool}' is paused; 'terrace jobs resume {SCRUB_JOB} --pool {pool}' lets it go on"
                ),
                _ => format!("the scrub of '{pool}' runs; 'terrace jobs {pool}' shows how far it is"),
            })?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let left = status.lost();
    if !session.json {
        output::line(&format!(
            "scrub {}: {} read, {}, {} repaired",
            status.state,
            format_size(status.done_bytes),
            output::count(status.errors, "error"),
            status.repaired
        ))?;
        let short = status.describe_short(pool);
        if !short.is_empty() {
            output::line(&format!("  {short}"))?;
        }
        status
            .damage
            .iter()
            .chain(&status.mended)
            .try_for_each(|line| output::line(&format!("  {line}")))?;
        match status.damage_left_out() {
            0 => {}
            more => output::line(&format!("  and {more} more"))?,
        }
        status
            .files
            .iter()
            .try_for_each(|file| output::line(&format!("  damaged: {file}")))?;
    }
    if status.state != "done" {
        return Err(Failure::new(
            format!("scrub pool '{pool}'"),
            format!("it was {}", status.state),
            "start it again",
        ));
    }
    if left > 0 {
        return Err(Failure::new(
            format!("scrub pool '{pool}'"),
            format!(
                "{} without a good copy to be repaired from",
                output::count(left, "error")
            ),
            "restore those files, and replace the device that 'terrace status' shows errors for",
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// `terrace compact`.
pub fn compact(session: &Session, pool: &str, dry_run: bool, waiting: Waiting) -> Result<(), Failure> {
    let mut client = Client::open(&session.places, pool)?;
    if dry_run {
        let plan = client.call("plan_compact", json!({}))?;
        if session.json {
            return output::json(&plan);
        }
        let bytes = |key: &str| format_size(plan[key].as_u64().unwrap_or(0));
        return output::line(&format!(
            "would give back at most {} of {} used, of which {} are being freed anyway; nothing was changed",
            bytes("garbage_bytes_max"),
            bytes("used_bytes"),
            bytes("pending_free_bytes")
        ));
    }
    let done = client.call("compact", logged(json!({ "wait": waiting.waits() })))?;
    if session.json {
        return output::json(&done);
    }
    let bytes = |key: &str| format_size(done[key].as_u64().unwrap_or(0));
    output::line(&format!(
        "used {} before, {} now, {} still being freed",
        bytes("used_bytes_before"),
        bytes("used_bytes"),
        bytes("pending_free_bytes")
    ))
}

/// `terrace jobs`.
pub fn jobs(session: &Session, arguments: JobsArguments) -> Result<(), Failure> {
    match arguments.action {
        None => list(session, arguments.pool.as_deref()),
        Some(JobAction::Pause(choice)) => act(session, &choice, "pause"),
        Some(JobAction::Resume(choice)) => act(session, &choice, "resume"),
        Some(JobAction::Cancel(choice)) => act(session, &choice, "cancel"),
    }
}

fn list(session: &Session, pool: Option<&str>) -> Result<(), Failure> {
    let mut rows: Vec<Value> = Vec::new();
    let mut table = Vec::new();
    for (known, mut client) in running_pools(session, pool)? {
        let jobs = client.ask::<Vec<JobStatus>>("jobs", json!({}));
        let Some(jobs) = answered(session, pool, &known.name, jobs)? else {
            continue;
        };
        for job in jobs {
            let percent = match job.total_bytes {
                // Nothing to do, or not known yet how much.
                0 if job.state == "done" => 100.0,
                0 => 0.0,
                total => (job.done_bytes as f64 * 100.0 / total as f64).min(100.0),
            };
            table.push(vec![
                known.name.clone(),
                job.id.to_string(),
                job.kind.clone(),
                job.state.clone(),
                format!("{percent:.0}%"),
                format!("{}/s", format_size(job.rate as u64)),
                job.eta_seconds
                    .map_or_else(|| "-".into(), |seconds| format!("{seconds:.0}s")),
                job.reason.clone(),
            ]);
            let mut row = serde_json::to_value(&job).unwrap_or_default();
            row["pool"] = json!(known.name);
            rows.push(row);
        }
    }
    if session.json {
        return output::json(&rows);
    }
    output::table(
        &["POOL", "ID", "KIND", "STATE", "DONE", "RATE", "LEFT", "REASON"],
        &table,
        &[1, 4, 5, 6],
    )
}

fn act(session: &Session, choice: &JobChoice, action: &str) -> Result<(), Failure> {
    let pool = match &choice.pool {
        Some(pool) => pool.clone(),
        None => pool_of_job(session, choice.id, action)?,
    };
    let mut client = Client::open(&session.places, &pool)?;
    let done = client.call("job_action", logged(json!({ "id": choice.id, "action": action })))?;
    match done["note"].as_str() {
        Some(_) if session.json => output::json(&done),
        Some(note) => output::line(note),
        None => Ok(()),
    }
}

/// The one running pool that has a job of this number; of several, the one where it is not over. Pools that are stopped have
/// nothing under way and are not started, but a job may wait there for the next start: they are named.
fn pool_of_job(session: &Session, id: u64, action: &str) -> Result<String, Failure> {
    let what = format!("{action} job {id}");
    let RunningPools { running, stopped } = running_pools_of(session, None)?;
    let (mut having, mut going_on) = (Vec::new(), Vec::new());
    for (known, mut client) in running {
        let jobs: Vec<JobStatus> = client.ask("jobs", json!({}))?;
        if let Some(job) = jobs.iter().find(|job| job.id == id) {
            if matches!(job.state.as_str(), "running" | "waiting" | "paused") {
                going_on.push(known.name.clone());
            }
            having.push(known.name);
        }
    }
    match (going_on.as_slice(), having.as_slice()) {
        ([one], _) | ([], [one]) => Ok(one.clone()),
        ([], []) if stopped.is_empty() => Err(Failure::new(
            what,
            format!("no pool has a job {id}"),
            "'terrace jobs' lists them",
        )),
        ([], []) => Err(Failure::new(
            what,
            format!(
                "no pool that is running has a job {id}, and {} stopped",
                describe_names(&stopped)
            ),
            format!(
                "'terrace jobs' lists those that run; 'terrace jobs {action} {id} --pool POOL' starts a pool for it"
            ),
        )),
        (several, all) => {
            let names = if several.is_empty() { all } else { several };
            let why = format!("pools {} have a job of that number", names.join(", "));
            Err(Failure::new(what, why, "add --pool POOL").as_usage())
        }
    }
}

/// `terrace pin`, `unpin`, `promote`, `demote`.
pub fn place(
    session: &Session,
    action: &str,
    path: &str,
    tier: Option<&str>,
    dry_run: bool,
    wait: bool,
) -> Result<(), Failure> {
    let name = crate::commands::data::dataset_path(session, path)?;
    let arguments = json!({ "action": action, "path": name, "tier": tier, "dry_run": dry_run, "wait": wait });
    let done = match dry_run {
        true => session.client_for(&name)?.call("placement", arguments)?,
        false => session.change(&name, "placement", arguments)?,
    };
    if session.json {
        return output::json(&done);
    }
    if dry_run {
        let bytes = |key: &str| format_size(done[key].as_u64().unwrap_or(0));
        return output::line(&format!(
            "{} would move to tier '{}', where {} are free; nothing was changed",
            bytes("would_move_bytes"),
            done["tier"].as_str().unwrap_or_default(),
            bytes("tier_free_bytes")
        ));
    }
    if let Some(warning) = done["warning"].as_str() {
        output::line(&format!("{path}: {warning}"))?;
    }
    let jobs = done["jobs"].as_array().into_iter().flatten();
    let jobs: Vec<String> = jobs.map(Value::to_string).collect();
    match &jobs[..] {
        _ if wait => Ok(()),
        [] => Ok(()),
        [id] => output::line(&format!("job {id} does it; 'terrace jobs' shows how far it is")),
        [first @ .., last] => output::line(&format!(
            "jobs {} and {last} do it; 'terrace jobs' shows how far they are",
            first.join(", ")
        )),
    }
}
