//! `Looking`: which chunks lie in a segment whose headers do not tell it, found in the table of all chunks, some records a step.
//!
//! Headers are damaged, or chunks came and went while they were read. Invariants: a step reads a bounded number of records, so that
//! whoever waits for a checkpoint or for room gets a turn, however large the pool; a chunk that lay in the segment all the time
//! is found; one that left meanwhile is no matter for who moves it.

use terrace_pool::SegmentId;
use terrace_store::ChunkId;

use super::{
    compaction::{Compactor, Emptying},
    turn::Maintenance,
};
use crate::encoding::{ChunkRecord, TABLE_CHUNKS, chunk_of_key};

/// Records that a step reads, and that are read at once.
const STEP_RECORDS: usize = 8192;
const SCAN: usize = 1024;

/// How far a look is.
#[derive(Debug)]
pub(crate) struct Looking {
    segment: SegmentId,
    /// The key of the record to go on with.
    from: Vec<u8>,
    found: Vec<ChunkId>,
}

impl Compactor {
    /// Has it found out, step by step, what lies in a segment whose headers do not tell.
    pub(super) fn begin_looking(&self, state: &mut Maintenance, segment: SegmentId) {
        state.looking.get_or_insert(Looking {
            segment,
            from: vec![TABLE_CHUNKS],
            found: Vec::new(),
        });
    }

    /// Goes on with a look, whose segment is compacted when it is done; whether there was one.
    pub(super) fn look_step(&self, state: &mut Maintenance) -> bool {
        let Some(mut looking) = state.looking.take() else {
            return false;
        };
        for _ in 0..STEP_RECORDS / SCAN {
            let records = self.tree.scan(&looking.from, &[TABLE_CHUNKS + 1], SCAN);
            let records = match records {
                Ok(records) => records,
                // The others are compacted all the same.
                Err(cause) => {
                    tracing::error!(segment = %looking.segment, %cause, "a segment cannot be compacted");
                    state.stuck.insert(looking.segment);
                    return true;
                }
            };
            let Some((last, _)) = records.last() else {
                let ledger = self.ledger.lock();
                let segment = ledger.segments.get(&looking.segment);
                // It may have been given back meanwhile, and taken for something else.
                if segment.is_some_and(|segment| !segment.open && !segment.freeing) {
                    state.compacting = Some(Emptying::Listed(looking.segment, looking.found));
                }
                return true;
            };
            looking.from = last.to_vec();
            looking.from.push(0);
            let is_here = |value: &[u8]| {
                let record = ChunkRecord::decode(value);
                record.is_ok_and(|record| record.locations.iter().any(|at| at.segment == looking.segment))
            };
            let here = records.iter().filter(|(_, value)| is_here(value));
            looking
                .found
                .extend(here.filter_map(|(key, _)| chunk_of_key(key)));
        }
        state.looking = Some(looking);
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use terrace_store::{Batch, Store};

    use super::*;
    use crate::{
        Options,
        gc::sweep::Sweep,
        store_in_memory::{raw_piece, store_in_memory},
    };

    const CHUNKS: u32 = 20_000;

    fn content(number: u32) -> Vec<u8> {
        blake3::hash(&number.to_le_bytes()).as_bytes().repeat(16)
    }

    #[test]
    fn what_headers_do_not_tell_is_found_in_steps_and_moved() {
        let store = store_in_memory(160 << 20, Options::default());
        let mut ids = Vec::new();
        for first in (0..CHUNKS).step_by(500) {
            let contents: Vec<_> = (first..first + 500).map(content).collect();
            let pieces: Vec<_> = contents.iter().map(|content| raw_piece(content)).collect();
            let mut batch = Batch::new();
            for written in store.write_chunks(&pieces).unwrap() {
                ids.push(written.id);
                batch.reference(written.id, 1);
                batch.hold(written);
            }
            store.commit(batch).unwrap();
        }
        store.close_streams().unwrap();
        let place = |id: ChunkId| {
            let first = store.catalog().record(id).unwrap().unwrap().locations[0];
            (first.segment, first.offset)
        };
        let (segment, offset) = place(ids[CHUNKS as usize / 2]);
        let wanted: BTreeSet<ChunkId> = ids.iter().copied().filter(|id| place(*id).0 == segment).collect();
        // The header of one of them goes bad; what it leads to is sound.
        let (start, at) = (offset / 4096 * 4096, offset as usize % 4096);
        let mut block = vec![0; 4096];
        store.pool().read(segment, start.into(), &mut block).unwrap();
        block[at] ^= 1;
        store.pool().write(segment, start.into(), &block).unwrap();

        let mut state = store.collector().maintenance.lock();
        state.compacting = Some(Emptying::Swept(Sweep::new(segment)));
        while state.compacting.is_some() {
            store.compactor().compact_step(&mut state).unwrap();
        }
        let mut steps = 0;
        while state.compacting.is_none() {
            assert!(store.compactor().look_step(&mut state));
            steps += 1;
        }
        assert!(steps > CHUNKS as usize / STEP_RECORDS, "{steps}");
        assert!(!store.compactor().look_step(&mut state), "it is done");
        let found = match &state.compacting {
            Some(Emptying::Listed(_, ids)) => ids.clone(),
            other => panic!("{other:?}"),
        };
        // The one, and what lies behind it up to where a header is looked for again.
        assert!(found.contains(&ids[CHUNKS as usize / 2]) && found.len() < wanted.len());
        let left: BTreeSet<ChunkId> = wanted
            .iter()
            .copied()
            .filter(|id| place(*id).0 == segment)
            .collect();
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), left);
        while state.compacting.is_some() {
            store.compactor().compact_step(&mut state).unwrap();
        }
        assert!(wanted.iter().all(|id| place(*id).0 != segment));
        let number = CHUNKS / 2;
        assert_eq!(store.read_chunk(ids[number as usize]).unwrap(), content(number));
    }
}
