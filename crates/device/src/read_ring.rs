//! `ReadRing`: many reads of one file at once, from one thread, through io_uring.
//!
//! Scattered reads one after the other leave a device idle most of the time, and a thread for each costs more than the
//! read. Invariants: no call returns before the kernel has let go of every buffer that it was given; where io_uring is
//! forbidden or absent nothing is tried (the caller reads one after the other).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering},
};

use io_uring::{IoUring, opcode, types::Fd};
use parking_lot::Mutex;

/// Reads under way at a time.
const ENTRIES: u32 = 64;

/// Once a ring could not be had (forbidden, or no descriptors left), none is asked for again.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Rings that nobody uses at the moment: one for each thread would be a descriptor for each.
static IDLE: Mutex<Vec<IoUring>> = Mutex::new(Vec::new());
/// Rings kept for later.
const IDLE_MAX: usize = 16;

/// A place in the file and the memory that is to have its content.
pub struct RingRead<'a> {
    pub offset: u64,
    pub buffer: &'a mut [u8],
    /// Bytes that were read, or why not. To be set to what the caller takes for "not done".
    pub outcome: io::Result<usize>,
}

/// Does all of `reads`; false if there is no ring, and nothing was done.
pub fn read_all(file: BorrowedFd<'_>, reads: &mut [RingRead<'_>]) -> bool {
    if FORBIDDEN.load(Ordering::Relaxed) {
        return false;
    }
    let idle = IDLE.lock().pop();
    let Some(mut ring) = idle.or_else(|| IoUring::new(ENTRIES).ok()) else {
        FORBIDDEN.store(true, Ordering::Relaxed);
        return false;
    };
    for some in reads.chunks_mut(ENTRIES as usize) {
        if !read_some(&mut ring, file, some) {
            // The ring goes, with what it did not take; those reads were not done.
            return true;
        }
    }
    let mut idle = IDLE.lock();
    if idle.len() < IDLE_MAX {
        idle.push(ring);
    }
    true
}

/// Not more reads than the ring has entries; its queues are empty before and after. False if the kernel takes no more:
/// what has no outcome by then was not begun.
fn read_some(ring: &mut IoUring, file: BorrowedFd<'_>, reads: &mut [RingRead<'_>]) -> bool {
    let mut queued = 0;
    for (number, read) in reads.iter_mut().enumerate() {
        let length = u32::try_from(read.buffer.len()).unwrap_or(u32::MAX);
        let entry = opcode::Read::new(Fd(file.as_raw_fd()), read.buffer.as_mut_ptr(), length)
            .offset(read.offset)
            .build()
            .user_data(number as u64);
        // SAFETY: the file and the buffer are borrowed by this call, which returns only when every read that was begun
        // has completed.
        if unsafe { ring.submission().push(&entry) }.is_err() {
            read.outcome = Err(io::ErrorKind::WouldBlock.into());
            continue;
        }
        queued += 1;
    }
    let (mut begun, mut completed) = (0, 0);
    while completed < queued {
        // For all of them: nothing can be done with a part, and each waking costs more than many a read.
        match ring.submit_and_wait(queued - completed) {
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
        for done in ring.completion() {
            completed += 1;
            let Some(read) = usize::try_from(done.user_data())
                .ok()
                .and_then(|number| reads.get_mut(number))
            else {
                continue;
            };
            read.outcome = match done.result() {
                failed @ ..0 => Err(io::Error::from_raw_os_error(-failed)),
                length => Ok(length as usize),
            };
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::fd::AsFd};

    use super::*;

    #[test]
    fn more_reads_than_entries_all_get_their_bytes_and_short_ones_say_so() {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..200u32).flat_map(|at| [at as u8; 512]).collect();
        file.write_all(&content).unwrap();
        let mut buffers = vec![[0u8; 512]; 201];
        let mut reads: Vec<RingRead<'_>> = buffers
            .iter_mut()
            .enumerate()
            .map(|(at, buffer)| RingRead {
                offset: at as u64 * 512,
                buffer,
                outcome: Ok(usize::MAX),
            })
            .collect();
        if !read_all(file.as_fd(), &mut reads) {
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
        let mut reads = [RingRead {
            offset: 0,
            buffer: &mut buffer,
            outcome: Ok(usize::MAX),
        }];
        if read_all(directory.as_fd(), &mut reads) {
            assert!(reads[0].outcome.is_err());
        }
    }
}
