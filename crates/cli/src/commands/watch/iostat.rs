//! `terrace iostat`: what the devices of running pools do, once or again and again.
//!
//! Invariant: a rate is the difference of two looks divided by the time between them; the first look shows totals.

use std::time::Duration;

use serde_json::json;
use terrace_control::Failure;
use terrace_device::format_size;
use terrace_engine::IoCounters;

use crate::{
    commands::{
        Session,
        pool::{answered, running_pools_of},
    },
    machine::output,
};

/// `terrace iostat [POOL] [INTERVAL]`.
pub fn iostat(session: &Session, words: &[String], count: Option<u64>) -> Result<(), Failure> {
    let (pool, interval) = match words {
        [] => (None, None),
        [one] => match one.parse::<f64>() {
            Ok(interval) => (None, Some(interval)),
            Err(_) => (Some(one.as_str()), None),
        },
        [pool, interval, ..] => {
            let interval = interval.parse::<f64>().map_err(|_| {
                Failure::new(
                    "show I/O",
                    format!("'{interval}' is no number of seconds"),
                    "write 'terrace iostat POOL 2'",
                )
                .as_usage()
            })?;
            (Some(pool.as_str()), Some(interval))
        }
    };
    if interval.is_some_and(|interval| !(0.01..=86_400.0).contains(&interval)) {
        return Err(Failure::new(
            "show I/O",
            "the interval makes no sense",
            "give 0.01 to 86400 seconds",
        )
        .as_usage());
    }
    let mut before: Vec<(String, IoCounters)> = Vec::new();
    let reports = count.unwrap_or(if interval.is_some() { u64::MAX } else { 1 });
    for report in 0..reports {
        if report > 0 {
            std::thread::sleep(Duration::from_secs_f64(interval.unwrap_or(1.0)));
        }
        let mut now: Vec<(String, IoCounters)> = Vec::new();
        let mut pools = running_pools_of(session, pool)?;
        if report == 0 {
            pools.say_stopped();
        }
        for (known, client) in &mut pools.running {
            let counters = client.ask::<Vec<IoCounters>>("io_counters", json!({}));
            let Some(counters) = answered(session, pool, &known.name, counters)? else {
                continue;
            };
            now.extend(
                counters
                    .into_iter()
                    .map(|counters| (known.name.clone(), counters)),
            );
        }
        let seconds = if report == 0 { None } else { interval };
        print_iostat(session, &now, &before, seconds)?;
        before = now;
    }
    Ok(())
}

/// How long each of some requests took, if there were any.
pub fn latency(seconds: f64, requests: u64) -> Option<f64> {
    (requests > 0).then(|| seconds.max(0.0) / requests as f64)
}

fn print_iostat(
    session: &Session,
    now: &[(String, IoCounters)],
    before: &[(String, IoCounters)],
    seconds: Option<f64>,
) -> Result<(), Failure> {
    let mut json_rows = Vec::new();
    let mut rows = Vec::new();
    for (pool, counters) in now {
        let old = before
            .iter()
            .find(|(name, old)| name == pool && old.path == counters.path);
        let old = old
            .filter(|_| seconds.is_some())
            .map(|(_, old)| old.clone())
            .unwrap_or_default();
        let divide = seconds.unwrap_or(1.0);
        let rate = |now: u64, old: u64| now.saturating_sub(old) as f64 / divide;
        let (reads, writes) = (rate(counters.reads, old.reads), rate(counters.writes, old.writes));
        let read_bytes = rate(counters.read_bytes, old.read_bytes);
        let written_bytes = rate(counters.written_bytes, old.written_bytes);
        json_rows.push(json!({
            "pool": pool, "tier": counters.tier, "path": counters.path, "size_bytes": counters.size_bytes,
            "used_bytes": counters.used_bytes, "reads": reads, "writes": writes, "read_bytes": read_bytes,
            "written_bytes": written_bytes, "interval_seconds": seconds,
            "read_latency_seconds": latency(counters.read_seconds - old.read_seconds, counters.reads - old.reads.min(counters.reads)),
            "write_latency_seconds": latency(counters.write_seconds - old.write_seconds, counters.writes - old.writes.min(counters.writes)),
            "read_errors": counters.read_errors, "write_errors": counters.write_errors,
            "checksum_errors": counters.checksum_errors,
        }));
        rows.push(vec![
            pool.clone(),
            counters.tier.clone(),
            counters.path.clone(),
            format_size(counters.used_bytes),
            format!("{reads:.0}"),
            format!("{writes:.0}"),
            format_size(read_bytes as u64),
            format_size(written_bytes as u64),
        ]);
    }
    if session.json {
        return output::json(&json_rows);
    }
    let per = if seconds.is_some() { "/S" } else { "" };
    let heading = [
        "POOL".to_owned(),
        "TIER".into(),
        "DEVICE".into(),
        "USED".into(),
        format!("READS{per}"),
        format!("WRITES{per}"),
        format!("READ{per}"),
        format!("WRITTEN{per}"),
    ];
    output::table(&heading.each_ref().map(String::as_str), &rows, &[3, 4, 5, 6, 7])
}
