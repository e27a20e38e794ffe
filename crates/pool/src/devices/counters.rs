//! What happened on a device since the pool was opened.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

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

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) write_bytes: AtomicU64,
    pub(crate) read_errors: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    pub(crate) checksum_errors: AtomicU64,
    pub(crate) read_nanoseconds: AtomicU64,
    pub(crate) write_nanoseconds: AtomicU64,
}

/// Counts the time since `begun` for each of `requests` that were under way together.
pub(crate) fn count_time(counter: &AtomicU64, begun: Instant, requests: u64) {
    let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    count(counter, nanoseconds.saturating_mul(requests));
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn values(&self) -> CounterValues {
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
