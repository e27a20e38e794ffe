//! Devices that do not answer: they are asked for nothing more, who waits for their flush beside others is let go, and they are used again
//! once they answer. And the threads that flush several devices at once.

#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    thread::ThreadId,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use terrace_device::{Device, DeviceError, MemoryDevice, SeededRandomness};
use terrace_pool::{
    CreateOptions, DeviceState, Parallelism, Pool, Request, SegmentId, SegmentKind, TierChoice, TierSettings,
};

const SECOND: u64 = 1_000_000_000;

#[derive(Default)]
struct Hold {
    reads: bool,
    flushes: bool,
    waiting: usize,
    /// Who flushed.
    flushers: HashSet<ThreadId>,
}

/// Holds calls back until it is told otherwise, as a disk whose controller hangs.
struct Hanging {
    below: MemoryDevice,
    hold: Mutex<Hold>,
    changed: Condvar,
}

impl Hanging {
    fn set(&self, change: impl FnOnce(&mut Hold)) {
        change(&mut self.hold.lock());
        self.changed.notify_all();
    }

    fn pass(&self, is_held: impl Fn(&Hold) -> bool) {
        let mut hold = self.hold.lock();
        hold.waiting += 1;
        self.changed.notify_all();
        while is_held(&hold) {
            self.changed.wait(&mut hold);
        }
        hold.waiting -= 1;
    }

    /// Waits until a call hangs.
    fn wait_for_one(&self) {
        let mut hold = self.hold.lock();
        let deadline = Instant::now() + Duration::from_secs(60);
        while hold.waiting == 0 {
            assert!(
                !self.changed.wait_until(&mut hold, deadline).timed_out(),
                "nobody calls"
            );
        }
    }
}

impl Device for Hanging {
    fn path(&self) -> String {
        self.below.path()
    }
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.pass(|hold| hold.reads);
        self.below.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.below.write_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.hold.lock().flushers.insert(std::thread::current().id());
        self.pass(|hold| hold.flushes);
        self.below.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.below.discard(offset, length)
    }
}

/// A pool of two devices, and a segment on each.
fn pool() -> (Vec<Arc<Hanging>>, Pool, Vec<SegmentId>) {
    let devices: Vec<Arc<Hanging>> = (0..2)
        .map(|number| {
            Arc::new(Hanging {
                below: MemoryDevice::new(format!("/d{number}"), 16 << 20),
                hold: Mutex::default(),
                changed: Condvar::new(),
            })
        })
        .collect();
    let all = devices.iter().map(|device| device.clone() as Arc<dyn Device>);
    let options = CreateOptions {
        name: "tank".into(),
        tiers: vec![(TierSettings::named("only"), all.collect())],
        properties: BTreeMap::new(),
        segment_bytes: Some(1 << 20),
        created_nanoseconds: 0,
        force: false,
        parallelism: Parallelism::Threads,
    };
    let pool = Pool::create(options, &SeededRandomness::new(7)).unwrap();
    let segment = |avoid: &[u16]| {
        let request = Request {
            choice: TierChoice::Fastest,
            kind: SegmentKind::Data,
            avoid,
            garbage: &[],
            leave_free: 0,
        };
        pool.allocate(&request).unwrap()
    };
    let segments = vec![segment(&[1]), segment(&[0])];
    for segment in &segments {
        pool.write(*segment, 0, &[7; 4096]).unwrap();
    }
    (devices, pool, segments)
}

/// Looks at the devices each second of a span; whether anything changed.
fn look(pool: &Pool, seconds: std::ops::Range<u64>) -> bool {
    let turns =
        seconds.map(|second| pool.look_at_devices(second * SECOND, (100 + second) * SECOND, 5 * SECOND));
    turns.fold(false, |any, turned| any | turned)
}

fn state(pool: &Pool, device: usize) -> DeviceState {
    pool.devices()[device].state
}

#[test]
fn a_device_whose_reads_hang_is_asked_for_nothing_more_until_it_answers() {
    let (devices, pool, segments) = pool();
    assert!(!look(&pool, 0..10));
    devices[1].set(|hold| hold.reads = true);
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| pool.read(segments[1], 0, &mut [0; 4096]));
        devices[1].wait_for_one();
        assert!(!look(&pool, 10..15));
        assert!(look(&pool, 15..20));
        assert_eq!(state(&pool, 1), DeviceState::NotAnswering);
        assert_eq!(pool.silent(), [(1, "/d1".into(), 110 * SECOND)]);
        // Refused at once, reads, writes and flushes; the other device does all of it.
        let error = pool.read(segments[1], 0, &mut [0; 4096]).unwrap_err().to_string();
        assert!(
            error.contains("/d1") && error.contains("does not answer"),
            "{error}"
        );
        assert!(pool.write(segments[1], 0, &[8; 4096]).is_err());
        assert!(!pool.takes_new(1) && pool.takes_new(0));
        pool.read(segments[0], 0, &mut [0; 4096]).unwrap();
        devices[1].set(|hold| hold.reads = false);
        hanging.join().unwrap().unwrap();
    });
    assert!(look(&pool, 20..22));
    assert_eq!(state(&pool, 1), DeviceState::Online, "it is used again");
    pool.read(segments[1], 0, &mut [0; 4096]).unwrap();
    assert!(pool.takes_new(1));
}

#[test]
fn the_last_device_that_answers_is_asked_all_the_same() {
    let (devices, pool, segments) = pool();
    devices
        .iter()
        .for_each(|device| device.set(|hold| hold.reads = true));
    std::thread::scope(|scope| {
        let read = |at: usize| pool.read(segments[at], 0, &mut [0; 4096]);
        let hanging = [0, 1].map(|at| scope.spawn(move || read(at)));
        devices.iter().for_each(|device| device.wait_for_one());
        assert!(look(&pool, 0..10));
        assert!(pool.is_silent());
        assert_eq!(state(&pool, 0), DeviceState::NotAnswering);
        // Errors would help nobody: writes, which still pass here, are tried.
        pool.write(segments[0], 0, &[8; 4096]).unwrap();
        devices
            .iter()
            .for_each(|device| device.set(|hold| hold.reads = false));
        for thread in hanging {
            thread.join().unwrap().unwrap();
        }
    });
    assert!(look(&pool, 10..12));
    assert!(!pool.is_silent());
}

#[test]
fn who_flushes_several_devices_does_not_wait_for_one_that_hangs() {
    let (devices, pool, segments) = pool();
    devices[1].set(|hold| hold.flushes = true);
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| pool.flush_each(&[0, 1]));
        devices[1].wait_for_one();
        assert!(look(&pool, 0..20));
        let failed = flushing.join().unwrap();
        assert_eq!(failed.keys().collect::<Vec<_>>(), [&1]);
        assert!(failed[&1].to_string().contains("does not answer"), "{failed:?}");
    });
    // Of what is not flushed it cannot be known what is durable: it counts as failing, also when it answers again.
    devices[1].set(|hold| hold.flushes = false);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut second = 20;
    while state(&pool, 1) == DeviceState::NotAnswering {
        assert!(Instant::now() < deadline, "it never answers");
        look(&pool, second..second + 1);
        second += 1;
        std::thread::yield_now();
    }
    assert_eq!(state(&pool, 1), DeviceState::Failing);
    pool.read(segments[1], 0, &mut [0; 4096]).unwrap();
}

#[test]
fn flushes_of_several_devices_use_one_thread_for_each_device() {
    let (devices, pool, segments) = pool();
    for _ in 0..100 {
        for segment in &segments {
            pool.write(*segment, 0, &[9; 4096]).unwrap();
        }
        pool.flush(&[1, 0, 1]).unwrap();
    }
    let flushers = devices.iter().map(|device| device.hold.lock().flushers.len());
    // Beside who made the pool.
    assert!(
        flushers.clone().all(|count| count <= 2),
        "{:?}",
        flushers.collect::<Vec<_>>()
    );
}
