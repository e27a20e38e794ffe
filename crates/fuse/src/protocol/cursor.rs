//! Reading numbers and names from a request's bytes, with every length checked.

/// Why bytes are not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Fewer bytes than the operation needs, or a length field that does not fit what came.
    #[error("a request is shorter than it says")]
    Truncated,
    /// A name that is empty, has no end, or has a slash in it.
    #[error("a request has an invalid name")]
    Name,
}

/// Walks over the bytes of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], ProtocolError> {
        let (head, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(ProtocolError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    pub fn skip(&mut self, count: usize) -> Result<(), ProtocolError> {
        self.bytes(count).map(|_| ())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(ProtocolError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    pub fn u16(&mut self) -> Result<u16, ProtocolError> {
        self.array().map(u16::from_ne_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.array().map(u32::from_ne_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.array().map(u64::from_ne_bytes)
    }

    /// A name: bytes up to a NUL, which is consumed; one path component.
    pub fn name(&mut self) -> Result<&'a [u8], ProtocolError> {
        let name = self.text()?;
        if name.is_empty() || name.contains(&b'/') {
            Err(ProtocolError::Name)
        } else {
            Ok(name)
        }
    }

    /// Any bytes up to a NUL, which is consumed.
    pub fn text(&mut self) -> Result<&'a [u8], ProtocolError> {
        let end = self
            .rest
            .iter()
            .position(|&byte| byte == 0)
            .ok_or(ProtocolError::Name)?;
        let text = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(text)
    }
}
