//! `Trace`: everything that happens in a run, hashed; printed too when a seed is replayed.
//!
//! Invariant: two runs of a seed that differ anywhere have different hashes: every device operation with its data,
//! and every call of the workload with its outcome, goes through here.

use std::{fmt::Write as _, sync::Arc};

use parking_lot::Mutex;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

struct State {
    hasher: Xxh3,
    events: u64,
    print: bool,
    line: String,
    /// The last lines, for the report of a failure.
    tail: std::collections::VecDeque<String>,
}

/// Where a run says what it does; clones write to the same trace.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<State>>);

impl Trace {
    /// A new trace; `print` shows every event on standard output.
    pub fn new(print: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            hasher: Xxh3::new(),
            events: 0,
            print,
            line: String::new(),
            tail: std::collections::VecDeque::new(),
        })))
    }

    /// Adds one event.
    pub fn event(&self, words: std::fmt::Arguments<'_>) {
        let mut state = self.0.lock();
        let state = &mut *state;
        state.line.clear();
        let _ = state.line.write_fmt(words);
        state.hasher.update(state.line.as_bytes());
        state.hasher.update(b"\n");
        state.events += 1;
        if state.print {
            println!("{:>7} {}", state.events, state.line);
        }
        if state.tail.len() == 12 {
            state.tail.pop_front();
        }
        state.tail.push_back(state.line.clone());
    }

    /// Adds a device operation: the numbers and the sum of the data.
    pub fn operation(&self, disk: usize, name: &str, offset: u64, data: &[u8]) {
        let sum = xxh3_64(data);
        let mut state = self.0.lock();
        let state = &mut *state;
        state.hasher.update(name.as_bytes());
        for number in [disk as u64, offset, data.len() as u64, sum] {
            state.hasher.update(&number.to_le_bytes());
        }
        state.events += 1;
        if state.print {
            println!(
                "{:>7}   disk {disk} {name} {offset:#x}+{:#x} {sum:016x}",
                state.events,
                data.len()
            );
        }
    }

    /// The hash of all events so far.
    pub fn hash(&self) -> u64 {
        self.0.lock().hasher.digest()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.0.lock().events
    }

    /// The last workload events, oldest first.
    pub fn tail(&self) -> Vec<String> {
        self.0.lock().tail.iter().cloned().collect()
    }
}

/// Adds an event to a [`Trace`], in the manner of `format!`.
#[macro_export]
macro_rules! trace {
    ($trace:expr, $($words:tt)*) => { $trace.event(format_args!($($words)*)) };
}
