//! `Root`: the payload of the pool's root record.
//!
//! Layout: version 2 · tree manifest (string) · log position 68 · counters at that position (5 signed varints) · next
//! chunk id (varint) · metadata segments (see `meta_storage`).
//!
//! Invariants: counters are those at the log position, so that adding what the log holds after it gives the newest. From
//! version 2 on what follows may have records of chunks with sums where version 1 had none ([`Root::has_all_sums`]); none
//! such is written before a root of that version is durable, so that an older program refuses the pool, not its chunks.

use std::sync::Arc;

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_log::LogPosition;
use terrace_pool::{Pool, ROOT_BYTES_MAX};

use crate::{counters::Counters, meta_storage::MetaStorage};

const VERSION: u8 = 2;
/// Sums of blocks only in records of chunks that are stored as they are in more than one block.
const VERSION_SOME_SUMS: u8 = 1;

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
    /// Records of chunks of every kind may have sums.
    pub has_all_sums: bool,
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
    version(&mut reader)?;
    reader.string(ROOT_BYTES_MAX, "metadata manifest")?;
    LogPosition::decode(&mut reader)
}

fn version(reader: &mut Reader<'_>) -> Result<u8, DecodeError> {
    let version = reader.u8("root version")?;
    match version {
        VERSION_SOME_SUMS..=VERSION => Ok(version),
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
        has_all_sums: version >= VERSION,
    })
}
