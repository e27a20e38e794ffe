//! `Server`: one disk as `/dev/ublkbN`; taken over from a server that died, if nothing can have been lost, else made anew.
//!
//! Invariants: after `stop` returned no request is served any more; a device is never taken over while something that
//! was acknowledged may be gone.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rand::RngExt;
use terrace_dataset::BlockDevice;

use crate::{
    error::UblkError,
    kernel::{Command, Control, Information, channel_path, config, device, disk_path, number_of},
    serving::{Bell, Crew, Mailbox, Queue, Service, Unflushed, WriteBack, stay_out_of_writeback},
};

/// How long the file of a new device may take to appear, or to be let go of by a process that is going away.
const OPEN_PATIENCE: Duration = Duration::from_secs(5);

/// Whether `path` is a ublk device, by its name.
pub fn is_ublk(path: &Path) -> bool {
    number_of(path).is_some()
}

struct Running {
    /// Ends with the queues.
    _write_back: WriteBack,
    threads: Vec<JoinHandle<()>>,
    mailboxes: Vec<Arc<Mailbox>>,
    closing: Arc<AtomicBool>,
}

/// See the module.
pub struct Server {
    control: Arc<Control>,
    number: u32,
    path: PathBuf,
    mark: PathBuf,
    disk: Arc<dyn BlockDevice>,
    has_continued: bool,
    running: Mutex<Option<Running>>,
}

impl Server {
    /// Serves `disk`. `mark` is a file for what must be known after this process died; what an earlier server left there
    /// decides whether its device goes on. `wanted` (`/dev/ublkbN`) is taken for a new one if it is free.
    pub fn start(disk: Arc<dyn BlockDevice>, mark: &Path, wanted: Option<&Path>) -> Result<Self, UblkError> {
        let control = Arc::new(Control::open()?);
        let unreadable = |cause| UblkError::new("use", mark.display().to_string(), cause);
        if let Some(left) = Unflushed::open(mark).map_err(unreadable)?
            && let Some(found) = device::find(&control, left.token())
        {
            let number = found.number;
            if left.is_clean() {
                match take_over(&control, found, &disk, mark, left) {
                    Ok(server) => return Ok(server),
                    Err(error) => {
                        tracing::warn!("ublk: {} does not go on: {error}", disk_path(number).display())
                    }
                }
            } else {
                tracing::warn!(
                    "ublk: {} does not go on: what was written to it last, and not flushed, may be lost",
                    disk_path(number).display()
                );
            }
            remove(&control, number);
        }
        let unflushed = Unflushed::create(mark, rand::rng().random()).map_err(unreadable)?;
        let wanted = wanted.and_then(number_of);
        let made = device::add(&control, &*disk, unflushed.token(), wanted)?;
        let server = Self::serve(&control, made, disk, mark, unflushed, Command::Start);
        if server.is_err() {
            device::delete(control, made.number);
            let _ = fs::remove_file(mark);
        }
        server
    }

    fn serve(
        control: &Arc<Control>,
        information: Information,
        disk: Arc<dyn BlockDevice>,
        mark: &Path,
        unflushed: Unflushed,
        last: Command,
    ) -> Result<Self, UblkError> {
        let number = information.number;
        let path = disk_path(number);
        let failed = |doing, cause| UblkError::new(doing, path.display().to_string(), cause);
        let channel = Arc::new(open_channel(&channel_path(number))?);
        let service = Arc::new(Service {
            disk: disk.clone(),
            unflushed,
            written: Bell::default(),
        });
        let write_back = WriteBack::start(&service).map_err(|cause| failed("serve", cause))?;
        let crew = Arc::new(Crew::new(service));
        let mut running = Running {
            _write_back: write_back,
            threads: Vec::new(),
            mailboxes: Vec::new(),
            closing: Arc::default(),
        };
        let (ready, registered) = mpsc::channel();
        for queue in 0..information.queues {
            let mailbox = Arc::new(Mailbox::new().map_err(|cause| failed("serve", cause))?);
            running.mailboxes.push(mailbox.clone());
            let (channel, crew, closing) = (channel.clone(), crew.clone(), running.closing.clone());
            let (ready, like_ioctls) = (ready.clone(), control.like_ioctls());
            let thread = thread::Builder::new().name("ublk".into()).spawn(move || {
                stay_out_of_writeback();
                terrace_device::be_prompt();
                let made = Queue::register(channel, queue, &information, like_ioctls, crew, mailbox, closing);
                let (told, made) = match made {
                    Ok(made) => (Ok(()), Some(made)),
                    Err(error) => (Err(error), None),
                };
                let _ = ready.send(told);
                drop(ready);
                if let Some(mut made) = made
                    && let Err(error) = made.run()
                {
                    tracing::error!("ublk: a queue of device {number} stands still: {error}");
                }
            });
            match thread {
                Ok(thread) => running.threads.push(thread),
                Err(cause) => {
                    running.end();
                    return Err(failed("serve", cause));
                }
            }
        }
        drop(ready);
        let outcome = (0..information.queues)
            .try_for_each(|_| {
                registered
                    .recv()
                    .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
            })
            .and_then(|()| control.call(last, number, &mut [], u64::from(std::process::id())));
        let outcome = outcome.and_then(|()| match path.exists() {
            true => Ok(()),
            // In a container that has no devtmpfs, for example.
            false => Err(io::ErrorKind::NotFound.into()),
        });
        if let Err(cause) = outcome {
            let _ = device::stop(control, number);
            running.end();
            return Err(failed("serve", cause));
        }
        Ok(Self {
            control: control.clone(),
            number,
            path,
            mark: mark.to_owned(),
            disk,
            has_continued: last == Command::EndRecovery,
            running: Mutex::new(Some(running)),
        })
    }

    /// `/dev/ublkbN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the device is that of a server that died, and its users have noticed a pause at most.
    pub fn has_continued(&self) -> bool {
        self.has_continued
    }

    /// Whether the device is there and served; anybody may delete it with other tools.
    pub fn is_live(&self) -> bool {
        let running = self.running.lock();
        let served = running
            .as_ref()
            .is_some_and(|running| !running.threads.iter().any(JoinHandle::is_finished));
        served && device::shown_size_bytes(self.number).is_some()
    }

    /// The disk may have another size: the kernel is told. `false` if it cannot be told while the device is there (before
    /// Linux 6.16).
    pub fn resized(&self) -> Result<bool, UblkError> {
        let size_bytes = self.disk.size_bytes();
        // Of a device without a disk nothing is to be told: kernels before 7.0 fall over that.
        let shown = device::shown_size_bytes(self.number);
        if shown.is_none_or(|shown| shown == size_bytes) {
            return Ok(true);
        }
        if !self.control.resizes() {
            return Ok(false);
        }
        self.control
            .call(
                Command::UpdateSize,
                self.number,
                &mut [],
                config::sectors(size_bytes),
            )
            .map(|()| true)
            .map_err(|cause| UblkError::new("resize", self.path.display().to_string(), cause))
    }

    /// Takes the device away; who still uses it gets errors.
    pub fn stop(&self) -> Result<(), UblkError> {
        let Some(running) = self.running.lock().take() else {
            return Ok(());
        };
        let stopped = device::stop(&self.control, self.number);
        if let Err(cause) = stopped
            && cause.raw_os_error() != Some(libc::ENODEV)
        {
            *self.running.lock() = Some(running);
            return Err(UblkError::new(
                "take away",
                self.path.display().to_string(),
                cause,
            ));
        }
        running.join();
        device::delete(self.control.clone(), self.number);
        let _ = fs::remove_file(&self.mark);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!("ublk: {error}");
        }
    }
}

impl Running {
    /// Waits for threads whose device has ended.
    fn join(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
    }

    /// Ends threads whose device was never started.
    fn end(self) {
        self.closing.store(true, Ordering::Release);
        self.mailboxes.iter().for_each(|mailbox| mailbox.ring());
        self.join();
    }
}

/// Goes on with the device of a server that died.
fn take_over(
    control: &Arc<Control>,
    found: Information,
    disk: &Arc<dyn BlockDevice>,
    mark: &Path,
    left: Unflushed,
) -> Result<Server, UblkError> {
    let path = || disk_path(found.number).display().to_string();
    device::begin_recovery(control, found.number)
        .map_err(|cause| UblkError::new("take over", path(), cause))?;
    let server = Server::serve(control, found, disk.clone(), mark, left, Command::EndRecovery)?;
    if let Err(error) = server.resized() {
        tracing::warn!("ublk: {error}");
    }
    Ok(server)
}

/// Opens a device's own file: it may appear a moment after the device, and stay with a process that was killed for one.
fn open_channel(path: &Path) -> Result<File, UblkError> {
    let deadline = Instant::now() + OPEN_PATIENCE;
    loop {
        let error = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => return Ok(file),
            Err(error) => error,
        };
        let passing = matches!(
            error.raw_os_error(),
            Some(libc::EBUSY | libc::ENOENT | libc::ENXIO)
        );
        if !passing || Instant::now() > deadline {
            return Err(UblkError::new("open", path.display().to_string(), error));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Takes away a device whose server died.
fn remove(control: &Arc<Control>, number: u32) {
    device::wait_for_death(control, number);
    if let Err(error) = device::stop(control, number) {
        tracing::warn!(
            "ublk: {} cannot be taken away: {error}",
            disk_path(number).display()
        );
    }
    device::delete(control.clone(), number);
}

/// Takes away the device that a server which died has left, if there is one, and the file `mark`. Its path.
pub fn clear_remains(mark: &Path) -> Result<Option<PathBuf>, UblkError> {
    let left =
        Unflushed::open(mark).map_err(|cause| UblkError::new("use", mark.display().to_string(), cause))?;
    let Some(left) = left else { return Ok(None) };
    let mut removed = None;
    match Control::open() {
        Ok(control) => {
            let control = Arc::new(control);
            if let Some(found) = device::find(&control, left.token()) {
                remove(&control, found.number);
                removed = Some(disk_path(found.number));
            }
        }
        // Where there is no ublk, no device is left either.
        Err(error) if matches!(error.number(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => {}
        Err(error) => return Err(error),
    }
    let _ = fs::remove_file(mark);
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::tests::Disk;

    #[test]
    fn without_a_control_device_there_is_an_error_and_nothing_is_left() {
        if Path::new(crate::kernel::CONTROL_PATH).exists() {
            eprintln!("skipped: there is ublk here; scripts/ublk-guest.sh tries it");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let mark = directory.path().join("mark");
        let error = Server::start(Arc::new(Disk::new(4096, 512)), &mark, None)
            .err()
            .unwrap();
        assert!(error.to_string().contains("/dev/ublk-control"), "{error}");
        assert!(!mark.exists());
        assert!(clear_remains(&mark).unwrap().is_none());
        Unflushed::create(&mark, 7).unwrap();
        assert!(clear_remains(&mark).unwrap().is_none() && !mark.exists());
    }

    #[test]
    fn devices_of_other_kinds_are_told_apart() {
        assert!(is_ublk(Path::new("/dev/ublkb3")));
        assert!(!is_ublk(Path::new("/dev/loop3")) && !is_ublk(Path::new("/dev/ublkbx")));
    }
}
