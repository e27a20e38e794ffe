//! `Object`: one file, directory, link or node in RAM.
//!
//! Invariants: `inode_lock` orders changes of one object and may be held across I/O; `state` is locked briefly and
//! never across I/O. Every change is made under the dataset's gate (shared), a freeze takes the gate exclusively; so a
//! freeze sees each operation wholly or not at all. Locks are taken in this order: inode locks (by object number),
//! gate, one state at a time (two directories of a rename: by object number).

use super::{
    clock_cache::Cached, directory_cache::Entries, dirty_layer::Layer, names::NameCount,
    read_stream::ReadStream, visit_count::Visited, write_stream::WriteStream, xattrs::Xattrs,
};
use crate::{
    posix::{Attributes, generation},
    records::{FileKind, InodeRecord, Old, Preallocated},
};
use std::sync::Arc;

use terrace_sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};

/// What changes.
pub(crate) struct State {
    pub(crate) inode: InodeRecord,
    /// Holds that keep it alive without a name.
    pub(crate) opens: u32,
    /// Nothing names or holds it any more; `Stale` from now on.
    pub(crate) freed: bool,
    /// The inode differs from what was frozen last.
    pub(crate) inode_dirty: bool,
    /// It is in the list of dirty objects.
    pub(crate) listed: bool,
    /// A freeze took something that is not committed yet.
    pub(crate) in_flight: bool,
    /// The committed inode.
    pub(crate) recorded: Old,
    /// Size of the committed inode: no region record lies behind it.
    pub(crate) recorded_size: u64,
    /// Body of the committed inode.
    pub(crate) recorded_body: u64,
    /// There is an orphan record.
    pub(crate) orphan_recorded: bool,
    /// Memory was counted for what its last release will change.
    pub(crate) owes_release: bool,
    /// What the committed inode has preallocated; in `inode` the ranges alone count.
    pub(crate) recorded_preallocated: Option<Box<Preallocated>>,
    /// Since the last freeze something was preallocated that was written before: none of it stands for that.
    pub(crate) preallocated_over: bool,
    /// Content changed since the last freeze.
    pub(crate) data: Layer,
    /// Content frozen and not committed yet.
    pub(crate) frozen: Option<Arc<Layer>>,
    /// Of a directory.
    pub(crate) entries: Option<Box<Entries>>,
    /// Once they were asked for.
    pub(crate) xattrs: Option<Box<Xattrs>>,
    /// Whether it is read in order, and where what was last fetched ahead ends.
    pub(crate) reads: ReadStream,
    /// Who reads it, if that is known.
    pub(crate) visited: Visited,
    pub(crate) ahead_to: u64,
    /// Whether it is written in order.
    pub(crate) writes: WriteStream,
    /// The directory in which it was made or last found, unless it is a directory itself; 0 if that is not known.
    pub(crate) found_in: u64,
}

impl State {
    /// Whether anything is to be frozen.
    pub(crate) fn is_dirty(&self) -> bool {
        self.inode_dirty
            || !self.data.is_empty()
            || self
                .entries
                .as_ref()
                .is_some_and(|entries| !entries.log.is_empty())
            || self.xattrs.as_ref().is_some_and(|xattrs| xattrs.has_changes())
    }

    /// What `stat` shows.
    pub(crate) fn attributes(&self, object: u64) -> Attributes {
        let inode = &self.inode;
        let fresh = |layer: &Layer| layer.dirty_blocks() + layer.ahead_blocks();
        let dirty = fresh(&self.data) + self.frozen.as_deref().map_or(0, fresh);
        let blocks = match inode.kind {
            FileKind::File | FileKind::Volume if dirty > 0 => {
                (inode.blocks + dirty).min(inode.size.div_ceil(4096).max(inode.blocks))
            }
            _ => inode.blocks,
        };
        let blocks = match &inode.preallocated {
            Some(preallocated) => {
                let recorded = self.recorded_preallocated.as_ref();
                let mapped = recorded.map_or(0, |recorded| recorded.mapped_blocks);
                let unmapped = preallocated.blocks().saturating_sub(mapped);
                // Before it is committed it is not known what of a new range is mapped.
                blocks.max(inode.blocks + unmapped).max(preallocated.blocks())
            }
            None => blocks,
        };
        Attributes {
            object,
            kind: inode.kind,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            links: inode.links,
            size: inode.size,
            blocks512: blocks * 8,
            accessed: inode.accessed,
            modified: inode.modified,
            changed: inode.changed,
            created: inode.created,
            device: inode.device,
            generation: generation(inode.created),
        }
    }
}

/// See the module.
pub(crate) struct Object {
    pub(crate) number: u64,
    pub(crate) kind: FileKind,
    inode_lock: RwLock<(), rank::dataset::Inode>,
    state: Mutex<State, rank::dataset::Object>,
}

impl Object {
    /// Its state, locked: briefly, and never across I/O.
    pub(crate) fn state(&self) -> MutexGuard<'_, State, rank::dataset::Object> {
        self.state.lock()
    }

    /// The same, if nobody has it.
    pub(crate) fn try_state(&self) -> Option<MutexGuard<'_, State, rank::dataset::Object>> {
        self.state.try_lock()
    }

    /// Orders a change of it; may be held across I/O.
    pub(crate) fn lock_inode(&self) -> RwLockWriteGuard<'_, (), rank::dataset::Inode> {
        self.inode_lock.write()
    }

    /// The same beside others who do.
    pub(crate) fn lock_inode_shared(&self) -> RwLockReadGuard<'_, (), rank::dataset::Inode> {
        self.inode_lock.read()
    }

    fn initial(inode: InodeRecord, recorded: Old, names: &Arc<NameCount>) -> State {
        let fresh = recorded == Old::Absent;
        State {
            recorded_preallocated: inode.preallocated.clone(),
            preallocated_over: false,
            recorded_size: if fresh { 0 } else { inode.size },
            recorded_body: inode.body,
            opens: 0,
            freed: false,
            inode_dirty: fresh,
            listed: false,
            in_flight: false,
            recorded,
            orphan_recorded: false,
            owes_release: false,
            data: if fresh && matches!(inode.kind, FileKind::File) {
                Layer::all_void()
            } else {
                Layer::default()
            },
            frozen: None,
            entries: (inode.kind == FileKind::Directory).then(|| Box::new(Entries::new(fresh, names))),
            xattrs: fresh.then(Box::default),
            reads: ReadStream::default(),
            visited: Visited::default(),
            ahead_to: 0,
            writes: WriteStream::default(),
            found_in: 0,
            inode,
        }
    }

    /// One that was just made and must be put in the dirty list; its names count in `names`, if it has any.
    pub(crate) fn fresh(number: u64, inode: InodeRecord, names: &Arc<NameCount>) -> Arc<Self> {
        let kind = inode.kind;
        let state = Mutex::new(Self::initial(inode, Old::Absent, names));
        Arc::new(Self {
            number,
            kind,
            inode_lock: RwLock::new(()),
            state,
        })
    }

    /// One whose record, born in `birth`, was read.
    pub(crate) fn loaded(number: u64, inode: InodeRecord, birth: u64, names: &Arc<NameCount>) -> Arc<Self> {
        let kind = inode.kind;
        let orphan = inode.links == 0;
        let mut state = Self::initial(inode, Old::Born(birth), names);
        state.orphan_recorded = orphan;
        Arc::new(Self {
            number,
            kind,
            inode_lock: RwLock::new(()),
            state: Mutex::new(state),
        })
    }
}

/// What an object takes in RAM besides this struct: what it has of its own on the heap.
const HEAP_BYTES: usize = 192;

impl Cached for Object {
    fn memory_bytes(&self) -> u64 {
        (size_of::<Self>() + HEAP_BYTES) as u64
    }

    fn evictable(&self) -> bool {
        match self.try_state() {
            Some(state) => state.opens == 0 && !state.in_flight && !state.listed && !state.is_dirty(),
            None => false,
        }
    }
}

/// Locks the inode locks of several objects, each once, in the order of their numbers.
pub(crate) fn lock_all<'a>(
    objects: &[&'a Arc<Object>],
) -> Vec<RwLockWriteGuard<'a, (), rank::dataset::Inode>> {
    let mut sorted: Vec<&Arc<Object>> = objects.to_vec();
    sorted.sort_by_key(|object| object.number);
    sorted.dedup_by_key(|object| object.number);
    sorted.into_iter().map(|object| object.lock_inode()).collect()
}
