//! The tail of the log: entries that may not have been durable when the power went.
//!
//! Invariants: entries are accepted only from the first one on, without a gap, and only if every chunk record that they
//! introduce, and do not replace or delete again, has its data on a device; each record is verified once at most, so
//! that the work is in proportion to the tail; nothing is written. Of several copies one is enough, and none needs its header: those
//! of which another copy is not there, or a header that lies apart, are named, so that they have these again before they are needed.

use std::collections::HashMap;

use terrace_device::AlignedBuffer;
use terrace_log::Scanned;
use terrace_meta::Operation;
use terrace_pool::Pool;
use terrace_store::ChunkId;
use terrace_sync::{Mutex, rank};

use crate::{
    encoding::{ChunkHeader, ChunkRecord, LoggedBatch, TABLE_CHUNKS, chunk_of_key},
    reading::{Stored, extent_of, neighbours, verified},
    worker_pool::Crew,
};

/// How often a copy is read that does not verify: what is wrong once may be right the next time, and a tail that is
/// given up is lost.
const READ_ATTEMPTS: usize = 3;

/// A chunk record from the entry that introduces it to the one that replaces or deletes it.
struct Life {
    id: ChunkId,
    /// `None`: it does not decode.
    record: Option<ChunkRecord>,
    /// The shortest prefix that has it, in entries.
    from: usize,
    /// The shortest longer prefix that does not.
    until: usize,
    verifies: Option<bool>,
}

impl Life {
    fn is_in(&self, prefix: usize) -> bool {
        (self.from..self.until).contains(&prefix)
    }
}

/// What of a tail is accepted.
pub(crate) struct Accepted {
    /// How many of the entries: the longest prefix that verifies.
    pub(crate) entries: usize,
    /// Chunks in them of which a copy, or a header that lies apart, is not what it should be, though its device is there.
    pub(crate) lacking: Vec<ChunkId>,
}

/// Looks at the entries of a tail.
pub(crate) fn accepted<'a>(
    pool: &Pool,
    crew: &Crew,
    entries: impl ExactSizeIterator<Item = &'a (Scanned, Vec<LoggedBatch>)>,
) -> Accepted {
    let count = entries.len();
    let mut lives = lives_in(entries);
    let entries = longest_prefix(count, &mut lives, |lives, prefix| {
        verify_lives(pool, crew, lives, prefix);
    });
    let left = lives.iter().filter(|life| life.is_in(entries));
    let left: Vec<(ChunkId, &ChunkRecord)> = left
        .filter_map(|life| Some((life.id, life.record.as_ref()?)))
        .collect();
    let lacking = left.iter().filter(|(_, record)| lacks_copy(pool, record));
    let mut lacking: Vec<ChunkId> = lacking.map(|(id, _)| *id).collect();
    lacking.extend(untold(pool, crew, &left));
    Accepted { entries, lacking }
}

/// Those of these chunks of which a header that lies apart is not there: a power cut may have taken the block that has it, and left the
/// payload.
fn untold(pool: &Pool, crew: &Crew, chunks: &[(ChunkId, &ChunkRecord)]) -> Vec<ChunkId> {
    let apart = chunks.iter().flat_map(|(id, record)| {
        let there = record.locations.iter();
        let there = there.filter(|location| location.is_apart() && pool.has_segment(location.segment));
        there.map(|location| (*id, Stored::header(*location)))
    });
    let (ids, headers): (Vec<ChunkId>, Vec<Stored>) = apart.unzip();
    let told = Mutex::<_, rank::Leaf>::new(vec![false; ids.len()]);
    read_all(pool, crew, &headers, &|at, head| {
        let tells = ChunkHeader::decode(head).is_ok_and(|header| header.id == ids[at]);
        told.lock()[at] = tells;
    });
    let told = told.into_inner();
    let untold = ids.into_iter().zip(told).filter(|(_, told)| !told);
    untold.map(|(id, _)| id).collect()
}

/// Whether one of several copies is not what it should be: a power cut may have taken it on one device only.
fn lacks_copy(pool: &Pool, record: &ChunkRecord) -> bool {
    let mut there = record
        .locations
        .iter()
        .filter(|location| pool.has_segment(location.segment));
    record.locations.len() > 1
        && there.any(|location| {
            let payload =
                crate::reading::read_stored(pool, location.segment, location.payload, record.payload);
            !payload.is_ok_and(|payload| verified(record, &payload).is_some())
        })
}

/// `verify` gives every life in a prefix its verdict.
fn longest_prefix(entries: usize, lives: &mut [Life], mut verify: impl FnMut(&mut [Life], usize)) -> usize {
    let mut prefix = entries;
    while prefix > 0 {
        verify(lives, prefix);
        let bad = |life: &&Life| life.is_in(prefix) && life.verifies == Some(false);
        match lives.iter().filter(bad).map(|life| life.from).min() {
            // Every prefix from there to here has it.
            Some(from) => prefix = from - 1,
            None => break,
        }
    }
    prefix
}

fn lives_in<'a>(entries: impl Iterator<Item = &'a (Scanned, Vec<LoggedBatch>)>) -> Vec<Life> {
    let mut lives: Vec<Life> = Vec::new();
    let mut alive: HashMap<ChunkId, usize> = HashMap::new();
    for (entry, (_, batches)) in entries.enumerate() {
        for (key, operation) in batches.iter().flat_map(|batch| &batch.operations) {
            if key.first() != Some(&TABLE_CHUNKS) {
                continue;
            }
            let Some(id) = chunk_of_key(key) else { continue };
            let ended = match operation {
                Operation::Put(value) => {
                    lives.push(Life {
                        id,
                        record: ChunkRecord::decode(value).ok(),
                        from: entry + 1,
                        until: usize::MAX,
                        verifies: None,
                    });
                    alive.insert(id, lives.len() - 1)
                }
                _ => alive.remove(&id),
            };
            if let Some(ended) = ended {
                lives[ended].until = entry + 1;
            }
        }
    }
    lives
}

/// Verifies what is in a prefix and has not been verified: first copies that lie near each other together, then what
/// is left one by one.
fn verify_lives(pool: &Pool, crew: &Crew, lives: &mut [Life], prefix: usize) {
    let open: Vec<usize> = (0..lives.len())
        .filter(|at| lives[*at].is_in(prefix) && lives[*at].verifies.is_none())
        .collect();
    let records: Vec<Option<&ChunkRecord>> = open.iter().map(|at| lives[*at].record.as_ref()).collect();
    let firsts: Vec<(usize, Stored)> = records
        .iter()
        .enumerate()
        .filter_map(|(number, record)| {
            let record = (*record)?;
            let location = *record.locations.first()?;
            Some((number, Stored::payload(location, 0..record.payload as usize)))
        })
        .collect();
    let wanted: Vec<Stored> = firsts.iter().map(|(_, stored)| *stored).collect();
    let good: Vec<Mutex<bool, rank::Leaf>> = open.iter().map(|_| Mutex::new(false)).collect();
    read_all(pool, crew, &wanted, &|at, stored| {
        let (number, _) = firsts[at];
        if let Some(record) = records[number] {
            *good[number].lock() = verified(record, stored).is_some();
        }
    });
    let verdicts: Vec<bool> = records
        .iter()
        .zip(good)
        .map(|(record, good)| good.into_inner() || record.is_some_and(|record| verifies(pool, record)))
        .collect();
    for (at, verdict) in open.into_iter().zip(verdicts) {
        lives[at].verifies = Some(verdict);
    }
}

/// Calls `each` with the number and the bytes of what of `wanted` can be read, neighbours in one read.
fn read_all(pool: &Pool, crew: &Crew, wanted: &[Stored], each: &(dyn Fn(usize, &[u8]) + Sync)) {
    let spans = neighbours(wanted);
    let rest = Mutex::<_, rank::Leaf>::new(spans.iter());
    crew.run(spans.len(), || {
        let mut buffer = AlignedBuffer::default();
        loop {
            let Some(span) = rest.lock().next() else { break };
            let Some((segment, extent)) = extent_of(pool, wanted, span) else {
                continue;
            };
            let bytes = buffer.reuse(extent.len());
            if pool.read(segment, extent.start as u64, bytes).is_err() {
                continue;
            }
            for at in span {
                if let Some(stored) = wanted[*at].of(&buffer, extent.start) {
                    each(*at, stored);
                }
            }
        }
    });
}

/// Whether a copy of a chunk holds what it should; an unreadable device says nothing about a torn tail.
fn verifies(pool: &Pool, record: &ChunkRecord) -> bool {
    let mut unreadable = 0;
    let attempts = record
        .locations
        .iter()
        .flat_map(|location| [location; READ_ATTEMPTS]);
    for location in attempts {
        match crate::reading::read_stored(pool, location.segment, location.payload, record.payload) {
            Ok(payload) => {
                if verified(record, &payload).is_some() {
                    return true;
                }
            }
            Err(_) => unreadable += 1,
        }
    }
    unreadable == record.locations.len() * READ_ATTEMPTS
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use terrace_log::{Copies, LogPosition};
    use terrace_pool::SegmentId;

    use super::*;
    use crate::encoding::{Counters, chunk_key};

    /// `true` puts a record, `false` deletes one.
    type Steps = Vec<(u64, bool)>;

    fn entry(steps: &Steps) -> (Scanned, Vec<LoggedBatch>) {
        let segment = Copies([Some(SegmentId { device: 0, index: 0 }), None]);
        let after = LogPosition {
            segment,
            offset: 0,
            next: segment,
            previous: [0; 32],
            sequence: 0,
        };
        let scanned = Scanned {
            first: 1,
            last: 1,
            flushed: 0,
            payload: Vec::new(),
            after,
        };
        let operations = steps
            .iter()
            .map(|(id, put)| {
                let operation = if *put {
                    Operation::Put(terrace_meta::Value::new(&[]))
                } else {
                    Operation::Delete
                };
                (chunk_key(TABLE_CHUNKS, ChunkId(*id)).into(), operation)
            })
            .collect();
        let batch = LoggedBatch {
            sequence: 1,
            change: Counters::default(),
            next_chunk: 1,
            operations,
        };
        (scanned, vec![batch])
    }

    /// By definition: what is left after each prefix, longest first. Puts are numbered as they come.
    fn by_definition(entries: &[Steps], bad: &[bool]) -> usize {
        (1..=entries.len())
            .rev()
            .find(|prefix| {
                let mut left = BTreeMap::new();
                let mut number = 0;
                for (id, put) in entries[..*prefix].iter().flatten() {
                    if *put {
                        left.insert(id, number);
                        number += 1;
                    } else {
                        left.remove(id);
                    }
                }
                left.values().all(|number| !bad[*number])
            })
            .unwrap_or(0)
    }

    proptest! {
        #[test]
        fn the_longest_prefix_is_found_and_each_record_verified_once(
            entries in prop::collection::vec(prop::collection::vec((0_u64..6, prop::bool::weighted(0.7)), 0..5), 0..12),
            bad in prop::collection::vec(prop::bool::weighted(0.2), 60),
        ) {
            let all: Vec<_> = entries.iter().map(entry).collect();
            let mut lives = lives_in(all.iter());
            let mut verified = 0;
            let found = longest_prefix(all.len(), &mut lives, |lives, prefix| {
                for (number, life) in lives.iter_mut().enumerate() {
                    if life.is_in(prefix) && life.verifies.is_none() {
                        life.verifies = Some(!bad[number]);
                        verified += 1;
                    }
                }
            });
            prop_assert_eq!(found, by_definition(&entries, &bad));
            prop_assert!(verified <= lives.len());
        }
    }
}
