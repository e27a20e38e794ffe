//! A small filesystem that can only be read, with one earlier state, and files that misbehave on purpose.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};
use terrace_dataset::{
    Attributes, Context, DirectoryEntry, FileKind, FsError, FsStatistics, SeekTarget, Time, Tree,
};
use terrace_fuse::{Past, PastView};

pub const HELLO: u64 = 2;
pub const BIG: u64 = 3;
pub const SHELF: u64 = 4;
pub const LINK: u64 = 5;
pub const WAITS: u64 = 6;
pub const FIRST_BOOK: u64 = 100;
pub const BOOKS: u64 = 5000;
pub const BIG_BYTES: u64 = 3_000_001;

/// See above.
pub struct Library {
    pub hello: &'static [u8],
    open: Mutex<bool>,
    opened: Condvar,
}

impl Library {
    pub fn new(hello: &'static [u8]) -> Arc<Self> {
        Arc::new(Self {
            hello,
            open: Mutex::new(false),
            opened: Condvar::new(),
        })
    }

    fn children(dir: u64) -> Result<Vec<(Vec<u8>, u64)>, FsError> {
        Ok(match dir {
            1 => {
                let names = ["hello", "big", "shelf", "link", "waits"];
                names
                    .iter()
                    .zip(2..)
                    .map(|(name, object)| (name.as_bytes().to_vec(), object))
                    .collect()
            }
            SHELF => (0..BOOKS)
                .map(|book| (format!("book {book:04}").into_bytes(), FIRST_BOOK + book))
                .collect(),
            _ => return Err(FsError::NotDirectory),
        })
    }
}

pub fn big_byte(offset: u64) -> u8 {
    (offset % 251) as u8
}

fn kind(object: u64) -> Result<FileKind, FsError> {
    Ok(match object {
        1 | SHELF => FileKind::Directory,
        LINK => FileKind::SymbolicLink,
        HELLO | BIG | WAITS => FileKind::File,
        _ if (FIRST_BOOK..FIRST_BOOK + BOOKS).contains(&object) => FileKind::File,
        _ => return Err(FsError::NotFound),
    })
}

impl Tree for Library {
    fn lookup(&self, _: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        if name == b"let it go" {
            *self.open.lock() = true;
            self.opened.notify_all();
        }
        let children = Self::children(dir)?;
        let child = children
            .iter()
            .find(|(child, _)| child == name)
            .ok_or(FsError::NotFound)?;
        self.attributes(child.1)
    }

    fn attributes(&self, object: u64) -> Result<Attributes, FsError> {
        let kind = kind(object)?;
        let size = match object {
            HELLO => self.hello.len() as u64,
            BIG => BIG_BYTES,
            LINK => 5,
            WAITS => 10,
            _ => 9,
        };
        let time = Time {
            seconds: -1,
            nanos: 123_456_789,
        };
        Ok(Attributes {
            object,
            kind,
            mode: if kind == FileKind::Directory { 0o755 } else { 0o644 },
            uid: 12,
            gid: 34,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            size,
            blocks512: size.div_ceil(4096) * 8,
            accessed: time,
            modified: time,
            changed: time,
            created: Time {
                seconds: 1_000_000_007,
                nanos: 5,
            },
            device: 0,
            generation: 1,
        })
    }

    fn read_link(&self, object: u64) -> Result<Vec<u8>, FsError> {
        if object == LINK {
            Ok(b"hello".to_vec())
        } else {
            Err(FsError::Invalid)
        }
    }

    fn read_directory(&self, dir: u64, from: u64, limit: usize) -> Result<Vec<DirectoryEntry>, FsError> {
        let children = Self::children(dir)?
            .into_iter()
            .map(|(name, object)| DirectoryEntry {
                name,
                object,
                kind: kind(object).unwrap_or(FileKind::File),
                cookie: object + 16,
            });
        Ok(children.filter(|entry| entry.cookie > from).take(limit).collect())
    }

    fn parent(&self, _: u64) -> Result<u64, FsError> {
        Ok(1)
    }

    fn read(&self, object: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, FsError> {
        let content: Vec<u8> = match object {
            HELLO => self.hello.to_vec(),
            WAITS => {
                let mut open = self.open.lock();
                while !*open {
                    if self
                        .opened
                        .wait_for(&mut open, Duration::from_secs(60))
                        .timed_out()
                    {
                        return Err(FsError::Busy);
                    }
                }
                b"let it go!".to_vec()
            }
            BIG => {
                let end = (offset + buffer.len() as u64).min(BIG_BYTES);
                let part: Vec<u8> = (offset.min(end)..end).map(big_byte).collect();
                buffer[..part.len()].copy_from_slice(&part);
                return Ok(part.len());
            }
            _ => format!("book {:04}", object - FIRST_BOOK).into_bytes(),
        };
        let part = content.get(offset as usize..).unwrap_or(&[]);
        let length = part.len().min(buffer.len());
        buffer[..length].copy_from_slice(&part[..length]);
        Ok(length)
    }

    fn extended_attribute(&self, object: u64, name: &[u8]) -> Result<Vec<u8>, FsError> {
        if object == HELLO && name == b"user.colour" {
            Ok(b"blue".to_vec())
        } else {
            Err(FsError::NoAttribute)
        }
    }

    fn extended_attributes(&self, object: u64) -> Result<Vec<Vec<u8>>, FsError> {
        Ok(if object == HELLO {
            vec![b"user.colour".to_vec(), b"trusted.secret".to_vec()]
        } else {
            Vec::new()
        })
    }

    fn seek(&self, _: u64, offset: u64, target: SeekTarget) -> Result<u64, FsError> {
        match target {
            SeekTarget::Data if offset < BIG_BYTES => Ok(offset),
            SeekTarget::Hole if offset < BIG_BYTES => Ok(BIG_BYTES),
            _ => Err(FsError::NoData),
        }
    }

    fn access(&self, _: &Context, _: u64, _: u32) -> Result<(), FsError> {
        Ok(())
    }

    fn statistics(&self) -> Result<FsStatistics, FsError> {
        Ok(FsStatistics {
            size_bytes: 1 << 30,
            available_bytes: 1 << 29,
            used_bytes: 1 << 20,
            objects: 77,
        })
    }
}

/// The library's past: one snapshot, `first`, of checkpoint 10.
pub struct OldLibrary;

impl Past for OldLibrary {
    fn snapshots(&self) -> Result<Vec<(String, u64)>, FsError> {
        Ok(vec![("first".into(), 10)])
    }

    fn snapshot(&self, name: &str) -> Result<PastView, FsError> {
        if name == "first" {
            self.at("10")
        } else {
            Err(FsError::NotFound)
        }
    }

    fn at(&self, when: &str) -> Result<PastView, FsError> {
        match when {
            "10" | "-1h" => Ok(PastView {
                checkpoint: 10,
                tree: Library::new(b"good old days\n"),
            }),
            _ => Err(FsError::NotFound),
        }
    }

    fn held(&self, checkpoint: u64, mask: u64) -> Result<PastView, FsError> {
        match checkpoint == 10 & mask {
            true => self.at("10"),
            false => Err(FsError::NotFound),
        }
    }
}
