//! `Connection`: one client's byte stream, and what was negotiated on it.
//!
//! Invariant: reads of the stream happen under the caller's read lock, writes are whole messages under `write`.

use std::{
    io::{self, IoSlice, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
};

/// A connected socket of either family.
#[derive(Debug)]
pub enum Stream {
    /// A Unix socket.
    Unix(UnixStream),
    /// A TCP socket.
    Tcp(TcpStream),
}

impl Stream {
    /// A second handle to the same socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    /// Ends both directions; blocked reads return.
    pub fn shutdown(&self) {
        // A socket that is already gone needs no shutdown: that is the only way this fails.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(buffer),
            Self::Tcp(stream) => stream.write(buffer),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write_vectored(parts),
            Self::Tcp(stream) => stream.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

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
    let mut parts = [IoSlice::new(header), IoSlice::new(payload)];
    let mut left: &mut [IoSlice<'_>] = &mut parts;
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
