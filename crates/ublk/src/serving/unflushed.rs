//! `Unflushed`: whether something that the kernel was told is written would be gone if this process died now.
//!
//! A small file of the run directory, mapped into memory: what is written to it outlives the process, as the page cache
//! is the kernel's; a power cut takes the device away with it. Two counters: changes that were (or are about to be)
//! acknowledged, and how many of these a flush has covered. Invariant: a change is counted before it is acknowledged; a
//! flush counts only what was counted before it began.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::kernel::Mapping;

const FILE_BYTES: usize = 4096;
const MAGIC: &[u8; 8] = b"TRUBLK01";
const TOKEN_AT: usize = 8;
const CHANGED_AT: usize = 64;
const FLUSHED_AT: usize = 128;

/// See the module.
pub struct Unflushed {
    mapping: Mapping,
    token: u64,
}

impl Unflushed {
    /// A new file in the place of the old one; `token` tells its device from all others.
    pub fn create(path: &Path, token: u64) -> io::Result<Self> {
        let mut new = path.as_os_str().to_owned();
        new.push("+new");
        let _ = fs::remove_file(&new);
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        let mut content = [0; FILE_BYTES];
        content[..8].copy_from_slice(MAGIC);
        content[TOKEN_AT..TOKEN_AT + 8].copy_from_slice(&token.to_ne_bytes());
        file.write_all(&content)?;
        let found = Self::map(&file, token)?;
        fs::rename(&new, path)?;
        Ok(found)
    }

    /// The file that an earlier server left. `None` if there is none, or it makes no sense.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let mut file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut head = [0; 16];
        if file.metadata()?.len() != FILE_BYTES as u64 || file.read_exact(&mut head).is_err() {
            return Ok(None);
        }
        let [magic @ .., a, b, c, d, e, f, g, h] = head;
        if magic != *MAGIC {
            return Ok(None);
        }
        Self::map(&file, u64::from_ne_bytes([a, b, c, d, e, f, g, h])).map(Some)
    }

    fn map(file: &File, token: u64) -> io::Result<Self> {
        let mapping = Mapping::of_file(file.as_fd(), 0, FILE_BYTES, true)?;
        Ok(Self { mapping, token })
    }

    fn counter(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside of the mapping, aligned, and used as an atomic alone as long as the mapping exists.
        unsafe { self.mapping.part(at, 8).cast().as_ref() }
    }

    /// Tells its device from all others.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// A change was made and is about to be acknowledged.
    pub fn changed(&self) {
        self.counter(CHANGED_AT).fetch_add(1, Ordering::AcqRel);
    }

    /// To be asked for before a flush begins, and told to [`flushed`](Self::flushed) when it has succeeded.
    pub fn before_flush(&self) -> u64 {
        self.counter(CHANGED_AT).load(Ordering::Acquire)
    }

    /// A flush has succeeded.
    pub fn flushed(&self, before: u64) {
        self.counter(FLUSHED_AT).fetch_max(before, Ordering::AcqRel);
    }

    /// Whether nothing that was acknowledged is unflushed.
    pub fn is_clean(&self) -> bool {
        let flushed = self.counter(FLUSHED_AT).load(Ordering::Acquire);
        flushed >= self.counter(CHANGED_AT).load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_while_a_flush_ran_is_not_flushed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mark");
        let mark = Unflushed::create(&path, 42).unwrap();
        assert!(mark.is_clean());
        mark.changed();
        assert!(!mark.is_clean());
        let before = mark.before_flush();
        mark.changed();
        mark.flushed(before);
        assert!(!mark.is_clean());
        mark.flushed(mark.before_flush());
        assert!(mark.is_clean());
        // An older flush that ends late takes nothing back.
        mark.flushed(before);
        assert!(mark.is_clean());
    }

    #[test]
    fn the_next_server_finds_what_the_last_one_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mark");
        assert!(Unflushed::open(&path).unwrap().is_none());
        let mark = Unflushed::create(&path, 42).unwrap();
        mark.changed();
        let found = Unflushed::open(&path).unwrap().unwrap();
        assert_eq!((found.token(), found.is_clean()), (42, false));
        found.flushed(found.before_flush());
        assert!(mark.is_clean(), "it is the same memory");
        // A new device begins with a new file, which the old one does not reach.
        let new = Unflushed::create(&path, 43).unwrap();
        mark.changed();
        assert!(new.is_clean());
        fs::write(&path, [0; FILE_BYTES]).unwrap();
        assert!(Unflushed::open(&path).unwrap().is_none());
        fs::write(&path, MAGIC).unwrap();
        assert!(Unflushed::open(&path).unwrap().is_none());
    }
}
