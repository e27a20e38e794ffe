//! The copy of the log on a slower device: when it has what, and what an opening without the faster one finds; and the copy
//! that a power cut left without an entry.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use terrace_device::{Cause, Device, DeviceError, MemoryDevice, Operation, SeededRandomness};
use terrace_log::{Copies, EndWithout, Log, LogError, LogPosition, Scanner};
use terrace_pool::{
    CreateOptions, OpenOptions, Parallelism, Pool, SEGMENT_AREA_OFFSET, SegmentId, TierSettings,
};

/// A device that does not give one of its blocks.
struct Spoilt {
    inner: MemoryDevice,
    unreadable: AtomicU64,
}

impl Device for Spoilt {
    fn path(&self) -> String {
        self.inner.path()
    }
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        if (offset..offset + buffer.len() as u64).contains(&self.unreadable.load(Ordering::SeqCst)) {
            return Err(DeviceError::whole(self.path(), Operation::Read, Cause::Gone));
        }
        self.inner.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, length)
    }
}

/// Devices 0 and 1, on one tier or on two, of which the first keeps content `copies` times.
fn pool_on(tiers: usize, copies: u8) -> (Vec<Arc<Spoilt>>, Arc<Pool>) {
    let devices: Vec<_> = (0..2)
        .map(|number| {
            Arc::new(Spoilt {
                inner: MemoryDevice::new(format!("d{number}"), 16 << 20),
                unreadable: AtomicU64::new(u64::MAX),
            })
        })
        .collect();
    let all: Vec<Arc<dyn Device>> = devices.iter().map(|device| device.clone() as _).collect();
    let settings = |number: usize| TierSettings {
        copies: if number == 0 { copies } else { 1 },
        ..TierSettings::named(format!("t{number}"))
    };
    let tiers = all.chunks(2 / tiers).enumerate();
    let options = CreateOptions {
        name: "tank".into(),
        tiers: tiers
            .map(|(number, devices)| (settings(number), devices.to_vec()))
            .collect(),
        properties: BTreeMap::new(),
        segment_bytes: Some(1 << 20),
        created_nanoseconds: 0,
        force: false,
        parallelism: Parallelism::Sequential,
    };
    let pool = Pool::create(options, &SeededRandomness::new(7)).unwrap();
    (devices, Arc::new(pool))
}

fn writes(pool: &Pool) -> [u64; 2] {
    let devices = pool.devices();
    [0, 1].map(|number: usize| devices[number].counters.writes)
}

/// The pool without its first device.
fn without_the_first(devices: &[Arc<Spoilt>]) -> Arc<Pool> {
    let options = OpenOptions {
        degraded: true,
        ..OpenOptions::default()
    };
    Arc::new(Pool::open(vec![devices[1].clone()], options).unwrap())
}

/// The newest sequence that a scan finds, and the scanner at its end.
fn scan(pool: &Arc<Pool>, start: LogPosition) -> Result<(u64, Scanner), LogError> {
    let mut scanner = Scanner::new(pool.clone(), start)?;
    let mut newest = start.sequence;
    while let Some(scanned) = scanner.next_payload()? {
        newest = scanned.last;
    }
    Ok((newest, scanner))
}

fn place(segment: SegmentId, offset: u32) -> u64 {
    SEGMENT_AREA_OFFSET + (u64::from(segment.index) << 20) + u64::from(offset)
}

fn claim(pool: &Pool, copies: Copies) {
    for segment in copies.iter() {
        let _ = pool.claim(segment);
    }
}

#[test]
fn a_copy_on_a_slower_tier_is_written_behind_several_entries_at_once() {
    let (devices, pool) = pool_on(2, 1);
    let log = Log::create(pool.clone(), 1).unwrap();
    let (start, before) = (log.position(), writes(&pool));
    for number in 1..=5 {
        let appended = log.append(number, number, number - 1, b"five of these").unwrap();
        assert_eq!((appended.groups, appended.behind), (vec![vec![0]], vec![Some(1)]));
    }
    assert_eq!(writes(&pool), [before[0] + 5, before[1]]);
    assert_eq!(log.everywhere(5), 0);
    assert_eq!(scan(&pool, start).unwrap().0, 5);
    assert_eq!(scan(&without_the_first(&devices), start).unwrap().0, 0);
    assert!(log.catch_up());
    assert_eq!(writes(&pool)[1], before[1] + 1, "one write for all of them");
    assert_eq!((log.everywhere(5), log.due_bytes()), (5, 0));
    let sixth = log.position();
    log.append(6, 6, 5, b"later").unwrap();
    let alone = without_the_first(&devices);
    let (newest, scanner) = scan(&alone, start).unwrap();
    let end = EndWithout {
        device: 0,
        acknowledged: 5,
    };
    assert_eq!((newest, scanner.end_without()), (5, Some(end)));
    // Whoever compares them finds nothing wrong with that; but with an entry that has come and is damaged.
    let compare = || {
        let mut scanner = Scanner::new(pool.clone(), start).unwrap();
        scanner.compare_copies();
        while scanner.next_payload().unwrap().is_some() {}
        scanner.lacking()
    };
    assert_eq!(compare(), Vec::<String>::new());
    assert!(log.catch_up());
    assert_eq!(compare(), Vec::<String>::new());
    let at = place(sixth.segment.0[1].unwrap(), sixth.offset);
    let mut block = vec![0; 4096];
    devices[1].inner.read_at(at, &mut block).unwrap();
    block[145] ^= 1;
    devices[1].inner.write_at(at, &block).unwrap();
    let lacking = compare();
    assert!(
        lacking.len() == 1 && lacking[0].contains("batches 6–6"),
        "{lacking:?}"
    );
}

#[test]
fn copies_on_one_tier_or_of_a_tier_that_keeps_two_are_written_together() {
    for (tiers, copies) in [(1, 1), (2, 2)] {
        let (_, pool) = pool_on(tiers, copies);
        let log = Log::create(pool.clone(), 1).unwrap();
        let before = writes(&pool);
        let appended = log.append(1, 1, 0, b"one").unwrap();
        assert_eq!((appended.groups, appended.behind), (vec![vec![0, 1]], vec![None]));
        assert_eq!(writes(&pool), before.map(|writes| writes + 1));
    }
}

#[test]
fn what_a_slower_copy_surely_had_and_lacks_is_damage_and_what_it_may_lack_is_not() {
    let (devices, pool) = pool_on(2, 1);
    let log = Log::create(pool.clone(), 1).unwrap();
    let start = log.position();
    log.append(1, 1, 0, b"one").unwrap();
    let second = log.position();
    log.append(2, 2, 1, b"two").unwrap();
    log.append(3, 3, 2, b"three").unwrap();
    log.catch_up();
    let slow = second.segment.0[1].unwrap();
    let at = place(slow, second.offset);
    let mut entry = vec![0; 4096];
    devices[1].inner.read_at(at, &mut entry).unwrap();
    // A power cut took the second of three entries that were on their way together.
    devices[1].inner.write_at(at, &[0; 4096]).unwrap();
    let (newest, scanner) = scan(&without_the_first(&devices), start).unwrap();
    assert_eq!((newest, scanner.end_without().unwrap().acknowledged), (1, 2));
    devices[1].inner.write_at(at, &entry).unwrap();
    // The fourth says that three were everywhere.
    log.append(4, 4, 3, b"four").unwrap();
    log.catch_up();
    devices[1].inner.write_at(at, &[0; 4096]).unwrap();
    let found = scan(&without_the_first(&devices), start);
    let damaged = LogError::Damaged {
        newest: 1,
        durable: 3,
    };
    assert_eq!(found.err(), Some(damaged));
}

#[test]
fn the_newest_entry_that_cannot_be_read_is_not_the_end_because_a_slower_copy_does_not_have_it() {
    let (devices, pool) = pool_on(2, 1);
    let log = Log::create(pool.clone(), 1).unwrap();
    let start = log.position();
    log.append(1, 1, 0, b"one").unwrap();
    log.catch_up();
    let second = log.position();
    log.append(2, 2, 1, b"two").unwrap();
    let fast = second.segment.0[0].unwrap();
    devices[0]
        .unreadable
        .store(place(fast, second.offset), Ordering::SeqCst);
    assert!(matches!(scan(&pool, start).err(), Some(LogError::Unreadable(_))));
    log.catch_up();
    assert_eq!(scan(&pool, start).unwrap().0, 2);
}

#[test]
fn an_entry_that_one_copy_lacks_is_written_there_before_the_log_goes_on_behind_it() {
    for tiers in 1..=2 {
        let (devices, pool) = pool_on(tiers, 1);
        let log = Log::create(pool.clone(), 1).unwrap();
        let start = log.position();
        log.append(1, 1, 0, b"one").unwrap();
        log.catch_up();
        let second = log.position();
        log.append(2, 2, 1, b"two").unwrap();
        // The power goes before the second device has it.
        let lacking = second.segment.0[1].unwrap();
        let at = place(lacking, second.offset);
        devices[1].inner.write_at(at, &[0; 4096]).unwrap();
        let again = Arc::new(
            Pool::open(
                devices.iter().map(|d| d.clone() as _).collect(),
                OpenOptions::default(),
            )
            .unwrap(),
        );
        let (newest, mut scanner) = scan(&again, start).unwrap();
        assert_eq!(newest, 2);
        let tail = log.position();
        claim(&again, tail.segment);
        claim(&again, tail.next);
        assert_eq!(
            scanner.complete_copies(1),
            0,
            "what was not accepted is left alone"
        );
        let (_, mut scanner) = scan(&again, start).unwrap();
        assert_eq!(scanner.complete_copies(2), 1);
        let log = Log::resume(again, start, tail, vec![tail.segment], 2);
        log.fence(log.position().sequence).unwrap();
        log.append(3, 3, 2, b"three").unwrap();
        log.catch_up();
        assert_eq!(scan(&without_the_first(&devices), start).unwrap().0, 3);
    }
}

#[test]
fn where_the_faster_copy_fails_the_slower_one_has_everything_before_it_counts() {
    let (devices, pool) = pool_on(2, 1);
    let log = Log::create(pool, 1).unwrap();
    let start = log.position();
    log.append(1, 1, 0, b"one").unwrap();
    let alone = without_the_first(&devices);
    let mut segments = vec![start.segment];
    segments.iter().for_each(|copies| claim(&alone, *copies));
    claim(&alone, start.next);
    let log = Log::resume(alone.clone(), start, start, std::mem::take(&mut segments), 2);
    let appended = log.append(1, 1, 0, b"without the first").unwrap();
    assert_eq!((appended.groups, appended.failed), (vec![vec![1]], vec![0]));
    assert_eq!(scan(&alone, start).unwrap().0, 1);
}
