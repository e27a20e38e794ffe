//! `Turns`: the right to receive from a client, which one worker has at a time.
//!
//! Leader and followers (Schmidt et al. 2000): the worker that has the turn receives a request and passes the turn on before
//! it serves. Invariant: a turn is passed on when it is dropped, however its holder ends.

use std::{
    io::BufReader,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::{Mutex, MutexGuard};

use super::channel::Incoming;

/// See the module.
pub struct Turns {
    reader: Mutex<BufReader<Incoming>>,
    waiting: AtomicUsize,
}

/// The right to receive.
pub type Turn<'a> = MutexGuard<'a, BufReader<Incoming>>;

impl Turns {
    /// For one client.
    pub fn new(reader: BufReader<Incoming>) -> Self {
        Self {
            reader: Mutex::new(reader),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Waits for the turn.
    pub fn wait(&self) -> Turn<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let turn = self.reader.lock();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        turn
    }

    /// Workers that wait for the turn.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }
}
