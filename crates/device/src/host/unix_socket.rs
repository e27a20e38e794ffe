//! Listening at a path: Unix sockets for the front-ends.
//!
//! Invariants: only a socket whose listener is gone is replaced, never a file of another kind nor a socket at which
//! somebody listens, however busy; the socket is its owner's alone (mode 0600) from the moment it is there; what is
//! taken away at the end is the socket that was made here, not what somebody has put in its place.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{FileTypeExt, MetadataExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rustix::{
    fs::Mode,
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

/// How long a listener may still be there whose process has been killed: the kernel lets go of its files one after the
/// other.
const DYING: Duration = Duration::from_secs(2);
/// Clients that may wait to be accepted; the kernel allows as many, or fewer.
const BACKLOG: i32 = 1024;

/// The place of a socket that was made here.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    /// Taken away already: a later one may have got the same inode.
    removed: AtomicBool,
}

impl SocketFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes it away, if it is still the one that was made here.
    pub fn remove(&self) {
        if !self.removed.swap(true, Ordering::SeqCst)
            && identity(&self.path).is_ok_and(|found| found == self.identity)
        {
            // Somebody may remove it at the same moment: then it is gone as well.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// What lies at a path where somebody wants to listen.
enum Found {
    Nothing,
    /// A socket that nobody listens at any more.
    Dead,
    /// Somebody listens there, as this process, where the kernel tells.
    Listener(Option<u32>),
    /// Something else, in words.
    Other(&'static str),
}

/// Listens at `path`, in place of a socket whose listener is gone.
///
/// # Errors
/// If something else is there, which the error names; if the path is longer than 107 bytes; of the kernel.
pub fn listen_at(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let address = SocketAddrUnix::new(path).map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path of a socket has at most 107 bytes",
        )
    })?;
    let deadline = Instant::now() + DYING;
    loop {
        match look(path, &address)? {
            Found::Nothing => break,
            Found::Dead => {
                fs::remove_file(path)?;
                break;
            }
            Found::Listener(Some(process)) if !is_alive(process) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Found::Listener(Some(process)) => {
                return Err(taken(&format!("process {process} listens there already")));
            }
            Found::Listener(None) => return Err(taken("somebody listens there already")),
            Found::Other(what) => return Err(taken(&format!("there is {what} already, which stays"))),
        }
    }
    let socket = new_socket(SocketFlags::CLOEXEC)?;
    // Linux gives the file the mode that the socket has when it is bound: nobody else gets in before a later chmod.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    let file = SocketFile {
        path: path.to_owned(),
        identity: identity(path)?,
        removed: AtomicBool::new(false),
    };
    rustix::net::listen(&socket, BACKLOG).inspect_err(|_| file.remove())?;
    Ok((UnixListener::from(socket), file))
}

fn taken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, why.to_owned())
}

fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

fn look(path: &Path, address: &SocketAddrUnix) -> io::Result<Found> {
    let kind = match fs::symlink_metadata(path) {
        Ok(file) => file.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error),
    };
    if !kind.is_socket() {
        return Ok(Found::Other(match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_symlink() => "a symbolic link",
            () if kind.is_file() => "a file",
            () => "something that is no socket",
        }));
    }
    // Not to be kept waiting by a listener that accepts nobody.
    let asking = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    match rustix::net::connect(&asking, address) {
        Ok(()) => Ok(Found::Listener(listener_of(&asking))),
        Err(Errno::CONNREFUSED) => Ok(Found::Dead),
        // Its queue is full.
        Err(Errno::AGAIN) => Ok(Found::Listener(None)),
        Err(Errno::PROTOTYPE) => Ok(Found::Other("a socket of another kind")),
        Err(Errno::NOENT) => Ok(Found::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// The process that listens at the other end; `None` where it is none that can be seen from here.
fn listener_of(socket: &OwnedFd) -> Option<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // Asked of the kernel directly: of a process in another namespace it tells 0, which rustix has no form for.
    // SAFETY: `peer` and `length` outlive the call, and `length` is the size of what may be written to `peer`.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut length,
        )
    };
    u32::try_from(peer.pid).ok().filter(|pid| asked == 0 && *pid != 0)
}

/// Whether a process runs, so far as can be seen; one that was killed may still be there as a zombie.
fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the name, which may hold anything but stands in brackets.
    let state = stat
        .rfind(')')
        .and_then(|end| stat[end + 1..].trim_start().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use std::os::unix::{
        fs::PermissionsExt,
        net::{UnixDatagram, UnixStream},
    };

    use super::*;

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let (listener, file) = listen_at(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let why = listen_at(&path).unwrap_err().to_string();
        assert!(
            why.contains(&format!("process {} listens", std::process::id())),
            "{why}"
        );
        UnixStream::connect(&path).unwrap();
        drop(listener);
        // As a killed process leaves it.
        let before = identity(&path).unwrap();
        let (_listener, again) = listen_at(&path).unwrap();
        // The first has nothing to take away any more, unless the number was used again.
        if identity(&path).unwrap() != before {
            file.remove();
            assert!(path.exists());
        }
        again.remove();
        assert!(!path.exists());
    }

    #[test]
    fn what_somebody_else_has_put_there_stays() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), b"precious").unwrap();
        fs::create_dir(at("directory")).unwrap();
        std::os::unix::fs::symlink(at("nowhere"), at("link")).unwrap();
        let _datagram = UnixDatagram::bind(at("datagram")).unwrap();
        for (name, words) in [
            ("file", "a file"),
            ("directory", "a directory"),
            ("link", "a symbolic link"),
            ("datagram", "a socket of another kind"),
        ] {
            let before = identity(&at(name)).unwrap();
            let error = listen_at(&at(name)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(identity(&at(name)).unwrap(), before);
        }
        assert_eq!(fs::read(at("file")).unwrap(), b"precious");
        let (_listener, file) = listen_at(&at("socket")).unwrap();
        fs::remove_file(at("socket")).unwrap();
        fs::write(at("socket"), b"new").unwrap();
        file.remove();
        assert!(at("socket").exists(), "it is not ours any more");
    }

    #[test]
    fn nobody_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("busy");
        let address = SocketAddrUnix::new(&path).unwrap();
        let busy = new_socket(SocketFlags::CLOEXEC).unwrap();
        rustix::net::bind(&busy, &address).unwrap();
        rustix::net::listen(&busy, 0).unwrap();
        // Fills its queue: a client that waited for its turn would wait for ever.
        let _clients: Vec<_> = (0..4)
            .map(|_| {
                let client = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).unwrap();
                let _ = rustix::net::connect(&client, &address);
                client
            })
            .collect();
        let error = listen_at(&path).unwrap_err();
        assert!(error.to_string().contains("somebody listens"), "{error}");
    }

    #[test]
    fn a_path_that_is_too_long_says_so() {
        let error = listen_at(Path::new(&format!("/tmp/{}", "x".repeat(200)))).unwrap_err();
        assert!(error.to_string().contains("107 bytes"), "{error}");
    }
}
