//! `StoredOnce`: stored bytes of content by tier, chunks that several regions share counted once.
//!
//! Invariant: a bounded amount of memory, however large the dataset: of the chunks, those of which the last few gigabytes
//! consist are known. One that is met again after so many others counts again; what shares chunks mostly lies together.

use std::collections::{BTreeMap, HashSet};

use terrace_store::{ChunkId, ChunkInfo, StoreError};

/// Chunks that are known at a time: some 24 MiB of memory.
const KNOWN_MAX: usize = 1 << 20;

/// See above.
#[derive(Default)]
pub(crate) struct StoredOnce {
    known: HashSet<ChunkId>,
    by_tier: BTreeMap<u8, u64>,
}

impl StoredOnce {
    /// Counts a chunk that was not met before; `look` finds out where it is.
    pub(crate) fn add(
        &mut self,
        id: ChunkId,
        look: impl FnOnce() -> Result<Option<ChunkInfo>, StoreError>,
    ) -> Result<(), StoreError> {
        if self.known.contains(&id) {
            return Ok(());
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(id);
        if let Some(info) = look()? {
            *self.by_tier.entry(info.tier).or_default() += u64::from(info.stored);
        }
        Ok(())
    }

    /// Bytes by tier.
    pub(crate) fn by_tier(&self) -> &BTreeMap<u8, u64> {
        &self.by_tier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_neighbours_count_once() {
        let info = ChunkInfo {
            length: 4096,
            stored: 10,
            tier: 1,
            device: 0,
            segment: 0,
            offset: 0,
            references: 1,
            hash: [0; 32],
        };
        let mut stored = StoredOnce::default();
        let chunks = 2 * KNOWN_MAX as u64 + 5;
        for id in 0..chunks {
            for _ in 0..2 {
                stored.add(ChunkId(id), || Ok(Some(info))).unwrap();
            }
            assert!(stored.known.len() <= KNOWN_MAX);
        }
        assert_eq!(stored.by_tier(), &BTreeMap::from([(1, chunks * 10)]));
    }
}
