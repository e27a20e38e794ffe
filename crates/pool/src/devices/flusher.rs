//! `Flusher`: flushes one device beside others, on a thread of its own that stays.
//!
//! Invariants: a flush that is asked for begins after everything that was written before; those that wait together share one; nobody waits
//! longer than the device is said to answer, since nothing of the caller's is lent to the thread.

use std::{
    sync::{Arc, OnceLock},
    thread::JoinHandle,
};

use terrace_device::{Device, DeviceError};
use terrace_sync::{Condvar, Mutex, rank};

use super::watch::{Kind, Watch};

#[derive(Default)]
struct State {
    /// Flushes that were asked for, and those that were done: a flush does all that were asked for before it began.
    asked: u64,
    done: u64,
    /// Of the last; `None`: the device did not answer before it was begun.
    outcome: Option<Result<(), DeviceError>>,
    ends: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State, rank::Leaf>,
    /// One was asked for, or the thread is to end.
    asked: Condvar,
    /// One was done, or the device is asked for nothing any more.
    changed: Condvar,
}

/// See the module.
#[derive(Default)]
pub(super) struct Flusher {
    shared: Arc<Shared>,
    thread: OnceLock<Option<JoinHandle<()>>>,
}

/// A flush that was asked for.
pub(super) struct Asked(u64);

impl Flusher {
    /// Asks for a flush; `None` where there is no thread for it.
    pub(super) fn ask(&self, device: &Arc<dyn Device>, watch: &Arc<Watch>) -> Option<Asked> {
        self.thread
            .get_or_init(|| {
                let (shared, device, watch) = (self.shared.clone(), device.clone(), watch.clone());
                let thread = std::thread::Builder::new().name("terrace-flush".into());
                thread.spawn(move || shared.serve(&*device, &watch)).ok()
            })
            .as_ref()?;
        let mut state = self.shared.state.lock();
        state.asked += 1;
        let number = state.asked;
        drop(state);
        self.shared.asked.notify_one();
        Some(Asked(number))
    }

    /// Waits for it; `None` if the device is asked for nothing any more.
    pub(super) fn wait(&self, asked: &Asked, watch: &Watch) -> Option<Result<(), DeviceError>> {
        let mut state = self.shared.state.lock();
        while state.done < asked.0 {
            if watch.is_refused() {
                return None;
            }
            self.shared.changed.wait(&mut state);
        }
        // Once one has failed all later ones do.
        state.outcome.clone()
    }

    /// The device is asked for nothing any more: who waits looks again.
    pub(super) fn wake(&self) {
        // With the lock: who has just looked sleeps by then.
        drop(self.shared.state.lock());
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn serve(&self, device: &dyn Device, watch: &Watch) {
        terrace_device::be_prompt();
        let mut state = self.state.lock();
        loop {
            while state.done == state.asked {
                if state.ends {
                    return;
                }
                self.asked.wait(&mut state);
            }
            let number = state.asked;
            drop(state);
            let outcome = watch.begin(Kind::Flush).map(|_under_way| device.flush());
            state = self.state.lock();
            state.done = number;
            state.outcome = outcome;
            self.changed.notify_all();
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        let is_idle = {
            let mut state = self.shared.state.lock();
            state.ends = true;
            state.done == state.asked
        };
        self.shared.asked.notify_all();
        if let Some(Some(thread)) = self.thread.take()
            && is_idle
        {
            // It lets go of the device. One that hangs in the kernel does so when the kernel does.
            let _ = thread.join();
        }
    }
}
