//! The seam to time, so that a simulation decides what time it is, and what happens while somebody waits.
//!
//! Invariant: nothing above this crate reads the time of the system, or waits for a moment, but through here.

use std::{
    cell::Cell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::held;

/// How far a [`Driver`] moves the time at once, nanoseconds: between two looks of somebody who waits.
const DRIVEN_STEP: u64 = 5_000_000;

/// One step of all that would run beside somebody who waits.
pub type Others = Arc<dyn Fn() + Send + Sync>;

/// Tells the time.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Wall clock: nanoseconds since 1970-01-01T00:00:00Z. May jump when the system clock is set.
    fn now_nanoseconds(&self) -> u64;
    /// Nanoseconds since some fixed moment; never goes back.
    fn monotonic_nanoseconds(&self) -> u64;

    /// Who lets the others come on while somebody waits, if there are no threads for that.
    fn driver(&self) -> Option<&dyn Driver> {
        None
    }

    /// There are no threads: from now on waiting calls this, and moves the time, instead of stopping the thread. Clocks that nobody
    /// moves take no notice.
    fn drive_with(&self, _others: Others) {}

    /// The moment that is so far from now, monotonic nanoseconds.
    fn deadline(&self, time: Duration) -> u64 {
        self.monotonic_nanoseconds()
            .saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Time since this monotonic moment; none if it is still to come.
    fn since(&self, monotonic: u64) -> Duration {
        Duration::from_nanos(self.monotonic_nanoseconds().saturating_sub(monotonic))
    }

    /// Does nothing for so long. Nobody is waited for.
    fn rest(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Lets the others come on, and some time pass, but not beyond this monotonic moment. Does nothing without a driver.
    fn drive(&self, deadline: u64) {
        let Some(driver) = self.driver() else { return };
        // One of the others waits: who waits for him already goes on later.
        let driving = Driving::begin();
        if !driving.is_inner {
            held::as_another_thread(|| driver.let_others_run());
        }
        let left = deadline.saturating_sub(self.monotonic_nanoseconds());
        driver.pass(if driving.is_inner {
            left
        } else {
            left.min(DRIVEN_STEP)
        });
    }
}

thread_local! {
    static DRIVING: Cell<bool> = const { Cell::new(false) };
}

/// This thread drives the others until this is dropped, also by a panic: a simulator goes on with the next seed.
struct Driving {
    is_inner: bool,
}

impl Driving {
    fn begin() -> Self {
        Self {
            is_inner: DRIVING.replace(true),
        }
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVING.set(self.is_inner);
    }
}

/// What `attempt` gives, asked again and again while the others come on, for as long as this.
pub(crate) fn drive_until<T>(
    clock: &dyn Clock,
    patience: Duration,
    attempt: impl Fn() -> Option<T>,
) -> Option<T> {
    let deadline = clock.deadline(patience);
    loop {
        let got = attempt();
        if got.is_some() || clock.monotonic_nanoseconds() >= deadline {
            return got;
        }
        clock.drive(deadline);
    }
}

/// Measures how long something takes, for meters alone: no decision depends on it, so the simulator does not see it.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// From now on.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Stands for the threads of a program that has but one: the simulator.
pub trait Driver: Send + Sync {
    /// One step of all that would run beside who waits. What it waits for itself is not driven any further.
    fn let_others_run(&self);
    /// Moves the time forward.
    fn pass(&self, nanoseconds: u64);
}

/// The clock of the operating system.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic side starts now.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now_nanoseconds(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64)
    }

    fn monotonic_nanoseconds(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// A clock that moves only when told to: for tests and the simulator.
#[derive(Default)]
pub struct ManualClock {
    now: AtomicU64,
    monotonic: AtomicU64,
    others: parking_lot::Mutex<Option<Others>>,
    is_driven: AtomicBool,
}

impl ManualClock {
    /// A clock that shows `now_nanoseconds` since 1970.
    pub fn new(now_nanoseconds: u64) -> Self {
        Self {
            now: AtomicU64::new(now_nanoseconds),
            ..Self::default()
        }
    }

    /// Moves both sides forward.
    pub fn advance(&self, nanoseconds: u64) {
        self.now.fetch_add(nanoseconds, Ordering::SeqCst);
        self.monotonic.fetch_add(nanoseconds, Ordering::SeqCst);
    }

    /// Sets the wall clock alone, as an administrator would; may go back.
    pub fn set_now(&self, now_nanoseconds: u64) {
        self.now.store(now_nanoseconds, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_nanoseconds(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    fn monotonic_nanoseconds(&self) -> u64 {
        self.monotonic.load(Ordering::SeqCst)
    }

    /// It moves when told to, and this tells it.
    fn rest(&self, time: Duration) {
        self.pass(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn driver(&self) -> Option<&dyn Driver> {
        self.is_driven
            .load(Ordering::Relaxed)
            .then_some(self as &dyn Driver)
    }

    fn drive_with(&self, others: Others) {
        *self.others.lock() = Some(others);
        self.is_driven.store(true, Ordering::Relaxed);
    }
}

impl Driver for ManualClock {
    fn let_others_run(&self) {
        let others = self.others.lock().clone();
        if let Some(others) = others {
            others();
        }
    }

    fn pass(&self, nanoseconds: u64) {
        self.advance(nanoseconds);
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock")
            .field("now", &self.now)
            .field("monotonic", &self.monotonic)
            .finish_non_exhaustive()
    }
}
