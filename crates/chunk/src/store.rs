//! `ChunkStore`: the components put together; what they answer is handed on by `contract` and `upkeep`, one line a method.
//!
//! Order of locks: maintenance → tables → stream → commit → ledger; the group-commit lock and those inside open segments, tree
//! and log are taken last and alone. None but maintenance, tables and the log's appending lock is held across I/O.

mod contract;
mod upkeep;

use std::{collections::BTreeMap, sync::Arc};

use terrace_pool::Pool;
use terrace_store::{DeviceUsage, MoveRates, Space, StoreError, StoreMemory, TierUsage};

use crate::{
    Handles, Options,
    admission::Admission,
    append::SegmentWriter,
    catalog::Catalog,
    checking::{Auditor, Evacuation, Scrubber},
    durability::Journal,
    encoding::{ChunkPlace, Counters},
    gc::{Collector, Compactor, Merger, Reclaimer, Relocator},
    ledger::DeviceContent,
    reading::{ChunkReader, read_found},
    recovery::{self, Start},
    space::SpaceView,
    stop::Stop,
    writing::ChunkWriter,
};

/// Chunks and records on a pool. All methods may be called from any thread.
pub struct ChunkStore {
    handles: Handles,
    stop: Arc<Stop>,
    space: Arc<SpaceView>,
    catalog: Arc<Catalog>,
    writer: Arc<SegmentWriter>,
    reader: Arc<ChunkReader>,
    journal: Arc<Journal>,
    relocator: Arc<Relocator>,
    merger: Arc<Merger>,
    collector: Arc<Collector>,
    admission: Arc<Admission>,
    chunk_writer: ChunkWriter,
    auditor: Auditor,
    scrubber: Scrubber,
    evacuation: Evacuation,
}

impl ChunkStore {
    /// Makes an empty store on a new pool and writes its first root.
    pub fn create(pool: Arc<Pool>, options: Options) -> Result<Arc<Self>, StoreError> {
        let (handles, start) = recovery::create(pool, options)?;
        Ok(Arc::new(Self::assemble(handles, start)))
    }

    /// Opens the store of a pool: newest root, then replay of the log. Takes time in proportion to the log and the
    /// number of segments, not to the data.
    pub fn open(pool: Arc<Pool>, options: Options) -> Result<Arc<Self>, StoreError> {
        let (handles, start, rest) = recovery::open(pool, options)?;
        let store = Self::assemble(handles, start);
        rest.finish(&store.handles, &store.collector)?;
        Ok(Arc::new(store))
    }

    /// Puts the components together, each on those that it uses.
    pub(crate) fn assemble(handles: Handles, start: Start) -> Self {
        let stop = Arc::new(Stop::new());
        let space = Arc::new(SpaceView::new(&handles));
        let catalog = Arc::new(Catalog::new(
            &handles,
            &stop,
            &space,
            start.commit,
            start.next_chunk,
        ));
        let writer = Arc::new(SegmentWriter::new(&handles, &stop, &space, &catalog));
        let reader = Arc::new(ChunkReader::new(&handles, &stop, &catalog));
        let journal = Journal::new(
            &handles,
            &stop,
            &space,
            &catalog,
            &writer,
            start.sequence,
            start.format,
            start.end,
        );
        let journal = Arc::new(journal);
        let relocator = Relocator::new(&handles, &stop, &space, &catalog, &writer, &reader);
        let relocator = Arc::new(relocator);
        let reclaimer = Arc::new(Reclaimer::new(&handles, &space, &catalog, &journal));
        let merger = Arc::new(Merger::new(&handles, &space, &journal));
        let compactor = Arc::new(Compactor::new(&handles, &space, &journal, &relocator, &reclaimer));
        let collector = Collector::new(
            &handles, &stop, &space, &catalog, &journal, &relocator, &reclaimer, &merger, &compactor,
        );
        let collector = Arc::new(collector);
        let admission = Admission::new(
            &handles, &stop, &space, &catalog, &writer, &journal, &merger, &compactor, &collector,
        );
        let admission = Arc::new(admission);
        let evacuation = Evacuation::new(
            &handles, &space, &catalog, &writer, &journal, &relocator, &collector, &admission,
        );
        Self {
            chunk_writer: ChunkWriter::new(&handles, &stop, &space, &catalog, &admission),
            auditor: Auditor::new(&handles, &space, &catalog, &collector),
            scrubber: Scrubber::new(
                &handles, &space, &catalog, &writer, &reader, &relocator, &collector,
            ),
            evacuation,
            handles,
            stop,
            space,
            catalog,
            writer,
            reader,
            journal,
            relocator,
            merger,
            collector,
            admission,
        }
    }

    /// What its components work on.
    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    /// The newest batch of a store opened for salvage.
    pub(crate) fn salvaged_sequence(&self) -> u64 {
        self.handles.tree.newest_sequence().max(self.catalog.newest())
    }

    /// The totals of what is stored.
    pub(crate) fn totals(&self) -> Counters {
        self.catalog.totals()
    }

    /// Hash and content of a chunk that a [`Survey`](crate::Survey) found, verified against the hash in its header;
    /// else why there is none.
    pub fn read_found(pool: &Pool, place: &ChunkPlace) -> Result<([u8; 32], Vec<u8>), String> {
        read_found(pool, place)
    }

    pub(crate) fn measure(&self) -> Space {
        let segment = u64::from(self.handles.pool.segment_bytes());
        let counters = self.catalog.totals();
        let positive = |value: i64| u64::try_from(value).unwrap_or(0);
        let tiers_info = self.handles.pool.tiers();
        let mut tiers: Vec<TierUsage> = tiers_info
            .iter()
            .map(|tier| TierUsage {
                name: tier.settings.name.clone(),
                floor_bytes: tier.floor_segments * segment,
                ..TierUsage::default()
            })
            .collect();
        let (held, emptied) = {
            let ledger = self.handles.ledger.lock();
            let held: BTreeMap<u16, DeviceContent> = ledger.devices().collect();
            (held, (ledger.empty.len() + ledger.freeing.len()) as u64)
        };
        let (mut size_bytes, mut used_bytes) = (0, 0);
        for device in self.handles.pool.devices() {
            let Some(tier) = tiers.get_mut(usize::from(device.tier)) else {
                continue;
            };
            let held = held.get(&device.number).copied().unwrap_or_default();
            let used = u64::from(device.segments.saturating_sub(device.free_segments)) * segment;
            if device.takes_new {
                tier.size_bytes += u64::from(device.segments) * segment;
                tier.used_bytes += used;
                tier.live_bytes += positive(held.live);
                tier.metadata_bytes += used.saturating_sub(held.segments * segment);
            }
            size_bytes += u64::from(device.segments) * segment;
            used_bytes += used;
            tier.devices.push(DeviceUsage {
                number: device.number,
                path: device.path,
                state: device.state.as_str().into(),
                size_bytes: device.size_bytes,
                used_bytes: used,
                live_bytes: positive(held.live),
                read_errors: device.counters.read_errors,
                write_errors: device.counters.write_errors,
                checksum_errors: device.counters.checksum_errors,
                reads: device.counters.reads,
                writes: device.counters.writes,
                read_bytes: device.counters.read_bytes,
                written_bytes: device.counters.write_bytes,
                draining: device.draining,
            });
        }
        let metadata_bytes = self.handles.meta.live_bytes() + self.handles.log.bytes();
        Space {
            size_bytes,
            used_bytes,
            logical_bytes: Space::logical(
                positive(counters.unique),
                positive(counters.blocks),
                positive(counters.unique_blocks),
            ),
            unique_bytes: positive(counters.unique),
            stored_bytes: positive(counters.stored) + metadata_bytes,
            chunk_stored_bytes: positive(counters.stored),
            metadata_bytes,
            pending_free_bytes: positive(self.space.pending_free()) + emptied * segment,
            reserve_bytes: self.space.watermarks().reserve() * segment,
            segment_bytes: segment,
            room_bytes: self.space.content_room(),
            set_aside_bytes: self.space.reserved(),
            available_bytes: self.space.available(),
            chunks: positive(counters.chunks),
            tiers,
            memory: self.memory(),
        }
    }

    /// What the store takes in RAM.
    pub fn memory(&self) -> StoreMemory {
        let usage = self.handles.tree.usage();
        StoreMemory {
            record_bytes: usage.memory_bytes as u64,
            table_bytes: usage.cache_bytes as u64,
            append_bytes: self.handles.open_segments.memory_bytes() as u64,
        }
    }

    /// What is known of segments, and of chunks that are on their way or held, bytes.
    pub fn ledger_bytes(&self) -> u64 {
        self.handles.ledger.lock().memory_bytes()
    }

    /// The pool below.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.handles.pool
    }

    /// How fast content may be moved. [`Store::rewrite`] leaves the counting to who asks for it; all else that is moved counts here.
    pub fn rates(&self) -> &Arc<MoveRates> {
        self.space.rates()
    }

    /// What the metadata may take from now on, as [`Options::memtable_bytes`] and [`Options::block_cache_bytes`].
    pub fn set_memory(&self, memtable_bytes: usize, block_cache_bytes: usize) {
        self.handles.tree.set_memory(memtable_bytes, block_cache_bytes);
    }

    /// Memory for records that are not yet in tables, bytes.
    pub fn memtable_bytes(&self) -> usize {
        self.handles.tree.memory_bytes()
    }
}

/// The components, for the tests of each.
#[cfg(test)]
impl ChunkStore {
    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub(crate) fn writer(&self) -> &SegmentWriter {
        &self.writer
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(crate) fn relocator(&self) -> &Relocator {
        &self.relocator
    }

    pub(crate) fn collector(&self) -> &Collector {
        &self.collector
    }

    pub(crate) fn merger(&self) -> &Merger {
        &self.merger
    }

    pub(crate) fn compactor(&self) -> &Compactor {
        self.collector.compactor()
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    pub(crate) fn chunk_writer(&self) -> &ChunkWriter {
        &self.chunk_writer
    }
}
