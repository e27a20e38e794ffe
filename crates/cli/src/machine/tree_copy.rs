//! Copying trees over the control socket: what is said of each object, and the local side of it.
//!
//! Invariants: names travel byte for byte (each byte as one character); a received name has no part that leaves its directory; who is not
//! root owns what he sends, as with `cp` and `tar`: nobody else's files appear in a pool of his own.

mod destination;
mod writer;

use std::{
    fs,
    io::{self, Read},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::Path,
};

use serde::{Deserialize, Serialize};
use terrace_control::{Connection, FRAME_BYTES_MAX, Failure, Message};

pub use crate::machine::tree_copy::writer::TreeWriter;

/// One object of a tree. A file's content follows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TreeEntry {
    /// Path below the root of the copy, each byte as one character; empty: the root itself.
    pub path: String,
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `device`.
    pub kind: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Last change, seconds since 1970.
    pub modified_seconds: i64,
    /// And nanoseconds.
    pub modified_nanoseconds: u32,
    /// Of a symbolic link, each byte as one character.
    #[serde(default)]
    pub target: String,
}

/// Bytes as a text, one character for each.
pub fn to_wire(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// The bytes of such a text; `None` if it is none.
pub fn from_wire(text: &str) -> Option<Vec<u8>> {
    text.chars()
        .map(|character| u8::try_from(u32::from(character)).ok())
        .collect()
}

/// The parts of a received path; `None` if it would leave the directory.
pub fn wire_parts(path: &str) -> Option<Vec<Vec<u8>>> {
    let bytes = from_wire(path)?;
    if bytes.is_empty() {
        return Some(Vec::new());
    }
    let parts: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
    let good = |part: &Vec<u8>| {
        !part.is_empty() && part != b"." && part != b".." && !part.contains(&0) && part.len() <= 255
    };
    parts.iter().all(good).then_some(parts)
}

/// What is counted while copying.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Directories, links and others.
    pub others: u64,
    /// What was left out: sockets and devices.
    pub skipped: u64,
}

/// Sends a local file or tree. Directories come before what is in them, names in order.
pub fn send_tree(connection: &mut Connection, root: &Path, copied: &mut Copied) -> Result<(), Failure> {
    let mut stack = vec![(root.to_owned(), Vec::new())];
    while let Some((local, path)) = stack.pop() {
        let what = || format!("read '{}'", local.display());
        let metadata = match fs::symlink_metadata(&local) {
            Ok(metadata) => metadata,
            // Gone since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_empty() => continue,
            Err(error) => return Err(Failure::new(what(), error, "check the path and its permissions")),
        };
        let mut entry = describe(&metadata);
        entry.path = to_wire(&path);
        match entry.kind.as_str() {
            "file" => {
                let file = fs::File::open(&local)
                    .map_err(|error| Failure::new(what(), error, "check its permissions"))?;
                send(
                    connection,
                    &Message::Item(serde_json::to_value(&entry).unwrap_or_default()),
                )?;
                copied.bytes += send_content(connection, file, &local)?;
                copied.files += 1;
            }
            "symlink" => {
                let target = fs::read_link(&local).map_err(|error| Failure::new(what(), error, ""))?;
                entry.target = to_wire(target.as_os_str().as_bytes());
                send(
                    connection,
                    &Message::Item(serde_json::to_value(&entry).unwrap_or_default()),
                )?;
                copied.others += 1;
            }
            "directory" => {
                send(
                    connection,
                    &Message::Item(serde_json::to_value(&entry).unwrap_or_default()),
                )?;
                copied.others += 1;
                let entries = fs::read_dir(&local).and_then(|entries| {
                    entries
                        .map(|entry| entry.map(|entry| entry.file_name()))
                        .collect::<io::Result<Vec<_>>>()
                });
                let mut names =
                    entries.map_err(|error| Failure::new(what(), error, "check its permissions"))?;
                names.sort();
                for name in names.into_iter().rev() {
                    let mut below = path.clone();
                    if !below.is_empty() {
                        below.push(b'/');
                    }
                    below.extend_from_slice(name.as_bytes());
                    stack.push((local.join(&name), below));
                }
            }
            _ => copied.skipped += 1,
        }
    }
    Ok(())
}

/// Sends content until its end.
pub fn send_content(connection: &mut Connection, mut file: impl Read, name: &Path) -> Result<u64, Failure> {
    let mut buffer = vec![0; FRAME_BYTES_MAX];
    let mut sent = 0;
    loop {
        let read = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Failure::new(format!("read '{}'", name.display()), error, "")),
        };
        connection
            .send_content(&buffer[..read])
            .map_err(|error| lost(&error))?;
        sent += read as u64;
    }
    connection.end_content().map_err(|error| lost(&error))?;
    Ok(sent)
}

fn send(connection: &mut Connection, message: &Message) -> Result<(), Failure> {
    connection.send(message).map_err(|error| lost(&error))
}

fn lost(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(
        "talk to the daemon",
        error,
        "see its log, and run the command again",
    )
}

fn describe(metadata: &fs::Metadata) -> TreeEntry {
    let kind = metadata.file_type();
    let kind = if kind.is_file() {
        "file"
    } else if kind.is_dir() {
        "directory"
    } else if kind.is_symlink() {
        "symlink"
    } else if kind.is_fifo() {
        "fifo"
    } else if kind.is_socket() {
        "socket"
    } else {
        "device"
    };
    let (mut mode, mut owner) = (metadata.mode() & 0o7777, (metadata.uid(), metadata.gid()));
    let own = crate::machine::places::own_ids();
    if own.0 != 0 && owner != own {
        // Nobody else's program becomes one that runs as who copied it.
        (mode, owner) = (mode & !0o6000, own);
    }
    TreeEntry {
        kind: kind.into(),
        mode,
        uid: owner.0,
        gid: owner.1,
        size: metadata.size(),
        modified_seconds: metadata.mtime(),
        modified_nanoseconds: metadata.mtime_nsec() as u32,
        ..TreeEntry::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_travel_byte_for_byte() {
        let every: Vec<u8> = (0..=255).collect();
        assert_eq!(from_wire(&to_wire(&every)), Some(every));
        assert_eq!(from_wire("\u{100}"), None);
    }

    #[test]
    fn names_stay_inside() {
        for bad in [
            "..",
            "a/../b",
            "/a",
            "a//b",
            "a/",
            "./a",
            "a/\0",
            &"x".repeat(256),
        ] {
            assert!(wire_parts(bad).is_none(), "{bad}");
        }
        assert_eq!(wire_parts("a/b"), Some(vec![b"a".to_vec(), b"b".to_vec()]));
        assert_eq!(wire_parts(""), Some(Vec::new()));
    }
}
