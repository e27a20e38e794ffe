//! `Entries`: the names of one directory in RAM: what changed since the last commit over what is cached of the records.
//!
//! Invariants: a name whose change is not committed yet (`pending > 0`) is always here, also as a removal; if the
//! directory is `complete`, a name that is not here does not exist; the log holds every change since the last freeze
//! in order, so that a freeze only takes it.

use std::{borrow::Borrow, cmp::Ordering, collections::BTreeMap, ops::Bound, sync::Arc};

use super::names::{NameCount, name_bytes};
use crate::records::{FileKind, Old, keys};

/// A name with its hash, ordered like the records.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameKey {
    pub(crate) hash: u64,
    pub(crate) name: Arc<[u8]>,
}

impl NameKey {
    pub(crate) fn new(name: &[u8]) -> Self {
        Self {
            hash: keys::entry_hash(name),
            name: name.into(),
        }
    }
}

/// Lets a map of [`NameKey`] be asked without making one.
pub(crate) trait AsKey {
    fn parts(&self) -> (u64, &[u8]);
}

impl AsKey for NameKey {
    fn parts(&self) -> (u64, &[u8]) {
        (self.hash, &self.name)
    }
}

impl AsKey for (u64, &[u8]) {
    fn parts(&self) -> (u64, &[u8]) {
        *self
    }
}

impl PartialEq for dyn AsKey + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn AsKey + '_ {}

impl PartialOrd for dyn AsKey + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn AsKey + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl<'a> Borrow<dyn AsKey + 'a> for NameKey {
    fn borrow(&self) -> &(dyn AsKey + 'a) {
        self
    }
}

/// What a name names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) object: u64,
    pub(crate) kind: FileKind,
}

#[derive(Debug)]
pub(crate) struct Slot {
    /// `None`: removed.
    pub(crate) target: Option<Target>,
    /// What the newest committed state has.
    pub(crate) recorded: Old,
    /// Changes in the log, or frozen, that are not committed.
    pub(crate) pending: u32,
}

/// A change of one name; `None` removes it.
pub(crate) type Change = (NameKey, Option<Target>);

/// What the cache says of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// It names this.
    Target(Target),
    /// It does not exist.
    Absent,
    /// Ask the records.
    Unknown,
}

/// See the module.
pub(crate) struct Entries {
    names: BTreeMap<NameKey, Slot>,
    count: Arc<NameCount>,
    pub(crate) log: Vec<Change>,
    pub(crate) complete: bool,
    /// Grows with every change: what was read from the records before is only cached if it is unchanged.
    pub(crate) version: u64,
}

impl Entries {
    /// Nothing is known of it; of one that was just made (`fresh`) there is nothing to know. Its names count in `count`.
    pub(crate) fn new(fresh: bool, count: &Arc<NameCount>) -> Self {
        Self {
            names: BTreeMap::new(),
            count: count.clone(),
            log: Vec::new(),
            complete: fresh,
            version: 0,
        }
    }

    pub(crate) fn slot(&self, hash: u64, name: &[u8]) -> Option<&Slot> {
        self.names.get(&(hash, name) as &dyn AsKey)
    }

    /// What is here behind a cookie, ascending.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = (&NameKey, &Slot)> {
        let from = (cookie.saturating_add(1), &[][..]);
        self.names
            .range::<dyn AsKey, _>((Bound::Included(&from as &dyn AsKey), Bound::Unbounded))
    }

    /// Looks a name up.
    pub(crate) fn find(&self, hash: u64, name: &[u8]) -> Found {
        match self.slot(hash, name) {
            Some(Slot {
                target: Some(target), ..
            }) => Found::Target(*target),
            Some(_) => Found::Absent,
            None if self.complete => Found::Absent,
            None => Found::Unknown,
        }
    }

    /// Sets or removes a name; `recorded` is what the records have if the name is not here.
    pub(crate) fn change(&mut self, key: NameKey, target: Option<Target>, recorded: Old) {
        self.version += 1;
        match self.names.get_mut(&key) {
            Some(slot) => {
                slot.target = target;
                slot.pending += 1;
            }
            None => {
                let recorded = if self.complete { Old::Absent } else { recorded };
                self.count.add(name_bytes(key.name.len()));
                self.names.insert(
                    key.clone(),
                    Slot {
                        target,
                        recorded,
                        pending: 1,
                    },
                );
            }
        }
        self.log.push((key, target));
    }

    /// Keeps what was read from the records, unless the name is here already.
    pub(crate) fn cache(&mut self, key: &NameKey, target: Target, birth: u64) {
        if !self.names.contains_key(key) {
            self.count.add(name_bytes(key.name.len()));
            self.names.insert(
                key.clone(),
                Slot {
                    target: Some(target),
                    recorded: Old::Born(birth),
                    pending: 0,
                },
            );
        }
    }

    /// A change was committed: the records now have `target` (of the last change of this name in that freeze).
    pub(crate) fn committed(&mut self, key: &NameKey, changes: u32, target: Option<Target>, checkpoint: u64) {
        self.version += 1;
        let Some(slot) = self.names.get_mut(key) else {
            return;
        };
        slot.pending = slot.pending.saturating_sub(changes);
        slot.recorded = if target.is_some() {
            Old::Born(checkpoint)
        } else {
            Old::Absent
        };
        if slot.pending == 0 && slot.target.is_none() {
            self.names.remove(key);
            self.count.sub(name_bytes(key.name.len()));
        }
    }

    /// Drops what is only cached. Returns how many names went.
    pub(crate) fn shrink(&mut self) -> usize {
        let before = self.names.len();
        self.complete = false;
        self.version += 1;
        let mut gone = 0;
        self.names.retain(|key, slot| {
            let stays = slot.pending > 0;
            gone += name_bytes(key.name.len()) * u64::from(!stays);
            stays
        });
        self.count.sub(gone);
        before - self.names.len()
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        if !self.names.is_empty() {
            self.count
                .sub(self.names.keys().map(|key| name_bytes(key.name.len())).sum());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::CacheShare;

    #[test]
    fn a_removal_stays_until_it_is_committed() {
        let share = Arc::new(CacheShare::new(1 << 20));
        let count = NameCount::new(share.clone());
        let mut entries = Entries::new(false, &count);
        let key = NameKey::new(b"a");
        assert_eq!(entries.find(key.hash, b"a"), Found::Unknown);
        entries.change(key.clone(), None, Old::Born(3));
        assert_eq!(entries.find(key.hash, b"a"), Found::Absent);
        assert_eq!(entries.shrink(), 0);
        let log = std::mem::take(&mut entries.log);
        let target = Target {
            object: 5,
            kind: FileKind::File,
        };
        entries.change(key.clone(), Some(target), Old::Unknown);
        entries.committed(&log[0].0, 1, log[0].1, 4);
        assert_eq!(entries.find(key.hash, b"a"), Found::Target(target));
        entries.committed(&key, 1, Some(target), 5);
        assert_eq!(entries.slot(key.hash, b"a").unwrap().recorded, Old::Born(5));
        assert_eq!(
            (count.bytes(), share.used_bytes()),
            (name_bytes(1), name_bytes(1))
        );
        assert_eq!(entries.shrink(), 1);
        assert_eq!(share.used_bytes(), 0);
        entries.cache(&key, target, 5);
        drop(entries);
        assert_eq!(share.used_bytes(), 0);
    }
}
