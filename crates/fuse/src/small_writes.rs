//! `SmallWrites`: runs of small writes to one of the kernel's queues are served by one thread, several at a time.
//!
//! Where each request has a thread, requests that come many at a time wake as many threads, and of what a small write costs, the
//! changes of thread are the greater part. So after a run of small writes that needed no waiting (`Files::write_at_once`)
//! whoever served the last one brings his entry into a [group](RingGroup), and rests. The group's thread takes all writes that
//! have come, does them, and answers all with the call that waits for the next. What is not such a write, or would have to
//! wait, it hands out, with the entry, to one of those who rest; so entries leave the group as soon as something else is asked.
//!
//! Invariants: the group's thread never waits for anything but requests, so that a write waits for no more than the few
//! small copies that came with it; for each entry in the group, and on its way there, one thread rests; an entry is at one place,
//! and its request is answered by whoever has it; all threads end with the mount.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use parking_lot::{Condvar, Mutex};

use crate::{
    protocol::parse,
    ring::{self, Taken},
    ring_group::{Door, RingGroup},
    ring_memory::RingMemory,
    serving::Serving,
};

/// After so many in a row small writes are served together.
const RUN: u32 = 16;
/// The largest that are.
const SMALL_BYTES_MAX: usize = 16 << 10;

/// What a thread that rested goes on with.
pub enum Called {
    /// An entry with a request.
    Serve(Box<RingMemory>),
    /// The entry is lost: the kernel did not take it back.
    Lost,
    /// Nothing: the mount has ended.
    Ended,
}

#[derive(Default)]
struct Resting {
    /// Of the group, once and as long as there is one.
    door: Option<Door>,
    /// Handed out: an entry, or word that one is lost.
    out: VecDeque<Option<Box<RingMemory>>>,
    ended: bool,
}

/// See the module.
#[derive(Default)]
pub struct SmallWrites {
    /// How many of these came last without anything else.
    run: AtomicU32,
    is_started: AtomicBool,
    /// Entries in the group or on their way.
    entries: AtomicUsize,
    served: AtomicU64,
    resting: Mutex<Resting>,
    called: Condvar,
}

impl SmallWrites {
    /// Counts a request served outside of the group; `is_small`: it was a small write that waited for nothing. Whether
    /// its entry should go into the group.
    pub fn note(&self, is_small: bool) -> bool {
        if !is_small {
            if self.run.load(Relaxed) > 0 {
                self.run.store(0, Relaxed);
            }
            return false;
        }
        self.run.fetch_add(1, Relaxed) >= RUN
    }

    /// Whether the group has an entry: what comes next is taken at once.
    pub fn has_entries(&self) -> bool {
        self.entries.load(Relaxed) > 0
    }

    /// Entries in the group.
    pub fn entries(&self) -> usize {
        self.entries.load(Relaxed)
    }

    /// Writes that the group served.
    pub fn served(&self) -> u64 {
        self.served.load(Relaxed)
    }

    /// Starts the group, once; it is there soon. `stay_on`: the queue's processor.
    pub fn start(self: &Arc<Self>, serving: &Arc<Serving>, processor: usize) {
        if self.is_started.swap(true, Relaxed) {
            return;
        }
        let writes = self.clone();
        let started = serving.start("fuse-writes", move |serving| {
            ring::stay_on(processor);
            match RingGroup::open() {
                Ok((group, door)) => writes.run(serving, group, door),
                Err(error) => tracing::warn!("cannot serve small writes together: {error}"),
            }
        });
        if let Err(error) = started {
            tracing::warn!("cannot start a thread to serve small writes: {error}");
        }
    }

    /// Brings an entry with an answer in it into the group, and rests until there is something to do. It comes back if there
    /// is no group.
    pub fn bring(&self, memory: Box<RingMemory>) -> Result<Called, Box<RingMemory>> {
        let mut resting = self.resting.lock();
        let Some(door) = &resting.door else {
            return Err(memory);
        };
        self.entries.fetch_add(1, Relaxed);
        if let Err(memory) = door.bring(memory) {
            self.entries.fetch_sub(1, Relaxed);
            return Err(memory);
        }
        loop {
            if let Some(out) = resting.out.pop_front() {
                return Ok(out.map_or(Called::Lost, Called::Serve));
            }
            if resting.ended {
                return Ok(Called::Ended);
            }
            self.called.wait(&mut resting);
        }
    }

    /// The mount has ended: nobody rests any more, and the group ends.
    pub fn end(&self) {
        let mut resting = self.resting.lock();
        resting.ended = true;
        if let Some(door) = &resting.door {
            door.ring();
        }
        drop(resting);
        self.called.notify_all();
    }

    fn hand_out(&self, memory: Option<Box<RingMemory>>) {
        self.run.store(0, Relaxed);
        self.entries.fetch_sub(1, Relaxed);
        self.resting.lock().out.push_back(memory);
        self.called.notify_one();
    }

    fn run(&self, serving: &Serving, mut group: RingGroup, door: Door) {
        self.resting.lock().door = Some(door);
        let mut came = Vec::new();
        let failed = loop {
            if group.is_empty() && self.resting.lock().ended {
                break None;
            }
            let refused = |error| {
                tracing::error!("the kernel refused an answer: {error}");
                self.hand_out(None);
            };
            match group.wait(&serving.connection, &mut came, refused) {
                Ok(Taken::Request) => {}
                Ok(Taken::Ended) => break None,
                Err(error) => break Some(error),
            }
            let served = came.drain(..).try_fold(0, |served, place| {
                let is_done = group
                    .entry(place)
                    .is_some_and(|memory| answer_small(serving, memory));
                if is_done {
                    group.answered(&serving.connection, place)?;
                    return Ok(served + 1);
                }
                if let Some(memory) = group.take(place) {
                    self.hand_out(Some(memory));
                }
                Ok(served)
            });
            match served {
                Ok(served) => self.served.fetch_add(served, Relaxed),
                Err(error) => break Some(error),
            };
        };
        match failed {
            None => self.end(),
            Some(error) => {
                tracing::error!("small writes are no longer served together: {error}");
                // Nothing is brought from now on, and what was is lost.
                self.resting.lock().door = None;
                drop(group);
                while self.has_entries() {
                    self.hand_out(None);
                }
            }
        }
    }
}

/// Answers the request that came, whatever it is. Whether it was a small write that waited for nothing.
pub fn answer(serving: &Serving, memory: &mut RingMemory) -> bool {
    let may_be_small = memory.is_write_of(SMALL_BYTES_MAX);
    let mut is_small = false;
    memory.answer(|bytes, reply| match parse(bytes, serving.dialect) {
        Ok((header, request)) => {
            if may_be_small && let Some(error) = serving.write_at_once(&header, &request, reply) {
                is_small = true;
                return Some(error);
            }
            // (What wants no answer does not come through rings.)
            Some(serving.answer(&header, request, reply).unwrap_or(0))
        }
        Err(error) => {
            tracing::error!("a request of the kernel cannot be read: {error}");
            Some(libc::EIO)
        }
    });
    is_small
}

/// Answers it if it is such a write; else nothing is done, and it is for somebody who may wait.
fn answer_small(serving: &Serving, memory: &mut RingMemory) -> bool {
    memory.is_write_of(SMALL_BYTES_MAX)
        && memory.answer(|bytes, reply| {
            let (header, request) = parse(bytes, serving.dialect).ok()?;
            serving.write_at_once(&header, &request, reply)
        })
}
