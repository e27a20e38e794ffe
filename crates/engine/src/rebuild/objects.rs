//! `Objects`: what was found of each object of a dataset that is rebuilt, and what is made up where too little was found.
//!
//! Invariants: there is a root, and it is what the dataset is; content whose inode is lost has an object of its own; an
//! object that is being freed is none.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use terrace_chunk::Salvaged;
use terrace_dataset::{FileKind, InodeRecord, OrphanRecord, keys, split_value};

use super::{
    RebuildReport,
    datasets::{Known, each},
    regions::Placed,
};
use crate::EngineError;

/// What is known of an object, and what was counted of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Object {
    pub(super) kind: FileKind,
    pub(super) body: u64,
    /// Mapped blocks, as the inode says.
    pub(super) blocks: u64,
    /// The inode is lost: this one is made up.
    pub(super) made_up: bool,
    pub(super) orphan: bool,
    pub(super) links: u32,
    pub(super) entries: u64,
    pub(super) directories: u32,
    pub(super) attributes: u32,
    pub(super) attributes_said: u32,
    pub(super) entries_said: u64,
    /// The directory in which a directory lies.
    pub(super) parent: u64,
}

/// The objects of one dataset.
pub(super) struct Objects {
    pub(super) all: BTreeMap<u64, Object>,
    /// Body → object, where they differ.
    owners: HashMap<u64, u64>,
    /// Bodies that are being freed.
    pub(super) freed: BTreeSet<u64>,
    pub(super) unreadable: BTreeSet<u64>,
}

impl Objects {
    /// Reads the inodes.
    pub(super) fn read(
        salvaged: &Salvaged,
        known: &Known,
        report: &mut RebuildReport,
    ) -> Result<Self, EngineError> {
        let mut objects = Self {
            all: BTreeMap::new(),
            owners: HashMap::new(),
            freed: BTreeSet::new(),
            unreadable: BTreeSet::new(),
        };
        each(
            salvaged,
            keys::dataset_range(keys::TABLE_INODE, known.number),
            |key, value| {
                let Some(number) = object_at(key) else {
                    return Ok(());
                };
                let Ok(inode) = split_value(value).and_then(|(_, payload)| InodeRecord::decode(payload))
                else {
                    objects.unreadable.insert(number);
                    return Ok(());
                };
                if inode.body != number {
                    objects.owners.insert(inode.body, number);
                }
                let object = Object {
                    kind: inode.kind,
                    body: inode.body,
                    blocks: inode.blocks,
                    attributes_said: inode.xattrs,
                    entries_said: if inode.kind == FileKind::Directory {
                        inode.size
                    } else {
                        0
                    },
                    ..Object::default()
                };
                objects.all.insert(number, object);
                Ok(())
            },
        )?;
        each(
            salvaged,
            keys::dataset_range(keys::TABLE_ORPHAN, known.number),
            |key, value| {
                let Ok((_, number)) = keys::parse_orphan(key) else {
                    return Ok(());
                };
                match OrphanRecord::decode(value) {
                    Ok(OrphanRecord::Open) => {
                        if let Some(object) = objects.all.get_mut(&number) {
                            object.orphan = true;
                        }
                    }
                    Ok(OrphanRecord::Freed { .. }) => drop(objects.freed.insert(number)),
                    Err(_) => {}
                }
                Ok(())
            },
        )?;
        if !objects.unreadable.is_empty() {
            report.problems.push(format!(
                "{} inodes of '{}' cannot be read",
                objects.unreadable.len(),
                known.path("")
            ));
        }
        Ok(objects)
    }

    /// The object that a body belongs to.
    pub(super) fn object_of(&self, body: u64) -> u64 {
        self.owners.get(&body).copied().unwrap_or(body)
    }

    /// The body of an object, and the blocks that its inode says it has (`None`: there is no inode).
    pub(super) fn content_of(&self, object: u64) -> (u64, Option<u64>) {
        match self.all.get(&object) {
            Some(known) => (known.body, Some(known.blocks)),
            None => (object, None),
        }
    }

    /// Makes objects up for content without an inode, and the root if it is lost.
    pub(super) fn make_up(&mut self, known: &Known, placed: &Placed) {
        let bodies: BTreeSet<u64> = self.all.values().map(|object| object.body).collect();
        let homeless = placed.bodies.iter().filter(|(body, facts)| {
            facts.mapped > facts.lost && !bodies.contains(body) && !self.freed.contains(body)
        });
        let homeless: Vec<u64> = homeless.map(|(body, _)| *body).collect();
        for body in homeless {
            let next = self
                .all
                .keys()
                .next_back()
                .map_or(2, |last| last.saturating_add(1));
            let taken = self.all.contains_key(&body);
            let number = if taken { next.max(known.next_object) } else { body };
            self.all.insert(
                number,
                Object {
                    body,
                    made_up: true,
                    ..Object::default()
                },
            );
        }
        let volume = known.record.kind.is_volume();
        let root = self.all.entry(keys::ROOT_OBJECT).or_insert_with(|| Object {
            body: keys::ROOT_OBJECT,
            made_up: true,
            ..Object::default()
        });
        root.kind = if volume {
            FileKind::Volume
        } else {
            FileKind::Directory
        };
        root.orphan = false;
    }
}

pub(super) fn object_at(key: &[u8]) -> Option<u64> {
    let number: [u8; 8] = key.get(5..13)?.try_into().ok()?;
    Some(u64::from_be_bytes(number))
}
