//! Building: turns what was frozen into chunks and one batch.
//!
//! Invariants: one freeze is one batch, so that a crash shows it wholly or not at all; the pages are cut as `pieces`
//! says (nothing is read to be written again), what was written ahead is only referred to; the chunk at the end of a
//! file ends where the file ends.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use terrace_cache::{Access, LONG_BLOCKS};
use terrace_store::{BLOCK_BYTES, ChunkId, Sequence, Trial, Written};

use super::{
    chunking::{Part, Run, joined, runs},
    freeze::{Frozen, FrozenObject},
    preallocated_count::Counting,
};
use crate::{
    live::{CachedRegion, Fragment, LiveDataset, part_of},
    objects::{HAS_XATTRS, Layer, SLOT_BLOCKS, Slot},
    posix::FsError,
    records::{
        EntryRecord, FileKind, Old, OrphanRecord, Preallocated, REGION_BLOCKS, REGION_BYTES, RegionRecord,
        VersionedBatch, keys,
    },
    settings::Settings,
};

const BLOCK: u64 = BLOCK_BYTES as u64;
const PER_REGION: u64 = REGION_BLOCKS as u64;
/// Content handed to the store at once, bytes.
const WRITE_BYTES: usize = 8 << 20;
/// Pieces handed to the store at once.
const WRITE_PIECES: usize = 512;
/// Void regions up to which each is looked up; above, the records that exist are listed.
const FEW_REGIONS: u64 = 16;
/// A deleted file up to this size is freed by its own batch; a larger one by the sweep.
pub(crate) const FREED_AT_ONCE_BYTES: u64 = 16 << 20;
/// Names whose state is looked up under one lock of the directory.
const NAMES_AT_ONCE: usize = 64;

/// A change of some blocks of one region (numbers within the region).
enum Edit {
    Void(u32, u32),
    Map {
        block: u32,
        count: u32,
        chunk: ChunkId,
        index: u32,
    },
}

/// What a commit changed, for the objects in RAM to take over.
#[derive(Default)]
pub(crate) struct Outcome {
    regions: Vec<((u64, u64), CachedRegion)>,
    /// By place in the frozen list: mapped blocks of the inode as it was put.
    blocks: Vec<Option<u64>>,
    /// Whether anything is left to the sweep.
    orphans: bool,
    /// What it left in pieces.
    fragments: Vec<(Fragment, u16)>,
    /// The first chunk that it may have made.
    next_chunk: u64,
    /// By place in the frozen list: what is preallocated of those that had or have something.
    preallocated: BTreeMap<usize, Option<Box<Preallocated>>>,
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

/// Blocks of an object that became one chunk, or (no chunk) a hole.
struct Placed {
    object: usize,
    block: u64,
    count: u32,
    chunk: Option<ChunkId>,
}

/// Collects pieces and hands them to the store in groups.
struct Writer<'a> {
    live: &'a LiveDataset,
    settings: Arc<Settings>,
    checkpoint: u64,
    waiting: Vec<(Placed, Cow<'a, [u8]>, Trial, &'a FrozenObject)>,
    waiting_bytes: usize,
    placed: Vec<Placed>,
    written: Vec<Written>,
}

impl<'a> Writer<'a> {
    fn add(
        &mut self,
        place: Placed,
        content: Cow<'a, [u8]>,
        trial: Trial,
        frozen: &'a FrozenObject,
    ) -> Result<(), FsError> {
        self.waiting_bytes += content.len();
        self.waiting.push((place, content, trial, frozen));
        if self.waiting_bytes >= WRITE_BYTES || self.waiting.len() >= WRITE_PIECES {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), FsError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let parts: Vec<Part<'_>> = self
            .waiting
            .iter()
            .map(|(place, content, trial, frozen)| Part {
                content,
                trial: *trial,
                object: frozen.object.number,
                block: place.block,
                flow: frozen.flow,
                plain: frozen.inode.preallocated.as_ref().is_some_and(|ranges| {
                    ranges.intersects(place.block, place.block + u64::from(place.count))
                }),
            })
            .collect();
        let written = self.live.store_parts(&self.settings, self.checkpoint, &parts)?;
        drop(parts);
        for ((mut place, ..), chunk) in self.waiting.drain(..).zip(written) {
            place.chunk = Some(chunk.id);
            self.placed.push(place);
            self.written.push(chunk);
        }
        self.waiting_bytes = 0;
        Ok(())
    }

    /// The dirty blocks of one object.
    fn object(&mut self, at: usize, frozen: &'a FrozenObject, layer: &'a Layer) -> Result<(), FsError> {
        let settings = self.settings.clone();
        let size = frozen.inode.size;
        for (number, slot) in layer.slots() {
            let content_of =
                |run: &Run| content(slot, run, size.saturating_sub(number * SLOT_BLOCKS * BLOCK));
            let store = self.live.dataset.store().as_ref();
            for run in joined(store, &settings, runs(slot, settings.chunk_bytes), content_of) {
                let Run {
                    index,
                    count,
                    zero,
                    trial,
                } = run;
                let block = number * SLOT_BLOCKS + u64::from(index);
                let place = Placed {
                    object: at,
                    block,
                    count,
                    chunk: None,
                };
                let content = if zero {
                    Cow::Borrowed(&[][..])
                } else {
                    content_of(&run)
                };
                if content.is_empty() {
                    self.placed.push(place);
                    continue;
                }
                self.add(place, content, trial, frozen)?;
            }
        }
        Ok(())
    }
}

/// The content of a run of a slot, of which so many bytes belong to the file.
fn content<'a>(slot: &'a Slot, run: &Run, file_bytes: u64) -> Cow<'a, [u8]> {
    let (index, count) = (run.index, run.count);
    let end = file_bytes.saturating_sub(u64::from(index) * BLOCK);
    let length = (u64::from(count) * BLOCK).min(end) as usize;
    if let Some(bytes) = slot.run(index, count) {
        return Cow::Borrowed(&bytes[..length]);
    }
    let mut packed = Vec::with_capacity(count as usize * BLOCK_BYTES);
    let pages = (index..index + count).filter_map(|at| slot.page(at));
    pages.for_each(|page| packed.extend_from_slice(page));
    packed.truncate(length);
    Cow::Owned(packed)
}

impl LiveDataset {
    /// Writes the chunks, builds the batch and commits it. On an error nothing of it is visible.
    pub(crate) fn build_and_commit(&self, frozen: &Frozen) -> Result<(Sequence, Outcome), FsError> {
        // What is made from here on is stored as what is preallocated by now says.
        let next_chunk = self.dataset.store().next_chunk().0;
        let mut writer = Writer {
            live: self,
            settings: self.settings(),
            checkpoint: frozen.checkpoint,
            waiting: Vec::new(),
            waiting_bytes: 0,
            placed: Vec::new(),
            written: Vec::new(),
        };
        for (at, object) in frozen.objects.iter().enumerate() {
            if let Some(layer) = object.data.as_ref().filter(|_| !object.freed) {
                writer.object(at, object, layer)?;
            }
        }
        writer.write()?;
        let (mut placed, written) = (writer.placed, writer.written);
        // Chunks and holes of one object come together, each after the other.
        placed.sort_by_key(|place| (place.object, place.block));
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
            let state = frozen.object.state.lock();
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
            let newest_snapshot = self.newest_snapshot();
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
        let newest_snapshot = self.newest_snapshot();
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
            let (now, was) = counting.end(self, frozen.inode.body)?;
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
                let state = frozen.object.state.lock();
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
        let state = frozen.object.state.lock();
        let old = |name: &Arc<[u8]>| {
            let slot = state.xattrs.as_ref().and_then(|xattrs| xattrs.values.get(name));
            slot.map_or(Old::Unknown, |slot| slot.recorded)
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
                let old = self.region(was.body, region)?;
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
            for (key, _) in self.dataset.store().scan(&from, &to, 1 << 16)? {
                batch.delete(key.to_vec(), Old::Unknown)?;
            }
        }
        Ok(())
    }

    /// The region records of one object; returns the change of its mapped blocks.
    #[allow(clippy::too_many_arguments)]
    fn build_regions(
        &self,
        batch: &mut VersionedBatch,
        frozen: &FrozenObject,
        layer: &Layer,
        placed: &[Placed],
        fresh: bool,
        recorded_size: u64,
        counting: &mut Option<Counting>,
        outcome: &mut Outcome,
    ) -> Result<i64, FsError> {
        let (dataset, body) = (self.dataset.number(), frozen.inode.body);
        let mut edits: BTreeMap<u64, Vec<Edit>> = BTreeMap::new();
        if !fresh {
            let recorded_blocks = recorded_size.div_ceil(BLOCK);
            for (from, to) in layer.void() {
                self.void_edits(body, from, to.min(recorded_blocks), &mut edits)?;
            }
        }
        for (region, record) in layer.mapped() {
            for run in record.runs() {
                edits.entry(*region).or_default().push(Edit::Map {
                    block: run.block,
                    count: run.count,
                    chunk: run.chunk,
                    index: run.index,
                });
            }
        }
        for place in placed {
            let block = (place.block % PER_REGION) as u32;
            let edit = match place.chunk {
                Some(chunk) => Edit::Map {
                    block,
                    count: place.count,
                    chunk,
                    index: 0,
                },
                None => Edit::Void(block, block + place.count),
            };
            edits.entry(place.block / PER_REGION).or_default().push(edit);
        }
        let mut change = 0i64;
        let minutes = self.minutes();
        let environment = self.dataset.environment();
        let heat = &environment.heat;
        let chunk_bytes = self.settings().chunk_bytes;
        for (region, edits) in edits {
            let cached = if fresh {
                None
            } else {
                Some(self.region(body, region)?)
            };
            let old = cached
                .as_ref()
                .and_then(|cached| Some((cached.birth, cached.record.as_ref()?)));
            let mut record = old.map_or_else(RegionRecord::new, |(_, record)| record.clone());
            let mut overwritten = Vec::new();
            for edit in edits {
                match edit {
                    Edit::Void(from, to) => record.punch(from, to),
                    Edit::Map {
                        block,
                        count,
                        chunk,
                        index,
                    } => {
                        // Else what is written over would be the coldest of all.
                        for at in 0..count {
                            if let Some(before) = record.lookup(block + at) {
                                overwritten.push(before.0);
                                let long = at == 0 && count >= LONG_BLOCKS;
                                environment.chunk_heat.inherit(before, (chunk, index + at), long);
                            }
                        }
                        record.overwrite(block, count, chunk, index);
                    }
                }
            }
            let before = old.map_or(0, |(_, record)| record.mapped_blocks());
            if old.map_or_else(|| record.is_empty(), |(_, old)| *old == record) {
                continue;
            }
            change += i64::from(record.mapped_blocks()) - i64::from(before);
            if let Some(counting) = counting {
                counting.change(region, old.map(|(_, record)| record), &record);
            }
            let shared = self.note_shared(batch, body, region, cached.as_deref(), &record)?;
            batch.put_region(body, region, old, Some(&record));
            heat.record(dataset, body, region as u32, Access::Write, 1.0, minutes);
            if old.is_some() && record.is_in_pieces(chunk_bytes) {
                let fragment = Fragment {
                    dataset,
                    body,
                    region,
                    object: frozen.object.number,
                };
                // Of a chunk of which nothing is left its blocks come back by themselves.
                let dead = overwritten
                    .chunk_by(|one, next| one == next)
                    .filter(|same| record.maps(same[0]))
                    .map(|same| same.len() as u32);
                outcome.fragments.push((fragment, part_of(dead.sum(), before)));
            }
            let record = (!record.is_empty()).then_some(record);
            outcome.regions.push((
                (body, region),
                CachedRegion {
                    birth: batch.checkpoint(),
                    record,
                    shared,
                },
            ));
        }
        Ok(change)
    }

    fn void_edits(
        &self,
        body: u64,
        from: u64,
        to: u64,
        edits: &mut BTreeMap<u64, Vec<Edit>>,
    ) -> Result<(), FsError> {
        if from >= to {
            return Ok(());
        }
        let mut push = |region: u64| {
            let first = from.max(region * PER_REGION) - region * PER_REGION;
            let last = to.min((region + 1) * PER_REGION) - region * PER_REGION;
            edits
                .entry(region)
                .or_default()
                .push(Edit::Void(first as u32, last as u32));
        };
        let (first, last) = (from / PER_REGION, (to - 1) / PER_REGION);
        if last - first < FEW_REGIONS {
            (first..=last).for_each(push);
            return Ok(());
        }
        let mut start = keys::region(self.dataset.number(), body, first);
        let end = keys::region(self.dataset.number(), body, last + 1);
        loop {
            let records = self.dataset.store().scan(&start, &end, 1024)?;
            for (key, _) in &records {
                push(keys::parse_region(key)?.2);
            }
            let Some((key, _)) = records.last() else {
                return Ok(());
            };
            start = key.to_vec();
            start.push(0);
        }
    }

    /// Lets the objects in RAM know that what was frozen is in the store.
    pub(crate) fn committed(&self, frozen: Frozen, outcome: Outcome) {
        for (key, region) in outcome.regions {
            self.regions.insert(key, Arc::new(region));
        }
        if outcome.orphans {
            self.dataset.orphans_freed();
        }
        let environment = self.dataset.environment();
        let now = environment.clock.monotonic_nanoseconds();
        for (fragment, part) in outcome.fragments {
            environment.fragments.note(fragment, part, now);
        }
        let mut preallocated = outcome.preallocated;
        for (at, (object, blocks)) in frozen.objects.into_iter().zip(outcome.blocks).enumerate() {
            if let Some(preallocated) = preallocated.remove(&at) {
                object.object.state.lock().recorded_preallocated = preallocated;
            }
            self.object_committed(object, blocks, frozen.checkpoint);
        }
        // What could not be forgotten before it was committed.
        environment.caches.relieve_all();
        self.rooms.spend(frozen.room_bytes, frozen.ahead_bytes);
        self.rooms.trim();
        // What the commit counts needs no promise any more.
        self.dataset.usage().give_back();
        drop(frozen.shared);
        self.pending_frees.counted(frozen.let_go_bytes);
        self.sub_dirty(frozen.dirty_bytes);
    }

    fn object_committed(&self, frozen: FrozenObject, blocks: Option<u64>, checkpoint: u64) {
        let object = frozen.object;
        let mut changes: Vec<_> = frozen.entries;
        changes.sort_by(|a, b| a.0.cmp(&b.0));
        let mut from = 0;
        while from < changes.len() {
            // A stable sort: the last of each group is the newest. The lock is given up now and then.
            let mut state = object.state.lock();
            let Some(entries) = &mut state.entries else { break };
            for _ in 0..NAMES_AT_ONCE {
                let Some((key, _)) = changes.get(from) else { break };
                let count = changes[from..]
                    .iter()
                    .take_while(|(other, _)| other == key)
                    .count();
                entries.committed(key, count as u32, changes[from + count - 1].1, checkpoint);
                from += count;
            }
        }
        let mut state = object.state.lock();
        if let Some(xattrs) = &mut state.xattrs {
            for (name, value) in &frozen.xattrs {
                let Some(slot) = xattrs.values.get_mut(name) else {
                    continue;
                };
                slot.pending = slot.pending.saturating_sub(1);
                slot.recorded = if value.is_some() {
                    Old::Born(checkpoint)
                } else {
                    Old::Absent
                };
                if slot.pending == 0 && slot.value.is_none() {
                    xattrs.values.remove(name);
                }
            }
        }
        state.in_flight = false;
        let layer = state.frozen.take();
        if frozen.freed {
            state.recorded = Old::Absent;
            drop(state);
            self.objects.remove((object.number, 0));
        } else {
            if let Some(blocks) = blocks {
                state.inode.blocks = blocks;
            }
            if frozen.inode_dirty {
                state.recorded = Old::Born(checkpoint);
                state.recorded_size = frozen.inode.size;
                state.recorded_body = frozen.inode.body;
                state.orphan_recorded = frozen.inode.links == 0;
            }
            drop(state);
        }
        drop(frozen.data);
        if let Some(layer) = layer {
            Layer::recycle(layer, &self.buffers);
        }
    }
}
