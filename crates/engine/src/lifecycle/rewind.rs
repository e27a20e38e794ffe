//! What a rewind would give up: the log is read as an opening with `--rewind` does, in memory.
//!
//! Invariants: nothing is written to any device; the end of the log is looked for by the code that an opening uses, so both say
//! the same; takes time in proportion to the log and the number of files.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use terrace_chunk::ChunkStore;
use terrace_dataset::{FileKind, InodeRecord, Time, format_time, keys, split_value};
use terrace_device::Device;
use terrace_pool::Pool;
use terrace_store::Store;

use crate::{EngineError, OpenOptions};

/// Records read at once.
const PAGE: usize = 4096;

/// What `--rewind` would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindOutlook {
    /// Whether something would be given up.
    pub gives_up: bool,
    /// Why the log cannot be read to its end; empty if it can.
    pub cause: String,
    /// The newest change of a file that would still be there, RFC 3339; empty if there are no files. How much came later
    /// nobody knows: the log has no times.
    pub newest_change: String,
    /// Files and directories that would still be there.
    pub files: u64,
    /// Files of which the record cannot be read with the devices that are there are not counted.
    pub all_counted: bool,
}

impl RewindOutlook {
    /// Looks at the pool on these devices, which may be open for reading only; of `options` counts what may be opened.
    ///
    /// # Errors
    /// What an opening with `--rewind` would say: it would be refused as well.
    pub fn of(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Self, EngineError> {
        let pool = Pool::open(
            devices,
            terrace_pool::OpenOptions {
                read_only: true,
                degraded: true,
                exported: options.exported,
                destroyed: options.destroyed,
                ..terrace_pool::OpenOptions::default()
            },
        )?;
        let chunks = ChunkStore::open(
            Arc::new(pool),
            terrace_chunk::Options {
                threads: 0,
                rewind: true,
                ..Default::default()
            },
        )?;
        let cause = chunks.given_up().unwrap_or_default().to_owned();
        let mut outlook = Self {
            gives_up: !cause.is_empty(),
            cause,
            all_counted: true,
            ..Self::default()
        };
        let mut newest: Option<Time> = None;
        let (mut from, to) = keys::table_range(keys::TABLE_INODE);
        loop {
            let Ok(page) = chunks.scan(&from, &to, PAGE) else {
                outlook.all_counted = false;
                break;
            };
            for (_, value) in &page {
                let record = split_value(value).and_then(|(_, payload)| InodeRecord::decode(payload));
                match record {
                    Ok(inode) if inode.kind != FileKind::Volume => {
                        outlook.files += 1;
                        newest = newest.max(Some(inode.changed));
                    }
                    Ok(_) => {}
                    Err(_) => outlook.all_counted = false,
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => from = last.iter().copied().chain([0]).collect(),
                _ => break,
            }
        }
        outlook.newest_change = newest.map(format_time).unwrap_or_default();
        Ok(outlook)
    }
}
