//! Space: what there is, what is used, what is set aside.

use std::{fmt, sync::Arc};

/// Sizes of a store, bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Space {
    /// All devices, less labels.
    pub size_bytes: u64,
    /// In segments that are not free.
    pub used_bytes: u64,
    /// Content of all references: what users see. See [`Space::logical`].
    pub logical_bytes: u64,
    /// Content of all live chunks, each counted once: also what nothing refers to any more in chunks of which the rest lives.
    pub unique_bytes: u64,
    /// What live chunks and metadata take on the devices, one copy.
    pub stored_bytes: u64,
    /// Of live chunks alone.
    pub chunk_stored_bytes: u64,
    /// Of the metadata runs and the log.
    pub metadata_bytes: u64,
    /// Freed by deletions, not yet writable again.
    pub pending_free_bytes: u64,
    /// Never given to writers.
    pub reserve_bytes: u64,
    /// Room is free, or is not, in pieces of this size; 0: byte by byte.
    pub segment_bytes: u64,
    /// Room beyond the reserve, set aside or not.
    pub room_bytes: u64,
    /// Set aside: for what is being written, and for reservations. May be more than there is room for, until what was freed is
    /// writable again.
    pub set_aside_bytes: u64,
    /// Room that writers can still get.
    pub available_bytes: u64,
    /// Live chunks.
    pub chunks: u64,
    /// Tiers, fastest first.
    pub tiers: Vec<TierUsage>,
    /// What the store takes in RAM.
    pub memory: StoreMemory,
}

/// What a store takes in RAM, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreMemory {
    /// Records that are not in tables yet.
    pub record_bytes: u64,
    /// Parts of tables.
    pub table_bytes: u64,
    /// Buffers of data on its way to the devices.
    pub append_bytes: u64,
}

impl StoreMemory {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.record_bytes + self.table_bytes + self.append_bytes
    }
}

impl Space {
    /// Content in live chunks that nothing refers to any more, since it was written over or cut off, bytes. References are counted by
    /// chunk, so that it can be told from sharing only as far as there are fewer of them than blocks: at least so much.
    pub fn overwritten_bytes(&self) -> u64 {
        self.unique_bytes.saturating_sub(self.logical_bytes)
    }

    /// How often content that is stored is referred to on average: 1 where nothing is shared. What was overwritten is stored without
    /// being anybody's content, and is no part of that; where some is shared as well, this is the least that it can be.
    pub fn dedup_ratio(&self) -> f64 {
        match self.unique_bytes - self.overwritten_bytes() {
            0 => 1.0,
            referred => self.logical_bytes as f64 / referred as f64,
        }
    }

    /// Free on the devices that take something new, bytes.
    pub fn free_bytes(&self) -> u64 {
        let free = |tier: &TierUsage| tier.size_bytes.saturating_sub(tier.used_bytes);
        self.tiers.iter().map(free).sum()
    }

    /// Room that somebody can still get for whom `own_bytes` are set aside.
    pub fn available_beside(&self, own_bytes: u64) -> u64 {
        let others = self.set_aside_bytes.saturating_sub(own_bytes);
        self.room_bytes.saturating_sub(others)
    }

    /// Content of all references, bytes. They are counted in blocks, the last of which a small file fills in part: so it
    /// is the chunks' content, as often as their blocks are referred to on average. Exact where nothing is shared, and
    /// where what is shared is like the rest.
    pub fn logical(unique_bytes: u64, referenced_blocks: u64, unique_blocks: u64) -> u64 {
        let bytes =
            u128::from(unique_bytes) * u128::from(referenced_blocks) / u128::from(unique_blocks.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// One tier.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TierUsage {
    /// Its name.
    pub name: String,
    /// Of those of its devices that take something new, as is all here but `devices`: what lies on one that is being emptied
    /// or fails, or is free there, says nothing of how full the tier is. Bytes.
    pub size_bytes: u64,
    /// In segments that are not free.
    pub used_bytes: u64,
    /// In live chunks.
    pub live_bytes: u64,
    /// In segments of the log and of metadata.
    pub metadata_bytes: u64,
    /// Of what is free, the part that new content leaves to the log, metadata and compaction.
    pub floor_bytes: u64,
    /// All its devices.
    pub devices: Vec<DeviceUsage>,
}

/// One device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceUsage {
    /// The pool's number for it.
    pub number: u16,
    /// Path under which it was opened.
    pub path: String,
    /// `online`, `failing`, `missing`.
    pub state: String,
    /// Bytes.
    pub size_bytes: u64,
    /// In segments that are not free.
    pub used_bytes: u64,
    /// In live chunks.
    pub live_bytes: u64,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes and flushes.
    pub write_errors: u64,
    /// Content that did not match its checksum.
    pub checksum_errors: u64,
    /// Reads done.
    pub reads: u64,
    /// Writes done.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Nothing new is put on it: it is being emptied, or was.
    pub draining: bool,
}

/// Room set aside; dropping it gives the room back.
pub struct Reservation {
    bytes: u64,
    give_back: Arc<dyn Fn(u64) + Send + Sync>,
}

impl Reservation {
    /// Made by stores: `give_back` is called with what is left when the reservation shrinks or is dropped.
    pub fn new(bytes: u64, give_back: Arc<dyn Fn(u64) + Send + Sync>) -> Self {
        Self { bytes, give_back }
    }

    /// Nothing, of no store: others can be joined to it.
    pub fn none() -> Self {
        Self::new(0, Arc::new(|_| {}))
    }

    /// How much is set aside.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back all but `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        if bytes < self.bytes {
            (self.give_back)(self.bytes - bytes);
            self.bytes = bytes;
        }
    }

    /// Joins `other`, of the same store, to this one.
    pub fn join(&mut self, mut other: Reservation) {
        if self.bytes == 0 {
            std::mem::swap(self, &mut other);
        } else {
            self.bytes += std::mem::take(&mut other.bytes);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            (self.give_back)(self.bytes);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_overwritten_makes_no_sharing_less_than_none() {
        let space = |logical_bytes, unique_bytes| Space {
            logical_bytes,
            unique_bytes,
            ..Space::default()
        };
        // An eighth was written over, in chunks that live.
        let partly = space(7 << 20, 8 << 20);
        assert_eq!((partly.dedup_ratio(), partly.overwritten_bytes()), (1.0, 1 << 20));
        let shared = space(12 << 20, 8 << 20);
        assert_eq!((shared.dedup_ratio(), shared.overwritten_bytes()), (1.5, 0));
        assert_eq!(space(0, 0).dedup_ratio(), 1.0);
        assert_eq!(space(0, 5).dedup_ratio(), 1.0);
    }

    #[test]
    fn what_users_see_counts_content_not_the_blocks_it_lies_in() {
        // Ten files of 1 KiB; then each a second time, shared.
        assert_eq!(Space::logical(10 << 10, 10, 10), 10 << 10);
        assert_eq!(Space::logical(10 << 10, 20, 10), 20 << 10);
        // Full chunks.
        assert_eq!(Space::logical(131_072, 96, 32), 3 * 131_072);
        assert_eq!(Space::logical(0, 0, 0), 0);
    }
}
