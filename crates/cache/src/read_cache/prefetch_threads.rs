//! `ReadAhead`: threads that fetch what readers in order will want, while those use what is here.
//!
//! Invariants: a stretch is only taken by a thread that waits for one, so that none lies about while its reader comes near:
//! whoever finds nobody fetches when it needs to; without threads (simulation) everything is fetched by the reader itself.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use terrace_sync::{Condvar, Mutex, rank};

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    /// Threads that wait, less the work that lies ready for them.
    free: usize,
    ready: Vec<Work>,
    closed: bool,
}

/// See the module.
#[derive(Default)]
pub struct ReadAhead {
    /// There are threads, or will be soon.
    served: AtomicBool,
    state: Mutex<State, rank::Leaf>,
    called: Condvar,
}

impl ReadAhead {
    /// From now on threads [`serve`](Self::serve).
    pub fn open(&self) {
        self.served.store(true, Relaxed);
    }

    /// Whether threads serve.
    pub fn is_served(&self) -> bool {
        self.served.load(Relaxed)
    }

    /// Has a thread do `work` now; drops it if none is free.
    pub fn offer(&self, work: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.state.lock();
        if state.closed || state.free == 0 {
            return false;
        }
        state.free -= 1;
        state.ready.push(Box::new(work));
        drop(state);
        self.called.notify_one();
        true
    }

    /// Does what is offered, until closed.
    pub fn serve(&self) {
        let mut state = self.state.lock();
        state.free += 1;
        while !state.closed {
            let Some(work) = state.ready.pop() else {
                self.called.wait(&mut state);
                continue;
            };
            drop(state);
            // If it panics the thread is gone, and was not counted as free.
            work();
            state = self.state.lock();
            state.free += 1;
        }
    }

    /// Lets the threads end; what is ready is dropped.
    pub fn close(&self) {
        self.served.store(false, Relaxed);
        let mut state = self.state.lock();
        state.closed = true;
        let ready = std::mem::take(&mut state.ready);
        drop(state);
        drop(ready);
        self.called.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn only_who_waits_takes_work_and_nobody_after_the_end() {
        let ahead = Arc::new(ReadAhead::default());
        assert!(!ahead.is_served());
        ahead.open();
        assert!(ahead.is_served());
        assert!(!ahead.offer(|| unreachable!("nobody waits yet")));
        let thread = {
            let ahead = ahead.clone();
            std::thread::spawn(move || ahead.serve())
        };
        let (begun, begins) = mpsc::channel();
        for round in 0..3 {
            let (go_on, may_go_on) = mpsc::channel::<()>();
            let work = Arc::new(Mutex::<_, rank::Leaf>::new(Some((begun.clone(), may_go_on))));
            // Until the thread waits (again).
            while !ahead.offer({
                let work = work.clone();
                move || {
                    let (begun, may_go_on) = work.lock().take().unwrap();
                    begun.send(round).unwrap();
                    may_go_on.recv().unwrap();
                }
            }) {
                std::thread::yield_now();
            }
            assert!(!ahead.offer(|| unreachable!("nobody is free")));
            assert_eq!(begins.recv(), Ok(round));
            go_on.send(()).unwrap();
        }
        ahead.close();
        thread.join().unwrap();
        assert!(!ahead.offer(|| unreachable!("closed")) && !ahead.is_served());
    }
}
