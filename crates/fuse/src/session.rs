//! `Session`: a mounted filesystem and the threads that serve it.
//!
//! Invariants: the threads end when the kernel says that the mount is gone, and only then; a request that was taken
//! is answered even if serving it panics (the caller gets EIO, the panic is logged); dropping a session unmounts it
//! lazily and waits for nobody.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    crew::{Call, Crew, Place},
    device::{Connection, Received, RequestBuffer},
    error::FuseError,
    mount::{self, UnmountMode},
    mount_table,
    options::MountOptions,
    pace::Pace,
    past::Past,
    protocol::{
        Dialect, Header, Negotiated, ReplyBuffer, Request, Wishes, feature, negotiate, notification, parse,
    },
    server::{Answer, Content, Server},
};

const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// After this many reads of the device in a row that failed for no known reason a mount is given up.
const FAILURES_MAX: u32 = 100;

/// What the threads of a session share.
struct Shared {
    server: Server,
    connection: Connection,
    crew: Crew,
    places: Mutex<Vec<Arc<Place>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    running: Mutex<usize>,
    stopped: Condvar,
    ended: AtomicBool,
    requests: AtomicU64,
    dialect: Dialect,
    spin: Duration,
}

/// A mounted filesystem. Unmounted when dropped.
pub struct Session {
    shared: Arc<Shared>,
    directory: PathBuf,
    device_minor: u32,
}

/// Mounts `content` at `directory` and serves it on threads of its own until it is unmounted, by
/// [`Session::unmount`] or by anyone else.
pub fn mount(
    directory: &Path,
    content: Content,
    past: Option<Arc<dyn Past>>,
    options: &MountOptions,
) -> Result<Session, FuseError> {
    let directory = mount_table::absolute(directory).map_err(|cause| FuseError::Directory {
        directory: directory.into(),
        cause,
    })?;
    let connection = mount::mount(&directory, options)?;
    let started = start(connection, &directory, content, past, options);
    if started.is_err() {
        // What went wrong first is what the caller is told.
        let _ = mount::unmount(&directory, UnmountMode::Lazy);
    }
    started
}

fn start(
    connection: Connection,
    directory: &Path,
    content: Content,
    past: Option<Arc<dyn Past>>,
    options: &MountOptions,
) -> Result<Session, FuseError> {
    let negotiated = greet(&connection)?;
    let device_minor = mount_table::mount_at(directory)?.map_or(0, |entry| entry.device.1);
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
    let shared = Arc::new(Shared {
        server: Server::new(content, past, options.read_only, negotiated),
        connection,
        crew: Crew::new(cores.div_ceil(4), options.threads_max),
        places: Mutex::default(),
        threads: Mutex::default(),
        running: Mutex::new(0),
        stopped: Condvar::new(),
        ended: AtomicBool::new(false),
        requests: AtomicU64::new(0),
        dialect: negotiated.dialect(),
        spin: options.spin,
    });
    for _ in 0..2 {
        shared.clone().start_thread()?;
    }
    let watched = shared.clone();
    let watcher = std::thread::Builder::new()
        .name("fuse-watch".into())
        .spawn(move || {
            let places = || watched.places.lock().clone();
            let start = || {
                if let Err(error) = watched.clone().start_thread() {
                    tracing::warn!("cannot start a thread to serve the mount: {error}");
                }
            };
            watched.crew.watch(places, start);
        })?;
    shared.threads.lock().push(watcher);
    Ok(Session {
        shared,
        directory: directory.into(),
        device_minor,
    })
}

/// Waits for INIT and answers it.
fn greet(connection: &Connection) -> Result<Negotiated, FuseError> {
    let mut buffer = RequestBuffer::new(TRANSFER_BYTES_MAX);
    let mut reply = ReplyBuffer::new();
    loop {
        match connection.receive(&mut buffer)? {
            Received::Nothing => continue,
            Received::Ended => return Err(io::Error::from_raw_os_error(libc::ENODEV).into()),
            Received::Request => {}
        }
        let (header, request) = parse(buffer.request(), Dialect { long_setxattr: true })
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let Request::Init(offer) = request else {
            connection.send(reply.finish(header.unique, libc::EIO))?;
            continue;
        };
        reply.clear();
        let Some(negotiated) = negotiate(
            &offer,
            Wishes {
                acl: true,
                ring: false,
            },
        ) else {
            connection.send(reply.finish(header.unique, libc::EPROTO))?;
            return Err(FuseError::Version {
                major: offer.major,
                minor: offer.minor,
            });
        };
        negotiated.write(&mut reply);
        connection.send(reply.finish(header.unique, 0))?;
        return Ok(negotiated);
    }
}

impl Shared {
    fn start_thread(self: Arc<Self>) -> io::Result<()> {
        if !self.crew.join() {
            return Ok(());
        }
        *self.running.lock() += 1;
        let shared = self.clone();
        let spawned = std::thread::Builder::new().name("fuse".into()).spawn(move || {
            let place = Arc::new(Place::default());
            shared.places.lock().push(place.clone());
            let mut worker = Worker::new(&shared, &place);
            worker.run();
            shared.thread_stopped();
        });
        match spawned {
            Ok(thread) => {
                self.threads.lock().push(thread);
                Ok(())
            }
            Err(error) => {
                self.thread_stopped();
                Err(error)
            }
        }
    }

    fn thread_stopped(&self) {
        let mut running = self.running.lock();
        *running -= 1;
        if *running == 0 {
            self.server.end();
            self.ended.store(true, Ordering::Release);
            self.stopped.notify_all();
        }
    }
}

/// One thread's handles and buffers.
struct Worker<'a> {
    shared: &'a Arc<Shared>,
    place: &'a Arc<Place>,
    /// Waits in the kernel for a request.
    waiting: Option<Connection>,
    /// Returns at once if there is none; absent if spinning is off or the kernel gave no second handle.
    looking: Option<Connection>,
    buffer: RequestBuffer,
    reply: ReplyBuffer,
    spin: Duration,
    pace: Pace,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Arc<Shared>, place: &'a Arc<Place>) -> Self {
        let looking = if shared.spin.is_zero() {
            None
        } else {
            shared.connection.duplicate(false).ok()
        };
        Self {
            shared,
            place,
            waiting: shared.connection.duplicate(true).ok(),
            looking,
            buffer: RequestBuffer::new(TRANSFER_BYTES_MAX),
            reply: ReplyBuffer::new(),
            spin: Duration::ZERO,
            pace: Pace::default(),
        }
    }

    fn run(&mut self) {
        let mut failures = 0;
        while self.shared.crew.enter(self.place) == Call::Receive {
            while self.shared.crew.holds(self.place) {
                match self.receive() {
                    Ok(Some(looked)) => {
                        failures = 0;
                        self.pace.received(Instant::now());
                        self.serve(looked);
                    }
                    Ok(None) => self.shared.crew.end_here(self.place),
                    Err(error) => {
                        failures += 1;
                        tracing::error!("reading a request of the kernel failed: {error}");
                        if failures == FAILURES_MAX {
                            self.shared.crew.end_here(self.place);
                        }
                    }
                }
            }
        }
    }

    /// Waits for a request; `None` when the mount has ended. True if it came through the handle that looks.
    fn receive(&mut self) -> io::Result<Option<bool>> {
        let started = Instant::now();
        if let Some(looking) = &self.looking
            && !self.spin.is_zero()
            && self.pace.looks()
        {
            loop {
                match looking.receive(&mut self.buffer)? {
                    Received::Request => {
                        self.spin = self.shared.spin;
                        return Ok(Some(true));
                    }
                    Received::Ended => return Ok(None),
                    Received::Nothing if started.elapsed() >= self.spin => break,
                    Received::Nothing => (0..32).for_each(|_| std::hint::spin_loop()),
                }
            }
            // In vain: look for half as long next time, and not at all soon.
            self.spin /= 2;
            if self.spin < self.shared.spin / 8 {
                self.spin = Duration::ZERO;
            }
        }
        let waiting = self.waiting.as_ref().unwrap_or(&self.shared.connection);
        loop {
            match waiting.receive(&mut self.buffer)? {
                Received::Request => break,
                Received::Ended => return Ok(None),
                Received::Nothing => continue,
            }
        }
        // Had we looked this long we had found it.
        if started.elapsed() < self.shared.spin {
            self.spin = self.shared.spin;
        }
        Ok(Some(false))
    }

    fn serve(&mut self, looked: bool) {
        let shared = self.shared;
        self.reply.clear();
        let parsed = parse(self.buffer.request(), shared.dialect);
        let (header, request) = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                tracing::error!("a request of the kernel cannot be read: {error}");
                self.refuse(looked);
                return;
            }
        };
        let bytes = match &request {
            Request::Read { size, .. } => *size as usize,
            Request::Write { data, .. } => data.len(),
            _ => 0,
        };
        if shared.crew.is_slow(header.operation, bytes)
            && shared.crew.leave(self.place)
            && let Err(error) = shared.clone().start_thread()
        {
            tracing::warn!("cannot start a thread to serve the mount: {error}");
        }
        shared.requests.fetch_add(1, Ordering::Relaxed);
        shared.crew.begin(self.place);
        let started = Instant::now();
        let reply = &mut self.reply;
        let answer = catch_unwind(AssertUnwindSafe(|| shared.server.handle(&header, request, reply)));
        shared.crew.learn(header.operation, bytes, started.elapsed());
        let error = match answer {
            Ok(Answer::Silence) => None,
            Ok(Answer::Reply) => Some(0),
            Ok(Answer::Error(error)) => Some(error.0),
            Err(_) => Some(libc::EIO),
        };
        if let Some(error) = error {
            self.send(looked, &header, error);
        }
        shared.crew.done(self.place);
    }

    fn send(&mut self, looked: bool, header: &Header, error: i32) {
        let message = self.reply.finish(header.unique, error);
        let from = if looked {
            self.looking.as_ref()
        } else {
            self.waiting.as_ref()
        };
        if let Err(error) = from.unwrap_or(&self.shared.connection).send(message) {
            // The kernel refuses a malformed reply and waits on: an error at least lets the caller go.
            tracing::error!(
                "the kernel refused a reply to operation {}: {error}",
                header.operation
            );
            let message = self.reply.finish(header.unique, libc::EIO);
            let _ = from.unwrap_or(&self.shared.connection).send(message);
        }
    }

    /// Answers a request of which only the start makes sense.
    fn refuse(&mut self, looked: bool) {
        let Some(unique) = self
            .buffer
            .request()
            .get(8..16)
            .and_then(|bytes| bytes.try_into().ok())
        else {
            return;
        };
        let message = self.reply.finish(u64::from_ne_bytes(unique), libc::EIO);
        let from = if looked {
            self.looking.as_ref()
        } else {
            self.waiting.as_ref()
        };
        let _ = from.unwrap_or(&self.shared.connection).send(message);
    }
}

impl Session {
    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The number of the kernel's connection: `/sys/fs/fuse/connections/N`.
    pub fn connection_number(&self) -> u32 {
        self.device_minor
    }

    /// Whether the mount is gone and everything has been let go of.
    pub fn is_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Requests served so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Live objects that the kernel knows at the moment.
    pub fn known_objects(&self) -> usize {
        self.shared.server.known_objects()
    }

    /// Waits until the mount is gone.
    pub fn wait(&self) {
        let mut running = self.shared.running.lock();
        while *running > 0 {
            self.shared.stopped.wait(&mut running);
        }
    }

    /// Waits until the mount is gone, at most for `limit`; whether it is.
    pub fn wait_for(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut running = self.shared.running.lock();
        while *running > 0 && !self.shared.stopped.wait_until(&mut running, until).timed_out() {}
        *running == 0
    }

    /// Unmounts. [`UnmountMode::IfUnused`] waits until everything written has been served and all threads have
    /// ended; if the mount is in use it goes on and the error says so. [`UnmountMode::Lazy`] returns at once: the
    /// mount ends when the last open file in it is closed (see [`wait`](Self::wait)).
    pub fn unmount(&self, mode: UnmountMode) -> Result<(), FuseError> {
        if self.is_ended() {
            return Ok(());
        }
        let result = mount::unmount(&self.directory, mode);
        if result.is_err() && self.wait_for(Duration::ZERO) {
            return Ok(());
        }
        result?;
        if mode == UnmountMode::IfUnused {
            self.wait();
            let threads = std::mem::take(&mut *self.shared.threads.lock());
            for thread in threads {
                let _ = thread.join();
            }
        }
        Ok(())
    }

    /// Tells the kernel that an object's attributes, and its content if `content`, changed other than through the
    /// mount. Must not be called while serving a request.
    pub fn invalidate_object(&self, object: u64, content: bool) -> Result<(), FuseError> {
        let mut message = ReplyBuffer::new();
        message.u64(object);
        // A negative offset: attributes only.
        message.u64(if content { 0 } else { -1_i64 as u64 });
        message.u64(0);
        self.notify(message, notification::INVALIDATE_INODE)
    }

    /// Tells the kernel that what `name` in `directory` is changed other than through the mount.
    pub fn invalidate_entry(&self, directory: u64, name: &[u8]) -> Result<(), FuseError> {
        let mut message = ReplyBuffer::new();
        message.u64(directory);
        message.u32(name.len() as u32);
        message.u32(0);
        message.bytes(name);
        message.bytes(&[0]);
        self.notify(message, notification::INVALIDATE_ENTRY)
    }

    /// Tells the kernel to look up every name again (after a rollback). Needs Linux 6.16; unmounting and mounting
    /// does the same on older ones.
    pub fn invalidate_all(&self) -> Result<(), FuseError> {
        self.notify(ReplyBuffer::new(), notification::INCREASE_EPOCH)
            .map_err(|_| FuseError::TooOld("be told that all names changed"))
    }

    fn notify(&self, mut message: ReplyBuffer, code: i32) -> Result<(), FuseError> {
        match self.shared.connection.notify(message.finish_notification(code)) {
            Ok(()) => Ok(()),
            // The kernel does not know the object or name: nothing to forget.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a feature of the protocol (`protocol::feature`) is in use.
    pub fn uses(&self, features: u64) -> bool {
        self.shared.server.negotiated().has(features)
    }

    /// Whether the kernel keeps POSIX ACLs.
    pub fn has_acls(&self) -> bool {
        self.uses(feature::POSIX_ACL)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_ended()
            && let Err(error) = mount::unmount(&self.directory, UnmountMode::Lazy)
            && !self.is_ended()
        {
            tracing::warn!("{error}");
        }
    }
}
