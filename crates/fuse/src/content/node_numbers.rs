//! Node numbers: what the kernel calls our objects, and which of them it still knows.
//!
//! Invariants: a live object's node is its object number (below 2^63); nodes of past states have bit 63 set, and say
//! which state and object they are (`nodes/past.rs`), so that a file handle stays good when the kernel has forgotten
//! the node, and after a restart; each reply that carries an entry counts one lookup, FORGET takes lookups back, and with the
//! last one the kernel knows the node no more. A live object whose last name went while the kernel knows it is
//! *held* (`Filesystem::open_object`) and released with the last lookup: that is what keeps unlinked open files
//! alive, since opens themselves cost no message. An object is *shown* while the kernel has, as far as we can tell,
//! its only name and its attributes as they are: then a listing need not bring them again. That may be wrong, and
//! costs the kernel a question of its own then; it never makes anything visible or hides it. An object is *cached* since content of
//! it was read for the kernel's page cache, for as long as the kernel knows it.

mod past;

use std::sync::{Arc, atomic::AtomicU64};

use parking_lot::Mutex;
use terrace_dataset::Tree;

use super::known_objects::KnownObjects;

pub use self::past::{
    CONTROL_NODE, PastNodes, PastObject, SNAPSHOTS_NODE, VIRTUAL, inode as inode_of, numbered,
};

const SHARDS: usize = 64;
/// Objects whose numbers lie side by side that are known in one shard.
const NEIGHBOURS: u64 = 1024;

/// Which live objects the kernel knows.
pub struct LiveNodes {
    shards: Vec<Mutex<KnownObjects>>,
}

impl Default for LiveNodes {
    fn default() -> Self {
        Self::counted_in(&Arc::default())
    }
}

impl LiveNodes {
    /// What they take is counted in `bytes`.
    pub fn counted_in(bytes: &Arc<AtomicU64>) -> Self {
        let shard = || Mutex::new(KnownObjects::new(bytes.clone()));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }
    }

    /// Of neighbours the same, as they are known together.
    fn shard(&self, object: u64) -> &Mutex<KnownObjects> {
        &self.shards[(object / NEIGHBOURS) as usize % SHARDS]
    }

    /// Counts a lookup; call it before the reply is sent, which carries attributes. `only_name`: the object has no
    /// other name than the one that the reply is about.
    pub fn add(&self, object: u64, only_name: bool) {
        let mut shard = self.shard(object).lock();
        shard.add(object);
        shard.show(object, only_name);
    }

    /// A reply carries the attributes of an object; `one_name`: it has no more than one name.
    pub fn show(&self, object: u64, one_name: bool) {
        self.shard(object).lock().show(object, one_name);
    }

    /// What the kernel has of an object's attributes is out of date, or it takes it to be.
    pub fn outdate(&self, object: u64) {
        self.shard(object).lock().show(object, false);
    }

    /// Before the content of an object is read: its times are out of date then, and if `cached` the kernel keeps what it gets.
    pub fn note_read(&self, object: u64, cached: bool) {
        let mut shard = self.shard(object).lock();
        shard.show(object, false);
        if cached {
            shard.cache(object);
        }
    }

    /// The content of an object was written, or may have been in part: as [`outdate`](Self::outdate). Whether the kernel may keep
    /// content of it that it has read.
    pub fn note_written(&self, object: u64) -> bool {
        let mut shard = self.shard(object).lock();
        shard.show(object, false);
        shard.is_cached(object)
    }

    /// The same as [`outdate`](Self::outdate) of every object.
    pub fn outdate_all(&self) {
        self.shards.iter().for_each(|shard| shard.lock().show_none());
    }

    /// Whether the kernel has an object's only name, and its attributes.
    pub fn is_shown(&self, object: u64) -> bool {
        self.shard(object).lock().is_shown(object)
    }

    /// Takes lookups back; true if the object was held and is to be released now.
    #[must_use]
    pub fn forget(&self, object: u64, lookups: u64) -> bool {
        self.shard(object).lock().sub(object, lookups) == Some(true)
    }

    /// Marks an object, open once on our behalf, to be released with its last lookup; false if the kernel does not
    /// know it or it is held already, so that this opening is to be released at once.
    #[must_use]
    pub fn hold(&self, object: u64) -> bool {
        self.shard(object).lock().hold(object)
    }

    /// Forgets everything; gives the objects that are to be released.
    pub fn clear(&self) -> Vec<u64> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().clear())
            .collect()
    }

    /// How many objects the kernel knows.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

/// What a node number stands for.
pub enum Place {
    /// A live object.
    Live(u64),
    /// An object of a past state.
    Past(PastObject),
    /// `.terrace`.
    Control,
    /// `.terrace/snapshots`.
    Snapshots,
}

impl Place {
    /// The tree and the number in it of what can be read, if it is not one of our own directories.
    pub fn object<'a>(&'a self, live: &'a dyn Tree) -> Option<(&'a dyn Tree, u64)> {
        match self {
            Place::Live(object) => Some((live, *object)),
            Place::Past(past) => Some((past.view.tree.as_ref(), past.object)),
            Place::Control | Place::Snapshots => None,
        }
    }
}
