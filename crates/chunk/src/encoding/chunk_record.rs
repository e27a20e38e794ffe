//! `ChunkRecord`: what the chunk table knows of a chunk; and the keys of the store's own tables.
//!
//! Tables (first byte of the key): `0x01` chunk id → record · `0x02` chunk id → references in blocks (a count) ·
//! `0x03` first 16 bytes of the hash → chunk id (a hint) · `0x04` segment → kind · `0x05` sequence, chunk id → may be
//! dead; the value is the estimate of bytes that it frees · `0x06` segment → live bytes (a count).
//!
//! Invariant: a record that decodes has 1 to [`COPIES_MAX`] locations and lengths within the limits.

use std::ops::Range;

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_meta::Key;
use terrace_pool::SegmentId;
use terrace_store::{BLOCK_BYTES, ChunkId};

use super::{
    chunk_header::{DISTANCE_MAX, HEADER_BYTES, JOINED, check_lengths},
    compression,
};

/// Chunk id → record.
pub const TABLE_CHUNKS: u8 = 0x01;
/// Chunk id → references.
pub const TABLE_REFERENCES: u8 = 0x02;
/// Hash → chunk id.
pub const TABLE_DEDUP: u8 = 0x03;
/// Segment → kind.
pub const TABLE_SEGMENTS: u8 = 0x04;
/// Chunks that may be dead.
pub const TABLE_CANDIDATES: u8 = 0x05;
/// Segment → live bytes.
pub const TABLE_LIVE: u8 = 0x06;

/// Most copies of a chunk.
pub const COPIES_MAX: usize = terrace_pool::COPIES_MAX as usize;

/// In the byte that says how a payload is compressed: copies lie apart from their headers.
const APART: u8 = 0x80;

/// Where one copy of a chunk lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// The segment.
    pub segment: SegmentId,
    /// Of its header, bytes from the start of the segment.
    pub offset: u32,
    /// Of its payload, behind the header.
    pub payload: u32,
}

impl Location {
    /// Of a chunk whose payload lies right behind its header.
    #[cfg(test)]
    pub fn joined(segment: SegmentId, offset: u32) -> Self {
        Self {
            segment,
            offset,
            payload: offset.saturating_add(JOINED),
        }
    }

    fn distance(&self) -> u32 {
        self.payload.saturating_sub(self.offset)
    }

    /// Whether its payload does not lie right behind its header.
    pub fn is_apart(&self) -> bool {
        self.distance() != JOINED
    }

    /// Where such a part of the payload lies in the segment, bytes.
    pub fn part(&self, part: Range<usize>) -> Range<usize> {
        let from = self.payload as usize;
        from + part.start..from + part.end
    }
}

/// Where a chunk lies and how to verify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkRecord {
    /// How the payload is compressed (a code of `compress`).
    pub compression: u8,
    /// Content, bytes.
    pub length: u32,
    /// Payload, bytes.
    pub payload: u32,
    /// BLAKE3 of the content.
    pub hash: [u8; 32],
    /// Copies, the one to be read first in front.
    pub locations: Vec<Location>,
    /// CRC32C of each block of the content.
    pub sums: Vec<u32>,
}

impl ChunkRecord {
    /// Header and payload, bytes.
    pub fn stored(&self) -> u32 {
        HEADER_BYTES as u32 + self.payload
    }

    /// Blocks of the content, each begun one counted.
    pub fn blocks(&self) -> i64 {
        (self.length as usize).div_ceil(BLOCK_BYTES) as i64
    }

    /// Whether a block can be read and verified without the others.
    pub fn is_in_blocks(&self) -> bool {
        self.compression == compression::RAW
    }

    /// Whether a copy lies apart from its header.
    fn is_apart(&self) -> bool {
        self.locations.iter().any(Location::is_apart)
    }

    /// The value in the table.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(72 + self.sums.len() * 4);
        let apart = self.is_apart();
        writer
            .u8(self.compression | if apart { APART } else { 0 })
            .varint(self.length.into())
            .varint(self.payload.into())
            .bytes(&self.hash);
        writer.u8(self.locations.len() as u8);
        for location in &self.locations {
            writer
                .varint(location.segment.device.into())
                .varint(location.segment.index.into());
            writer.varint(location.offset.into());
            if apart {
                writer.varint(location.distance().into());
            }
        }
        for sum in &self.sums {
            writer.u32(*sum);
        }
        writer.into_bytes()
    }

    /// Reads a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let compression = reader.u8("chunk compression")?;
        let (apart, compression) = (compression & APART != 0, compression & !APART);
        let length = narrow(reader.varint("chunk length")?, "chunk length")?;
        let payload = narrow(reader.varint("chunk payload")?, "chunk payload")?;
        check_lengths(compression, length, payload)?;
        let hash = reader.array("chunk hash")?;
        let copies = usize::from(reader.u8("chunk copies")?);
        if !(1..=COPIES_MAX).contains(&copies) {
            return Err(DecodeError::Invalid("chunk copies"));
        }
        let mut locations = Vec::with_capacity(copies);
        for _ in 0..copies {
            let device = reader.varint("chunk device")?;
            let device = u16::try_from(device).map_err(|_| DecodeError::Invalid("chunk device"))?;
            let index = narrow(reader.varint("chunk segment")?, "chunk segment")?;
            let offset = narrow(reader.varint("chunk offset")?, "chunk offset")?;
            let distance = match apart {
                true => narrow(reader.varint("distance of a payload")?, "distance of a payload")?,
                false => JOINED,
            };
            let payload = offset
                .checked_add(distance)
                .filter(|_| (JOINED..=DISTANCE_MAX).contains(&distance))
                .ok_or(DecodeError::Invalid("distance of a payload"))?;
            locations.push(Location {
                segment: SegmentId { device, index },
                offset,
                payload,
            });
        }
        if apart && !locations.iter().any(Location::is_apart) {
            return Err(DecodeError::Invalid("distance of a payload"));
        }
        let count = (length as usize).div_ceil(BLOCK_BYTES);
        let mut sums = Vec::with_capacity(count);
        for _ in 0..count {
            sums.push(reader.u32("chunk block sum")?);
        }
        reader.finish()?;
        Ok(Self {
            compression,
            length,
            payload,
            hash,
            locations,
            sums,
        })
    }
}

fn narrow(value: u64, field: &'static str) -> Result<u32, DecodeError> {
    u32::try_from(value).map_err(|_| DecodeError::Invalid(field))
}

/// The CRC32C of each block of `content`.
pub fn block_sums(content: &[u8]) -> Vec<u32> {
    content.chunks(BLOCK_BYTES).map(crc32c::crc32c).collect()
}

/// Key of a chunk in `table`.
pub fn chunk_key(table: u8, id: ChunkId) -> [u8; 9] {
    let mut key = [table; 9];
    key[1..].copy_from_slice(&id.0.to_be_bytes());
    key
}

/// The chunk that a key of [`TABLE_CHUNKS`] or [`TABLE_REFERENCES`] names.
pub fn chunk_of_key(key: &[u8]) -> Option<ChunkId> {
    let id: [u8; 8] = key.get(1..)?.try_into().ok()?;
    Some(ChunkId(u64::from_be_bytes(id)))
}

/// Key of a segment in `table`.
pub fn segment_key(table: u8, segment: SegmentId) -> [u8; 7] {
    let mut key = [table; 7];
    key[1..3].copy_from_slice(&segment.device.to_be_bytes());
    key[3..].copy_from_slice(&segment.index.to_be_bytes());
    key
}

/// The segment that a key of [`TABLE_SEGMENTS`] or [`TABLE_LIVE`] names.
pub fn segment_of_key(key: &[u8]) -> Option<SegmentId> {
    let mut reader = Reader::new(key.get(1..)?);
    let device = reader.key_u16("segment device").ok()?;
    let index = reader.key_u32("segment index").ok()?;
    reader.finish().ok()?;
    Some(SegmentId { device, index })
}

/// Key of the dedup hint for a hash, of which `bytes` are kept.
pub fn dedup_key(hash: &[u8; 32], bytes: usize) -> Key {
    let kept = bytes.clamp(1, HINT_BYTES_MAX);
    let mut key = [TABLE_DEDUP; 1 + HINT_BYTES_MAX];
    key[1..=kept].copy_from_slice(&hash[..kept]);
    Key::new(&key[..=kept])
}

/// Key of a chunk that batch `sequence` may have killed.
pub fn candidate_key(sequence: u64, id: ChunkId) -> [u8; 17] {
    let mut key = [TABLE_CANDIDATES; 17];
    key[1..9].copy_from_slice(&sequence.to_be_bytes());
    key[9..].copy_from_slice(&id.0.to_be_bytes());
    key
}

/// The chunk that a key of [`TABLE_CANDIDATES`] names.
pub fn candidate_of_key(key: &[u8]) -> Option<ChunkId> {
    let id: [u8; 8] = key.get(9..)?.try_into().ok()?;
    Some(ChunkId(u64::from_be_bytes(id)))
}

/// What the dedup index keeps of a hash, bytes.
pub(crate) const HINT_BYTES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_a_cut_one_is_refused() {
        let segment = SegmentId {
            device: 2,
            index: 70_000,
        };
        let record = ChunkRecord {
            compression: compression::RAW,
            length: 10_000,
            payload: 10_000,
            hash: [7; 32],
            locations: vec![Location::joined(segment, 4096), Location::joined(segment, 88)],
            sums: vec![1, 2, 3],
        };
        let mut apart = record.clone();
        apart.locations[1].payload = 1 << 20;
        assert!(apart.is_apart() && !record.is_apart());
        let compressed = ChunkRecord {
            compression: compression::LZ4,
            payload: 900,
            ..record.clone()
        };
        assert!(record.is_in_blocks() && !compressed.is_in_blocks());
        for record in [&record, &apart, &compressed] {
            let bytes = record.encode();
            assert_eq!(&ChunkRecord::decode(&bytes).unwrap(), record);
            for length in 0..bytes.len() {
                assert!(ChunkRecord::decode(&bytes[..length]).is_err());
            }
        }
        for payload in [88 + JOINED - 1, 88 + DISTANCE_MAX + 1] {
            apart.locations[1].payload = payload;
            assert!(ChunkRecord::decode(&apart.encode()).is_err());
        }
        let mut needless = record.encode();
        needless[0] |= APART;
        assert!(ChunkRecord::decode(&needless).is_err());
        assert_eq!(segment_of_key(&segment_key(TABLE_LIVE, segment)), Some(segment));
        assert_eq!(
            chunk_of_key(&chunk_key(TABLE_CHUNKS, ChunkId(5))),
            Some(ChunkId(5))
        );
        assert_eq!(candidate_of_key(&candidate_key(8, ChunkId(5))), Some(ChunkId(5)));
    }
}
