//! `ChunkStore`: the parts put together, and the contract's methods that are one line each.
//!
//! Order of locks: maintenance → tables → stream → commit → ledger; the group-commit lock and those inside open segments, tree
//! and log are taken last and alone. None but maintenance, tables and the log's appending lock is held across I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use terrace_meta::Value;
use terrace_pool::{Pool, SegmentRange};
use terrace_store::{
    Batch, ChunkFill, ChunkId, ChunkInfo, ChunkPart, Compression, DeviceUsage, MoveRates, Piece, Placement,
    Reservation, RewriteOutcome, Sequence, Space, Store, StoreError, StoreMemory, TierUsage, Trial, Written,
};

use crate::{
    Handles, Options,
    admission::Admission,
    append::SegmentWriter,
    catalog::{Catalog, CommitState},
    checking::{
        Alone, AuditReport, Auditor, DeviceLoad, EvacuateCursor, EvacuateProgress, Evacuation, Expected,
        Plight, ScrubCursor, ScrubProgress, Scrubber, UnreadableMetadata, VerifyProgress,
    },
    durability::{GroupState, Journal},
    encoding::{ChunkPlace, Counters},
    errors::meta_error,
    gc::{Collector, Compactor, Merger, Reclaimer, Relocator},
    ledger::DeviceContent,
    options::Step,
    reading::{ChunkReader, read_found},
    recovery::{self, Start},
    space::{SpaceView, StreamKey},
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
        let commit = CommitState::new(start.sequence, start.counters, start.marks);
        let stop = Arc::new(Stop::new());
        let space = Arc::new(SpaceView::new(&handles));
        let catalog = Arc::new(Catalog::new(&handles, &stop, &space, commit, start.next_chunk));
        let writer = Arc::new(SegmentWriter::new(&handles, &stop, &space, &catalog));
        let reader = Arc::new(ChunkReader::new(&handles, &stop, &catalog));
        let log = GroupState::durable_until(start.sequence);
        let journal = Journal::new(
            &handles,
            &stop,
            &space,
            &catalog,
            &writer,
            log,
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
            reserve_bytes: self.space.reserve_segments() * segment,
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

impl Store for ChunkStore {
    fn check_answers(&self, since: Instant) -> Result<(), StoreError> {
        self.journal.refuse_to_wait_for(since)
    }

    fn waits_for_sinking(&self) -> bool {
        self.admission.is_demotion_waited_for()
    }

    fn short_landing_tier(&self, bytes: u64, garbage_part: u64) -> Option<u8> {
        self.space.short_tier_for(bytes, garbage_part)
    }

    fn bring_garbage_back(&self) -> Result<(), StoreError> {
        self.admission.relieve(StreamKey::Random, &|| false)
    }

    fn moved_in_need(&self, tier_bytes: &BTreeMap<u8, u64>) {
        self.space.rates().take_in_need(tier_bytes);
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.handles.tree.get(key).map_err(meta_error)
    }

    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let values = self.handles.tree.get_many(keys).map_err(meta_error)?;
        let copy = |value: Value| Bytes::copy_from_slice(&value);
        Ok(values.into_iter().map(|value| value.map(copy)).collect())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.handles.tree.scan(from, to, limit).map_err(meta_error)
    }

    fn try_compression(&self, content: &[u8], compression: Compression) -> Trial {
        self.chunk_writer.try_samples(content, compression)
    }

    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        self.chunk_writer.write_pieces(pieces)
    }

    fn read_chunk(&self, id: ChunkId) -> Result<Bytes, StoreError> {
        self.reader.read_whole(id)
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Vec<Result<Bytes, StoreError>> {
        let whole = |id: &ChunkId| ChunkPart { id: *id, range: None };
        self.reader.read_parts(&ids.iter().map(whole).collect::<Vec<_>>())
    }

    fn read_chunk_parts(&self, parts: &[ChunkPart]) -> Vec<Result<Bytes, StoreError>> {
        self.reader.read_parts(parts)
    }

    fn fill_from_chunks(&self, fills: &mut [ChunkFill<'_>]) {
        self.reader.read_into(fills);
    }

    fn read_chunk_part(&self, id: ChunkId, offset: usize, length: usize) -> Result<Bytes, StoreError> {
        self.reader.read_part(id, offset, length)
    }

    fn chunk_info(&self, id: ChunkId) -> Result<Option<ChunkInfo>, StoreError> {
        self.reader.info(id)
    }

    fn chunk_infos(&self, ids: &[ChunkId]) -> Result<Vec<Option<ChunkInfo>>, StoreError> {
        self.reader.infos(ids)
    }

    fn chunk_tier(&self, id: ChunkId) -> Result<Option<u8>, StoreError> {
        self.reader.tier_of(id)
    }

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        self.admission.commit_batch(batch)
    }

    fn flush(&self, sequence: Sequence) -> Result<(), StoreError> {
        self.journal.flush_until(sequence.0)
    }

    fn newest(&self) -> Sequence {
        Sequence(self.catalog.newest())
    }

    fn reserve_beside(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError> {
        self.admission.set_aside(bytes, own, None)
    }

    fn reserve_promised(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError> {
        // More than what gives room back may take: who writes leaves something to work in.
        self.admission.set_aside(bytes, own, Some(self.space.eighths(7)))
    }

    fn reserve_to_gain(&self, bytes: u64) -> Result<Reservation, StoreError> {
        let all = || self.space.reserved();
        self.admission.set_aside(bytes, &all, Some(self.space.eighths(6)))
    }

    fn is_reserve_left(&self, eighths: u64) -> bool {
        self.space.has_reserve(eighths)
    }

    fn restore_reserve(&self, eighths: u64) -> Result<bool, StoreError> {
        self.stop.check_running()?;
        self.admission.make_room(|| self.space.has_reserve(eighths))
    }

    fn next_chunk(&self) -> ChunkId {
        ChunkId(self.catalog.next_chunk_id())
    }

    fn has_preallocation(&self) -> bool {
        self.journal.format().has_preallocation()
    }

    fn reserve_always(&self, bytes: u64) -> Reservation {
        self.space.reserve_always(bytes)
    }

    fn space(&self) -> Space {
        self.measure()
    }

    fn available_bytes(&self) -> u64 {
        self.space.available()
    }

    fn rewrite(&self, ids: &[ChunkId], placement: Placement) -> Result<RewriteOutcome, StoreError> {
        // The last segments of a tier are not for what is moved there: log, metadata and compaction need them.
        if let Placement::Tier { tier, strict: true } = placement
            && let Some(tier) = self.handles.pool.tiers().get(usize::from(tier))
            && tier.free_segments <= (tier.segments / 16).max(2)
        {
            return Err(StoreError::NoSpace);
        }
        if self.journal.is_log_short() {
            return Err(StoreError::NoSpace);
        }
        self.relocator.move_chunks(ids, placement, None)
    }
}

impl ChunkStore {
    /// Why the store accepts no more commits, if it does not.
    pub fn stopped(&self) -> Option<Arc<str>> {
        self.stop.stopped()
    }

    /// How many wait until room was made, or there is none to be had.
    pub fn waiting_for_room(&self) -> usize {
        self.space.waiting_for_room()
    }

    /// What lies on a device, or the end of one, from memory.
    pub fn load_of(&self, range: SegmentRange) -> DeviceLoad {
        self.space.load_of(range)
    }

    /// Segments of this tier and slower ones are not compacted while there is room otherwise; 255: none of them rests.
    pub fn set_resting_from(&self, tier: u8) {
        self.space.set_resting_from(tier)
    }

    /// Metadata segments, and how many there can be at most before no root can list them any more.
    pub fn metadata_segments(&self) -> (u64, u64) {
        self.space.metadata_segments()
    }

    /// How much of its usual rest background work may take while users do something: 1 all of it, 0 none, since users
    /// would soon have to wait for it. The more garbage there is beside what is free, the less.
    pub fn courtesy(&self) -> f64 {
        self.space.courtesy()
    }

    /// Room for what lands until garbage has to be brought back for it, bytes.
    pub fn landing_bytes(&self) -> u64 {
        self.space.landing_bytes()
    }

    /// Users would soon have to wait for background work: records wait for it, or room is short, on a tier or on all.
    pub fn is_pressed(&self) -> bool {
        self.space.is_pressed()
    }

    /// Room for content beyond the reserve if the tier of this name kept so many copies, bytes of each. What open segments there
    /// have room for is none: they may have fewer.
    pub fn room_with_copies(&self, tier: &str, copies: u8) -> u64 {
        self.space.room_with_copies(tier, copies)
    }

    /// As [`available`](Self::available), if a device ended before these segments; negative room is none. And whether the
    /// pool could still be used then, were it empty: beside reserve, log and metadata an eighth is for content.
    pub fn available_without(&self, range: SegmentRange) -> (u64, bool) {
        self.space.available_without(range)
    }

    /// Room beyond the reserve for what lies on a device that is to leave, as content, bytes of each copy; `joining_bytes`: room
    /// on a device that takes its place. What moves is written anew with all its copies, and the other ones that it had are
    /// brought back meanwhile.
    pub fn room_for_leaving(&self, device: u16, joining_bytes: u64) -> u64 {
        self.space.room_for_leaving(device, joining_bytes)
    }

    /// What may be left unused of the segments that so many bytes of chunks are written to.
    pub fn unused_ends(&self, bytes: u64) -> u64 {
        self.space.unused_ends(bytes)
    }

    /// What is set aside for writers, as far as there is room for it now, as [`room_for_leaving`](Self::room_for_leaving) counts
    /// room: to be left when a device goes.
    pub fn backed_promises(&self) -> u64 {
        self.space.backed_promises()
    }

    /// What is set aside for writers, bytes of content.
    pub fn reserved_bytes(&self) -> u64 {
        self.space.reserved_bytes()
    }

    /// From now on compaction leaves this many nanoseconds between two reads of a device of the tier; 0: none.
    pub fn set_spacing(&self, tier: u8, nanoseconds: u64) {
        self.space.set_spacing(tier, nanoseconds)
    }

    /// New content lands elsewhere from now on: what a stream goes on with on another tier than its own gets no more.
    ///
    /// # Errors
    /// What was appended to it could not be written.
    pub fn land_anew(&self) -> Result<(), StoreError> {
        self.writer.land_anew()
    }

    /// Takes no more appends to segments that were begun with fewer copies than their tier keeps, where there are devices for
    /// more by now.
    ///
    /// # Errors
    /// What was appended to one could not be written.
    pub fn close_short_streams(&self) -> Result<(), StoreError> {
        self.writer.close_short_streams()
    }

    /// Chunks of which readers, or whoever moves content, found no good copy on devices that are there, as far as they are
    /// remembered; since the opening, or [`forget_unreadable`](Self::forget_unreadable).
    pub fn unreadable(&self) -> BTreeSet<ChunkId> {
        self.reader.unreadable()
    }

    /// How many these are.
    pub fn unreadable_count(&self) -> usize {
        self.reader.unreadable_count()
    }

    /// Forgets those that nothing refers to any more, or whose devices have gone: these are known to be lost by other means.
    pub fn prune_unreadable(&self) {
        self.reader.prune_unreadable()
    }

    /// They are known by other means now.
    pub fn forget_unreadable(&self) {
        self.reader.forget_unreadable()
    }

    /// Whether log and tables have two copies on two devices: on a pool of one device, or where a device is full, they do
    /// not.
    pub fn is_mirrored(&self) -> bool {
        self.journal.is_mirrored()
    }

    /// Whether the log goes on a device that fails and that the labels call absent: there was no room to leave it, and only a
    /// device that was in use just as long can stand for it.
    pub fn is_stuck_on_failing(&self) -> bool {
        self.journal.is_stuck_on_failing()
    }

    /// Everything up to this sequence is durable in every copy of the log: no opening goes back behind it, whichever
    /// device is lost. Segments that were given up later may still be needed.
    pub fn durable_everywhere(&self) -> u64 {
        self.journal.durable_everywhere()
    }

    /// Whether the end of the log may have gone with a device that was not there when the store was opened.
    pub fn end_without(&self) -> Option<terrace_log::EndWithout> {
        self.journal.end_without()
    }

    /// Why the end of the log was given up when the store was opened, if it was ([`Options::rewind`](crate::Options::rewind)).
    pub fn given_up(&self) -> Option<&str> {
        self.journal.given_up()
    }

    /// Bytes of the log that its copy on a slower device does not have yet.
    pub fn behind_bytes(&self) -> u64 {
        self.journal.behind_bytes()
    }

    /// Brings the copy of the log on a slower device up to date.
    pub fn catch_up(&self) {
        self.journal.catch_up()
    }

    /// The format version of the pool.
    pub fn format_version(&self) -> u8 {
        self.journal.format_version()
    }

    /// Whether a device has every entry of the log that is to be on it.
    pub fn has_whole_log(&self, device: u16) -> bool {
        self.journal.has_whole_log(device)
    }

    /// How many wait with a commit until records are in tables.
    pub fn waiting_for_tables(&self) -> usize {
        self.merger.waiting_for_tables()
    }

    /// Notes devices on the labels of the others that fail, or lack what others have, and gets the log off those that fail before.
    /// Cheap while there are none.
    ///
    /// # Errors
    /// If no other device takes the label, or the log cannot be written.
    pub fn note_failing(&self) -> Result<(), StoreError> {
        self.collector.note_failing()
    }

    /// Gives the pool the newest format version: durable when it returns, and older programs refuse the pool from then on. After an
    /// error it may have it or not, and the next checkpoint gives it.
    ///
    /// # Errors
    /// What the checkpoint says that this takes.
    pub fn upgrade_format(&self) -> Result<(), StoreError> {
        self.collector.upgrade_format()
    }

    /// One bounded step of background work: checkpoint, merge, reclaim, release, compaction, whatever is most
    /// needed. Any number of threads may call it; one does the work, the others wait a little for their turn, or get `Idle`.
    pub fn step(&self) -> Result<Step, StoreError> {
        self.collector.step()
    }

    /// Writes a checkpoint now: everything committed before the call is in the root afterwards and the log before
    /// it is given back.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.collector.checkpoint()
    }

    /// Makes a new beginning for the log where a copy of it lacks entries: in new segments, with a root that starts there.
    pub fn begin_log_anew(&self) -> Result<(), StoreError> {
        self.collector.begin_log_anew()
    }

    /// Gives log and metadata their second copy at once, as far as there is room; whether they have it, also for the next opening.
    pub fn mirror_now(&self) -> Result<bool, StoreError> {
        self.collector.mirror_now()
    }

    /// A last checkpoint, before the pool is exported or the process ends. Later commits fail with `Stopped`; after an error they
    /// do not, and it can be closed again once the cause is gone.
    pub fn close(&self) -> Result<(), StoreError> {
        self.collector.close()
    }

    /// The newest question whether anything sinks for those who write, if it was not answered.
    pub fn sinking_asked(&self) -> Option<u64> {
        self.admission.sinking_asked()
    }

    /// Content sinks from these tiers now, as bits, and `answered` is the newest question that was known before that was looked at.
    pub fn set_sinking(&self, tiers: u64, answered: Option<u64>) {
        self.admission.set_sinking(tiers, answered)
    }

    /// Walks everything: counts, live bytes, locations, overlaps. `expected` (from the floor above) calls back with
    /// (chunk, blocks), any number of times per chunk. Changes nothing; meant for a store at rest.
    pub fn audit(&self, expected: Option<Expected<'_>>) -> Result<AuditReport, StoreError> {
        self.auditor.audit(expected)
    }

    /// The same with no more than so many chunks in memory at a time: of more there are several passes, and `expected` is asked in
    /// each.
    pub fn audit_within(
        &self,
        expected: Option<Expected<'_>>,
        chunks_at_once: usize,
    ) -> Result<AuditReport, StoreError> {
        self.auditor.audit_within(expected, chunks_at_once)
    }

    /// Whether everything that the newest durable root leads to is still held: else it may be written over, and a crash
    /// finds the root without its tables or its log. Reads next to nothing.
    pub fn audit_root(&self) -> Result<Vec<String>, StoreError> {
        self.auditor.audit_root()
    }

    /// Segments of metadata of which readers met a part that no copy gives, on devices that are there.
    pub fn unreadable_metadata(&self) -> Vec<UnreadableMetadata> {
        self.auditor.unreadable_metadata()
    }

    /// Segments of metadata that have no copy on a device that is there: what they tell of cannot be found.
    pub fn metadata_out_of_reach(&self) -> u64 {
        self.auditor.metadata_out_of_reach()
    }

    /// What is to be said where the pool cannot be opened for want of these segments; `None` if all are there.
    pub fn metadata_is_away(&self) -> Option<StoreError> {
        self.auditor.metadata_is_away()
    }

    /// Where records cannot be looked up, since their tables have no copy on a device that is there: the first and the last key of
    /// each such table. From memory.
    pub fn keys_out_of_reach(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.auditor.keys_out_of_reach()
    }

    /// What still counts on a device, in words: nothing, once it has left the pool in good order.
    pub fn claims_on(&self, device: u16) -> Result<Vec<String>, StoreError> {
        self.auditor.claims_on(device)
    }

    /// Reads and verifies about `budget_bytes` of live chunk copies and metadata, repairs what has a good copy.
    pub fn scrub_step(
        &self,
        cursor: &mut ScrubCursor,
        budget_bytes: u64,
    ) -> Result<ScrubProgress, StoreError> {
        self.scrubber.scrub_step(cursor, budget_bytes)
    }

    /// Begins a new segment in every stream: the tiers changed places.
    pub fn close_streams(&self) -> Result<(), StoreError> {
        self.scrubber.close_streams()
    }

    /// Reads every copy of the log from where a replay starts; returns what a copy lacks, in words.
    pub fn verify_log(&self) -> Result<Vec<String>, StoreError> {
        self.scrubber.verify_log()
    }

    /// Reads every copy of every table; returns what is wrong first, in words. Meant for a store at rest.
    pub fn verify_tables(&self) -> Vec<String> {
        self.scrubber.verify_tables()
    }

    /// Reads and verifies about `budget_bytes` of chunk copies, then of tables. Meant for a store at rest.
    pub fn verify_step(&self, cursor: &mut ScrubCursor, budget_bytes: u64) -> VerifyProgress {
        self.scrubber.verify_step(cursor, budget_bytes)
    }

    /// Moves about `budget_bytes` off a device, or the end of one, on which the pool was told to put nothing new. Of a
    /// device that is missing, that is what has a copy elsewhere.
    pub fn evacuate_step(
        &self,
        range: SegmentRange,
        cursor: &mut EvacuateCursor,
        budget_bytes: u64,
    ) -> Result<EvacuateProgress, StoreError> {
        self.evacuation.evacuate_step(range, cursor, budget_bytes)
    }

    /// Live bytes on devices that are not there, or at the end of one that was cut short, from memory.
    pub fn live_on_absent_devices(&self) -> u64 {
        self.evacuation.live_on_absent_devices()
    }

    /// Whether a chunk has no copy on any device that is there.
    pub fn is_gone(&self, id: ChunkId) -> Result<bool, StoreError> {
        self.evacuation.is_gone(id)
    }

    /// Whether a device that is not there has chunks of which no other device has a copy. Reads the table of chunks up to the first.
    pub fn has_alone(&self, device: u16) -> Result<Alone, StoreError> {
        self.evacuation.has_alone(device)
    }

    /// What is wrong with the devices that a chunk lies on; `None` if one that has a copy is well. Reads no content.
    pub fn plight_of(&self, id: ChunkId) -> Result<Option<Plight>, StoreError> {
        self.evacuation.plight_of(id)
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
