//! `WriteBack`: flushes what was written and not flushed, so that the device can go on after the process.
//!
//! Filesystems write much without a flush once they have written their journal. Invariants: what was written is flushed within
//! [`UNFLUSHED_MAX`] under any load, and once no write has come for [`PAUSE`]; reads put nothing off; where nothing was written the thread
//! sleeps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{request::Service, threads::stay_out_of_writeback};

/// A pause of writes after which is flushed.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest that something is unflushed while writes go on.
const UNFLUSHED_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether writes go on.
const LOOK: Duration = Duration::from_millis(250);

/// When to flush, by how many changes were seen when.
#[derive(Debug, Default)]
struct Schedule {
    /// Changes that a flush has dealt with.
    handled: u64,
    /// Changes at the last look, when the first that is not handled was seen, and when the last.
    seen: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Schedule {
    /// Whether a flush is due, of so many changes so far.
    fn is_due(&mut self, changes: u64, now: Instant) -> bool {
        if changes <= self.handled {
            (self.first, self.last) = (None, None);
            return false;
        }
        if changes != self.seen || self.last.is_none() {
            (self.seen, self.last) = (changes, Some(now));
        }
        let first = *self.first.get_or_insert(now);
        let since = |then: Option<Instant>| then.map_or(Duration::ZERO, |then| now.duration_since(then));
        since(self.last) >= PAUSE || since(Some(first)) >= UNFLUSHED_MAX
    }

    /// A flush was begun when there were so many.
    fn handled(&mut self, changes: u64) {
        self.handled = changes;
        (self.first, self.last) = (None, None);
    }
}

/// Calls the thread when something is written after a rest.
#[derive(Default)]
pub struct Bell {
    /// The thread knows that something was written.
    is_awake: AtomicBool,
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    /// Something was written.
    pub fn ring(&self) {
        if !self.is_awake.load(Ordering::Relaxed) && !self.is_awake.swap(true, Ordering::AcqRel) {
            // With the lock: the thread that has just looked sleeps by then.
            drop(self.ended.lock());
            self.changed.notify_all();
        }
    }

    /// Waits until something is written, or so long at most if something was already; whether it is to go on.
    fn wait(&self) -> bool {
        let mut ended = self.ended.lock();
        if self.is_awake.load(Ordering::Acquire) {
            if !*ended {
                self.changed.wait_for(&mut ended, LOOK);
            }
        } else {
            while !*ended && !self.is_awake.load(Ordering::Acquire) {
                self.changed.wait(&mut ended);
            }
        }
        !*ended
    }

    fn end(&self) {
        *self.ended.lock() = true;
        self.changed.notify_all();
    }
}

/// See the module. Its thread ends when it is dropped.
pub struct WriteBack {
    service: Arc<Service>,
    thread: Option<JoinHandle<()>>,
}

impl WriteBack {
    /// Of a service.
    pub fn start(service: &Arc<Service>) -> std::io::Result<Self> {
        let serving = service.clone();
        let thread = std::thread::Builder::new()
            .name("ublk-flush".into())
            .spawn(move || {
                stay_out_of_writeback();
                let mut schedule = Schedule::default();
                while serving.written.wait() {
                    let changes = serving.unflushed.before_flush();
                    if schedule.is_due(changes, Instant::now()) {
                        serving.rest();
                        schedule.handled(changes);
                    }
                    if changes <= schedule.handled {
                        serving.written.is_awake.store(false, Ordering::Release);
                        // What was written before that, and rang a bell that was rung already.
                        if serving.unflushed.before_flush() > schedule.handled {
                            serving.written.ring();
                        }
                    }
                }
            })?;
        Ok(Self {
            service: service.clone(),
            thread: Some(thread),
        })
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        self.service.written.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{
        kernel::{Descriptor, OPERATION_READ, OPERATION_WRITE},
        serving::request::{
            Request,
            tests::{Disk, service},
        },
    };

    #[test]
    fn a_pause_of_writes_or_the_longest_time_makes_a_flush_due() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut schedule = Schedule::default();
        assert!(!schedule.is_due(0, at(0)));
        // One write, then none.
        assert!(!schedule.is_due(1, at(1000)) && !schedule.is_due(1, at(1750)));
        assert!(schedule.is_due(1, at(2000)));
        schedule.handled(1);
        assert!(!schedule.is_due(1, at(60_000)));
        // A write each quarter of a second, without end.
        let due = (1..).find(|look| schedule.is_due(1 + look, at(60_000 + 250 * look)));
        assert_eq!(due, Some(21), "five seconds after the first");
        // What a flush did not keep is not flushed again and again.
        schedule.handled(22);
        assert!(!schedule.is_due(22, at(120_000)));
    }

    #[test]
    fn what_was_written_is_flushed_soon_although_reads_never_pause() {
        let (service, disk, _directory) = service(Disk::new(1 << 20, 512));
        let write_back = WriteBack::start(&service).unwrap();
        let ask = |operation, buffer: &mut [u8]| {
            let descriptor = Descriptor {
                operation_and_flags: operation,
                sectors: 1,
                first_sector: 0,
            };
            let request = Request::decode(descriptor, buffer.len()).unwrap();
            assert_eq!(service.serve(&request, buffer), 512);
        };
        for _ in 0..2 {
            ask(OPERATION_WRITE, &mut [7; 512]);
            assert!(!service.unflushed.is_clean());
            let deadline = Instant::now() + Duration::from_secs(60);
            while !service.unflushed.is_clean() {
                assert!(Instant::now() < deadline, "it is never flushed");
                ask(OPERATION_READ, &mut [0; 512]);
            }
        }
        assert_eq!(*disk.flushes.lock(), 2);
        drop(write_back);
    }
}
