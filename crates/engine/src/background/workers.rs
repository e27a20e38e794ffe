//! The engine's threads: what calls the steps when nobody else does.
//!
//! Invariants: a worker holds no lock while it waits; `stop` returns when
//! all have ended, and none ends before; a worker that meets an error says so once and goes on slowly, since others may still succeed.
//! Background work steps back while users do something, unless they would soon have to wait for it; the mover does so by
//! itself, as `terrace_mover` describes.

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use terrace_cache::ReadAhead;
use terrace_sync::{Clock, Condvar, Mutex, rank};

use super::{clockwork::Clockwork, throttle::Throttle};
use crate::EngineError;

/// Shortest rest of a worker that found nothing to do.
const REST_MIN: Duration = Duration::from_millis(5);
/// Longest.
const REST_MAX: Duration = Duration::from_millis(200);
/// Whoever was there within this may be back any moment.
const LATELY: Duration = Duration::from_secs(1);
/// How soon a changed commit interval is heeded.
const TICK_MAX: Duration = Duration::from_secs(1);

/// Does a step of background work and says how long to rest then: not at all if nobody else wants the machine.
fn politely(
    clockwork: &Clockwork,
    throttle: &mut Throttle,
    step: impl FnOnce(&Clockwork) -> Result<bool, EngineError>,
) -> Result<Option<Duration>, EngineError> {
    let began = clockwork.clock().monotonic_nanoseconds();
    if !step(clockwork)? {
        return Ok(None);
    }
    Ok(Some(
        throttle.rest(clockwork.clock().since(began), clockwork.standing()),
    ))
}

/// Threads that read ahead: so many streams can wait for slow devices before one that does not has to read for itself.
const AHEAD_THREADS: usize = 4;

/// How much nicer than the others threads are that do background work: a user's request that becomes ready gets the processor
/// before them; where users leave none to spare they still get a quarter of it each.
const NICER: i32 = 5;
const NICEST: i32 = 19;

/// The calling thread gives way to others on the processor. Where that is not allowed it runs as they do.
fn give_way() {
    let thread = Some(rustix::thread::gettid());
    if let Ok(niceness) = rustix::process::getpriority_process(thread) {
        let _ = rustix::process::setpriority_process(thread, (niceness + NICER).min(NICEST));
    }
}

/// A flag that threads can wait for.
#[derive(Default)]
pub(crate) struct StopFlag {
    stopped: Mutex<bool, rank::Leaf>,
    changed: Condvar,
}

impl StopFlag {
    /// Waits for at most `time`; true if it was set.
    pub(crate) fn wait(&self, clock: &dyn Clock, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.changed.wait_within(clock, &mut stopped, time);
        }
        *stopped
    }

    pub(crate) fn set(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }
}

/// Watches over the end of a thread without which the engine is half dead: where nobody asked for it, that is a broken invariant, and
/// ends the process of a daemon.
struct UnaskedEnd<'a> {
    stop: &'a StopFlag,
}

impl<'a> UnaskedEnd<'a> {
    fn watch(stop: &'a StopFlag) -> Self {
        Self { stop }
    }
}

impl Drop for UnaskedEnd<'_> {
    fn drop(&mut self) {
        // Who panics has said why.
        let is_asked = *self.stop.stopped.lock();
        assert!(
            is_asked || std::thread::panicking(),
            "thread {:?} ended, and nobody asked it to",
            std::thread::current().name().unwrap_or_default()
        );
    }
}

/// The running threads.
#[derive(Default)]
pub(crate) struct Workers {
    stop: Arc<StopFlag>,
    read_ahead: Mutex<Option<Arc<ReadAhead>>, rank::Leaf>,
    threads: Mutex<Vec<JoinHandle<()>>, rank::Leaf>,
}

impl Workers {
    /// Starts them.
    pub(crate) fn start(
        &self,
        clockwork: &Arc<Clockwork>,
        read_ahead: &Arc<ReadAhead>,
    ) -> std::io::Result<()> {
        self.spawn("ticker", clockwork, |clockwork| match clockwork.commit_due() {
            // Looks now and then: an interval may have been made shorter.
            Ok(wait) => wait.clamp(REST_MIN, TICK_MAX),
            Err(error) => {
                clockwork.complain("commit", &error);
                TICK_MAX
            }
        })?;
        self.spawn("watch", clockwork, Clockwork::watch_devices)?;
        let (mut rest, mut throttle) = (REST_MIN, Throttle::default());
        let (mut requests, mut used) = (0, clockwork.clock().monotonic_nanoseconds());
        self.spawn_background("store", clockwork, move |clockwork| {
            rest = match politely(clockwork, &mut throttle, Clockwork::store_step) {
                Ok(Some(rest)) => rest,
                Ok(None) => {
                    let standing = clockwork.standing();
                    if std::mem::replace(&mut requests, standing.requests) != standing.requests {
                        used = standing.now_nanoseconds;
                    }
                    // A user who has to wait for room works for it himself, and only as long as he must: who sleeps then
                    // leaves what is left to the next user.
                    if standing.is_pressed && clockwork.clock().since(used) < LATELY {
                        REST_MIN
                    } else {
                        (rest * 2).clamp(REST_MIN, REST_MAX)
                    }
                }
                Err(error) => {
                    clockwork.complain("store", &error);
                    Duration::from_secs(1)
                }
            };
            rest
        })?;
        let (mut rest, mut throttle) = (REST_MIN, Throttle::default());
        self.spawn_background("upkeep", clockwork, move |clockwork| {
            rest = match politely(clockwork, &mut throttle, Clockwork::upkeep_step) {
                Ok(Some(rest)) => rest.max(Duration::from_micros(200)),
                Ok(None) => (rest * 2).clamp(REST_MIN, REST_MAX),
                Err(error) => {
                    clockwork.complain("upkeep", &error);
                    Duration::from_secs(1)
                }
            };
            rest
        })?;
        self.spawn_background("mover", clockwork, |clockwork| {
            // It rests by itself between its steps, by how long users wait.
            match clockwork.mover_step() {
                Ok(None) => Duration::ZERO,
                // Looks now and then: a job may have been added by hand.
                Ok(Some(wait)) => wait.clamp(Duration::from_micros(200), REST_MAX),
                Err(error) => {
                    clockwork.complain("mover", &error);
                    Duration::from_secs(1)
                }
            }
        })?;
        self.read_ahead(read_ahead)?;
        self.spawn("flusher", clockwork, |clockwork| match clockwork.flush_step() {
            Ok(true) => Duration::ZERO,
            Ok(false) => REST_MIN,
            Err(error) => {
                clockwork.complain("flush", &error);
                Duration::from_millis(500)
            }
        })
    }

    /// Threads that fetch what readers in order will want.
    fn read_ahead(&self, read_ahead: &Arc<ReadAhead>) -> std::io::Result<()> {
        *self.read_ahead.lock() = Some(read_ahead.clone());
        for _ in 0..AHEAD_THREADS {
            let (serving, stop) = (read_ahead.clone(), self.stop.clone());
            let thread = std::thread::Builder::new()
                .name("terrace-ahead".into())
                .spawn(move || {
                    let _end = UnaskedEnd::watch(&stop);
                    serving.serve();
                })?;
            self.threads.lock().push(thread);
        }
        read_ahead.open();
        Ok(())
    }

    /// A thread that calls `work` and rests for as long as it says.
    fn spawn(
        &self,
        name: &str,
        clockwork: &Arc<Clockwork>,
        mut work: impl FnMut(&Clockwork) -> Duration + Send + 'static,
    ) -> std::io::Result<()> {
        let (stop, clockwork) = (self.stop.clone(), clockwork.clone());
        let thread = std::thread::Builder::new()
            .name(format!("terrace-{name}"))
            .spawn(move || {
                let _end = UnaskedEnd::watch(&stop);
                let mut rest = REST_MIN;
                while !stop.wait(clockwork.clock(), rest) {
                    rest = work(&clockwork);
                }
            })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// The same, of background work.
    fn spawn_background(
        &self,
        name: &str,
        clockwork: &Arc<Clockwork>,
        mut work: impl FnMut(&Clockwork) -> Duration + Send + 'static,
    ) -> std::io::Result<()> {
        let mut gives_way = false;
        self.spawn(name, clockwork, move |clockwork| {
            if !std::mem::replace(&mut gives_way, true) {
                give_way();
            }
            work(clockwork)
        })
    }

    /// Ends them and waits for that. Does nothing the second time.
    pub(crate) fn stop(&self) {
        self.stop.set();
        let read_ahead = self.read_ahead.lock().take();
        if let Some(read_ahead) = read_ahead {
            read_ahead.close();
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        join(threads);
    }
}

/// Waits for their end. That one panicked does not go unnoticed where no hook has ended the process for it.
fn join(threads: Vec<JoinHandle<()>>) {
    let ends: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
    let mut panics = ends.into_iter().filter_map(Result::err);
    if let Some(cause) = panics.next().filter(|_| !std::thread::panicking()) {
        std::panic::resume_unwind(cause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a thread that returns, with the stop flag set or not, panics.
    fn panics(stopped: bool) -> bool {
        let stop = StopFlag::default();
        if stopped {
            stop.set();
        }
        let ends = || drop(UnaskedEnd::watch(&stop));
        std::thread::scope(|scope| scope.spawn(ends).join()).is_err()
    }

    #[test]
    fn a_thread_that_ends_unasked_is_a_broken_invariant() {
        assert!(panics(false));
        assert!(!panics(true));
    }

    #[test]
    fn a_worker_that_panicked_is_noticed_when_all_are_stopped() {
        let (ended, ends) = std::sync::mpsc::channel();
        let threads = vec![
            std::thread::spawn(|| panic!("a broken invariant")),
            std::thread::spawn(move || ended.send(()).expect("it is waited for")),
        ];
        let joined = std::thread::spawn(|| join(threads)).join();
        assert!(joined.is_err_and(|cause| cause.downcast_ref() == Some(&"a broken invariant")));
        assert!(ends.try_recv().is_ok(), "all have ended");
    }
}
