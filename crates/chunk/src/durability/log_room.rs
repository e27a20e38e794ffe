//! Room in the log: a batch is accepted only if the log can take it.
//!
//! A log that comes to the end of its segment and finds no other cannot be written, which stops the store for good. So whoever
//! commits is refused before anything of the batch is there, while what was committed before still has its place, and while
//! the store can do what gives room back: a root that starts behind the log shortens it.
//!
//! Invariants: what was accepted fits in the log, in one entry or several; segments that this takes beyond those that the log has
//! are left free by tables. What background work commits is not asked for: a margin is kept for it, and it rests when
//! that is used up.

use terrace_store::ChunkId;

use super::group_commit::Journal;
use crate::space::Margin;

/// What a reference takes in the log, and what a new chunk does, bytes: more than that hardly ever.
const REFERENCE_BYTES: u64 = 64;
const CHUNK_BYTES: u64 = 384;

/// What a batch takes in the log, bytes; `references`: chunks, and by how much.
pub(crate) fn log_bytes(records: &[(Vec<u8>, Option<Vec<u8>>)], references: &[(ChunkId, i64)]) -> u64 {
    let records = records.iter().map(|(key, value)| {
        let value = value.as_ref().map_or(0, Vec::len);
        (key.len() + value + 8) as u64
    });
    let references = references.iter().map(|(_, blocks)| match *blocks > 0 {
        true => CHUNK_BYTES,
        false => REFERENCE_BYTES,
    });
    records.sum::<u64>() + references.sum::<u64>()
}

impl Journal {
    /// Whether the log takes `due` bytes that it does not have yet. To be asked while none are added to these.
    pub(crate) fn log_takes(&self, due: u64, margin: Margin) -> bool {
        let takes = self.space.has_log_space(due, margin);
        if takes {
            self.meta.leave_for_log(self.space.log_segments(due));
        }
        takes
    }

    /// Of what was taken from the pending batches nothing is on its way into the log any more.
    pub(super) fn landed_in_log(&self) {
        self.catalog.note_landed(|due| {
            self.meta.leave_for_log(match due {
                0 => 0,
                due => self.space.log_segments(due),
            });
        });
    }

    /// Whether the margin is used, so that the log has to be shortened before anything else makes records.
    pub(crate) fn is_log_short(&self) -> bool {
        !self
            .catalog
            .with_due_bytes(|due| self.log_takes(due, Margin::All))
    }

    /// Whether so much of it is used that nothing else may make records.
    pub(crate) fn is_log_at_its_end(&self) -> bool {
        !self
            .catalog
            .with_due_bytes(|due| self.log_takes(due, Margin::Half))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use terrace_meta::{ExtentStorage, Key, Operation, Value};
    use terrace_pool::{Request, SegmentId, SegmentKind, TierChoice};
    use terrace_store::{Batch, Sequence, Store};

    use super::*;
    use crate::ChunkStore;
    use crate::{
        Options, Step,
        encoding::Counters,
        store_in_memory::{raw_piece, store_in_memory},
    };
    use terrace_store::StoreError;

    /// Takes segments, as tables do, until so many are free.
    fn take_all_but(store: &ChunkStore, free: u64) -> Vec<SegmentId> {
        let request = Request {
            choice: TierChoice::Fastest,
            kind: SegmentKind::Metadata,
            avoid: &[],
            garbage: &[],
            leave_free: free,
        };
        std::iter::from_fn(|| store.pool().allocate(&request).ok()).collect()
    }

    fn commit(store: &ChunkStore, number: u64, bytes: usize) -> Result<Sequence, StoreError> {
        let mut batch = Batch::new();
        for part in 0..bytes.div_ceil(4000) as u64 {
            let key = [&[0x30][..], &number.to_be_bytes(), &part.to_be_bytes()].concat();
            batch.put(key, vec![number as u8; 4000]);
        }
        store.commit(batch)
    }

    #[test]
    fn a_log_that_finds_no_segment_refuses_batches_and_does_not_stop_the_store() {
        let store = store_in_memory(64 << 20, Options::default());
        let taken = take_all_but(&store, 0);
        let mut committed = 0;
        let refused = loop {
            match commit(&store, committed, 20_000) {
                Ok(sequence) if committed % 3 == 0 => store.flush(sequence).unwrap(),
                Ok(_) => {}
                Err(error) => break error,
            }
            committed += 1;
            let _ = store.step();
        };
        assert!(matches!(refused, StoreError::NoSpace), "{refused}");
        assert!(committed > 20, "much of two segments is used: {committed}");
        assert!(store.stopped().is_none());
        // What was accepted before can be made durable, and background work has no need of more.
        store.flush(store.newest()).unwrap();
        for _ in 0..100 {
            let _ = store.step();
        }
        store.flush(store.newest()).unwrap();
        assert!(matches!(
            commit(&store, committed, 20_000),
            Err(StoreError::NoSpace)
        ));
        for segment in taken {
            store.pool().release(segment).unwrap();
        }
        for number in committed..committed + 200 {
            store.flush(commit(&store, number, 20_000).unwrap()).unwrap();
            while store.step().unwrap() == Step::More {}
        }
        assert_eq!(
            store.scan(&[0x30], &[0x31], 10_000).unwrap().len() as u64,
            (committed + 200) * 5
        );
    }

    #[test]
    fn a_log_at_its_end_goes_on_in_what_is_dead() {
        let store = store_in_memory(64 << 20, Options::default());
        let (mut batch, mut gone) = (Batch::new(), Batch::new());
        for number in 0..100u32 {
            let hash = *blake3::hash(&number.to_le_bytes()).as_bytes();
            let written = store
                .write_chunks(&[raw_piece(&hash.repeat(2000))])
                .unwrap()
                .remove(0);
            batch.reference(written.id, 1);
            gone.reference(written.id, -1);
            batch.hold(written);
        }
        store.commit(batch).unwrap();
        store.close_streams().unwrap();
        store.checkpoint().unwrap();
        store.flush(store.commit(gone).unwrap()).unwrap();
        take_all_but(&store, 0);
        // Nor is there any room in the segment that tables are written to.
        while store.handles().meta.write(&[7; 4096]).is_ok() {}
        // As an opening may find it, or what the background commits may leave.
        while !store.journal().is_log_short() {
            let large = Operation::Put(Value::new(&[7; 4000]));
            let sequence = store
                .catalog()
                .commit_internal(vec![(Key::new(&[0x40]), large)], Counters::default());
            store.flush(Sequence(sequence.unwrap())).unwrap();
        }
        for number in 0..200 {
            store.flush(commit(&store, number, 20_000).unwrap()).unwrap();
        }
    }

    #[test]
    fn what_brings_room_back_stops_at_the_end_of_the_log() {
        let store = store_in_memory(64 << 20, Options::default());
        for first in (0..20_000u32).step_by(500) {
            let contents: Vec<_> = (first..first + 500).map(u32::to_le_bytes).collect();
            let pieces: Vec<_> = contents.iter().map(|content| raw_piece(content)).collect();
            let (mut batch, mut gone) = (Batch::new(), Batch::new());
            for written in store.write_chunks(&pieces).unwrap() {
                batch.reference(written.id, 1);
                gone.reference(written.id, -1);
                batch.hold(written);
            }
            store.commit(batch).unwrap();
            store.commit(gone).unwrap();
        }
        store.checkpoint().unwrap();
        take_all_but(&store, 0);
        let refused = (0..).find_map(|number| commit(&store, number, 20_000).err());
        assert!(matches!(refused, Some(StoreError::NoSpace)));
        // As whoever writes has it done, on the way.
        for _ in 0..100 {
            let mut state = store.collector().try_turn().unwrap();
            let _ = store.compactor().bring_back(&mut state, None);
        }
        store.flush(store.newest()).unwrap();
        assert!(store.stopped().is_none());
    }

    #[test]
    fn tables_leave_the_segments_that_what_was_accepted_needs() {
        let store = store_in_memory(64 << 20, Options::default());
        let large = 5 << 19;
        take_all_but(&store, 1);
        let takes = |due| store.journal().log_takes(due + large as u64, Margin::All);
        assert!(store.catalog().with_due_bytes(takes));
        let table = store.handles().meta.write(&[7; 4096]);
        assert!(
            matches!(table, Err(terrace_meta::ExtentError::NoSpace(_))),
            "{table:?}"
        );
        store.flush(commit(&store, 1, large - 4096).unwrap()).unwrap();
        assert!(store.stopped().is_none());
    }
}
