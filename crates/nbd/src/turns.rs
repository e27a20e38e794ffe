//! `Turns`: whose turn it is to receive from a client.
//!
//! Several workers wait for one socket, and the kernel wakes one of them when something has come: that one has the turn until it
//! passes it on (leader/followers, Schmidt et al. 2000, with the kernel's queue as the place where followers wait). So nobody
//! is woken to wait: a lock that is handed over wakes the next worker for each request, to wait for the socket in its
//! turn, and on virtual processors that takes longer than the request.
//!
//! Invariants: at most one worker has the turn; it is passed on however its holder ends, and if something has been
//! received and not served, or nothing more will come, another one is woken at once. A connection without a queue
//! (no descriptor left for it) is served all the same, by one worker that keeps the turn.

use std::{
    io::{self, BufReader},
    ops::{Deref, DerefMut},
    os::fd::OwnedFd,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use rustix::{
    event::{EventfdFlags, epoll, eventfd},
    io::Errno,
};

use crate::{channel::Incoming, connection::Stream, seats::Seated};

/// Something has come from the client.
const CLIENT: epoll::EventData = epoll::EventData::new_u64(0);
/// Somebody left something.
const LEFT: epoll::EventData = epoll::EventData::new_u64(1);
/// After so many requests in a row for which the turn was kept, the kernel is asked no longer to tell of what comes: that costs a
/// microsecond for each.
const KEPT_IN_A_ROW: usize = 16;

/// See above.
pub struct Turns {
    reader: Mutex<BufReader<Incoming>>,
    socket: Stream,
    queue: OnceLock<Option<Queue>>,
    waiting: AtomicUsize,
    /// How often in a row the turn was kept; the holder's.
    kept: AtomicUsize,
}

/// Where workers wait.
struct Queue {
    epoll: OwnedFd,
    /// Whether the socket is in the queue; the holder's.
    has_socket: AtomicBool,
    _seated: Seated,
}

/// The right to receive, passed on when dropped.
pub struct Turn<'a> {
    turns: &'a Turns,
    reader: MutexGuard<'a, BufReader<Incoming>>,
    is_last: bool,
}

/// What can always be read: whoever asks for it is woken. One for all.
fn ready() -> io::Result<&'static OwnedFd> {
    static READY: OnceLock<OwnedFd> = OnceLock::new();
    match READY.get() {
        Some(ready) => Ok(ready),
        None => {
            let ready = eventfd(1, EventfdFlags::CLOEXEC)?;
            Ok(READY.get_or_init(|| ready))
        }
    }
}

impl Queue {
    fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, ready()?, LEFT, epoll::EventFlags::ONESHOT)?;
        Ok(Self {
            epoll,
            has_socket: AtomicBool::new(false),
            _seated: Seated::new(),
        })
    }

    fn wait(&self) {
        let flags = epoll::EventFlags::empty();
        let mut events = [epoll::Event { flags, data: CLIENT }];
        // Nothing but a signal, which nobody here waits for, ends this without an event.
        while matches!(
            epoll::wait(&self.epoll, &mut events, None),
            Ok(0) | Err(Errno::INTR)
        ) {}
    }

    /// Wakes one who waits: at once, or when something comes.
    fn pass(&self, socket: &Stream, at_once: bool) {
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let told = !at_once
            && match self.has_socket.load(Ordering::Relaxed) {
                true => epoll::modify(&self.epoll, socket, CLIENT, once),
                false => epoll::add(&self.epoll, socket, CLIENT, once),
            }
            .inspect(|()| self.has_socket.store(true, Ordering::Relaxed))
            .is_ok();
        if !told {
            // Of what is in a queue already this takes no memory, and so does not fail. Who is woken waits at the socket.
            let woken = ready().and_then(|ready| Ok(epoll::modify(&self.epoll, ready, LEFT, once)?));
            debug_assert!(woken.is_ok(), "{woken:?}");
        }
    }

    /// Leaves the socket alone until the turn is passed again.
    fn rest(&self, socket: &Stream) {
        if self.has_socket.load(Ordering::Relaxed) && epoll::delete(&self.epoll, socket).is_ok() {
            self.has_socket.store(false, Ordering::Relaxed);
        }
    }
}

impl Turns {
    /// For one client.
    pub fn new(reader: BufReader<Incoming>) -> Self {
        Self {
            socket: reader.get_ref().socket().handle(),
            reader: Mutex::new(reader),
            queue: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
        }
    }

    /// The first turn, for the first worker.
    pub fn first(&self) -> Turn<'_> {
        Turn {
            turns: self,
            reader: self.reader.lock(),
            is_last: false,
        }
    }

    /// Waits for the turn. Only after it could be [passed](Self::can_pass).
    pub fn wait(&self) -> Turn<'_> {
        if let Some(queue) = self.queue() {
            self.waiting.fetch_add(1, Ordering::AcqRel);
            queue.wait();
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        self.first()
    }

    /// What comes from the client comes through it.
    pub fn socket(&self) -> &Stream {
        &self.socket
    }

    /// How many workers wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Whether others can have the turn: else there is to be one worker alone.
    pub fn can_pass(&self) -> bool {
        self.queue().is_some()
    }

    fn queue(&self) -> Option<&Queue> {
        self.queue
            .get_or_init(|| {
                Queue::new()
                    .inspect_err(|error| tracing::debug!("NBD: no queue: {error}"))
                    .ok()
            })
            .as_ref()
    }
}

impl Turn<'_> {
    /// Says that it is kept for a request that is served.
    pub fn keep(&self) {
        let kept = self.turns.kept.load(Ordering::Relaxed) + 1;
        self.turns.kept.store(kept.min(KEPT_IN_A_ROW), Ordering::Relaxed);
        if kept == KEPT_IN_A_ROW
            && let Some(Some(queue)) = self.turns.queue.get()
        {
            queue.rest(&self.turns.socket);
        }
    }

    /// Says that nothing more is to be received: all others are to know.
    pub fn end(mut self) {
        self.is_last = true;
    }
}

impl Deref for Turn<'_> {
    type Target = BufReader<Incoming>;

    fn deref(&self) -> &Self::Target {
        &self.reader
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.reader
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.kept.store(0, Ordering::Relaxed);
        // Who is woken needs longer to come than the lock is held after this.
        if let Some(Some(queue)) = self.turns.queue.get() {
            let holds = !self.reader.buffer().is_empty() || self.reader.get_ref().holds_something();
            queue.pass(&self.turns.socket, self.is_last || holds);
        }
    }
}
