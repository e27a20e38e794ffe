//! Promptness: how soon a thread that answers users gets the processor when there is something to answer.
//!
//! Invariants: nothing is asked for that needs a privilege; the thread's policy and niceness stay as they are, and so does its
//! share of the processor; where the kernel does not know of this (before Linux 6.12) or forbids it, the thread runs as all
//! others do.
//!
//! Linux gives a thread that becomes ready a processor on which another one computes only when that one has used up its
//! time slice of some milliseconds, however nice it is; unless the slice of the first is shorter (EEVDF; Stoica and
//! Abdel-Wahab 1995, and `PREEMPT_SHORT`). A write into RAM takes a thirtieth of such a slice.

use std::mem;

/// Time slice of a thread that answers users, nanoseconds: the shortest that Linux takes.
const SLICE_NANOSECONDS: u64 = 100_000;

/// From now on the calling thread gets the processor before those that compute for long. For threads that answer users,
/// called by themselves. Whether the kernel took it; it may do so and know nothing of slices.
pub fn be_prompt() -> bool {
    let Some(mut now) = attributes() else {
        return false;
    };
    // Whoever chose another policy for all of the process knows better.
    if now.sched_policy != libc::SCHED_OTHER as u32 {
        return false;
    }
    now.sched_runtime = SLICE_NANOSECONDS;
    // SAFETY: the kernel reads a structure of the length that stands in it, which is that of this one, and changes nothing of ours.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const now, 0) == 0 }
}

/// Those of the calling thread.
fn attributes() -> Option<libc::sched_attr> {
    let size_bytes = mem::size_of::<libc::sched_attr>() as u32;
    let mut found = libc::sched_attr {
        size: size_bytes,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most `size_bytes`, the length of this structure of integers. No crate that is here offers
    // the call for the ordinary policy.
    let taken = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, size_bytes, 0) == 0 };
    taken.then_some(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_the_slice_of_the_calling_thread_changes() {
        let Some(before) = attributes() else {
            eprintln!("skipped: the kernel tells nothing of scheduling here");
            return;
        };
        let inside = std::thread::spawn(|| be_prompt().then(attributes).flatten());
        let Some(inside) = inside.join().unwrap() else {
            eprintln!("skipped: the kernel takes no time slice here");
            return;
        };
        assert_eq!(inside.sched_policy, before.sched_policy);
        assert_eq!(inside.sched_nice, before.sched_nice);
        // A kernel before 6.12 tells of no slices.
        let slice = inside.sched_runtime;
        assert!(slice == SLICE_NANOSECONDS || before.sched_runtime == 0, "{slice}");
        assert_eq!(attributes().unwrap().sched_runtime, before.sched_runtime);
    }
}
