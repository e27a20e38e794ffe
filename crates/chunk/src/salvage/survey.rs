//! `Survey`: everything in all segments of a pool that describes itself – chunks, metadata tables, copies of roots, log
//! entries – found without any table.
//!
//! Invariants: what is listed passed its own sum (of a chunk and of a table: the sum of its header; their content is
//! verified when it is read); memory is in proportion to what is found, never to what a header claims; a segment is
//! read a small number of times at most, whatever its bytes claim, so that a hostile image cannot hold the survey up.

use std::collections::{BTreeMap, HashMap};

use terrace_pool::{Pool, SegmentId};
use terrace_store::ChunkId;

use crate::{
    encoding::{ChunkPlace, EntryPlace, TablePlace},
    metadata::replay_start,
    reading::{Thing, Walk},
};

/// Copies of roots that are kept: the newest ones.
const ROOTS_MAX: usize = 256;

/// What was found in the segments of a pool.
#[derive(Debug, Default)]
pub struct Survey {
    /// Chunks, those of earlier uses of a segment included; ascending by id.
    pub chunks: Vec<ChunkPlace>,
    /// Metadata tables, those given up included.
    pub tables: Vec<TablePlace>,
    /// Payloads of copies of roots, with the sequence at which each starts its replay; the newest 256.
    pub roots: Vec<(u64, Vec<u8>)>,
    /// Log entries.
    pub entries: Vec<EntryPlace>,
    /// Bytes read.
    pub bytes: u64,
    /// Bytes that no read returned.
    pub unreadable_bytes: u64,
}

impl Survey {
    /// Bytes that a survey of a pool reads.
    pub fn total_bytes(pool: &Pool) -> u64 {
        let segments: u64 = pool
            .devices()
            .iter()
            .map(|device| u64::from(device.segments))
            .sum();
        segments * u64::from(pool.segment_bytes())
    }

    /// Reads all segments of all devices that are there; `progress` gets the bytes done.
    pub fn new(pool: &Pool, progress: &mut dyn FnMut(u64)) -> Self {
        let mut survey = Self::default();
        let mut tables: BTreeMap<(u64, u64, u64), TablePlace> = BTreeMap::new();
        let mut entries: HashMap<[u8; 32], EntryPlace> = HashMap::new();
        let mut roots: BTreeMap<(u64, [u8; 32]), Vec<u8>> = BTreeMap::new();
        let mut done = 0;
        for device in pool.devices() {
            for index in 0..device.segments {
                let segment = SegmentId {
                    device: device.number,
                    index,
                };
                let mut take = |offset: u32, thing: Thing| match thing {
                    Thing::Chunk(_) | Thing::Heads(_) => survey.chunks.extend(thing.chunks(segment, offset)),
                    Thing::Table(preface) => {
                        let key = (preface.number, preface.head_sum, preface.up_to);
                        let found = tables.entry(key).or_insert_with(|| TablePlace {
                            preface,
                            copies: Vec::new(),
                        });
                        if found.preface == preface {
                            found.copies.push((segment, offset));
                        }
                    }
                    Thing::Root(payload) => {
                        if let Ok(sequence) = replay_start(&payload) {
                            let sum = *blake3::hash(&payload).as_bytes();
                            roots.insert((sequence, sum), payload);
                            if roots.len() > ROOTS_MAX {
                                roots.pop_first();
                            }
                        }
                    }
                    Thing::Entry(header) => entries
                        .entry(header.sum)
                        .or_insert_with(|| EntryPlace {
                            header,
                            copies: Vec::new(),
                        })
                        .copies
                        .push((segment, offset)),
                };
                let walked = Walk::new(pool, segment).run(&mut take);
                survey.bytes += walked.0;
                survey.unreadable_bytes += walked.1;
                done += u64::from(pool.segment_bytes());
                progress(done);
            }
        }
        survey
            .chunks
            .sort_unstable_by_key(|place| (place.id, place.segment, place.offset));
        survey.tables = tables.into_values().collect();
        survey.entries = entries.into_values().collect();
        survey
            .entries
            .sort_by_key(|entry| (entry.header.first, entry.header.last, entry.header.sum));
        survey.roots = roots
            .into_iter()
            .rev()
            .map(|((sequence, _), payload)| (sequence, payload))
            .collect();
        survey
    }

    /// All places of a chunk.
    pub fn places(&self, id: ChunkId) -> &[ChunkPlace] {
        let first = self.chunks.partition_point(|place| place.id < id);
        let count = self.chunks[first..].partition_point(|place| place.id == id);
        &self.chunks[first..first + count]
    }
}
