//! Nodes of past states: numbers that say which object of which checkpoint they are.
//!
//! A number has bit 63 set; the two bits below say how the other 61 are shared out between the low bits of the
//! checkpoint and the object:
//!
//! ```text
//! form 0   28 bits checkpoint · 33 bits object
//! form 1   24 bits checkpoint · 37 bits object
//! form 2   20 bits checkpoint · 41 bits object
//! form 3   our own directories, and numbers given in turn
//! ```
//!
//! The low bits of a checkpoint find it again among those that are held: with one checkpoint every five seconds two
//! have the same 28 bits 42 years apart.
//!
//! Invariants: a node that the kernel knows stands for one object; an object that would have the number of another one
//! that the kernel knows, or is numbered too high for any form, gets a number in turn, which a file handle does not
//! find again; a number that is found again as another object than it was has another generation.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::content::PastView;

/// Set in nodes that are not live objects.
pub const VIRTUAL: u64 = 1 << 63;
const FORM_SHIFT: u32 = 61;
const FORM_BITS: u64 = 3 << FORM_SHIFT;
const IN_TURN: u64 = VIRTUAL | FORM_BITS;
/// Bits of the checkpoint, form by form; the rest of 61 are the object's.
const CHECKPOINT_BITS: [u32; 3] = [28, 24, 20];
/// `.terrace`.
pub const CONTROL_NODE: u64 = IN_TURN | 1;
/// `.terrace/snapshots`.
pub const SNAPSHOTS_NODE: u64 = IN_TURN | 2;
const FIRST_IN_TURN: u64 = IN_TURN | 16;

fn low_bits(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// The number of an object of a checkpoint, unless the object's is too high.
fn number(checkpoint: u64, object: u64) -> Option<u64> {
    let form = CHECKPOINT_BITS
        .iter()
        .position(|bits| object <= low_bits(FORM_SHIFT - bits))?;
    let bits = CHECKPOINT_BITS[form];
    let state = (checkpoint & low_bits(bits)) << (FORM_SHIFT - bits);
    Some(VIRTUAL | (form as u64) << FORM_SHIFT | state | object)
}

/// What a number says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbered {
    /// The low bits of the checkpoint.
    pub checkpoint: u64,
    /// Which of its bits these are.
    pub mask: u64,
    /// The object.
    pub object: u64,
}

/// What a node's number says; `None` for one that was given in turn.
pub fn numbered(node: u64) -> Option<Numbered> {
    let form = ((node & FORM_BITS) >> FORM_SHIFT) as usize;
    let bits = *CHECKPOINT_BITS.get(form)?;
    let rest = node & low_bits(FORM_SHIFT);
    Some(Numbered {
        checkpoint: rest >> (FORM_SHIFT - bits),
        mask: low_bits(bits),
        object: rest & low_bits(FORM_SHIFT - bits),
    })
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
    /// The inode number that `stat` and listings show: differs from the live object's, or programs would take the two
    /// for the same file.
    pub fn inode(&self) -> u64 {
        inode(self.view.checkpoint, self.object)
    }

    /// The generation of its node, from that of the object.
    pub fn generation(&self, of_object: u32) -> u32 {
        let mixed = self.view.checkpoint.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (of_object ^ (mixed >> 32) as u32).max(1)
    }
}

/// The inode number of an object of a checkpoint.
pub fn inode(checkpoint: u64, object: u64) -> u64 {
    number(checkpoint, object).unwrap_or_else(|| {
        // Shown and compared, but asked for by nobody.
        let mixed = (checkpoint ^ 0x9e37_79b9_7f4a_7c15)
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
            .wrapping_add(object.wrapping_mul(0xc4ce_b9fe_1a85_ec53));
        (mixed ^ (mixed >> 29)) | IN_TURN
    })
}

#[derive(Default)]
struct PastState {
    /// Of those numbered in turn.
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
            next: AtomicU64::new(FIRST_IN_TURN),
        }
    }
}

impl PastNodes {
    /// The node of an object, counting a lookup.
    pub fn add(&self, past: PastObject) -> u64 {
        let mut state = self.state.lock();
        let key = (past.view.checkpoint, past.object);
        if let Some(node) = number(key.0, key.1) {
            match state.by_node.get_mut(&node) {
                None => {
                    state.by_node.insert(node, (past, 1));
                    return node;
                }
                Some((known, lookups)) if known.view.checkpoint == key.0 => {
                    *lookups += 1;
                    return node;
                }
                Some(_) => {}
            }
        }
        if let Some(&node) = state.by_object.get(&key)
            && let Some((_, lookups)) = state.by_node.get_mut(&node)
        {
            *lookups += 1;
            return node;
        }
        let node = self.next.fetch_add(1, Ordering::Relaxed) | IN_TURN;
        state.by_object.insert(key, node);
        state.by_node.insert(node, (past, 1));
        node
    }

    /// What a node is that the kernel knows.
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
            state.by_node.remove(&node);
            if state.by_object.get(&key) == Some(&node) {
                state.by_object.remove(&key);
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&self) {
        *self.state.lock() = PastState::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_the_checkpoint_and_the_object() {
        for (checkpoint, object) in [
            (0, 1),
            (1, 1),
            (7, (1 << 33) - 1),
            ((1 << 28) - 1, 5),
            (9, 1 << 33),
            (9, (1 << 41) - 1),
            (u64::MAX, 3),
        ] {
            let node = number(checkpoint, object).unwrap();
            let said = numbered(node).unwrap();
            assert!(node & VIRTUAL != 0 && node & FORM_BITS != FORM_BITS);
            assert_eq!(said.object, object);
            assert_eq!(said.checkpoint, checkpoint & said.mask);
            assert_eq!(inode(checkpoint, object), node);
        }
        assert_eq!(number(1, 1 << 41), None);
        assert_eq!(inode(1, 1 << 41) & IN_TURN, IN_TURN);
        for own in [CONTROL_NODE, SNAPSHOTS_NODE, FIRST_IN_TURN] {
            assert_eq!(numbered(own), None);
        }
    }
}
