//! Writing a received tree to this machine.
//!
//! Invariants: a received name never leaves the directory that is being written: each part is opened by itself from the one above, and no
//! symbolic link is followed, whether the copy made it, an earlier one, or somebody meanwhile; attributes go to what was made here, and
//! to directories after all that is in them.

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use terrace_control::Failure;

use super::{
    Copied, TreeEntry,
    destination::{Incoming, give_attributes, give_link_attributes, make_link},
    from_wire, wire_parts,
};

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Parts of a path below the root.
type Parts = Vec<Vec<u8>>;

/// Writes a received tree.
pub struct TreeWriter {
    destination: PathBuf,
    /// The directory that the tree becomes, if it is one.
    root: Option<OwnedFd>,
    /// The directory that was written to last.
    here: Option<(Parts, OwnedFd)>,
    file: Option<(Incoming, PathBuf, TreeEntry)>,
    /// Directories that were made, outermost first.
    made: Vec<(Parts, TreeEntry)>,
    /// What was written.
    pub copied: Copied,
}

impl TreeWriter {
    /// Below (or, for a single file, as) `destination`.
    pub fn new(destination: PathBuf) -> Self {
        Self {
            destination,
            root: None,
            here: None,
            file: None,
            made: Vec::new(),
            copied: Copied::default(),
        }
    }

    /// The next object.
    pub fn start(&mut self, entry: TreeEntry) -> Result<(), Failure> {
        let parts = wire_parts(&entry.path).ok_or_else(|| not_allowed(&entry.path))?;
        if self.file.is_some()
            || parts.is_empty() && (self.root.is_some() || self.copied != Copied::default())
        {
            return Err(not_allowed(&entry.path));
        }
        let path = parts.iter().fold(self.destination.clone(), |path, part| {
            path.join(OsStr::from_bytes(part))
        });
        let started = self.start_at(parts, &path, entry);
        started.map_err(|error| failure_of(&path, &error))
    }

    fn start_at(&mut self, parts: Parts, path: &Path, entry: TreeEntry) -> io::Result<()> {
        let Some((name, above)) = parts.split_last() else {
            return self.start_top(path, entry);
        };
        let name = OsStr::from_bytes(name);
        let directory = self.directory(above)?;
        match entry.kind.as_str() {
            "directory" => {
                let is_new = make_directory(directory, name)?;
                self.copied.others += 1;
                if is_new {
                    self.made.push((parts, entry));
                }
            }
            "symlink" => {
                let target = from_wire(&entry.target).unwrap_or_default();
                make_link(directory, name, OsStr::from_bytes(&target))?;
                give_link_attributes(directory, name, &entry)?;
                self.copied.others += 1;
            }
            "file" => {
                let incoming = Incoming::below(directory, name)?;
                self.file = Some((incoming, path.to_owned(), entry));
            }
            _ => self.copied.skipped += 1,
        }
        Ok(())
    }

    /// What the copy is of as a whole.
    fn start_top(&mut self, path: &Path, entry: TreeEntry) -> io::Result<()> {
        match entry.kind.as_str() {
            "file" => self.file = Some((Incoming::named(path)?, path.to_owned(), entry)),
            "directory" => {
                let is_new = match rustix::fs::mkdir(path, Mode::from_raw_mode(0o700)) {
                    Ok(()) => true,
                    Err(Errno::EXIST) => false,
                    Err(error) => return Err(error.into()),
                };
                self.root = Some(rustix::fs::open(path, DIRECTORY, Mode::empty())?);
                self.copied.others += 1;
                if is_new {
                    self.made.push((Parts::new(), entry));
                }
            }
            _ => self.copied.skipped += 1,
        }
        Ok(())
    }

    /// The directory of these parts, which came before, opened part by part.
    fn directory(&mut self, parts: &[Vec<u8>]) -> io::Result<BorrowedFd<'_>> {
        let root = self.root.as_ref().ok_or(Errno::NOTDIR)?;
        if self.here.as_ref().is_none_or(|(here, _)| here != parts) {
            let mut open = root.try_clone()?;
            for part in parts {
                open = rustix::fs::openat(&open, OsStr::from_bytes(part), DIRECTORY, Mode::empty())?;
            }
            self.here = Some((parts.to_vec(), open));
        }
        let here = self.here.as_ref().map(|(_, open)| open.as_fd());
        here.ok_or_else(|| Errno::NOTDIR.into())
    }

    /// Content of the file that was started.
    pub fn content(&mut self, content: &[u8]) -> Result<(), Failure> {
        let Some((file, path, _)) = &mut self.file else {
            return Ok(());
        };
        file.write(content)
            .map_err(|error| Failure::new(format!("write '{}'", path.display()), error, "make room"))?;
        self.copied.bytes += content.len() as u64;
        Ok(())
    }

    /// The file that was started has all of its content.
    pub fn end_content(&mut self) -> Result<(), Failure> {
        if let Some((file, path, entry)) = self.file.take() {
            file.complete(&entry).map_err(|error| failure_of(&path, &error))?;
            self.copied.files += 1;
        }
        Ok(())
    }

    /// Everything was received.
    pub fn finish(mut self) -> Result<Copied, Failure> {
        if let Some((_, path, _)) = self.file.take() {
            let why = "its content ended early";
            return Err(Failure::new(
                format!("write '{}'", path.display()),
                why,
                "run the command again",
            ));
        }
        // From the innermost out, since writing into a directory changes its time.
        for (parts, entry) in std::mem::take(&mut self.made).into_iter().rev() {
            self.here = None;
            let settled = self
                .directory(&parts)
                .and_then(|directory| give_attributes(directory, &entry));
            settled.map_err(|error| {
                let what = format!("set mode and time of '{}'", self.destination.display());
                Failure::new(what, error, "")
            })?;
        }
        Ok(self.copied)
    }
}

/// Makes a directory, or finds one; whether it was made.
fn make_directory(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<bool> {
    match rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o700)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => {
            rustix::fs::openat(directory, name, DIRECTORY, Mode::empty())?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

fn failure_of(path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.raw_os_error() {
        Some(libc::ELOOP | libc::ENOTDIR) => {
            "a symbolic link or file is where a directory belongs: remove it, or copy to another place"
        }
        _ => "check that there is room and that you may write there",
    };
    Failure::new(format!("write '{}'", path.display()), error, remedy)
}

fn not_allowed(path: &str) -> Failure {
    Failure::new(
        "write what was received",
        format!("the name '{}' is not allowed", path.escape_debug()),
        "run 'terrace scrub', and say what it found where you got this program from",
    )
}
