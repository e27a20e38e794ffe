//! Mounting and unmounting: mount(2) as root, the setuid helper `fusermount3` otherwise; and clearing what a daemon
//! that was killed left behind.

use std::{
    ffi::CString,
    fs,
    io::{self, IoSliceMut},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    mount::{MountFlags, UnmountFlags},
    net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType},
};

use super::{error::FuseError, mount_table};
use crate::{
    options::MountOptions,
    transport::{Connection, DEVICE_PATH, uring_entry},
};

/// The type that mounts have in the mount table.
pub const MOUNT_KIND: &str = "fuse.terrace";
const HELPER: &str = "fusermount3";
/// MS_NOSYMFOLLOW.
const NO_SYMBOLIC_LINKS: MountFlags = MountFlags::from_bits_retain(1 << 8);

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmountMode {
    /// Refuse while anything is open there.
    IfUnused,
    /// Take it out of the tree at once; it ends when the last open file is closed (umount -l).
    Lazy,
}

/// Whether FUSE can be used here at all.
pub fn check_available() -> Result<(), FuseError> {
    Connection::open()
        .map(|_| ())
        .map_err(|cause| FuseError::Unavailable {
            device: DEVICE_PATH,
            cause,
        })
}

/// Mounts at `directory` (absolute) and returns the connection, over which INIT comes next.
pub(crate) fn mount(directory: &Path, options: &MountOptions) -> Result<Connection, FuseError> {
    if let Some(entry) = mount_table::mount_at(directory)?
        && is_dead(&entry)
    {
        return Err(FuseError::StaleMount {
            directory: directory.into(),
        });
    }
    let about = |cause| FuseError::Directory {
        directory: directory.into(),
        cause,
    };
    if !fs::metadata(directory).map_err(about)?.is_dir() {
        return Err(about(io::Error::from_raw_os_error(libc::ENOTDIR)));
    }
    if rustix::process::geteuid().is_root() {
        mount_as_root(directory, options)
    } else {
        mount_with_helper(directory, options)
    }
}

fn mount_as_root(directory: &Path, options: &MountOptions) -> Result<Connection, FuseError> {
    if options.ring && uring_entry::switch_on() {
        tracing::info!("the kernel's switch for FUSE over io_uring is on now (fuse.enable_uring)");
    }
    let connection = Connection::open().map_err(|cause| FuseError::Unavailable {
        device: DEVICE_PATH,
        cause,
    })?;
    let descriptor = std::os::fd::AsFd::as_fd(&connection).as_raw_fd();
    let mut data = format!("fd={descriptor},rootmode=40000,user_id=0,group_id=0,default_permissions");
    if options.allow_other.unwrap_or(true) {
        data.push_str(",allow_other");
    }
    for label in &options.labels {
        data.push(',');
        data.push_str(label);
    }
    let data = CString::new(data).map_err(io::Error::other)?;
    let flags = kernel_flags(options);
    let source = options.source.replace('\0', "");
    rustix::mount::mount(
        source.as_str(),
        directory,
        MOUNT_KIND,
        flags,
        Some(data.as_c_str()),
    )
    .map_err(|error| FuseError::Mount {
        directory: directory.into(),
        cause: error.to_string(),
    })?;
    Ok(connection)
}

/// The kernel's flags for `options`, each by its name in mount(8).
fn kernel_flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    let times = options.no_access_times || options.strict_access_times;
    for (set, flag) in [
        (options.read_only, MountFlags::RDONLY),
        (options.no_set_id, MountFlags::NOSUID),
        (options.no_devices, MountFlags::NODEV),
        (options.no_execute, MountFlags::NOEXEC),
        (options.no_access_times, MountFlags::NOATIME),
        (options.strict_access_times, MountFlags::STRICTATIME),
        // By name, since a remount without any leaves what there is.
        (!times, MountFlags::RELATIME),
        (options.no_directory_access_times, MountFlags::NODIRATIME),
        (options.lazy_times, MountFlags::LAZYTIME),
        (options.sync, MountFlags::SYNCHRONOUS),
        (options.sync_names, MountFlags::DIRSYNC),
        (options.silent, MountFlags::SILENT),
        (options.no_symbolic_links, NO_SYMBOLIC_LINKS),
    ] {
        flags.set(flag, set);
    }
    flags
}

/// Gives the mount at `directory` (absolute) other flags, as `mount -o remount` does: to read only as well, which the kernel refuses
/// while a file is open for writing there.
pub(crate) fn remount(directory: &Path, options: &MountOptions) -> Result<(), FuseError> {
    let failed = |cause: String| FuseError::Remount {
        directory: directory.into(),
        cause,
    };
    if !rustix::process::geteuid().is_root() {
        return Err(failed(
            "only root can change the kernel's flags of a mount".into(),
        ));
    }
    rustix::mount::mount_remount(directory, kernel_flags(options), c"").map_err(|error| match error {
        Errno::BUSY => FuseError::Writing {
            directory: directory.into(),
        },
        error => failed(error.to_string()),
    })
}

/// The protocol of `fusermount3`: it gets one end of a socket pair by number, mounts, and sends the open device.
fn mount_with_helper(directory: &Path, options: &MountOptions) -> Result<Connection, FuseError> {
    let failed = |cause: String| FuseError::Mount {
        directory: directory.into(),
        cause,
    };
    // Commas and backslashes have a meaning in the option string; the kernel's own escape is a backslash.
    let source = options
        .source
        .replace('\\', "\\\\")
        .replace(',', "\\,")
        .replace('\0', "");
    let mut list = format!("fsname={source},subtype=terrace,default_permissions");
    for (set, name) in [
        (options.read_only, ",ro"),
        (options.allow_other == Some(true), ",allow_other"),
        (options.no_execute, ",noexec"),
        (options.no_access_times, ",noatime"),
        (options.strict_access_times, ",strictatime"),
        (options.no_directory_access_times, ",nodiratime"),
        (options.lazy_times, ",lazytime"),
        (options.sync, ",sync"),
        (options.sync_names, ",dirsync"),
        (options.no_symbolic_links, ",nosymfollow"),
    ] {
        if set {
            list.push_str(name);
        }
    }
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    )
    .map_err(io::Error::from)?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).map_err(io::Error::from)?;
    let child = Command::new(HELPER)
        .args(["-o", &list, "--"])
        .arg(directory)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("{HELPER} (package fuse3): {error}")))?;
    drop(theirs);
    let device = receive_descriptor(&ours);
    // The helper exits by itself once it has sent the device (no auto_unmount).
    let output = child.wait_with_output()?;
    match device? {
        Some(device) if output.status.success() => Ok(Connection::from_descriptor(device)),
        _ => Err(failed(helper_message(&output.stderr))),
    }
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0_u8; 1];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let found = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(found)
}

fn helper_message(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim().trim_start_matches("fusermount3:").trim();
    if text.is_empty() {
        format!("{HELPER} failed")
    } else {
        text.chars().take(300).collect()
    }
}

/// Unmounts `directory` (absolute).
pub(crate) fn unmount(directory: &Path, mode: UnmountMode) -> Result<(), FuseError> {
    if rustix::process::geteuid().is_root() {
        let flags = UnmountFlags::NOFOLLOW
            | if mode == UnmountMode::Lazy {
                UnmountFlags::DETACH
            } else {
                UnmountFlags::empty()
            };
        return rustix::mount::unmount(directory, flags).map_err(|error| match error {
            Errno::BUSY => FuseError::Busy {
                directory: directory.into(),
            },
            _ => FuseError::Unmount {
                directory: directory.into(),
                cause: error.to_string(),
            },
        });
    }
    let mut command = Command::new(HELPER);
    command.args(if mode == UnmountMode::Lazy {
        ["-u", "-z"].as_slice()
    } else {
        ["-u"].as_slice()
    });
    let output = command
        .arg("--")
        .arg(directory)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| FuseError::Unmount {
            directory: directory.into(),
            cause: format!("{HELPER}: {error}"),
        })?;
    if output.status.success() {
        return Ok(());
    }
    let cause = helper_message(&output.stderr);
    if cause.to_lowercase().contains("busy") {
        return Err(FuseError::Busy {
            directory: directory.into(),
        });
    }
    Err(FuseError::Unmount {
        directory: directory.into(),
        cause,
    })
}

/// Has the kernel refuse changes through the mount at `directory` (absolute), or not any more. It does not begin to while a file is
/// open for writing there, nor for anybody but root, nor before Linux 5.12.
pub(crate) fn set_read_only(directory: &Path, read_only: bool) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let attribute = |wanted| if wanted { libc::MOUNT_ATTR_RDONLY } else { 0 };
    let change = libc::mount_attr {
        attr_set: attribute(read_only),
        attr_clr: attribute(!read_only),
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path ends in a zero, the kernel reads one `mount_attr`, and both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether something is open at `directory` (absolute), so that [`UnmountMode::IfUnused`] would refuse. Changes nothing.
pub(crate) fn is_in_use(directory: &Path) -> bool {
    if !rustix::process::geteuid().is_root() {
        return is_open_in_a_process(directory);
    }
    // The kernel tells of a mount that it is unused by marking it as one that may expire, and takes away one that is marked
    // already. Looking it up, which asks nothing of whoever serves it, takes the mark off: before, and afterwards.
    let look_up = || {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY;
        rustix::fs::open(directory, flags, Mode::empty()).map(drop)
    };
    if look_up().is_err() {
        return false;
    }
    let told = rustix::mount::unmount(directory, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW);
    // It cannot be looked up if it has gone.
    let _ = look_up();
    told == Err(Errno::BUSY)
}

/// Whether a process that this user may look into has something open beneath `directory`, or stands there.
fn is_open_in_a_process(directory: &Path) -> bool {
    let is_beneath = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(directory));
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.map(|process| process.path()).any(|process| {
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        ["cwd", "root", "exe"]
            .map(|link| process.join(link))
            .into_iter()
            .any(is_beneath)
            || open.map(|file| file.path()).any(is_beneath)
    })
}

/// How often it is asked again whether a mount has a daemon, and after how long, where a dying ring took the question with it.
const CANCELLED_MAX: u32 = 200;
const CANCELLED_WAIT: Duration = Duration::from_millis(10);

/// Whether a mount of ours has no daemon behind it any more. Asks for the attributes of the mount's root: with the
/// connection gone the kernel answers ENOTCONN at once; where a ring of the dead process, of which it lets go a moment later, took
/// the question with it, that is asked again. A mount with a live daemon answers (in this process, too: its threads are others).
fn is_dead(entry: &mount_table::MountEntry) -> bool {
    if entry.kind != MOUNT_KIND {
        return false;
    }
    let Ok(path) = CString::new(entry.directory.as_os_str().as_bytes()) else {
        return false;
    };
    for _ in 0..CANCELLED_MAX {
        match rustix::fs::statfs(path.as_c_str()) {
            Err(Errno::CANCELED) => std::thread::sleep(CANCELLED_WAIT),
            answer => return matches!(answer, Err(Errno::NOTCONN | Errno::CONNABORTED)),
        }
    }
    false
}

/// Takes away a mount of ours at `directory` whose daemon was killed; true if there was one. Mounts of other kinds,
/// and ours with a live daemon, are left alone.
pub fn clear_stale(directory: &Path) -> Result<bool, FuseError> {
    let directory: PathBuf = match mount_table::absolute(directory) {
        Ok(directory) => directory,
        // Nothing is mounted at what is not there: it lay in another mount, which has gone with all in it.
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(cause) => {
            return Err(FuseError::Directory {
                directory: directory.into(),
                cause,
            });
        }
    };
    let mut cleared = false;
    // Several may lie on top of each other; the bound is for a table that changes while we look.
    for _ in 0..16 {
        match mount_table::mount_at(&directory)? {
            Some(entry) if is_dead(&entry) => {
                unmount(&directory, UnmountMode::Lazy)?;
                cleared = true;
            }
            _ => break,
        }
    }
    Ok(cleared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_something_open_there_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap();
        assert!(!is_open_in_a_process(&place));
        let open = fs::File::create(place.join("file")).unwrap();
        assert!(is_open_in_a_process(&place));
        assert!(
            !is_open_in_a_process(&place.join("fil")),
            "a name is compared whole"
        );
        drop(open);
        assert!(!is_open_in_a_process(&place));
        // What is no mount is not one in use, whoever asks.
        assert!(!is_in_use(&place) && !is_in_use(&place.join("none")));
    }
}
