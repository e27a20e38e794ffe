//! `terrace status`: a pool as it is, on one screen.
//!
//! Invariants: a look at all pools starts none; a stopped pool is shown as it was when last seen.

use serde_json::{Value, json};
use terrace_control::{Failure, RunLock};
use terrace_device::format_size;
use terrace_engine::{DatasetStatus, SCRUB_JOB, ScrubStatus, Status, TierStatus, rfc3339};

use crate::{
    client::{Client, decode},
    commands::{
        Session,
        pool::{NOT_ANSWERING, chosen_pools, describe_state, failures_of},
    },
    crash::Crashes,
    machine::{KeptEvents, KnownPool, Registry, output},
};

/// Lines of damage and damaged files that the status shows: it is to fit on a screen.
const DAMAGE_SHOWN: usize = 3;
const FILES_SHOWN: usize = 8;

/// `terrace status`.
pub fn status(session: &Session, pool: Option<&str>) -> Result<(), Failure> {
    let pools = chosen_pools(session, pool)?;
    let mut rows: Vec<Value> = Vec::new();
    for known in &pools {
        // Who names a pool wants it; a look at all of them starts none, nor one that is started by hand only.
        if pool.is_some() && Crashes::of(&session.places, &known.name).refusal().is_none() {
            rows.push(Client::open(&session.places, &known.name)?.call("status", json!({}))?);
            continue;
        }
        let answer = Client::open_running(&session.places, &known.name).and_then(|client| match client {
            Some(client) => client.one_of_several().call("status", json!({})),
            None => stopped(session, known),
        });
        rows.push(match answer {
            Ok(row) => row,
            Err(failure) => {
                let row = not_answering(session, known, &failure)?;
                session.heard::<()>(&known.name, Err(failure));
                row
            }
        });
    }
    if session.json {
        return match rows.as_slice() {
            [one] => output::json(one),
            all => output::json(&all),
        };
    }
    for (index, mut row) in rows.into_iter().enumerate() {
        if index > 0 {
            output::line("")?;
        }
        crate::commands::data::blocks::beside_mounts(&mut row["datasets"]);
        let not_restored = failures_of(&row["not_restored"]);
        let warnings = failures_of(&row["warnings"]);
        let last_run = row["last_run"]["text"].as_str().map(|text| {
            let time = row["last_run"]["time"].as_str().unwrap_or_default();
            format!("{:>12}: it ended unasked, told at {time}: {text}", "last run")
        });
        print_status(&decode(row)?)?;
        if let Some(last_run) = last_run {
            output::line(&last_run)?;
        }
        for failure in not_restored {
            line("not back", failure)?;
        }
        for warning in warnings {
            line("warning", warning)?;
        }
    }
    Ok(())
}

/// What is known of a pool whose daemon gives no answer, in the form of a status.
fn not_answering(session: &Session, known: &KnownPool, failure: &Failure) -> Result<Value, Failure> {
    let holder = RunLock::holder(&session.places.lock_file(&known.name));
    let status = Status {
        pool: known.name.clone(),
        pool_id: known.id.clone(),
        state: NOT_ANSWERING.into(),
        state_detail: format!("{}; {}", failure.why, failure.remedy),
        daemon_pid: holder.map_or(0, |holder| holder.pid),
        size_bytes: known.size_bytes,
        used_bytes: known.used_bytes,
        format_version: known.format_version,
        newest_format_version: terrace_engine::FORMAT_NEWEST.into(),
        ..Status::default()
    };
    serde_json::to_value(status).map_err(|error| Failure::new("print as JSON", error, ""))
}

/// What is known of a pool that nobody holds, in the form of a status.
pub fn stopped(session: &Session, known: &KnownPool) -> Result<Value, Failure> {
    let registry = Registry::new(&session.places);
    let blocks = registry.blocks(&known.name)?;
    let waits =
        !registry.mounts(&known.name)?.is_empty() || !blocks.attached.is_empty() || !blocks.served.is_empty();
    let start = format!("'terrace start {}'", known.name);
    let last = KeptEvents::of(&session.places, &known.name).newest(&known.id, &["stopped"]);
    // Its own way out was that of the run that it ended.
    let mut last = last.map_or_else(String::new, |event| {
        let why = event.text.split("; ").next().unwrap_or_default();
        format!("; in its last run, at {}, {why}", rfc3339(event.nanoseconds))
    });
    let crashes = Crashes::of(&session.places, &known.name);
    match (crashes.refusal(), crashes.last(&known.id)) {
        (Some(refusal), _) => last += &format!("; {}; {}", refusal.why, refusal.remedy),
        (None, Some(event)) => last += &format!("; {}", event.text),
        (None, None) => {}
    }
    let status = Status {
        pool: known.name.clone(),
        pool_id: known.id.clone(),
        state: "stopped".into(),
        state_detail: match waits {
            true => format!(
                "its daemon has ended without 'terrace stop': {start} brings back what was mounted, attached and served"
            ),
            false => format!("no daemon holds it; the figures are those of the last time; {start} opens it"),
        } + &last,
        size_bytes: known.size_bytes,
        used_bytes: known.used_bytes,
        format_version: known.format_version,
        newest_format_version: terrace_engine::FORMAT_NEWEST.into(),
        ..Status::default()
    };
    serde_json::to_value(status).map_err(|error| Failure::new("print as JSON", error, ""))
}

/// How the last scrub ended, or how far the one that is under way has come.
fn describe_scrub(scrub: &ScrubStatus, pool: &str) -> String {
    let size = format_size;
    let far = format!("{} of {} read", size(scrub.done_bytes), size(scrub.total_bytes));
    let state = match scrub.state.as_str() {
        "running" => format!("running since {}, {far}", scrub.started),
        "paused" => format!("paused, begun {}, {far}", scrub.started),
        "done" if !scrub.ended.is_empty() => {
            format!("done {}, {} read", scrub.ended, size(scrub.done_bytes))
        }
        "done" => format!("done, begun {}, {} read", scrub.started, size(scrub.done_bytes)),
        state => format!("{state} before its end, begun {}, {far}", scrub.started),
    };
    let found = match scrub.errors {
        0 => "no errors".to_owned(),
        errors => format!("{}, {} repaired", output::count(errors, "error"), scrub.repaired),
    };
    let found = match (scrub.state.as_str(), scrub.errors_since) {
        ("done", since) if since > 0 => format!("{found}; {} met since", output::count(since, "error")),
        _ => found,
    };
    match scrub.state.as_str() {
        "paused" => {
            format!("{state}: {found}; 'terrace jobs resume {SCRUB_JOB} --pool {pool}' lets it go on")
        }
        _ => format!("{state}: {found}"),
    }
}

/// A pool's status for people.
pub fn print_status(status: &Status) -> Result<(), Failure> {
    let size = format_size;
    line("pool", status.pool.clone())?;
    line("state", describe_state(&status.state, status.daemon_pid.into()))?;
    if !status.state_detail.is_empty() {
        line("", status.state_detail.clone())?;
    }
    if (1..status.newest_format_version).contains(&status.format_version) {
        line(
            "upgrade",
            format!(
                "format version {} of {}: 'terrace pool upgrade {} -n' says what the newest brings",
                status.format_version, status.newest_format_version, status.pool
            ),
        )?;
    }
    if status.daemon_pid == 0 || status.state == NOT_ANSWERING {
        return line(
            "space",
            format!("{} used of {}", size(status.used_bytes), size(status.size_bytes)),
        );
    }
    line(
        "daemon",
        format!("process {}, checkpoint {}", status.daemon_pid, status.checkpoint),
    )?;
    print_space(status)?;
    if let Some(scrub) = &status.scrub {
        print_scrub(scrub, &status.pool)?;
    }
    if !status.migration {
        let on = format!("'terrace pool set migration=on {}'", status.pool);
        line(
            "migration",
            format!("off: nothing moves between tiers until {on}"),
        )?;
    }
    for tier in status
        .tiers
        .iter()
        .filter(|tier| !tier.lost_device_detail.is_empty())
    {
        line("one copy", tier.lost_device_detail.clone())?;
    }
    output::line("")?;
    print_tiers(&status.tiers)?;
    output::line("")?;
    print_datasets(&status.datasets)?;
    let running: Vec<_> = status
        .jobs
        .iter()
        .filter(|job| matches!(job.state.as_str(), "running" | "waiting" | "paused"))
        .collect();
    for job in running {
        line(
            "job",
            format!(
                "{} {} {}: {} of {}, {}/s; {}",
                job.id,
                job.kind,
                job.state,
                size(job.done_bytes),
                size(job.total_bytes),
                size(job.rate as u64),
                job.reason
            ),
        )?;
    }
    Ok(())
}

/// A line of the status: `name` to the right, and what is said of it.
fn line(name: &str, value: impl std::fmt::Display) -> Result<(), Failure> {
    output::line(&format!("{name:>12}: {value}"))
}

/// What is used on devices and in memory.
fn print_space(status: &Status) -> Result<(), Failure> {
    let size = format_size;
    line(
        "space",
        format!(
            "{} used of {}, {} available, {} reserve",
            size(status.used_bytes),
            size(status.size_bytes),
            size(status.available_bytes),
            size(status.reserve_bytes)
        ),
    )?;
    if !status.room_detail.is_empty() {
        line("room", status.room_detail.clone())?;
    }
    line(
        "data",
        format!(
            "{} written, {} unique (dedup {:.2}x), {}{} stored (compression {:.2}x), {} metadata",
            size(status.logical_bytes),
            size(status.unique_bytes.saturating_sub(status.overwritten_bytes)),
            status.dedup_ratio,
            match status.overwritten_bytes {
                0 => String::new(),
                bytes => format!("{} overwritten and not free yet, ", size(bytes)),
            },
            size(status.stored_bytes),
            status.compression_ratio,
            size(status.metadata_bytes)
        ),
    )?;
    if status.pending_free_bytes > 0 {
        line(
            "pending",
            format!("{} being freed", size(status.pending_free_bytes)),
        )?;
    }
    line(
        "memory",
        format!(
            "{} of {}: {} dirty, {} for readers, {} records, {} tables, {} on its way, {} objects, {} else; the process holds {}",
            size(status.memory.used_bytes),
            size(status.memory.budget_bytes),
            size(status.memory.dirty_bytes),
            size(status.memory.cache_bytes),
            size(status.memory.record_bytes),
            size(status.memory.table_bytes),
            size(status.memory.append_bytes),
            size(status.memory.object_bytes),
            size(status.memory.heat_bytes + status.memory.front_end_bytes + status.memory.ledger_bytes),
            size(status.memory.resident_bytes)
        ),
    )
}

/// How the last scrub went. One screen: 'scrub --wait' and '--json' say it all.
fn print_scrub(scrub: &ScrubStatus, pool: &str) -> Result<(), Failure> {
    line("scrub", describe_scrub(scrub, pool))?;
    let short = scrub.describe_short(pool);
    if !short.is_empty() {
        line("", short)?;
    }
    for device in &scrub.devices {
        line(
            "",
            format!(
                "on '{}': {}, {}",
                device.path,
                output::count(device.checksum_errors, "checksum error"),
                output::count(device.read_errors, "failed read")
            ),
        )?;
    }
    let rest = |shown: usize, all: usize, where_all: &str| match all.saturating_sub(shown) {
        0 => Ok(()),
        more => line("", format!("and {more} more: {where_all}")),
    };
    for damage in scrub.damage.iter().take(DAMAGE_SHOWN) {
        line("", damage.clone())?;
    }
    let all = scrub.damage.len() + usize::try_from(scrub.damage_left_out()).unwrap_or(usize::MAX);
    rest(DAMAGE_SHOWN, all, "'terrace status --json' has the first of them")?;
    for file in scrub.files.iter().take(FILES_SHOWN) {
        line("damaged", file.clone())?;
    }
    let all = format!("'terrace status {} --lost'", pool);
    rest(FILES_SHOWN, scrub.files.len(), &all)?;
    Ok(())
}

fn print_tiers(tiers: &[TierStatus]) -> Result<(), Failure> {
    let size = format_size;
    let mut rows = Vec::new();
    let all: Vec<_> = tiers.iter().flat_map(|tier| &tier.devices).collect();
    for tier in tiers {
        rows.push(vec![
            tier.name.clone(),
            String::new(),
            size(tier.size_bytes),
            size(tier.used_bytes),
            String::new(),
            String::new(),
            String::new(),
        ]);
        for device in &tier.devices {
            rows.push(vec![
                // Of a device that is gone and the one in its place the path tells nothing.
                match all.iter().filter(|other| other.path == device.path).count() {
                    0 | 1 => format!("  {}", device.path),
                    _ => format!("  {} (device:{})", device.path, device.number),
                },
                device.state.clone(),
                size(device.size_bytes),
                size(device.used_bytes),
                device.read_errors.to_string(),
                device.write_errors.to_string(),
                device.checksum_errors.to_string(),
            ]);
        }
    }
    output::table(
        &[
            "TIER / DEVICE",
            "STATE",
            "SIZE",
            "USED",
            "READ",
            "WRITE",
            "CHECKSUM",
        ],
        &rows,
        &[2, 3, 4, 5, 6],
    )
}

fn print_datasets(datasets: &[DatasetStatus]) -> Result<(), Failure> {
    let size = format_size;
    let rows: Vec<Vec<String>> = datasets
        .iter()
        .map(|dataset| {
            vec![
                dataset.name.clone(),
                dataset.kind.clone(),
                size(dataset.used_bytes),
                dataset.objects.to_string(),
                dataset.durability.clone(),
                if dataset.mounts.is_empty() {
                    "-".into()
                } else {
                    dataset.mounts.join(",")
                },
            ]
        })
        .collect();
    output::table(
        &["DATASET", "TYPE", "USED", "OBJECTS", "DURABILITY", "MOUNTED AT"],
        &rows,
        &[2, 3],
    )?;
    for dataset in datasets.iter().filter(|dataset| dataset.durability != "barrier") {
        line(&dataset.name, dataset.durability_detail.clone())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_is_told_as_it_is_with_what_to_type() {
        let told = |state: &str, ended: &str, errors| {
            let scrub = ScrubStatus {
                state: state.into(),
                started: "BEGUN".into(),
                ended: ended.into(),
                done_bytes: 1 << 30,
                total_bytes: 2 << 30,
                errors,
                repaired: errors,
                ..ScrubStatus::default()
            };
            describe_scrub(&scrub, "tank")
        };
        assert_eq!(
            told("running", "", 0),
            "running since BEGUN, 1G of 2G read: no errors"
        );
        assert_eq!(
            told("paused", "", 0),
            "paused, begun BEGUN, 1G of 2G read: no errors; 'terrace jobs resume 1 --pool tank' lets it go on"
        );
        assert_eq!(
            told("done", "ENDED", 2),
            "done ENDED, 1G read: 2 errors, 2 repaired"
        );
        assert_eq!(told("done", "", 0), "done, begun BEGUN, 1G read: no errors");
        assert_eq!(
            told("failed", "", 0),
            "failed before its end, begun BEGUN, 1G of 2G read: no errors"
        );
    }
}
