//! `Server`: listens at addresses, knows the exports, ends in good order.
//!
//! Invariants: as many clients as there are seats for ([`Seat`]); after `stop` returns, no thread of the server is
//! left and its Unix sockets are removed; removing an export ends the connections that use it.

use std::{
    collections::BTreeMap,
    fmt,
    net::{TcpListener, ToSocketAddrs},
    os::{fd::AsFd, unix::net::UnixListener},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use terrace_dataset::BlockDevice;
use terrace_device::{Complaint, SocketFile, listen_at};

use crate::{
    connection::{
        Dialogue, Exports, Outcome, Resources, Security, Stream, Tls, channel, greet, negotiate, transmit,
    },
    connection_slots::{Seat, Seated},
    memory_pressure::Crowd,
};

/// How long the answers of clients whose connections are ended may take to go out.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long a client may take until it has chosen an export.
const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a server listens: `unix:PATH` or `tcp:HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket, made by the server with mode 0600 of its owner.
    Unix(PathBuf),
    /// A TCP port; port 0 takes any free one.
    Tcp(String),
}

impl std::str::FromStr for Address {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<Self, ServerError> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", host))
                if host
                    .rsplit_once(':')
                    .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) =>
            {
                Ok(Self::Tcp(host.to_owned()))
            }
            _ => Err(ServerError::Address(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host) => write!(f, "tcp:{host}"),
        }
    }
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The text is no address.
    #[error("'{0}' is no address to listen at; write unix:PATH, or tcp:HOST:PORT with a port of 0 to 65535")]
    Address(String),
    /// The address cannot be listened at.
    #[error("cannot listen at {0}: {1}")]
    Listen(String, std::io::Error),
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

struct Client {
    stream: Stream,
    export: Option<String>,
    /// Set when no more requests of it are to be read.
    closing: Arc<AtomicBool>,
}

impl Client {
    /// Reads no more of it; what it has asked for is still answered.
    fn release(&self) {
        self.closing.store(true, Ordering::Release);
        self.stream.shutdown_receiving();
    }
}

#[derive(Default)]
struct State {
    exports: BTreeMap<String, Arc<dyn BlockDevice>>,
    clients: BTreeMap<u64, Client>,
    threads: Vec<JoinHandle<()>>,
    next_client: u64,
    crowd: Crowd,
    /// Clients for whom there was no room.
    turned_away: Complaint,
    /// Clients that the system did not give, or had no thread for.
    failed: Complaint,
}

impl State {
    /// Ends the connection of whoever has gone longest without choosing an export; whether there is such a client.
    fn make_way(&mut self) -> bool {
        let waiting = self.clients.iter().find(|(_, client)| client.export.is_none());
        let Some(number) = waiting.map(|(number, _)| *number) else {
            return false;
        };
        if let Some(client) = self.clients.remove(&number) {
            client.stream.shutdown();
        }
        true
    }

    fn find(&self, name: &str) -> Option<(String, Arc<dyn BlockDevice>)> {
        let found = match (name, self.exports.len()) {
            ("", 1) => self.exports.first_key_value(),
            _ => self.exports.get_key_value(name),
        };
        found.map(|(name, export)| (name.clone(), export.clone()))
    }

    fn say_turned_away(&self, due: Option<u64>) {
        if let Some(times) = due {
            let connected = self.clients.len();
            tracing::warn!(
                "NBD: clients turned away since it was last said: {times}; {connected} are connected, and there is no room for more"
            );
        }
    }

    fn failed(&mut self, what: &fmt::Arguments<'_>) {
        if let Some(times) = self.failed.once_more(Instant::now()) {
            tracing::warn!("NBD: {what}; times since it was last said: {times}");
        }
    }
}

struct Inner {
    state: Mutex<State>,
    tls: Option<Tls>,
    resources: Resources,
    stopping: AtomicBool,
}

/// Listens at one address and serves any number of exports there.
pub struct Server {
    inner: Arc<Inner>,
    acceptor: Option<JoinHandle<()>>,
    /// Of a Unix socket.
    file: Option<SocketFile>,
    address: Address,
}

impl Server {
    /// Starts to listen; exports are added afterwards. With `tls`, clients that do not begin it are refused.
    pub fn start(address: Address, tls: Option<Tls>) -> Result<Self, ServerError> {
        let failed = |error| ServerError::Listen(address.to_string(), error);
        let (listener, file, bound) = match &address {
            Address::Unix(path) => {
                let (listener, file) = listen_at(path).map_err(failed)?;
                (Listener::Unix(listener), Some(file), address.clone())
            }
            Address::Tcp(host) => {
                let addresses: Vec<_> = host.to_socket_addrs().map_err(failed)?.collect();
                let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?.to_string();
                (Listener::Tcp(listener), None, Address::Tcp(bound))
            }
        };
        let inner = Arc::new(Inner {
            state: Mutex::new(State::default()),
            tls,
            resources: Resources::default(),
            stopping: AtomicBool::new(false),
        });
        let accepting = inner.clone();
        let acceptor = thread::Builder::new()
            .name("nbd-accept".into())
            .spawn(move || accepting.accept(&listener))
            .inspect_err(|_| file.iter().for_each(SocketFile::remove))
            .map_err(failed)?;
        Ok(Self {
            inner,
            acceptor: Some(acceptor),
            file,
            address: bound,
        })
    }

    /// Where it listens (with the port that was taken).
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Its certificate, if it has one.
    pub fn tls(&self) -> Option<&Tls> {
        self.inner.tls.as_ref()
    }

    /// Offers `export` under `name`, in place of an earlier one of that name.
    pub fn add(&self, name: &str, export: Arc<dyn BlockDevice>) {
        self.inner.state.lock().exports.insert(name.to_owned(), export);
    }

    /// Takes an export away and ends the connections that use it, once what they asked for is answered. Whether it was
    /// there.
    pub fn remove(&self, name: &str) -> bool {
        let was_there = self.inner.state.lock().exports.remove(name).is_some();
        self.inner
            .end_clients(|client| client.export.as_deref() == Some(name));
        was_there
    }

    /// Names of the exports.
    pub fn exports(&self) -> Vec<String> {
        self.inner.state.lock().exports.keys().cloned().collect()
    }

    /// Clients connected now.
    pub fn clients(&self) -> usize {
        self.inner.state.lock().clients.len()
    }

    /// Stops listening, ends all connections and waits for their threads.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.inner.stopping.store(true, Ordering::Release);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.inner.end_clients(|_| true);
        let threads = std::mem::take(&mut self.inner.state.lock().threads);
        threads.into_iter().for_each(|thread| {
            let _ = thread.join();
        });
        if let Some(file) = self.file.take() {
            file.remove();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The exports, as one client chooses among them.
struct Choice<'a> {
    state: &'a Mutex<State>,
    client: u64,
}

impl Exports for Choice<'_> {
    fn names(&self) -> Vec<String> {
        self.state.lock().exports.keys().cloned().collect()
    }

    fn find(&self, name: &str) -> Option<(String, Arc<dyn BlockDevice>)> {
        self.state.lock().find(name)
    }

    fn choose(&self, name: &str) -> Option<(String, Arc<dyn BlockDevice>)> {
        let mut state = self.state.lock();
        let (name, export) = state.find(name)?;
        // It may have had to make way.
        state.clients.get_mut(&self.client)?.export = Some(name.clone());
        Some((name, export))
    }
}

impl Inner {
    fn accept(self: Arc<Self>, listener: &Listener) {
        let descriptor = match listener {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        };
        while !self.stopping.load(Ordering::Acquire) {
            self.complain();
            let mut waiting = [PollFd::new(&descriptor, PollFlags::IN)];
            // Woken five times a second to see whether the server stops.
            let pause = Timespec {
                tv_sec: 0,
                tv_nsec: 200_000_000,
            };
            if !matches!(poll(&mut waiting, Some(&pause)), Ok(1..)) {
                continue;
            }
            let stream = match listener {
                Listener::Unix(listener) => listener.accept().map(|(socket, _)| Stream::unix(socket)),
                Listener::Tcp(listener) => listener.accept().and_then(|(socket, _)| Stream::tcp(socket)),
            };
            match stream {
                Ok(stream) => self.clone().welcome(stream),
                Err(error) => {
                    self.state
                        .lock()
                        .failed(&format_args!("a client could not be accepted: {error}"));
                    // Most likely there are no descriptors left: not asked again at once.
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Ends connections: what was asked for is answered, and who does not take the answers is cut off.
    fn end_clients(&self, is_meant: impl Fn(&Client) -> bool) {
        {
            let state = self.state.lock();
            let meant = state.clients.values().filter(|client| is_meant(client));
            meant.for_each(Client::release);
        }
        let deadline = Instant::now() + FAREWELL;
        while Instant::now() < deadline && self.state.lock().clients.values().any(&is_meant) {
            thread::sleep(Duration::from_millis(2));
        }
        let state = self.state.lock();
        let left = state.clients.values().filter(|client| is_meant(client));
        left.for_each(|client| client.stream.shutdown());
    }

    /// Says what is left to say of clients that were turned away, or failed.
    fn complain(&self) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let due = state.turned_away.due(now);
        state.say_turned_away(due);
        if let Some(times) = state.failed.due(now) {
            tracing::warn!("NBD: clients that could not be served since it was last said: {times}");
        }
    }

    fn welcome(self: Arc<Self>, stream: Stream) {
        let mut state = self.state.lock();
        state.threads.retain(|thread| !thread.is_finished());
        let can_stay = match Seat::of(&stream, state.clients.len()) {
            Seat::Free => true,
            Seat::AnothersPlace => state.make_way(),
            Seat::None => {
                state.make_way();
                false
            }
        };
        if !can_stay {
            let due = state.turned_away.once_more(Instant::now());
            state.say_turned_away(due);
            return;
        }
        let handle = stream.handle();
        let closing = Arc::new(AtomicBool::new(false));
        let number = state.next_client;
        state.next_client += 1;
        state.clients.insert(
            number,
            Client {
                stream: handle,
                export: None,
                closing: closing.clone(),
            },
        );
        let clients = state.clients.len();
        state.crowd.came(clients);
        let server = self.clone();
        let seated = Seated::new();
        let thread = thread::Builder::new().name("nbd-client".into()).spawn(move || {
            let _seated = seated;
            terrace_device::be_prompt();
            if let Err(error) = server.serve(number, stream, closing) {
                tracing::debug!("NBD: a client's connection ended: {error}");
            }
            if server.forget(number) {
                terrace_device::give_spare_memory_back();
            }
        });
        match thread {
            Ok(thread) => state.threads.push(thread),
            Err(error) => {
                state.failed(&format_args!("no thread for a client: {error}"));
                state.clients.remove(&number);
            }
        }
    }

    /// A client is gone; whether a crowd is with it.
    fn forget(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        if let Some(client) = state.clients.remove(&number) {
            client.stream.shutdown();
        }
        let clients = state.clients.len();
        state.crowd.has_gone(clients)
    }

    fn serve(&self, number: u64, mut stream: Stream, closing: Arc<AtomicBool>) -> std::io::Result<()> {
        let deadline = Instant::now() + NEGOTIATION_TIMEOUT;
        stream.set_deadline(Some(deadline))?;
        let Some(no_zeroes) = greet(&mut stream)? else {
            return Ok(());
        };
        let exports = Choice {
            state: &self.state,
            client: number,
        };
        let mut halves;
        let mut outcome = match &self.tls {
            None => negotiate(&mut stream, &exports, no_zeroes, Security::Plain)?,
            Some(_) => negotiate(&mut stream, &exports, no_zeroes, Security::TlsWanted)?,
        };
        match (&outcome, &self.tls) {
            (Outcome::StartTls, Some(tls)) => {
                halves = channel::accept(stream, tls.configuration(), deadline)?;
                let mut dialogue = Dialogue(&mut halves.0, &mut halves.1);
                outcome = negotiate(&mut dialogue, &exports, no_zeroes, Security::Tls)?;
            }
            _ => halves = channel::plain(stream),
        }
        let (mut incoming, mut outgoing) = halves;
        let Outcome::Transmit(export, terms) = outcome else {
            outgoing.shutdown();
            return Ok(());
        };
        incoming.set_deadline(None)?;
        outgoing.set_deadline(None)?;
        transmit(incoming, outgoing, export, terms, closing, &self.resources);
        Ok(())
    }
}
