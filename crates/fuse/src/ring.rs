//! `RingEntry`: one request at a time through io_uring (FUSE over io_uring, Linux 6.14; kernel
//! `Documentation/filesystems/fuse/fuse-io-uring.rst`), and what is needed to have it.
//!
//! The kernel keeps a queue for each processor and puts a request into that of the processor it was made on. A queue
//! has entries: memory for one request and its answer, waited for by a command in some ring. Here each entry has a
//! thread and a ring of its own, so that a request is served where it arrives, by one system call that answers the
//! last and waits for the next; a slow request holds up nobody. The kernel uses the entry first that came back last:
//! with few requests in flight, one warm thread serves them.
//!
//! Invariants: the memory given to the kernel stays in place until the ring is gone; between [`RingEntry::wait`] and
//! [`RingEntry::answer`] it is ours alone, else the kernel's; lengths that the kernel tells are checked.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd},
};

use io_uring::{IoUring, opcode, squeue::Entry128, types::Fd};

use crate::{
    device::Connection,
    protocol::{IN_HEADER_BYTES, OUT_HEADER_BYTES, ReplyBuffer, ring::*},
};

/// The kernel's switch; off by default, and its owner's to set.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE_PROCESSORS: &str = "/sys/devices/system/cpu/possible";
/// With more processors than this the threads of each mount would be too many: the device serves them.
const QUEUES_MAX: usize = 64;
/// Bytes of a long submission entry.
const ENTRY_BYTES: usize = 128;
/// Where in it `addr` and `len` lie (`struct io_uring_sqe`).
const ADDRESS_AT: usize = 16;
const LENGTH_AT: usize = 24;

type Ring = IoUring<Entry128>;

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
    queues().is_some() && open_ring().is_ok()
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

fn open_ring() -> io::Result<Ring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(2)
}

/// What waiting gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// A request, to be answered.
    Request,
    /// The mount has ended.
    Ended,
}

/// See the module. Belongs to the thread that made it.
pub struct RingEntry {
    ring: Ring,
    queue: u16,
    headers: Box<[u8; HEADERS_BYTES]>,
    /// Its payload is where the kernel puts payloads of requests and takes those of replies.
    exchange: ReplyBuffer,
    /// Replies to requests that lie in `exchange` are written here first.
    apart: ReplyBuffer,
    /// A request came as soon as the entry was registered.
    has_request: bool,
}

impl RingEntry {
    /// Gives the kernel a further entry for `queue`.
    pub fn register(connection: &Connection, queue: u16) -> io::Result<Self> {
        let mut entry = Self {
            ring: open_ring()?,
            queue,
            headers: Box::new([0; HEADERS_BYTES]),
            exchange: ReplyBuffer::new(),
            apart: ReplyBuffer::new(),
            has_request: false,
        };
        let memory = [
            libc::iovec {
                iov_base: entry.headers.as_mut_ptr().cast(),
                iov_len: HEADERS_BYTES,
            },
            libc::iovec {
                iov_base: entry.exchange.payload_pointer().cast(),
                iov_len: crate::protocol::PAYLOAD_BYTES_MAX,
            },
        ];
        let mut command = entry.command(connection, COMMAND_REGISTER, 0);
        set_memory(&mut command, &memory);
        // SAFETY: what the command points to, here and in `entry`, is there until it has been submitted, and the
        // memory itself until the ring is dropped (fields are dropped in order).
        unsafe { entry.ring.submission().push(&command) }.map_err(io::Error::other)?;
        entry.ring.submit()?;
        // A refusal is there at once.
        let done = entry.ring.completion().next().map(|done| done.result());
        match done {
            Some(refused @ ..0) => Err(io::Error::from_raw_os_error(-refused)),
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
        let _ = Self::register(connection, u16::MAX);
    }

    /// Hands over what [`answer`](Self::answer) prepared and waits for a request.
    pub fn wait(&mut self) -> io::Result<Taken> {
        if std::mem::take(&mut self.has_request) {
            return Ok(Taken::Request);
        }
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let Some(done) = self.ring.completion().next() else {
                continue;
            };
            return match -done.result() {
                ..=0 => Ok(Taken::Request),
                libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => Ok(Taken::Ended),
                error => Err(io::Error::from_raw_os_error(error)),
            };
        }
    }

    /// Lets `serve` answer the request that came: it gets the request's bytes as a read of the device would give them
    /// and an empty reply, and returns an error number or 0.
    pub fn answer(
        &mut self,
        connection: &Connection,
        serve: impl FnOnce(&[u8], &mut ReplyBuffer) -> i32,
    ) -> io::Result<()> {
        self.exchange.clear();
        self.apart.clear();
        let (error, in_place) = match front(&self.headers) {
            // Nothing of the request lies in the exchange: the reply can be written there.
            Some((front, 0)) => (serve(front.bytes(), &mut self.exchange), true),
            Some((front, payload)) => match self.exchange.join(front.bytes(), payload) {
                Some(request) => (serve(request, &mut self.apart), false),
                None => (libc::EIO, false),
            },
            None => (libc::EIO, false),
        };
        let reply = if in_place { &self.exchange } else { &self.apart };
        let error = if reply.has_overflowed() && error == 0 {
            libc::EIO
        } else {
            error
        };
        let mut payload = 0;
        if error == 0 {
            payload = reply.len();
            if !in_place {
                self.exchange.bytes(self.apart.payload());
            }
        }
        let unique = self.u64_at(8);
        let headers = &mut self.headers;
        headers[..4].copy_from_slice(&((OUT_HEADER_BYTES + payload) as u32).to_ne_bytes());
        headers[4..8].copy_from_slice(&(-error).to_ne_bytes());
        headers[8..16].copy_from_slice(&unique.to_ne_bytes());
        headers[PAYLOAD_BYTES_AT..PAYLOAD_BYTES_AT + 4].copy_from_slice(&(payload as u32).to_ne_bytes());
        let command = self.command(connection, COMMAND_COMMIT_AND_FETCH, self.u64_at(COMMIT_ID_AT));
        // SAFETY: the command points to nothing.
        unsafe { self.ring.submission().push(&command) }.map_err(io::Error::other)
    }

    fn u64_at(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.headers[at..at + 8]);
        u64::from_ne_bytes(bytes)
    }

    /// `struct fuse_uring_cmd_req` in a long submission entry.
    fn command(&self, connection: &Connection, operation: u32, commit_id: u64) -> Entry128 {
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        request[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        opcode::UringCmd80::new(Fd(connection.as_fd().as_raw_fd()), operation)
            .cmd(request)
            .build()
    }
}

/// The crate has no way to give a command memory.
fn set_memory(command: &mut Entry128, memory: &[libc::iovec; 2]) {
    const { assert!(size_of::<Entry128>() == ENTRY_BYTES) };
    // SAFETY: the entry is `struct io_uring_sqe` with its 64 bytes more, plain bytes laid out by the kernel's ABI.
    let bytes = unsafe { &mut *(&raw mut *command).cast::<[u8; ENTRY_BYTES]>() };
    bytes[ADDRESS_AT..ADDRESS_AT + 8].copy_from_slice(&(memory.as_ptr() as u64).to_ne_bytes());
    bytes[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&(memory.len() as u32).to_ne_bytes());
}

/// The part of a request that lies in the headers, and the length of the rest. `None` if the lengths cannot be.
fn front(headers: &[u8; HEADERS_BYTES]) -> Option<(Front, usize)> {
    let number = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&headers[at..at + 4]);
        u32::from_ne_bytes(bytes) as usize
    };
    let payload = number(PAYLOAD_BYTES_AT);
    let operation = number(0).checked_sub(IN_HEADER_BYTES)?.checked_sub(payload)?;
    if operation > OPERATION_BYTES_MAX {
        return None;
    }
    let mut front = Front {
        bytes: [0; IN_HEADER_BYTES + OPERATION_BYTES_MAX],
        length: IN_HEADER_BYTES + operation,
    };
    front.bytes[..IN_HEADER_BYTES].copy_from_slice(&headers[..IN_HEADER_BYTES]);
    front.bytes[IN_HEADER_BYTES..front.length]
        .copy_from_slice(&headers[OPERATION_AT..OPERATION_AT + operation]);
    Some((front, payload))
}

struct Front {
    bytes: [u8; IN_HEADER_BYTES + OPERATION_BYTES_MAX],
    length: usize,
}

impl Front {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
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

    fn headers(length: u32, payload: u32) -> [u8; HEADERS_BYTES] {
        let mut headers = [0; HEADERS_BYTES];
        headers[..4].copy_from_slice(&length.to_ne_bytes());
        headers[OPERATION_AT] = 7;
        headers[PAYLOAD_BYTES_AT..PAYLOAD_BYTES_AT + 4].copy_from_slice(&payload.to_ne_bytes());
        headers
    }

    #[test]
    fn a_request_is_put_together_and_lengths_that_cannot_be_are_refused() {
        let (front_of, payload) = front(&headers(40 + 16 + 5, 5)).unwrap();
        assert_eq!((front_of.length, payload), (56, 5));
        assert_eq!(front_of.bytes[40], 7);
        assert!(front(&headers(39, 0)).is_none());
        assert!(front(&headers(40 + 4, 5)).is_none());
        assert!(front(&headers(40 + 129, 0)).is_none());
        assert!(front(&headers(u32::MAX, u32::MAX)).is_none());
        let mut exchange = ReplyBuffer::new();
        let whole = exchange.join(front_of.bytes(), payload).unwrap();
        assert_eq!(whole.len(), 61);
        assert!(exchange.join(&[0; 300], 0).is_none());
        assert!(
            exchange
                .join(&[], crate::protocol::PAYLOAD_BYTES_MAX + 1)
                .is_none()
        );
    }
}
