//! Writing to the store: chunks of every kind, batches that name them, and flushes.
//!
//! Invariants: the model takes a batch when the store has acknowledged it, or when it may have happened (a commit that
//! failed for a reason outside); references of a batch follow from what its records replace, new ones first; a batch that
//! only deletes is never refused on a full pool.

use terrace_store::{
    Batch, ChunkId, Compression, Dedup, Flow, Owner, Piece, Placement, Sequence, Store, StoreError, Trial,
    Written,
};

use super::{
    recent_writes::Recent,
    world::{Consequence, StoreWorld},
};
use crate::{
    ensure,
    hardware::FaultKind,
    models::Content,
    store::model::{MARKER_KEY, Value, marker_number},
    trace, violation,
    violation::Check,
};

impl StoreWorld {
    fn placement(&mut self) -> Placement {
        let tiers = self.rig.shape.tiers.len() as u64;
        match self.random.below(4) {
            0 => Placement::Tier {
                tier: self.random.below(tiers) as u8,
                strict: self.random.chance(1, 4),
            },
            1 => Placement::Landing(Flow::Sequential),
            _ => Placement::Landing(Flow::Random),
        }
    }

    /// Writes chunks; `None` when it failed in a way that the caller need not care about.
    pub(crate) fn write_chunks(
        &mut self,
        contents: &[Content],
        privileged: bool,
    ) -> Check<Option<Vec<Written>>> {
        let compression = *self.random.pick(&[
            Compression::Off,
            Compression::Lz4,
            Compression::Lz4,
            Compression::Zstd(1),
        ]);
        let dedup = self.random.chance(4, 5);
        let placement = self.placement();
        self.recent.remember(Recent {
            after: self.model.newest(),
            contents: contents.to_vec(),
            compression,
            dedup,
            placement,
        });
        self.write_as(contents, compression, dedup, placement, privileged)
    }

    pub(crate) fn write_as(
        &mut self,
        contents: &[Content],
        compression: Compression,
        dedup: bool,
        placement: Placement,
        privileged: bool,
    ) -> Check<Option<Vec<Written>>> {
        let store = self.store()?;
        let bytes: Vec<Vec<u8>> = contents.iter().map(Content::bytes).collect();
        let pieces: Vec<Piece<'_>> = bytes
            .iter()
            .map(|content| Piece {
                content,
                compression,
                trial: Trial::Untried,
                dedup: Dedup::of_setting(dedup),
                placement,
                owner: Owner::default(),
                privileged,
            })
            .collect();
        match store.write_chunks(&pieces) {
            Ok(written) => {
                ensure!(
                    written.len() == contents.len(),
                    "{} chunks for {} pieces",
                    written.len(),
                    contents.len()
                );
                Ok(Some(written))
            }
            Err(error) => {
                self.note_full(&error);
                match self.judge("write_chunks", &error)? {
                    Consequence::GoOn => {}
                    Consequence::Reopen => self.recover(false)?,
                }
                Ok(None)
            }
        }
    }

    /// Commits changes with the references that follow from them.
    pub(crate) fn commit(
        &mut self,
        mut changes: Vec<(Vec<u8>, Option<Value>)>,
        written: Vec<Written>,
        privileged: bool,
    ) -> Check {
        let store = self.store()?;
        let number = self.model.next_number();
        changes.push((
            MARKER_KEY.to_vec(),
            Some(Value {
                uses: Vec::new(),
                padding: number.to_le_bytes().to_vec(),
            }),
        ));
        let mut batch = Batch::new();
        for (key, value) in &changes {
            // New references first: a chunk shared with a record that this batch replaces must not die in between.
            if let Some(value) = value {
                for chunk in &value.uses {
                    batch.reference(chunk.id, chunk.blocks);
                }
            }
            if let Some(old) = self.model.live().get(key) {
                for chunk in &old.uses {
                    batch.reference(chunk.id, -chunk.blocks);
                }
            }
            match value {
                Some(value) => batch.put(key.clone(), value.encode()),
                None => batch.delete(key.clone()),
            }
        }
        for written in written {
            batch.hold(written);
        }
        if privileged {
            batch.privileged();
        }
        let sequence = store.commit(batch);
        match sequence {
            Ok(sequence) => {
                trace!(
                    self.trace,
                    "batch {number} is sequence {}, {} changes",
                    sequence.0,
                    changes.len()
                );
                ensure!(
                    sequence == store.newest(),
                    "newest() is {:?} after commit gave {sequence:?}",
                    store.newest()
                );
                let uses = changes.iter().filter_map(|(_, value)| value.as_ref());
                let chunks = uses.flat_map(|value| &value.uses).map(|chunk| chunk.id);
                self.log_copies.committed(chunks, number);
                self.model.committed(changes, Some(sequence));
                Ok(())
            }
            Err(StoreError::NoSpace) if self.rig.machine.is_powered() => {
                trace!(self.trace, "batch {number}: no space");
                self.coverage.hit(FaultKind::PoolFull);
                ensure!(
                    !privileged,
                    "a batch that only deletes was refused on a full pool"
                );
                self.expect_marker("after a refused commit")
            }
            Err(error) => {
                self.judge("commit", &error)?;
                // It may or may not have happened: that is for the recovery to tell.
                self.model.committed(changes, None);
                self.recover(false)
            }
        }
    }

    fn expect_marker(&mut self, when: &str) -> Check {
        let store = self.store()?;
        let number = match store.get(MARKER_KEY) {
            Ok(value) => marker_number(value.as_deref())?,
            Err(error) => {
                if let Consequence::Reopen = self.judge("get", &error)? {
                    self.recover(false)?;
                }
                return Ok(());
            }
        };
        ensure!(
            number == self.model.newest(),
            "the store is at batch {number} {when}, not {}",
            self.model.newest()
        );
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> Check {
        let store = self.store()?;
        let sequence = store.newest();
        match store.flush(sequence) {
            Ok(()) => {
                trace!(self.trace, "flush {}", sequence.0);
                self.flushed(sequence);
                Ok(())
            }
            Err(error) => {
                self.judge("flush", &error)?;
                // Whatever the reason: nothing is accepted from now on, and surely no flush succeeds for the same data.
                if self.rig.machine.is_powered() && store.flush(sequence).is_ok() {
                    violation!("a flush failed and then succeeded without anything in between");
                }
                self.recover(false)
            }
        }
    }

    /// Everything up to here is durable, repairs too: each is a batch.
    pub(crate) fn flushed(&mut self, sequence: Sequence) {
        self.model.flushed(sequence);
        self.note_copies_of_the_log();
        self.condition.flushed();
    }

    /// After a flush: how far must all copies of the log be alike now?
    fn note_copies_of_the_log(&mut self) {
        let Some(store) = self.store.clone() else { return };
        if !self.log_may_be_behind() {
            self.log_copies.flushed(|_| false);
            self.model.is_everywhere();
            return;
        }
        let fastest = self.rig.shape.tiers[0].len();
        let is_on_slower_disk = |id: ChunkId| matches!(store.chunk_info(id), Ok(Some(info)) if usize::from(info.device) >= fastest);
        let alike = self.log_copies.flushed(is_on_slower_disk);
        self.model.is_everywhere_until(alike);
    }

    /// Chunks were moved to a slower tier.
    pub(crate) fn moved_to_slower_tier(&mut self) {
        self.log_copies.moved(self.model.newest());
    }
}
