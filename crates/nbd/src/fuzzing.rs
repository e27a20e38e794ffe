//! Request headers, negotiation and transmission of NBD, one parser a function: what must hold of any bytes. The harness of
//! the tests (`hostile_bytes.rs`) and the coverage-guided targets (`fuzz/`) call the same functions.
//!
//! Invariant: a function panics only where something is wrong with the server.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
};

use parking_lot::Mutex;
use rustix::net::{SendFlags, send};
use terrace_dataset::{BlockDevice, BlockStatus, FsError};

use crate::{
    connection::{Exports, Outcome, Resources, Security, Stream, greet, negotiate, plain, transmit},
    wire::{
        CMD_DISCONNECT, CMD_READ, EXTENDED_REPLY_MAGIC, OPTION_REPLY_MAGIC, PAYLOAD_BYTES_MAX,
        REPLY_FLAG_DONE, Request, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, Terms,
    },
};

/// What a client says of itself after the greeting.
const CLIENT_FLAGS_BYTES: usize = 4;
/// The server's greeting.
const GREETING_BYTES: usize = 18;
/// Size of the export, bytes.
const DISK_BYTES: usize = 64 << 10;

/// A request's header: it lies in its bytes, and announces no payload that it does not name.
pub fn request(bytes: &[u8]) {
    for extended in [false, true] {
        let Some(request) = Request::parse(extended, bytes) else {
            continue;
        };
        assert!(bytes.len() >= Request::header_bytes(extended));
        assert!(request.payload_bytes(extended) <= request.length);
    }
}

/// What a client says, and what it is told.
struct Conversation<'a> {
    says: &'a [u8],
    told: Vec<u8>,
}

impl Read for Conversation<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.says.read(buffer)
    }
}

impl Write for Conversation<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.told.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Two exports.
struct Two(Arc<Disk>);

impl Exports for Two {
    fn names(&self) -> Vec<String> {
        vec!["a".into(), "b/c".into()]
    }

    fn find(&self, name: &str) -> Option<(String, Arc<dyn BlockDevice>)> {
        matches!(name, "a" | "b/c").then(|| (name.into(), self.0.clone() as Arc<dyn BlockDevice>))
    }

    fn choose(&self, name: &str) -> Option<(String, Arc<dyn BlockDevice>)> {
        self.find(name)
    }
}

/// A client's flags and options: what it is told are whole replies, and not many times what it said.
pub fn negotiation(bytes: &[u8]) {
    for security in [Security::Plain, Security::TlsWanted, Security::Tls] {
        let mut stream = Conversation {
            says: bytes,
            told: Vec::new(),
        };
        let exports = Two(Disk::new());
        let outcome = match greet(&mut stream) {
            Ok(Some(no_zeroes)) => negotiate(&mut stream, &exports, no_zeroes, security),
            Ok(None) => Ok(Outcome::Closed),
            Err(error) => Err(error),
        };
        assert!(stream.told.len() <= GREETING_BYTES + 134 + 16 * bytes.len());
        let mut rest = &stream.told[GREETING_BYTES..];
        while rest.len() >= 20 && rest[..8] == OPTION_REPLY_MAGIC.to_be_bytes() {
            let length = u32::from_be_bytes([rest[16], rest[17], rest[18], rest[19]]) as usize;
            rest = rest.get(20 + length..).expect("a whole reply");
        }
        let chosen = matches!(outcome, Ok(Outcome::Transmit(..)));
        // The oldest option is answered in a form of its own.
        let is_oldest = chosen && matches!(rest.len(), 10 | 134);
        assert!(rest.is_empty() || is_oldest, "{rest:?}");
        assert!(
            !(chosen && security == Security::TlsWanted),
            "nothing is served before TLS"
        );
        if matches!(outcome, Ok(Outcome::StartTls)) {
            assert_eq!(security, Security::TlsWanted);
        }
        if bytes.len() < CLIENT_FLAGS_BYTES {
            assert!(outcome.is_err());
        }
    }
}

/// What a client asks of its export, in the form that the first byte names: each request that came whole is answered once,
/// and nothing else is said.
pub fn transmission(bytes: &[u8]) {
    let Some((form, says)) = bytes.split_first() else {
        return;
    };
    let terms = Terms {
        structured: form & 3 != 0,
        extended: form & 2 != 0,
        allocation_of: (form & 4 != 0).then(|| "a".into()),
    };
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    let told = thread::scope(|scope| {
        scope.spawn(|| {
            let mut rest = says;
            while !rest.is_empty() {
                match send(&theirs, rest, SendFlags::NOSIGNAL) {
                    Ok(sent) => rest = &rest[sent..],
                    Err(_) => break,
                }
            }
            // The server may have ended it.
            let _ = theirs.shutdown(Shutdown::Write);
        });
        let told = scope.spawn(|| {
            let mut told = Vec::new();
            // What came before the end counts, however that came.
            let _ = (&theirs).read_to_end(&mut told);
            told
        });
        let (incoming, outgoing) = plain(Stream::unix(ours));
        let resources = Resources::default();
        transmit(
            incoming,
            outgoing,
            Disk::new(),
            terms.clone(),
            Arc::default(),
            &resources,
        );
        told.join().expect("reads")
    });
    let asked = Asked::of(says, terms.extended);
    asked.check(&told, &terms);
}

/// What a client asked for.
#[derive(Default)]
struct Asked {
    /// By cookie: how often, and of the last one the command and the length.
    requests: HashMap<u64, (usize, u16, u64)>,
    /// Whether all of it came whole, up to a farewell or the end.
    is_whole: bool,
}

impl Asked {
    fn of(mut says: &[u8], extended: bool) -> Self {
        let mut asked = Self::default();
        loop {
            let header = Request::header_bytes(extended);
            asked.is_whole = says.is_empty();
            let Some(request) = Request::parse(extended, says.get(..header).unwrap_or_default()) else {
                return asked;
            };
            if request.command == CMD_DISCONNECT {
                asked.is_whole = true;
                return asked;
            }
            let payload = request.payload_bytes(extended);
            let end = usize::try_from(payload).map_or(usize::MAX, |bytes| header.saturating_add(bytes));
            if payload > PAYLOAD_BYTES_MAX || says.len() < end {
                return asked;
            }
            let entry = asked.requests.entry(request.cookie).or_default();
            *entry = (entry.0 + 1, request.command, request.length);
            says = &says[end..];
        }
    }

    /// Whether these are replies to what was asked for, each whole and once.
    fn check(&self, mut told: &[u8], terms: &Terms) {
        let mut answered: HashMap<u64, usize> = HashMap::new();
        let whole = self.is_whole;
        while !told.is_empty() {
            let number = |at: usize, bytes: usize| -> u64 {
                let bytes = told.get(at..at + bytes).expect("a whole header");
                bytes
                    .iter()
                    .fold(0, |number, byte| number << 8 | u64::from(*byte))
            };
            let magic = number(0, 4) as u32;
            let (cookie, length, is_last) = match magic {
                SIMPLE_REPLY_MAGIC if !terms.extended => {
                    let cookie = number(8, 8);
                    let Some((count, command, length)) = self.requests.get(&cookie) else {
                        panic!("a reply to nothing that was asked for: {cookie}");
                    };
                    if *count > 1 {
                        // Which of them is answered nobody can tell.
                        return;
                    }
                    let has_data = *command == CMD_READ && number(4, 4) == 0 && !terms.structured;
                    (cookie, 16 + if has_data { *length } else { 0 }, true)
                }
                STRUCTURED_REPLY_MAGIC if terms.structured && !terms.extended => {
                    let is_last = number(4, 2) as u16 & REPLY_FLAG_DONE != 0;
                    (number(8, 8), 20 + number(16, 4), is_last)
                }
                EXTENDED_REPLY_MAGIC if terms.extended => {
                    let is_last = number(4, 2) as u16 & REPLY_FLAG_DONE != 0;
                    (number(8, 8), 32 + number(24, 8), is_last)
                }
                _ => panic!("not a reply: {told:?}"),
            };
            assert!(
                self.requests.contains_key(&cookie),
                "a reply to nothing: {cookie}"
            );
            *answered.entry(cookie).or_default() += usize::from(is_last);
            // Where the client broke the protocol, its connection may end in the middle of an answer.
            let Some(rest) = told.get(length as usize..) else {
                assert!(!whole, "a reply that is not whole");
                return;
            };
            told = rest;
        }
        for (cookie, (count, ..)) in &self.requests {
            let answers = answered.get(cookie).copied().unwrap_or(0);
            assert!(answers <= *count, "{cookie} was answered {answers} times");
            assert!(!whole || answers == *count, "{cookie} was not answered");
        }
    }
}

/// A disk in RAM.
struct Disk(Mutex<Vec<u8>>);

impl Disk {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![0; DISK_BYTES])))
    }

    fn with<R>(&self, offset: u64, length: u64, act: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut content = self.0.lock();
        let end = offset.checked_add(length).expect("looked at before");
        act(content
            .get_mut(offset as usize..end as usize)
            .expect("nothing beyond the end gets here"))
    }
}

impl BlockDevice for Disk {
    fn size_bytes(&self) -> u64 {
        DISK_BYTES as u64
    }
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
        self.with(offset, buffer.len() as u64, |content| {
            buffer.copy_from_slice(content);
            Ok(())
        })
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        self.with(offset, data.len() as u64, |content| {
            content.copy_from_slice(data);
            Ok(())
        })
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.with(offset, length, |content| {
            content.fill(0);
            Ok(())
        })
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.write_zeroes(offset, length)
    }
    fn flush(&self) -> Result<(), FsError> {
        Ok(())
    }
    fn block_status(&self, offset: u64, length: u64, _: usize) -> Result<Vec<BlockStatus>, FsError> {
        self.with(offset, length, |_| ());
        let data = true;
        Ok(vec![BlockStatus { offset, length, data }])
    }
}
