//! `FlushGate`: what every flush of a device passes through.
//!
//! Invariants: one flush at a time; once one failed, all later ones fail. Both are needed because the system reports a
//! failed write-back once: of two flushes side by side one would get the error, and the other a success that covers
//! the same lost writes.

use std::io;

use terrace_sync::{Mutex, rank};

use crate::Cause;

/// Lets flushes through one by one until one fails.
#[derive(Default)]
pub(crate) struct FlushGate {
    failed: Mutex<bool, rank::device::FlushGate>,
}

impl FlushGate {
    /// Calls `sync`, unless an earlier call failed.
    pub(crate) fn pass(&self, sync: impl FnOnce() -> io::Result<()>) -> Result<(), Cause> {
        let mut failed = self.failed.lock();
        if *failed {
            return Err(Cause::FlushFailedBefore);
        }
        sync().map_err(|error| {
            // The kernel drops the dirty pages after reporting once; a second success would be a lie.
            *failed = true;
            Cause::from(&error)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_flush_beside_one_that_fails_does_not_succeed() {
        for _ in 0..1000 {
            let gate = Arc::new(FlushGate::default());
            let at_the_door = Arc::new(AtomicBool::new(false));
            let second = {
                let (gate, at_the_door) = (gate.clone(), at_the_door.clone());
                move || {
                    at_the_door.store(true, Ordering::SeqCst);
                    gate.pass(|| Ok(()))
                }
            };
            let mut beside = None;
            let first = gate.pass(|| {
                beside = Some(std::thread::spawn(second));
                while !at_the_door.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                Err(io::Error::from_raw_os_error(libc::EIO))
            });
            assert_eq!(first, Err(Cause::System(libc::EIO)));
            let beside = beside.map(std::thread::JoinHandle::join);
            assert!(matches!(beside, Some(Ok(Err(Cause::FlushFailedBefore)))));
        }
    }
}
