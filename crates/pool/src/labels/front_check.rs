//! The labels and roots of an open pool's devices, read and made whole again: without them a device whose content is sound is
//! found by no opening.
//!
//! Invariants: a copy that is as it should be is not written; what is written anew goes the way of any other label or root, so that
//! each device has an intact copy of both at every moment that it had one; nothing is written on a device that the labels
//! call absent: what it has tells how long it was away; checkpoints do not wait for what is read of roots.

use std::sync::Arc;

use super::relabel::Labels;
use crate::{
    PoolError, PoolId,
    devices::{Members, OpenDevice},
    ondisk::{LabelCopies, LabelError, ROOT_OFFSETS, Slot, read_slot},
    roots::{Roots, Slots},
};

/// How often roots are read again, since one was written meanwhile, until none is.
const UNDISTURBED_TRIES: usize = 4;

/// What was wrong with labels and roots of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontDamage {
    /// Number of the device.
    pub device: u16,
    /// Where it was opened.
    pub path: String,
    /// Each copy that was not as it should be, and why.
    pub found: Vec<String>,
    /// Those of them that are not either after they were written anew.
    pub left: Vec<String>,
}

/// The check of the fronts of all devices.
pub(crate) struct FrontCheck<'a> {
    pub(crate) members: &'a Members,
    pub(crate) labels: &'a Labels,
    pub(crate) roots: &'a Roots,
}

impl FrontCheck<'_> {
    /// Reads all, and writes anew what is not as it should be; see [`Pool::mend_fronts`](crate::Pool::mend_fronts).
    pub(crate) fn mend(&self) -> Result<Vec<FrontDamage>, PoolError> {
        let mut damage = self.mend_labels()?;
        for roots in self.mend_roots()? {
            match damage.iter_mut().find(|other| other.device == roots.device) {
                Some(labels) => {
                    labels.found.extend(roots.found);
                    labels.left.extend(roots.left);
                }
                None => damage.push(roots),
            }
        }
        Ok(damage)
    }

    fn mend_labels(&self) -> Result<Vec<FrontDamage>, PoolError> {
        let mut labels = self.labels.lock();
        let damage = counted(self.look(|device| self.bad_labels(device)));
        if damage.is_empty() || self.members.is_read_only() {
            return Ok(as_it_is(damage));
        }
        labels.write(labels.next(), self.members.open().to_vec())?;
        Ok(self.after(damage, |device| self.bad_labels(device)))
    }

    fn mend_roots(&self) -> Result<Vec<FrontDamage>, PoolError> {
        let damage = counted(self.look_at_roots());
        if damage.is_empty() || self.members.is_read_only() {
            return Ok(as_it_is(damage));
        }
        {
            // Once for each slot: the one with the newest root is never written over.
            let mut roots = self.roots.lock();
            for _ in ROOT_OFFSETS {
                roots.repeat(&[])?;
            }
        }
        let mut left = self.look_at_roots();
        let after = damage.into_iter().map(|(device, found)| {
            let is_it = |(other, _): &(Arc<OpenDevice>, _)| other.number == device.number;
            let bad = left.iter().position(is_it).map(|at| left.swap_remove(at).1);
            FrontDamage {
                left: describe(bad.unwrap_or_default()),
                ..damage_of(&device, found)
            }
        });
        Ok(after.collect())
    }

    /// Devices of which something is wrong with the roots. They are read while others may write some: what looks wrong then is
    /// believed if none was written meanwhile. Where that is so each time, none is in the end.
    fn look_at_roots(&self) -> Vec<(Arc<OpenDevice>, Vec<Bad>)> {
        let pool = self.members.read().label().pool_id;
        for _ in 0..UNDISTURBED_TRIES {
            let slots = self.roots.slots();
            let bad = self.look(|device| bad_roots(device, &pool, &slots));
            if bad.is_empty() || self.roots.slots() == slots {
                return bad;
            }
        }
        let roots = self.roots.lock();
        self.look(|device| bad_roots(device, &pool, &roots.slots()))
    }

    /// Devices of which something is wrong.
    fn look(&self, bad: impl Fn(&OpenDevice) -> Vec<Bad>) -> Vec<(Arc<OpenDevice>, Vec<Bad>)> {
        let open = self.members.open().to_vec();
        let looked = open.into_iter().map(|device| {
            let bad = bad(&device);
            (device, bad)
        });
        looked.filter(|(_, bad)| !bad.is_empty()).collect()
    }

    fn after(
        &self,
        damage: Vec<(Arc<OpenDevice>, Vec<Bad>)>,
        bad: impl Fn(&OpenDevice) -> Vec<Bad>,
    ) -> Vec<FrontDamage> {
        let after = damage.into_iter().map(|(device, found)| FrontDamage {
            left: describe(bad(&device)),
            ..damage_of(&device, found)
        });
        after.collect()
    }

    /// Label copies of a device that do not say what is in force.
    fn bad_labels(&self, device: &OpenDevice) -> Vec<Bad> {
        let in_force = self.members.label();
        let own = in_force.member(device.number).filter(|own| !own.is_absent());
        let Some(size_bytes) = own.map(|own| own.size_bytes) else {
            return Vec::new();
        };
        let copies = LabelCopies::read(device.raw()).copies;
        // At the end of a device that was cut short there is none; that it was is said elsewhere.
        let looked_at = copies.len() - usize::from(device.raw().size_bytes() < size_bytes);
        let bad = copies
            .into_iter()
            .take(looked_at)
            .enumerate()
            .filter_map(|(number, copy)| {
                let what = format!("label copy {number}");
                match copy {
                    Err(LabelError::Unreadable(cause)) => Some(Bad::unreadable(&what, &cause)),
                    Err(error) => Some(Bad::wrong(&what, &error)),
                    Ok(label) if label.number != device.number || label.pool_id != in_force.pool_id => {
                        Some(Bad::wrong(&what, &"it is that of another device"))
                    }
                    // A change that did not get further leaves a newer one in copy 0.
                    Ok(label) if label.generation < in_force.generation => {
                        Some(Bad::wrong(&what, &"it is out of date"))
                    }
                    Ok(_) => None,
                }
            });
        bad.collect()
    }
}

/// A copy that is not as it should be.
struct Bad {
    words: String,
    is_unreadable: bool,
}

impl Bad {
    fn unreadable(what: &str, cause: &dyn std::fmt::Display) -> Self {
        Self {
            words: format!("{what}: {cause}"),
            is_unreadable: true,
        }
    }

    fn wrong(what: &str, cause: &dyn std::fmt::Display) -> Self {
        Self {
            words: format!("{what}: {cause}"),
            is_unreadable: false,
        }
    }
}

/// Copies of root slots that are not what was written there.
fn bad_roots(device: &OpenDevice, pool: &PoolId, slots: &Slots) -> Vec<Bad> {
    let mut bad = Vec::new();
    // One that holds none has nothing to lose: what lies there is looked at when it is written.
    let Some((newest, generation)) = slots.of(device.number) else {
        return bad;
    };
    for (slot, copies) in ROOT_OFFSETS.iter().enumerate() {
        let read = copies.map(|offset| read_slot(device.raw(), offset, pool));
        // Of the older one nothing is known but that both copies are the same, if it was ever written.
        let was_written = slot == newest || read.iter().any(|copy| !matches!(copy, Slot::Empty));
        for (copy, read) in read.iter().enumerate() {
            let what = format!("root slot {slot}, copy {copy}");
            match read {
                Slot::Unreadable(cause) => bad.push(Bad::unreadable(&what, cause)),
                Slot::Damaged(cause) => bad.push(Bad::wrong(&what, cause)),
                Slot::Newer(_) => bad.push(Bad::wrong(&what, &"a newer terrace wrote it")),
                Slot::Empty if was_written => bad.push(Bad::wrong(&what, &"nothing is there")),
                Slot::Root(root) if slot == newest && root.generation != generation => {
                    bad.push(Bad::wrong(&what, &"it is out of date"));
                }
                Slot::Empty | Slot::Root(_) => {}
            }
        }
    }
    bad
}

/// The same, counted on the devices.
fn counted(wrong: Vec<(Arc<OpenDevice>, Vec<Bad>)>) -> Vec<(Arc<OpenDevice>, Vec<Bad>)> {
    for (device, bad) in &wrong {
        for bad in bad {
            match bad.is_unreadable {
                true => device.note_read_error(),
                false => device.note_checksum_error(),
            }
            tracing::warn!(device = device.path(), "{}", bad.words);
        }
    }
    wrong
}

fn describe(bad: Vec<Bad>) -> Vec<String> {
    bad.into_iter().map(|bad| bad.words).collect()
}

fn damage_of(device: &OpenDevice, found: Vec<Bad>) -> FrontDamage {
    FrontDamage {
        device: device.number,
        path: device.path(),
        found: describe(found),
        left: Vec::new(),
    }
}

/// Nothing was written anew.
fn as_it_is(damage: Vec<(Arc<OpenDevice>, Vec<Bad>)>) -> Vec<FrontDamage> {
    let damage = damage.into_iter().map(|(device, found)| {
        let found = damage_of(&device, found);
        FrontDamage {
            left: found.found.clone(),
            ..found
        }
    });
    damage.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{OnceLock, Weak};

    use terrace_device::{Device, DeviceError, MemoryDevice, SeededRandomness};
    use terrace_sync::{Mutex, rank};

    use super::*;
    use crate::{CreateOptions, Parallelism, Pool, TierSettings};

    /// While roots are read of it, somebody writes some.
    struct Busy {
        memory: MemoryDevice,
        pool: OnceLock<Weak<Pool>>,
        /// Roots that are still to be written, and those for which there was no lock.
        to_write: Mutex<(usize, usize), rank::Leaf>,
    }

    impl Device for Busy {
        fn path(&self) -> String {
            self.memory.path()
        }
        fn size_bytes(&self) -> u64 {
            self.memory.size_bytes()
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
            let read = self.memory.read_at(offset, buffer);
            let pool = self.pool.get().and_then(Weak::upgrade);
            let is_root = ROOT_OFFSETS.iter().flatten().any(|start| *start == offset);
            if let Some(pool) = pool.filter(|_| is_root) {
                let is_free = !pool.is_writing_root();
                let is_left = {
                    let mut to_write = self.to_write.lock();
                    let is_left = is_free && to_write.0 > 0;
                    to_write.0 -= usize::from(is_left);
                    to_write.1 += usize::from(!is_free);
                    is_left
                };
                if is_left {
                    terrace_sync::as_another_thread(|| pool.write_root(b"beside")).unwrap();
                }
            }
            read
        }
        fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
            self.memory.write_at(offset, data)
        }
        fn flush(&self) -> Result<(), DeviceError> {
            self.memory.flush()
        }
        fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
            self.memory.discard(offset, length)
        }
    }

    #[test]
    fn roots_are_written_while_they_are_read_and_neither_waits_nor_calls_the_other_damaged() {
        let device = Arc::new(Busy {
            memory: MemoryDevice::new("/busy", 64 << 20),
            pool: OnceLock::new(),
            to_write: Mutex::new((0, 0)),
        });
        let create = CreateOptions {
            name: "tank".into(),
            tiers: vec![(
                TierSettings::named("only"),
                vec![device.clone() as Arc<dyn Device>],
            )],
            properties: Default::default(),
            segment_bytes: None,
            created_nanoseconds: 1,
            force: false,
            parallelism: Parallelism::Sequential,
        };
        let pool = Arc::new(Pool::create(create, &SeededRandomness::new(7)).unwrap());
        (0..2).for_each(|_| pool.write_root(b"root").unwrap());
        device.pool.set(Arc::downgrade(&pool)).unwrap();
        *device.to_write.lock() = (2, 0);
        assert_eq!(pool.mend_fronts().unwrap(), []);
        assert_eq!(*device.to_write.lock(), (0, 0));

        // What is damaged is found all the same.
        device.memory.write_at(ROOT_OFFSETS[1][1], &[9; 4096]).unwrap();
        let damage = pool.mend_fronts().unwrap();
        assert_eq!(damage.len(), 1, "{damage:?}");
        assert_eq!(
            (damage[0].found.len(), damage[0].left.len()),
            (1, 0),
            "{damage:?}"
        );
        assert_eq!(device.to_write.lock().1, 0);
        assert_eq!(pool.mend_fronts().unwrap(), []);
    }
}
