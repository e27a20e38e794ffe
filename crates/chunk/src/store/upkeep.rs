//! What is asked of a chunk store beyond the contract: upkeep, checks, devices that come and go.

use std::{collections::BTreeSet, sync::Arc};

use terrace_pool::SegmentRange;
use terrace_store::{ChunkId, StoreError};

use super::ChunkStore;
use crate::{
    checking::{
        Alone, AuditReport, EvacuateCursor, EvacuateProgress, Expected, Plight, ScrubCursor, ScrubProgress,
        UnreadableMetadata, VerifyProgress,
    },
    options::Step,
    space::DeviceLoad,
};

impl ChunkStore {
    /// Why the store accepts no more commits, if it does not.
    pub fn stopped(&self) -> Option<Arc<str>> {
        self.stop.stopped()
    }

    /// How many wait until room was made, or there is none to be had.
    pub fn waiting_for_room(&self) -> usize {
        self.space.need().waiting()
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
    pub fn throttle_share(&self) -> f64 {
        self.space.throttle_share()
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
        self.space.reserved()
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
