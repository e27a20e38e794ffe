//! The order of locks is checked, and whoever waits under a driver lets the others come on and the time pass.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

use terrace_sync::{
    Clock, Condvar, ManualClock, Mutex, Round, Rounds, RwLock, SystemClock, about_to_do_io,
    as_another_thread, rank,
};

fn is_refused(work: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

#[test]
fn every_place_is_named_once_and_the_order_is_that_of_the_list() {
    let levels: Vec<usize> = rank::ALL.iter().map(|place| place.level).collect();
    assert!(levels.is_sorted_by(|one, next| one < next));
    assert!(levels.iter().all(|level| *level < usize::MAX), "leaves come last");
}

#[test]
fn a_lock_is_taken_in_order_or_not_at_all() {
    let turn: Mutex<(), rank::chunk::Turn> = Mutex::default();
    let commit: Mutex<(), rank::append::Commit> = Mutex::default();
    let leaf: RwLock<(), rank::Leaf> = RwLock::default();
    {
        let _turn = turn.lock();
        let _commit = commit.lock();
        let _leaf = leaf.read();
        assert!(
            is_refused(|| drop(leaf.read())),
            "it would wait for a writer between the two"
        );
    }
    {
        let _commit = commit.lock();
        assert!(is_refused(|| drop(turn.lock())));
        assert!(turn.try_lock().is_some(), "nobody waits");
    }
    drop(turn.lock());
}

#[test]
fn of_some_a_thread_holds_several_but_none_twice() {
    let inodes: [RwLock<(), rank::dataset::Inode>; 2] = Default::default();
    let _one = inodes[0].write();
    let _other = inodes[1].write();
    assert!(is_refused(|| drop(inodes[1].read())));
}

#[test]
fn no_device_is_asked_below_a_lock_that_is_never_held_across_io() {
    let turn: Mutex<(), rank::chunk::Turn> = Mutex::default();
    let commit: Mutex<(), rank::append::Commit> = Mutex::default();
    let _turn = turn.lock();
    about_to_do_io();
    let commit = commit.lock();
    assert!(is_refused(about_to_do_io));
    // What happens in a simulated device meanwhile is another thread's.
    as_another_thread(about_to_do_io);
    drop(commit);
    about_to_do_io();
}

#[test]
fn what_another_thread_would_do_never_waits_for_what_this_one_holds() {
    let turn: Mutex<(), rank::chunk::Turn> = Mutex::default();
    let _turn = turn.lock();
    assert!(is_refused(|| as_another_thread(|| drop(turn.lock()))));
}

#[test]
fn panic_of_another_leaves_nothing_behind() {
    let turn: Mutex<(), rank::chunk::Turn> = Mutex::default();
    let clock = ManualClock::new(1);
    clock.drive_with(Arc::new(|| panic!("a broken invariant")));
    let held: Mutex<(), rank::append::Commit> = Mutex::default();
    let guard = held.lock();
    assert!(is_refused(|| clock.drive(u64::MAX)));
    // It is still known that this one is held, and whom the next wait drives.
    assert!(is_refused(about_to_do_io));
    assert!(is_refused(|| clock.drive(u64::MAX)));
    drop(guard);
    let as_others = || as_another_thread(|| drop(held.lock()));
    as_others();
    drop(turn.lock());
}

#[test]
fn guard_is_released_for_an_unlocked_call() {
    let commit: Mutex<u32, rank::append::Commit> = Mutex::new(1);
    let mut guard = commit.lock();
    terrace_sync::MutexGuard::unlocked(&mut guard, || {
        about_to_do_io();
        *commit.lock() += 1;
    });
    assert_eq!(*guard, 2);
    assert!(is_refused(about_to_do_io));
}

#[test]
fn under_a_driver_the_others_come_on_while_one_waits_and_the_time_passes() {
    let clock = ManualClock::new(1);
    let state: Arc<Mutex<u32, rank::Leaf>> = Arc::default();
    let others = state.clone();
    clock.drive_with(Arc::new(move || *others.lock() += 1));
    let changed = Condvar::new();
    let mut guard = state.lock();
    let mut looks = 0;
    while *guard < 3 {
        changed.wait_within(&clock, &mut guard, Duration::from_secs(1));
        looks += 1;
    }
    assert_eq!(looks, 3);
    assert!(clock.monotonic_nanoseconds() > 0);
    drop(guard);
    // Nobody gives it back: it is waited for as long as was said, and no longer.
    let held: Mutex<(), rank::chunk::Turn> = Mutex::default();
    let before = clock.monotonic_nanoseconds();
    let _held = held.lock();
    assert!(held.lock_within(&clock, Duration::from_millis(20)).is_none());
    assert_eq!(clock.since(before), Duration::from_millis(20));
}

/// A round that tells of its begin, and ends when it may.
struct Slow<'a> {
    begun: &'a AtomicU32,
    may_end: Option<mpsc::Receiver<()>>,
}

impl Round for Slow<'_> {
    type Result = u32;
    type Refusal = ();

    fn is_served(&self, is_later: bool) -> bool {
        is_later
    }
    fn may_wait(&self, _since: u64, _is_late: bool) -> Result<(), ()> {
        Ok(())
    }
    fn may_lead(&self) -> Result<(), ()> {
        Ok(())
    }
    fn lead(&self) -> u32 {
        let number = self.begun.fetch_add(1, Relaxed) + 1;
        if let Some(may_end) = &self.may_end {
            may_end.recv().unwrap();
        }
        number
    }
}

#[test]
fn late_caller_waits_for_the_next_round() {
    let rounds: Arc<Rounds<u32, rank::append::Flushes>> = Arc::default();
    let begun = Arc::new(AtomicU32::new(0));
    let clock = Arc::new(SystemClock::new());
    let (end, may_end) = mpsc::channel();
    let join = |may_end| {
        let (rounds, begun, clock) = (rounds.clone(), begun.clone(), clock.clone());
        std::thread::spawn(move || {
            let work = Slow {
                begun: &begun,
                may_end,
            };
            rounds.join(&*clock, Duration::from_secs(1), &work)
        })
    };
    let first = join(Some(may_end));
    while begun.load(Relaxed) == 0 {
        std::thread::yield_now();
    }
    let meanwhile: Vec<_> = (0..4).map(|_| join(None)).collect();
    end.send(()).unwrap();
    assert_eq!(first.join().unwrap(), Ok(Some(1)));
    for one in meanwhile {
        assert!(one.join().unwrap().unwrap().unwrap() > 1);
    }
}

#[test]
fn a_leader_that_panics_keeps_nobody_waiting() {
    let rounds: Rounds<u32, rank::append::Flushes> = Rounds::default();
    let (begun, clock) = (AtomicU32::new(0), SystemClock::new());
    let (_, never) = mpsc::channel();
    let panics = Slow {
        begun: &begun,
        may_end: Some(never),
    };
    let refused = is_refused(|| {
        let _ = rounds.join(&clock, Duration::from_secs(1), &panics);
    });
    assert!(refused);
    let works = Slow {
        begun: &begun,
        may_end: None,
    };
    assert_eq!(rounds.join(&clock, Duration::from_secs(1), &works), Ok(Some(2)));
}
