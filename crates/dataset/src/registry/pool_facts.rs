//! Facts of the pool that must outlive what they count: the numbers that the next dataset and the next sweep job get; and the list of
//! these jobs.
//!
//! Invariant: an older state of the facts never follows a newer one: their lock is held over the commit that has them.

use std::sync::Arc;

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_store::{Batch, Sequence, Store, StoreError};
use terrace_sync::{Mutex, rank};

use crate::{
    records::{Checkpoints, Job, PoolRecords, SweepJobs, damaged, keys},
    settings::DatasetError,
};

/// Pool-wide facts that must outlive what they count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// At least one more than every checkpoint in any record when this was written.
    pub checkpoint: u64,
    /// The number that the next dataset gets.
    pub next_dataset: u32,
    /// The number that the next background freeing gets.
    pub next_sweep: u64,
}

impl Facts {
    /// The value of their record.
    pub fn encode(self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer
            .varint(self.checkpoint)
            .varint(u64::from(self.next_dataset))
            .varint(self.next_sweep);
        writer.into_bytes()
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(value);
        let checkpoint = reader.varint("checkpoint")?;
        let next_dataset = u32::try_from(reader.varint("next dataset")?)
            .map_err(|_| DecodeError::Invalid("next dataset"))?;
        let next_sweep = reader.varint("next sweep job")?;
        reader.finish()?;
        Ok(Self {
            checkpoint,
            next_dataset,
            next_sweep,
        })
    }
}

/// The facts as they are now.
pub(crate) struct PoolFacts {
    store: Arc<dyn Store>,
    facts: Mutex<Facts, rank::dataset::Facts>,
    checkpoints: Arc<Checkpoints>,
    jobs: SweepJobs,
}

impl PoolFacts {
    /// As they are recorded; of a new pool the first ones.
    pub(crate) fn open(store: Arc<dyn Store>) -> Result<Self, StoreError> {
        let jobs = SweepJobs::open(&store)?;
        let mut facts = match PoolRecords::of(store.as_ref()).get(&keys::pool("facts"))? {
            Some(value) => Facts::decode(&value).map_err(|cause| damaged("the pool's facts", &cause))?,
            None => Facts {
                checkpoint: 1,
                next_dataset: 1,
                next_sweep: 1,
            },
        };
        facts.next_sweep = facts.next_sweep.max(jobs.next_number());
        Ok(Self {
            checkpoints: Arc::new(Checkpoints::new(facts.checkpoint)),
            facts: Mutex::new(facts),
            jobs,
            store,
        })
    }

    /// The pool-wide checkpoint counter.
    pub(crate) fn checkpoints(&self) -> &Arc<Checkpoints> {
        &self.checkpoints
    }

    /// What is to be freed in the background.
    pub(crate) fn jobs(&self) -> &SweepJobs {
        &self.jobs
    }

    /// A number for a dataset; it is used up.
    pub(crate) fn next_dataset(&self) -> Result<u32, DatasetError> {
        let mut facts = self.facts.lock();
        let number = facts.next_dataset;
        facts.next_dataset = number
            .checked_add(1)
            .ok_or_else(|| DatasetError::Refused("no dataset number is left".into()))?;
        Ok(number)
    }

    /// Numbers a sweep job and puts its record into the batch that makes it; the number is used up.
    pub(crate) fn number_job(&self, batch: &mut Batch, job: Job) -> (u64, Job) {
        let mut facts = self.facts.lock();
        let number = facts.next_sweep;
        facts.next_sweep += 1;
        batch.put(keys::sweep(number), job.encode());
        (number, job)
    }

    /// Deletes the record of a job of which nothing is left to do.
    pub(crate) fn forget_job(&self, number: u64) -> Result<(), StoreError> {
        let mut batch = Batch::new();
        batch.delete(keys::sweep(number));
        batch.privileged();
        self.store.commit(batch)?;
        Ok(())
    }

    /// Commits a batch that makes or destroys something that is numbered, together with the facts.
    pub(crate) fn commit(&self, mut batch: Batch) -> Result<Sequence, StoreError> {
        let mut facts = self.facts.lock();
        facts.checkpoint = facts.checkpoint.max(self.checkpoints.current());
        batch.put(keys::pool("facts"), facts.encode());
        self.store.commit(batch)
    }
}
