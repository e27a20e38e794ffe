//! Audit: the full walk that tests and `verify` compare everything with.
//!
//! Invariant: where that is asked for, memory is in proportion to the segments, and of chunks to those that one pass takes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use terrace_log::Log;
use terrace_meta::{Tree, decode_count};
use terrace_pool::{Pool, SegmentId};
use terrace_store::{ChunkId, StoreError};

use crate::{
    AuditReport, Findings, Handles, Options, UnreadableMetadata,
    catalog::{Catalog, estimate_of},
    encoding::{
        ChunkRecord, Counters, HEADER_BYTES, TABLE_CANDIDATES, TABLE_CHUNKS, TABLE_LIVE, TABLE_REFERENCES,
        TABLE_SEGMENTS, candidate_of_key, chunk_key, chunk_of_key, segment_of_key,
    },
    errors::{meta_error, pool_error},
    gc::Collector,
    ledger::Ledger,
    metadata::{MetaStorage, read_root, tree_options},
    space::SpaceView,
};

/// Records that one look into the tables gives.
const SCANNED_AT_ONCE: usize = 1024;

/// What is counted of one chunk.
#[derive(Debug, Clone, Copy)]
struct Row {
    id: ChunkId,
    /// What the reference table says, and what the floor above does.
    count: i64,
    held: i64,
    is_candidate: bool,
}

/// What chunks say of one segment.
#[derive(Debug, Clone, Copy, Default)]
struct Filled {
    live: i64,
    chunks: usize,
}

/// What the floor above says: calls back with (chunk, blocks) for each reference it holds.
pub type Expected<'a> = &'a dyn Fn(&mut dyn FnMut(ChunkId, i64)) -> Result<(), StoreError>;

/// Compares what memory, records and devices say of one another.
pub(crate) struct Auditor {
    pub(super) pool: Arc<Pool>,
    pub(super) options: Options,
    pub(super) tree: Arc<Tree>,
    pub(super) log: Arc<Log>,
    pub(super) meta: Arc<MetaStorage>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) space: Arc<SpaceView>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) collector: Arc<Collector>,
}

impl Auditor {
    /// Of these parts.
    pub(crate) fn new(
        handles: &Handles,
        space: &Arc<SpaceView>,
        catalog: &Arc<Catalog>,
        collector: &Arc<Collector>,
    ) -> Self {
        Self {
            pool: handles.pool.clone(),
            options: handles.options.clone(),
            tree: handles.tree.clone(),
            log: handles.log.clone(),
            meta: handles.meta.clone(),
            ledger: handles.ledger.clone(),
            space: space.clone(),
            catalog: catalog.clone(),
            collector: collector.clone(),
        }
    }

    /// Walks everything: counts, live bytes, locations, overlaps. `expected` (from the floor above) calls back with
    /// (chunk, blocks), any number of times per chunk. Changes nothing; meant for a store at rest.
    pub(crate) fn audit(&self, expected: Option<Expected<'_>>) -> Result<AuditReport, StoreError> {
        self.audit_within(expected, usize::MAX)
    }

    /// The same with no more than so many chunks in memory at a time: of more there are several passes, and `expected` is asked in
    /// each.
    pub(crate) fn audit_within(
        &self,
        expected: Option<Expected<'_>>,
        chunks_at_once: usize,
    ) -> Result<AuditReport, StoreError> {
        let mut report = AuditReport::default();
        let mut wrong = Findings::default();
        let mut pending = 0;
        self.each(TABLE_CANDIDATES, |_, value| pending += estimate_of(value))?;
        let counted_all = self.collector.has_counted_all();
        let says = self.space.pending_free();
        if counted_all && says != pending {
            wrong.add(|| format!("{pending} bytes are to be freed, memory says {says}"));
        }
        let mut claimed = BTreeSet::new();
        self.each(TABLE_SEGMENTS, |key, _| claimed.extend(segment_of_key(key)))?;
        let mut totals = Counters::default();
        self.audit_counts(expected, chunks_at_once, &mut totals, &mut wrong)?;
        let filled = self.audit_records(&claimed, &mut totals, &mut wrong)?;
        report.chunks = totals.chunks as u64;
        self.audit_overlaps(&filled, chunks_at_once, &mut wrong)?;
        self.audit_live(&filled, &claimed, &mut wrong)?;
        let counters = self.catalog.totals();
        if counters != totals {
            wrong.add(|| format!("totals are {totals:?}, the counters say {counters:?}"));
        }
        self.audit_segments(&mut wrong);
        wrong.extend(self.audit_root()?);
        report.discrepancy_count = wrong.count();
        report.discrepancies = wrong.into_lines();
        Ok(report)
    }

    /// How often chunks are referred to: whether those exist, and whether who does not is on the list of the dead.
    fn audit_counts(
        &self,
        expected: Option<Expected<'_>>,
        chunks_at_once: usize,
        totals: &mut Counters,
        wrong: &mut Findings,
    ) -> Result<(), StoreError> {
        let mut from = Some(ChunkId(0));
        while let Some(first) = from {
            let (mut rows, end) = self.rows_from(first, chunks_at_once)?;
            let is_here = |id: ChunkId| id >= first && end.is_none_or(|end| id < end);
            // Chunks that are counted and do not exist, with their counts.
            let mut missing: BTreeMap<ChunkId, (i64, i64)> = BTreeMap::new();
            let find = |rows: &[Row], id: ChunkId| rows.binary_search_by_key(&id, |row| row.id);
            self.each_chunk(TABLE_REFERENCES, first, end, |key, value| {
                let (Some(id), Some(count)) = (chunk_of_key(key), decode_count(value)) else {
                    wrong.add(|| "an entry of the reference table does not decode".into());
                    return;
                };
                totals.blocks += count;
                match find(&rows, id) {
                    Ok(at) => rows[at].count = count,
                    Err(_) => missing.entry(id).or_default().0 = count,
                }
            })?;
            self.each(TABLE_CANDIDATES, |key, _| {
                if let Some(at) = candidate_of_key(key).and_then(|id| find(&rows, id).ok()) {
                    rows[at].is_candidate = true;
                }
            })?;
            if let Some(expected) = expected {
                expected(&mut |id, blocks| match find(&rows, id) {
                    Ok(at) => rows[at].held += blocks,
                    Err(_) if is_here(id) => missing.entry(id).or_default().1 += blocks,
                    Err(_) => {}
                })?;
            }
            for row in &rows {
                let Row { id, count, held, .. } = *row;
                if count == 0 && !row.is_candidate && !self.ledger.lock().is_pinned(id) {
                    wrong.add(|| format!("chunk {id} has no references and is not on the list of the dead"));
                }
                if count < 0 {
                    wrong.add(|| format!("chunk {id} has {count} references"));
                }
                if expected.is_some() && held != count {
                    wrong.add(|| {
                        format!("chunk {id} is referred to by {held} blocks, its count says {count}")
                    });
                }
            }
            for (id, (count, held)) in missing {
                if count != 0 {
                    wrong.add(|| format!("chunk {id} does not exist but has {count} references"));
                }
                if expected.is_some() && held != count {
                    wrong.add(|| {
                        format!("chunk {id} is referred to by {held} blocks, its count says {count}")
                    });
                }
            }
            from = end;
        }
        Ok(())
    }

    /// The chunks from this one on, so many at most, and the first one behind them, if there are more.
    fn rows_from(&self, first: ChunkId, most: usize) -> Result<(Vec<Row>, Option<ChunkId>), StoreError> {
        let mut rows: Vec<Row> = Vec::new();
        let mut from = chunk_key(TABLE_CHUNKS, first).to_vec();
        loop {
            let records = self
                .tree
                .scan(&from, &[TABLE_CHUNKS + 1], SCANNED_AT_ONCE)
                .map_err(meta_error)?;
            for (key, _) in &records {
                // What does not decode is found by whoever looks at the records.
                let Some(id) = chunk_of_key(key) else { continue };
                if rows.len() >= most {
                    return Ok((rows, Some(id)));
                }
                rows.push(Row {
                    id,
                    count: 0,
                    held: 0,
                    is_candidate: false,
                });
            }
            let Some((last, _)) = records.last() else {
                return Ok((rows, None));
            };
            from = last.to_vec();
            from.push(0);
        }
    }

    /// Each chunk by itself; what lies in each segment.
    fn audit_records(
        &self,
        claimed: &BTreeSet<SegmentId>,
        totals: &mut Counters,
        wrong: &mut Findings,
    ) -> Result<BTreeMap<SegmentId, Filled>, StoreError> {
        let mut filled: BTreeMap<SegmentId, Filled> = BTreeMap::new();
        self.each(TABLE_CHUNKS, |key, value| {
            let (Some(id), Ok(record)) = (chunk_of_key(key), ChunkRecord::decode(value)) else {
                wrong.add(|| "an entry of the chunk table does not decode".into());
                return;
            };
            totals.chunks += 1;
            totals.unique += i64::from(record.length);
            totals.unique_blocks += record.blocks();
            totals.stored += i64::from(record.stored());
            let devices: BTreeSet<u16> = record.locations.iter().map(|at| at.segment.device).collect();
            if devices.len() < record.locations.len() {
                wrong.add(|| format!("two copies of chunk {id} lie on one device"));
            }
            // A device that has left has none any more.
            let tiers: BTreeSet<u8> = devices
                .iter()
                .filter_map(|device| self.pool.tier_of(*device))
                .collect();
            if tiers.len() > 1 {
                wrong.add(|| format!("the copies of chunk {id} lie on tiers {tiers:?}"));
            }
            for location in &record.locations {
                let of_segment = filled.entry(location.segment).or_default();
                of_segment.live += i64::from(record.stored());
                of_segment.chunks += 1;
                if !claimed.contains(&location.segment) {
                    wrong.add(|| {
                        format!(
                            "chunk {id} lies in segment {}, which holds no chunks",
                            location.segment
                        )
                    });
                }
                if u64::from(location.payload) + u64::from(record.payload)
                    > u64::from(self.pool.segment_bytes())
                {
                    wrong.add(|| format!("chunk {id} passes the end of segment {}", location.segment));
                }
            }
        })?;
        Ok(filled)
    }

    /// No two chunks lie in one place. Segments are looked at some at a time.
    fn audit_overlaps(
        &self,
        filled: &BTreeMap<SegmentId, Filled>,
        chunks_at_once: usize,
        wrong: &mut Findings,
    ) -> Result<(), StoreError> {
        let mut rest = filled.iter().peekable();
        while rest.peek().is_some() {
            let mut extents: BTreeMap<SegmentId, Vec<(u32, u32, ChunkId)>> = BTreeMap::new();
            let mut chunks = 0;
            while let Some((segment, of_segment)) =
                rest.next_if(|(_, next)| chunks == 0 || chunks + next.chunks <= chunks_at_once)
            {
                chunks += of_segment.chunks;
                extents.insert(*segment, Vec::with_capacity(of_segment.chunks));
            }
            self.each(TABLE_CHUNKS, |key, value| {
                let (Some(id), Ok(record)) = (chunk_of_key(key), ChunkRecord::decode(value)) else {
                    return;
                };
                for location in &record.locations {
                    let Some(extents) = extents.get_mut(&location.segment) else {
                        continue;
                    };
                    match location.is_apart() {
                        true => extents.extend([
                            (location.offset, HEADER_BYTES as u32, id),
                            (location.payload, record.payload, id),
                        ]),
                        false => extents.push((location.offset, record.stored(), id)),
                    }
                }
            })?;
            for (segment, list) in &mut extents {
                list.sort_unstable();
                for pair in list.windows(2) {
                    if let [(start, stored, one), (next, _, other)] = pair
                        && start + stored > *next
                    {
                        wrong.add(|| format!("chunks {one} and {other} overlap in segment {segment}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// What segments hold is what their records, and memory, say.
    fn audit_live(
        &self,
        filled: &BTreeMap<SegmentId, Filled>,
        claimed: &BTreeSet<SegmentId>,
        wrong: &mut Findings,
    ) -> Result<(), StoreError> {
        let mut live = BTreeMap::new();
        self.each(TABLE_LIVE, |key, value| {
            if let (Some(segment), Some(bytes)) = (segment_of_key(key), decode_count(value)) {
                live.insert(segment, bytes);
            }
        })?;
        let live_of = |segment: &SegmentId| filled.get(segment).map_or(0, |of_segment| of_segment.live);
        for segment in filled.keys().chain(live.keys()).collect::<BTreeSet<_>>() {
            let (is, says) = (live_of(segment), live.get(segment).copied().unwrap_or(0));
            if is != says {
                wrong.add(|| format!("segment {segment} has {is} live bytes, its record says {says}"));
            }
        }
        let ledger = self.ledger.lock();
        wrong.extend(ledger.discrepancies());
        for (segment, state) in &ledger.segments {
            let is = live_of(segment);
            if state.live != is {
                wrong.add(|| {
                    format!(
                        "segment {segment} has {is} live bytes, memory says {}",
                        state.live
                    )
                });
            }
            if !state.freeing && !claimed.contains(segment) {
                wrong.add(|| format!("segment {segment} is in use but not in the segment table"));
            }
            if !self.pool.is_claimed(*segment) && self.pool.has_segment(*segment) {
                wrong.add(|| format!("segment {segment} is in use but free in the pool"));
            }
        }
        for segment in claimed
            .iter()
            .filter(|segment| !ledger.segments.contains_key(segment))
        {
            wrong.add(|| format!("segment {segment} is in the segment table but not in use"));
        }
        Ok(())
    }

    /// Whether everything that the newest durable root leads to is still held: else it may be written over, and a crash
    /// finds the root without its tables or its log. Reads next to nothing.
    pub(crate) fn audit_root(&self) -> Result<Vec<String>, StoreError> {
        let mut wrong = Vec::new();
        let Some(payload) = self.pool.read_root().map_err(pool_error)? else {
            return Ok(vec!["there is no root".into()]);
        };
        let root = read_root(&self.pool, &payload)?;
        // Of a device that is gone, or not there, nothing is claimed.
        let is_there = |segment: &SegmentId| self.pool.has_segment(*segment);
        let log = self.log.segments();
        for segment in root.position.segment.iter().filter(is_there) {
            if !log.contains(&segment) || !self.pool.is_claimed(segment) {
                wrong.push(format!(
                    "the newest root starts its replay in segment {segment}, which the log no longer holds"
                ));
            }
        }
        let listed = Arc::new(root.meta);
        let options = tree_options(&self.options, &self.pool);
        let tree = Tree::open(listed.clone(), Some(&root.manifest), options).map_err(meta_error)?;
        let held = self.meta.held();
        let needed: BTreeSet<SegmentId> = tree
            .extents()
            .into_iter()
            .flat_map(|extent| listed.copies_of(extent).iter().collect::<Vec<_>>())
            .collect();
        for segment in needed.into_iter().filter(is_there) {
            if !held.contains(&segment) || !self.pool.is_claimed(segment) {
                wrong.push(format!(
                    "the newest root has tables in segment {segment}, which is given up"
                ));
            }
        }
        Ok(wrong)
    }

    /// Segments of metadata of which readers met a part that no copy gives, on devices that are there.
    pub(crate) fn unreadable_metadata(&self) -> Vec<UnreadableMetadata> {
        let mut found: Vec<UnreadableMetadata> = Vec::new();
        for part in self.tree.known_unreadable() {
            let copies: Vec<SegmentId> = self.meta.copies_of(part.extent).iter().collect();
            let is_there = copies.iter().any(|copy| self.pool.has_segment(*copy));
            if is_there && !found.iter().any(|other| other.copies == copies) {
                let cause = part.cause;
                found.push(UnreadableMetadata { copies, cause });
            }
        }
        found
    }

    /// Segments of metadata that have no copy on a device that is there: what they tell of cannot be found.
    pub(crate) fn metadata_out_of_reach(&self) -> u64 {
        self.meta.out_of_reach()
    }

    /// What is to be said where the pool cannot be opened for want of these segments; `None` if all are there.
    pub(crate) fn metadata_is_away(&self) -> Option<StoreError> {
        crate::metadata::metadata_is_away(&self.pool, &self.meta)
    }

    /// Where records cannot be looked up, since their tables have no copy on a device that is there: the first and the last key of
    /// each such table. From memory.
    pub(crate) fn keys_out_of_reach(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        if self.meta.out_of_reach() == 0 {
            return Vec::new();
        }
        self.tree.keys_in(|extent| {
            let mut copies = self.meta.copies_of(extent).0.into_iter().flatten();
            !copies.any(|copy| self.pool.has_segment(copy))
        })
    }

    /// What still counts on a device, in words: nothing, once it has left the pool in good order.
    pub(crate) fn claims_on(&self, device: u16) -> Result<Vec<String>, StoreError> {
        let payload = self.pool.read_root().map_err(pool_error)?.unwrap_or_default();
        let root = read_root(&self.pool, &payload)?;
        let data: Vec<_> = self.ledger.lock().segments.keys().copied().collect();
        let all = [
            ("chunks are", data),
            ("metadata is", self.meta.held().into_iter().collect()),
            ("the log is", self.log.segments()),
            ("metadata of the newest root is", root.meta.segments()),
            (
                "the log of the newest root is",
                root.position.segment.iter().collect(),
            ),
        ];
        let on_it = |(what, segments): (&str, Vec<SegmentId>)| {
            let segments = segments.into_iter().filter(|segment| segment.device == device);
            segments
                .map(|segment| format!("{what} in segment {segment}"))
                .collect::<Vec<_>>()
        };
        Ok(all.into_iter().flat_map(on_it).collect())
    }

    /// Each segment in use belongs to one of chunks, metadata and log, and the pool knows of no other.
    fn audit_segments(&self, wrong: &mut Findings) {
        let mut owners: BTreeMap<_, &str> = BTreeMap::new();
        let data: Vec<_> = self.ledger.lock().segments.keys().copied().collect();
        let all = [
            ("chunks", data),
            ("metadata", self.meta.segments()),
            ("the log", self.log.segments()),
        ];
        for (owner, segments) in all {
            for segment in segments {
                if let Some(other) = owners.insert(segment, owner) {
                    wrong.add(|| format!("segment {segment} is used by {other} and by {owner}"));
                }
            }
        }
        for device in self.pool.devices() {
            if device.draining || device.state != terrace_pool::DeviceState::Online {
                continue;
            }
            let used = device.segments.saturating_sub(device.free_segments) as usize;
            let known = owners
                .keys()
                .filter(|segment| segment.device == device.number)
                .count();
            if used != known {
                wrong.add(|| {
                    format!(
                        "device {} has {used} segments in use, {known} are known",
                        device.number
                    )
                });
            }
        }
    }

    fn each(&self, table: u8, visit: impl FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        self.each_between(vec![table], &[table + 1], visit)
    }

    /// The entries of chunks from one to another, exclusive, of a table that has one for each.
    fn each_chunk(
        &self,
        table: u8,
        from: ChunkId,
        to: Option<ChunkId>,
        visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), StoreError> {
        let to = to.map_or_else(|| vec![table + 1], |to| chunk_key(table, to).to_vec());
        self.each_between(chunk_key(table, from).to_vec(), &to, visit)
    }

    fn each_between(
        &self,
        mut from: Vec<u8>,
        to: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), StoreError> {
        loop {
            let records = self.tree.scan(&from, to, SCANNED_AT_ONCE).map_err(meta_error)?;
            let Some((last, _)) = records.last() else {
                return Ok(());
            };
            from = last.to_vec();
            from.push(0);
            records.iter().for_each(|(key, value)| visit(key, value));
        }
    }
}
