//! `Uring`: a ring of io_uring, as every part of the process uses one.
//!
//! Invariants: what was pushed is submitted before a wait; a wait that a signal ends returns early and loses nothing. Memory
//! that an entry refers to is kept in place by whoever pushed it, until the completion has come.

use std::{io, time::Duration};

use io_uring::{
    IoUring, cqueue,
    squeue::{Entry, EntryMarker},
    types::{SubmitArgs, Timespec},
};

/// A ring that takes entries of one size.
pub struct Uring<E: EntryMarker = Entry>(IoUring<E, cqueue::Entry>);

impl<E: EntryMarker> Uring<E> {
    /// For the calling thread alone. The kernel completes entries, and writes to their memory, only while that thread
    /// waits. An error before Linux 6.1, where that cannot be had.
    pub fn of_one_thread(entries: u32) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        builder.build(entries).map(Self)
    }

    /// For threads that use it in turn. Newer kernels do not interrupt them for completions.
    pub fn shared(entries: u32) -> io::Result<Self> {
        let mut quiet = IoUring::builder();
        quiet.setup_coop_taskrun().setup_taskrun_flag();
        let ring = quiet
            .build(entries)
            .or_else(|_| IoUring::builder().build(entries))?;
        Ok(Self(ring))
    }

    /// Puts an entry in, to be submitted with the next wait. A full ring is submitted first.
    ///
    /// # Safety
    /// What the entry refers to stays in place until its completion has come, or the ring is dropped.
    pub unsafe fn push(&mut self, entry: &E) -> io::Result<()> {
        // SAFETY: as the caller has promised.
        while unsafe { self.0.submission().push(entry) }.is_err() {
            self.submit()?;
        }
        Ok(())
    }

    /// Has the kernel begin what was pushed: how many entries.
    pub fn submit(&mut self) -> io::Result<usize> {
        self.0.submit()
    }

    /// Submits, and waits for `wanted` completions: how many entries were submitted. A signal ends it with an error.
    pub(crate) fn submit_and_wait(&mut self, wanted: usize) -> io::Result<usize> {
        self.0.submit_and_wait(wanted)
    }

    /// Submits, and waits for a completion, for `limit` at most. False if none came in that time; after a signal none may
    /// be there either.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<bool> {
        let waited = match limit.map(Timespec::from) {
            Some(limit) => self
                .0
                .submitter()
                .submit_with_args(1, &SubmitArgs::new().timespec(&limit)),
            None => self.submit_and_wait(1),
        };
        match waited {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Takes a completion: what its entry carried, and its result, an error number if below 0.
    pub fn completion(&mut self) -> Option<(u64, i32)> {
        let done = self.0.completion().next()?;
        Some((done.user_data(), done.result()))
    }

    /// Whether a completion is there, or would be after a system call.
    pub(crate) fn has_something(&mut self) -> bool {
        self.0.submission().taskrun() || !self.0.completion().is_empty()
    }
}
