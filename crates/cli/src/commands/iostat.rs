//! `terrace iostat`, and the rates of devices between two looks at their counters.
//!
//! Invariants: a rate is what was counted between two looks, by the time between them; a device that was not there at the
//! first look, and a counter that began anew, count from nothing.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_device::format_size;
use terrace_engine::IoCounters;

use super::{Session, show::chosen_pools};
use crate::{client::Client, output};

/// What a device did, for each second; or in all, since the pool was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Reads.
    pub reads: f64,
    /// Writes.
    pub writes: f64,
    /// Bytes read.
    pub read_bytes: f64,
    /// Bytes written.
    pub written_bytes: f64,
}

impl Rates {
    /// Between two looks so many seconds apart; without them, in all.
    pub fn between(before: Option<&IoCounters>, now: &IoCounters, seconds: Option<f64>) -> Self {
        let before = before.filter(|_| seconds.is_some());
        let divide = seconds.unwrap_or(1.0).max(f64::EPSILON);
        let rate = |of: fn(&IoCounters) -> u64| {
            let (old, now) = (before.map_or(0, of), of(now));
            // Fewer than before: the pool was opened anew meanwhile.
            now.checked_sub(old).unwrap_or(now) as f64 / divide
        };
        Self {
            reads: rate(|counters| counters.reads),
            writes: rate(|counters| counters.writes),
            read_bytes: rate(|counters| counters.read_bytes),
            written_bytes: rate(|counters| counters.written_bytes),
        }
    }

    /// Of two devices together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
        }
    }

    /// Enters them into a JSON object.
    pub fn enter(self, row: &mut Value) {
        row["reads"] = json!(self.reads);
        row["writes"] = json!(self.writes);
        row["read_bytes"] = json!(self.read_bytes);
        row["written_bytes"] = json!(self.written_bytes);
    }

    /// As cells of a table: reads, writes, bytes of both.
    pub fn cells(self) -> [String; 4] {
        [
            format!("{:.0}", self.reads),
            format!("{:.0}", self.writes),
            format_size(self.read_bytes as u64),
            format_size(self.written_bytes as u64),
        ]
    }
}

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
    let mut looked: Option<Instant> = None;
    let reports = count.unwrap_or(if interval.is_some() { u64::MAX } else { 1 });
    for report in 0..reports {
        if report > 0 {
            std::thread::sleep(Duration::from_secs_f64(interval.unwrap_or(1.0)));
        }
        let mut now: Vec<(String, IoCounters)> = Vec::new();
        for known in chosen_pools(session, pool)? {
            let counters: Vec<IoCounters> =
                Client::open(&session.places, &known.name)?.ask("io_counters", json!({}))?;
            now.extend(
                counters
                    .into_iter()
                    .map(|counters| (known.name.clone(), counters)),
            );
        }
        let seconds = looked.map(|looked| looked.elapsed().as_secs_f64());
        looked = Some(Instant::now());
        print(session, &now, &before, seconds)?;
        before = now;
    }
    Ok(())
}

fn print(
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
        let rates = Rates::between(old.map(|(_, old)| old), counters, seconds);
        let mut row = json!({
            "pool": pool, "tier": counters.tier, "path": counters.path, "size_bytes": counters.size_bytes,
            "used_bytes": counters.used_bytes, "interval_seconds": seconds,
        });
        rates.enter(&mut row);
        json_rows.push(row);
        let names = [pool, &counters.tier, &counters.path].map(Clone::clone);
        let used = format_size(counters.used_bytes);
        rows.push(names.into_iter().chain([used]).chain(rates.cells()).collect());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_go_by_what_was_counted_between_two_looks() {
        let counters = |reads, read_bytes| IoCounters {
            reads,
            read_bytes,
            ..IoCounters::default()
        };
        let (before, now) = (counters(100, 1000), counters(300, 5000));
        let rates = Rates::between(Some(&before), &now, Some(2.0));
        assert_eq!(
            (rates.reads, rates.read_bytes, rates.writes),
            (100.0, 2000.0, 0.0)
        );
        // In all; a device that is new; a pool that was opened anew.
        assert_eq!(Rates::between(Some(&before), &now, None).reads, 300.0);
        assert_eq!(Rates::between(None, &now, Some(2.0)).reads, 150.0);
        assert_eq!(Rates::between(Some(&now), &before, Some(2.0)).reads, 50.0);
        assert_eq!(rates.plus(rates).reads, 200.0);
    }
}
