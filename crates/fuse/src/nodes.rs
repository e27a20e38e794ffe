//! Node numbers: what the kernel calls our objects, and which of them it still knows.
//!
//! Invariants: a live object's node is its object number (below 2^63); nodes of past states have bit 63 set and are
//! never used twice; each reply that carries an entry counts one lookup, FORGET takes lookups back, and with the
//! last one the kernel knows the node no more. A live object whose last name went while the kernel knows it is
//! *held* (`Filesystem::open_object`) and released with the last lookup: that is what keeps unlinked open files
//! alive, since opens themselves cost no message. An object is *shown* while the kernel has, as far as we can tell,
//! its only name and its attributes as they are: then a listing need not bring them again. That may be wrong, and
//! costs the kernel a question of its own then; it never makes anything visible or hides it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use hashbrown::HashMap;
use parking_lot::Mutex;
use terrace_dataset::Tree;

use crate::{known_objects::KnownObjects, past::PastView};

/// Set in nodes that are not live objects.
pub const VIRTUAL: u64 = 1 << 63;
/// `.terrace`.
pub const CONTROL_NODE: u64 = VIRTUAL | 1;
/// `.terrace/snapshots`.
pub const SNAPSHOTS_NODE: u64 = VIRTUAL | 2;
const FIRST_PAST_NODE: u64 = VIRTUAL | 16;
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

    /// The same of every object.
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

/// An object of a past state.
#[derive(Clone)]
pub struct PastObject {
    /// The state.
    pub view: PastView,
    /// The object in it.
    pub object: u64,
}

impl PastObject {
    /// The inode number that `stat` shows: differs from the live object's, or programs would take the two for the
    /// same file.
    pub fn inode(&self) -> u64 {
        let mixed = (self.view.checkpoint ^ 0x9e37_79b9_7f4a_7c15)
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
            .wrapping_add(self.object.wrapping_mul(0xc4ce_b9fe_1a85_ec53));
        (mixed ^ (mixed >> 29)) | VIRTUAL
    }
}

#[derive(Default)]
struct PastState {
    by_object: HashMap<(u64, u64), u64>,
    by_node: HashMap<u64, (PastObject, u64)>,
}

/// Which objects of past states the kernel knows.
pub struct PastNodes {
    state: Mutex<PastState>,
    next: AtomicU64,
}

impl Default for PastNodes {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            next: AtomicU64::new(FIRST_PAST_NODE),
        }
    }
}

impl PastNodes {
    /// The node of an object, counting a lookup.
    pub fn add(&self, past: PastObject) -> u64 {
        let mut state = self.state.lock();
        let key = (past.view.checkpoint, past.object);
        if let Some(&node) = state.by_object.get(&key)
            && let Some((_, lookups)) = state.by_node.get_mut(&node)
        {
            *lookups += 1;
            return node;
        }
        let node = self.next.fetch_add(1, Ordering::Relaxed) | VIRTUAL;
        state.by_object.insert(key, node);
        state.by_node.insert(node, (past, 1));
        node
    }

    /// What a node is.
    pub fn get(&self, node: u64) -> Option<PastObject> {
        self.state.lock().by_node.get(&node).map(|(past, _)| past.clone())
    }

    /// Takes lookups back.
    pub fn forget(&self, node: u64, lookups: u64) {
        let mut state = self.state.lock();
        let Some((past, left)) = state.by_node.get_mut(&node) else {
            return;
        };
        *left = left.saturating_sub(lookups);
        if *left == 0 {
            let key = (past.view.checkpoint, past.object);
            state.by_object.remove(&key);
            state.by_node.remove(&node);
        }
    }

    /// Forgets everything.
    pub fn clear(&self) {
        *self.state.lock() = PastState::default();
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
