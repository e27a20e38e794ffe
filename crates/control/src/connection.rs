//! `Connection`: one end of the socket: bounded lines, bounded frames.
//!
//! Invariants: memory is taken as bytes arrive, never on the peer's word; a watched connection never waits longer than its watch allows,
//! wherever it waits, in the middle of a frame too.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{FRAME_BYTES_MAX, Failure, LINE_BYTES_MAX, Message, Progress, Request};

/// What can go wrong on the socket.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket failed.
    #[error("the connection to the daemon broke: {0}")]
    Socket(#[from] io::Error),
    /// The peer closed in the middle.
    #[error("the daemon went away before it answered")]
    Closed,
    /// The peer sent something that is not the protocol.
    #[error("the peer does not speak this protocol: {0}")]
    Protocol(String),
    /// The daemon answered with an error.
    #[error("{0}")]
    Failed(Failure),
}

/// Asked again and again while the peer neither sends nor takes a byte, with how long that has been so: an error ends the wait.
pub type Watch = dyn Fn(Duration) -> io::Result<()> + Send + Sync;

/// A stream whose waits are watched.
struct Watched {
    stream: UnixStream,
    watch: Option<Arc<Watch>>,
}

impl Watched {
    fn patiently<T>(&mut self, mut attempt: impl FnMut(&mut UnixStream) -> io::Result<T>) -> io::Result<T> {
        let mut begun = None;
        loop {
            match (attempt(&mut self.stream), &self.watch) {
                (Err(error), Some(watch))
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
                {
                    // The first wait is over already.
                    let every = self.stream.read_timeout().ok().flatten().unwrap_or_default();
                    let begun = *begun.get_or_insert_with(|| Instant::now() - every);
                    watch(begun.elapsed())?;
                }
                (outcome, _) => return outcome,
            }
        }
    }
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.read(buffer))
    }
}

impl Write for Watched {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A connected socket.
pub struct Connection {
    reader: BufReader<Watched>,
    writer: Watched,
}

impl Connection {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// `Socket` if nobody listens there.
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        Self::new(UnixStream::connect(path)?)
    }

    /// The same; also where too many wait to be let in, it takes no longer than this.
    ///
    /// # Errors
    /// `Socket` if nobody listens there, or lets us in.
    pub fn connect_within(path: &Path, patience: Duration) -> Result<Self, ControlError> {
        let error = |error: rustix::io::Errno| ControlError::Socket(error.into());
        let socket: OwnedFd = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(error)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience)).map_err(error)?;
        let address = SocketAddrUnix::new(path).map_err(error)?;
        rustix::net::connect(&socket, &address).map_err(error)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, None).map_err(error)?;
        Self::new(UnixStream::from(socket))
    }

    /// Takes over a connected stream.
    ///
    /// # Errors
    /// `Socket` if the descriptor cannot be duplicated.
    pub fn new(stream: UnixStream) -> Result<Self, ControlError> {
        let watched = |stream| Watched { stream, watch: None };
        let writer = watched(stream.try_clone()?);
        Ok(Self {
            reader: BufReader::with_capacity(64 << 10, watched(stream)),
            writer,
        })
    }

    /// Has every wait for the peer watched, each time that nothing has moved for so long.
    ///
    /// # Errors
    /// `Socket`.
    pub fn set_watch(&mut self, every: Duration, watch: Arc<Watch>) -> Result<(), ControlError> {
        self.writer.stream.set_read_timeout(Some(every))?;
        self.writer.stream.set_write_timeout(Some(every))?;
        self.writer.watch = Some(watch.clone());
        self.reader.get_mut().watch = Some(watch);
        Ok(())
    }

    /// The longest time to wait for the peer's next byte; `None`: for ever.
    ///
    /// # Errors
    /// `Socket`.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), ControlError> {
        self.reader.get_ref().stream.set_read_timeout(timeout)?;
        Ok(())
    }

    /// Sends one value as a line.
    ///
    /// # Errors
    /// `Socket`, or `Protocol` if the line would be too long.
    pub fn send<T: Serialize>(&mut self, value: &T) -> Result<(), ControlError> {
        let mut line =
            serde_json::to_vec(value).map_err(|error| ControlError::Protocol(error.to_string()))?;
        line.push(b'\n');
        if line.len() > LINE_BYTES_MAX {
            return Err(ControlError::Protocol(format!(
                "a message of {} bytes is longer than {LINE_BYTES_MAX}",
                line.len()
            )));
        }
        self.writer.write_all(&line)?;
        Ok(())
    }

    /// Receives one line; `None` if the peer closed before its first byte.
    ///
    /// # Errors
    /// `Socket`, `Closed` in the middle of a line, `Protocol` if it is too long or not what was expected.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ControlError> {
        let mut line = Vec::new();
        let read = (&mut self.reader)
            .take(LINE_BYTES_MAX as u64)
            .read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            return Err(if line.len() >= LINE_BYTES_MAX {
                ControlError::Protocol(format!("a line is longer than {LINE_BYTES_MAX} bytes"))
            } else {
                ControlError::Closed
            });
        }
        serde_json::from_slice(&line)
            .map(Some)
            .map_err(|error| ControlError::Protocol(error.to_string()))
    }

    /// Sends content as frames.
    ///
    /// # Errors
    /// `Socket`.
    pub fn send_content(&mut self, content: &[u8]) -> Result<(), ControlError> {
        for frame in content.chunks(FRAME_BYTES_MAX) {
            self.send(&Message::Content(frame.len()))?;
            self.writer.write_all(frame)?;
        }
        Ok(())
    }

    /// Tells that there is no more content.
    ///
    /// # Errors
    /// `Socket`.
    pub fn end_content(&mut self) -> Result<(), ControlError> {
        self.send(&Message::Content(0))
    }

    /// Receives the frame of `length` bytes that a [`Message::Content`] announced.
    ///
    /// # Errors
    /// `Protocol` if it is too long, `Closed` if the peer went away in it.
    pub fn receive_frame(&mut self, length: usize) -> Result<Vec<u8>, ControlError> {
        if length > FRAME_BYTES_MAX {
            return Err(ControlError::Protocol(format!(
                "a frame of {length} bytes is longer than {FRAME_BYTES_MAX}"
            )));
        }
        let mut frame = Vec::new();
        (&mut self.reader).take(length as u64).read_to_end(&mut frame)?;
        if frame.len() < length {
            Err(ControlError::Closed)
        } else {
            Ok(frame)
        }
    }

    /// The next frame of content from a peer that is sending some; `None` at its end.
    ///
    /// # Errors
    /// As [`receive`](Self::receive); `Protocol` if something else comes.
    pub fn receive_content(&mut self) -> Result<Option<Vec<u8>>, ControlError> {
        match self.receive::<Message>()? {
            Some(Message::Content(0)) => Ok(None),
            Some(Message::Content(length)) => self.receive_frame(length).map(Some),
            Some(_) => Err(ControlError::Protocol("content was expected".into())),
            None => Err(ControlError::Closed),
        }
    }

    /// Sends a request, feeds progress, items and content to `on_message` (content as bytes), returns the result.
    ///
    /// # Errors
    /// `Failed` with what the daemon said; the others as above.
    pub fn call(
        &mut self,
        request: &Request,
        on_message: &mut dyn FnMut(Answer) -> io::Result<()>,
    ) -> Result<Value, ControlError> {
        self.send(request)?;
        self.finish(on_message)
    }

    /// Receives the answer of a request that was sent.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn finish(
        &mut self,
        on_message: &mut dyn FnMut(Answer) -> io::Result<()>,
    ) -> Result<Value, ControlError> {
        loop {
            match self.receive::<Message>()?.ok_or(ControlError::Closed)? {
                Message::Progress(progress) => on_message(Answer::Progress(progress))?,
                Message::Item(item) => on_message(Answer::Item(item))?,
                Message::Content(0) => on_message(Answer::ContentEnd)?,
                Message::Content(length) => {
                    let frame = self.receive_frame(length)?;
                    on_message(Answer::Content(frame))?;
                }
                Message::Result(value) => return Ok(value),
                Message::Error(failure) => return Err(ControlError::Failed(failure)),
            }
        }
    }

    /// The stream itself, for its credentials and for shutting it down.
    pub(crate) fn stream(&self) -> &UnixStream {
        &self.writer.stream
    }
}

/// What arrives before the end of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// How far it is.
    Progress(Progress),
    /// A piece of the answer.
    Item(Value),
    /// A piece of file content.
    Content(Vec<u8>),
    /// The end of a file's content.
    ContentEnd,
}
