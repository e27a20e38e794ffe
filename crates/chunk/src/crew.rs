//! `Crew`: the threads that help with large batches.
//!
//! Invariants: made once, when the store is opened – a thread that is made within a request would inherit that thread's
//! CPU and priority; without threads everything runs in the caller, in a fixed order.

/// See the module.
pub(crate) struct Crew {
    pool: Option<rayon::ThreadPool>,
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
        Self { pool }
    }

    /// How many threads can work at once, the caller among them.
    pub(crate) fn hands(&self) -> usize {
        self.pool
            .as_ref()
            .map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Runs `work` in the caller and in up to `hands - 1` others at once; returns when all have ended.
    pub(crate) fn run(&self, hands: usize, work: impl Fn() + Sync) {
        let Some(pool) = self.pool.as_ref().filter(|_| hands > 1) else {
            return work();
        };
        pool.in_place_scope(|scope| {
            for _ in 1..hands.min(pool.current_num_threads()) {
                scope.spawn(|_| work());
            }
            work();
        });
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
