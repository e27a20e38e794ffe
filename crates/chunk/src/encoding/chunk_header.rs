//! `ChunkHeader`: what a segment says of each chunk in it: right before its payload, or in a head block (`head_block.rs`).
//!
//! Layout (88 bytes, little-endian): magic 4 · compression 1 · distance of the payload 3, 0 if it lies right behind · id 8 ·
//! owner: dataset 4, object 8, block 8, checkpoint 8 · content length 4 · payload length 4 · BLAKE3 of the content 32 ·
//! CRC32C of the 84 bytes above 4.
//!
//! Invariant: a segment can be read without any table; a header that decodes has lengths within the limits, and its payload lies
//! behind it, at most [`DISTANCE_MAX`] away.

use std::ops::Range;

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_store::{CHUNK_BYTES_MAX, ChunkId, Owner};

use super::compression;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 88;
/// The distance of a payload that lies right behind its header.
pub const JOINED: u32 = HEADER_BYTES as u32;
/// How far from its header a payload begins at most, bytes.
pub const DISTANCE_MAX: u32 = 2 * 1024 * 1024;
const MAGIC: [u8; 4] = *b"TChk";

/// Describes a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The chunk.
    pub id: ChunkId,
    /// For whom it was first written.
    pub owner: Owner,
    /// How the payload is compressed (a code of `compress`).
    pub compression: u8,
    /// Content, bytes.
    pub length: u32,
    /// Payload, bytes.
    pub payload: u32,
    /// BLAKE3 of the content.
    pub hash: [u8; 32],
    /// From the start of the header to that of the payload, bytes.
    pub distance: u32,
}

impl ChunkHeader {
    /// Of a chunk that is stored as it is.
    #[cfg(test)]
    pub(crate) fn raw(id: u64, length: usize, distance: u32) -> Self {
        Self {
            id: ChunkId(id),
            owner: Owner::default(),
            compression: compression::RAW,
            length: length as u32,
            payload: length as u32,
            hash: [id as u8; 32],
            distance,
        }
    }

    /// Where the payload lies in the segment, if the header lies at `offset`.
    pub fn payload_at(&self, offset: usize) -> Range<usize> {
        let start = offset + self.distance as usize;
        start..start + self.payload as usize
    }

    /// The bytes on the device.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut writer = Writer::with_capacity(HEADER_BYTES);
        let distance = match self.distance {
            JOINED => 0,
            distance => distance,
        };
        writer
            .bytes(&MAGIC)
            .u8(self.compression)
            .bytes(&distance.to_le_bytes()[..3])
            .u64(self.id.0);
        writer
            .u32(self.owner.dataset)
            .u64(self.owner.object)
            .u64(self.owner.block)
            .u64(self.owner.checkpoint);
        writer.u32(self.length).u32(self.payload).bytes(&self.hash);
        let sum = crc32c::crc32c(writer.as_bytes());
        writer.u32(sum);
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(writer.as_bytes());
        bytes
    }

    /// Reads and verifies a header from the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.array::<4>("chunk magic")? != MAGIC {
            return Err(DecodeError::Invalid("chunk magic"));
        }
        let compression = reader.u8("chunk compression")?;
        let [low, middle, high] = reader.array("distance of a payload")?;
        let distance = match u32::from_le_bytes([low, middle, high, 0]) {
            0 => JOINED,
            distance => distance,
        };
        let id = ChunkId(reader.u64("chunk id")?);
        let owner = Owner {
            dataset: reader.u32("chunk dataset")?,
            object: reader.u64("chunk object")?,
            block: reader.u64("chunk block")?,
            checkpoint: reader.u64("chunk checkpoint")?,
        };
        let length = reader.u32("chunk length")?;
        let payload = reader.u32("chunk payload length")?;
        let hash = reader.array("chunk hash")?;
        let sum = reader.u32("chunk header sum")?;
        if crc32c::crc32c(&bytes[..HEADER_BYTES - 4]) != sum {
            return Err(DecodeError::Invalid("chunk header sum"));
        }
        check_lengths(compression, length, payload)?;
        if !(JOINED..=DISTANCE_MAX).contains(&distance) {
            return Err(DecodeError::Invalid("distance of a payload"));
        }
        Ok(Self {
            id,
            owner,
            compression,
            length,
            payload,
            hash,
            distance,
        })
    }
}

/// Lengths that a chunk can have: 1 to the limit, and never a payload longer than the content.
pub fn check_lengths(compression: u8, length: u32, payload: u32) -> Result<(), DecodeError> {
    let right = (1..=CHUNK_BYTES_MAX as u32).contains(&length)
        && if compression == compression::RAW {
            payload == length
        } else {
            (1..length).contains(&payload)
        }
        && compression <= compression::ZSTD;
    if right {
        Ok(())
    } else {
        Err(DecodeError::Invalid("chunk length"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_any_flipped_bit_is_seen() {
        let owner = Owner {
            dataset: 3,
            object: 4,
            block: 5,
            checkpoint: 6,
        };
        let header = |distance| ChunkHeader {
            id: ChunkId(9),
            owner,
            compression: 1,
            length: 8192,
            payload: 77,
            hash: [5; 32],
            distance,
        };
        for distance in [JOINED, JOINED + 1, 70_000, DISTANCE_MAX] {
            let header = header(distance);
            assert_eq!(ChunkHeader::decode(&header.encode()).unwrap(), header);
            assert_eq!(header.payload_at(5).start, 5 + distance as usize);
        }
        for distance in [1, JOINED - 1, DISTANCE_MAX + 1] {
            assert!(
                ChunkHeader::decode(&header(distance).encode()).is_err(),
                "{distance}"
            );
        }
        let bytes = header(JOINED).encode();
        assert_eq!(bytes[5..8], [0; 3], "no distance is said");
        for bit in 0..HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(ChunkHeader::decode(&flipped).is_err(), "bit {bit}");
        }
    }
}
