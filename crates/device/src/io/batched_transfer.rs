//! `RingTransfer`: many reads or writes of one file at once, from one thread, through io_uring.
//!
//! Transfers one after the other leave a device idle most of the time, and a thread for each costs more than the
//! transfer. Invariants: no call returns before the kernel has let go of every buffer that it was given; where io_uring is
//! forbidden or absent nothing is tried (the caller does one after the other); where a ring could not be had for another reason, the
//! next is asked for a second later.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use io_uring::{opcode, squeue, types::Fd};
use terrace_sync::{Mutex, rank};

use super::{polling::Polling, uring::Uring};

/// Transfers under way at a time.
const ENTRIES: u32 = 64;
/// So many have to end before further ones follow them.
const REFILL: usize = 16;

/// When a ring may be asked for again, milliseconds since the first was; never where the kernel has none or forbids it. What was
/// short, descriptors or memory, may be there again.
static RETRY_AT: AtomicU64 = AtomicU64::new(0);
/// How long none is asked for after one could not be had.
const RETRY: Duration = Duration::from_secs(1);

/// Rings that nobody uses at the moment: one for each thread would be a descriptor for each.
static IDLE: Mutex<Vec<Uring>, rank::Leaf> = Mutex::new(Vec::new());
/// Rings kept for later.
const IDLE_MAX: usize = 16;

/// What goes to or comes from a place in the file.
pub enum Memory<'a> {
    /// To be filled.
    Read(&'a mut [u8]),
    /// To be written.
    Write(&'a [u8]),
}

/// A place in the file and the memory that is to have its content, or has it.
pub struct RingTransfer<'a> {
    pub offset: u64,
    pub memory: Memory<'a>,
    /// Bytes that were transferred, or why not. To be set to what the caller takes for "not done".
    pub outcome: io::Result<usize>,
}

impl RingTransfer<'_> {
    fn entry(&mut self, file: Fd) -> squeue::Entry {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        match &mut self.memory {
            Memory::Read(buffer) => opcode::Read::new(file, buffer.as_mut_ptr(), length(buffer))
                .offset(self.offset)
                .build(),
            Memory::Write(data) => opcode::Write::new(file, data.as_ptr(), length(data))
                .offset(self.offset)
                .build(),
        }
    }
}

/// Does all of `transfers`; false if there is no ring, and nothing was done.
pub fn transfer_all(file: BorrowedFd<'_>, transfers: &mut [RingTransfer<'_>]) -> bool {
    let Some(mut ring) = take() else {
        return false;
    };
    if transfer_through(&mut ring, file, transfers, &mut |ring, wanted| {
        ring.submit_and_wait(wanted)
    }) {
        give_back(ring);
    }
    // Else the ring goes, with what it did not take; those transfers were not done.
    true
}

/// Reads once, with a look for the end before the thread sleeps, where `polling` finds that it pays: bytes, or why not. `None` if
/// there is no ring, or it did not take the read: nothing was done.
pub fn read_polled(
    file: BorrowedFd<'_>,
    offset: u64,
    buffer: &mut [u8],
    polling: &Polling,
) -> Option<io::Result<usize>> {
    let mut ring = take()?;
    let mut reads = [RingTransfer {
        offset,
        memory: Memory::Read(buffer),
        outcome: Err(io::ErrorKind::WouldBlock.into()),
    }];
    let is_sound = transfer_through(&mut ring, file, &mut reads, &mut |ring, wanted| {
        let submitted = ring.submit()?;
        polling
            .wait(ring, Uring::has_something, |ring| ring.submit_and_wait(wanted))
            .map(|more| submitted + more)
            // What was begun counts, whatever comes of the waiting.
            .or_else(|_| {
                std::thread::yield_now();
                Ok(submitted)
            })
    });
    if is_sound {
        give_back(ring);
    }
    let [read] = reads;
    match read.outcome {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        outcome => Some(outcome),
    }
}

/// Milliseconds since the first call.
fn elapsed_milliseconds() -> u64 {
    static STARTED: OnceLock<Instant> = OnceLock::new();
    STARTED.get_or_init(Instant::now).elapsed().as_millis() as u64
}

fn take() -> Option<Uring> {
    let idle = IDLE.lock().pop();
    idle.or_else(|| ask(&RETRY_AT, elapsed_milliseconds, || Uring::shared(ENTRIES)))
}

/// Asks for a new ring, unless it is too early.
fn ask<R>(retry_at: &AtomicU64, now: impl Fn() -> u64, open: impl FnOnce() -> io::Result<R>) -> Option<R> {
    let at = retry_at.load(Ordering::Relaxed);
    if at != 0 && at > now() {
        return None;
    }
    let ring = open();
    let next = ring.as_ref().err().map_or(0, |error| retry_time(error, now()));
    retry_at.store(next, Ordering::Relaxed);
    ring.ok()
}

/// When a ring may be asked for again after this error, milliseconds.
fn retry_time(error: &io::Error, now: u64) -> u64 {
    match error.raw_os_error() {
        // A kernel without it, a container or a setting that forbids it.
        Some(libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EINVAL) => u64::MAX,
        _ => now + RETRY.as_millis() as u64,
    }
}

fn give_back(ring: Uring) {
    let mut idle = IDLE.lock();
    if idle.len() < IDLE_MAX {
        idle.push(ring);
    }
}

/// The ring's queues are empty before and after; in between it is kept full. False if the kernel takes no more: what has no
/// outcome by then was not begun.
/// `submit_and_wait`: as the ring's own.
fn transfer_through(
    ring: &mut Uring,
    file: BorrowedFd<'_>,
    transfers: &mut [RingTransfer<'_>],
    submit_and_wait: &mut dyn FnMut(&mut Uring, usize) -> io::Result<usize>,
) -> bool {
    let (mut next, mut queued, mut begun, mut completed) = (0, 0, 0, 0);
    loop {
        while queued - completed < ENTRIES as usize
            && let Some(transfer) = transfers.get_mut(next)
        {
            let entry = transfer.entry(Fd(file.as_raw_fd())).user_data(next as u64);
            next += 1;
            // SAFETY: the file and the memory are borrowed by this call, which returns only when every transfer that was
            // begun has completed.
            match unsafe { ring.push(&entry) } {
                Ok(()) => queued += 1,
                Err(_) => transfer.outcome = Err(io::ErrorKind::WouldBlock.into()),
            }
        }
        let under_way = queued - completed;
        if under_way == 0 {
            return true;
        }
        // The last ones together, as each waking costs more than many a transfer; before, enough for others to follow.
        let wanted = match next < transfers.len() {
            true => under_way.min(REFILL),
            false => under_way,
        };
        match submit_and_wait(ring, wanted) {
            Ok(count) => begun += count,
            Err(error) => {
                // Interrupted, or short of memory for a moment: what was queued stays queued, what was begun goes on.
                let passes = matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                );
                if !passes && begun == completed {
                    return false;
                }
                std::thread::yield_now();
            }
        }
        while let Some((number, result)) = ring.completion() {
            completed += 1;
            let Some(transfer) = usize::try_from(number)
                .ok()
                .and_then(|number| transfers.get_mut(number))
            else {
                continue;
            };
            transfer.outcome = match result {
                failed @ ..0 => Err(io::Error::from_raw_os_error(-failed)),
                length => Ok(length as usize),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        os::{fd::AsFd, unix::fs::FileExt},
    };

    use super::*;

    #[test]
    fn a_ring_that_could_not_be_had_is_asked_for_again_later_unless_it_is_forbidden() {
        let retry_at = AtomicU64::new(0);
        let short = || Err(io::Error::from_raw_os_error(libc::EMFILE));
        assert_eq!(ask::<u8>(&retry_at, || 5000, short), None);
        assert_eq!(ask(&retry_at, || 5999, || Ok(1)), None, "too early");
        assert_eq!(ask(&retry_at, || 6000, || Ok(1)), Some(1));
        assert_eq!(ask(&retry_at, || 6000, || Ok(2)), Some(2));
        let forbidden = || Err(io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(ask::<u8>(&retry_at, || 6000, forbidden), None);
        assert_eq!(ask(&retry_at, || u64::MAX - 1, || Ok(1)), None);
    }

    #[test]
    fn more_reads_than_entries_all_get_their_bytes_and_short_ones_say_so() {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..200u32).flat_map(|at| [at as u8; 512]).collect();
        file.write_all(&content).unwrap();
        let mut buffers = vec![[0u8; 512]; 201];
        let mut reads: Vec<RingTransfer<'_>> = buffers
            .iter_mut()
            .enumerate()
            .map(|(at, buffer)| RingTransfer {
                offset: at as u64 * 512,
                memory: Memory::Read(buffer),
                outcome: Ok(usize::MAX),
            })
            .collect();
        if !transfer_all(file.as_fd(), &mut reads) {
            return;
        }
        let lengths: Vec<usize> = reads.iter().map(|read| *read.outcome.as_ref().unwrap()).collect();
        assert!(lengths[..200].iter().all(|length| *length == 512));
        assert_eq!(lengths[200], 0, "behind the end");
        for (at, buffer) in buffers[..200].iter().enumerate() {
            assert_eq!(buffer, &[at as u8; 512]);
        }
    }

    #[test]
    fn a_read_that_fails_fails_alone() {
        let directory = std::fs::File::open("/").unwrap();
        let mut buffer = [0u8; 16];
        let mut reads = [RingTransfer {
            offset: 0,
            memory: Memory::Read(&mut buffer),
            outcome: Ok(usize::MAX),
        }];
        if transfer_all(directory.as_fd(), &mut reads) {
            assert!(reads[0].outcome.is_err());
        }
    }

    #[test]
    fn writes_go_where_they_belong_and_one_that_fails_fails_alone() {
        let file = tempfile::tempfile().unwrap();
        let contents: Vec<[u8; 512]> = (1..=100u8).map(|at| [at; 512]).collect();
        let mut writes: Vec<RingTransfer<'_>> = contents
            .iter()
            .enumerate()
            .map(|(at, content)| RingTransfer {
                offset: at as u64 * 1024,
                memory: Memory::Write(content),
                outcome: Ok(usize::MAX),
            })
            .collect();
        // Beyond what a file can be.
        writes[7].offset = i64::MAX as u64;
        if !transfer_all(file.as_fd(), &mut writes) {
            return;
        }
        for (at, write) in writes.iter().enumerate() {
            assert_eq!(write.outcome.as_ref().ok(), (at != 7).then_some(&512));
        }
        let mut seen = [0u8; 512];
        for (at, content) in contents.iter().enumerate().filter(|(at, _)| *at != 7) {
            file.read_exact_at(&mut seen, at as u64 * 1024).unwrap();
            assert_eq!(&seen, content);
        }
    }
}
