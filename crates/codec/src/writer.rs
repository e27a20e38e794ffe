//! `Writer`: builds records; the mirror of [`Reader`](crate::Reader).

/// Appends fields to a byte vector.
#[derive(Debug, Default, Clone)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty record.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty record with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(capacity),
        }
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The finished record.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// What was written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Raw bytes, with no length.
    pub fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(value);
        self
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// A little-endian `u16`.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// A little-endian `u32`.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// A little-endian `u64`.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// A little-endian `i64`.
    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// A variable-length unsigned integer (LEB128).
    pub fn varint(&mut self, mut value: u64) -> &mut Self {
        while value >= 0x80 {
            self.bytes.push((value as u8) | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
        self
    }

    /// A variable-length signed integer (zigzag).
    pub fn signed_varint(&mut self, value: i64) -> &mut Self {
        self.varint(((value << 1) ^ (value >> 63)) as u64)
    }

    /// A byte string with its length in front.
    pub fn string(&mut self, value: &[u8]) -> &mut Self {
        self.varint(value.len() as u64);
        self.bytes(value)
    }
}
