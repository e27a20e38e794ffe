//! `Root`: the payload of the pool's root record.
//!
//! Layout: version 1 · tree manifest (string) · log position 68 · counters at that position (5 signed varints) · next
//! chunk id (varint) · metadata segments (see `meta_storage`).
//!
//! Invariant: counters are those at the log position, so that adding what the log holds after it gives the newest.

use std::sync::Arc;

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_log::LogPosition;
use terrace_pool::{Pool, ROOT_BYTES_MAX};

use crate::{counters::Counters, meta_storage::MetaStorage};

const VERSION: u8 = 1;

/// What a root says.
pub struct Root {
    /// Of the metadata tree.
    pub manifest: Vec<u8>,
    /// Where a replay starts.
    pub position: LogPosition,
    /// Totals at that place.
    pub counters: Counters,
    /// The next chunk id.
    pub next_chunk: u64,
    /// The metadata segments.
    pub meta: MetaStorage,
}

/// Builds the payload.
pub fn encode_root(
    manifest: &[u8],
    position: &LogPosition,
    counters: &Counters,
    next_chunk: u64,
    meta: &MetaStorage,
) -> Vec<u8> {
    let mut writer = Writer::with_capacity(4096);
    writer.u8(VERSION).string(manifest);
    position.encode(&mut writer);
    counters.encode(&mut writer);
    writer.varint(next_chunk);
    meta.encode(&mut writer);
    writer.into_bytes()
}

/// The sequence at which the replay of a root starts: orders roots by age.
pub fn replay_start(payload: &[u8]) -> Result<u64, DecodeError> {
    Ok(position_of(payload)?.sequence)
}

/// Where the replay of a root starts.
pub fn position_of(payload: &[u8]) -> Result<LogPosition, DecodeError> {
    let mut reader = Reader::new(payload);
    if reader.u8("root version")? != VERSION {
        return Err(DecodeError::Invalid("root version"));
    }
    reader.string(ROOT_BYTES_MAX, "metadata manifest")?;
    LogPosition::decode(&mut reader)
}

/// Reads a payload.
pub fn decode_root(pool: Arc<Pool>, payload: &[u8]) -> Result<Root, DecodeError> {
    let mut reader = Reader::new(payload);
    if reader.u8("root version")? != VERSION {
        return Err(DecodeError::Invalid("root version"));
    }
    let manifest = reader.string(ROOT_BYTES_MAX, "metadata manifest")?.to_vec();
    let position = LogPosition::decode(&mut reader)?;
    let counters = Counters::decode(&mut reader)?;
    let next_chunk = reader.varint("next chunk id")?;
    let meta = MetaStorage::decode(pool, &mut reader)?;
    reader.finish()?;
    Ok(Root {
        manifest,
        position,
        counters,
        next_chunk,
        meta,
    })
}
