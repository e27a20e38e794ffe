//! `PageDrops`: has the kernel drop pages that a write past its cache made out of date.
//!
//! The kernel's answer to that waits for whoever reads the page just now, and he waits for one of the threads that serve the mount.
//! So none of these asks: one thread for a mount does, made when there is first something to drop, and those who serve writes wait
//! for it only so long.
//!
//! Invariants: ranges are dropped in the order in which they came; there are never more of them than nodes, since what is to be
//! dropped of one node and has not been begun becomes one range; the thread ends with the mount.

use std::{
    collections::VecDeque,
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{kernel_device::Connection, notification::invalidate_inode};

struct Job {
    number: u64,
    node: u64,
    range: Range<u64>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Numbers given to jobs, and the last one that is done.
    given: u64,
    done: u64,
    ended: bool,
}

/// See the module.
#[derive(Default)]
pub struct PageDrops {
    is_begun: AtomicBool,
    state: Mutex<State>,
    came: Condvar,
    went: Condvar,
}

impl PageDrops {
    /// Starts the thread, once.
    pub fn begin(self: &Arc<Self>, connection: &Arc<Connection>) -> io::Result<()> {
        if self.is_begun.load(Ordering::Acquire) || self.is_begun.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (drops, connection) = (self.clone(), connection.clone());
        let thread = std::thread::Builder::new()
            .name("fuse-pages".into())
            .spawn(move || drops.run(&connection));
        if thread.is_err() {
            self.is_begun.store(false, Ordering::Release);
        }
        thread.map(drop)
    }

    /// Has a range dropped, and waits for that at most for `patience`.
    pub fn drop_range(&self, node: u64, range: Range<u64>, patience: Duration) {
        let mut state = self.state.lock();
        let number = match state.waiting.iter_mut().find(|job| job.node == node) {
            Some(job) => {
                job.range = job.range.start.min(range.start)..job.range.end.max(range.end);
                job.number
            }
            None => {
                state.given += 1;
                let number = state.given;
                state.waiting.push_back(Job { number, node, range });
                number
            }
        };
        self.came.notify_one();
        let until = Instant::now() + patience;
        while state.done < number && !state.ended && !self.went.wait_until(&mut state, until).timed_out() {}
    }

    /// The mount has ended.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.came.notify_all();
        self.went.notify_all();
    }

    fn run(&self, connection: &Connection) {
        loop {
            let mut state = self.state.lock();
            let job = loop {
                if state.ended {
                    return;
                }
                match state.waiting.pop_front() {
                    Some(job) => break job,
                    None => self.came.wait(&mut state),
                }
            };
            drop(state);
            if let Err(error) = invalidate_inode(connection, job.node, Some(job.range)) {
                tracing::error!(
                    "cannot tell the kernel that content of object {} changed: {error}",
                    job.node
                );
            }
            self.state.lock().done = job.number;
            self.went.notify_all();
        }
    }
}
