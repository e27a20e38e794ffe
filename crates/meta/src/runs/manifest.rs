//! The manifest: the tables of a tree, as bytes that a root record holds.
//!
//! Layout: magic, form; form 0 holds the body itself, form 1 where its pieces lie (extent, sum); the last eight bytes
//! are the XXH3 sum of all before. Body: next table number, flushed sequence, layers newest first (see
//! `docs/format.md`). Keys are written as what they share with the key before.
//! Invariants: any bytes decode to a version that keeps the invariants of [`Version`] and of tables, or to an error;
//! memory taken while decoding is in proportion to the length of the input.

use std::sync::Arc;

use bytes::Bytes;
use terrace_codec::{DecodeError, Reader, Writer};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    run::Run,
    version::{Layer, Merge, Version},
};
use crate::{
    Extent, KEY_BYTES_MAX, MetaError, PREFACE_BYTES,
    table::{Released, TABLE_BYTES_MAX, Table, TableFacts, read_key, write_key},
};

const MAGIC: u32 = 0x3246_4d54; // "TMF2"
/// Longest manifest that is kept in one piece, bytes.
const INLINE_BYTES_MAX: usize = 48 << 10;
/// Length of the pieces of a longer one, bytes.
const PIECE_BYTES: usize = 512 << 10;
/// Most pieces: a gigabyte, which stands for petabytes.
const PIECES_MAX: u64 = 2048;

/// A piece of a manifest in an extent of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) extent: Extent,
    pub(crate) sum: u64,
}

/// A manifest taken apart.
pub(crate) enum Manifest {
    Body(Bytes),
    Pieces(Vec<Piece>),
}

fn unusable(cause: DecodeError) -> MetaError {
    MetaError::Manifest(cause.to_string())
}

fn seal(mut writer: Writer) -> Vec<u8> {
    let sum = xxh3_64(writer.as_bytes());
    writer.u64(sum);
    writer.into_bytes()
}

/// Whether a body fits in the manifest itself.
pub(crate) fn fits_inline(body: &[u8]) -> bool {
    body.len() + 64 <= INLINE_BYTES_MAX
}

/// The pieces that a longer body is cut into.
pub(crate) fn pieces_of(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    body.chunks(PIECE_BYTES)
}

/// A manifest that holds its body.
pub(crate) fn encode_inline(body: &[u8]) -> Vec<u8> {
    let mut writer = Writer::with_capacity(body.len() + 16);
    writer.u32(MAGIC).u8(0).bytes(body);
    seal(writer)
}

/// A manifest that says where its body lies.
pub(crate) fn encode_pieces(pieces: &[Piece]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.u32(MAGIC).u8(1).varint(pieces.len() as u64);
    for piece in pieces {
        writer
            .u64(piece.extent.location)
            .u32(piece.extent.bytes)
            .u64(piece.sum);
    }
    seal(writer)
}

/// Takes a manifest apart.
pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, MetaError> {
    let invalid = |what: &str| MetaError::Manifest(what.to_string());
    let (content, sum) = bytes
        .split_last_chunk::<8>()
        .ok_or_else(|| invalid("it is too short"))?;
    if xxh3_64(content) != u64::from_le_bytes(*sum) {
        return Err(invalid("it does not match its sum"));
    }
    let mut reader = Reader::new(content);
    if reader.u32("magic").map_err(unusable)? != MAGIC {
        return Err(invalid("it is not a manifest of this version"));
    }
    match reader.u8("form").map_err(unusable)? {
        0 => Ok(Manifest::Body(Bytes::copy_from_slice(reader.rest()))),
        1 => {
            let count = reader.varint("piece count").map_err(unusable)?;
            if count > PIECES_MAX || count != reader.remaining() as u64 / 20 {
                return Err(invalid("the number of pieces does not fit"));
            }
            let mut pieces = Vec::with_capacity(count as usize);
            for _ in 0..count {
                let location = reader.u64("piece").map_err(unusable)?;
                let bytes = reader.u32("piece").map_err(unusable)?;
                let sum = reader.u64("piece").map_err(unusable)?;
                if bytes as usize > PIECE_BYTES {
                    return Err(invalid("a piece is too long"));
                }
                pieces.push(Piece {
                    extent: Extent { location, bytes },
                    sum,
                });
            }
            reader.finish().map_err(unusable)?;
            Ok(Manifest::Pieces(pieces))
        }
        _ => Err(invalid("its form is unknown")),
    }
}

/// The body that describes a version.
pub(crate) fn encode_body(version: &Version, next_table: u64) -> Vec<u8> {
    let mut writer = Writer::new();
    writer
        .varint(next_table)
        .varint(version.flushed_sequence)
        .varint(version.layers.len() as u64);
    for layer in &version.layers {
        match layer {
            Layer::Settled(run) => {
                writer.u8(0);
                write_run(&mut writer, run);
            }
            Layer::Merging(merge) => {
                writer.u8(if merge.cursor.is_some() { 2 } else { 1 });
                if let Some(cursor) = &merge.cursor {
                    writer.string(cursor);
                }
                writer.varint(merge.inputs.len() as u64);
                for run in &merge.inputs {
                    write_run(&mut writer, run);
                }
                write_run(&mut writer, &merge.output);
            }
        }
    }
    writer.into_bytes()
}

fn write_run(writer: &mut Writer, run: &Run) {
    writer.varint(run.tables.len() as u64);
    let mut previous: &[u8] = &[];
    for table in run.tables.iter() {
        let facts = &table.facts;
        writer
            .varint(facts.number)
            .u64(facts.extent.location)
            .varint(u64::from(facts.extent.bytes));
        writer.varint(u64::from(facts.head_offset)).u64(facts.head_sum);
        writer.varint(facts.entries).varint(facts.unsettled);
        writer
            .varint(facts.above)
            .varint(facts.up_to.saturating_sub(facts.above));
        write_key(writer, previous, &facts.first);
        write_key(writer, &facts.first, &facts.last);
        previous = &facts.last;
    }
}

/// The version that a body describes, and the next table number.
pub(crate) fn decode_body(body: &[u8], released: &Arc<Released>) -> Result<(Version, u64), MetaError> {
    let mut decoder = Decoder {
        reader: Reader::new(body),
        released,
        next_table: 0,
    };
    let decoded = decoder.version().map_err(unusable)?;
    decoder.reader.finish().map_err(unusable)?;
    Ok(decoded)
}

struct Decoder<'a> {
    reader: Reader<'a>,
    released: &'a Arc<Released>,
    next_table: u64,
}

impl Decoder<'_> {
    fn version(&mut self) -> Result<(Version, u64), DecodeError> {
        self.next_table = self.reader.varint("next table")?;
        let flushed_sequence = self.reader.varint("flushed sequence")?;
        let count = self.reader.varint("layer count")?;
        // Every layer takes at least one byte.
        if count > self.reader.remaining() as u64 {
            return Err(DecodeError::Invalid("layer count"));
        }
        let mut layers = Vec::new();
        for _ in 0..count {
            layers.push(self.layer()?);
        }
        Ok((
            Version {
                layers,
                flushed_sequence,
            },
            self.next_table,
        ))
    }

    fn layer(&mut self) -> Result<Layer, DecodeError> {
        let cursor = match self.reader.u8("kind of layer")? {
            0 => {
                let run = self.run()?;
                if run.tables.is_empty() {
                    return Err(DecodeError::Invalid("an empty run"));
                }
                return Ok(Layer::Settled(run));
            }
            1 => None,
            2 => Some(Bytes::copy_from_slice(
                self.reader.string(KEY_BYTES_MAX, "cursor")?,
            )),
            _ => return Err(DecodeError::Invalid("kind of layer")),
        };
        let count = self.reader.varint("input count")?;
        if count == 0 || count > self.reader.remaining() as u64 {
            return Err(DecodeError::Invalid("input count"));
        }
        let mut inputs = Vec::new();
        for _ in 0..count {
            inputs.push(self.run()?);
        }
        let output = self.run()?;
        // What was consumed is gone from the inputs; what was not is not yet in the output.
        let consumed = |key: &[u8]| cursor.as_ref().is_some_and(|cursor| key <= &**cursor);
        if output
            .tables
            .last()
            .is_some_and(|table| !consumed(&table.facts.last))
            || inputs
                .iter()
                .filter_map(|run| run.tables.first())
                .any(|table| consumed(&table.facts.last))
        {
            return Err(DecodeError::Invalid("the cursor of a merge"));
        }
        Ok(Layer::Merging(Merge {
            inputs,
            output,
            cursor,
        }))
    }

    fn run(&mut self) -> Result<Run, DecodeError> {
        let count = self.reader.varint("table count")?;
        // A table takes at least 27 bytes.
        if count > self.reader.remaining() as u64 / 27 {
            return Err(DecodeError::Invalid("table count"));
        }
        let mut tables: Vec<Arc<Table>> = Vec::with_capacity(count as usize);
        let mut key = Vec::new();
        for _ in 0..count {
            let number = self.reader.varint("table number")?;
            let location = self.reader.u64("extent")?;
            let bytes = self.short("extent length")?;
            let head_offset = self.short("head offset")?;
            let head_sum = self.reader.u64("head sum")?;
            let entries = self.reader.varint("entry count")?;
            let unsettled = self.reader.varint("unsettled count")?;
            let above = self.reader.varint("table sequence")?;
            let span = self.reader.varint("table sequence")?;
            let up_to = above.checked_add(span).filter(|_| span > 0);
            let up_to = up_to.ok_or(DecodeError::Invalid("table sequence"))?;
            read_key(&mut self.reader, &mut key)?;
            let first: Box<[u8]> = key.as_slice().into();
            read_key(&mut self.reader, &mut key)?;
            let last: Box<[u8]> = key.as_slice().into();
            if number >= self.next_table
                || bytes > TABLE_BYTES_MAX
                || head_offset >= bytes
                || head_offset as usize <= PREFACE_BYTES
            {
                return Err(DecodeError::Invalid("a table"));
            }
            if entries == 0 || unsettled > entries || first > last {
                return Err(DecodeError::Invalid("a table"));
            }
            if tables.last().is_some_and(|before| before.facts.last >= first) {
                return Err(DecodeError::Invalid("order of tables"));
            }
            let extent = Extent { location, bytes };
            let facts = TableFacts {
                number,
                extent,
                head_offset,
                head_sum,
                entries,
                unsettled,
                above,
                up_to,
                first,
                last,
            };
            tables.push(Table::new(facts, self.released.clone()));
        }
        Ok(Run::new(tables))
    }

    fn short(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        u32::try_from(self.reader.varint(field)?).map_err(|_| DecodeError::Invalid(field))
    }
}
