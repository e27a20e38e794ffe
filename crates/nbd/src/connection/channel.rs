//! `Incoming` and `Outgoing`: the two directions of a connection, plain or in TLS.
//!
//! They are used by different threads at the same time. In TLS both share one state; the socket is waited for
//! outside of its lock, so that a client that is silent, or slow to take its replies, holds up only itself.
//! Invariants: records leave in the order in which they were made: whoever makes one holds `outbox` until it is
//! sent; locks are taken in the order `outbox`, `state`.

use std::{
    io::{self, IoSlice, Read, Write},
    sync::Arc,
    time::Instant,
};

use parking_lot::Mutex;
use rustls::{ServerConfig, ServerConnection};

use super::stream::Stream;

/// Bytes asked of the socket at a time in TLS: a few records.
const RECEIVE_BYTES: usize = 64 << 10;

struct Outbox {
    socket: Stream,
    records: Vec<u8>,
}

struct Shared {
    outbox: Mutex<Outbox>,
    state: Mutex<ServerConnection>,
}

impl Shared {
    /// Sends what the state has ready. Whatever `prepare` adds to it goes out whole, and in this order.
    fn send<T>(&self, prepare: impl FnOnce(&mut ServerConnection) -> io::Result<T>) -> io::Result<T> {
        let mut outbox = self.outbox.lock();
        let Outbox { socket, records } = &mut *outbox;
        records.clear();
        let prepared = {
            let mut state = self.state.lock();
            let prepared = prepare(&mut state)?;
            while state.wants_write() {
                state.write_tls(records)?;
            }
            prepared
        };
        socket.write_all(records)?;
        Ok(prepared)
    }
}

/// What comes from the client.
pub enum Incoming {
    /// As it is on the wire.
    Plain(Stream),
    /// Out of TLS.
    Tls(TlsIncoming),
}

/// What goes to the client.
pub enum Outgoing {
    /// As it is on the wire.
    Plain(Stream),
    /// Into TLS.
    Tls(TlsOutgoing),
}

/// The receiving half in TLS.
pub struct TlsIncoming {
    shared: Arc<Shared>,
    socket: Stream,
    received: Vec<u8>,
    /// The part of `received` that the state has not taken.
    left: std::ops::Range<usize>,
}

/// The sending half in TLS.
pub struct TlsOutgoing {
    shared: Arc<Shared>,
}

/// Both halves of a connection without TLS.
pub fn plain(stream: Stream) -> (Incoming, Outgoing) {
    let sending = stream.handle();
    (Incoming::Plain(stream), Outgoing::Plain(sending))
}

/// Makes TLS of a connection, by `deadline`.
pub fn accept(
    mut stream: Stream,
    config: Arc<ServerConfig>,
    deadline: Instant,
) -> io::Result<(Incoming, Outgoing)> {
    let mut state = ServerConnection::new(config).map_err(io::Error::other)?;
    stream.set_deadline(Some(deadline))?;
    while state.is_handshaking() {
        state.complete_io(&mut stream)?;
    }
    let mut sending = stream.handle();
    sending.set_deadline(Some(deadline))?;
    let shared = Arc::new(Shared {
        outbox: Mutex::new(Outbox {
            socket: sending,
            records: Vec::new(),
        }),
        state: Mutex::new(state),
    });
    // What the handshake left to be sent: session tickets.
    shared.send(|_| Ok(()))?;
    let incoming = TlsIncoming {
        shared: shared.clone(),
        socket: stream,
        received: vec![0; RECEIVE_BYTES],
        left: 0..0,
    };
    Ok((Incoming::Tls(incoming), Outgoing::Tls(TlsOutgoing { shared })))
}

impl Incoming {
    /// See [`Stream::set_deadline`].
    pub fn set_deadline(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.set_deadline(deadline),
            Self::Tls(tls) => tls.socket.set_deadline(deadline),
        }
    }
}

impl Outgoing {
    /// See [`Stream::set_deadline`].
    pub fn set_deadline(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.set_deadline(deadline),
            Self::Tls(tls) => tls.shared.outbox.lock().socket.set_deadline(deadline),
        }
    }

    /// Ends both directions; blocked reads return.
    pub fn shutdown(&mut self) {
        match self {
            Self::Plain(stream) => stream.shutdown(),
            Self::Tls(tls) => {
                // The client may be gone: then nobody misses the farewell.
                let _ = tls.shared.send(|state| {
                    state.send_close_notify();
                    Ok(())
                });
                tls.shared.outbox.lock().socket.shutdown();
            }
        }
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Read for TlsIncoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let answers = {
                let mut state = self.shared.state.lock();
                match state.reader().read(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read,
                }
                if !self.left.is_empty() {
                    let taken = state.read_tls(&mut &self.received[self.left.clone()])?;
                    self.left.start += taken;
                    let processed = state.process_new_packets();
                    match processed {
                        Ok(progress) if progress.tls_bytes_to_write() > 0 => Some(Ok(())),
                        Ok(_) => None,
                        Err(error) => Some(Err(io::Error::new(io::ErrorKind::InvalidData, error))),
                    }
                } else {
                    drop(state);
                    let count = self.socket.read(&mut self.received)?;
                    if count == 0 {
                        // Cut off without a farewell: whoever did it, nothing more comes.
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.left = 0..count;
                    continue;
                }
            };
            if let Some(outcome) = answers {
                self.shared.send(|_| Ok(()))?;
                outcome?;
            }
        }
    }
}

impl Write for Outgoing {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buffer)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write_vectored(parts),
            Self::Tls(tls) => tls.shared.send(|state| state.writer().write_vectored(parts)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Both directions as one, for a dialogue of questions and answers.
pub struct Dialogue<'a>(pub &'a mut Incoming, pub &'a mut Outgoing);

impl Read for Dialogue<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Dialogue<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.1.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
