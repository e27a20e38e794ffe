//! `Head`: the index and the filter of a table, which lie at its end.
//!
//! Invariant: a head that decodes has blocks that follow one another within the table, and keys that ascend.

use std::ops::Range;

use terrace_codec::{DecodeError, Reader, Writer};

use super::block::shared_bytes;
use crate::{KEY_BYTES_MAX, PREFACE_BYTES, entries::Filter};

const HEAD_MAGIC: u32 = 0x3148_4d54; // "TMH1"

pub(super) struct BlockPlace {
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) sum: u64,
    /// Where its last key ends in `Head::keys`.
    key_end: u32,
}

/// The index and the filter of a table.
pub(crate) struct Head {
    pub(super) blocks: Vec<BlockPlace>,
    keys: Vec<u8>,
    pub(super) filter: Filter,
}

impl Head {
    /// Decodes and checks a head whose blocks, behind the preface, end at `data_bytes`.
    pub(crate) fn decode(bytes: &[u8], data_bytes: u32) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u32("head magic")? != HEAD_MAGIC {
            return Err(DecodeError::Invalid("head magic"));
        }
        let count = reader.varint("block count")?;
        // Each block takes at least eleven bytes of the head.
        if count == 0 || count > reader.remaining() as u64 / 11 {
            return Err(DecodeError::Invalid("block count"));
        }
        let mut blocks = Vec::with_capacity(count as usize);
        let mut keys = Vec::new();
        let mut last = Vec::new();
        let mut offset = PREFACE_BYTES as u32;
        for index in 0..count {
            let length = reader.varint("block length")?;
            let length = u32::try_from(length).map_err(|_| DecodeError::Invalid("block length"))?;
            let sum = reader.u64("block sum")?;
            let previous = last.clone();
            read_key(&mut reader, &mut last)?;
            let end = offset
                .checked_add(length)
                .filter(|end| *end <= data_bytes && length > 0);
            let end = end.ok_or(DecodeError::Invalid("block length"))?;
            if index > 0 && previous >= last {
                return Err(DecodeError::Invalid("order of blocks"));
            }
            keys.extend_from_slice(&last);
            let key_end = u32::try_from(keys.len()).map_err(|_| DecodeError::Invalid("block keys"))?;
            blocks.push(BlockPlace {
                offset,
                length,
                sum,
                key_end,
            });
            offset = end;
        }
        if offset != data_bytes {
            return Err(DecodeError::Invalid("sum of block lengths"));
        }
        let filter = Filter::decode(reader.rest()).ok_or(DecodeError::Invalid("filter"))?;
        keys.shrink_to_fit();
        Ok(Self { blocks, keys, filter })
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the table may hold a key with this hash; if not, it does not.
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        self.filter.may_contain(hash)
    }

    /// The last key of a block.
    pub(crate) fn last_key(&self, block: usize) -> &[u8] {
        let start = if block == 0 {
            0
        } else {
            self.blocks[block - 1].key_end as usize
        };
        &self.keys[start..self.blocks[block].key_end as usize]
    }

    /// The first block whose last key is not below `key`; the number of blocks if there is none.
    pub(crate) fn seek(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.blocks.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.last_key(middle) < key {
                low = middle + 1
            } else {
                high = middle
            }
        }
        low
    }

    /// Where a block lies in its extent, bytes.
    pub(crate) fn block_range(&self, block: usize) -> Range<u32> {
        let place = &self.blocks[block];
        place.offset..place.offset + place.length
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.filter.bytes() + self.keys.len() + self.blocks.len() * size_of::<BlockPlace>()
    }
}

/// Encodes a head.
pub(crate) fn encode_head(blocks: &[(u32, u64, Vec<u8>)], hashes: &[u64]) -> Vec<u8> {
    let mut writer = Writer::with_capacity(blocks.len() * 40 + hashes.len() * 2);
    writer.u32(HEAD_MAGIC).varint(blocks.len() as u64);
    let mut last: &[u8] = &[];
    for (length, sum, key) in blocks {
        writer.varint(u64::from(*length)).u64(*sum);
        write_key(&mut writer, last, key);
        last = key;
    }
    let mut bytes = writer.into_bytes();
    Filter::build(hashes).append_to(&mut bytes);
    bytes
}

/// Writes a key as what it shares with `previous` and the rest.
pub(crate) fn write_key(writer: &mut Writer, previous: &[u8], key: &[u8]) {
    let shared = shared_bytes(previous, key);
    writer.varint(shared as u64).string(&key[shared..]);
}

/// Reads what [`write_key`] wrote; `key` holds the previous key before and the new one after.
pub(crate) fn read_key(reader: &mut Reader<'_>, key: &mut Vec<u8>) -> Result<(), DecodeError> {
    let shared = reader.varint("shared key bytes")?;
    if shared > key.len() as u64 {
        return Err(DecodeError::Invalid("shared key bytes"));
    }
    key.truncate(shared as usize);
    let rest = reader.string(KEY_BYTES_MAX, "key")?;
    key.extend_from_slice(rest);
    if key.len() > KEY_BYTES_MAX {
        Err(DecodeError::Invalid("key"))
    } else {
        Ok(())
    }
}
