//! `Filter`: tells for most absent keys that they are absent, without a read.
//!
//! A blocked Bloom filter (Putze, Sanders, Singler: "Cache-, Hash- and Space-Efficient Bloom Filters", 2007): all bits
//! of a key lie in one 64-byte line. Ten bits and six probes a key: about 1.3 % false positives.
//! Invariant: a key that was put in is never reported absent.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits per key.
const BITS_PER_KEY: usize = 10;
const PROBES: u32 = 6;
/// Bytes of a line.
pub(crate) const LINE_BYTES: usize = 64;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; 8]);

/// The filter of one table.
pub(crate) struct Filter {
    lines: Box<[Line]>,
}

/// The hash under which a key goes into filters.
#[inline]
pub(crate) fn filter_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// How many bytes a filter of `keys` keys takes.
pub(crate) fn filter_bytes(keys: usize) -> usize {
    (keys * BITS_PER_KEY).div_ceil(8 * LINE_BYTES) * LINE_BYTES
}

impl Filter {
    /// A filter of the keys with these hashes.
    pub(crate) fn build(hashes: &[u64]) -> Self {
        let mut lines = vec![Line([0; 8]); filter_bytes(hashes.len()) / LINE_BYTES].into_boxed_slice();
        let count = lines.len();
        for hash in hashes {
            let line = &mut lines[line_of(*hash, count)];
            let mut probe = *hash;
            for _ in 0..PROBES {
                line.0[(probe & 7) as usize] |= 1 << ((probe >> 3) & 63);
                probe >>= 9;
            }
        }
        Self { lines }
    }

    /// Reads what [`Filter::append_to`] wrote; `None` unless it is whole lines.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (chunks, rest) = bytes.as_chunks::<LINE_BYTES>();
        if !rest.is_empty() {
            return None;
        }
        let mut lines = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let mut line = Line([0; 8]);
            for (word, bytes) in line.0.iter_mut().zip(chunk.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            lines.push(line);
        }
        Some(Self {
            lines: lines.into_boxed_slice(),
        })
    }

    /// Appends the lines.
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>) {
        for line in &self.lines {
            for word in line.0 {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
    }

    /// Whether a key with this hash may be there.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        if self.lines.is_empty() {
            return true;
        }
        let line = &self.lines[line_of(hash, self.lines.len())];
        let mut probe = hash;
        let mut found = true;
        for _ in 0..PROBES {
            found &= line.0[(probe & 7) as usize] >> ((probe >> 3) & 63) & 1 == 1;
            probe >>= 9;
        }
        found
    }

    /// Memory taken, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }
}

/// The line of a hash: its upper half scaled to the number of lines (the probes use the lower 54 bits of it,
/// remixed here so that line and probes are independent).
#[inline]
fn line_of(hash: u64, lines: usize) -> usize {
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((mixed * lines as u64) >> 32) as usize
}

/// The same for keys that come one after the other and are looked up meanwhile: those of a memtable.
pub(crate) struct GrowingFilter {
    lines: Box<[[AtomicU64; 8]]>,
}

impl GrowingFilter {
    /// For about `keys` keys; more of them are found as well, but fewer others refused.
    pub(crate) fn with_room(keys: usize) -> Self {
        let lines = (filter_bytes(keys) / LINE_BYTES).max(1);
        Self {
            lines: std::iter::repeat_with(Default::default).take(lines).collect(),
        }
    }

    /// Enters a key. Whoever learns of it in an orderly way finds it.
    pub(crate) fn insert(&self, hash: u64) {
        let Some(line) = self.lines.get(line_of(hash, self.lines.len())) else {
            return;
        };
        let mut probe = hash;
        for _ in 0..PROBES {
            line[(probe & 7) as usize].fetch_or(1 << ((probe >> 3) & 63), Relaxed);
            probe >>= 9;
        }
    }

    /// Whether a key with this hash may be there.
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        let Some(line) = self.lines.get(line_of(hash, self.lines.len())) else {
            return true;
        };
        let mut probe = hash;
        for _ in 0..PROBES {
            if line[(probe & 7) as usize].load(Relaxed) >> ((probe >> 3) & 63) & 1 == 0 {
                return false;
            }
            probe >>= 9;
        }
        true
    }

    /// Memory taken, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_all_and_refuses_nearly_all_others() {
        let hashes: Vec<u64> = (0..20_000u64)
            .map(|key| filter_hash(&key.to_be_bytes()))
            .collect();
        let mut bytes = Vec::new();
        Filter::build(&hashes).append_to(&mut bytes);
        assert_eq!(bytes.len(), filter_bytes(hashes.len()));
        let filter = Filter::decode(&bytes).expect("whole lines");
        assert!(hashes.iter().all(|hash| filter.may_contain(*hash)));
        let wrong = (20_000..120_000u64)
            .filter(|key| filter.may_contain(filter_hash(&key.to_be_bytes())))
            .count();
        assert!(wrong < 2_500, "{wrong} false positives in 100000");
        assert!(Filter::decode(&bytes[1..]).is_none());
    }

    #[test]
    fn one_that_grows_finds_all_and_refuses_nearly_all_others() {
        let hash = |key: u64| filter_hash(&key.to_be_bytes());
        let filter = GrowingFilter::with_room(20_000);
        (0..20_000).for_each(|key| filter.insert(hash(key)));
        assert!((0..20_000).all(|key| filter.may_contain(hash(key))));
        let wrong = (20_000..120_000)
            .filter(|key| filter.may_contain(hash(*key)))
            .count();
        assert!(wrong < 2_500, "{wrong} false positives in 100000");
    }
}
