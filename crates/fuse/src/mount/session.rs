//! `Session`: a mounted filesystem and the threads that serve it.
//!
//! Invariants: the threads end when the kernel says that the mount is gone, and only then; dropping a session unmounts
//! it lazily and waits for nobody.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    error::FuseError,
    mount::{self, UnmountMode},
    mount_table::{self, MountEntry},
};
use crate::{
    content::{Content, Past},
    options::MountOptions,
    protocol::{
        Dialect, Negotiated, PAYLOAD_BYTES_MAX, ReplyBuffer, Request, Wishes, feature, negotiate,
        notification, parse,
    },
    server::Server,
    serving::{Crew, Serving, read_loop, uring_threads},
    transport::{Connection, Received, RequestBuffer, invalidate_inode, notify, uring_entry},
};

/// How long it is just waited when a mount was taken away.
const UNMOUNT_MOMENT: Duration = Duration::from_secs(1);
/// How long what was served then may take.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(30);

/// A mounted filesystem. Unmounted when dropped.
pub struct Session {
    serving: Arc<Serving>,
    directory: PathBuf,
    device_minor: u32,
    /// It is out of the tree at `directory`; it ends when nothing else keeps it.
    taken_down: AtomicBool,
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
    let negotiated = greet(&connection, options)?;
    let device_minor = mount_table::mount_at(directory)?.map_or(0, |entry| entry.device.1);
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
    let server = Server::new(content, past, options, negotiated);
    let places = cores.div_ceil(4);
    let crew = Crew::new(places, options.threads_max);
    let serving = Arc::new(Serving::new(
        server,
        connection,
        crew,
        options.memory_count.bytes().clone(),
    ));
    // Others follow as they are needed.
    read_loop::start(&serving)?;
    let rings = negotiated
        .has(feature::OVER_IO_URING)
        .then(|| uring_threads::start(&serving, options.threads_max));
    match rings {
        Some(Ok(rings)) => serving.set_rings(rings),
        Some(Err(error)) => tracing::warn!("no requests through io_uring: {error}"),
        None => {}
    }
    if serving.rings().is_none() && places > 1 {
        read_loop::start(&serving)?;
    }
    Ok(Session {
        serving,
        directory: directory.into(),
        device_minor,
        taken_down: AtomicBool::new(false),
    })
}

/// Waits for INIT and answers it.
fn greet(connection: &Connection, options: &MountOptions) -> Result<Negotiated, FuseError> {
    let mut buffer = RequestBuffer::new(PAYLOAD_BYTES_MAX, &Arc::default());
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
                acl: options.extended_attributes,
                // Once agreed, the kernel holds requests back until each queue has an entry.
                ring: options.ring && uring_entry::is_available(),
                background: options.background_max(),
                transfer_bytes: options.transfer_bytes,
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
        self.serving.is_ended()
    }

    /// Has `hook` run once when it has, by one of its threads; at once if it has already. It must not wait for the mount.
    pub fn when_ended(&self, hook: impl FnOnce() + Send + 'static) {
        self.serving.when_ended(hook);
    }

    /// Requests served so far that a caller waited for: all but those by which the kernel lets go of something, which it
    /// sends when it likes.
    pub fn awaited_requests(&self) -> u64 {
        self.serving.awaited_requests()
    }

    /// What the mount takes of memory for requests, threads and objects that the kernel knows, bytes; with that of all others of the
    /// pool, where they are counted together.
    pub fn memory_bytes(&self) -> u64 {
        self.serving.memory_count().load(Ordering::Relaxed)
    }

    /// Live objects that the kernel knows at the moment.
    pub fn known_objects(&self) -> usize {
        self.serving.server().known_objects()
    }

    /// Waits until the mount is gone.
    pub fn wait(&self) {
        self.serving.wait();
    }

    /// Waits until the mount is gone, at most for `limit`; whether it is.
    pub fn wait_for(&self, limit: Duration) -> bool {
        self.serving.wait_for(limit)
    }

    /// Unmounts. [`UnmountMode::IfUnused`] waits until everything written has been served and all threads have
    /// ended; if the mount is in use it goes on and the error says so, also if it is seen at a second place. [`UnmountMode::Lazy`] returns at once: the
    /// mount ends when the last open file in it is closed (see [`wait`](Self::wait)).
    pub fn unmount(&self, mode: UnmountMode) -> Result<(), FuseError> {
        if self.is_ended() {
            return Ok(());
        }
        if !self.taken_down.load(Ordering::SeqCst) {
            let result = mount::unmount(&self.directory, mode);
            if result.is_err() && self.wait_for(Duration::ZERO) {
                return Ok(());
            }
            // Somebody else took it away, and something keeps it alive for a moment, or in another mount namespace.
            if result.is_err() && self.is_here()? {
                result?;
            }
            self.taken_down.store(true, Ordering::SeqCst);
        }
        if mode == UnmountMode::IfUnused {
            self.wait_for_end()?;
            self.serving.join();
        }
        Ok(())
    }

    /// Tells the kernel whether changes are refused, so that it says so of the mount and passes none on; they have to be refused here
    /// too, as it may not do that ([`mount::set_read_only`]).
    pub fn show_read_only(&self, read_only: bool) -> Result<(), FuseError> {
        match self.is_here()? {
            true => Ok(mount::set_read_only(&self.directory, read_only)?),
            false => Ok(()),
        }
    }

    /// Changes the options of the mount that can be changed while it is there. To read only, what was done before is made durable.
    pub fn remount(&self, now: &MountOptions, wanted: &MountOptions) -> Result<(), FuseError> {
        let server = self.serving.server();
        // The kernel goes by them before the call returns.
        server.set_modes(wanted);
        let told = match self.is_here() {
            Ok(true) => mount::remount(&self.directory, wanted),
            Ok(false) => Err(FuseError::Remount {
                directory: self.directory.clone(),
                cause: "it is not mounted there any more".into(),
            }),
            Err(error) => Err(error),
        };
        if told.is_err() {
            server.set_modes(now);
            return told;
        }
        match wanted.read_only {
            true => server
                .sync()
                .map_err(|error| FuseError::Io(io::Error::other(error))),
            false => Ok(()),
        }
    }

    /// The options of the mount were changed by others, who told the kernel: the server heeds them as well.
    pub fn set_modes(&self, options: &MountOptions) {
        self.serving.server().set_modes(options);
    }

    /// Whether it is mounted where it was, as far as this process sees. Otherwise only open files or another mount namespace
    /// keep it.
    pub fn is_shown(&self) -> bool {
        self.is_shown_in(mount_table::mounts().ok().as_deref())
    }

    /// The same, going by the mount table as it was read; without it, it is taken to be.
    pub fn is_shown_in(&self, table: Option<&[MountEntry]>) -> bool {
        !self.is_ended()
            && !self.taken_down.load(Ordering::SeqCst)
            && table.is_none_or(|table| self.is_in(table))
    }

    /// Has what still uses the mount get ENOTCONN from now on, as if its server had ended.
    pub fn cut_off(&self) {
        self.serving.server().cut_off();
    }

    /// Refuses as [`unmount`](Self::unmount) would with [`UnmountMode::IfUnused`], and changes nothing.
    pub fn check_unused(&self) -> Result<(), FuseError> {
        if self.is_ended() || self.taken_down.load(Ordering::SeqCst) || !self.is_here()? {
            return Ok(());
        }
        let directory = self.directory.clone();
        match mount_table::other_place(&directory, self.device_minor)? {
            Some(other) => Err(FuseError::Elsewhere {
                directory,
                other: other.display().to_string(),
            }),
            None if mount::is_in_use(&directory) => Err(FuseError::Busy { directory }),
            None => Ok(()),
        }
    }

    /// Whether it is still mounted where it was.
    fn is_here(&self) -> Result<bool, FuseError> {
        Ok(self.is_in(&mount_table::mounts()?))
    }

    fn is_in(&self, table: &[MountEntry]) -> bool {
        let ours = (0, self.device_minor);
        table.iter().any(|entry| {
            (entry.device == ours || self.device_minor == 0) && entry.directory == self.directory
        })
    }

    /// Waits until what was being served is done. A bind mount, or a copy of the mount table, keeps the mount alive:
    /// that is not waited for.
    fn wait_for_end(&self) -> Result<(), FuseError> {
        if self.wait_for(UNMOUNT_MOMENT) {
            return Ok(());
        }
        let directory = self.directory.clone();
        if let Some(place) = mount_table::other_place(&self.directory, self.device_minor)? {
            let other = place.display().to_string();
            return Err(FuseError::Elsewhere { directory, other });
        }
        if let Some(process) = mount_table::process_that_sees(self.device_minor)
            && !self.is_ended()
        {
            return Err(FuseError::Namespace { directory, process });
        }
        if self.wait_for(UNMOUNT_PATIENCE) {
            return Ok(());
        }
        let other = "a place that cannot be found".into();
        Err(FuseError::Elsewhere { directory, other })
    }

    /// An object lost its last name other than through the mount, and is held once: takes that over until the kernel
    /// knows the object no more. False if it does not know it now: release it.
    #[must_use]
    pub fn keep(&self, object: u64) -> bool {
        !self.is_ended() && self.serving.server().hold(object)
    }

    /// Tells the kernel that an object's attributes, and its content if `content`, changed other than through the
    /// mount. Must not be called while serving a request.
    pub fn invalidate_object(&self, object: u64, content: bool) -> Result<(), FuseError> {
        self.serving.server().outdate(Some(object));
        let content = content.then_some(0..0);
        Ok(invalidate_inode(self.serving.connection(), object, content)?)
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
        self.serving.server().outdate(None);
        self.notify(ReplyBuffer::new(), notification::INCREASE_EPOCH)
            .map_err(|_| FuseError::TooOld("be told that all names changed"))
    }

    fn notify(&self, message: ReplyBuffer, code: i32) -> Result<(), FuseError> {
        Ok(notify(self.serving.connection(), message, code)?)
    }

    /// Whether a feature of the protocol (`protocol::feature`) is in use.
    pub fn uses(&self, features: u64) -> bool {
        self.serving.server().negotiated().has(features)
    }

    /// Whether requests come through io_uring.
    pub fn uses_rings(&self) -> bool {
        self.uses(feature::OVER_IO_URING)
    }

    /// Whether the kernel keeps POSIX ACLs.
    pub fn has_acls(&self) -> bool {
        self.uses(feature::POSIX_ACL)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_ended()
            && !self.taken_down.load(Ordering::SeqCst)
            && let Err(error) = mount::unmount(&self.directory, UnmountMode::Lazy)
            && !self.is_ended()
        {
            tracing::warn!("{error}");
        }
    }
}
