//! `Reader`: a cursor over bytes from outside.
//!
//! Invariant: the cursor never passes the end, and no method panics or allocates more than the input is long.

/// Why bytes could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input ended inside the named field.
    #[error("the record ends inside {0}")]
    Short(&'static str),
    /// The named field holds a value that the format does not allow.
    #[error("{0} holds a value that the format does not allow")]
    Invalid(&'static str),
    /// Bytes are left after the last field.
    #[error("{0} bytes are left over after the record")]
    Trailing(usize),
}

/// Reads fields one after another from a byte slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Everything that is left; the reader is at its end afterwards.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Takes `length` bytes.
    pub fn bytes(&mut self, length: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(DecodeError::Short(field))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Takes an array of `N` bytes.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Short(field))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// One byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(field)?[0])
    }

    /// A little-endian `u16`.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    /// A little-endian `u32`.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// A little-endian `u64`.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A little-endian `i64`.
    pub fn i64(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        Ok(i64::from_le_bytes(self.array(field)?))
    }

    /// A big-endian `u16` (inside keys).
    pub fn key_u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array(field)?))
    }

    /// A big-endian `u32` (inside keys).
    pub fn key_u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array(field)?))
    }

    /// A big-endian `u64` (inside keys).
    pub fn key_u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(self.array(field)?))
    }

    /// A variable-length unsigned integer (LEB128, at most ten bytes, no bits beyond 64).
    pub fn varint(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(field)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(DecodeError::Invalid(field));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Invalid(field))
    }

    /// A variable-length signed integer (zigzag).
    pub fn signed_varint(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        let raw = self.varint(field)?;
        Ok(((raw >> 1) as i64) ^ -((raw & 1) as i64))
    }

    /// A byte string with its length in front, of at most `limit` bytes.
    pub fn string(&mut self, limit: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(self.varint(field)?).map_err(|_| DecodeError::Invalid(field))?;
        if length > limit {
            return Err(DecodeError::Invalid(field));
        }
        self.bytes(length, field)
    }

    /// Fails unless everything was read.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing(left)),
        }
    }
}
