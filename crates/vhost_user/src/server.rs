//! `Server`: one disk at a Unix socket, for one machine monitor at a time; when that goes, the next may come.
//!
//! Invariants: after `stop` returned no request is served any more and the socket is removed; what a guest was told is
//! durable stays so.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use terrace_dataset::BlockDevice;
use terrace_device::{SocketFile, listen_at};
use vhost::vhost_user::Listener;
use vhost_user_backend::{ShutdownHandle, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::{
    epoll::EventSet,
    event::{EventFlag, new_event_consumer_and_notifier},
};

use crate::device::{CLOSING_EVENT, Device};

/// Why a disk cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {path}: {cause}")]
pub struct ServerError {
    path: PathBuf,
    cause: io::Error,
}

struct Inner {
    disk: Arc<dyn BlockDevice>,
    name: String,
    closing: Arc<AtomicBool>,
    connection: Mutex<Option<ShutdownHandle>>,
}

/// See above.
pub struct Server {
    file: SocketFile,
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`; `name` is what the guest sees as the serial number.
    pub fn start(path: &Path, name: &str, disk: Arc<dyn BlockDevice>) -> Result<Self, ServerError> {
        let failed = |cause| ServerError {
            path: path.to_owned(),
            cause,
        };
        let (listener, file) = listen_at(path).map_err(failed)?;
        let inner = Arc::new(Inner {
            disk,
            name: name.to_owned(),
            closing: Arc::new(AtomicBool::new(false)),
            connection: Mutex::new(None),
        });
        let serving = inner.clone();
        let thread = thread::Builder::new()
            .name("vhost-user".into())
            .spawn(move || serving.run(listener))
            .inspect_err(|_| file.remove())
            .map_err(failed)?;
        Ok(Self {
            file,
            inner,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Whether a monitor is connected.
    pub fn is_connected(&self) -> bool {
        self.inner.connection.lock().is_some()
    }

    /// Ends the connection, if there is one, and stops listening.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.inner.closing.store(true, Ordering::Release);
        if let Some(connection) = &*self.inner.connection.lock() {
            connection.shutdown();
        }
        let _ = thread.join();
        self.file.remove();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Inner {
    fn run(&self, listener: UnixListener) {
        let Ok(waiting) = listener.try_clone() else { return };
        let mut listener = Listener::from(listener);
        while !self.closing.load(Ordering::Acquire) {
            let mut asked = [PollFd::from_borrowed_fd(waiting.as_fd(), PollFlags::IN)];
            // Woken five times a second to see whether the server stops.
            let pause = Timespec {
                tv_sec: 0,
                tv_nsec: 200_000_000,
            };
            if !matches!(poll(&mut asked, Some(&pause)), Ok(1..)) {
                continue;
            }
            if let Err(error) = self.serve(&mut listener) {
                tracing::warn!("vhost-user: a connection to '{}' failed: {error}", self.name);
            }
        }
    }

    /// Takes the monitor that is waiting, and serves it until it goes.
    fn serve(&self, listener: &mut Listener) -> io::Result<()> {
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        // A device for each monitor: what one has set is nothing to the next.
        let gone = Arc::new(AtomicBool::new(false));
        let device = Device::new(self.disk.clone(), &self.name, memory.clone(), gone.clone());
        let mut daemon = VhostUserDaemon::new("vhost-user".into(), Arc::new(device), memory)
            .map_err(|error| io::Error::other(error.to_string()))?;
        // Level-triggered and never taken back: it ends the threads of all queues.
        let (ended, end) = new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC)?;
        for handler in daemon.get_epoll_handlers() {
            if let Err(error) =
                handler.register_listener(ended.as_raw_fd(), EventSet::IN, u64::from(CLOSING_EVENT))
            {
                // Its threads could not be told to end, and would be waited for in vain.
                std::mem::forget(daemon);
                return Err(error);
            }
        }
        let served = self.converse(&mut daemon, listener);
        gone.store(true, Ordering::Release);
        end.notify()?;
        // Waits for the threads: each finishes the request that it is at.
        drop(daemon);
        served
    }

    fn converse(&self, daemon: &mut VhostUserDaemon<Arc<Device>>, listener: &mut Listener) -> io::Result<()> {
        daemon
            .start(listener)
            .map_err(|error| io::Error::other(error.to_string()))?;
        *self.connection.lock() = daemon.shutdown_handle();
        if self.closing.load(Ordering::Acquire) {
            daemon.request_shutdown();
        }
        // However it ends, broken off or said goodbye to: the next one may come.
        let ended = daemon.wait();
        *self.connection.lock() = None;
        if let Err(error) = ended {
            tracing::debug!("vhost-user: the monitor of '{}' is gone: {error}", self.name);
        }
        Ok(())
    }
}
