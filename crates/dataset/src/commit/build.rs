//! Building: turns what was frozen into chunks and one batch.
//!
//! Invariants: one freeze is one batch, so that a crash shows it wholly or not at all; deletions
//! work on a full pool.

use super::{
    chunk_writer::ChunkWriter,
    content::{Placed, Writer},
    freeze::{Frozen, FrozenObject},
    preallocated_count::Counting,
};
use crate::{
    live::{CachedRegion, DatasetState, Fragment, ObjectTable},
    objects::HAS_XATTRS,
    posix::FsError,
    records::{EntryRecord, FileKind, Old, OrphanRecord, Preallocated, REGION_BYTES, VersionedBatch, keys},
};
use std::{collections::BTreeMap, sync::Arc};

use terrace_store::Sequence;

/// A deleted file up to this size is freed by its own batch; a larger one by the sweep.
pub(crate) const FREED_AT_ONCE_BYTES: u64 = 16 << 20;
/// Names whose state is looked up under one lock of the directory.
pub(super) const NAMES_AT_ONCE: usize = 64;

/// What a commit changed, for the objects in RAM to take over.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) regions: Vec<((u64, u64), CachedRegion)>,
    /// By place in the frozen list: mapped blocks of the inode as it was put.
    pub(super) blocks: Vec<Option<u64>>,
    /// Whether anything is left to the sweep.
    pub(super) orphans: bool,
    /// What it left in pieces.
    pub(super) fragments: Vec<(Fragment, u16)>,
    /// The first chunk that it may have made.
    pub(super) next_chunk: u64,
    /// By place in the frozen list: what is preallocated of those that had or have something.
    pub(super) preallocated: BTreeMap<usize, Option<Box<Preallocated>>>,
}

/// What the records have of an object.
struct Recorded {
    inode: Old,
    size: u64,
    body: u64,
    blocks: u64,
    orphan: bool,
    preallocated: Option<Box<Preallocated>>,
}

/// Builds a batch of what was frozen.
pub(super) struct Builder {
    pub(super) dataset: Arc<DatasetState>,
    pub(super) table: Arc<ObjectTable>,
    pub(super) chunks: Arc<ChunkWriter>,
}

impl Builder {
    /// Writes the chunks, builds the batch and commits it. On an error nothing of it is visible.
    pub(super) fn build_and_commit(&self, frozen: &Frozen) -> Result<(Sequence, Outcome), FsError> {
        // What is made from here on is stored as what is preallocated by now says.
        let next_chunk = self.dataset.store().next_chunk().0;
        let store = self.dataset.store().as_ref();
        let (placed, written) = Writer::write_all(&self.chunks, store, self.dataset.settings(), frozen)?;
        let mut batch = self.dataset.batch(frozen.checkpoint);
        let mut outcome = Outcome {
            next_chunk,
            ..Outcome::default()
        };
        let mut rest = &placed[..];
        for (at, object) in frozen.objects.iter().enumerate() {
            let (mine, others) = rest.split_at(rest.partition_point(|place| place.object == at));
            rest = others;
            let blocks = self.build_object(&mut batch, at, object, mine, &mut outcome)?;
            outcome.blocks.push(blocks);
        }
        let layers = frozen.objects.iter().filter_map(|object| object.data.as_ref());
        let ahead = layers.flat_map(|layer| layer.ahead().values().cloned());
        for chunk in written.into_iter().chain(ahead) {
            batch.hold(chunk);
        }
        for (key, value) in &frozen.riders {
            batch.put_plain(key.clone(), value.clone());
        }
        // Deletions must work on a full pool, and room was taken for everything else.
        batch.privileged();
        batch.count_promised(frozen.promised);
        let sequence = self.dataset.commit(batch)?;
        Ok((sequence, outcome))
    }

    fn build_object(
        &self,
        batch: &mut VersionedBatch,
        at: usize,
        frozen: &FrozenObject,
        placed: &[Placed],
        outcome: &mut Outcome,
    ) -> Result<Option<u64>, FsError> {
        let number = frozen.object.number;
        self.build_entries(batch, frozen)?;
        let was = {
            let state = frozen.object.state();
            Recorded {
                inode: state.recorded,
                size: state.recorded_size,
                body: state.recorded_body,
                blocks: state.inode.blocks,
                orphan: state.orphan_recorded,
                preallocated: state.recorded_preallocated.clone(),
            }
        };
        if frozen.freed {
            if was.inode != Old::Absent {
                self.build_removal(batch, frozen, &was, outcome)?;
            }
            let newest_snapshot = self.dataset.newest_snapshot();
            batch.count_preallocated(was.preallocated.as_deref(), None, newest_snapshot);
            return Ok(None);
        }
        for (name, value, old) in self.xattr_changes(frozen) {
            match value {
                Some(value) => batch.put_xattr(number, &name, &value, old)?,
                None if old != Old::Absent => batch.delete_xattr(number, &name, old)?,
                None => {}
            }
        }
        let mut blocks = was.blocks;
        let replaced = was.inode != Old::Absent && was.body != frozen.inode.body;
        if replaced {
            let freed = OrphanRecord::Freed {
                object: 0,
                death: batch.checkpoint(),
                blocks,
            };
            batch.put_orphan(was.body, freed);
            outcome.orphans = true;
            blocks = 0;
        }
        let newest_snapshot = self.dataset.newest_snapshot();
        let next_chunk = outcome.next_chunk;
        let mut counting = match frozen.inode_dirty {
            true => Counting::begin(
                frozen,
                was.preallocated.clone(),
                replaced,
                newest_snapshot,
                next_chunk,
            ),
            // Only then its record is put.
            false => None,
        };
        if let Some(layer) = &frozen.data {
            let fresh = replaced || was.inode == Old::Absent;
            let change = self.build_regions(
                batch,
                frozen,
                layer,
                placed,
                fresh,
                was.size,
                &mut counting,
                outcome,
            )?;
            blocks = blocks.saturating_add_signed(change);
        }
        let mut preallocated = None;
        if let Some(counting) = counting {
            let (now, was) = counting.end(&self.dataset, frozen.inode.body)?;
            batch.count_preallocated(was.as_deref(), now.as_deref(), newest_snapshot);
            outcome.preallocated.insert(at, now.clone());
            preallocated = now;
        }
        if frozen.inode_dirty {
            let mut inode = frozen.inode.clone();
            inode.blocks = blocks;
            inode.preallocated = preallocated;
            batch.put_inode(number, &inode, was.inode)?;
            if was.inode == Old::Absent {
                batch.count_objects(1);
            }
            match (inode.links == 0, was.orphan) {
                (true, false) => batch.put_orphan(number, OrphanRecord::Open),
                (false, true) => batch.delete_orphan(number),
                _ => {}
            }
        }
        Ok(Some(blocks))
    }

    /// The last change of each name, with what the records have now.
    fn build_entries(&self, batch: &mut VersionedBatch, frozen: &FrozenObject) -> Result<(), FsError> {
        if frozen.entries.is_empty() {
            return Ok(());
        }
        let directory = frozen.object.number;
        let mut last: Vec<usize> = (0..frozen.entries.len()).collect();
        last.sort_by(|a, b| frozen.entries[*a].0.cmp(&frozen.entries[*b].0).then(a.cmp(b)));
        let last: Vec<usize> = last
            .iter()
            .enumerate()
            .filter(|(at, change)| {
                last.get(at + 1)
                    .is_none_or(|next| frozen.entries[*next].0 != frozen.entries[**change].0)
            })
            .map(|(_, change)| *change)
            .collect();
        for some in last.chunks(NAMES_AT_ONCE) {
            let recorded: Vec<Old> = {
                let state = frozen.object.state();
                let entries = state.entries.as_ref();
                let old = |at: &usize| {
                    let key = &frozen.entries[*at].0;
                    entries
                        .and_then(|entries| entries.slot(key.hash, &key.name))
                        .map_or(Old::Unknown, |slot| slot.recorded)
                };
                some.iter().map(old).collect()
            };
            for (at, old) in some.iter().zip(recorded) {
                let (key, target) = &frozen.entries[*at];
                match target {
                    Some(target) => {
                        let entry = EntryRecord {
                            object: target.object,
                            kind: target.kind,
                        };
                        batch.put_entry(directory, &key.name, entry, old)?;
                    }
                    None if old != Old::Absent => batch.delete_entry(directory, &key.name, old)?,
                    None => {}
                }
            }
        }
        Ok(())
    }

    #[allow(clippy::type_complexity)]
    fn xattr_changes(&self, frozen: &FrozenObject) -> Vec<(Arc<[u8]>, Option<Arc<[u8]>>, Old)> {
        if frozen.xattrs.is_empty() {
            return Vec::new();
        }
        let last: BTreeMap<_, _> = frozen.xattrs.iter().map(|(name, value)| (name, value)).collect();
        let state = frozen.object.state();
        let old = |name: &Arc<[u8]>| {
            let xattrs = state.xattrs.as_ref();
            xattrs.map_or(Old::Unknown, |xattrs| xattrs.recorded(name))
        };
        last.into_iter()
            .map(|(name, value)| (name.clone(), value.clone(), old(name)))
            .collect()
    }

    /// The records of an object that nothing names any more.
    fn build_removal(
        &self,
        batch: &mut VersionedBatch,
        frozen: &FrozenObject,
        was: &Recorded,
        outcome: &mut Outcome,
    ) -> Result<(), FsError> {
        let number = frozen.object.number;
        batch.delete_inode(number, was.inode)?;
        batch.count_objects(-1);
        if was.orphan {
            batch.delete_orphan(number);
        }
        let has_content = matches!(frozen.inode.kind, FileKind::File) && was.size > 0;
        if has_content && was.size > FREED_AT_ONCE_BYTES {
            let freed = OrphanRecord::Freed {
                object: 0,
                death: batch.checkpoint(),
                blocks: was.blocks,
            };
            batch.put_orphan(was.body, freed);
            outcome.orphans = true;
        } else if has_content {
            for region in 0..was.size.div_ceil(REGION_BYTES) {
                let old = self.table.region(was.body, region)?;
                if let Some(record) = &old.record {
                    batch.put_region(was.body, region, Some((old.birth, record)), None);
                    outcome.regions.push((
                        (was.body, region),
                        CachedRegion {
                            birth: 0,
                            record: None,
                            shared: None,
                        },
                    ));
                }
            }
        }
        // What the records have, not what RAM has: changes of attributes before the removal were never put.
        let may_have_xattrs = frozen.inode.flags & HAS_XATTRS != 0 || !frozen.xattrs.is_empty();
        if may_have_xattrs {
            let (from, to) = keys::xattr_range(self.dataset.number(), number);
            for (key, _) in self.dataset.records().scan(&from, &to, 1 << 16)? {
                batch.delete(key.to_vec(), Old::Unknown)?;
            }
        }
        Ok(())
    }
}
