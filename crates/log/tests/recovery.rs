//! What a scan of the log gives back after devices failed while it was written or read.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use terrace_device::{Cause, Device, DeviceError, MemoryDevice, Operation, SeededRandomness};
use terrace_log::{Log, LogError, LogPosition, Scanned, Scanner};
use terrace_pool::{CreateOptions, Parallelism, Pool, SEGMENT_AREA_OFFSET, SegmentRange, TierSettings};

/// A device that refuses writes, or the reading of one block, when told to.
struct Failing {
    inner: MemoryDevice,
    refuse_writes: AtomicBool,
    unreadable: AtomicU64,
    reads: AtomicU64,
}

impl Failing {
    fn new(name: &str) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryDevice::new(name, 16 << 20),
            refuse_writes: AtomicBool::new(false),
            unreadable: AtomicU64::new(u64::MAX),
            reads: AtomicU64::new(0),
        })
    }
}

impl Device for Failing {
    fn path(&self) -> String {
        self.inner.path()
    }
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if (offset..offset + buffer.len() as u64).contains(&self.unreadable.load(Ordering::SeqCst)) {
            return Err(DeviceError::whole(self.path(), Operation::Read, Cause::Gone));
        }
        self.inner.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        if self.refuse_writes.load(Ordering::SeqCst) {
            return Err(DeviceError::whole(self.path(), Operation::Write, Cause::Gone));
        }
        self.inner.write_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, length)
    }
}

fn pool_of(devices: &[Arc<Failing>]) -> Arc<Pool> {
    let all = devices
        .iter()
        .map(|device| device.clone() as Arc<dyn Device>)
        .collect();
    let options = CreateOptions {
        name: "tank".into(),
        tiers: vec![(TierSettings::named("only"), all)],
        properties: BTreeMap::new(),
        segment_bytes: Some(1 << 20),
        created_nanoseconds: 0,
        force: false,
        parallelism: Parallelism::Sequential,
    };
    Arc::new(Pool::create(options, &SeededRandomness::new(7)).unwrap())
}

fn scan(pool: &Arc<Pool>, start: LogPosition) -> Result<Vec<Scanned>, LogError> {
    let mut scanner = Scanner::new(pool.clone(), start)?;
    let mut all = Vec::new();
    while let Some(scanned) = scanner.next_payload()? {
        all.push(scanned);
    }
    Ok(all)
}

#[test]
fn a_payload_in_several_entries_ends_at_its_last_sequence() {
    let pool = pool_of(&[Failing::new("a")]);
    let log = Log::create(pool.clone(), 1).unwrap();
    let start = log.position();
    log.append(1, 4, 0, b"small").unwrap();
    let large = vec![9; 3 << 20];
    log.append(5, 9, 4, &large).unwrap();
    log.append(10, 10, 4, b"after").unwrap();
    let found = scan(&pool, start).unwrap();
    let spans: Vec<_> = found.iter().map(|found| (found.first, found.last)).collect();
    assert_eq!(spans, [(1, 4), (5, 9), (10, 10)]);
    assert_eq!(found[1].payload, large);
    assert_eq!(found[1].after.sequence, 9);
}

#[test]
fn what_was_replayed_counts_as_length_of_the_log() {
    let pool = pool_of(&[Failing::new("a")]);
    let log = Log::create(pool.clone(), 1).unwrap();
    let start = log.position();
    for number in 1..=40 {
        log.append(number, number, number - 1, &[7; 70_000]).unwrap();
    }
    let mut scanner = Scanner::new(pool.clone(), start).unwrap();
    while scanner.next_payload().unwrap().is_some() {}
    let segments = scanner.segments().to_vec();
    assert!(segments.len() > 2);
    let resumed = Log::resume(pool.clone(), start, log.position(), segments, 2);
    assert!(
        resumed.bytes() >= log.bytes(),
        "{} of {}",
        resumed.bytes(),
        log.bytes()
    );
    assert!(resumed.bytes() < log.bytes() + (3 << 20));
}

#[test]
fn log_length_counts_entries_appended_during_a_checkpoint() {
    let pool = pool_of(&[Failing::new("a")]);
    let log = Log::create(pool.clone(), 1).unwrap();
    log.append(1, 1, 0, &[7; 70_000]).unwrap();
    let sealed = log.position();
    for number in 2..=40 {
        log.append(number, number, number - 1, &[7; 70_000]).unwrap();
    }
    log.release_until(&sealed);
    let left = log.bytes();
    assert!((39 * 70_000..43 * 70_000).contains(&left), "{left}");
    log.release_until(&log.position());
    assert_eq!(log.bytes(), 0);
}

#[test]
fn many_small_entries_are_read_together() {
    let devices = [Failing::new("a"), Failing::new("b")];
    let pool = pool_of(&devices);
    let log = Log::create(pool.clone(), 1).unwrap();
    let start = log.position();
    for number in 1..=600 {
        // Some are longer than what is read at once, some than a segment.
        let length = match number {
            200 => 400_000,
            300 => 3 << 20,
            _ => 100 + number as usize,
        };
        log.append(number, number, number - 1, &vec![number as u8; length])
            .unwrap();
    }
    let before = devices
        .each_ref()
        .map(|device| device.reads.load(Ordering::SeqCst));
    let found = scan(&pool, start).unwrap();
    let sequences: Vec<u64> = found.iter().map(|found| found.first).collect();
    assert_eq!(sequences, (1..=600).collect::<Vec<_>>());
    assert!(
        found
            .iter()
            .all(|found| found.payload.iter().all(|byte| *byte == found.first as u8))
    );
    for (device, before) in devices.iter().zip(before) {
        let reads = device.reads.load(Ordering::SeqCst) - before;
        assert!(reads < 80, "{reads} reads for 600 entries");
    }
}

#[test]
fn an_entry_that_cannot_be_read_is_not_taken_for_the_end() {
    let device = Failing::new("a");
    let pool = pool_of(std::slice::from_ref(&device));
    let log = Log::create(pool.clone(), 1).unwrap();
    let start = log.position();
    log.append(1, 1, 0, b"one").unwrap();
    let second = log.position();
    log.append(2, 2, 1, b"two").unwrap();
    log.append(3, 3, 2, b"three").unwrap();
    let segment = second.segment.iter().next().unwrap();
    let bad = SEGMENT_AREA_OFFSET + (u64::from(segment.index) << 20) + u64::from(second.offset);
    device.unreadable.store(bad, Ordering::SeqCst);
    assert!(matches!(scan(&pool, start), Err(LogError::Unreadable(_))));
    device.unreadable.store(u64::MAX, Ordering::SeqCst);
    assert_eq!(scan(&pool, start).unwrap().len(), 3);
}

#[test]
fn an_entry_that_one_copy_lacks_and_the_other_cannot_give_is_missed_when_a_later_one_proves_it() {
    let devices = [Failing::new("a"), Failing::new("b")];
    let pool = pool_of(&devices);
    let log = Log::create(pool.clone(), 1).unwrap();
    let start = log.position();
    log.append(1, 1, 0, b"one").unwrap();
    let second = log.position();
    log.append(2, 2, 1, b"two").unwrap();
    log.append(3, 3, 2, b"three").unwrap();
    let place = |copy: usize| {
        let segment = second.segment.0[copy].unwrap();
        let at = SEGMENT_AREA_OFFSET + (u64::from(segment.index) << 20) + u64::from(second.offset);
        (&devices[usize::from(segment.device)], at)
    };
    // A power cut took one copy of the second entry, and a recovery went on with the other. Of the third entry the copy
    // beside the first is left.
    let (lacking, at) = place(1);
    lacking.inner.write_at(at, &[0; 8192]).unwrap();
    let (bad, at) = place(0);
    bad.unreadable.store(at, Ordering::SeqCst);
    let found = scan(&pool, start);
    assert!(
        matches!(
            found,
            Err(LogError::Damaged {
                newest: 1,
                durable: 2
            })
        ),
        "{found:?}"
    );
    bad.unreadable.store(u64::MAX, Ordering::SeqCst);
    assert_eq!(scan(&pool, start).unwrap().len(), 3);
}

#[test]
fn what_a_recovery_gave_up_does_not_come_back_from_the_copy_that_missed_the_fence() {
    for refusing in 0..2 {
        let devices = [Failing::new("a"), Failing::new("b")];
        let pool = pool_of(&devices);
        let log = Log::create(pool.clone(), 1).unwrap();
        let start = log.position();
        log.append(1, 1, 0, b"kept").unwrap();
        let tail = log.position();
        log.append(2, 2, 1, b"given up").unwrap();
        // A recovery that ends in front of the second entry; one copy of the fence fails.
        let log = Log::resume(pool.clone(), start, tail, vec![tail.segment], 2);
        devices[refusing].refuse_writes.store(true, Ordering::SeqCst);
        log.fence(log.position().sequence).unwrap();
        devices[refusing].refuse_writes.store(false, Ordering::SeqCst);
        log.append(2, 2, 1, b"new").unwrap();
        let found = scan(&pool, start).unwrap();
        let payloads: Vec<_> = found.iter().map(|found| &found.payload[..]).collect();
        assert_eq!(payloads, [&b"kept"[..], b"", b"new"]);
    }
}

#[test]
fn all_that_the_pool_handed_out_is_known_while_the_log_leaves_a_device() {
    let pool = pool_of(&[Failing::new("a"), Failing::new("b"), Failing::new("c")]);
    let log = Log::create(pool.clone(), 1).unwrap();
    let known = |what: &str| {
        let devices = pool.devices();
        let used: u32 = devices
            .iter()
            .map(|device| device.segments - device.free_segments)
            .sum();
        assert_eq!(log.segments().len(), used as usize, "{what}");
    };
    known("at the start");
    log.append(1, 1, 0, b"one").unwrap();
    let left = log.position().segment.iter().next().unwrap().device;
    assert!(log.goes_to(SegmentRange::whole(left)));
    pool.set_draining(left, true).unwrap();
    log.leave_segments().unwrap();
    known("between the two entries");
    log.append(2, 2, 1, b"names").unwrap();
    known("when the new segments have a name");
    log.append(3, 3, 2, b"goes").unwrap();
    known("when the log is there");
    assert!(!log.goes_to(SegmentRange::whole(left)));
    for segment in log.release_until(&log.position()) {
        pool.release(segment).unwrap();
    }
    known("when the old ones are given back");
    assert!(log.segments().iter().all(|segment| segment.device != left));
}

#[test]
fn a_pool_without_a_free_segment_does_not_stop_a_log_that_has_room() {
    let pool = pool_of(&[Failing::new("a")]);
    let log = Log::create(pool.clone(), 1).unwrap();
    let start = log.position();
    let request = || terrace_pool::Request {
        choice: terrace_pool::TierChoice::Fastest,
        kind: terrace_pool::SegmentKind::Data,
        avoid: &[],
        garbage: &[],
        leave_free: 0,
    };
    let fill = || std::iter::from_fn(|| pool.allocate(&request()).ok()).collect::<Vec<_>>();
    let mut taken = fill();
    // Into the next segment, for which there is no next one.
    log.leave_segments().unwrap_err();
    let mut sequence = 0;
    let mut append = |bytes: usize| {
        sequence += 1;
        log.append(sequence, sequence, sequence - 1, &vec![sequence as u8; bytes])
            .inspect_err(|_| sequence -= 1)
            .map(drop)
    };
    append(1 << 20).unwrap();
    assert!(log.position().next.is_empty());
    append(300 << 10).unwrap();
    // What does not fit is refused, for want of room; what fits is not.
    assert!(matches!(append(900 << 10), Err(LogError::NoSpace(_))));
    append(100 << 10).unwrap();
    // There is room again: the log goes on where it says.
    pool.release(taken.pop().unwrap()).unwrap();
    pool.release(taken.pop().unwrap()).unwrap();
    append(900 << 10).unwrap();
    append(900 << 10).unwrap();
    let found = scan(&pool, start).unwrap();
    assert_eq!(found.len(), 5);
    assert!(
        found
            .iter()
            .all(|one| one.payload.iter().all(|byte| u64::from(*byte) == one.first))
    );
}

#[test]
fn a_log_that_cannot_leave_stays() {
    let pool = pool_of(&[Failing::new("a")]);
    let log = Log::create(pool.clone(), 1).unwrap();
    let start = log.position();
    log.leave_segments().unwrap();
    let request = terrace_pool::Request {
        choice: terrace_pool::TierChoice::Fastest,
        kind: terrace_pool::SegmentKind::Data,
        avoid: &[],
        garbage: &[],
        leave_free: 0,
    };
    while pool.allocate(&request).is_ok() {}
    for sequence in 1..=4 {
        log.append(sequence, sequence, sequence - 1, b"small").unwrap();
    }
    assert_eq!(scan(&pool, start).unwrap().len(), 4);
}
