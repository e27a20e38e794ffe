//! `Crew`: how many threads wait for requests, and when a further one is called.
//!
//! One thread (on large machines a few) *receives*: it takes a request, serves it at once and looks for the next. That
//! is the cheapest way to serve requests that take microseconds: no thread is woken. What may take longer would hold
//! up those behind it, so before serving such a request the receiver hands its place to another thread. Which
//! operations take long is learned: by operation and size, from how long they took lately. A request that surprises
//! (a cheap operation that had to wait for a disk) is noticed by a watcher thread, which gives the place away.
//!
//! Invariants: at most `places` threads receive, except for a moment after the watcher stepped in; whenever a
//! receiver is stuck longer than [`STUCK`], another one receives, up to `threads_max`; nobody runs while there are no
//! requests.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::protocol::operation;

/// A request that takes longer than this is handed over before it is served.
const SLOW: Duration = Duration::from_micros(25);
/// The most that one request counts for when learning, so that a thread that lost its core once does not make a cheap
/// operation look slow.
const COUNTED_MAX: Duration = Duration::from_micros(100);
/// How often the watcher looks while requests come.
const STUCK: Duration = Duration::from_micros(400);
/// For how many looks without a request the watcher stays awake.
const IDLE_LOOKS: u32 = 8;
/// How long it sleeps before its thread ends.
const WATCHER_REST: Duration = Duration::from_secs(30);
/// Requests with more data than this are learned about separately.
const LARGE_BYTES: usize = 16 * 1024;

/// What a receiving thread shows to the watcher.
#[derive(Default)]
pub struct Place {
    /// The queue that the thread serves through a ring (`uring_threads.rs`); it keeps its place whatever happens.
    queue: Option<usize>,
    /// Whether the thread still has its place.
    held: AtomicBool,
    /// Odd while it serves a request; changes with each.
    turn: AtomicU64,
    /// Of a ring's thread: it began to serve when nobody else of its queue waited, since the watcher looked last.
    alone: AtomicBool,
}

impl Place {
    /// That of a thread which serves a ring's queue.
    pub fn of_queue(queue: usize) -> Self {
        Self {
            queue: Some(queue),
            ..Self::default()
        }
    }

    /// The queue that the thread serves, if it serves one.
    pub fn queue(&self) -> Option<usize> {
        self.queue
    }
}

#[derive(Default)]
struct State {
    receiving: usize,
    waiting: usize,
    threads: usize,
    ended: bool,
}

/// The threads that serve one mount.
pub struct Crew {
    state: Mutex<State>,
    called: Condvar,
    places: usize,
    threads_max: usize,
    /// Smoothed time an operation took, nanoseconds, small and large.
    took_nanos: Vec<[AtomicU32; 2]>,
    /// Whether the watcher sleeps, or its thread has ended.
    watcher_sleeps: AtomicBool,
    watcher: Condvar,
    /// Whether the watcher has a thread.
    watcher_lock: Mutex<bool>,
    ended: AtomicBool,
}

/// Why a thread leaves off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// It may receive.
    Receive,
    /// The mount has ended.
    End,
}

impl Crew {
    /// With `places` receiving at a time, and up to `threads_max` that serve.
    pub fn new(places: usize, threads_max: usize) -> Self {
        let took_nanos = (0..operation::COUNT).map(|number| {
            let slow = matches!(
                number as u32,
                operation::FSYNC | operation::FSYNCDIR | operation::COPY_FILE_RANGE
            );
            let start = if slow { 10 * SLOW.as_nanos() as u32 } else { 0 };
            [AtomicU32::new(start), AtomicU32::new(start)]
        });
        Self {
            state: Mutex::default(),
            called: Condvar::new(),
            places: places.max(1),
            threads_max: threads_max.max(2),
            took_nanos: took_nanos.collect(),
            watcher_sleeps: AtomicBool::new(true),
            watcher: Condvar::new(),
            watcher_lock: Mutex::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// Counts a thread in; false if there are enough.
    pub fn join(&self) -> bool {
        let mut state = self.state.lock();
        if state.threads >= self.threads_max || state.ended {
            return false;
        }
        state.threads += 1;
        true
    }

    /// Waits for a place, at most for `limit` if there is one; `None` when that has passed.
    pub fn enter(&self, place: &Place, limit: Option<Duration>) -> Option<Call> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut state = self.state.lock();
        state.waiting += 1;
        let mut has_passed = false;
        while !state.ended && state.receiving >= self.places && !has_passed {
            match until {
                Some(until) => has_passed = self.called.wait_until(&mut state, until).timed_out(),
                None => self.called.wait(&mut state),
            }
        }
        state.waiting -= 1;
        if state.ended {
            return Some(Call::End);
        }
        if state.receiving >= self.places {
            return None;
        }
        state.receiving += 1;
        place.held.store(true, Ordering::Relaxed);
        Some(Call::Receive)
    }

    /// No thread could be had for one that was counted in.
    pub fn did_not_join(&self) {
        self.state.lock().threads -= 1;
    }

    /// A thread that gave its place away has it again: nobody could be had to take it.
    pub fn take_back(&self, place: &Place) {
        self.state.lock().receiving += 1;
        place.held.store(true, Ordering::Release);
    }

    /// Whether everyone is to stop.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Counts a thread out that has had nothing to do for long; false if the others could be too few without it.
    pub fn quit(&self) -> bool {
        let mut state = self.state.lock();
        let is_spare = !state.ended && state.receiving >= self.places;
        if is_spare {
            state.threads -= 1;
        }
        is_spare
    }

    /// Gives the place of a thread away, if it still has it; true if a new thread should be started to take it.
    pub fn leave(&self, place: &Place) -> bool {
        if !place.held.swap(false, Ordering::AcqRel) {
            return false;
        }
        let mut state = self.state.lock();
        state.receiving -= 1;
        if state.waiting > 0 {
            drop(state);
            self.called.notify_one();
            return false;
        }
        state.threads < self.threads_max && !state.ended
    }

    /// Whether the thread still has its place.
    pub fn holds(&self, place: &Place) -> bool {
        place.held.load(Ordering::Acquire)
    }

    /// Everyone is to stop; said by a receiving thread, which gives up its place.
    pub fn end_here(&self, place: &Place) {
        self.end();
        self.leave(place);
    }

    /// Everyone is to stop.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.called.notify_all();
        let _guard = self.watcher_lock.lock();
        self.ended.store(true, Ordering::SeqCst);
        self.watcher.notify_all();
    }

    /// Whether requests like this took long lately.
    pub fn is_slow(&self, operation: u32, bytes: usize) -> bool {
        self.slot(operation, bytes)
            .is_some_and(|took| took.load(Ordering::Relaxed) > SLOW.as_nanos() as u32)
    }

    /// Tells how long a request took.
    pub fn learn(&self, operation: u32, bytes: usize, took: Duration) {
        let Some(slot) = self.slot(operation, bytes) else {
            return;
        };
        let took = took.min(COUNTED_MAX).as_nanos() as u32;
        let old = slot.load(Ordering::Relaxed);
        // One eighth of the new: a race loses one sample.
        slot.store(old - old / 8 + took / 8, Ordering::Relaxed);
    }

    fn slot(&self, operation: u32, bytes: usize) -> Option<&AtomicU32> {
        self.took_nanos
            .get(operation as usize)
            .map(|slots| &slots[usize::from(bytes > LARGE_BYTES)])
    }

    /// Marks that a thread begins to serve a request, and wakes the watcher if it sleeps; true if it has no thread, and one is to be
    /// [started](Self::watch).
    ///
    /// This and the watcher's going to sleep are ordered (Dekker's way: each writes its own flag, then reads the
    /// other's): either the watcher sees the new turn and stays awake, or we see that it sleeps and wake it. It holds
    /// its lock from before it says that it sleeps until it waits, so that the call cannot come too early.
    #[must_use]
    pub fn begin(&self, place: &Place) -> bool {
        place.turn.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !self.watcher_sleeps.load(Ordering::SeqCst) {
            return false;
        }
        let mut has_thread = self.watcher_lock.lock();
        self.watcher.notify_all();
        !std::mem::replace(&mut *has_thread, true)
    }

    /// The same of a thread that serves a ring's queue. Unless it is `alone`, so that nobody of its queue waits for the next
    /// request, the watcher may sleep: waking it for a caller who makes one request after the other costs him, on a machine with few
    /// processors, a change of threads every time it looks.
    #[must_use]
    pub fn begin_in_queue(&self, place: &Place, alone: bool) -> bool {
        if alone {
            place.alone.store(true, Ordering::SeqCst);
            return self.begin(place);
        }
        place.turn.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// No thread could be had for the watcher: the next request asks for one again.
    pub fn has_no_watcher(&self) {
        *self.watcher_lock.lock() = false;
    }

    /// Marks that it is done.
    pub fn done(&self, place: &Place) {
        place.turn.fetch_add(1, Ordering::Release);
    }

    /// The life of the watcher's thread: while requests come, it looks at each place now and then and tells of those whose threads are
    /// stuck in one request. `places` lists them; `stuck` answers whether that is a reason to look again soon. It ends with the
    /// mount, and when no request came for long.
    pub fn watch(&self, places: impl Fn() -> Vec<std::sync::Arc<Place>>, stuck: impl Fn(&Place) -> bool) {
        // Whether there is a reason to look again.
        let has_moved = |place: &Place, turn: u64, seen: Option<&u64>| match place.queue {
            Some(_) => place.alone.swap(false, Ordering::SeqCst),
            None => seen != Some(&turn),
        };
        let is_quiet = |seen: &[u64]| {
            let places = places();
            places.len() == seen.len()
                && places.iter().zip(seen).all(|(place, seen)| match place.queue {
                    Some(_) => !place.alone.load(Ordering::SeqCst),
                    None => place.turn.load(Ordering::SeqCst) == *seen,
                })
        };
        let mut seen: Vec<u64> = Vec::new();
        let mut idle_looks = 0;
        self.watcher_sleeps.store(false, Ordering::SeqCst);
        while !self.ended.load(Ordering::Acquire) {
            let mut guard = self.watcher_lock.lock();
            if idle_looks >= IDLE_LOOKS {
                self.watcher_sleeps.store(true, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                if !self.ended.load(Ordering::SeqCst) && is_quiet(&seen) {
                    let has_rested = self.watcher.wait_for(&mut guard, WATCHER_REST).timed_out();
                    // Whoever began meanwhile found that there is a thread.
                    if has_rested && is_quiet(&seen) {
                        *guard = false;
                        return;
                    }
                }
                self.watcher_sleeps.store(false, Ordering::SeqCst);
                idle_looks = 0;
            }
            if !self.ended.load(Ordering::SeqCst) {
                self.watcher.wait_until(&mut guard, Instant::now() + STUCK);
            }
            drop(guard);
            let now: Vec<_> = places();
            let mut moved = false;
            let mut looked = Vec::with_capacity(now.len());
            for (index, place) in now.iter().enumerate() {
                let turn = place.turn.load(Ordering::Relaxed);
                looked.push(turn);
                moved |= has_moved(place, turn, seen.get(index));
                if seen.get(index) == Some(&turn)
                    && turn % 2 == 1
                    && (place.queue.is_some() || self.holds(place))
                {
                    // Of a ring's thread it matters while nobody else of its queue waits.
                    moved |= stuck(place);
                }
            }
            seen = looked;
            idle_looks = if moved { 0 } else { idle_looks + 1 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_a_place_may_end_while_another_receives() {
        let crew = Crew::new(1, 4);
        let (first, second) = (Place::default(), Place::default());
        assert!(crew.join() && crew.join());
        assert_eq!(crew.enter(&first, None), Some(Call::Receive));
        assert_eq!(crew.enter(&second, Some(Duration::ZERO)), None);
        assert!(crew.quit());
        // Nobody waits: the next to be stuck has a thread started.
        assert!(crew.leave(&first));
        // The last one stays while nobody receives, and when the mount ends it is told so.
        assert!(!crew.quit());
        assert_eq!(crew.enter(&second, Some(Duration::ZERO)), Some(Call::Receive));
        crew.end();
        assert!(!crew.quit());
        assert_eq!(crew.enter(&first, Some(Duration::ZERO)), Some(Call::End));
    }
}
