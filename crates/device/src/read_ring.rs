//! `ReadRing`: reads of files that are under way while the thread that began them does other things, and waits for
//! whichever ends first.
//!
//! Invariants: memory that the kernel may write to belongs to the ring, and leaves it when the read has ended; a ring
//! that is dropped waits for its reads, and where it cannot, their memory is never given back.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, BorrowedFd},
    sync::Arc,
};

use io_uring::{IoUring, opcode, types::Fd};

use crate::{AlignedBuffer, polling::Polling, ring::has_something};

/// What the completion of the watched descriptor carries; reads carry their number.
const WATCHED: u64 = u64::MAX;

/// With more reads than this under way something always comes soon, and processors are wanted elsewhere.
const POLLED_MAX: usize = 4;

/// A read of a file: `memory.len()` bytes from `offset` on.
pub struct FileRead {
    /// See [`Device::file_to_read`](crate::Device::file_to_read).
    pub file: Arc<File>,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// What it fills.
    pub memory: AlignedBuffer,
}

/// A read that has ended.
pub struct Ended {
    /// Which one, as [`ReadRing::begin`] said.
    pub number: usize,
    /// Its memory,
    pub memory: AlignedBuffer,
    /// and whether it was filled to its end.
    pub is_whole: bool,
}

/// See the module. Belongs to the thread that made it.
pub struct ReadRing {
    ring: IoUring,
    reads: Vec<Option<FileRead>>,
    free: Vec<usize>,
    is_watching: bool,
    polling: Polling,
}

impl ReadRing {
    /// For so many reads at a time. An error where the system has no such thing, or forbids it.
    pub fn open(reads: u32) -> io::Result<Self> {
        // Completions are looked for by this thread alone, when it asks: newer kernels need not interrupt it for each.
        let mut quiet = IoUring::builder();
        quiet
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag();
        let entries = reads.saturating_add(1);
        let ring = quiet.build(entries).or_else(|_| IoUring::new(entries))?;
        Ok(Self {
            ring,
            reads: (0..reads).map(|_| None).collect(),
            free: (0..reads as usize).rev().collect(),
            is_watching: false,
            polling: Polling::default(),
        })
    }

    /// Reads under way.
    pub fn under_way(&self) -> usize {
        self.reads.len() - self.free.len()
    }

    /// Whether it has been told to watch a descriptor that has not been ready since.
    pub fn is_watching(&self) -> bool {
        self.is_watching
    }

    /// Whether no further read has a place.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Begins a read, with the next [`submit`](Self::submit) or [`wait`](Self::wait): its number, below that of all reads at a time. It comes back where
    /// none has a place.
    pub fn begin(&mut self, read: FileRead) -> Result<usize, FileRead> {
        let Some(number) = self.free.pop() else {
            return Err(read);
        };
        let read = self.reads[number].insert(read);
        let length = u32::try_from(read.memory.len()).unwrap_or(u32::MAX);
        let entry = opcode::Read::new(Fd(read.file.as_raw_fd()), read.memory.as_mut_ptr(), length)
            .offset(read.offset)
            .build()
            .user_data(number as u64);
        // SAFETY: file and memory are kept in `reads` until the read has ended.
        match unsafe { self.ring.submission().push(&entry) } {
            Ok(()) => Ok(number),
            Err(_) => {
                self.free.push(number);
                match self.reads[number].take() {
                    Some(read) => Err(read),
                    None => unreachable!("it was put there above"),
                }
            }
        }
    }

    /// Begins what has been put in and waits until a read has ended or `also` can be read from: whether it can. What has ended
    /// is put into `ended`. `also` is to stay open, and the same, as long as the ring is there.
    pub fn wait(&mut self, also: Option<BorrowedFd<'_>>, ended: &mut Vec<Ended>) -> io::Result<bool> {
        if let Some(also) = also
            && !self.is_watching
        {
            let poll = opcode::PollAdd::new(Fd(also.as_raw_fd()), libc::POLLIN as u32).build();
            // SAFETY: it refers to no memory.
            self.is_watching = unsafe { self.ring.submission().push(&poll.user_data(WATCHED)) }.is_ok();
        }
        while let Err(error) = self.submit_and_wait() {
            if !matches!(
                error.raw_os_error(),
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
            ) {
                return Err(error);
            }
            std::thread::yield_now();
        }
        let mut has_come = false;
        for done in self.ring.completion() {
            if done.user_data() == WATCHED {
                // Of what could not be watched nothing is known.
                (self.is_watching, has_come) = (false, done.result() >= 0);
                continue;
            }
            let number = done.user_data() as usize;
            let Some(read) = self.reads.get_mut(number).and_then(Option::take) else {
                continue;
            };
            self.free.push(number);
            ended.push(Ended {
                number,
                is_whole: usize::try_from(done.result()) == Ok(read.memory.len()),
                memory: read.memory,
            });
        }
        Ok(has_come)
    }

    /// Has the kernel begin what has been put in.
    pub fn submit(&mut self) -> io::Result<()> {
        if !self.ring.submission().is_empty() {
            self.ring.submit()?;
        }
        Ok(())
    }

    fn submit_and_wait(&mut self) -> io::Result<usize> {
        if self.under_way() > POLLED_MAX {
            return self.ring.submit_and_wait(1);
        }
        self.submit()?;
        self.polling
            .wait(&mut self.ring, has_something, |ring| ring.submit_and_wait(1))
    }
}

impl Drop for ReadRing {
    fn drop(&mut self) {
        let mut ended = Vec::new();
        while self.under_way() > 0 {
            if self.wait(None, &mut ended).is_err() {
                // The kernel may write to it at any time.
                self.reads.drain(..).for_each(std::mem::forget);
                return;
            }
            ended.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::fd::AsFd, os::unix::net::UnixStream};

    use super::*;

    fn read(file: &Arc<File>, offset: u64, length: usize) -> FileRead {
        let mut memory = AlignedBuffer::with_capacity(length);
        memory.reuse(length);
        FileRead {
            file: file.clone(),
            offset,
            memory,
        }
    }

    fn file() -> Arc<File> {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..20u8).flat_map(|at| [at; 512]).collect();
        file.write_all(&content).unwrap();
        Arc::new(file)
    }

    #[test]
    fn reads_end_with_their_bytes_and_short_ones_say_so() {
        let Ok(mut ring) = ReadRing::open(4) else { return };
        let file = file();
        let mut expected = std::collections::HashMap::new();
        for at in [3, 7, 19, 20] {
            let number = ring.begin(read(&file, at * 512, 512)).ok().unwrap();
            expected.insert(number, at);
        }
        assert!(ring.is_full() && ring.begin(read(&file, 0, 512)).is_err());
        let mut ended = Vec::new();
        while ring.under_way() > 0 {
            assert!(!ring.wait(None, &mut ended).unwrap());
        }
        assert_eq!(ended.len(), 4);
        for end in ended {
            let at = expected[&end.number];
            assert_eq!(end.is_whole, at < 20, "{at}: there are 20 of 512 bytes");
            assert!(!end.is_whole || end.memory[..] == [at as u8; 512]);
        }
    }

    #[test]
    fn what_is_watched_wakes_and_is_watched_again() {
        let Ok(mut ring) = ReadRing::open(1) else { return };
        let (mine, mut theirs) = UnixStream::pair().unwrap();
        let mut ended = Vec::new();
        for _ in 0..2 {
            theirs.write_all(b"x").unwrap();
            assert!(ring.wait(Some(mine.as_fd()), &mut ended).unwrap());
            io::Read::read_exact(&mut &mine, &mut [0]).unwrap();
        }
        // Nothing to be read there: only the read ends.
        let number = ring.begin(read(&file(), 512, 512)).ok().unwrap();
        while ended.is_empty() {
            assert!(!ring.wait(Some(mine.as_fd()), &mut ended).unwrap());
        }
        assert_eq!((ended[0].number, ended[0].is_whole), (number, true));
    }

    #[test]
    fn a_ring_that_goes_waits_for_its_reads() {
        let Ok(mut ring) = ReadRing::open(2) else { return };
        let file = file();
        assert!(ring.begin(read(&file, 0, 512)).is_ok() && ring.begin(read(&file, 512, 512)).is_ok());
        drop(ring);
        assert_eq!(Arc::strong_count(&file), 1, "nothing of it is left");
    }
}
