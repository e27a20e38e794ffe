//! The threads that serve requests through rings: one or two for each of the kernel's queues, and further ones when all
//! of a queue are stuck in slow requests.
//!
//! One thread of a queue is *at home*: it stays on the queue's processor, where its requests are made: the caller sleeps while it
//! is served, and no other processor need be woken. The others may run anywhere, so that requests made all at once by
//! one program are served by all processors. With few threads, requests that come all at once queue up in the kernel
//! and are served one after the other without a thread being woken for each (docs/decisions/0005).
//!
//! The kernel gives a request to the entry that came back last. After requests that came all at once this may be a thread that
//! runs anywhere, and it would go on serving one caller after the other from wherever an idle processor is found for it.
//! So whoever serves many requests of a queue in a row becomes the one at home, and the one before is free again.
//!
//! Invariants: while the mount lives each queue has a thread that waits or will soon, as far as threads can be had;
//! the number of threads is bounded; of a queue one thread at most is at home, but for one request after another became it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
        mpsc,
    },
};

use super::{dispatch::Serving, threads::Place};
use crate::{
    protocol::{ReplyBuffer, parse},
    transport::{RingEntry, Taken, uring_entry},
};

/// Threads of a queue to begin with, where there are few queues; one where there are many.
const THREADS_START: usize = 2;
const FEW_QUEUES: usize = 8;
/// Most threads of a queue.
const THREADS_MAX: usize = 16;
/// So many requests of a queue in a row, all served by one thread, come one after the other.
const ROW: u32 = 16;
/// Nobody, as a thread's number.
const NOBODY: u32 = 0;
/// After this many entries that failed for no known reason no more are tried.
const FAILURES_MAX: u32 = 100;

struct Queue {
    number: u16,
    /// Threads that wait for a request.
    waiting: AtomicUsize,
    threads: AtomicUsize,
    /// The thread that served the last request, and the one at home.
    last: AtomicU32,
    home: AtomicU32,
}

impl Queue {
    fn new(number: u16) -> Self {
        Self {
            number,
            waiting: AtomicUsize::new(0),
            threads: AtomicUsize::new(0),
            last: AtomicU32::new(NOBODY),
            home: AtomicU32::new(NOBODY),
        }
    }

    /// Whether nobody waits for the next request.
    fn is_unattended(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// The thread serves one more request of the queue; `row`: how many in a row it has. Whether it is the one at home.
    fn settle(&self, thread: u32, row: &mut u32) -> bool {
        if self.last.load(Ordering::Relaxed) == thread {
            *row = row.saturating_add(1);
        } else {
            self.last.store(thread, Ordering::Relaxed);
            *row = 0;
        }
        if *row == ROW {
            self.home.store(thread, Ordering::Relaxed);
        }
        self.home.load(Ordering::Relaxed) == thread
    }
}

/// See the module.
pub struct RingCrew {
    /// Numbers for threads.
    next: AtomicU32,
    queues: Vec<Queue>,
    /// Most threads of a queue.
    threads_max: usize,
    failures: AtomicU32,
}

/// Registers the first entries of each queue and serves them. If that fails the kernel is told to do without.
pub fn start(serving: &Arc<Serving>, threads_max: usize) -> io::Result<Arc<RingCrew>> {
    let count = uring_entry::queues().ok_or(io::ErrorKind::Unsupported)?;
    let crew = Arc::new(RingCrew {
        next: AtomicU32::new(NOBODY + 1),
        queues: (0..count).map(|number| Queue::new(number as u16)).collect(),
        threads_max: (threads_max / count).clamp(THREADS_START, THREADS_MAX),
        failures: AtomicU32::new(0),
    });
    let (told, registered) = mpsc::channel();
    let start = if count <= FEW_QUEUES { THREADS_START } else { 1 };
    let started = (0..count * start).try_for_each(|entry| {
        let queue = entry % count;
        let told = told.clone();
        crew.add(serving, queue, move |result| {
            let _ = told.send(result);
        })
    });
    drop(told);
    let result: io::Result<()> = started.and_then(|()| registered.iter().collect());
    if let Err(error) = result {
        RingEntry::decline(serving.connection());
        return Err(error);
    }
    Ok(crew)
}

impl RingCrew {
    /// Starts a thread for a queue; `told` learns whether its entry was registered.
    fn add(
        self: &Arc<Self>,
        serving: &Arc<Serving>,
        queue: usize,
        told: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> io::Result<()> {
        self.queues[queue].threads.fetch_add(1, Ordering::Relaxed);
        let thread = self.next.fetch_add(1, Ordering::Relaxed);
        let crew = self.clone();
        let started = serving.start("fuse-ring", move |serving| {
            let entry = RingEntry::register(
                serving.connection(),
                crew.queues[queue].number,
                serving.memory_count(),
            );
            match entry {
                Ok(entry) => {
                    told(Ok(()));
                    crew.run(serving, queue, thread, entry);
                }
                Err(error) => {
                    crew.queues[queue].threads.fetch_sub(1, Ordering::Relaxed);
                    told(Err(error));
                }
            }
        });
        if started.is_err() {
            self.queues[queue].threads.fetch_sub(1, Ordering::Relaxed);
        }
        started
    }

    fn run(self: &Arc<Self>, serving: &Arc<Serving>, queue: usize, thread: u32, mut entry: RingEntry) {
        let state = &self.queues[queue];
        let place = serving.add_place(Place::of_queue(queue));
        let (mut row, mut at_home) = (0, false);
        let anywhere = uring_entry::processors();
        let result = loop {
            state.waiting.fetch_add(1, Ordering::Relaxed);
            let taken = entry.wait();
            state.waiting.fetch_sub(1, Ordering::Relaxed);
            match taken {
                Ok(Taken::Request) => {}
                Ok(Taken::Ended) => break Ok(()),
                Err(error) => break Err(error),
            }
            if state.settle(thread, &mut row) != at_home {
                at_home = !at_home;
                match &anywhere {
                    Some(_) if at_home => uring_entry::stay_on(queue),
                    Some(anywhere) => uring_entry::stay_within(anywhere),
                    None => {}
                }
            }
            // With others that wait nobody need watch this one.
            serving.begin_in_queue(&place, state.is_unattended());
            entry
                .memory()
                .answer(|bytes, reply| answer(serving, bytes, reply));
            serving.crew.done(&place);
            if let Err(error) = entry.hand_over(serving.connection()) {
                break Err(error);
            }
        };
        serving.remove_place(&place);
        // The threads are gone before the entry, so that its place is free when it is replaced.
        state.threads.fetch_sub(1, Ordering::Relaxed);
        drop(entry);
        if let Err(error) = result {
            tracing::error!("waiting for a request of the kernel failed: {error}");
            if self.failures.fetch_add(1, Ordering::Relaxed) < FAILURES_MAX {
                self.add_logged(serving, queue);
            }
        }
    }

    /// Adds a thread to a queue of which one is stuck, if none waits; whether none does.
    pub fn relieve(self: &Arc<Self>, serving: &Arc<Serving>, queue: usize) -> bool {
        let state = &self.queues[queue];
        let none = state.is_unattended();
        if none && state.threads.load(Ordering::Relaxed) < self.threads_max {
            self.add_logged(serving, queue);
        }
        none
    }

    fn add_logged(self: &Arc<Self>, serving: &Arc<Serving>, queue: usize) {
        let log = |error: io::Error| tracing::warn!("cannot add a thread to serve the mount: {error}");
        let told = move |result: io::Result<()>| {
            // The mount may just be going away.
            if let Err(error) = result
                && !matches!(
                    error.raw_os_error(),
                    Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV)
                )
            {
                log(error);
            }
        };
        if let Err(error) = self.add(serving, queue, told) {
            tracing::warn!("cannot start a thread to serve the mount: {error}");
        }
    }
}

/// The error number for the kernel, 0 for none. (What wants no answer does not come through rings.)
fn answer(serving: &Serving, bytes: &[u8], reply: &mut ReplyBuffer) -> i32 {
    match parse(bytes, serving.dialect) {
        Ok((header, request)) => serving.answer(&header, request, reply).unwrap_or(0),
        Err(error) => {
            tracing::error!("a request of the kernel cannot be read: {error}");
            libc::EIO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_serves_many_in_a_row_is_the_one_at_home() {
        let queue = Queue::new(0);
        let (mut first, mut second) = (0, 0);
        for _ in 0..ROW {
            assert!(!queue.settle(1, &mut first));
        }
        assert!(queue.settle(1, &mut first));
        // In turns: the one that was stays it.
        for _ in 0..100 {
            assert!(!queue.settle(2, &mut second));
            assert!(queue.settle(1, &mut first));
        }
        let became = (0..=ROW).filter(|_| queue.settle(2, &mut second)).count();
        assert_eq!(became, 1, "with the last of them");
        assert!(queue.settle(2, &mut second));
        assert!(!queue.settle(1, &mut first));
    }
}
