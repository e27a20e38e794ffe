//! `Crew`: the threads that help with large batches.
//!
//! Invariants: made once, when the store is opened – a thread that is made within a request would inherit that thread's
//! CPU and priority; without threads everything runs in the caller, in a fixed order; no help is asked for that is not free:
//! who would wait for it waits for what that thread is busy with, which may wait for a lock that the caller holds.

use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module.
pub(crate) struct Crew {
    pool: Option<rayon::ThreadPool>,
    /// Threads that nobody has asked for help.
    free: AtomicUsize,
}

impl Crew {
    /// `threads` including the caller; 0 and 1: nobody helps.
    pub(crate) fn new(threads: usize) -> Self {
        let pool = (threads > 1).then(|| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|number| format!("terrace-crew-{number}"))
                .build()
        });
        let pool = pool.and_then(|made| {
            made.inspect_err(|error| tracing::warn!(%error, "no threads to help with large batches"))
                .ok()
        });
        let free = AtomicUsize::new(pool.as_ref().map_or(0, rayon::ThreadPool::current_num_threads));
        Self { pool, free }
    }

    /// Asks up to `most` free threads for help; how many come.
    fn call(&self, most: usize) -> usize {
        let less = |free: usize| Some(free - most.min(free));
        let before = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        before.map_or(0, |before| most.min(before))
    }

    /// How many threads can work at once, the caller among them.
    pub(crate) fn hands(&self) -> usize {
        self.pool
            .as_ref()
            .map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Runs `work` in the caller and in up to `hands - 1` others that are free at once; returns when all have ended.
    pub(crate) fn run(&self, hands: usize, work: impl Fn() + Sync) {
        let Some(pool) = self.pool.as_ref().filter(|_| hands > 1) else {
            return work();
        };
        let called = self.call(hands.min(pool.current_num_threads()) - 1);
        pool.in_place_scope(|scope| {
            for _ in 0..called {
                scope.spawn(|_| {
                    let _free_again = FreeAgain(&self.free);
                    work();
                });
            }
            work();
        });
    }
}

/// Counts a thread as free again, also if its work panics.
struct FreeAgain<'a>(&'a AtomicUsize);

impl Drop for FreeAgain<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[test]
    fn as_many_work_at_once_as_were_asked_for() {
        let crew = Crew::new(3);
        let meet = Barrier::new(3);
        let ran = AtomicUsize::new(0);
        crew.run(3, || {
            // Nobody passes unless three are here.
            meet.wait();
            ran.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(ran.into_inner(), 3);
    }

    #[test]
    fn who_finds_nobody_free_works_alone_and_waits_for_nobody() {
        let crew = Crew::new(2);
        let (begun, end) = (Barrier::new(5), Barrier::new(5));
        let ran = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    crew.run(2, || {
                        begun.wait();
                        end.wait();
                    })
                });
            }
            begun.wait();
            crew.run(2, || {
                ran.fetch_add(1, Ordering::SeqCst);
            });
            end.wait();
        });
        assert_eq!(ran.into_inner(), 1);
        assert_eq!(crew.free.into_inner(), 2, "all are free again");
    }

    #[test]
    fn without_threads_the_caller_works_alone() {
        let caller = std::thread::current().id();
        let ran = AtomicUsize::new(0);
        Crew::new(0).run(4, || {
            assert_eq!(std::thread::current().id(), caller);
            ran.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(ran.into_inner(), 1);
    }
}
