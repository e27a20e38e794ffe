//! `Server`: the daemon's end: one thread per connection, a bound on their number.
//!
//! Invariants: a request must arrive within [`REQUEST_TIMEOUT`]; after [`Server::stop`] no new connection is served and `run` returns
//! when the open ones are done.

use std::{
    fs, io,
    os::{
        fd::AsFd,
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;
use terrace_device::{Complaint, ServedRequest, SocketFile, listen_at};

use crate::{Connection, ControlError, Failure, HELLO, Message, PROTOCOL_VERSION, Progress, Request};

/// How long a client may take to send its request, and between two frames of content.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Most requests done at a time.
pub const CONNECTIONS_MAX: usize = 128;
/// Connections beyond those, which are asked for a sign of life or told why nothing else is done.
const BEYOND_MAX: usize = 32;

/// Does what requests ask for.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request; called from a thread of its own.
    ///
    /// # Errors
    /// What the client is told.
    fn handle(&self, request: Request, exchange: &mut Exchange) -> Result<Value, Failure>;

    /// What a sign of life says beside that there is one: what everything may be waiting for. Waits for nothing itself.
    fn alive(&self) -> Value {
        Value::Null
    }

    /// What a client is told when [`CONNECTIONS_MAX`] requests are being served. Waits for nothing itself.
    fn crowded(&self) -> Failure {
        Failure::new(
            "serve the request",
            format!("{CONNECTIONS_MAX} commands run at once already"),
            "try again when some have ended",
        )
    }
}

/// The open end of one request: progress and items out, content both ways.
pub struct Exchange {
    connection: Connection,
    stopping: Arc<AtomicBool>,
}

impl Exchange {
    fn lost(error: &ControlError) -> Failure {
        Failure::new("talk to the client", error, "")
    }

    /// Tells how far it is.
    ///
    /// # Errors
    /// If the client is gone: stop the work that only it waited for.
    pub fn progress(&mut self, progress: Progress) -> Result<(), Failure> {
        self.connection
            .send(&Message::Progress(progress))
            .map_err(|error| Self::lost(&error))
    }

    /// Sends a piece of the answer.
    ///
    /// # Errors
    /// If the client is gone.
    pub fn item(&mut self, item: &impl Serialize) -> Result<(), Failure> {
        let value =
            serde_json::to_value(item).map_err(|error| Failure::new("encode the answer", error, ""))?;
        self.connection
            .send(&Message::Item(value))
            .map_err(|error| Self::lost(&error))
    }

    /// Sends file content.
    ///
    /// # Errors
    /// If the client is gone.
    pub fn send_content(&mut self, content: &[u8]) -> Result<(), Failure> {
        self.connection
            .send_content(content)
            .map_err(|error| Self::lost(&error))
    }

    /// The next piece of content from the client; `None` at its end.
    ///
    /// # Errors
    /// If the client is gone or breaks the protocol.
    pub fn receive_content(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        self.connection
            .receive_content()
            .map_err(|error| Self::lost(&error))
    }

    /// Tells that the content of this file is complete.
    ///
    /// # Errors
    /// If the client is gone.
    pub fn end_content(&mut self) -> Result<(), Failure> {
        self.connection.end_content().map_err(|error| Self::lost(&error))
    }

    /// The next message of a client that sends a sequence of them, ended by [`Message::Result`].
    ///
    /// # Errors
    /// If the client is gone or breaks the protocol.
    pub fn receive(&mut self) -> Result<Message, Failure> {
        let message = self
            .connection
            .receive::<Message>()
            .map_err(|error| Self::lost(&error))?;
        message.ok_or_else(|| Self::lost(&ControlError::Closed))
    }

    /// Reads what is left of such a sequence, so that a client that still sends can be told of an error. While the daemon
    /// is stopping nobody has the time for it: the client notices that nobody listens, and finds the answer then.
    pub fn drain(&mut self) {
        while !self.is_stopping() {
            match self.connection.receive::<Message>() {
                Ok(Some(Message::Content(length))) => {
                    if self.connection.receive_frame(length).is_err() {
                        return;
                    }
                }
                Ok(Some(Message::Item(_))) => {}
                _ => return,
            }
        }
    }

    /// Whether the daemon is stopping: long answers should end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// A listening socket.
pub struct Server {
    listener: UnixListener,
    file: SocketFile,
    stopping: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
    /// Requests that are being done.
    served: Arc<AtomicUsize>,
    /// Who may ask.
    may: fn(&UnixStream) -> bool,
}

impl Server {
    /// Listens at `path` (mode 0600; its directory is made with mode 0700 if absent). What a dead daemon left there
    /// is removed: the caller holds the pool's [`RunLock`](crate::RunLock).
    ///
    /// # Errors
    /// I/O errors; if the path is too long for a socket (107 bytes); if something is there that is not a dead socket.
    pub fn bind(path: &Path) -> io::Result<Arc<Self>> {
        if path.as_os_str().len() > 107 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "the socket's path '{}' is longer than 107 bytes; use a shorter TERRACE_STATE_DIR",
                    path.display()
                ),
            ));
        }
        if let Some(directory) = path.parent()
            && !directory.exists()
        {
            fs::create_dir_all(directory)?;
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
        }
        let (listener, file) = listen_at(path)?;
        Ok(Arc::new(Self {
            listener,
            file,
            stopping: Arc::new(AtomicBool::new(false)),
            connections: Arc::default(),
            served: Arc::default(),
            may: peer_may,
        }))
    }

    /// Serves until [`stop`](Self::stop), then waits for open requests, at most `patience`.
    ///
    /// # Errors
    /// If the listening socket fails.
    pub fn run(&self, handler: Arc<dyn Handler>, patience: Duration) -> io::Result<()> {
        let mut turned_away = Complaint::default();
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(_) if self.stopping.load(Ordering::SeqCst) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Out of descriptors or memory: others must finish first. Or the client is gone already.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::ECONNABORTED)
                    ) =>
                {
                    thread::sleep(Duration::from_millis(50));
                    continue;
                }
                Err(error) => return Err(error),
            };
            if self.stopping.load(Ordering::SeqCst) {
                break;
            }
            let now = Instant::now();
            let due = if (self.may)(&stream) {
                self.serve(stream, handler.clone());
                turned_away.due(now)
            } else {
                turned_away.once_more(now)
            };
            if let Some(times) = due {
                tracing::warn!("connections of other users turned away since it was last said: {times}");
            }
        }
        let deadline = Instant::now() + patience;
        while self.connections.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        // While the caller still holds the pool's lock: the next daemon makes its own.
        self.file.remove();
        Ok(())
    }

    fn serve(&self, stream: UnixStream, handler: Arc<dyn Handler>) {
        let others = self.connections.fetch_add(1, Ordering::SeqCst);
        if others >= CONNECTIONS_MAX + BEYOND_MAX {
            self.connections.fetch_sub(1, Ordering::SeqCst);
            if let Ok(mut connection) = Connection::new(stream) {
                let _ = connection.send(&Message::Error(handler.crowded()));
            }
            return;
        }
        let (connections, served) = (self.connections.clone(), self.served.clone());
        let stopping = self.stopping.clone();
        let spawned = thread::Builder::new().name("control".into()).spawn(move || {
            answer(stream, &*handler, stopping, &served);
            connections.fetch_sub(1, Ordering::SeqCst);
        });
        if spawned.is_err() {
            self.connections.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Makes `run` return. Callable from any thread, also from a handler.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Wakes `accept`, also when somebody removed the socket's path.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Read);
    }

    /// Whether [`stop`](Self::stop) was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.file.remove();
    }
}

/// `served`: requests that are being done.
fn answer(stream: UnixStream, handler: &dyn Handler, stopping: Arc<AtomicBool>, served: &AtomicUsize) {
    let Ok(mut connection) = Connection::new(stream) else {
        return;
    };
    if connection.set_timeout(Some(REQUEST_TIMEOUT)).is_err() {
        return;
    }
    let reply = match connection.receive::<Request>() {
        Ok(None) => return,
        // Whatever else hangs: that this process runs is told by who has nothing to wait for.
        Ok(Some(request)) if request.operation == HELLO => Message::Result(handler.alive()),
        Ok(Some(request)) if request.version == PROTOCOL_VERSION => {
            let mut exchange = Exchange { connection, stopping };
            let outcome = match served.fetch_add(1, Ordering::SeqCst) {
                CONNECTIONS_MAX.. => Err(handler.crowded()),
                _ => {
                    let _serving = ServedRequest::begin_named("control", &request.operation);
                    handler.handle(request, &mut exchange)
                }
            };
            served.fetch_sub(1, Ordering::SeqCst);
            connection = exchange.connection;
            match outcome {
                Ok(value) => Message::Result(value),
                Err(failure) => Message::Error(failure),
            }
        }
        Ok(Some(request)) => Message::Error(Failure::new(
            "talk to the daemon",
            format!(
                "it speaks version {PROTOCOL_VERSION}, this command {}",
                request.version
            ),
            "run 'terrace stop' and start the pool again with the new version",
        )),
        Err(ControlError::Protocol(why)) => Message::Error(Failure::new("understand the request", why, "")),
        Err(error) => {
            tracing::debug!("a client went away: {error}");
            return;
        }
    };
    if let Err(ControlError::Protocol(why)) = connection.send(&reply) {
        let _ = connection.send(&Message::Error(Failure::new(
            "send the answer",
            why,
            "ask for less at once",
        )));
    }
    let _ = connection.stream().shutdown(std::net::Shutdown::Write);
}

/// Only root and the user who runs the daemon.
fn peer_may(stream: &UnixStream) -> bool {
    let Ok(peer) = rustix::net::sockopt::socket_peercred(stream.as_fd()) else {
        return false;
    };
    peer.uid.is_root() || peer.uid == rustix::process::geteuid()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{fmt, io::Read, sync::Mutex};

    use tracing::{Event, Level, Metadata, Subscriber, field, span};

    use super::*;

    /// Keeps the warnings of a thread.
    #[derive(Clone, Default)]
    struct Warnings(Arc<Mutex<Vec<String>>>);

    struct Words(String);

    impl field::Visit for Words {
        fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}");
            }
        }
    }

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut words = Words(String::new());
            event.record(&mut words);
            self.0.lock().unwrap().push(words.0);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    struct Nobody;

    impl Handler for Nobody {
        fn handle(&self, _: Request, _: &mut Exchange) -> Result<Value, Failure> {
            panic!("who is turned away is not answered")
        }
    }

    #[test]
    fn however_many_are_turned_away_the_log_gets_one_line_for_now() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let mut server = Server::bind(&path).unwrap();
        Arc::get_mut(&mut server).unwrap().may = |_| false;
        let warnings = Warnings::default();
        let running = {
            let (server, warnings) = (server.clone(), warnings.clone());
            thread::spawn(move || {
                let run = || server.run(Arc::new(Nobody), Duration::from_secs(10));
                tracing::subscriber::with_default(warnings, run).unwrap();
            })
        };
        for _ in 0..100 {
            let mut stream = UnixStream::connect(&path).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "turned away");
        }
        server.stop();
        running.join().unwrap();
        assert_eq!(
            *warnings.0.lock().unwrap(),
            ["connections of other users turned away since it was last said: 1"]
        );
    }

    /// Serves until the gate opens.
    struct Slow(Mutex<bool>, std::sync::Condvar);

    impl Slow {
        fn open(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_all();
        }
    }

    impl Handler for Slow {
        fn handle(&self, _: Request, exchange: &mut Exchange) -> Result<Value, Failure> {
            exchange.item(&"begun")?;
            let closed = self.0.lock().unwrap();
            drop(self.1.wait_while(closed, |is_open| !*is_open).unwrap());
            Ok(Value::Null)
        }

        fn alive(&self) -> Value {
            "alive".into()
        }
    }

    #[test]
    fn beyond_the_most_commands_there_is_a_sign_of_life_and_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let server = Server::bind(&path).unwrap();
        let slow = Arc::new(Slow(Mutex::default(), std::sync::Condvar::new()));
        let running = {
            let (server, slow) = (server.clone(), slow.clone());
            thread::spawn(move || server.run(slow, Duration::from_secs(60)))
        };
        let ask = |operation: &str| {
            let mut connection = Connection::connect(&path).unwrap();
            connection.send(&Request::new(operation, Value::Null)).unwrap();
            let answer = connection.receive::<Message>().unwrap().unwrap();
            (connection, answer)
        };
        let served: Vec<_> = (0..CONNECTIONS_MAX).map(|_| ask("wait")).collect();
        assert!(
            served
                .iter()
                .all(|(_, answer)| matches!(answer, Message::Item(_)))
        );
        assert!(matches!(ask(HELLO).1, Message::Result(value) if value == "alive"));
        let Message::Error(refused) = ask("status").1 else {
            panic!("one more was served")
        };
        assert!(
            refused.to_string().contains("128 commands run at once already"),
            "{refused}"
        );
        slow.open();
        for (mut connection, _) in served {
            assert!(matches!(
                connection.receive::<Message>().unwrap(),
                Some(Message::Result(_))
            ));
        }
        server.stop();
        running.join().unwrap().unwrap();
    }
}
