//! Sweep jobs: what is to be freed in the background, as it is recorded, and how far that came.

use std::{collections::BTreeMap, sync::Arc};

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_store::{KEY_BYTES_MAX, Store, StoreError};
use terrace_sync::{Mutex, MutexGuard, rank};

use super::read::PoolRecords;
use crate::records::keys;

/// One thing to free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// What only a destroyed snapshot held.
    Snapshot {
        dataset: u32,
        /// The held checkpoint before it, when it was destroyed.
        previous: Option<u64>,
        snapshot: u64,
        /// The held checkpoint after it, or the checkpoint in which it was destroyed.
        next: u64,
        /// The next index key to look at; empty at the start.
        cursor: Vec<u8>,
    },
    /// All records of a destroyed dataset.
    Dataset {
        dataset: u32,
        /// The next key to delete; empty at the start.
        cursor: Vec<u8>,
        /// Content that it mapped, bytes.
        bytes: u64,
    },
    /// Not to free anything: how much a volume has in common with its newest held checkpoint, after a newer one was let go of.
    Recount {
        dataset: u32,
        /// That checkpoint.
        held: u64,
        /// The next region to look at; empty at the start.
        cursor: Vec<u8>,
    },
}

impl Job {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            Self::Snapshot {
                dataset,
                previous,
                snapshot,
                next,
                cursor,
            } => {
                writer
                    .u8(1)
                    .varint(u64::from(*dataset))
                    .u8(u8::from(previous.is_some()));
                writer
                    .varint(previous.unwrap_or(0))
                    .varint(*snapshot)
                    .varint(*next)
                    .string(cursor);
            }
            Self::Dataset {
                dataset,
                cursor,
                bytes,
            } => {
                writer
                    .u8(2)
                    .varint(u64::from(*dataset))
                    .string(cursor)
                    .varint(*bytes);
            }
            Self::Recount {
                dataset,
                held,
                cursor,
            } => {
                writer
                    .u8(3)
                    .varint(u64::from(*dataset))
                    .varint(*held)
                    .string(cursor);
            }
        }
        writer.into_bytes()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(value);
        let kind = reader.u8("kind of sweep job")?;
        let dataset =
            u32::try_from(reader.varint("dataset")?).map_err(|_| DecodeError::Invalid("dataset"))?;
        let job = match kind {
            1 => {
                let some = reader.u8("previous holder")? == 1;
                let previous = Some(reader.varint("previous holder")?).filter(|_| some);
                let (snapshot, next) = (reader.varint("snapshot")?, reader.varint("next holder")?);
                let cursor = reader.string(KEY_BYTES_MAX, "cursor")?.to_vec();
                Self::Snapshot {
                    dataset,
                    previous,
                    snapshot,
                    next,
                    cursor,
                }
            }
            2 => {
                let cursor = reader.string(KEY_BYTES_MAX, "cursor")?.to_vec();
                Self::Dataset {
                    dataset,
                    cursor,
                    bytes: reader.varint("bytes")?,
                }
            }
            3 => Self::Recount {
                dataset,
                held: reader.varint("held checkpoint")?,
                cursor: reader.string(KEY_BYTES_MAX, "cursor")?.to_vec(),
            },
            _ => return Err(DecodeError::Invalid("kind of sweep job")),
        };
        reader.finish()?;
        Ok(job)
    }
}

/// How far the freeing of an orphan came; only in RAM, since what is freed is deleted.
pub(crate) struct OrphanCursor {
    pub(crate) dataset: u32,
    pub(crate) number: u64,
    pub(crate) next: Vec<u8>,
}

/// The list of things to free.
pub(crate) struct SweepJobs {
    jobs: Mutex<BTreeMap<u64, Job>, rank::Leaf>,
    stepping: Mutex<Option<OrphanCursor>, rank::dataset::SweepStep>,
}

impl SweepJobs {
    pub(crate) fn open(store: &Arc<dyn Store>) -> Result<Self, StoreError> {
        let mut jobs = BTreeMap::new();
        PoolRecords::of(store.as_ref()).for_each(keys::TABLE_SWEEP, |key, value| {
            let mut reader = Reader::new(key);
            reader.u8("table")?;
            jobs.insert(reader.key_u64("job")?, Job::decode(value)?);
            Ok(())
        })?;
        Ok(Self {
            jobs: Mutex::new(jobs),
            stepping: Mutex::new(None),
        })
    }

    pub(crate) fn add(&self, jobs: impl IntoIterator<Item = (u64, Job)>) {
        self.jobs.lock().extend(jobs);
    }

    /// Above the numbers of all jobs.
    pub(crate) fn next_number(&self) -> u64 {
        let jobs = self.jobs.lock();
        jobs.last_key_value()
            .map_or(0, |(number, _)| number.saturating_add(1))
    }

    /// The newest job that counts what a dataset has in common with this held checkpoint.
    pub(crate) fn recount_of(&self, number: u32, checkpoint: u64) -> Option<Recount> {
        let jobs = self.jobs.lock();
        jobs.iter().rev().find_map(|(job, what)| match what {
            Job::Recount {
                dataset,
                held,
                cursor,
            } if (*dataset, *held) == (number, checkpoint) => Some(Recount {
                job: *job,
                held: *held,
                cursor: cursor.clone(),
            }),
            _ => None,
        })
    }

    /// Content of destroyed datasets that is not freed yet, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let jobs = self.jobs.lock();
        let bytes = jobs.values().map(|job| match job {
            Job::Dataset { bytes, .. } => *bytes,
            _ => 0,
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// The oldest.
    pub(crate) fn first(&self) -> Option<(u64, Job)> {
        let jobs = self.jobs.lock();
        let first = jobs.first_key_value();
        first.map(|(number, job)| (*number, job.clone()))
    }

    /// What is left of one after a step.
    pub(crate) fn stepped(&self, number: u64, left: Option<Job>) {
        let mut jobs = self.jobs.lock();
        match left {
            Some(job) => jobs.insert(number, job),
            None => jobs.remove(&number),
        };
    }

    /// One step at a time.
    pub(crate) fn turn(&self) -> MutexGuard<'_, Option<OrphanCursor>, rank::dataset::SweepStep> {
        self.stepping.lock()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.lock().is_empty()
    }
}

/// Blocks that the newest held checkpoint has as well are being counted again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recount {
    /// The number of its sweep job.
    pub(crate) job: u64,
    /// The held checkpoint.
    pub(crate) held: u64,
    /// The key up to which they are counted.
    pub(crate) cursor: Vec<u8>,
}

impl Recount {
    pub(crate) fn of(number: u64, job: &Job) -> Option<Self> {
        match job {
            Job::Recount { held, cursor, .. } => Some(Self {
                job: number,
                held: *held,
                cursor: cursor.clone(),
            }),
            _ => None,
        }
    }
}

/// The tables that have a dataset number behind the table byte, ascending; not that of dataset records.
pub(crate) const DATASET_TABLES: [u8; 12] = [
    keys::TABLE_HELD,
    keys::TABLE_COUNTERS,
    keys::TABLE_ORPHAN,
    keys::TABLE_HEAT,
    keys::TABLE_INODE,
    keys::TABLE_ENTRY,
    keys::TABLE_XATTR,
    keys::TABLE_REGION,
    keys::TABLE_PIN,
    keys::TABLE_FRAGMENTS,
    keys::TABLE_HISTORY,
    keys::TABLE_HOLDER,
];
