//! `Crew`: threads that serve what a queue's own thread does not serve itself, and `Mailbox`, where it finds their results.
//!
//! Only the thread that fetched a request may answer it (until Linux 6.16), so results go back to it. Workers are
//! started when they are first needed. Invariants: every job that is handed over is answered; the memory of a job is used by its worker alone.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};

use super::request::{Request, Service};
use crate::kernel::Buffer;

/// Most workers of a device.
const WORKERS_MAX: usize = 8;

/// A request with its memory.
pub struct Work {
    /// Which.
    pub tag: u16,
    /// What it asks for.
    pub request: Request,
    /// The tag's memory.
    pub buffer: Buffer,
}

/// What a worker takes at once: one request, or several reads.
pub struct Job {
    /// Not empty.
    pub work: Vec<Work>,
    /// Where the results go.
    pub mailbox: Arc<Mailbox>,
}

/// See the module.
pub struct Mailbox {
    results: Mutex<Vec<(u16, i32)>>,
    bell: OwnedFd,
}

impl Mailbox {
    /// An empty one.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            results: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Can be read when there are results, or [`ring`](Self::ring) was called.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Wakes whoever waits.
    pub fn ring(&self) {
        // It can only fail because it rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn put(&self, results: impl IntoIterator<Item = (u16, i32)>) {
        let first = {
            let mut waiting = self.results.lock();
            let first = waiting.is_empty();
            waiting.extend(results);
            first
        };
        if first {
            self.ring();
        }
    }

    /// Takes the results: tags, and what the kernel is told. The bell is silent afterwards.
    pub fn take(&self) -> Vec<(u16, i32)> {
        // First the bell, then the results: what comes in between rings again.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut self.results.lock())
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    workers: Vec<JoinHandle<()>>,
    ended: bool,
}

struct Shared {
    service: Arc<Service>,
    state: Mutex<State>,
    call: Condvar,
}

/// See the module.
pub struct Crew(Arc<Shared>);

impl Crew {
    /// Without a worker yet.
    pub fn new(service: Arc<Service>) -> Self {
        Self(Arc::new(Shared {
            service,
            state: Mutex::default(),
            call: Condvar::new(),
        }))
    }

    /// What it serves.
    pub fn service(&self) -> &Service {
        &self.0.service
    }

    /// Hands jobs over.
    pub fn hand_over(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut state = self.0.state.lock();
        state.jobs.extend(jobs);
        let waiting = state.jobs.len();
        let called = waiting.min(state.idle);
        let wanted = (waiting - called).min(WORKERS_MAX.saturating_sub(state.workers.len()));
        for _ in 0..wanted {
            let shared = self.0.clone();
            let worker = thread::Builder::new().name("ublk-request".into()).spawn(move || {
                stay_out_of_writeback();
                terrace_device::be_prompt();
                shared.work();
            });
            state.workers.extend(worker.ok());
        }
        let alone = state.workers.is_empty();
        drop(state);
        for _ in 0..called {
            self.0.call.notify_one();
        }
        if alone {
            // No thread could be had: nobody waits for ever.
            while let Some(job) = { self.0.state.lock().jobs.pop_front() } {
                job.serve(&self.0.service);
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        let workers = {
            let mut state = self.0.state.lock();
            state.ended = true;
            std::mem::take(&mut state.workers)
        };
        self.0.call.notify_all();
        for worker in workers {
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job.serve(&self.service);
                state = self.state.lock();
            } else if state.ended {
                return;
            } else {
                state.idle += 1;
                self.call.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

impl Job {
    fn serve(mut self, service: &Service) {
        if let [only] = &mut self.work[..] {
            let result = service.serve(&only.request, only.buffer.bytes());
            self.mailbox.put([(only.tag, result)]);
            return;
        }
        let results = {
            let mut reads: Vec<_> = self
                .work
                .iter_mut()
                .map(|work| (work.request, work.buffer.bytes()))
                .collect();
            service.serve_reads(&mut reads)
        };
        self.mailbox
            .put(self.work.iter().map(|work| work.tag).zip(results));
    }
}

/// Of linux/prctl.h.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Tells the kernel that the calling thread serves a disk: when memory is short it is not to wait for writes, which may
/// be to that disk. Only root may; without it all goes well as long as memory does.
pub fn stay_out_of_writeback() {
    // SAFETY: the call takes numbers alone.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kernel::{Descriptor, Mapping, OPERATION_READ, OPERATION_WRITE},
        serving::request::tests::{Disk, service},
    };

    #[test]
    fn everything_handed_over_is_answered_once() {
        let (service, disk, _directory) = service(Disk::new(64 * 512, 512));
        let mapping = Mapping::anonymous(64 * 512).unwrap();
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let work = |operation, tag: u16| {
            let descriptor = Descriptor {
                operation_and_flags: operation,
                sectors: 1,
                first_sector: u64::from(tag),
            };
            // SAFETY: the mapping outlives the crew, and each tag has its own part of it.
            let mut buffer = unsafe { Buffer::new(&mapping, usize::from(tag) * 512, 512) };
            if operation == OPERATION_WRITE {
                buffer.bytes().fill(tag as u8 + 1);
            }
            let request = Request::decode(descriptor, 512).unwrap();
            Work { tag, request, buffer }
        };
        let job = |work| Job {
            work,
            mailbox: mailbox.clone(),
        };
        let answered = || {
            let mut results = Vec::new();
            while results.len() < 64 {
                let mut asked = [rustix::event::PollFd::from_borrowed_fd(
                    mailbox.bell(),
                    rustix::event::PollFlags::IN,
                )];
                rustix::event::poll(&mut asked, None).unwrap();
                results.extend(mailbox.take());
            }
            results.sort_unstable();
            assert_eq!(results, (0..64).map(|tag| (tag, 512)).collect::<Vec<_>>());
        };
        let crew = Crew::new(service);
        crew.hand_over((0..64).map(|tag| job(vec![work(OPERATION_WRITE, tag)])));
        answered();
        assert_eq!(disk.content.lock()[63 * 512], 64);
        // Eight reads to a job.
        crew.hand_over(
            (0..8).map(|first| job((0..8).map(|at| work(OPERATION_READ, first * 8 + at)).collect())),
        );
        answered();
        drop(crew);
        assert_eq!(mailbox.take(), []);
    }
}
