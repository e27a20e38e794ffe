//! `Root`: the payload of the pool's root record.
//!
//! Layout: version · tree manifest (string) · log position 68 · counters at that position (5 signed varints) · next
//! chunk id (varint) · metadata segments (see `meta_storage`).
//!
//! Invariants: counters are those at the log position, so that adding what the log holds after it gives the newest. All
//! versions are laid out alike; what the records and the log behind a root may say depends on its version (`version.rs`).

use std::sync::Arc;

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_log::LogPosition;
use terrace_meta::Extent;
use terrace_pool::{Pool, ROOT_BYTES_MAX};

use super::storage::MetaStorage;
use crate::encoding::{Counters, FORMAT_NEWEST, FORMAT_OLDEST};

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
    /// The format version of the pool.
    pub version: u8,
}

/// Builds the payload; `dropped`: extents of metadata that the manifest does not name.
pub fn encode_root(
    version: u8,
    manifest: &[u8],
    position: &LogPosition,
    counters: &Counters,
    next_chunk: u64,
    meta: &MetaStorage,
    dropped: &[Extent],
) -> Vec<u8> {
    let mut writer = Writer::with_capacity(4096);
    writer.u8(version).string(manifest);
    position.encode(&mut writer);
    counters.encode(&mut writer);
    writer.varint(next_chunk);
    meta.encode(&mut writer, dropped);
    writer.into_bytes()
}

/// The sequence at which the replay of a root starts: orders roots by age.
pub fn replay_start(payload: &[u8]) -> Result<u64, DecodeError> {
    Ok(position_of(payload)?.sequence)
}

/// Where the replay of a root starts.
pub fn position_of(payload: &[u8]) -> Result<LogPosition, DecodeError> {
    let mut reader = Reader::new(payload);
    version(&mut reader)?;
    reader.string(ROOT_BYTES_MAX, "metadata manifest")?;
    LogPosition::decode(&mut reader)
}

/// The version that a payload says, known or not.
pub fn version_of(payload: &[u8]) -> Option<u8> {
    payload.first().copied()
}

fn version(reader: &mut Reader<'_>) -> Result<u8, DecodeError> {
    let version = reader.u8("root version")?;
    match version {
        FORMAT_OLDEST..=FORMAT_NEWEST => Ok(version),
        _ => Err(DecodeError::Invalid("root version")),
    }
}

/// Reads a payload.
pub fn decode_root(pool: Arc<Pool>, payload: &[u8]) -> Result<Root, DecodeError> {
    let mut reader = Reader::new(payload);
    let version = version(&mut reader)?;
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
        version,
    })
}
