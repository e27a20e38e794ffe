//! `KeyWriter`: builds keys whose byte order is the order of their fields.

/// Appends fixed-width big-endian fields, so that comparing two keys as bytes compares them field by field.
#[derive(Debug, Default, Clone)]
pub struct KeyWriter {
    bytes: Vec<u8>,
}

impl KeyWriter {
    /// A key that starts with the table byte `table`.
    pub fn table(table: u8) -> Self {
        let mut bytes = Vec::with_capacity(32);
        bytes.push(table);
        Self { bytes }
    }

    /// One byte.
    pub fn u8(mut self, value: u8) -> Self {
        self.bytes.push(value);
        self
    }

    /// A big-endian `u16`.
    pub fn u16(mut self, value: u16) -> Self {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// A big-endian `u32`.
    pub fn u32(mut self, value: u32) -> Self {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// A big-endian `u64`.
    pub fn u64(mut self, value: u64) -> Self {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Raw bytes; only as the last field, or where the length is fixed.
    pub fn bytes(mut self, value: &[u8]) -> Self {
        self.bytes.extend_from_slice(value);
        self
    }

    /// The finished key.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// The first key after every key that starts with `prefix` (an empty vector: there is none).
    pub fn after_prefix(prefix: &[u8]) -> Vec<u8> {
        let mut end = prefix.to_vec();
        while let Some(last) = end.pop() {
            if last < 0xff {
                end.push(last + 1);
                break;
            }
        }
        end
    }
}
