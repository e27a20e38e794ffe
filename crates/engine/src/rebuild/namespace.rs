//! Names, attributes and pins of one dataset, put together so that they agree with each other and with its objects.
//!
//! Invariants: every entry names an object that exists and every object has a name (or is unlinked and open, as it was);
//! directories form a tree below the root; links, sizes of directories, mapped blocks and numbers of attributes are
//! counted; what lost its name lies in `lost+found`, under its number; an object whose inode is lost gets one that only
//! its owner (root) can use.

mod findings;

use std::collections::{BTreeSet, HashMap};

use terrace_chunk::Salvaged;
use terrace_dataset::{
    EntryRecord, FileKind, InodeRecord, Kind, OrphanRecord, Time, join_value, keys, split_value,
};
use terrace_store::Batch;

use self::findings::{damage, note};
use super::{
    RebuildOptions, RebuildReport,
    content::Content,
    datasets::{Known, each},
    objects::{Object, Objects, object_at},
    regions::{Body, Placed},
};
use crate::EngineError;

/// Records of one batch.
const RECORDS: usize = 1024;
/// Where things go that lost their name.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// What was counted.
pub(super) struct Counted {
    pub(super) objects: u64,
    pub(super) next_object: u64,
}

impl Objects {
    /// Places all records but regions.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn place(
        &mut self,
        salvaged: &Salvaged,
        known: &mut Known,
        placed: &Placed,
        tiers: &BTreeSet<String>,
        options: RebuildOptions,
        content: &mut Content<'_>,
        report: &mut RebuildReport,
    ) -> Result<Counted, EngineError> {
        known.checkpoint = known.checkpoint.max(placed.newest_checkpoint.saturating_add(1));
        self.make_up(known, placed);
        let mut pass = Pass {
            salvaged,
            known,
            placed,
            options,
            content,
            report,
            batch: Batch::new(),
            waiting: 0,
            names: HashMap::new(),
            found: BTreeSet::new(),
        };
        pass.entries(self)?;
        pass.untangle(self)?;
        pass.adopt(self)?;
        pass.attributes(self)?;
        pass.others(self, tiers)?;
        pass.inodes(self)?;
        let batch = std::mem::take(&mut pass.batch);
        pass.content.commit(batch)?;
        pass.tell(self);
        let last = self.all.keys().next_back().copied().unwrap_or(keys::ROOT_OBJECT);
        let body = placed.bodies.keys().next_back().copied().unwrap_or(0);
        Ok(Counted {
            objects: self.all.len() as u64,
            next_object: last.max(body).saturating_add(1),
        })
    }
}

/// The work on one dataset.
struct Pass<'p, 'c> {
    salvaged: &'p Salvaged,
    known: &'p Known,
    placed: &'p Placed,
    options: RebuildOptions,
    content: &'p mut Content<'c>,
    report: &'p mut RebuildReport,
    batch: Batch,
    waiting: usize,
    /// Directory and name of directories, and of files that the report may have to name.
    names: HashMap<u64, (u64, Vec<u8>)>,
    /// Objects that were put into `lost+found`.
    found: BTreeSet<u64>,
}

impl Pass<'_, '_> {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), EngineError> {
        self.batch.put(key, value);
        self.waiting += 1;
        if self.waiting < RECORDS {
            return Ok(());
        }
        self.waiting = 0;
        let batch = std::mem::take(&mut self.batch);
        self.content.commit(batch)
    }

    fn body(&self, object: &Object) -> Body {
        self.placed.bodies.get(&object.body).copied().unwrap_or_default()
    }

    /// Places the names of objects that exist.
    fn entries(&mut self, objects: &mut Objects) -> Result<(), EngineError> {
        if self.known.record.kind.is_volume() {
            return Ok(());
        }
        let salvaged = self.salvaged;
        let range = keys::dataset_range(keys::TABLE_ENTRY, self.known.number);
        each(salvaged, range, |key, value| {
            let Some(directory) = object_at(key) else {
                return Ok(());
            };
            let decoded = keys::parse_entry(key).and_then(|(_, name)| {
                let (birth, payload) = split_value(value)?;
                Ok((name.to_vec(), birth, EntryRecord::decode(payload)?))
            });
            let Ok((name, birth, entry)) = decoded else {
                let reason = "its directory entry cannot be read".to_owned();
                let path = self.known.path(&format!("(object {directory})/?"));
                note(
                    &mut self.report.lost,
                    &mut self.report.lists_complete,
                    path,
                    reason,
                );
                return Ok(());
            };
            let Some(kind) = objects.all.get(&entry.object).map(|object| object.kind) else {
                // The directory is placed under its number if its own name is lost: this says where to look.
                self.names.insert(entry.object, (directory, name));
                self.found.remove(&entry.object);
                objects.unreadable.insert(entry.object);
                return Ok(());
            };
            let child_is_directory = kind == FileKind::Directory;
            let second = child_is_directory
                && objects
                    .all
                    .get(&entry.object)
                    .is_some_and(|child| child.parent != 0);
            if second || entry.object == keys::ROOT_OBJECT {
                return Ok(());
            }
            let above = objects.all.entry(directory).or_insert_with(|| Object {
                kind: FileKind::Directory,
                body: directory,
                made_up: true,
                ..Object::default()
            });
            if above.kind != FileKind::Directory {
                // A file that something lies in: its inode was made up for its content alone, or is older.
                if !above.made_up {
                    return Ok(());
                }
                above.kind = FileKind::Directory;
            }
            above.entries += 1;
            above.directories += u32::from(child_is_directory);
            let Some(child) = objects.all.get_mut(&entry.object) else {
                return Ok(());
            };
            child.links = child.links.saturating_add(1);
            child.orphan = false;
            if child_is_directory {
                child.parent = directory;
            }
            let body = self.placed.bodies.get(&child.body).copied().unwrap_or_default();
            let told = damage(child, &body).is_some() || body.lost_in_history > 0;
            if child_is_directory || self.options.list_saved || told {
                self.names.insert(entry.object, (directory, name));
            }
            let record = EntryRecord { kind, ..entry };
            self.put(key.to_vec(), join_value(birth, &record.encode()))
        })
    }

    /// Takes directories that lie within themselves out of where they are.
    fn untangle(&mut self, objects: &mut Objects) -> Result<(), EngineError> {
        let mut good: BTreeSet<u64> = BTreeSet::from([keys::ROOT_OBJECT]);
        let directories: Vec<u64> = objects
            .all
            .iter()
            .filter(|(_, object)| object.kind == FileKind::Directory)
            .map(|(number, _)| *number)
            .collect();
        for start in directories {
            let mut path = BTreeSet::new();
            let mut at = start;
            while !good.contains(&at) && path.insert(at) {
                at = objects.all.get(&at).map_or(0, |object| object.parent);
                if at == 0 {
                    break;
                }
            }
            if at != 0 && !good.contains(&at) {
                if let Some((directory, name)) = self.names.get(&at).cloned() {
                    self.batch
                        .delete(keys::entry(self.known.number, directory, &name));
                    if let Some(above) = objects.all.get_mut(&directory) {
                        above.entries = above.entries.saturating_sub(1);
                        above.directories = above.directories.saturating_sub(1);
                    }
                }
                if let Some(object) = objects.all.get_mut(&at) {
                    (object.parent, object.links) = (0, 0);
                }
            }
            good.extend(path);
        }
        Ok(())
    }

    /// Gives names to what has none.
    fn adopt(&mut self, objects: &mut Objects) -> Result<(), EngineError> {
        let nameless: Vec<u64> = objects
            .all
            .iter()
            .filter(|(number, object)| object.links == 0 && !object.orphan && **number != keys::ROOT_OBJECT)
            .map(|(number, _)| *number)
            .collect();
        if nameless.is_empty() {
            return Ok(());
        }
        if self.known.record.kind.is_volume() {
            // A volume has one object; others are older contents that were being freed.
            for number in nameless {
                objects.all.remove(&number);
            }
            return Ok(());
        }
        let place = self
            .names
            .iter()
            .find(|(_, (directory, name))| *directory == keys::ROOT_OBJECT && name == LOST_AND_FOUND)
            .map(|(number, _)| *number)
            .filter(|number| {
                objects
                    .all
                    .get(number)
                    .is_some_and(|object| object.kind == FileKind::Directory)
            });
        let place = match place {
            Some(place) => place,
            None => {
                let last = objects
                    .all
                    .keys()
                    .next_back()
                    .copied()
                    .unwrap_or(keys::ROOT_OBJECT);
                let place = last.max(self.known.next_object).saturating_add(1);
                objects.all.insert(
                    place,
                    Object {
                        kind: FileKind::Directory,
                        body: place,
                        made_up: true,
                        ..Object::default()
                    },
                );
                self.name(objects, keys::ROOT_OBJECT, place, LOST_AND_FOUND)?;
                self.found.insert(place);
                place
            }
        };
        for number in nameless {
            let name = format!("object-{number}");
            self.name(objects, place, number, name.as_bytes())?;
            self.found.insert(number);
            let path = format!("{}/{name}", String::from_utf8_lossy(LOST_AND_FOUND));
            let object = objects.all.get(&number).cloned().unwrap_or_default();
            let reason = if object.made_up {
                "its name and attributes are lost"
            } else {
                "its name is lost"
            };
            let path = self.known.path(&path);
            note(
                &mut self.report.found,
                &mut self.report.lists_complete,
                path,
                reason.into(),
            );
        }
        Ok(())
    }

    fn name(
        &mut self,
        objects: &mut Objects,
        directory: u64,
        number: u64,
        name: &[u8],
    ) -> Result<(), EngineError> {
        let Some(child) = objects.all.get_mut(&number) else {
            return Ok(());
        };
        child.links = 1;
        let kind = child.kind;
        if kind == FileKind::Directory {
            child.parent = directory;
        }
        if let Some(above) = objects.all.get_mut(&directory) {
            above.entries += 1;
            above.directories += u32::from(kind == FileKind::Directory);
        }
        self.names.insert(number, (directory, name.to_vec()));
        let record = EntryRecord { object: number, kind };
        let key = keys::entry(self.known.number, directory, name);
        self.put(key, join_value(self.known.checkpoint, &record.encode()))
    }

    fn attributes(&mut self, objects: &mut Objects) -> Result<(), EngineError> {
        let salvaged = self.salvaged;
        let range = keys::dataset_range(keys::TABLE_XATTR, self.known.number);
        each(salvaged, range, |key, value| {
            let valid = keys::parse_xattr(key).is_ok() && split_value(value).is_ok();
            let Some(number) = object_at(key).filter(|_| valid) else {
                return Ok(());
            };
            match objects.all.get_mut(&number) {
                Some(object) => object.attributes += 1,
                // Those of an object that is being freed go with it.
                None if objects.freed.is_empty() => return Ok(()),
                None => {}
            }
            self.put(key.to_vec(), value.to_vec())
        })
    }

    /// Orphans, heat and pins, as they were.
    fn others(&mut self, objects: &Objects, tiers: &BTreeSet<String>) -> Result<(), EngineError> {
        let salvaged = self.salvaged;
        for table in [keys::TABLE_ORPHAN, keys::TABLE_HEAT, keys::TABLE_PIN] {
            each(
                salvaged,
                keys::dataset_range(table, self.known.number),
                |key, value| {
                    let keep = match table {
                        keys::TABLE_ORPHAN => match (keys::parse_orphan(key), OrphanRecord::decode(value)) {
                            (Ok((_, number)), Ok(OrphanRecord::Open)) => {
                                objects.all.get(&number).is_some_and(|object| object.orphan)
                            }
                            (Ok(_), Ok(OrphanRecord::Freed { .. })) => true,
                            _ => false,
                        },
                        keys::TABLE_PIN => tiers.contains(&*String::from_utf8_lossy(value)),
                        _ => keys::parse_pin(key).is_ok(),
                    };
                    if keep {
                        self.put(key.to_vec(), value.to_vec())
                    } else {
                        Ok(())
                    }
                },
            )?;
        }
        Ok(())
    }

    /// Places the inodes with what was counted.
    fn inodes(&mut self, objects: &Objects) -> Result<(), EngineError> {
        let salvaged = self.salvaged;
        let range = keys::dataset_range(keys::TABLE_INODE, self.known.number);
        each(salvaged, range, |key, value| {
            let Some((number, object)) =
                object_at(key).and_then(|number| Some((number, objects.all.get(&number)?)))
            else {
                return Ok(());
            };
            let Ok((birth, mut inode)) =
                split_value(value).and_then(|(birth, payload)| Ok((birth, InodeRecord::decode(payload)?)))
            else {
                return Ok(());
            };
            self.correct(number, object, &mut inode);
            self.put(key.to_vec(), join_value(birth, &inode.encode()))
        })?;
        for (number, object) in objects.all.iter().filter(|(_, object)| object.made_up) {
            let directory = object.kind == FileKind::Directory;
            let mode = if directory { 0o700 } else { 0o600 };
            let mut inode = InodeRecord::new(object.kind, mode, 0, 0, Time::default());
            inode.body = object.body;
            inode.size = match (object.kind, self.known.record.kind) {
                (FileKind::Volume, Kind::Volume { size_bytes }) => size_bytes,
                _ => self.body(object).end,
            };
            self.correct(*number, object, &mut inode);
            let value = join_value(self.known.checkpoint, &inode.encode());
            self.put(keys::inode(self.known.number, *number), value)?;
        }
        Ok(())
    }

    fn correct(&self, number: u64, object: &Object, inode: &mut InodeRecord) {
        let body = self.body(object);
        inode.kind = object.kind;
        inode.blocks = body.mapped - body.lost;
        inode.xattrs = object.attributes;
        // Whether the new pool has room for it nobody asked.
        inode.preallocated = None;
        match object.kind {
            FileKind::Directory => {
                inode.size = object.entries;
                inode.links = 2u32.saturating_add(object.directories);
                inode.parent = if number == keys::ROOT_OBJECT {
                    inode.parent
                } else {
                    object.parent
                };
            }
            FileKind::Volume => {}
            _ => inode.links = object.links,
        }
    }
}
