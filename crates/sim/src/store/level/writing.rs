//! Clients of the store that write: chunks of every kind, batches that name them, and flushes.
//!
//! Invariants: the model takes a batch when the store has acknowledged it, or when it may have happened (a commit that
//! failed for a reason outside); references of a batch follow from what its records replace, new ones first; a batch that
//! only deletes is never refused on a full pool.

use terrace_store::{
    Batch, Compression, Dedup, Flow, Owner, Piece, Placement, Sequence, Store, StoreError, Trial, Written,
};

use super::{
    Consequence, Run,
    again::{RECENT_MAX, Recent},
};
use crate::{
    ensure,
    hardware::FaultKind,
    run::{Check, Content},
    store::model::{ChunkUse, MARKER_KEY, Value, marker_number},
    trace, violation,
};

/// Keys that the workload uses.
const KEYS: u64 = 120;
impl Run {
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
    pub(super) fn write_chunks(
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
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(Recent {
            after: self.model.newest(),
            contents: contents.to_vec(),
            compression,
            dedup,
            placement,
        });
        self.write_as(contents, compression, dedup, placement, privileged)
    }

    pub(super) fn write_as(
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

    pub(super) fn note_full(&self, error: &StoreError) {
        if let StoreError::NoSpace = error {
            self.coverage.hit(FaultKind::PoolFull);
        }
    }

    pub(super) fn key(&mut self) -> Vec<u8> {
        let number = self.random.below(KEYS);
        let mut key = vec![0x20 + (number % 3) as u8, 1];
        key.extend_from_slice(&number.to_be_bytes()[6..]);
        if number.is_multiple_of(7) {
            key.extend_from_slice(&[0xAB; 90]);
        }
        key
    }

    pub(super) fn commit_batch(&mut self) -> Check {
        let keys: Vec<Vec<u8>> = (0..self.random.between(1, 6)).map(|_| self.key()).collect();
        let most = *self.random.pick(&[5_000, 20_000, 60_000, 131_072]);
        let count = if self.random.chance(1, 5) {
            0
        } else {
            self.random.between(1, 6)
        };
        let contents: Vec<Content> = (0..count)
            .map(|_| Content::choose(&mut self.random, most))
            .collect();
        let mut fresh = Vec::new();
        if !contents.is_empty() {
            let Some(written) = self.write_chunks(&contents, false)? else {
                return Ok(());
            };
            fresh = written.into_iter().zip(contents).collect();
        }
        if self.random.chance(1, 8) && !fresh.is_empty() {
            // Kept for a later batch, or for none.
            self.held.append(&mut fresh);
            return Ok(());
        }
        if self.random.chance(1, 3) {
            fresh.append(&mut self.held);
        }
        let mut changes: Vec<(Vec<u8>, Option<Value>)> = Vec::new();
        for key in keys {
            if changes.iter().any(|(other, _)| *other == key) {
                continue;
            }
            if self.random.chance(1, 5) {
                changes.push((key, None));
                continue;
            }
            let mut value = Value::default();
            for _ in 0..self.random.below(4) {
                // New chunks, or those of another record (a clone).
                let shared = self.random.chance(1, 4);
                if shared && !self.model.live().is_empty() {
                    let index = self.random.index(self.model.live().len());
                    let donor = self.model.live().values().nth(index);
                    if let Some(chunk) = donor.and_then(|value| value.uses.first()) {
                        value.uses.push(ChunkUse {
                            blocks: self.random.between(1, 32) as i64,
                            ..*chunk
                        });
                    }
                } else if !fresh.is_empty() {
                    let (written, content) = &fresh[self.random.index(fresh.len())];
                    let blocks = i64::from(content.length.div_ceil(4096));
                    value.uses.push(ChunkUse {
                        id: written.id,
                        content: *content,
                        blocks,
                    });
                }
            }
            let long = self.random.chance(if self.wordy { 29 } else { 1 }, 30);
            value.padding = vec![
                self.random.next() as u8;
                match (long, self.wordy) {
                    (true, true) => self.random.between(8_000, 30_000),
                    (true, false) => self.random.skewed(30_000),
                    _ => self.random.skewed(300),
                } as usize
            ];
            changes.push((key, Some(value)));
        }
        self.commit(
            changes,
            fresh.into_iter().map(|(written, _)| written).collect(),
            false,
        )
    }

    /// Commits changes with the references that follow from them.
    pub(super) fn commit(
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
                for chunk in uses.flat_map(|value| &value.uses) {
                    if self.known.insert(chunk.id) {
                        self.told.push((chunk.id, number));
                    }
                }
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

    pub(super) fn flush(&mut self) -> Check {
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
    pub(super) fn flushed(&mut self, sequence: Sequence) {
        self.model.flushed(sequence);
        self.note_copies_of_the_log();
        self.ragged &= !std::mem::take(&mut self.mended);
    }

    pub(super) fn drop_held(&mut self) -> Check {
        self.held.clear();
        Ok(())
    }
}
