//! File handles (`name_to_handle_at`, NFS): LOOKUP of "." and "..", by which the kernel asks for a node that it has
//! forgotten, and for the directory above one.
//!
//! A directory that it gets so it connects to the root of the mount: it asks for the directory above, lists that, and
//! looks up the name under which it finds the number. The way to a past state leads through `.terrace`, which no
//! listing shows; so the process that has just asked for "..", and no other, finds the name it needs in the next
//! listing that it begins.
//!
//! Invariants: a node without a name is `ESTALE`, since what is open the kernel has not forgotten; a hidden name is
//! shown once; what waits to be shown is bounded.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use terrace_dataset::{Attributes, FsError};

use super::nodes::{Nodes, own_entry};
use crate::{
    content::{CONTROL_NAME, CONTROL_NODE, PastObject, Place, SNAPSHOTS_NODE, inode_of},
    errno::Errno,
    protocol::{EntryValues, Header, ROOT_NODE, ReplyBuffer},
};

/// Names that wait for the listing of who needs them, at most; beyond that the oldest is dropped.
const HIDDEN_MAX: usize = 256;

/// A name for one process's next listing of a directory.
struct Hidden {
    process: u32,
    directory: u64,
    name: Vec<u8>,
    inode: u64,
}

/// Names that a listing shows only to who is connecting a directory by them.
#[derive(Default)]
pub(super) struct HiddenNames {
    waiting: AtomicUsize,
    list: Mutex<VecDeque<Hidden>>,
    /// Differs each time, so that the kernel takes what it has of a listing for out of date.
    turn: AtomicU32,
}

impl HiddenNames {
    fn add(&self, hidden: Hidden) {
        let mut list = self.list.lock();
        list.retain(|other| other.process != hidden.process || other.directory != hidden.directory);
        if list.len() >= HIDDEN_MAX {
            list.pop_front();
        }
        list.push_back(hidden);
        self.waiting.store(list.len(), Ordering::Release);
    }

    /// The entry of a directory whose next listing by `process` shows a hidden name: with another time of change, since
    /// the kernel keeps listings, and asks again when that differs.
    fn relisted(
        &self,
        process: u32,
        (directory, mut entry): (u64, EntryValues),
        name: Vec<u8>,
        inode: u64,
    ) -> EntryValues {
        self.add(Hidden {
            process,
            directory,
            name,
            inode,
        });
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % 1_000_000;
        let (seconds, nanos) = entry.attributes.modified;
        entry.attributes.modified = (seconds, (nanos + 1 + turn) % 1_000_000_000);
        // The true one is asked for before anybody is shown it.
        entry.attribute_seconds = 0;
        entry
    }

    /// What a process is to find in a directory besides its names, as (name, inode).
    pub(super) fn take(&self, process: u32, directory: u64) -> Option<(Vec<u8>, u64)> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut list = self.list.lock();
        let at = list
            .iter()
            .position(|hidden| hidden.process == process && hidden.directory == directory)?;
        let hidden = list.remove(at)?;
        self.waiting.store(list.len(), Ordering::Release);
        Some((hidden.name, hidden.inode))
    }
}

/// No such object any more, whatever the tree calls that.
fn stale(error: FsError) -> Errno {
    match error {
        FsError::NotFound | FsError::Stale => Errno(libc::ESTALE),
        error => error.into(),
    }
}

fn named(attributes: Attributes) -> Result<Attributes, Errno> {
    match attributes.links {
        0 => Err(Errno(libc::ESTALE)),
        _ => Ok(attributes),
    }
}

/// LOOKUP of ".": a node by its number.
pub(super) fn lookup_itself(nodes: &Nodes, node: u64, reply: &mut ReplyBuffer) -> Result<(), Errno> {
    let entry = match nodes.place(node)? {
        Place::Live(object) => live_by_number(nodes, object)?,
        Place::Past(past) => past_by_number(nodes, &past)?,
        Place::Control | Place::Snapshots if nodes.past().is_none() => return Err(Errno(libc::ESTALE)),
        Place::Control | Place::Snapshots => own_entry(node),
    };
    reply.entry(&entry);
    Ok(())
}

/// LOOKUP of "..": the directory above one.
pub(super) fn lookup_parent(
    nodes: &Nodes,
    hidden: &HiddenNames,
    header: &Header,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let node = header.node;
    let entry = match nodes.place(node)? {
        Place::Live(dir) => {
            named(nodes.tree().attributes(dir).map_err(stale)?)?;
            live_by_number(nodes, nodes.tree().parent(dir).map_err(stale)?)?
        }
        Place::Past(past) if past.object == past.view.tree.root() => {
            let name = name_of_state(nodes, past.view.checkpoint)?;
            let inode = inode_of(past.view.checkpoint, past.object);
            hidden.relisted(
                header.pid,
                (SNAPSHOTS_NODE, own_entry(SNAPSHOTS_NODE)),
                name,
                inode,
            )
        }
        Place::Past(past) => {
            let object = past.view.tree.parent(past.object).map_err(stale)?;
            past_by_number(nodes, &PastObject { object, ..past })?
        }
        Place::Snapshots => own_entry(CONTROL_NODE),
        Place::Control => {
            let root = live_by_number(nodes, ROOT_NODE)?;
            hidden.relisted(header.pid, (ROOT_NODE, root), CONTROL_NAME.to_vec(), CONTROL_NODE)
        }
    };
    reply.entry(&entry);
    Ok(())
}

fn live_by_number(nodes: &Nodes, object: u64) -> Result<EntryValues, Errno> {
    let attributes = named(nodes.tree().attributes(object).map_err(stale)?)?;
    let entry = nodes.live_entry(&attributes);
    // The kernel has no name of it by this.
    nodes.known().outdate(object);
    if object == ROOT_NODE {
        // It never forgets the root.
        let _held = nodes.known().forget(object, 1);
    }
    Ok(entry)
}

fn past_by_number(nodes: &Nodes, past: &PastObject) -> Result<EntryValues, Errno> {
    let attributes = named(past.view.tree.attributes(past.object).map_err(stale)?)?;
    Ok(nodes.past_entry(&past.view, &attributes))
}

/// The name in `.terrace/snapshots` by which a state is reached: its snapshot's, or `@@CHECKPOINT`.
fn name_of_state(nodes: &Nodes, checkpoint: u64) -> Result<Vec<u8>, Errno> {
    let past = nodes.past().ok_or(Errno(libc::ESTALE))?;
    let snapshots = past.snapshots()?;
    let named = snapshots.into_iter().find(|(_, of)| *of == checkpoint);
    Ok(named
        .map_or_else(|| format!("@@{checkpoint}"), |(name, _)| name)
        .into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_name_is_listed_once_to_a_reconnecting_process() {
        let names = HiddenNames::default();
        let hidden = |process, name: &[u8]| Hidden {
            process,
            directory: 1,
            name: name.to_vec(),
            inode: 9,
        };
        names.add(hidden(7, b"a"));
        names.add(hidden(7, b"b"));
        assert_eq!(names.take(8, 1), None);
        assert_eq!(names.take(7, 2), None);
        assert_eq!(names.take(7, 1), Some((b"b".to_vec(), 9)));
        assert_eq!(names.take(7, 1), None);
        for process in 0..2 * HIDDEN_MAX as u32 {
            names.add(hidden(process, b"c"));
        }
        assert_eq!(names.list.lock().len(), HIDDEN_MAX);
        assert_eq!(names.take(0, 1), None);
    }
}
