//! `terrace top`: pools as they work, looked at again and again.
//!
//! Invariants: it asks for what `status` and `iostat` ask for, and starts no pool; a pool that stops meanwhile is shown as stopped, and
//! comes back when it does; on a terminal one screen is shown, cut where it ends; and the terminal is left as it was found, however it ends.

use std::{
    io::IsTerminal,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use console::{Key, Term, truncate_str};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_device::format_size;
use terrace_engine::{IoCounters, JobStatus, Status, TierStatus};

use super::{Session, iostat::Rates, show::chosen_pools};
use crate::{
    client::{Client, decode},
    output,
    registry::KnownPool,
};

/// Width of the bar that shows how full a tier is, in characters.
const BAR: usize = 20;

/// A look at one pool.
struct Look {
    known: KnownPool,
    /// Nothing of a pool that is stopped.
    seen: Option<(Status, Vec<IoCounters>, Instant)>,
}

impl Look {
    fn at(session: &Session, known: KnownPool) -> Result<Self, Failure> {
        // A connection serves one request.
        let connect = || Client::open_running(&session.places, &known.name);
        let seen = match (connect()?, connect()?) {
            (Some(mut first), Some(mut second)) => {
                let status = decode(first.call("status", json!({}))?)?;
                let counters = second.ask("io_counters", json!({}))?;
                Some((status, counters, Instant::now()))
            }
            _ => None,
        };
        Ok(Self { known, seen })
    }

    /// How much later than another look; nothing if either saw nothing.
    fn seconds_since(&self, before: Option<&Look>) -> Option<f64> {
        let (_, _, now) = self.seen.as_ref()?;
        let (_, _, then) = before?.seen.as_ref()?;
        Some(now.saturating_duration_since(*then).as_secs_f64())
    }

    /// What a device did since.
    fn rates(&self, before: Option<&Look>, path: &str) -> Rates {
        let of = |look: &Look| {
            let (_, counters, _) = look.seen.as_ref()?;
            counters.iter().find(|counters| counters.path == path).cloned()
        };
        match (of(self), self.seconds_since(before)) {
            (Some(now), Some(seconds)) => Rates::between(before.and_then(of).as_ref(), &now, Some(seconds)),
            _ => Rates::default(),
        }
    }

    fn tier_rates(&self, before: Option<&Look>, tier: &TierStatus) -> Rates {
        let each = tier.devices.iter().map(|device| self.rates(before, &device.path));
        each.fold(Rates::default(), Rates::plus)
    }

    /// For scripts.
    fn as_json(&self, before: Option<&Look>) -> Value {
        let name = &self.known.name;
        let Some((status, ..)) = &self.seen else {
            return json!({ "pool": name, "state": "stopped", "daemon_pid": null, "tiers": [], "jobs": [] });
        };
        let tiers = status.tiers.iter().map(|tier| {
            let devices = tier.devices.iter().map(|device| {
                let mut row = json!(device);
                self.rates(before, &device.path).enter(&mut row);
                row
            });
            let devices: Vec<Value> = devices.collect();
            let mut row = json!({
                "name": tier.name, "size_bytes": tier.size_bytes, "used_bytes": tier.used_bytes,
                "live_bytes": tier.live_bytes, "devices": devices,
            });
            self.tier_rates(before, tier).enter(&mut row);
            row
        });
        let tiers: Vec<Value> = tiers.collect();
        json!({
            "pool": name, "state": status.state, "daemon_pid": status.daemon_pid,
            "interval_seconds": self.seconds_since(before), "size_bytes": status.size_bytes,
            "used_bytes": status.used_bytes, "memory": status.memory, "tiers": tiers,
            "jobs": going_on(status).collect::<Vec<_>>(),
        })
    }

    /// For people.
    fn lines(&self, before: Option<&Look>) -> Vec<String> {
        let Some((status, ..)) = &self.seen else {
            let name = &self.known.name;
            return vec![format!("{name}: stopped; 'terrace start {name}' starts it")];
        };
        let size = format_size;
        let mut lines = vec![format!(
            "{}: {}, {} used of {}, {} available; memory {} of {}, {} dirty, {} for readers",
            status.pool,
            status.state,
            size(status.used_bytes),
            size(status.size_bytes),
            size(status.available_bytes),
            size(status.memory.used_bytes),
            size(status.memory.budget_bytes),
            size(status.memory.dirty_bytes),
            size(status.memory.cache_bytes),
        )];
        if !status.state_detail.is_empty() {
            lines.push(format!("  {}", status.state_detail));
        }
        let row = |name: String, state: String, used: u64, all: u64, rates: Rates, errors: String| {
            let names = [name, state, size(used), size(all), bar(used, all)];
            names.into_iter().chain(rates.cells()).chain([errors]).collect()
        };
        let mut rows: Vec<Vec<String>> = Vec::new();
        for tier in &status.tiers {
            let rates = self.tier_rates(before, tier);
            let name = tier.name.clone();
            rows.push(row(
                name,
                String::new(),
                tier.used_bytes,
                tier.size_bytes,
                rates,
                String::new(),
            ));
            for device in &tier.devices {
                let rates = self.rates(before, &device.path);
                let errors = device.read_errors + device.write_errors + device.checksum_errors;
                let (name, state) = (format!("  {}", device.path), device.state.clone());
                let (used, all) = (device.used_bytes, device.size_bytes);
                rows.push(row(name, state, used, all, rates, errors.to_string()));
            }
        }
        let heading = [
            "TIER / DEVICE",
            "STATE",
            "USED",
            "SIZE",
            "FULL",
            "READS/S",
            "WRITES/S",
            "READ/S",
            "WRITTEN/S",
            "ERRORS",
        ];
        lines.extend(output::aligned(&heading, &rows, &[2, 3, 5, 6, 7, 8, 9]));
        lines.extend(going_on(status).map(|job| {
            format!(
                "job {} {} {}: {} of {}, {}/s; {}",
                job.id,
                job.kind,
                job.state,
                size(job.done_bytes),
                size(job.total_bytes),
                size(job.rate as u64),
                job.reason
            )
        }));
        lines
    }
}

fn going_on(status: &Status) -> impl Iterator<Item = &JobStatus> {
    let jobs = status.jobs.iter();
    jobs.filter(|job| matches!(job.state.as_str(), "running" | "waiting" | "paused"))
}

/// How full something is.
fn bar(used: u64, all: u64) -> String {
    let part = (used as f64 / all.max(1) as f64).clamp(0.0, 1.0);
    let full = (part * BAR as f64).round() as usize;
    format!(
        "{}{} {:>3.0}%",
        "#".repeat(full),
        "-".repeat(BAR - full),
        part * 100.0
    )
}

/// The terminal, as long as it shows this; it gets back what it had.
struct Screen {
    term: Term,
    before: Option<Termios>,
    keys: Receiver<Key>,
}

impl Screen {
    fn open() -> Self {
        let term = Term::stdout();
        let before = tcgetattr(std::io::stdin()).ok();
        let (sender, keys) = channel();
        if std::io::stdin().is_terminal() {
            let input = term.clone();
            // It waits for a key until the process ends.
            std::thread::spawn(move || {
                while let Ok(key) = input.read_key_raw() {
                    if sender.send(key).is_err() {
                        return;
                    }
                }
            });
        }
        let _ = term.hide_cursor();
        let _ = term.clear_screen();
        Self { term, before, keys }
    }

    fn show(&self, lines: &[String]) -> Result<(), Failure> {
        let (height, width) = self.term.size();
        let fitting = lines.iter().take(usize::from(height).saturating_sub(1));
        let draw = || {
            self.term.move_cursor_to(0, 0)?;
            for line in fitting {
                self.term.clear_line()?;
                self.term
                    .write_line(&truncate_str(line, usize::from(width), "…"))?;
            }
            self.term.clear_to_end_of_screen()
        };
        draw().map_err(|error| Failure::new("draw on the terminal", error, "use 'terrace top --count 1'"))
    }

    /// Waits for the next look; whether somebody ended it meanwhile.
    fn is_ended_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.keys.recv_timeout(left) {
                Ok(Key::Char('q' | 'Q') | Key::Escape | Key::CtrlC) => return true,
                // Any other key: look at once.
                Ok(_) | Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(left);
                    return false;
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
        let _ = self.term.show_cursor();
    }
}

/// `terrace top [POOL]`.
pub fn top(session: &Session, pool: Option<&str>, interval: f64, count: Option<u64>) -> Result<(), Failure> {
    if !(0.1..=86_400.0).contains(&interval) {
        let failure = Failure::new(
            "watch pools",
            "the interval makes no sense",
            "give 0.1 to 86400 seconds",
        );
        return Err(failure.as_usage());
    }
    let interval = Duration::from_secs_f64(interval);
    let look = || -> Result<Vec<Look>, Failure> {
        let pools = chosen_pools(session, pool)?.into_iter();
        pools.map(|known| Look::at(session, known)).collect()
    };
    let lines = |now: &[Look], before: &[Look]| {
        let mut lines = Vec::new();
        for look in now {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            lines.extend(look.lines(same_pool(before, look)));
        }
        lines
    };
    let mut before = look()?;
    let watches = count.is_none() && !session.json && std::io::stdout().is_terminal();
    if watches {
        let screen = Screen::open();
        screen.show(&lines(&before, &[]))?;
        while !screen.is_ended_within(interval) {
            let now = look()?;
            screen.show(&lines(&now, &before))?;
            before = now;
        }
        return Ok(());
    }
    for at in 0..count.unwrap_or(1) {
        std::thread::sleep(interval);
        let now = look()?;
        if session.json {
            let rows: Vec<Value> = now
                .iter()
                .map(|look| look.as_json(same_pool(&before, look)))
                .collect();
            output::json(&rows)?;
        } else {
            if at > 0 {
                output::line("")?;
            }
            lines(&now, &before)
                .iter()
                .try_for_each(|line| output::line(line))?;
        }
        before = now;
    }
    Ok(())
}

fn same_pool<'a>(before: &'a [Look], look: &Look) -> Option<&'a Look> {
    before.iter().find(|other| other.known.name == look.known.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_how_full_it_is_and_no_more() {
        assert_eq!(bar(0, 0), format!("{}   0%", "-".repeat(BAR)));
        assert_eq!(bar(1, 2), format!("{}{}  50%", "#".repeat(10), "-".repeat(10)));
        assert_eq!(bar(9, 2), format!("{} 100%", "#".repeat(BAR)));
    }
}
