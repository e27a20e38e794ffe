//! Audit: the full walk that tests and `verify` compare everything with.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
};

use terrace_meta::{Tree, decode_count};
use terrace_pool::SegmentId;
use terrace_store::{ChunkId, StoreError};

use crate::{
    AuditReport, ChunkStore, Findings, UnreadableMetadata,
    counters::Counters,
    header::HEADER_BYTES,
    pending_free::estimate_of,
    record::{
        ChunkRecord, TABLE_CANDIDATES, TABLE_CHUNKS, TABLE_LIVE, TABLE_REFERENCES, TABLE_SEGMENTS,
        candidate_of_key, chunk_of_key, segment_of_key,
    },
    recover::{read_root, tree_options},
    store::{meta_error, pool_error},
};

/// What the floor above says: calls back with (chunk, blocks) for each reference it holds.
pub type Expected<'a> = &'a dyn Fn(&mut dyn FnMut(ChunkId, i64)) -> Result<(), StoreError>;

impl ChunkStore {
    /// Walks everything: counts, live bytes, locations, overlaps. `expected` (from the floor above) calls back with
    /// (chunk, blocks), any number of times per chunk. Changes nothing; meant for a store at rest.
    pub fn audit(&self, expected: Option<Expected<'_>>) -> Result<AuditReport, StoreError> {
        let mut report = AuditReport::default();
        let mut wrong = Findings::default();
        let mut references: BTreeMap<ChunkId, i64> = BTreeMap::new();
        self.each(TABLE_REFERENCES, |key, value| {
            match (chunk_of_key(key), decode_count(value)) {
                (Some(id), Some(count)) => {
                    references.insert(id, count);
                }
                _ => wrong.add(|| "an entry of the reference table does not decode".into()),
            }
        })?;
        let mut candidates = BTreeSet::new();
        let mut pending = 0;
        self.each(TABLE_CANDIDATES, |key, value| {
            candidates.extend(candidate_of_key(key));
            pending += estimate_of(value);
        })?;
        let counted_all = self.maintenance.lock().reclaim.inherited.is_none();
        let says = self.pending_free.load(Ordering::Relaxed);
        if counted_all && says != pending {
            wrong.add(|| format!("{pending} bytes are to be freed, memory says {says}"));
        }
        let mut claimed = BTreeSet::new();
        self.each(TABLE_SEGMENTS, |key, _| claimed.extend(segment_of_key(key)))?;
        let mut live = BTreeMap::new();
        self.each(TABLE_LIVE, |key, value| {
            if let (Some(segment), Some(bytes)) = (segment_of_key(key), decode_count(value)) {
                live.insert(segment, bytes);
            }
        })?;
        let mut counted: BTreeMap<_, i64> = BTreeMap::new();
        let mut extents: BTreeMap<_, Vec<(u32, u32, ChunkId)>> = BTreeMap::new();
        let mut totals = Counters::default();
        self.each(TABLE_CHUNKS, |key, value| {
            let (Some(id), Ok(record)) = (chunk_of_key(key), ChunkRecord::decode(value)) else {
                wrong.add(|| "an entry of the chunk table does not decode".into());
                return;
            };
            report.chunks += 1;
            totals.chunks += 1;
            totals.unique += i64::from(record.length);
            totals.unique_blocks += record.blocks();
            totals.stored += i64::from(record.stored());
            if !self.format.has_all_sums() && record.has_later_sums() {
                wrong.add(|| format!(
                    "chunk {id} has sums of blocks, which programs of the pool's format version cannot read"
                ));
            }
            if !self.format.has_payloads_apart() && record.is_apart() {
                wrong.add(|| format!(
                    "chunk {id} lies apart from its header, which programs of the pool's format version cannot read"
                ));
            }
            let devices: BTreeSet<u16> = record.locations.iter().map(|at| at.segment.device).collect();
            if devices.len() < record.locations.len() {
                wrong.add(|| format!("two copies of chunk {id} lie on one device"));
            }
            // A device that has left has none any more.
            let tiers: BTreeSet<u8> = devices.iter().filter_map(|device| self.pool.tier_of(*device)).collect();
            if tiers.len() > 1 {
                wrong.add(|| format!("the copies of chunk {id} lie on tiers {tiers:?}"));
            }
            for location in &record.locations {
                *counted.entry(location.segment).or_default() += i64::from(record.stored());
                let extents = extents.entry(location.segment).or_default();
                match location.is_apart() {
                    true => extents.extend([
                        (location.offset, HEADER_BYTES as u32, id),
                        (location.payload, record.payload, id),
                    ]),
                    false => extents.push((location.offset, record.stored(), id)),
                }
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
            let count = references.get(&id).copied().unwrap_or(0);
            if count == 0 && !candidates.contains(&id) && !self.keeper.lock().is_pinned(id) {
                wrong.add(|| format!("chunk {id} has no references and is not on the list of the dead"));
            }
            if count < 0 {
                wrong.add(|| format!("chunk {id} has {count} references"));
            }
        })?;
        for (id, count) in &references {
            totals.blocks += count;
            if !self.chunk_exists(*id)? {
                wrong.add(|| format!("chunk {id} does not exist but has {count} references"));
            }
        }
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
        if counted != live {
            for segment in counted.keys().chain(live.keys()).collect::<BTreeSet<_>>() {
                let (is, says) = (
                    counted.get(segment).unwrap_or(&0),
                    live.get(segment).unwrap_or(&0),
                );
                if is != says {
                    wrong.add(|| format!("segment {segment} has {is} live bytes, its record says {says}"));
                }
            }
        }
        {
            let books = self.keeper.lock();
            wrong.extend(books.discrepancies());
            for (segment, state) in &books.segments {
                let is = counted.get(segment).copied().unwrap_or(0);
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
                .filter(|segment| !books.segments.contains_key(segment))
            {
                wrong.add(|| format!("segment {segment} is in the segment table but not in use"));
            }
        }
        let counters = self.commit.lock().counters;
        if counters != totals {
            wrong.add(|| format!("totals are {totals:?}, the counters say {counters:?}"));
        }
        self.audit_segments(&mut wrong);
        wrong.extend(self.audit_root()?);
        if let Some(expected) = expected {
            let mut held: BTreeMap<ChunkId, i64> = BTreeMap::new();
            expected(&mut |id, blocks| *held.entry(id).or_default() += blocks)?;
            for id in held.keys().chain(references.keys()).collect::<BTreeSet<_>>() {
                let (is, says) = (held.get(id).unwrap_or(&0), references.get(id).unwrap_or(&0));
                if is != says {
                    wrong.add(|| format!("chunk {id} is referred to by {is} blocks, its count says {says}"));
                }
            }
        }
        report.discrepancy_count = wrong.count();
        report.discrepancies = wrong.into_lines();
        Ok(report)
    }

    /// Whether everything that the newest durable root leads to is still held: else it may be written over, and a crash
    /// finds the root without its tables or its log. Reads next to nothing.
    pub fn audit_root(&self) -> Result<Vec<String>, StoreError> {
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

    /// Whether log and tables have two copies on two devices: on a pool of one device, or where a device is full, they do
    /// not.
    pub fn is_mirrored(&self) -> bool {
        self.log.is_mirrored() && self.meta.is_mirrored()
    }

    /// Segments of metadata of which readers met a part that no copy gives, on devices that are there.
    pub fn unreadable_metadata(&self) -> Vec<UnreadableMetadata> {
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
    pub fn metadata_out_of_reach(&self) -> u64 {
        self.meta.out_of_reach()
    }

    /// What is to be said where the pool cannot be opened for want of these segments; `None` if all are there.
    pub fn metadata_is_away(&self) -> Option<StoreError> {
        crate::recover::metadata_is_away(&self.pool, &self.meta)
    }

    /// Where records cannot be looked up, since their tables have no copy on a device that is there: the first and the last key of
    /// each such table. From memory.
    pub fn keys_out_of_reach(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        if self.meta.out_of_reach() == 0 {
            return Vec::new();
        }
        self.tree.keys_in(|extent| {
            let mut copies = self.meta.copies_of(extent).0.into_iter().flatten();
            !copies.any(|copy| self.pool.has_segment(copy))
        })
    }

    /// What still counts on a device, in words: nothing, once it has left the pool in good order.
    pub fn claims_on(&self, device: u16) -> Result<Vec<String>, StoreError> {
        let payload = self.pool.read_root().map_err(pool_error)?.unwrap_or_default();
        let root = read_root(&self.pool, &payload)?;
        let data: Vec<_> = self.keeper.lock().segments.keys().copied().collect();
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
        let data: Vec<_> = self.keeper.lock().segments.keys().copied().collect();
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

    fn each(&self, table: u8, mut visit: impl FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        let mut from = vec![table];
        loop {
            let records = self.tree.scan(&from, &[table + 1], 1024).map_err(meta_error)?;
            let Some((last, _)) = records.last() else {
                return Ok(());
            };
            from = last.to_vec();
            from.push(0);
            records.iter().for_each(|(key, value)| visit(key, value));
        }
    }
}
