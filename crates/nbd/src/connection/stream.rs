//! `Stream`: one client's socket.
//!
//! Invariants: a stream with a deadline never waits beyond it, in either direction; writes are whole messages under
//! their caller's lock.

use std::{
    io::{self, IoSlice, Read, Write},
    net::{Shutdown, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::net::sockopt;

/// A silent TCP client is asked whether it is still there after this time.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// A connected socket of either family.
#[derive(Debug)]
pub enum Socket {
    /// A Unix socket.
    Unix(UnixStream),
    /// A TCP socket.
    Tcp(TcpStream),
}

/// A socket, and how long it may be waited for.
#[derive(Debug)]
pub struct Stream {
    socket: Arc<Socket>,
    deadline: Option<Instant>,
}

impl Stream {
    /// Of a client that came through a Unix socket.
    pub fn unix(socket: UnixStream) -> Self {
        Self {
            socket: Arc::new(Socket::Unix(socket)),
            deadline: None,
        }
    }

    /// Of a client that came through TCP; one that vanishes without a word is noticed by and by.
    pub fn tcp(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE)?;
        Ok(Self {
            socket: Arc::new(Socket::Tcp(socket)),
            deadline: None,
        })
    }

    /// A second handle to the same socket, with no deadline of its own.
    pub fn handle(&self) -> Self {
        Self {
            socket: self.socket.clone(),
            deadline: None,
        }
    }

    /// From now on nothing waits beyond `deadline`; `None` waits for ever.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.deadline = deadline;
        if deadline.is_none() {
            for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
                sockopt::set_socket_timeout(&self.socket, direction, None)?;
            }
        }
        Ok(())
    }

    /// Ends both directions; blocked reads return.
    pub fn shutdown(&self) {
        // A socket that is already gone needs no shutdown: that is the only way this fails.
        let _ = match &*self.socket {
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// Nothing more is received; what is sent still goes out. Blocked reads return.
    pub fn shutdown_receiving(&self) {
        let _ = match &*self.socket {
            Socket::Unix(stream) => stream.shutdown(Shutdown::Read),
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Read),
        };
    }

    fn keep_deadline(&self, direction: sockopt::Timeout) -> io::Result<()> {
        let Some(deadline) = self.deadline else {
            return Ok(());
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left < Duration::from_micros(1) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(sockopt::set_socket_timeout(&self.socket, direction, Some(left))?)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.keep_deadline(sockopt::Timeout::Recv)?;
        match &*self.socket {
            Socket::Unix(stream) => (&*stream).read(buffer),
            Socket::Tcp(stream) => (&*stream).read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buffer)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.keep_deadline(sockopt::Timeout::Send)?;
        match &*self.socket {
            Socket::Unix(stream) => (&*stream).write_vectored(parts),
            Socket::Tcp(stream) => (&*stream).write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
