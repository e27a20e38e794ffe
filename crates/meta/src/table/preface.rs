//! The preface: the first bytes of every table, which say enough of it that a table can be found on a device, put in its
//! place among others and verified when no manifest names it any more.
//!
//! Layout (76 bytes, little-endian): magic 4 · identity of the tree's owner 16 · number 8 · sequences: above 8, up to 8 ·
//! length of the extent 4 · offset of the head 4 · sum of the head 8 · entries 8 · XXH3 sum of the 68 bytes above 8.
//!
//! Invariant: a preface that decodes has lengths within the limits of a table; sequences `above < up_to`. A table with
//! the sequences (a, u] holds, for every key from its first to its last, all that batches in (a, u] did to it: a table
//! whose sequences lie within that says nothing more about these keys.

use terrace_codec::{DecodeError, Reader, Writer};
use xxhash_rust::xxh3::xxh3_64;

/// Longest table, bytes.
pub(crate) const TABLE_BYTES_MAX: u32 = 256 << 20;
/// Bytes of a preface.
pub const PREFACE_BYTES: usize = 76;
const MAGIC: [u8; 4] = *b"TMT2";
const SUMMED_BYTES: usize = PREFACE_BYTES - 8;

/// What a table says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preface {
    /// Whose tree it belongs to (the pool's identifier).
    pub identity: [u8; 16],
    /// Numbers the tables of a tree in the order of writing.
    pub number: u64,
    /// Batches above this …
    pub above: u64,
    /// … and up to this are in it.
    pub up_to: u64,
    /// Length of the table, bytes.
    pub bytes: u32,
    /// Where its head starts.
    pub head_offset: u32,
    /// Sum of the head.
    pub head_sum: u64,
    /// Entries.
    pub entries: u64,
}

impl Preface {
    /// The bytes at the start of the table.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(PREFACE_BYTES);
        writer.bytes(&MAGIC).bytes(&self.identity).u64(self.number);
        writer.u64(self.above).u64(self.up_to);
        writer.u32(self.bytes).u32(self.head_offset).u64(self.head_sum);
        writer.u64(self.entries);
        let sum = xxh3_64(writer.as_bytes());
        writer.u64(sum);
        writer.into_bytes()
    }

    /// Whether `head` is the table's.
    pub fn has_head(&self, head: &[u8]) -> bool {
        head.len() as u32 == self.bytes - self.head_offset && xxh3_64(head) == self.head_sum
    }

    /// Reads and verifies a preface from the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.array::<4>("table magic")? != MAGIC {
            return Err(DecodeError::Invalid("table magic"));
        }
        let preface = Self {
            identity: reader.array("identity")?,
            number: reader.u64("table number")?,
            above: reader.u64("sequence")?,
            up_to: reader.u64("sequence")?,
            bytes: reader.u32("table length")?,
            head_offset: reader.u32("head offset")?,
            head_sum: reader.u64("head sum")?,
            entries: reader.u64("entries")?,
        };
        if xxh3_64(&bytes[..SUMMED_BYTES]) != reader.u64("preface sum")? {
            return Err(DecodeError::Invalid("preface sum"));
        }
        let lengths = preface.bytes <= TABLE_BYTES_MAX
            && preface.head_offset < preface.bytes
            && preface.head_offset as usize > PREFACE_BYTES;
        if !lengths || preface.above >= preface.up_to || preface.entries == 0 {
            return Err(DecodeError::Invalid("a table"));
        }
        Ok(preface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preface_comes_back_and_any_flipped_bit_is_seen() {
        let preface = Preface {
            identity: [7; 16],
            number: 9,
            above: 10,
            up_to: 12,
            bytes: 5000,
            head_offset: 4000,
            head_sum: 77,
            entries: 3,
        };
        let bytes = preface.encode();
        assert_eq!(bytes.len(), PREFACE_BYTES);
        assert_eq!(Preface::decode(&bytes), Ok(preface));
        for bit in 0..PREFACE_BYTES * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Preface::decode(&flipped).is_err(), "bit {bit}");
        }
        for length in 0..PREFACE_BYTES {
            assert!(Preface::decode(&bytes[..length]).is_err());
        }
    }
}
