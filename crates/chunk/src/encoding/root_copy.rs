//! `RootCopy`: the payload of the newest root once more, in a metadata segment, so that a pool whose root slots are gone
//! can be opened as it was.
//!
//! Layout (60 bytes, little-endian, then the payload): magic 8 · pool 16 · payload length 4 · BLAKE3 of the 28 bytes above
//! and the payload 32.
//!
//! Invariant: a help for rebuilding and nothing else: nobody waits for it, no opening reads it, and a pool whose copy is
//! missing is as good as one that has it.

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_pool::{PoolId, ROOT_BYTES_MAX};

/// Bytes before the payload.
pub const ROOT_COPY_HEADER_BYTES: usize = 60;
const MAGIC: [u8; 8] = *b"TerrRtCp";

fn sum_of(head: &[u8], payload: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(head).update(payload);
    *hasher.finalize().as_bytes()
}

/// The bytes of a copy.
pub fn encode_root_copy(pool: &PoolId, payload: &[u8]) -> Vec<u8> {
    let mut writer = Writer::with_capacity(ROOT_COPY_HEADER_BYTES + payload.len());
    writer.bytes(&MAGIC).bytes(pool).u32(payload.len() as u32);
    let sum = sum_of(writer.as_bytes(), payload);
    writer.bytes(&sum).bytes(payload);
    writer.into_bytes()
}

/// The length of the payload that `bytes` announce, if they look like a copy of this pool's root.
pub fn announced_length(bytes: &[u8], pool: &PoolId) -> Option<usize> {
    let mut reader = Reader::new(bytes);
    let magic: [u8; 8] = reader.array("magic").ok()?;
    let owner: PoolId = reader.array("pool").ok()?;
    let length = reader.u32("length").ok()? as usize;
    (magic == MAGIC && owner == *pool && length <= ROOT_BYTES_MAX).then_some(length)
}

/// The payload of a copy, verified.
pub fn decode_root_copy(bytes: &[u8], pool: &PoolId) -> Result<Vec<u8>, DecodeError> {
    let length = announced_length(bytes, pool).ok_or(DecodeError::Invalid("root copy"))?;
    let mut reader = Reader::new(bytes);
    let head = reader.bytes(28, "root copy")?;
    let sum: [u8; 32] = reader.array("root copy sum")?;
    let payload = reader.bytes(length, "root copy payload")?;
    if sum_of(head, payload) == sum {
        Ok(payload.to_vec())
    } else {
        Err(DecodeError::Invalid("root copy sum"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_comes_back_and_any_changed_byte_is_seen() {
        let bytes = encode_root_copy(&[5; 16], b"what a root says");
        assert_eq!(decode_root_copy(&bytes, &[5; 16]).unwrap(), b"what a root says");
        assert!(decode_root_copy(&bytes, &[6; 16]).is_err());
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            assert!(decode_root_copy(&changed, &[5; 16]).is_err(), "byte {at}");
            assert!(decode_root_copy(&bytes[..at], &[5; 16]).is_err());
        }
    }
}
