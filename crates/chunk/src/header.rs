//! `ChunkHeader`: what stands before the payload of each chunk in a segment.
//!
//! Layout (88 bytes, little-endian): magic 4 · compression 1 · zero 3 · id 8 · owner: dataset 4, object 8, block 8,
//! checkpoint 8 · content length 4 · payload length 4 · BLAKE3 of the content 32 · CRC32C of the 84 bytes above 4.
//!
//! Invariant: a segment can be read without any table; a header that decodes has lengths within the limits.

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_store::{CHUNK_BYTES_MAX, ChunkId, Owner};

use crate::compress;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 88;
const MAGIC: [u8; 4] = *b"TChk";

/// Describes the chunk whose payload follows.
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
}

impl ChunkHeader {
    /// Header and payload, bytes.
    pub fn stored(&self) -> u32 {
        HEADER_BYTES as u32 + self.payload
    }

    /// The bytes on the device.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut writer = Writer::with_capacity(HEADER_BYTES);
        writer
            .bytes(&MAGIC)
            .u8(self.compression)
            .bytes(&[0; 3])
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
        reader.bytes(3, "chunk padding")?;
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
        Ok(Self {
            id,
            owner,
            compression,
            length,
            payload,
            hash,
        })
    }
}

/// Lengths that a chunk can have: 1 to the limit, and never a payload longer than the content.
pub fn check_lengths(compression: u8, length: u32, payload: u32) -> Result<(), DecodeError> {
    let right = (1..=CHUNK_BYTES_MAX as u32).contains(&length)
        && if compression == compress::RAW {
            payload == length
        } else {
            (1..length).contains(&payload)
        }
        && compression <= compress::ZSTD;
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
        let header = ChunkHeader {
            id: ChunkId(9),
            owner,
            compression: 1,
            length: 8192,
            payload: 77,
            hash: [5; 32],
        };
        let bytes = header.encode();
        assert_eq!(ChunkHeader::decode(&bytes).unwrap(), header);
        for bit in 0..HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(ChunkHeader::decode(&flipped).is_err(), "bit {bit}");
        }
    }
}
