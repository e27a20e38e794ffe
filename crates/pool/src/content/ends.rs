//! Both ends of a device, read once.
//!
//! Invariant: an offset outside of what was read answers `None`, never a panic.

use terrace_device::{AlignedBuffer, DEVICE_BLOCK_BYTES, DeviceError};

/// Bytes at each end that must be zero.
const EDGE_BYTES: u64 = 1024 * 1024;
/// Bytes from the start in which formats are looked for: the last one of the table starts at 4 MiB.
const HEAD_BYTES: u64 = 4 * EDGE_BYTES + DEVICE_BLOCK_BYTES as u64;
const BLOCK: u64 = DEVICE_BLOCK_BYTES as u64;

/// What was read of a device.
pub(super) struct Ends {
    /// Size of the whole backing, bytes.
    pub(super) size_bytes: u64,
    head: AlignedBuffer,
    head_bytes: usize,
    tail: AlignedBuffer,
    /// Where the tail starts, bytes.
    tail_offset: u64,
    tail_bytes: usize,
    /// Whether the last MiB of the part that is to be used, where that ends before the backing does, is all zero.
    is_used_end_zero: bool,
}

/// Fills a buffer from an offset; fewer bytes only at the end of the backing.
pub(super) type ReadBacking<'a> = dyn Fn(u64, &mut [u8]) -> Result<usize, DeviceError> + 'a;

impl Ends {
    /// Reads both ends of a backing of `size_bytes`, of which the first `used_bytes` are to be a device.
    pub(super) fn read(
        size_bytes: u64,
        used_bytes: u64,
        read: &ReadBacking<'_>,
    ) -> Result<Self, DeviceError> {
        let (head, head_bytes) = read_range(0, HEAD_BYTES.min(size_bytes), size_bytes, read)?;
        let tail_offset = size_bytes.saturating_sub(EDGE_BYTES) / BLOCK * BLOCK;
        let (tail, tail_bytes) = read_range(tail_offset, size_bytes - tail_offset, size_bytes, read)?;
        let mut is_used_end_zero = true;
        if used_bytes < size_bytes {
            let from = used_bytes.saturating_sub(EDGE_BYTES) / BLOCK * BLOCK;
            let (used, bytes) = read_range(from, used_bytes - from, size_bytes, read)?;
            is_used_end_zero = is_zero(&used[..bytes]);
        }
        Ok(Self {
            size_bytes,
            head,
            head_bytes,
            tail,
            tail_offset,
            tail_bytes,
            is_used_end_zero,
        })
    }

    /// Bytes at an offset from the start.
    pub(super) fn at(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let range = |from: u64, bytes: &'_ [u8]| {
            let from = usize::try_from(offset.checked_sub(from)?).ok()?;
            Some(from..from.checked_add(length)?).filter(|range| range.end <= bytes.len())
        };
        let (head, tail) = (self.head(), self.tail());
        range(0, head)
            .map(|range| &head[range])
            .or_else(|| range(self.tail_offset, tail).map(|range| &tail[range]))
    }

    /// Bytes that begin so far before the end.
    pub(super) fn before_end(&self, back: u64, length: usize) -> Option<&[u8]> {
        self.at(self.size_bytes.checked_sub(back)?, length)
    }

    /// Offsets, multiples of `step`, in the first and the last MiB.
    pub(super) fn edges(&self, step: u64) -> impl Iterator<Item = u64> + '_ {
        let first = (0..EDGE_BYTES.min(self.size_bytes)).step_by(step as usize);
        first.chain(self.last_edge(step))
    }

    /// Offsets, multiples of `step`, in the last MiB.
    pub(super) fn last_edge(&self, step: u64) -> impl Iterator<Item = u64> + '_ {
        let from = self.tail_offset.next_multiple_of(step);
        (from..self.size_bytes.max(from)).step_by(step as usize)
    }

    fn head(&self) -> &[u8] {
        &self.head[..self.head_bytes]
    }

    fn tail(&self) -> &[u8] {
        &self.tail[..self.tail_bytes]
    }

    /// What is said where no format is known; `None` if both ends are all zero.
    pub(super) fn describe_unknown(&self) -> Option<String> {
        let edge = EDGE_BYTES.min(self.head_bytes as u64) as usize;
        let first = &self.head()[..edge];
        let place = match (!is_zero(first), !is_zero(self.tail())) {
            (true, _) => "first",
            (false, true) => "last",
            (false, false) if !self.is_used_end_zero => {
                return Some(
                    "data of no known format: the last MiB of the part to be used is not all zero".into(),
                );
            }
            (false, false) => return None,
        };
        let what = match is_text(first) {
            true => "text",
            false => "data of no known format",
        };
        Some(format!("{what}: its {place} MiB is not all zero"))
    }
}

fn read_range(
    offset: u64,
    length: u64,
    size_bytes: u64,
    read: &ReadBacking<'_>,
) -> Result<(AlignedBuffer, usize), DeviceError> {
    // Direct reads are done by blocks, over the end of a file whose length is no multiple of one.
    let mut buffer = AlignedBuffer::zeroed(length.next_multiple_of(BLOCK) as usize);
    let bytes = match buffer.is_empty() {
        true => 0,
        false => read(offset, &mut buffer)?,
    };
    let there = size_bytes.saturating_sub(offset).min(length) as usize;
    Ok((buffer, bytes.min(there)))
}

fn is_zero(bytes: &[u8]) -> bool {
    const ZEROES: [u8; DEVICE_BLOCK_BYTES] = [0; DEVICE_BLOCK_BYTES];
    bytes
        .chunks(DEVICE_BLOCK_BYTES)
        .all(|chunk| *chunk == ZEROES[..chunk.len()])
}

/// Whether it begins as a text does.
fn is_text(bytes: &[u8]) -> bool {
    const LOOK_BYTES: usize = 256;
    let begin = &bytes[..bytes.len().min(LOOK_BYTES)];
    let end = begin.iter().position(|byte| *byte == 0).unwrap_or(begin.len());
    let text = match std::str::from_utf8(&begin[..end]) {
        Ok(text) => text,
        // A character that the look cuts in two.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&begin[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let is_plain = |letter: char| !letter.is_control() || letter.is_ascii_whitespace();
    text.len() >= 4 && text.chars().all(is_plain)
}
