//! `Terms`: what a client and the server agreed on, by which requests are read and replies written; and writing a header with its
//! payload.

use std::io::{self, IoSlice, Write};

/// What the two sides agreed on before transmission.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    /// Reads and errors are answered in structured replies.
    pub structured: bool,
    /// Requests and replies have 64-bit lengths.
    pub extended: bool,
    /// The client asked for `base:allocation` of this export.
    pub allocation_of: Option<String>,
}

/// Writes header and payload in as few calls as the socket allows.
pub fn write_parts(stream: &mut impl Write, header: &[u8], payload: &[u8]) -> io::Result<()> {
    write_all_parts(stream, &mut [IoSlice::new(header), IoSlice::new(payload)])
}

/// The same with any number of parts, one behind the other.
pub fn write_all_parts(stream: &mut impl Write, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    let mut left: &mut [IoSlice<'_>] = parts;
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match stream.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut left, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
