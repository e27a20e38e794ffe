//! Chunks: what is asked for when one is written, and what is told about one that exists.

use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc};

/// The unit of mapping, bytes.
pub const BLOCK_BYTES: usize = 4096;
/// Most content one chunk can have, bytes.
pub const CHUNK_BYTES_MAX: usize = 128 * 1024;

/// Names a chunk for as long as it is referenced, wherever it lies. Never 0, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u64);

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A chunk to be read, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ChunkPart {
    /// The chunk.
    pub id: ChunkId,
    /// Which bytes of its content; `None`: all.
    pub range: Option<Range<usize>>,
}

/// A stretch of a chunk to be read into memory of whoever asks for it.
#[derive(Debug)]
pub struct ChunkFill<'a> {
    /// The chunk.
    pub id: ChunkId,
    /// Where in its content it begins, bytes.
    pub offset: usize,
    /// What it fills.
    pub target: &'a mut [u8],
    /// How much of that it filled: less than all where the chunk ends before; `None`: nothing that may be used.
    pub filled: Option<usize>,
}

impl<'a> ChunkFill<'a> {
    /// One that is still to be done.
    pub fn new(id: ChunkId, offset: usize, target: &'a mut [u8]) -> Self {
        Self {
            id,
            offset,
            target,
            filled: None,
        }
    }
}

/// How content is compressed. Content that does not get at least one eighth smaller is stored as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Stored as it is.
    Off,
    /// LZ4 (fast).
    #[default]
    Lz4,
    /// Zstandard at a level of 1–19.
    Zstd(u8),
}

/// What kind of stream a write belongs to; chooses the landing tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flow {
    /// Small or scattered writes: the tier that takes these by `landing`, else the fastest with room.
    #[default]
    Random,
    /// A long sequential stream: the tier that takes these by `landing`, else the fastest with room.
    Sequential,
}

/// Where a piece should lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Where new data of this kind lands: overflows to the next tier when one is above its high-water mark.
    Landing(Flow),
    /// On this tier (0 is the fastest); overflows to the next slower, then faster, only if `strict` is not set.
    Tier {
        /// Index of the tier, fastest first.
        tier: u8,
        /// Fail with `NoSpace` rather than overflow.
        strict: bool,
    },
}

/// Whose data a chunk was first written for; kept beside the chunk on the device so that a pool whose tables are
/// gone can be rebuilt from its segments. All zero when unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    /// Dataset number.
    pub dataset: u32,
    /// Object number in the dataset.
    pub object: u64,
    /// First block of the object that the chunk holds.
    pub block: u64,
    /// Checkpoint in which it was written.
    pub checkpoint: u64,
}

/// What is known of whether it pays to compress some content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trial {
    /// Nothing: whoever stores it tries.
    #[default]
    Untried,
    /// It seems to.
    Pays,
    /// It does not.
    Vain,
}

/// Whether equal content is stored once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dedup {
    /// An equal chunk is used instead where there is one.
    On,
    /// It is stored anew; whoever writes equal content later may use it.
    Off,
    /// It is stored anew, and nobody else is led to it: what it takes is free when its owner writes over it.
    Apart,
}

impl Dedup {
    /// As the property `dedup` says.
    pub fn of_setting(on: bool) -> Self {
        match on {
            true => Self::On,
            false => Self::Off,
        }
    }
}

/// Data to be stored as one chunk: 1 to [`CHUNK_BYTES_MAX`] bytes, not all zero (holes are the caller's matter).
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// The content.
    pub content: &'a [u8],
    /// How to compress it.
    pub compression: Compression,
    /// What is known of whether that pays.
    pub trial: Trial,
    /// Whether an equal chunk may be used instead, and it for others.
    pub dedup: Dedup,
    /// Where it should lie.
    pub placement: Placement,
    /// For whom.
    pub owner: Owner,
    /// May use the pool's reserve.
    pub privileged: bool,
}

/// A chunk that `write_chunks` made or found; keeps it from being reclaimed until it is committed or dropped.
#[derive(Clone)]
pub struct Written {
    /// The chunk.
    pub id: ChunkId,
    /// Whether an equal chunk was there already.
    pub deduplicated: bool,
    pin: Arc<dyn Send + Sync>,
}

impl Written {
    /// Made by stores; `pin` lets go of the chunk when dropped.
    pub fn new(id: ChunkId, deduplicated: bool, pin: Arc<dyn Send + Sync>) -> Self {
        Self {
            id,
            deduplicated,
            pin,
        }
    }

    /// The pin alone, for a batch to hold.
    pub fn into_pin(self) -> Arc<dyn Send + Sync> {
        self.pin
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Written")
            .field("id", &self.id)
            .field("deduplicated", &self.deduplicated)
            .finish()
    }
}

/// What is known of a chunk without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkInfo {
    /// Content, bytes.
    pub length: u32,
    /// Bytes taken on one device, header included.
    pub stored: u32,
    /// Tier of the first copy.
    pub tier: u8,
    /// Device of the first copy (the pool's device number).
    pub device: u16,
    /// Segment of the first copy on that device.
    pub segment: u32,
    /// Where the payload of the first copy begins in that segment, bytes.
    pub offset: u32,
    /// References, in blocks.
    pub references: i64,
    /// BLAKE3 of the content.
    pub hash: [u8; 32],
}

/// What a rewrite did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RewriteOutcome {
    /// Chunks moved.
    pub moved: u64,
    /// Their stored bytes.
    pub moved_bytes: u64,
    /// The same by the tiers that they left or came to, each once.
    pub tier_bytes: BTreeMap<u8, u64>,
    /// Chunks that were already there, or are gone.
    pub skipped: u64,
    /// Chunks that something else was moving: to be asked for again.
    pub busy: u64,
    /// Chunks that could not be read or verified.
    pub failed: Vec<ChunkId>,
}
