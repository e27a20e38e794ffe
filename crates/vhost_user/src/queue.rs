//! `Queue`: the requests of one queue of a guest, several under way at once, answered in the order in which they came.
//!
//! Whoever finds that there is more behind the request that it took calls another worker to it (leader and followers,
//! Schmidt et al. 2000), so that a guest that asks for one thing at a time is served by the queue's own thread alone.
//! Invariants: answers go out in the order of the requests, so that all that is not answered lies behind the last answer,
//! whoever of the two sides dies; what was taken is answered before [`Queue::settle`] returns; at most [`WORKERS_MAX`]
//! requests are under way, each with a buffer of its own; locks are taken in the order `ledger`, ring.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use vhost_user_backend::{VringRwLock, VringT};
use virtio_queue::{DescriptorChain, QueueOwnedT, QueueT};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};

/// The guest's memory, which the monitor may exchange.
pub type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
/// A request, as its descriptors in the guest's memory.
pub type Chain = DescriptorChain<<Memory as GuestAddressSpace>::T>;
/// Does what a request asks for; how many bytes it wrote into the guest's memory.
pub type Serve = dyn Fn(Chain, &mut Vec<u8>) -> u32 + Send + Sync;

/// Most requests of one queue that are served at the same time, the queue's own thread included.
const WORKERS_MAX: usize = 8;

/// A request that was taken.
struct Taken {
    /// Its place in the order of answers.
    number: u64,
    chain: Chain,
}

#[derive(Default)]
struct Ledger {
    /// How many requests were taken, and how many of them were answered.
    taken: u64,
    answered: u64,
    /// What is done and waits for those before it: the head of its chain, and the bytes written.
    done: BTreeMap<u64, (u16, u32)>,
    /// Workers that wait to be called, and calls that none of them has heard.
    idle: usize,
    called: usize,
    workers: Vec<JoinHandle<()>>,
    ended: bool,
}

struct Shared {
    memory: Memory,
    closing: Arc<AtomicBool>,
    serve: Arc<Serve>,
    ledger: Mutex<Ledger>,
    call: Condvar,
    settled: Condvar,
}

/// See above.
pub struct Queue(Arc<Shared>);

impl Queue {
    /// Over the guest's memory; once `closing` is set nothing more is taken.
    pub fn new(memory: Memory, closing: Arc<AtomicBool>, serve: Arc<Serve>) -> Self {
        Self(Arc::new(Shared {
            memory,
            closing,
            serve,
            ledger: Mutex::default(),
            call: Condvar::new(),
            settled: Condvar::new(),
        }))
    }

    /// Serves the ring until it is empty; from the queue's own thread. An error: the ring makes no sense.
    pub fn serve_all(&self, vring: &VringRwLock, buffer: &mut Vec<u8>) -> io::Result<()> {
        loop {
            vring.disable_notification().map_err(io::Error::other)?;
            let served = self.0.serve_ring(vring, buffer)?;
            // Something may have come between the last look and asking to be told.
            if !vring.enable_notification().map_err(io::Error::other)? || !served {
                return Ok(());
            }
        }
    }

    /// Waits until everything that was taken is answered. For a ring that is stopped: nothing more is taken of it.
    pub fn settle(&self) {
        let mut ledger = self.0.ledger.lock();
        while ledger.answered < ledger.taken {
            self.0.settled.wait(&mut ledger);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let workers = {
            let mut ledger = self.0.ledger.lock();
            ledger.ended = true;
            std::mem::take(&mut ledger.workers)
        };
        self.0.call.notify_all();
        for worker in workers {
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Takes and serves requests until there is none; whether there was one.
    fn serve_ring(self: &Arc<Self>, vring: &VringRwLock, buffer: &mut Vec<u8>) -> io::Result<bool> {
        let mut served = false;
        while let Some(taken) = self.take(vring)? {
            let head = taken.chain.head_index();
            let written = (self.serve)(taken.chain, buffer);
            self.answer(vring, taken.number, head, written)?;
            served = true;
        }
        Ok(served)
    }

    fn take(self: &Arc<Self>, vring: &VringRwLock) -> io::Result<Option<Taken>> {
        let mut ledger = self.ledger.lock();
        if self.closing.load(Ordering::Acquire) {
            return Ok(None);
        }
        let memory = self.memory.memory();
        let (chain, more) = {
            let mut state = vring.get_mut();
            let enabled = state.is_enabled();
            let queue = state.get_queue_mut();
            if !enabled || !queue.ready() {
                return Ok(None);
            }
            // An index that makes no sense, or rings outside of the memory: the queue stands still.
            let chain = queue.iter(memory.clone()).map_err(io::Error::other)?.next();
            let available = queue.avail_idx(&*memory, Ordering::Acquire);
            let more = available.is_ok_and(|index| index.0 != queue.next_avail());
            (chain, more)
        };
        let Some(chain) = chain else { return Ok(None) };
        let number = ledger.taken;
        ledger.taken += 1;
        if more {
            self.call_another(&mut ledger, vring);
        }
        Ok(Some(Taken { number, chain }))
    }

    /// Calls a worker to what is left in the ring; without one the others serve it all the same.
    fn call_another(self: &Arc<Self>, ledger: &mut MutexGuard<'_, Ledger>, vring: &VringRwLock) {
        if ledger.called < ledger.idle {
            ledger.called += 1;
            self.call.notify_one();
        } else if ledger.workers.len() + 1 < WORKERS_MAX && !ledger.ended {
            let (shared, vring) = (self.clone(), vring.clone());
            let worker = thread::Builder::new()
                .name("vhost-request".into())
                .spawn(move || {
                    terrace_device::be_prompt();
                    shared.work(&vring);
                });
            ledger.workers.extend(worker.ok());
        }
    }

    fn work(self: Arc<Self>, vring: &VringRwLock) {
        let mut buffer = Vec::new();
        loop {
            if let Err(error) = self.serve_ring(vring, &mut buffer) {
                tracing::debug!("vhost-user: a queue stands still: {error}");
            }
            let mut ledger = self.ledger.lock();
            ledger.idle += 1;
            while ledger.called == 0 && !ledger.ended {
                self.call.wait(&mut ledger);
            }
            ledger.idle -= 1;
            if ledger.ended {
                return;
            }
            ledger.called -= 1;
        }
    }

    /// Answers a request, when those before it are answered, and those behind it that waited for it.
    fn answer(&self, vring: &VringRwLock, number: u64, head: u16, written: u32) -> io::Result<()> {
        let mut ledger = self.ledger.lock();
        ledger.done.insert(number, (head, written));
        let mut outcome = Ok(());
        let before = ledger.answered;
        loop {
            let next = ledger.answered;
            let Some((head, written)) = ledger.done.remove(&next) else {
                break;
            };
            ledger.answered += 1;
            outcome = outcome.and(vring.add_used(head, written).map_err(io::Error::other));
        }
        if ledger.answered == before {
            return outcome;
        }
        self.settled.notify_all();
        if vring.needs_notification().map_err(io::Error::other)? {
            vring.signal_used_queue()?;
        }
        outcome
    }
}
