//! `Polling`: who waits for something that mostly comes soon looks for it for a while before it sleeps.
//!
//! To sleep and to be woken takes two changes of thread, and where the processor sleeps as well 20 to 100 µs more, on
//! virtual machines above all: as long as a read of a fast device. Looking takes processor time instead, so it is done only by those
//! whose waits are short, and by half of the processors at most. After QEMU's `poll-max-ns` and the kernel's hybrid polling
//! of block devices, which learn in the same way whether it pays.
//!
//! Invariants: nobody looks for longer than [`LOOK_MAX`] at a time; of those who look in vain again and again nobody goes on;
//! with one processor, or where it was forbidden, nobody looks at all.

use std::{
    hint::spin_loop,
    sync::{
        LazyLock,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// The longest look.
const LOOK_MAX: Duration = Duration::from_micros(100);
/// Who slept and was woken within this would have found it by looking, as often as not.
const SLEEP_MAX: Duration = Duration::from_micros(200);
/// So many waits have to have been short, in balance,
const SHORT_MIN: u32 = 16;
/// of which each long one takes so many away;
const LONG_COUNTS: u32 = 16;
/// a larger balance is not carried.
const SHORT_MAX: u32 = 64;
/// Rounds between two looks at the clock: about a microsecond.
const ROUNDS: u32 = 16;

static IS_ALLOWED: AtomicBool = AtomicBool::new(true);
/// Threads that look at the moment.
static LOOKING: AtomicUsize = AtomicUsize::new(0);
/// The most that may.
static LOOKING_MAX: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(0, |processors| processors.get() / 2));

/// Allows or forbids it in this process.
pub fn allow_polling(is_allowed: bool) {
    IS_ALLOWED.store(is_allowed, Relaxed);
}

/// Whether anybody may.
pub fn is_polling_allowed() -> bool {
    IS_ALLOWED.load(Relaxed) && *LOOKING_MAX > 0
}

/// See the module: what was seen of the waits for one thing. Threads that note at once may lose a count; nothing hangs on one.
#[derive(Debug, Default)]
pub struct Polling {
    short: AtomicU32,
}

/// One who looks.
struct Looking;

impl Looking {
    fn begin() -> Option<Self> {
        if !IS_ALLOWED.load(Relaxed) {
            return None;
        }
        let looking = Self;
        // Counted first: dropped again if there are enough.
        (LOOKING.fetch_add(1, Relaxed) < *LOOKING_MAX).then_some(looking)
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Relaxed);
    }
}

impl Polling {
    /// Waits with `sleep`, before which it looks, where that pays, until `is_there`.
    pub fn wait<T, W>(
        &self,
        waited_for: &mut W,
        mut is_there: impl FnMut(&mut W) -> bool,
        sleep: impl FnOnce(&mut W) -> T,
    ) -> T {
        let begun = Instant::now();
        let mut limit = SLEEP_MAX;
        if self.pays()
            && let Some(_looking) = Looking::begin()
        {
            limit = LOOK_MAX;
            while !is_there(waited_for) && begun.elapsed() < LOOK_MAX {
                for _ in 0..ROUNDS {
                    spin_loop();
                }
            }
        }
        let slept = sleep(waited_for);
        self.note(begun.elapsed() <= limit);
        slept
    }

    fn pays(&self) -> bool {
        self.short.load(Relaxed) >= SHORT_MIN
    }

    fn note(&self, was_short: bool) {
        let short = self.short.load(Relaxed);
        let now = match was_short {
            true => (short + 1).min(SHORT_MAX),
            false => short.saturating_sub(LONG_COUNTS),
        };
        self.short.store(now, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits once; whether it looked.
    fn looked(polling: &Polling) -> bool {
        let mut looks = 0;
        polling.wait(
            &mut looks,
            |looks| {
                *looks += 1;
                true
            },
            |_| (),
        );
        looks > 0
    }

    #[test]
    fn who_waits_shortly_looks_and_who_waits_long_does_not() {
        if *LOOKING_MAX == 0 {
            return;
        }
        let polling = Polling::default();
        (0..SHORT_MIN).for_each(|_| polling.note(true));
        // Others may look at this moment: that it does at all is to be seen.
        let begun = Instant::now();
        while !looked(&polling) {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never looks");
            std::thread::yield_now();
        }
        (0..SHORT_MAX / LONG_COUNTS).for_each(|_| polling.note(false));
        assert!(!looked(&polling), "none of them pays any more");
        (0..SHORT_MIN).for_each(|_| polling.note(true));
        assert!(polling.pays());
    }

    #[test]
    fn what_does_not_come_is_not_looked_for_any_more() {
        if *LOOKING_MAX == 0 {
            return;
        }
        let polling = Polling::default();
        (0..SHORT_MAX).for_each(|_| polling.note(true));
        let mut waits = 0;
        while polling.pays() {
            // As long as it may, and then it sleeps.
            polling.wait(&mut (), |()| false, |()| std::thread::yield_now());
            waits += 1;
            assert!(waits < 100_000, "it goes on and on");
        }
    }
}
