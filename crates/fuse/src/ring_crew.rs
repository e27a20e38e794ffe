//! The threads that serve requests through rings: one or two for each of the kernel's queues, and further ones when all
//! of a queue are stuck in slow requests.
//!
//! The first thread of a queue stays on the queue's processor, where its requests are made: the caller sleeps while it
//! is served, and no other processor need be woken. The others may run anywhere, so that requests made all at once by
//! one program are served by all processors. With few threads, requests that come all at once queue up in the kernel
//! and are served one after the other without a thread being woken for each (docs/decisions/0005).
//!
//! Invariants: while the mount lives each queue has a thread that waits or will soon, as far as threads can be had;
//! the number of threads is bounded.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
        mpsc,
    },
};

use crate::{
    crew::Place,
    protocol::{ReplyBuffer, parse},
    ring::{self, RingEntry, Taken},
    serving::Serving,
};

/// Threads of a queue to begin with, where there are few queues; one where there are many.
const THREADS_START: usize = 2;
const FEW_QUEUES: usize = 8;
/// Most threads of a queue.
const THREADS_MAX: usize = 16;
/// After this many entries that failed for no known reason no more are tried.
const FAILURES_MAX: u32 = 100;

struct Queue {
    number: u16,
    /// Threads that wait for a request.
    waiting: AtomicUsize,
    threads: AtomicUsize,
}

/// See the module.
pub struct RingCrew {
    queues: Vec<Queue>,
    /// Most threads of a queue.
    threads_max: usize,
    failures: AtomicU32,
}

/// Registers the first entries of each queue and serves them. If that fails the kernel is told to do without.
pub fn start(serving: &Arc<Serving>, threads_max: usize) -> io::Result<Arc<RingCrew>> {
    let count = ring::queues().ok_or(io::ErrorKind::Unsupported)?;
    let crew = Arc::new(RingCrew {
        queues: (0..count)
            .map(|number| Queue {
                number: number as u16,
                waiting: AtomicUsize::new(0),
                threads: AtomicUsize::new(0),
            })
            .collect(),
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
        RingEntry::decline(&serving.connection);
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
        let first = self.queues[queue].threads.fetch_add(1, Ordering::Relaxed) == 0;
        let crew = self.clone();
        let started = serving.start("fuse-ring", move |serving| {
            if first {
                ring::stay_on(queue);
            }
            let entry = RingEntry::register(&serving.connection, crew.queues[queue].number);
            match entry {
                Ok(entry) => {
                    told(Ok(()));
                    crew.run(serving, queue, entry);
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

    fn run(self: &Arc<Self>, serving: &Arc<Serving>, queue: usize, mut entry: RingEntry) {
        let state = &self.queues[queue];
        let place = Arc::new(Place::of_queue(queue));
        serving.places.lock().push(place.clone());
        let result = loop {
            state.waiting.fetch_add(1, Ordering::Relaxed);
            let taken = entry.wait();
            state.waiting.fetch_sub(1, Ordering::Relaxed);
            match taken {
                Ok(Taken::Request) => {}
                Ok(Taken::Ended) => break Ok(()),
                Err(error) => break Err(error),
            }
            serving.crew.begin(&place);
            let answered = entry.answer(&serving.connection, |bytes, reply| serve(serving, bytes, reply));
            serving.crew.done(&place);
            if let Err(error) = answered {
                break Err(error);
            }
        };
        serving.places.lock().retain(|other| !Arc::ptr_eq(other, &place));
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

    /// Adds a thread to a queue of which one is stuck, if none waits.
    pub fn relieve(self: &Arc<Self>, serving: &Arc<Serving>, queue: usize) {
        let state = &self.queues[queue];
        if state.waiting.load(Ordering::Relaxed) == 0
            && state.threads.load(Ordering::Relaxed) < self.threads_max
        {
            self.add_logged(serving, queue);
        }
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

/// The error number for the kernel, or 0. (What wants no answer does not come through rings.)
fn serve(serving: &Serving, bytes: &[u8], reply: &mut ReplyBuffer) -> i32 {
    match parse(bytes, serving.dialect) {
        Ok((header, request)) => serving.answer(&header, request, reply).unwrap_or(0),
        Err(error) => {
            tracing::error!("a request of the kernel cannot be read: {error}");
            libc::EIO
        }
    }
}
