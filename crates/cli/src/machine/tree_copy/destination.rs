//! Where a received file goes: beside its final name until it is complete, or straight into what can only be written in place.
//!
//! Invariants: a name that is not complete says so (`.NAME.terrace-partial-…`) and is removed unless the process dies; mode, owner and
//! times are given only to files that were made here; a file that is there keeps its own, as with `cp`. A destination that the user
//! named is followed through symbolic links as `cp` follows it, and one that leads nowhere is refused; names that were received are
//! never followed. Devices, pipes and open descriptors are written to and nothing else.
//!
//! A file with several names (hard links) is written in place, as `cp` does: a rename would take one name away from the others. Its
//! content comes from a complete partial file, so that only a local copy can be cut off, and the partial file is left then.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt},
        },
    },
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid},
    io::Errno,
};

use super::TreeEntry;

/// Letters of a name that the partial one has.
const NAME_BYTES: usize = 200;
/// Names that are tried for a partial file.
const TRIES: u32 = 100;

/// A file that is being received.
pub struct Incoming {
    file: File,
    goes: Goes,
}

enum Goes {
    /// It is written where it belongs.
    Direct,
    /// It takes the name when it is complete.
    Rename {
        partial: Partial,
        name: OsString,
        kept: Option<Box<Stat>>,
    },
    /// Its content goes to what has the name, which stays the file that it is.
    CopyInto { partial: Partial, target: File },
}

/// A file beside the final one; removed when it is dropped.
struct Partial {
    directory: OwnedFd,
    name: Option<OsString>,
}

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            let _ = rustix::fs::unlinkat(&self.directory, &name, AtFlags::empty());
        }
    }
}

/// The descriptor of this process that a path means, as `/dev/stdout` does.
fn own_descriptor(path: &Path) -> Option<i32> {
    let text = path.to_str()?;
    match text {
        "/dev/stdin" => Some(0),
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        _ => {
            let number = text
                .strip_prefix("/dev/fd/")
                .or_else(|| text.strip_prefix("/proc/self/fd/"))?;
            number.parse().ok()
        }
    }
}

impl Incoming {
    /// For a destination that the user named.
    pub fn named(path: &Path) -> io::Result<Self> {
        if let Some(number) = own_descriptor(path) {
            // Not opened anew: what was written before it stays, and what comes after goes behind it.
            // SAFETY: `dup` takes any number, and refuses one that is not open.
            let copy = unsafe { libc::dup(number) };
            if copy < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: a descriptor that `dup` just returned is owned by nobody else.
            return Ok(Self::direct(File::from(unsafe { OwnedFd::from_raw_fd(copy) })));
        }
        let real = match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_symlink() => {
                fs::canonicalize(path).map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => io::Error::other(
                        "it is a symbolic link that leads nowhere, and is not written through",
                    ),
                    _ => error,
                })?
            }
            _ => path.to_owned(),
        };
        match fs::metadata(&real) {
            Ok(metadata) if metadata.is_dir() => Err(Errno::ISDIR.into()),
            Ok(metadata) if !metadata.is_file() => {
                let kind = metadata.file_type();
                let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
                // A pipe is waited for until somebody reads.
                debug_assert!(
                    kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device()
                );
                Ok(Self::direct(File::from(rustix::fs::open(
                    &real,
                    flags,
                    Mode::empty(),
                )?)))
            }
            _ => {
                let name = match real.file_name() {
                    Some(name) if !path.as_os_str().as_bytes().ends_with(b"/") => name,
                    _ => return Err(Errno::NOTDIR.into()),
                };
                let parent = real.parent().filter(|parent| !parent.as_os_str().is_empty());
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let directory = rustix::fs::open(parent.unwrap_or(Path::new(".")), flags, Mode::empty())?;
                Self::below(directory.as_fd(), name)
            }
        }
    }

    /// For a name in a directory; what has the name already is replaced if it is a file or a symbolic link.
    pub fn below(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Self> {
        let existing = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        let kept = match existing {
            None => None,
            Some(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Some(Box::new(stat)),
                FileType::Symlink => None,
                FileType::Directory => return Err(Errno::ISDIR.into()),
                _ => {
                    return Err(io::Error::other(
                        "a device, pipe or socket has this name; name it alone to write to it",
                    ));
                }
            },
        };
        let in_place = || -> io::Result<File> {
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            Ok(File::from(rustix::fs::openat(
                directory,
                name,
                flags,
                Mode::empty(),
            )?))
        };
        // What may not be written is not replaced either, though the directory would allow it.
        let target = kept.as_ref().map(|_| in_place()).transpose()?;
        let (file, partial) = match (make_partial(directory, name), target.as_ref()) {
            (Ok(made), _) => made,
            // The file may be written and its directory not.
            (Err(error), Some(_)) if is_refusal(&error) => {
                let file = in_place()?;
                file.set_len(0)?;
                return Ok(Self::direct(file));
            }
            (Err(error), _) => return Err(error),
        };
        let goes = match (kept, target) {
            (Some(stat), Some(target)) if stat.st_nlink > 1 || !can_stand_for(&stat) || has_more(&target) => {
                Goes::CopyInto { partial, target }
            }
            (kept, _) => Goes::Rename {
                partial,
                name: name.to_owned(),
                kept,
            },
        };
        Ok(Self { file, goes })
    }

    fn direct(file: File) -> Self {
        Self {
            file,
            goes: Goes::Direct,
        }
    }

    /// More of its content.
    pub fn write(&mut self, content: &[u8]) -> io::Result<()> {
        self.file.write_all(content)
    }

    /// It is complete: it takes its name, and what was said of it if it is new.
    pub fn complete(self, entry: &TreeEntry) -> io::Result<()> {
        match self.goes {
            Goes::Direct => Ok(()),
            Goes::CopyInto { partial, mut target } => {
                let mut source = File::from(rustix::fs::openat(
                    &partial.directory,
                    partial.name.as_deref().unwrap_or_default(),
                    OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                    Mode::empty(),
                )?);
                let mut partial = partial;
                let name = partial.name.take();
                let copied = target
                    .set_len(0)
                    .and_then(|()| io::copy(&mut source, &mut target));
                // Of what is cut off now the partial file has all.
                copied.map_err(|error| {
                    let name = name.clone().unwrap_or_default();
                    io::Error::new(
                        error.kind(),
                        format!("{error} (all of it is in '{}')", name.display()),
                    )
                })?;
                partial.name = name;
                Ok(())
            }
            Goes::Rename {
                mut partial,
                name,
                kept,
            } => {
                match kept {
                    Some(stat) => keep_attributes(&self.file, &stat)?,
                    None => give_attributes(self.file.as_fd(), entry)?,
                }
                let from = partial.name.as_deref().unwrap_or_default();
                rustix::fs::renameat(&partial.directory, from, &partial.directory, &name)?;
                partial.name = None;
                Ok(())
            }
        }
    }
}

/// A symbolic link under a name; what has it is replaced unless it is a directory.
pub fn make_link(directory: BorrowedFd<'_>, name: &OsStr, target: &OsStr) -> io::Result<()> {
    match rustix::fs::symlinkat(target, directory, name) {
        Err(Errno::EXIST) => {}
        made => return Ok(made?),
    }
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if !matches!(
        FileType::from_raw_mode(stat.st_mode),
        FileType::RegularFile | FileType::Symlink
    ) {
        return Err(Errno::EXIST.into());
    }
    for _ in 0..TRIES {
        let mut partial = Partial {
            directory: directory.try_clone_to_owned()?,
            name: None,
        };
        let fresh = partial_name(name);
        match rustix::fs::symlinkat(target, directory, &fresh) {
            Ok(()) => {
                partial.name = Some(fresh.clone());
                rustix::fs::renameat(directory, &fresh, directory, name)?;
                partial.name = None;
                return Ok(());
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EXIST.into())
}

fn partial_name(name: &OsStr) -> OsString {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let bytes = name.as_bytes();
    let mut fresh = b".".to_vec();
    fresh.extend_from_slice(&bytes[..bytes.len().min(NAME_BYTES)]);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    fresh.extend_from_slice(format!(".terrace-partial-{:x}-{count:x}", std::process::id()).as_bytes());
    OsStr::from_bytes(&fresh).to_owned()
}

fn make_partial(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<(File, Partial)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        let fresh = partial_name(name);
        match rustix::fs::openat(directory, &fresh, flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => {
                let partial = Partial {
                    directory: directory.try_clone_to_owned()?,
                    name: Some(fresh),
                };
                return Ok((File::from(file), partial));
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EXIST.into())
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EACCES | libc::EPERM | libc::EROFS)
    )
}

/// Whether a new file can have the owner of this one.
fn can_stand_for(stat: &Stat) -> bool {
    let user = rustix::process::geteuid();
    let group = rustix::process::getegid();
    user.is_root() || stat.st_uid == user.as_raw() && stat.st_gid == group.as_raw()
}

/// Whether a file has attributes (ACLs, labels, those of users) that a new one would lack.
fn has_more(file: &File) -> bool {
    let mut none: [u8; 0] = [];
    rustix::fs::flistxattr(file, &mut none).is_ok_and(|bytes| bytes > 0)
}

/// Owner and mode of the file that is replaced.
fn keep_attributes(file: &File, stat: &Stat) -> io::Result<()> {
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (stat.st_uid, stat.st_gid) {
        let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        rustix::fs::fchown(file, Some(user), Some(group))?;
    }
    // Writing takes these away.
    let mode = stat.st_mode & 0o7777 & !0o6000;
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
}

/// Owner (root alone), mode and times, as they were where it came from.
pub fn give_attributes(file: BorrowedFd<'_>, entry: &TreeEntry) -> io::Result<()> {
    let user = rustix::process::geteuid();
    let mut mode = entry.mode & 0o7777;
    if user.is_root() {
        rustix::fs::fchown(
            file,
            Some(Uid::from_raw(entry.uid)),
            Some(Gid::from_raw(entry.gid)),
        )?;
    } else if (entry.uid, entry.gid) != (user.as_raw(), rustix::process::getegid().as_raw()) {
        // Nobody else's program becomes one that runs as who copied it.
        mode &= !0o6000;
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
    Ok(rustix::fs::futimens(file, &times_of(entry))?)
}

/// Owner (root alone) and times of a symbolic link.
pub fn give_link_attributes(directory: BorrowedFd<'_>, name: &OsStr, entry: &TreeEntry) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let (user, group) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        rustix::fs::chownat(
            directory,
            name,
            Some(user),
            Some(group),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
    }
    Ok(rustix::fs::utimensat(
        directory,
        name,
        &times_of(entry),
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

fn times_of(entry: &TreeEntry) -> rustix::fs::Timestamps {
    let modified = rustix::fs::Timespec {
        tv_sec: entry.modified_seconds,
        tv_nsec: i64::from(entry.modified_nanoseconds.min(999_999_999)),
    };
    rustix::fs::Timestamps {
        last_access: modified,
        last_modification: modified,
    }
}
