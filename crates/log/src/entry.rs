//! `EntryHeader`: the bytes in front of each log entry.
//!
//! Layout (144 bytes, little-endian): magic 8 · pool 16 · nonce 8 · first sequence 8 · last sequence 8 · flushed 8 ·
//! sum of the previous entry 32 · payload length 4 · flags 4 (bit 0: goes on in the next entry) · next segment
//! (2 × (device 2, index 4), all ones: none) 12 · behind 4 · BLAKE3 of the 112 bytes above and the payload 32.
//! The payload follows; the entry is padded with zeroes to 4096.
//!
//! Invariant: an entry is accepted only if its own sum matches and it names the sum of the entry before it, so that
//! neither a torn entry nor one of an earlier life of the segment is ever taken for part of the log.

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_pool::SegmentId;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 144;
const SUMMED_BYTES: usize = 112;
const MAGIC: [u8; 8] = *b"TerrLog1";
const NO_DEVICE: u16 = u16::MAX;

/// The one or two segments that hold the same piece of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copies(pub [Option<SegmentId>; 2]);

impl Copies {
    /// The segments there are.
    pub fn iter(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.0.iter().flatten().copied()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Appends twelve bytes.
    pub fn encode(&self, writer: &mut Writer) {
        for copy in &self.0 {
            let (device, index) =
                copy.map_or((NO_DEVICE, u32::MAX), |segment| (segment.device, segment.index));
            writer.u16(device).u32(index);
        }
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut copies = [None; 2];
        for copy in &mut copies {
            let device = reader.u16("log segment device")?;
            let index = reader.u32("log segment index")?;
            *copy = (device != NO_DEVICE).then_some(SegmentId { device, index });
        }
        Ok(Self(copies))
    }
}

/// What stands before an entry's payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryHeader {
    /// The pool's identifier.
    pub pool: [u8; 16],
    /// Random for each opening of the log.
    pub nonce: u64,
    /// First sequence in the payload.
    pub first: u64,
    /// Last sequence in the payload (`first - 1`: none).
    pub last: u64,
    /// Everything up to this sequence was durable when the entry was written.
    pub flushed: u64,
    /// How many of these sequences, the newest ones, the copy on a slower device did not have then.
    pub behind: u32,
    /// Sum of the entry before.
    pub previous: [u8; 32],
    /// Payload, bytes.
    pub length: u32,
    /// Whether the payload goes on in the next entry.
    pub continues: bool,
    /// Where the log goes on when this segment is full.
    pub next: Copies,
    /// BLAKE3 of header and payload.
    pub sum: [u8; 32],
}

impl EntryHeader {
    /// Whether it only ends what a recovery gave up: it holds nothing.
    pub fn is_fence(&self) -> bool {
        self.length == 0 && self.first.checked_sub(1) == Some(self.last)
    }

    /// Everything up to this sequence was durable in every copy when the entry was written.
    pub fn flushed_everywhere(&self) -> u64 {
        self.flushed.saturating_sub(self.behind.into())
    }

    fn summed(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(HEADER_BYTES);
        writer
            .bytes(&MAGIC)
            .bytes(&self.pool)
            .u64(self.nonce)
            .u64(self.first)
            .u64(self.last)
            .u64(self.flushed);
        writer
            .bytes(&self.previous)
            .u32(self.length)
            .u32(u32::from(self.continues));
        self.next.encode(&mut writer);
        writer.u32(self.behind);
        writer.into_bytes()
    }

    /// Sets the sum for `payload` and returns the bytes of the header.
    pub fn seal(&mut self, payload: &[u8]) -> Vec<u8> {
        let mut bytes = self.summed();
        self.sum = sum_of(&bytes, payload);
        bytes.extend_from_slice(&self.sum);
        bytes
    }

    /// Reads a header; its sum is not yet compared (see [`verify`](Self::verify)).
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.array::<8>("log magic")? != MAGIC {
            return Err(DecodeError::Invalid("log magic"));
        }
        let pool = reader.array("log pool")?;
        let nonce = reader.u64("log nonce")?;
        let first = reader.u64("log first sequence")?;
        let last = reader.u64("log last sequence")?;
        let flushed = reader.u64("log flushed")?;
        let previous = reader.array("log previous sum")?;
        let length = reader.u32("log payload length")?;
        let flags = reader.u32("log flags")?;
        if flags > 1 {
            return Err(DecodeError::Invalid("log flags"));
        }
        let next = Copies::decode(&mut reader)?;
        let behind = reader.u32("log behind")?;
        let sum = reader.array("log sum")?;
        Ok(Self {
            pool,
            nonce,
            first,
            last,
            flushed,
            behind,
            previous,
            length,
            continues: flags == 1,
            next,
            sum,
        })
    }

    /// Whether the sum is that of this header and `payload`.
    pub fn verify(&self, payload: &[u8]) -> bool {
        let summed = self.summed();
        debug_assert_eq!(summed.len(), SUMMED_BYTES);
        payload.len() == self.length as usize && sum_of(&summed, payload) == self.sum
    }
}

fn sum_of(header: &[u8], payload: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(payload);
    *hasher.finalize().as_bytes()
}
