//! `Serving`: what the threads of a mount share, and how one request is answered.
//!
//! Invariants: a request that was taken is answered (serving one never panics but for a broken invariant, which ends the process);
//! when the last thread has stopped, everything that the kernel knew is let go of, once.

use std::{
    io,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use terrace_device::{Complaint, ServedRequest};

use super::{
    read_loop,
    threads::{Crew, Place},
    uring_threads::RingCrew,
};
use crate::{
    protocol::{Dialect, Header, ReplyBuffer, Request, feature, operation},
    server::{Answer, Server},
    transport::{Connection, PageDrops, invalidate_inode, uring_entry},
};

/// What is done once a mount has ended.
type EndHook = Box<dyn FnOnce() + Send>;

/// See the module.
pub struct Serving {
    server: Server,
    connection: Arc<Connection>,
    pub(super) crew: Crew,
    places: Mutex<Vec<Arc<Place>>>,
    pub(super) dialect: Dialect,
    /// Where memory counts that requests and the threads take, bytes.
    memory_count: Arc<AtomicU64>,
    rings: OnceLock<Arc<RingCrew>>,
    /// Where threads may run.
    processors: Option<rustix::thread::CpuSet>,
    complaint: Mutex<Complaint>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    running: Mutex<usize>,
    stopped: Condvar,
    ended: AtomicBool,
    end_hooks: Mutex<Vec<EndHook>>,
    awaited_requests: AtomicU64,
    page_drops: Arc<PageDrops>,
}

/// What a thread takes beside the requests that it serves: what is used of its stack, and its handle to the kernel.
const THREAD_BYTES: u64 = 24 << 10;

/// How long the answer of a write waits for pages to be dropped that somebody reads just now. If all threads waited so, and the
/// page were one that is asked for behind them, nobody else would end it.
const PAGES_PATIENCE: Duration = Duration::from_millis(250);

impl Serving {
    /// With no thread yet. What requests and threads take counts in `memory_count`, bytes.
    pub fn new(server: Server, connection: Connection, crew: Crew, memory_count: Arc<AtomicU64>) -> Self {
        Self {
            dialect: server.negotiated().dialect(),
            memory_count,
            server,
            connection: Arc::new(connection),
            crew,
            places: Mutex::default(),
            processors: uring_entry::processors(),
            complaint: Mutex::default(),
            threads: Mutex::default(),
            running: Mutex::new(0),
            stopped: Condvar::new(),
            ended: AtomicBool::new(false),
            end_hooks: Mutex::default(),
            rings: OnceLock::new(),
            awaited_requests: AtomicU64::new(0),
            page_drops: Arc::default(),
        }
    }

    /// What answers the requests.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Where requests come from.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Where memory counts that requests and the threads take, bytes.
    pub fn memory_count(&self) -> &Arc<AtomicU64> {
        &self.memory_count
    }

    /// Has the watcher look at a place, until it is [removed](Self::remove_place).
    pub(super) fn add_place(&self, place: Place) -> Arc<Place> {
        let place = Arc::new(place);
        self.places.lock().push(place.clone());
        place
    }

    pub(super) fn remove_place(&self, place: &Arc<Place>) {
        self.places.lock().retain(|other| !Arc::ptr_eq(other, place));
    }

    /// Runs `life` on a thread of its own. The mount has not ended before all of these have.
    pub fn start(
        self: &Arc<Self>,
        name: &str,
        life: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> io::Result<()> {
        *self.running.lock() += 1;
        self.memory_count.fetch_add(THREAD_BYTES, Ordering::Relaxed);
        let shared = self.clone();
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || {
            shared.run_anywhere();
            terrace_device::be_prompt();
            life(&shared);
            shared.thread_stopped();
        });
        match spawned {
            Ok(thread) => {
                self.keep(thread);
                Ok(())
            }
            Err(error) => {
                self.thread_stopped();
                Err(error)
            }
        }
    }

    /// The calling thread may run where the mount was made: it was perhaps started by one that stays on a processor.
    fn run_anywhere(&self) {
        if let Some(processors) = &self.processors {
            uring_entry::stay_within(processors);
        }
    }

    /// No thread could be had; said once a minute at most.
    pub fn complain(&self, error: &io::Error) {
        if let Some(times) = self.complaint.lock().once_more(Instant::now()) {
            tracing::warn!(
                "cannot start a thread to serve the mount ({times} times since it was last said): {error}"
            );
        }
    }

    /// The calling thread ends while the mount goes on: nobody need join it.
    pub fn detach_current_thread(&self) {
        let this = std::thread::current().id();
        self.threads.lock().retain(|other| other.thread().id() != this);
    }

    /// Requests come through these from now on.
    pub fn set_rings(&self, rings: Arc<RingCrew>) {
        let _ = self.rings.set(rings);
    }

    /// What serves requests that come through rings, if they do.
    pub fn rings(&self) -> Option<&Arc<RingCrew>> {
        self.rings.get()
    }

    /// A thread begins to serve a request; it is to say when it is done ([`Crew::done`]).
    pub fn begin(self: &Arc<Self>, place: &Place) {
        if self.crew.begin(place) {
            self.start_watcher();
        }
    }

    /// The same of a thread of a ring's queue; see [`Crew::begin_in_queue`].
    pub fn begin_in_queue(self: &Arc<Self>, place: &Place, alone: bool) {
        if self.crew.begin_in_queue(place, alone) {
            self.start_watcher();
        }
    }

    fn start_watcher(self: &Arc<Self>) {
        let watched = self.clone();
        let watcher = std::thread::Builder::new()
            .name("fuse-watch".into())
            .spawn(move || {
                watched.run_anywhere();
                let places = || watched.places.lock().clone();
                watched
                    .crew
                    .watch(places, |stuck| match (stuck.queue(), watched.rings()) {
                        (Some(queue), Some(rings)) => rings.relieve(&watched, queue),
                        _ => {
                            read_loop::relieve(&watched, stuck);
                            true
                        }
                    });
                if !watched.crew.is_ended() {
                    watched.detach_current_thread();
                }
            });
        match watcher {
            Ok(watcher) => self.keep(watcher),
            Err(error) => {
                self.complain(&error);
                self.crew.has_no_watcher();
            }
        }
    }

    /// Has a thread joined when the mount is taken down.
    pub fn keep(&self, thread: JoinHandle<()>) {
        self.threads.lock().push(thread);
    }

    fn thread_stopped(&self) {
        self.memory_count.fetch_sub(THREAD_BYTES, Ordering::Relaxed);
        let mut running = self.running.lock();
        *running -= 1;
        if *running == 0 {
            self.page_drops.end();
            self.server.end();
            self.ended.store(true, Ordering::Release);
            self.stopped.notify_all();
            drop(running);
            self.run_end_hooks();
        }
    }

    /// Has `hook` run once when the mount has ended, on the thread that ended last; at once if it has. It must not wait for the mount.
    pub fn when_ended(&self, hook: impl FnOnce() + Send + 'static) {
        self.end_hooks.lock().push(Box::new(hook));
        if self.is_ended() {
            self.run_end_hooks();
        }
    }

    fn run_end_hooks(&self) {
        let hooks = std::mem::take(&mut *self.end_hooks.lock());
        hooks.into_iter().for_each(|hook| hook());
    }

    /// Serves a request. The error number for the kernel (0: none), or `None` if it waits for no answer.
    pub fn answer(&self, header: &Header, request: Request<'_>, reply: &mut ReplyBuffer) -> Option<i32> {
        if request.is_awaited() {
            self.awaited_requests.fetch_add(1, Ordering::Relaxed);
        }
        let _serving = ServedRequest::begin("FUSE", header.operation, operation::name);
        let answer = self.server.handle(header, request, reply);
        if let Some(node) = reply.outdated()
            && let Err(error) = invalidate_inode(&self.connection, node, None)
        {
            tracing::error!("cannot tell the kernel that the mode of object {node} changed: {error}");
        }
        if let Some((node, range)) = reply.outdated_content() {
            self.drop_pages(node, range);
        }
        match answer {
            Answer::Silence => None,
            Answer::Reply => Some(0),
            Answer::Error(error) => Some(error.0),
        }
    }

    /// Has pages dropped, by a thread of its own, and waits for that at most for [`PAGES_PATIENCE`].
    fn drop_pages(&self, node: u64, range: Range<u64>) {
        match self.page_drops.begin(&self.connection) {
            Ok(()) => self.page_drops.drop_range(node, range, PAGES_PATIENCE),
            Err(error) => tracing::error!("cannot start a thread to drop outdated pages: {error}"),
        }
    }

    /// Whether requests come through rings, and only word of forgotten objects through the device.
    pub fn uses_rings(&self) -> bool {
        self.server.negotiated().has(feature::OVER_IO_URING)
    }

    /// Requests served so far that a caller waited for.
    pub fn awaited_requests(&self) -> u64 {
        self.awaited_requests.load(Ordering::Relaxed)
    }

    /// Whether all threads have stopped and everything has been let go of.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits until all threads have stopped.
    pub fn wait(&self) {
        let mut running = self.running.lock();
        while *running > 0 {
            self.stopped.wait(&mut running);
        }
    }

    /// The same, at most for `limit`; whether they have.
    pub fn wait_for(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut running = self.running.lock();
        while *running > 0 && !self.stopped.wait_until(&mut running, until).timed_out() {}
        *running == 0
    }

    /// Joins the threads.
    pub fn join(&self) {
        self.wait();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            let _ = thread.join();
        }
    }
}
