//! What a log entry of the store holds: batches, one after the other.
//!
//! A batch: sequence (varint) · counters (5 signed varints) · next chunk id (varint) · number of operations (varint) ·
//! operations: kind 1 (0 delete, 1 put, 2 add) · key (string) · put: value (string), add: signed varint.
//!
//! Invariant: a payload that does not decode to its end is refused as a whole.

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_meta::{KEY_BYTES_MAX, Key, Operation, VALUE_BYTES_MAX, Value};

use super::totals::Counters;

/// One batch as it is logged and applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedBatch {
    /// Its number.
    pub sequence: u64,
    /// What it changes in the totals.
    pub change: Counters,
    /// The next chunk id to be given out, after it.
    pub next_chunk: u64,
    /// The operations, in order.
    pub operations: Vec<(Key, Operation)>,
}

/// Appends a batch to a pending payload.
pub fn encode_batch(
    writer: &mut Writer,
    sequence: u64,
    change: &Counters,
    next_chunk: u64,
    operations: &[(Key, Operation)],
) {
    writer.varint(sequence);
    change.encode(writer);
    writer.varint(next_chunk).varint(operations.len() as u64);
    for (key, operation) in operations {
        match operation {
            Operation::Delete => writer.u8(0).string(key),
            Operation::Put(value) => writer.u8(1).string(key).string(value),
            Operation::Add(by) => writer.u8(2).string(key).signed_varint(*by),
        };
    }
}

/// Reads all batches of a payload.
pub fn decode_batches(payload: &[u8]) -> Result<Vec<LoggedBatch>, DecodeError> {
    let mut reader = Reader::new(payload);
    let mut batches = Vec::new();
    while reader.remaining() > 0 {
        let sequence = reader.varint("batch sequence")?;
        let change = Counters::decode(&mut reader)?;
        let next_chunk = reader.varint("next chunk id")?;
        let count = reader.varint("operation count")?;
        // Each operation takes at least three bytes, so a count from damaged bytes cannot ask for more memory than
        // a small multiple of the payload.
        if count > reader.remaining() as u64 {
            return Err(DecodeError::Invalid("operation count"));
        }
        let mut operations = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let kind = reader.u8("operation kind")?;
            let key = Key::new(reader.string(KEY_BYTES_MAX, "operation key")?);
            let operation = match kind {
                0 => Operation::Delete,
                1 => Operation::Put(Value::new(reader.string(VALUE_BYTES_MAX, "operation value")?)),
                2 => Operation::Add(reader.signed_varint("operation sum")?),
                _ => return Err(DecodeError::Invalid("operation kind")),
            };
            operations.push((key, operation));
        }
        batches.push(LoggedBatch {
            sequence,
            change,
            next_chunk,
            operations,
        });
    }
    Ok(batches)
}
