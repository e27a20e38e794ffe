//! What happened on a device since the pool was opened.

use std::sync::atomic::{AtomicU64, Ordering};

use terrace_sync::Stopwatch;

/// Whether a device can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceState {
    /// All is well.
    Online,
    /// It gave errors; still read from, nothing new is put on it.
    Failing,
    /// It has been asked for something and has not answered for longer than `device_timeout`; it is asked for nothing more until it does.
    NotAnswering,
    /// It was not found when the pool was opened.
    Missing,
    /// It was taken out of the pool.
    Removed,
}

impl DeviceState {
    /// The word for it in `terrace status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Failing => "failing",
            Self::NotAnswering => "not answering",
            Self::Missing => "missing",
            Self::Removed => "removed",
        }
    }
}

impl std::fmt::Display for DeviceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Counts of one device since the pool was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CounterValues {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Reads that failed (each counts once, also if the retry succeeded).
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Content that did not match its checksum, as told by the floors above.
    pub checksum_errors: u64,
    /// How long whoever asked waited for all reads together, nanoseconds.
    pub read_nanoseconds: u64,
    /// The same of writes.
    pub write_nanoseconds: u64,
}

/// The counts themselves. Each is an atomic of its own: what is read of several is of about the same time.
#[derive(Debug, Default)]
pub(super) struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    read_bytes: AtomicU64,
    write_bytes: AtomicU64,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    checksum_errors: AtomicU64,
    read_nanoseconds: AtomicU64,
    write_nanoseconds: AtomicU64,
}

/// Adds; returns the new count.
fn count(counter: &AtomicU64, by: u64) -> u64 {
    counter.fetch_add(by, Ordering::Relaxed).wrapping_add(by)
}

/// Counts the time since `begun` for each of `requests` that were under way together.
fn count_time(counter: &AtomicU64, begun: Stopwatch, requests: u64) {
    let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    count(counter, nanoseconds.saturating_mul(requests));
}

impl Counters {
    pub(super) fn count_read(&self, bytes: u64) {
        count(&self.reads, 1);
        count(&self.read_bytes, bytes);
    }

    pub(super) fn count_write(&self, bytes: u64) {
        count(&self.writes, 1);
        count(&self.write_bytes, bytes);
    }

    pub(super) fn count_flush(&self) {
        count(&self.flushes, 1);
    }

    pub(super) fn count_read_time(&self, begun: Stopwatch, requests: u64) {
        count_time(&self.read_nanoseconds, begun, requests);
    }

    pub(super) fn count_write_time(&self, begun: Stopwatch, requests: u64) {
        count_time(&self.write_nanoseconds, begun, requests);
    }

    pub(super) fn count_read_error(&self) {
        count(&self.read_errors, 1);
    }

    /// Returns how many there are now.
    pub(super) fn count_write_error(&self) -> u64 {
        count(&self.write_errors, 1)
    }

    pub(super) fn count_checksum_error(&self) {
        count(&self.checksum_errors, 1);
    }

    pub(super) fn values(&self) -> CounterValues {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CounterValues {
            reads: get(&self.reads),
            writes: get(&self.writes),
            flushes: get(&self.flushes),
            read_bytes: get(&self.read_bytes),
            write_bytes: get(&self.write_bytes),
            read_errors: get(&self.read_errors),
            write_errors: get(&self.write_errors),
            checksum_errors: get(&self.checksum_errors),
            read_nanoseconds: get(&self.read_nanoseconds),
            write_nanoseconds: get(&self.write_nanoseconds),
        }
    }
}
