//! Blocks: some sorted entries, keys compressed by what they share with the key before.
//!
//! Layout: entries, then the offsets of the restarts (entries with a whole key, every 16th) as `u32`, then their number
//! as `u32`. An entry: varint bytes shared with the key before, varint bytes of the rest of the key, varint (value
//! length × 4 + kind), rest of the key, value. (The scheme of LevelDB's tables.)
//! Invariant: a reader accepts any bytes without panicking; keys that it gives ascend strictly.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::{KEY_BYTES_MAX, decode_count, entries::OperationRef};

const RESTART_INTERVAL: usize = 16;
const KIND_PUT: u64 = 0;
const KIND_DELETE: u64 = 1;
const KIND_ADD: u64 = 2;

/// Builds one block.
#[derive(Default)]
pub(crate) struct BlockBuilder {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    last_key: Vec<u8>,
    entries: usize,
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// How many bytes two keys have in common at the start.
pub(crate) fn shared_bytes(left: &[u8], right: &[u8]) -> usize {
    left.iter()
        .zip(right)
        .take_while(|(left, right)| left == right)
        .count()
}

impl BlockBuilder {
    /// Adds an entry; keys must ascend.
    pub(crate) fn add(&mut self, key: &[u8], operation: OperationRef<'_>) {
        let mut shared = 0;
        if self.entries.is_multiple_of(RESTART_INTERVAL) {
            self.restarts.push(self.bytes.len() as u32);
        } else {
            shared = shared_bytes(&self.last_key, key);
        }
        put_varint(&mut self.bytes, shared as u64);
        put_varint(&mut self.bytes, (key.len() - shared) as u64);
        match operation {
            OperationRef::Put(value) => {
                put_varint(&mut self.bytes, (value.len() as u64) << 2 | KIND_PUT);
                self.bytes.extend_from_slice(&key[shared..]);
                self.bytes.extend_from_slice(value);
            }
            OperationRef::Delete => {
                put_varint(&mut self.bytes, KIND_DELETE);
                self.bytes.extend_from_slice(&key[shared..]);
            }
            OperationRef::Add(delta) => {
                let mut count = Vec::with_capacity(10);
                put_varint(&mut count, ((delta << 1) ^ (delta >> 63)) as u64);
                put_varint(&mut self.bytes, (count.len() as u64) << 2 | KIND_ADD);
                self.bytes.extend_from_slice(&key[shared..]);
                self.bytes.extend_from_slice(&count);
            }
        }
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
        self.entries += 1;
    }

    /// Bytes the block would take now.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + 4 * self.restarts.len() + 4
    }

    /// Whether nothing was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The last key added.
    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Appends the finished block to `bytes` and starts anew. Returns its length.
    pub(crate) fn finish_into(&mut self, bytes: &mut Vec<u8>) -> usize {
        let length = self.len();
        bytes.extend_from_slice(&self.bytes);
        for restart in &self.restarts {
            bytes.extend_from_slice(&restart.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.restarts.len() as u32).to_le_bytes());
        self.bytes.clear();
        self.restarts.clear();
        self.last_key.clear();
        self.entries = 0;
        length
    }
}

/// The block's bytes are not those of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A position in a block.
pub(crate) struct BlockCursor {
    block: Bytes,
    /// Where the entries end and the restarts begin.
    entries_end: usize,
    restarts: usize,
    /// Where the entry after the current one begins.
    next: usize,
    key: Vec<u8>,
    kind: u64,
    value: (usize, usize),
    count: i64,
}

struct Entry {
    shared: usize,
    key: (usize, usize),
    kind: u64,
    value: (usize, usize),
}

#[inline]
fn take_varint(bytes: &[u8], at: &mut usize) -> Result<u64, Malformed> {
    let first = *bytes.get(*at).ok_or(Malformed)?;
    *at += 1;
    if first < 0x80 {
        return Ok(u64::from(first));
    }
    let mut value = u64::from(first & 0x7f);
    // Lengths are below 2^35; more than five bytes are malformed.
    for shift in [7, 14, 21, 28] {
        let byte = *bytes.get(*at).ok_or(Malformed)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

/// The entry that starts at `start`.
#[inline]
fn parse(entries: &[u8], start: usize) -> Result<Entry, Malformed> {
    let mut at = start;
    let shared = take_varint(entries, &mut at)? as usize;
    let rest = take_varint(entries, &mut at)? as usize;
    let tagged = take_varint(entries, &mut at)?;
    let (kind, length) = (tagged & 3, (tagged >> 2) as usize);
    // None of the sums can overflow: each number is below 2^35.
    let (key_end, value_end) = (at + rest, at + rest + length);
    if value_end > entries.len() || shared + rest > KEY_BYTES_MAX {
        return Err(Malformed);
    }
    Ok(Entry {
        shared,
        key: (at, key_end),
        kind,
        value: (key_end, value_end),
    })
}

impl BlockCursor {
    /// Stands before the first entry.
    pub(crate) fn new(block: Bytes) -> Result<Self, Malformed> {
        let (rest, count) = block.split_last_chunk::<4>().ok_or(Malformed)?;
        let restarts = u32::from_le_bytes(*count) as usize;
        let table = restarts.checked_mul(4).ok_or(Malformed)?;
        let entries_end = rest.len().checked_sub(table).ok_or(Malformed)?;
        if restarts == 0 || entries_end == 0 {
            return Err(Malformed);
        }
        Ok(Self {
            entries_end,
            restarts,
            next: 0,
            key: Vec::with_capacity(64),
            kind: KIND_DELETE,
            value: (0, 0),
            count: 0,
            block,
        })
    }

    fn entry(&self, start: usize) -> Result<Entry, Malformed> {
        parse(&self.block[..self.entries_end], start)
    }

    /// Goes to the next entry; false at the end.
    pub(crate) fn advance(&mut self) -> Result<bool, Malformed> {
        if self.next >= self.entries_end {
            return Ok(false);
        }
        let entry = self.entry(self.next)?;
        if entry.shared > self.key.len() {
            return Err(Malformed);
        }
        let suffix = &self.block[entry.key.0..entry.key.1];
        if self.next > 0 && self.key[entry.shared..] >= *suffix {
            return Err(Malformed);
        }
        self.key.truncate(entry.shared);
        self.key.extend_from_slice(suffix);
        self.take(&entry)?;
        Ok(true)
    }

    fn take(&mut self, entry: &Entry) -> Result<(), Malformed> {
        match entry.kind {
            KIND_PUT => {}
            KIND_DELETE if entry.value.0 == entry.value.1 => {}
            KIND_ADD => {
                self.count = decode_count(&self.block[entry.value.0..entry.value.1]).ok_or(Malformed)?
            }
            _ => return Err(Malformed),
        }
        self.kind = entry.kind;
        self.value = entry.value;
        self.next = entry.value.1;
        Ok(())
    }

    fn restart(&self, index: usize) -> Result<usize, Malformed> {
        let at = self.entries_end + 4 * index;
        let bytes = self
            .block
            .get(at..at + 4)
            .and_then(|bytes| bytes.first_chunk::<4>())
            .ok_or(Malformed)?;
        Ok(u32::from_le_bytes(*bytes) as usize)
    }

    /// Goes to the first entry whose key is not below `target`; false if there is none.
    pub(crate) fn seek(&mut self, target: &[u8]) -> Result<bool, Malformed> {
        // The last restart whose key is not above the target.
        let (mut low, mut high) = (0, self.restarts);
        while high - low > 1 {
            let middle = (low + high) / 2;
            let entry = self.entry(self.restart(middle)?)?;
            if entry.shared != 0 {
                return Err(Malformed);
            }
            if &self.block[entry.key.0..entry.key.1] <= target {
                low = middle
            } else {
                high = middle
            }
        }
        let entry = self.entry(self.restart(low)?)?;
        if entry.shared != 0 {
            return Err(Malformed);
        }
        self.key.clear();
        self.key.extend_from_slice(&self.block[entry.key.0..entry.key.1]);
        self.take(&entry)?;
        while self.key.as_slice() < target {
            if !self.advance()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The key of the current entry.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The operation of the current entry.
    #[inline]
    pub(crate) fn operation(&self) -> OperationRef<'_> {
        match self.kind {
            KIND_PUT => OperationRef::Put(&self.block[self.value.0..self.value.1]),
            KIND_ADD => OperationRef::Add(self.count),
            _ => OperationRef::Delete,
        }
    }
}

/// Looks `target` up in a block without building keys: as long as an entry is below the target, it is enough to know
/// how many bytes of the target the entry before matched.
pub(crate) fn find<'a>(block: &'a [u8], target: &[u8]) -> Result<Option<OperationRef<'a>>, Malformed> {
    let (rest, count) = block.split_last_chunk::<4>().ok_or(Malformed)?;
    let restarts = (u32::from_le_bytes(*count) as usize)
        .checked_mul(4)
        .ok_or(Malformed)?;
    let (entries, restarts) = rest
        .split_at_checked(rest.len().wrapping_sub(restarts))
        .ok_or(Malformed)?;
    let (restarts, _) = restarts.as_chunks::<4>();
    // The last restart whose key is not above the target.
    let (mut low, mut high) = (0, restarts.len());
    while high - low > 1 {
        let middle = (low + high) / 2;
        let entry = parse(entries, u32::from_le_bytes(restarts[middle]) as usize)?;
        if entry.shared != 0 {
            return Err(Malformed);
        }
        if &entries[entry.key.0..entry.key.1] <= target {
            low = middle
        } else {
            high = middle
        }
    }
    let mut at = u32::from_le_bytes(*restarts.get(low).ok_or(Malformed)?) as usize;
    let mut matched = 0;
    while at < entries.len() {
        let entry = parse(entries, at)?;
        at = entry.value.1;
        match entry.shared.cmp(&matched) {
            // It differs from the entry before later than the target does: still below.
            Ordering::Greater => continue,
            // It differs from the entry before, upwards, where that one matched the target: above.
            Ordering::Less => return Ok(None),
            Ordering::Equal => {}
        }
        let suffix = &entries[entry.key.0..entry.key.1];
        let wanted = &target[matched..];
        let common = shared_bytes(suffix, wanted);
        match (suffix.get(common), wanted.get(common)) {
            (None, None) => return operation_of(&entry, entries).map(Some),
            (Some(_), None) => return Ok(None),
            (Some(here), Some(there)) if here > there => return Ok(None),
            _ => matched += common,
        }
    }
    Ok(None)
}

fn operation_of<'a>(entry: &Entry, entries: &'a [u8]) -> Result<OperationRef<'a>, Malformed> {
    let value = &entries[entry.value.0..entry.value.1];
    match entry.kind {
        KIND_PUT => Ok(OperationRef::Put(value)),
        KIND_DELETE if value.is_empty() => Ok(OperationRef::Delete),
        KIND_ADD => decode_count(value).map(OperationRef::Add).ok_or(Malformed),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<(Vec<u8>, i64)> {
        (0..100i64)
            .map(|number| (format!("table/{:05}", number * 3).into_bytes(), number))
            .collect()
    }

    fn build() -> Bytes {
        let mut builder = BlockBuilder::default();
        for (key, number) in sample() {
            match number % 3 {
                0 => builder.add(&key, OperationRef::Put(&key)),
                1 => builder.add(&key, OperationRef::Delete),
                _ => builder.add(&key, OperationRef::Add(number - 50)),
            }
        }
        let mut bytes = Vec::new();
        let length = builder.finish_into(&mut bytes);
        assert_eq!(length, bytes.len());
        Bytes::from(bytes)
    }

    #[test]
    fn gives_back_what_was_put_in() {
        let mut cursor = BlockCursor::new(build()).expect("a block");
        for (key, number) in sample() {
            assert!(cursor.advance().expect("sound"));
            assert_eq!(cursor.key(), key);
            match cursor.operation() {
                OperationRef::Put(value) => assert!(number % 3 == 0 && value == key),
                OperationRef::Delete => assert_eq!(number % 3, 1),
                OperationRef::Add(delta) => assert!(number % 3 == 2 && delta == number - 50),
            }
        }
        assert!(!cursor.advance().expect("sound"));
    }

    #[test]
    fn seeks_to_the_first_key_not_below() {
        for target in 0..310 {
            let mut cursor = BlockCursor::new(build()).expect("a block");
            let found = cursor
                .seek(format!("table/{target:05}").as_bytes())
                .expect("sound");
            let expected = (target + 2) / 3 * 3;
            assert_eq!(found, expected < 300);
            if found {
                assert_eq!(cursor.key(), format!("table/{expected:05}").as_bytes());
            }
        }
    }

    #[test]
    fn survives_any_changed_byte() {
        let sound = build();
        for offset in 0..sound.len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut bytes = sound.to_vec();
                bytes[offset] ^= mask;
                let Ok(mut cursor) = BlockCursor::new(Bytes::from(bytes)) else {
                    continue;
                };
                let _ = cursor.seek(b"table/00150");
                while let Ok(true) = cursor.advance() {}
            }
        }
    }
}
