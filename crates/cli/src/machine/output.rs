//! What commands print: tables, JSON, progress.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::Value;
use terrace_control::{Failure, Progress};
use terrace_device::format_size;

/// Prints a line; a reader that went away (`| head`) ends the command quietly.
pub fn line(text: &str) -> Result<(), Failure> {
    bytes(text.as_bytes())?;
    bytes(b"\n")
}

/// Prints bytes as they are.
pub fn bytes(content: &[u8]) -> Result<(), Failure> {
    match io::stdout().lock().write_all(content) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        outcome => outcome.map_err(|error| Failure::new("print", error, "")),
    }
}

/// Prints a value as JSON.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| Failure::new("print as JSON", error, ""))?;
    line(&text)
}

/// So many things: `1 file`, `2 files`.
pub fn count(number: impl TryInto<u64>, thing: &str) -> String {
    match number.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {thing}"),
        number => format!("{number} {thing}s"),
    }
}

/// Bytes of a JSON answer.
pub fn size(value: &Value) -> String {
    format_size(value.as_u64().unwrap_or(0))
}

/// A number of a JSON answer, to one place.
pub fn decimal(value: &Value) -> String {
    format!("{:.1}", value.as_f64().unwrap_or(0.0))
}

/// Prints rows under a heading, columns aligned; `right` are the columns of numbers.
pub fn table(heading: &[&str], rows: &[Vec<String>], right: &[usize]) -> Result<(), Failure> {
    columns(heading, rows, right)
        .iter()
        .try_for_each(|text| line(text))
}

/// The lines of such a table.
pub fn columns(heading: &[&str], rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    let width = |text: &str| text.chars().count();
    let mut widths: Vec<usize> = heading.iter().map(|text| width(text)).collect();
    for row in rows {
        for (column, cell) in row.iter().enumerate().take(widths.len()) {
            widths[column] = widths[column].max(width(cell));
        }
    }
    let aligned = |cells: Vec<&str>| {
        let mut text = String::new();
        for (column, cell) in cells.iter().enumerate().take(widths.len()) {
            if column > 0 {
                text.push_str("  ");
            }
            let fill = " ".repeat(widths[column].saturating_sub(width(cell)));
            if right.contains(&column) {
                text.push_str(&fill);
                text.push_str(cell);
            } else {
                text.push_str(cell);
                text.push_str(&fill);
            }
        }
        text.trim_end().to_owned()
    };
    let rows = rows
        .iter()
        .map(|row| aligned(row.iter().map(String::as_str).collect()));
    std::iter::once(aligned(heading.to_vec())).chain(rows).collect()
}

/// Asks before something that cannot be undone; without a terminal and without `--yes` it refuses.
pub fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::new(
            question,
            "this cannot be undone",
            "add --yes to do it, or --dry-run to see what would be done",
        ));
    }
    eprint!("{question}: this cannot be undone. Go on? [y/N] ");
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::new(question, error, ""))?;
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        Ok(())
    } else {
        Err(Failure::new(question, "you said no", "nothing was changed"))
    }
}

/// Shows how far long work is: a bar with rate and time left on a terminal, a plain line now and then elsewhere.
pub struct ProgressDisplay {
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Option<Instant>,
    last: Option<Progress>,
    ended: bool,
}

impl ProgressDisplay {
    /// Nothing is shown until the first progress.
    pub fn new() -> Self {
        Self {
            bar: None,
            started: Instant::now(),
            last_line: None,
            last: None,
            ended: false,
        }
    }

    /// Shows it.
    pub fn show(&mut self, progress: &Progress) {
        if io::stderr().is_terminal() {
            let bar = self.bar.get_or_insert_with(|| {
                let bar = ProgressBar::new(0);
                if let Ok(style) = ProgressStyle::with_template(
                    "{msg} {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} ETA {eta}",
                ) {
                    bar.set_style(style);
                }
                bar
            });
            bar.set_message(progress.what.clone());
            bar.set_length(progress.total_bytes.max(progress.done_bytes));
            bar.set_position(progress.done_bytes);
            return;
        }
        // The end is always said, and once.
        let ended = progress.total_bytes > 0 && progress.done_bytes >= progress.total_bytes;
        let soon = |last: Instant| last.elapsed() < Duration::from_secs(5);
        self.last = Some(progress.clone());
        if (!ended && self.last_line.is_some_and(soon)) || (ended && self.ended) {
            return;
        }
        self.ended = ended;
        self.last_line = Some(Instant::now());
        let seconds = self.started.elapsed().as_secs_f64().max(0.001);
        let rate = (progress.done_bytes as f64 / seconds) as u64;
        if progress.total_bytes > 0 {
            let percent = (progress.done_bytes as f64 * 100.0 / progress.total_bytes as f64).min(100.0);
            let left = progress.total_bytes.saturating_sub(progress.done_bytes);
            let eta = match left.checked_div(rate) {
                Some(seconds) if !ended => format!(", ETA {seconds}s"),
                _ => String::new(),
            };
            eprintln!(
                "{}: {percent:.0}% ({}, {}/s{eta})",
                progress.what,
                format_size(progress.done_bytes),
                format_size(rate)
            );
        } else {
            eprintln!(
                "{}: {} ({}/s)",
                progress.what,
                format_size(progress.done_bytes),
                format_size(rate)
            );
        }
    }

    /// Says that it is done, where that was not to be seen: there was nothing to do, or less than was thought.
    pub fn complete(&mut self) {
        let Some(last) = self.last.take() else { return };
        if self.ended || io::stderr().is_terminal() {
            return;
        }
        self.ended = true;
        // Without what kept it waiting, if it did.
        let what = last.what.split(", ").next().unwrap_or_default();
        eprintln!("{what}: 100% ({})", format_size(last.done_bytes));
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.finish();
    }
}
