//! `RingEntry`: one request at a time through io_uring (FUSE over io_uring, Linux 6.14; kernel
//! `Documentation/filesystems/fuse/fuse-io-uring.rst`), and what is needed to have it.
//!
//! The kernel keeps a queue for each processor and puts a request into that of the processor it was made on. A queue
//! has entries: memory for one request and its answer, waited for by a command in some ring. Here each entry has a
//! thread and a ring of its own, so that a request is served where it arrives, by one system call that answers the
//! last and waits for the next; a slow request holds up nobody. The kernel uses the entry first that came back last:
//! with few requests in flight, one warm thread serves them.
//!
//! Invariants: the memory given to the kernel stays in place until the ring is gone.

use std::{
    fs, io,
    sync::{Arc, atomic::AtomicU64},
};

use io_uring::squeue::Entry128;
use terrace_device::Uring;

use super::{
    kernel_device::{Connection, REST},
    uring_memory::RingMemory,
};

/// The kernel's switch; off by default, and its owner's to set.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE_PROCESSORS: &str = "/sys/devices/system/cpu/possible";
/// With more processors than this the threads of each mount would be too many: the device serves them.
const QUEUES_MAX: usize = 64;

/// The first kernel on which the switch is turned without being asked: before it, what FUSE over io_uring does when
/// a mount goes away was still being mended.
const TRUSTED_KERNEL: (u32, u32) = (6, 18);

/// How it stands with FUSE over io_uring here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingSwitch {
    /// The kernel has none (it is older than 6.14, or was built without).
    Absent,
    /// It has, but its switch is off.
    Off,
    /// It can be used.
    On,
    /// The switch is on, but io_uring itself is forbidden to us.
    Forbidden,
}

/// See [`RingSwitch`].
pub fn ring_switch() -> RingSwitch {
    match fs::read_to_string(SWITCH) {
        Err(_) => RingSwitch::Absent,
        Ok(value) if value.trim() != "Y" => RingSwitch::Off,
        Ok(_) if is_available() => RingSwitch::On,
        Ok(_) => RingSwitch::Forbidden,
    }
}

/// Turns the kernel's switch on, if it is off, ours to turn, and the kernel is new enough; true if this changed it. It
/// only allows servers that ask for it to use rings.
pub fn switch_on() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    version_of(&release).is_some_and(|version| version >= TRUSTED_KERNEL)
        && ring_switch() == RingSwitch::Off
        && fs::write(SWITCH, "Y").is_ok()
}

/// Of a release such as `6.18.44-generic`.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether rings can be had at all: io_uring may be forbidden (`kernel.io_uring_disabled`, containers).
pub fn is_available() -> bool {
    queues().is_some() && Uring::<Entry128>::of_one_thread(2).is_ok()
}

/// How many queues the kernel has: one for each processor that there could be.
pub fn queues() -> Option<usize> {
    let list = fs::read_to_string(POSSIBLE_PROCESSORS).ok()?;
    let count = count_of(list.trim())?;
    (1..=QUEUES_MAX).contains(&count).then_some(count)
}

/// Of a list such as `0-3,8`: how many.
fn count_of(list: &str) -> Option<usize> {
    list.split(',').try_fold(0_usize, |count, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Keeps the calling thread on one processor; that this is not allowed or it is absent is no error.
pub fn stay_on(processor: usize) {
    if processor < rustix::thread::CpuSet::MAX_CPU {
        let mut set = rustix::thread::CpuSet::new();
        set.set(processor);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Those on which the calling thread may run.
pub fn processors() -> Option<rustix::thread::CpuSet> {
    rustix::thread::sched_getaffinity(None).ok()
}

/// Lets the calling thread run on any of these.
pub fn stay_within(processors: &rustix::thread::CpuSet) {
    let _ = rustix::thread::sched_setaffinity(None, processors);
}

/// What waiting gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// A request, to be answered.
    Request,
    /// The mount has ended.
    Ended,
}

/// What the result of a command that waited for a request says.
fn taken(result: i32) -> io::Result<Taken> {
    match -result {
        ..=0 => Ok(Taken::Request),
        libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => Ok(Taken::Ended),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// See the module. Belongs to the thread that made it.
pub struct RingEntry {
    ring: Uring<Entry128>,
    memory: Box<RingMemory>,
    /// A request is there already.
    has_request: bool,
}

impl RingEntry {
    /// Gives the kernel a further entry for `queue`.
    /// What its memory takes counts in `bytes`.
    pub fn register(connection: &Connection, queue: u16, bytes: &Arc<AtomicU64>) -> io::Result<Self> {
        let mut memory = Box::new(RingMemory::new(queue, bytes));
        let parts = memory.parts();
        let command = memory.registration(connection, &parts);
        let mut entry = Self {
            ring: Uring::of_one_thread(2)?,
            memory,
            has_request: false,
        };
        // SAFETY: what the command points to is there until it has been submitted, and the memory itself until the ring is
        // dropped (fields are dropped in order).
        unsafe { entry.ring.push(&command) }?;
        entry.ring.submit()?;
        // A refusal is there at once.
        match entry.ring.completion() {
            Some((_, refused @ ..0)) => Err(io::Error::from_raw_os_error(-refused)),
            Some(_) => {
                entry.has_request = true;
                Ok(entry)
            }
            None => Ok(entry),
        }
    }

    /// Tells the kernel, which waits for entries since INIT, that there will be none: it goes on without rings.
    pub fn decline(connection: &Connection) {
        // It takes a refused registration as that.
        let _ = Self::register(connection, u16::MAX, &Arc::default());
    }

    /// Waits for a request.
    pub fn wait(&mut self) -> io::Result<Taken> {
        if std::mem::take(&mut self.has_request) {
            return Ok(Taken::Request);
        }
        loop {
            // Not for longer than that if there is memory to give back then.
            let limit = self.memory.is_grown().then_some(REST);
            let has_rested = !self.ring.wait(limit)?;
            if let Some((_, result)) = self.ring.completion() {
                return taken(result);
            }
            // The kernel puts a request into the memory while this thread is in the call alone ([`Uring::of_one_thread`]).
            if has_rested {
                self.memory.give_back();
            }
        }
    }

    /// The request that came, to be answered.
    pub fn memory(&mut self) -> &mut RingMemory {
        &mut self.memory
    }

    /// Hands over, with the next [`wait`](Self::wait), the answer that is in the memory.
    pub fn hand_over(&mut self, connection: &Connection) -> io::Result<()> {
        // SAFETY: the command points to nothing.
        unsafe { self.ring.push(&self.memory.answer_command(connection)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        assert_eq!(count_of("0"), Some(1));
        assert_eq!(count_of("0-1"), Some(2));
        assert_eq!(count_of("0-3,8,10-11"), Some(7));
        assert_eq!(count_of("3-1"), None);
        assert_eq!(count_of(""), None);
        assert_eq!(count_of("0-18446744073709551615"), None);
    }

    #[test]
    fn releases_are_read() {
        assert_eq!(version_of("6.18.44-generic"), Some((6, 18)));
        assert_eq!(version_of("6.8-rc1"), Some((6, 8)));
        assert_eq!(version_of("linux"), None);
    }
}
