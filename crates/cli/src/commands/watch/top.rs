//! `terrace top`: what goes on in the pools that run, each second anew.
//!
//! Invariants: all figures come from what `status` and `iostat` ask the daemon for, and `where` knows of heat; a rate is the
//! difference of two looks divided by the time between them; no pool is started but one that was named.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_device::format_size;
use terrace_engine::{IoCounters, JobStatus, Status};

use super::{iostat::latency, status::stopped, top_screen::Screen};
use crate::{
    client::{Client, decode},
    commands::{
        Session,
        pool::{chosen_pools, describe_state},
    },
    machine::{KnownPool, output},
};

/// Warm datasets, and jobs that are over, that are shown of a pool.
const DATASETS_SHOWN: usize = 8;
/// Range of the interval.
const INTERVAL: std::ops::RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(86_400);

/// How warm a dataset is.
#[derive(Debug, Clone, Default, Deserialize)]
struct DatasetHeat {
    name: String,
    reads: f64,
    writes: f64,
}

/// A pool at one moment.
#[derive(Debug, Clone, Default)]
struct Look {
    status: Status,
    counters: Vec<IoCounters>,
    datasets: Vec<DatasetHeat>,
}

/// All pools at one moment.
struct Looks {
    at: Instant,
    pools: Vec<Look>,
}

/// `terrace top`.
pub fn run(session: &Session, pool: Option<&str>, interval: &str, count: Option<u64>) -> Result<(), Failure> {
    let wrong = |why: String| {
        Failure::new(
            "show what goes on",
            why,
            "give a time from 10ms to 1d, such as 'terrace top -i 2s'",
        )
        .as_usage()
    };
    let interval = terrace_device::parse_duration(interval).map_err(&wrong)?;
    if !INTERVAL.contains(&interval) {
        return Err(wrong("the interval makes no sense".into()));
    }
    let pools = chosen_pools(session, pool)?;
    let named = pool.is_some();
    if count.is_none() && !session.json && Screen::is_possible() {
        return watch(session, &pools, named, interval);
    }
    let reports = count.unwrap_or(1);
    let mut before = look(session, &pools, named)?;
    for report in 0..reports {
        std::thread::sleep(interval);
        let now = look(session, &pools, named)?;
        let found = rates(&before, &now);
        match (session.json, reports) {
            (true, 1) => output::json(&found)?,
            (true, _) => output::line(&found.to_string())?,
            (false, _) => {
                if report > 0 {
                    output::line("")?;
                }
                lines(&found).iter().try_for_each(|line| output::line(line))?;
            }
        }
        before = now;
    }
    Ok(())
}

/// Draws until the user has seen enough. What cannot be asked for now is said, and asked for again.
fn watch(session: &Session, pools: &[KnownPool], named: bool, interval: Duration) -> Result<(), Failure> {
    let mut before = look(session, pools, named)?;
    let mut screen =
        Screen::open().map_err(|error| Failure::new("draw on the terminal", error, "use -n 1"))?;
    // The first figures come soon.
    let mut pause = interval.min(Duration::from_millis(300));
    loop {
        if screen.wait(pause) {
            return Ok(());
        }
        pause = interval;
        let text = match look(session, pools, named) {
            Ok(now) => {
                let text = lines(&rates(&before, &now));
                before = now;
                text
            }
            Err(failure) => vec![format!("terrace: {failure}")],
        };
        screen
            .draw(&text)
            .map_err(|error| Failure::new("draw on the terminal", error, "use -n 1"))?;
    }
}

fn look(session: &Session, pools: &[KnownPool], named: bool) -> Result<Looks, Failure> {
    let at = Instant::now();
    let mut looks = Vec::new();
    for known in pools {
        let open = || match named {
            true => Client::open(&session.places, &known.name).map(Some),
            false => Client::open_running(&session.places, &known.name),
        };
        let opened = match named {
            true => open()?,
            false => match session.heard(&known.name, open()) {
                Some(opened) => opened,
                None => continue,
            },
        };
        looks.push(match opened {
            Some(mut client) => {
                let status = client.ask("status", json!({}))?;
                let again = || {
                    open()?.ok_or_else(|| {
                        let start = format!("'terrace start {}' opens it again", known.name);
                        Failure::new(format!("look at pool '{}'", known.name), "it was stopped", start)
                    })
                };
                Look {
                    status,
                    counters: again()?.ask("io_counters", json!({}))?,
                    datasets: again()?.ask("dataset_heat", json!({}))?,
                }
            }
            None => Look {
                status: decode(stopped(session, known)?)?,
                ..Look::default()
            },
        });
    }
    Ok(Looks { at, pools: looks })
}

/// What `--json` prints: the differences of two looks, by the second.
fn rates(before: &Looks, now: &Looks) -> Value {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(0.001);
    let pools: Vec<Value> = now
        .pools
        .iter()
        .map(|pool| {
            let old = before.pools.iter().find(|old| {
                // A daemon that was started since counts from nothing.
                old.status.pool == pool.status.pool && old.status.daemon_pid == pool.status.daemon_pid
            });
            pool_rates(&old.cloned().unwrap_or_default(), pool, seconds)
        })
        .collect();
    json!({ "interval_seconds": seconds, "pools": pools })
}

fn pool_rates(old: &Look, now: &Look, seconds: f64) -> Value {
    let status = &now.status;
    let tiers: Vec<Value> = status
        .tiers
        .iter()
        .map(|tier| {
            let devices: Vec<Value> = tier
                .devices
                .iter()
                .map(|device| {
                    let of = |look: &Look| {
                        let mut counters = look.counters.iter();
                        counters
                            .find(|found| found.path == device.path)
                            .cloned()
                            .unwrap_or_default()
                    };
                    let mut row = device_rates(&of(old), &of(now), seconds);
                    row["path"] = json!(device.path);
                    row["state"] = json!(device.state);
                    row["size_bytes"] = json!(device.size_bytes);
                    row["used_bytes"] = json!(device.used_bytes);
                    row
                })
                .collect();
            let sum = |key: &str| {
                devices
                    .iter()
                    .filter_map(|device| device[key].as_f64())
                    .sum::<f64>()
            };
            json!({
                "name": tier.name, "size_bytes": tier.size_bytes, "used_bytes": tier.used_bytes,
                "live_bytes": tier.live_bytes, "fill": share(tier.used_bytes, tier.size_bytes),
                "reads_per_second": sum("reads_per_second"), "writes_per_second": sum("writes_per_second"),
                "read_bytes_per_second": sum("read_bytes_per_second"),
                "written_bytes_per_second": sum("written_bytes_per_second"), "devices": devices,
            })
        })
        .collect();
    let hits = status
        .memory
        .cache_hits
        .saturating_sub(old.status.memory.cache_hits);
    let misses = status
        .memory
        .cache_misses
        .saturating_sub(old.status.memory.cache_misses);
    let datasets: Vec<Value> = now
        .datasets
        .iter()
        .map(|row| json!({ "name": row.name, "reads": row.reads, "writes": row.writes }))
        .collect();
    json!({
        "pool": status.pool, "state": status.state, "state_detail": status.state_detail, "daemon_pid": status.daemon_pid,
        "size_bytes": status.size_bytes, "used_bytes": status.used_bytes, "available_bytes": status.available_bytes,
        "memory": status.memory, "cache_hits": hits, "cache_misses": misses,
        "cache_hit_rate": share_or_none(hits, hits.saturating_add(misses)),
        "tiers": tiers, "datasets": datasets, "jobs": status.jobs,
    })
}

fn device_rates(old: &IoCounters, now: &IoCounters, seconds: f64) -> Value {
    let rate = |now: u64, old: u64| now.saturating_sub(old) as f64 / seconds;
    json!({
        "reads_per_second": rate(now.reads, old.reads), "writes_per_second": rate(now.writes, old.writes),
        "read_bytes_per_second": rate(now.read_bytes, old.read_bytes),
        "written_bytes_per_second": rate(now.written_bytes, old.written_bytes),
        "read_latency_seconds": latency(now.read_seconds - old.read_seconds, now.reads.saturating_sub(old.reads)),
        "write_latency_seconds": latency(now.write_seconds - old.write_seconds, now.writes.saturating_sub(old.writes)),
        "read_errors": now.read_errors, "write_errors": now.write_errors, "checksum_errors": now.checksum_errors,
    })
}

fn share(part: u64, whole: u64) -> f64 {
    share_or_none(part, whole).unwrap_or(0.0)
}

fn share_or_none(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The same for people.
fn lines(found: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for pool in found["pools"].as_array().into_iter().flatten() {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        pool_lines(pool, &mut lines);
    }
    lines
}

fn pool_lines(pool: &Value, lines: &mut Vec<String>) {
    lines.push(format!(
        "{}: {}, {} of {} used, cache hits {}, memory {} of {}",
        text(&pool["pool"]),
        describe_state(&text(&pool["state"]), pool["daemon_pid"].as_u64().unwrap_or(0)),
        size(&pool["used_bytes"]),
        size(&pool["size_bytes"]),
        percent(&pool["cache_hit_rate"]),
        size(&pool["memory"]["used_bytes"]),
        size(&pool["memory"]["budget_bytes"]),
    ));
    let detail = text(&pool["state_detail"]);
    if !detail.is_empty() {
        lines.push(format!("  {detail}"));
    }
    if pool["daemon_pid"] == json!(0) {
        return;
    }
    let heading = [
        "TIER / DEVICE",
        "STATE",
        "USED",
        "FILL",
        "READS/S",
        "WRITES/S",
        "READ/S",
        "WRITTEN/S",
        "READ IN",
        "WRITE IN",
        "ERRORS",
    ];
    let rows = device_rows(pool);
    lines.extend(output::columns(&heading, &rows, &[2, 3, 4, 5, 6, 7, 8, 9, 10]));
    let warm = pool["datasets"].as_array().into_iter().flatten();
    let warm: Vec<Vec<String>> = warm
        .take(DATASETS_SHOWN)
        .map(|row| {
            let heat = |key: &str| format!("{:.1}", row[key].as_f64().unwrap_or(0.0));
            vec![text(&row["name"]), heat("reads"), heat("writes")]
        })
        .collect();
    if !warm.is_empty() {
        lines.extend(output::columns(
            &["WARMEST DATASETS", "READS", "WRITES"],
            &warm,
            &[1, 2],
        ));
    }
    let jobs = job_rows(pool);
    if !jobs.is_empty() {
        lines.extend(output::columns(
            &["JOB", "KIND", "STATE", "DONE", "RATE", "LEFT", "REASON"],
            &jobs,
            &[0, 3, 4, 5],
        ));
    }
}

/// A row for each tier, and below it one for each of its devices.
fn device_rows(pool: &Value) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for tier in pool["tiers"].as_array().into_iter().flatten() {
        let shared = |row: &Value| {
            ["reads_per_second", "writes_per_second"]
                .map(|key| number(&row[key]))
                .into_iter()
                .chain(["read_bytes_per_second", "written_bytes_per_second"].map(|key| size(&row[key])))
                .collect::<Vec<String>>()
        };
        let mut row = vec![
            text(&tier["name"]),
            String::new(),
            size(&tier["used_bytes"]),
            percent(&tier["fill"]),
        ];
        row.extend(shared(tier));
        row.extend([String::new(), String::new(), String::new()]);
        rows.push(row);
        for device in tier["devices"].as_array().into_iter().flatten() {
            let errors: u64 = ["read_errors", "write_errors", "checksum_errors"]
                .iter()
                .filter_map(|key| device[*key].as_u64())
                .sum();
            let fill = share(
                device["used_bytes"].as_u64().unwrap_or(0),
                device["size_bytes"].as_u64().unwrap_or(0),
            );
            let mut row = vec![
                format!("  {}", text(&device["path"])),
                text(&device["state"]),
                size(&device["used_bytes"]),
                percent(&json!(fill)),
            ];
            row.extend(shared(device));
            row.extend([
                time(&device["read_latency_seconds"]),
                time(&device["write_latency_seconds"]),
                errors.to_string(),
            ]);
            rows.push(row);
        }
    }
    rows
}

fn job_rows(pool: &Value) -> Vec<Vec<String>> {
    pool["jobs"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|job| serde_json::from_value::<JobStatus>(job.clone()).ok())
        .filter(|job| matches!(job.state.as_str(), "running" | "waiting" | "paused"))
        .map(|job| {
            vec![
                job.id.to_string(),
                job.kind.clone(),
                job.state.clone(),
                percent(&json!(share(
                    job.done_bytes.min(job.total_bytes),
                    job.total_bytes
                ))),
                format!("{}/s", format_size(job.rate as u64)),
                job.eta_seconds
                    .map_or_else(|| "-".into(), |left| format!("{left:.0}s")),
                job.reason,
            ]
        })
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn size(value: &Value) -> String {
    format_size(value.as_f64().unwrap_or(0.0) as u64)
}

fn number(value: &Value) -> String {
    format!("{:.0}", value.as_f64().unwrap_or(0.0))
}

fn time(value: &Value) -> String {
    match value.as_f64() {
        Some(seconds) => format!("{:.2}ms", seconds * 1000.0),
        None => "-".into(),
    }
}

fn percent(value: &Value) -> String {
    match value.as_f64() {
        Some(share) => format!("{:.0}%", share * 100.0),
        None => "-".into(),
    }
}
