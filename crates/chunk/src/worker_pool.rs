//! `Crew`: the threads that help with large batches.
//!
//! Invariants: made once, when the store is opened – a thread that is made within a request would inherit that thread's
//! CPU and priority; without threads everything runs in the caller, in a fixed order; no help is asked for that is not free:
//! who would wait for it waits for what that thread is busy with, which may wait for a lock that the caller holds. Nor are there
//! ever more at work than processors, those who ask counted: several of them at once need no help but keep each other busy; and
//! there is no thread that could never come, which would look for work each time another one is called. Who helps asks for no help:
//! a thread of the crew that waits for others does meanwhile what anybody else has asked for, under the locks that it holds itself.

use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module.
pub(crate) struct Crew {
    pool: Option<rayon::ThreadPool>,
    /// Most at work at once, callers and helpers.
    hands: usize,
    /// Who works, callers and helpers.
    at_work: AtomicUsize,
}

impl Crew {
    /// `threads` including the caller; 0 and 1: nobody helps.
    pub(crate) fn new(threads: usize) -> Self {
        let pool = (threads > 1).then(|| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads - 1)
                .thread_name(|number| format!("terrace-crew-{number}"))
                .build()
        });
        let pool = pool.and_then(|made| {
            made.inspect_err(|error| tracing::warn!(%error, "no threads to help with large batches"))
                .ok()
        });
        let at_work = AtomicUsize::new(0);
        Self {
            pool,
            hands: threads,
            at_work,
        }
    }

    /// Asks up to `most` threads for help, as many as are free beside those at work; how many come.
    fn call(&self, most: usize) -> usize {
        let comes = |at_work: usize| most.min(self.hands.saturating_sub(at_work));
        let more = |at_work: usize| Some(at_work + comes(at_work));
        let before = self
            .at_work
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        before.map_or(0, comes)
    }

    /// Runs `work` in the caller and in up to `hands - 1` others that are free at once; returns when all have ended.
    pub(crate) fn run(&self, hands: usize, work: impl Fn() + Sync) {
        let asks = |pool: &&rayon::ThreadPool| hands > 1 && pool.current_thread_index().is_none();
        let Some(pool) = self.pool.as_ref().filter(asks) else {
            return work();
        };
        let at_work = &self.at_work;
        at_work.fetch_add(1, Ordering::AcqRel);
        let _mine = Leaves(at_work);
        let called = self.call(hands - 1);
        if called == 0 {
            return work();
        }
        pool.in_place_scope(|scope| {
            for _ in 0..called {
                scope.spawn(|_| {
                    let _helped = Leaves(at_work);
                    work();
                });
            }
            work();
        });
    }
}

/// Counts one less at work, also if the work panics.
struct Leaves<'a>(&'a AtomicUsize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
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
        let helpers = crew.pool.map(|pool| pool.current_num_threads());
        assert_eq!(helpers, Some(2), "the caller is the third");
    }

    #[test]
    fn who_finds_nobody_free_works_alone_and_waits_for_nobody() {
        let crew = Crew::new(3);
        let (begun, end) = (Barrier::new(4), Barrier::new(4));
        let ran = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            // One with a helper, and another for whom there is only itself.
            scope.spawn(|| {
                crew.run(2, || {
                    begun.wait();
                    end.wait();
                })
            });
            scope.spawn(|| {
                while crew.at_work.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                crew.run(2, || {
                    begun.wait();
                    end.wait();
                })
            });
            begun.wait();
            crew.run(2, || {
                ran.fetch_add(1, Ordering::SeqCst);
            });
            end.wait();
        });
        assert_eq!(ran.into_inner(), 1);
        assert_eq!(crew.at_work.into_inner(), 0, "all have left");
    }

    /// A helper of one who writes may make room, under a lock that helpers of another one wait for: who waits for help would take
    /// up their work.
    #[test]
    fn who_helps_works_alone_at_what_he_asks_for() {
        let crew = Crew::new(8);
        let caller = std::thread::current().id();
        let (ran, has_helped) = (AtomicUsize::new(0), AtomicUsize::new(0));
        crew.run(2, || {
            if std::thread::current().id() == caller {
                while has_helped.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                return;
            }
            let helper = std::thread::current().id();
            crew.run(4, || {
                ran.fetch_add(1, Ordering::SeqCst);
                assert_eq!(std::thread::current().id(), helper);
            });
            has_helped.store(1, Ordering::SeqCst);
        });
        assert_eq!(ran.into_inner(), 1);
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
