//! `Nodes`: what the kernel's node numbers stand for, and which of them it knows.
//!
//! Invariants: an entry that is made has counted a lookup; an object without a name is released once, when the kernel knows it no
//! more; what is not live is never given out to be changed.

use std::sync::{Arc, atomic::AtomicU64};

use terrace_dataset::{Attributes, FsError, Tree};

use crate::{
    content::{
        CONTROL_NAME, CONTROL_NODE, Content, Files, LiveNodes, Past, PastNodes, PastObject, PastView, Place,
        SNAPSHOTS_NODE, VIRTUAL, attribute_values, has_one_name, numbered, own_directory,
    },
    errno::Errno,
    protocol::{AttributeValues, EntryValues, ROOT_NODE},
};

/// How long the kernel may rely on names and attributes, seconds: we are the only writer, and tell it of the
/// changes that do not come through it.
pub(super) const TRUST_SECONDS: u64 = 365 * 24 * 3600;
/// The same for names that stand for past states: snapshots come and go.
pub(super) const PAST_TRUST_SECONDS: u64 = 1;

/// See the module.
pub(super) struct Nodes {
    tree: Arc<dyn Tree>,
    live: Option<Arc<dyn Files>>,
    past: Option<Arc<dyn Past>>,
    known: LiveNodes,
    known_past: PastNodes,
}

impl Nodes {
    /// Of `content`; what is known of them counts in `memory_bytes`.
    pub(super) fn new(content: Content, past: Option<Arc<dyn Past>>, memory_bytes: &Arc<AtomicU64>) -> Self {
        let (tree, live): (Arc<dyn Tree>, _) = match content {
            Content::Live(filesystem) => (filesystem.clone(), Some(filesystem)),
            Content::ReadOnly(tree) => (tree, None),
        };
        Self {
            tree,
            live,
            past,
            known: LiveNodes::counted_in(memory_bytes),
            known_past: PastNodes::default(),
        }
    }

    /// What live nodes are numbered in.
    pub(super) fn tree(&self) -> &dyn Tree {
        self.tree.as_ref()
    }

    /// The same where it can be changed.
    pub(super) fn live_files(&self) -> Option<&dyn Files> {
        self.live.as_deref()
    }

    /// Earlier states, if they can be reached.
    pub(super) fn past(&self) -> Option<&dyn Past> {
        self.past.as_deref()
    }

    /// The live objects that the kernel knows.
    pub(super) fn known(&self) -> &LiveNodes {
        &self.known
    }

    /// What a node stands for.
    pub(super) fn place(&self, node: u64) -> Result<Place, Errno> {
        if node & VIRTUAL == 0 {
            return Ok(Place::Live(node));
        }
        match node {
            CONTROL_NODE => Ok(Place::Control),
            SNAPSHOTS_NODE => Ok(Place::Snapshots),
            _ => match self.known_past.get(node) {
                Some(past) => Ok(Place::Past(past)),
                None => self.forgotten(node),
            },
        }
    }

    /// The place of a past node that the kernel has forgotten, and has from a file handle now.
    fn forgotten(&self, node: u64) -> Result<Place, Errno> {
        let stale = Errno(libc::ESTALE);
        let past = self.past.as_ref().ok_or(stale)?;
        let numbered = numbered(node).ok_or(stale)?;
        let view = match past.held(numbered.checkpoint, numbered.mask) {
            Err(FsError::NotFound) => return Err(stale),
            view => view?,
        };
        let object = numbered.object;
        Ok(Place::Past(PastObject { view, object }))
    }

    /// The filesystem and the object in it that a node stands for, if both can be changed.
    pub(super) fn live(&self, node: u64) -> Result<(&dyn Files, u64), Errno> {
        match &self.live {
            Some(live) if node & VIRTUAL == 0 => Ok((live.as_ref(), node)),
            _ => Err(Errno(libc::EROFS)),
        }
    }

    /// Whether past states are reached by a name.
    pub(super) fn is_control_name(&self, node: u64, name: &[u8]) -> bool {
        node == ROOT_NODE && self.past.is_some() && name == CONTROL_NAME
    }

    /// Refuses changes to the name by which past states are reached.
    pub(super) fn check_name(&self, node: u64, name: &[u8]) -> Result<(), Errno> {
        if self.is_control_name(node, name) {
            Err(Errno(libc::EPERM))
        } else {
            Ok(())
        }
    }

    /// An entry for a live object, its lookup counted.
    pub(super) fn live_entry(&self, attributes: &Attributes) -> EntryValues {
        self.known.add(attributes.object, has_one_name(attributes));
        EntryValues {
            node: attributes.object,
            generation: match attributes.object {
                // The kernel takes it so.
                ROOT_NODE => 0,
                _ => u64::from(attributes.generation),
            },
            entry_seconds: TRUST_SECONDS,
            attribute_seconds: TRUST_SECONDS,
            attributes: attribute_values(attributes, attributes.object),
        }
    }

    /// An entry for an object of a past state, its lookup counted.
    pub(super) fn past_entry(&self, view: &PastView, attributes: &Attributes) -> EntryValues {
        let past = PastObject {
            view: view.clone(),
            object: attributes.object,
        };
        let (inode, generation) = (past.inode(), past.generation(attributes.generation));
        let node = self.known_past.add(past);
        entry(node, generation, attribute_values(attributes, inode))
    }

    /// Takes lookups back.
    pub(super) fn forget(&self, node: u64, lookups: u64) {
        if node & VIRTUAL != 0 {
            self.known_past.forget(node, lookups);
        } else if self.known.forget(node, lookups)
            && let Some(live) = &self.live
        {
            live.release(node);
        }
    }

    /// Keeps an object that has no name any more until the kernel forgets it.
    pub(super) fn keep(&self, live: &dyn Files, object: u64) {
        if !self.known.hold(object) {
            live.release(object);
        }
    }

    /// Takes over one hold of an object that has no name any more; false if the kernel does not know it, or it is held
    /// already.
    #[must_use]
    pub(super) fn hold(&self, object: u64) -> bool {
        self.live.is_some() && self.known.hold(object)
    }

    /// Makes everything done so far durable.
    pub(super) fn sync(&self) -> Result<(), FsError> {
        match &self.live {
            Some(live) => live.sync(self.tree.root()),
            None => Ok(()),
        }
    }

    /// Lets go of everything the kernel knew.
    pub(super) fn clear(&self) {
        let held = self.known.clear();
        if let Some(live) = &self.live {
            held.into_iter().for_each(|object| live.release(object));
        }
        self.known_past.clear();
    }
}

/// An entry for one of our own directories.
pub(super) fn own_entry(node: u64) -> EntryValues {
    entry(node, 1, own_directory(node))
}

fn entry(node: u64, generation: u32, attributes: AttributeValues) -> EntryValues {
    EntryValues {
        node,
        generation: u64::from(generation),
        entry_seconds: PAST_TRUST_SECONDS,
        attribute_seconds: PAST_TRUST_SECONDS,
        attributes,
    }
}
