//! Extended attributes of an object in RAM: all of them or none, and what changed since the last freeze.

use std::{collections::BTreeMap, sync::Arc};

use super::object::State;
use crate::{
    posix::{ACCESS_NAME, DEFAULT_NAME},
    records::Old,
};

/// `InodeRecord::flags`: there are extended attributes.
pub(crate) const HAS_XATTRS: u32 = 1;

/// There is an access ACL beyond the mode.
pub(crate) const HAS_ACL: u32 = 2;

/// There is a default ACL.
pub(crate) const HAS_DEFAULT_ACL: u32 = 4;

/// There is `security.capability`.
pub(crate) const HAS_CAPABILITY: u32 = 8;

/// One extended attribute in RAM.
#[derive(Debug)]
struct XattrSlot {
    value: Option<Arc<[u8]>>,
    recorded: Old,
    /// Changes that are not committed.
    pending: u32,
}

/// A change of an extended attribute: its name, and its value or `None` if it goes.
pub(crate) type XattrChange = (Arc<[u8]>, Option<Arc<[u8]>>);

/// All extended attributes of an object, and what changed since the last freeze.
#[derive(Debug, Default)]
pub(crate) struct Xattrs {
    values: BTreeMap<Arc<[u8]>, XattrSlot>,
    log: Vec<XattrChange>,
}

impl Xattrs {
    /// One that was read from its record.
    pub(crate) fn load(&mut self, name: &[u8], value: &[u8], birth: u64) {
        let slot = XattrSlot {
            value: Some(value.into()),
            recorded: Old::Born(birth),
            pending: 0,
        };
        self.values.insert(name.into(), slot);
    }

    /// The value of one.
    pub(crate) fn get(&self, name: &[u8]) -> Option<Arc<[u8]>> {
        self.values.get(name)?.value.clone()
    }

    /// The names of those that there are.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        let there = self.values.iter().filter(|(_, slot)| slot.value.is_some());
        there.map(|(name, _)| name)
    }

    /// Whether anything is to be frozen.
    pub(crate) fn has_changes(&self) -> bool {
        !self.log.is_empty()
    }

    /// What changed since the last freeze.
    pub(crate) fn take_changes(&mut self) -> Vec<XattrChange> {
        std::mem::take(&mut self.log)
    }

    /// What the records have of one.
    pub(crate) fn recorded(&self, name: &[u8]) -> Old {
        self.values.get(name).map_or(Old::Unknown, |slot| slot.recorded)
    }

    /// A change that was frozen is committed.
    pub(crate) fn committed(&mut self, (name, value): &XattrChange, checkpoint: u64) {
        let Some(slot) = self.values.get_mut(name) else {
            return;
        };
        slot.pending = slot.pending.saturating_sub(1);
        slot.recorded = match value {
            Some(_) => Old::Born(checkpoint),
            None => Old::Absent,
        };
        if slot.pending == 0 && slot.value.is_none() {
            self.values.remove(name);
        }
    }
}

const CAPABILITY_NAME: &[u8] = b"security.capability";

/// Sets or removes an attribute in RAM. The gate and the state are held, and the attributes are loaded.
pub(crate) fn put_xattr(state: &mut State, name: &[u8], value: Option<Arc<[u8]>>) {
    let Some(xattrs) = &mut state.xattrs else { return };
    let name: Arc<[u8]> = name.into();
    match xattrs.values.get_mut(&name) {
        Some(slot) => {
            slot.value = value.clone();
            slot.pending += 1;
        }
        None if value.is_none() => return,
        None => {
            let slot = XattrSlot {
                value: value.clone(),
                recorded: Old::Absent,
                pending: 1,
            };
            xattrs.values.insert(name.clone(), slot);
        }
    }
    xattrs.log.push((name, value));
    let has = |wanted: &[u8]| xattrs.values.get(wanted).is_some_and(|slot| slot.value.is_some());
    let mut flags = state.inode.flags & !(HAS_XATTRS | HAS_ACL | HAS_DEFAULT_ACL | HAS_CAPABILITY);
    state.inode.xattrs = xattrs.values.values().filter(|slot| slot.value.is_some()).count() as u32;
    if state.inode.xattrs > 0 {
        flags |= HAS_XATTRS;
    }
    for (wanted, flag) in [
        (ACCESS_NAME, HAS_ACL),
        (DEFAULT_NAME, HAS_DEFAULT_ACL),
        (CAPABILITY_NAME, HAS_CAPABILITY),
    ] {
        if has(wanted) {
            flags |= flag;
        }
    }
    state.inode.flags = flags;
}

/// Drops what a write by anyone takes away: `security.capability`.
pub(crate) fn drop_capability(state: &mut State) {
    if state.inode.flags & HAS_CAPABILITY != 0 {
        put_xattr(state, CAPABILITY_NAME, None);
    }
}
