//! What is asked for with FUA is durable when it is answered: no reply is sent before the flush has ended, and none that
//! says "done" where it failed. For each command that changes something, in each form of reply, alone and between others.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use harness::{Client, Disk, MIB, request};
use parking_lot::Mutex;
use rustix::net::{RecvFlags, recv};
use terrace_dataset::{BlockDevice, BlockStatus, FsError};
use terrace_nbd::{Address, Server};

const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const FAST_ZERO: u16 = 16;
const WRITE: u16 = 1;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
/// The cookie of what is to be durable: nothing else that is sent looks like it.
const COOKIE: u64 = 0xF0A1_C0DE_5EED_B10C;

/// A disk that looks, at the end of each flush, at what its client has been told until then.
struct Watching {
    disk: Arc<Disk>,
    client: Mutex<Option<UnixStream>>,
    /// The client was told of its request before a flush that it asked for had ended.
    was_early: AtomicBool,
    fails: AtomicBool,
    /// Changes since the last flush.
    unflushed: AtomicU64,
}

impl Watching {
    fn new() -> Arc<Self> {
        let disk = Disk::new(4 * MIB);
        disk.content.lock().fill(1);
        disk.durable.lock().resize(4 * MIB, 1);
        Arc::new(Self {
            disk,
            client: Mutex::default(),
            was_early: AtomicBool::new(false),
            fails: AtomicBool::new(false),
            unflushed: AtomicU64::new(0),
        })
    }

    /// Whether the client has a reply to what it wants to be durable, and has not read it yet.
    fn is_answered(&self) -> bool {
        let client = self.client.lock();
        let Some(client) = &*client else { return false };
        let mut told = vec![0; 64 << 10];
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let count = recv(client, &mut told, peek).map_or(0, |(_, count)| count);
        told[..count]
            .windows(8)
            .any(|bytes| bytes == COOKIE.to_be_bytes())
    }

    fn changed(&self, done: Result<(), FsError>) -> Result<(), FsError> {
        self.unflushed.fetch_add(1, Ordering::SeqCst);
        done
    }
}

impl BlockDevice for Watching {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
        self.disk.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        self.changed(self.disk.write(offset, data))
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.changed(self.disk.write_zeroes(offset, length))
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.changed(self.disk.discard(offset, length))
    }
    fn flush(&self) -> Result<(), FsError> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(FsError::io("a flush that fails"));
        }
        self.unflushed.store(0, Ordering::SeqCst);
        self.disk.flush()?;
        if self.is_answered() {
            self.was_early.store(true, Ordering::SeqCst);
        }
        Ok(())
    }
    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockStatus>, FsError> {
        self.disk.block_status(offset, length, limit)
    }
}

/// How replies look.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Simple,
    Structured,
    Extended,
}

impl Form {
    const ALL: [Self; 3] = [Self::Simple, Self::Structured, Self::Extended];

    fn agree(self, client: &mut Client<UnixStream>) {
        let option = match self {
            Self::Simple => return,
            Self::Structured => 8,
            Self::Extended => 11,
        };
        client.option(option, &[]);
        assert_eq!(client.option_reply().0, 1);
    }

    fn request(
        self,
        flags: u16,
        command: u16,
        cookie: u64,
        offset: u64,
        length: usize,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut message = request(flags, command, cookie, offset, length as u32, &[]);
        if self == Self::Extended {
            message[..4].copy_from_slice(&0x21e4_1c71u32.to_be_bytes());
            message.truncate(24);
            message.extend((length as u64).to_be_bytes());
        }
        message.extend(payload);
        message
    }

    /// The next reply: its cookie, and whether it says that all is well.
    fn reply(stream: &mut UnixStream) -> (u64, bool) {
        let mut magic = [0; 4];
        stream.read_exact(&mut magic).unwrap();
        let (length, is_simple) = match u32::from_be_bytes(magic) {
            0x6744_6698 => (12, true),
            0x668e_33ef => (16, false),
            0x6e8a_278c => (28, false),
            other => panic!("{other:x} is no reply"),
        };
        let mut header = vec![0; length];
        stream.read_exact(&mut header).unwrap();
        let cookie = u64::from_be_bytes(header[4..12].try_into().unwrap());
        if is_simple {
            return (cookie, header[..4] == [0; 4]);
        }
        let payload = header[12..]
            .iter()
            .fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        // An extended header has the offset before the length.
        let payload = payload & u64::from(u32::MAX);
        stream.read_exact(&mut vec![0; payload as usize]).unwrap();
        (cookie, header[2..4] == [0; 2])
    }
}

/// The commands that change something, with flags of their own.
fn changes() -> Vec<(u16, u16, usize)> {
    let mut changes = Vec::new();
    for length in [512, 4096, 12 << 10, 100 << 10, MIB + 4096] {
        changes.push((WRITE, 0, length));
        changes.push((TRIM, 0, length));
        changes.push((WRITE_ZEROES, 0, length));
    }
    changes.push((WRITE_ZEROES, NO_HOLE, 8192));
    changes.push((WRITE_ZEROES, FAST_ZERO, 8192));
    changes
}

fn connected(path: &std::path::Path, form: Form, disk: &Watching) -> Client<UnixStream> {
    let mut client = Client::connect(path);
    form.agree(&mut client);
    assert_eq!(client.go("a").last().unwrap().0, 1);
    *disk.client.lock() = Some(client.0.try_clone().unwrap());
    client
}

#[test]
fn a_change_with_fua_is_durable_before_it_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let server = Server::start(Address::Unix(path.clone()), None).unwrap();
    let disk = Watching::new();
    server.add("a", disk.clone());
    for form in Form::ALL {
        let mut client = connected(&path, form, &disk);
        // Warm: a client that was answered soon for a while is served in other ways.
        for (round, (command, flags, length)) in changes().into_iter().cycle().take(80).enumerate() {
            let offset = 8192 * (round as u64 % 20);
            let fill = 2 + round as u8;
            let payload = if command == WRITE {
                vec![fill; length]
            } else {
                Vec::new()
            };
            let wanted = if command == WRITE { fill } else { 0 };
            disk.disk.content.lock()[offset as usize..][..length].fill(1);
            let message = form.request(FUA | flags, command, COOKIE, offset, length, &payload);
            // By itself; and in one piece with small writes before and behind it.
            let others = round % 4;
            let small = |cookie: u64| form.request(0, WRITE, cookie, 3 << 20, 512, &[9; 512]);
            let mut sent = (0..others as u64).flat_map(small).collect::<Vec<u8>>();
            sent.extend(&message);
            sent.extend((10..10 + others as u64).flat_map(small));
            client.0.write_all(&sent).unwrap();
            for _ in 0..1 + 2 * others {
                let (cookie, is_good) = Form::reply(&mut client.0);
                assert!(is_good);
                if cookie == COOKIE {
                    let durable = disk.disk.durable.lock();
                    let there = &durable[offset as usize..][..length];
                    assert!(
                        there.iter().all(|byte| *byte == wanted),
                        "command {command} of {length} with {flags} was answered and is not durable, {form:?}"
                    );
                }
            }
            assert!(
                !disk.was_early.load(Ordering::SeqCst),
                "command {command} of {length} with {flags} was answered before its flush ended, {form:?}"
            );
        }
    }
    *disk.client.lock() = None;
    server.stop();
}

#[test]
fn a_change_without_fua_flushes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let server = Server::start(Address::Unix(path.clone()), None).unwrap();
    let disk = Watching::new();
    server.add("a", disk.clone());
    let mut client = connected(&path, Form::Simple, &disk);
    for (command, flags, length) in changes() {
        let payload = vec![5; if command == WRITE { length } else { 0 }];
        let message = Form::Simple.request(flags, command, COOKIE, 0, length, &payload);
        client.0.write_all(&message).unwrap();
        assert_eq!(Form::reply(&mut client.0), (COOKIE, true));
    }
    assert_eq!(disk.disk.flushes.load(Ordering::SeqCst), 0);
    assert_eq!(disk.unflushed.load(Ordering::SeqCst), changes().len() as u64 + 1);
    *disk.client.lock() = None;
    server.stop();
}

#[test]
fn a_failed_flush_is_reported_to_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let server = Server::start(Address::Unix(path.clone()), None).unwrap();
    let disk = Watching::new();
    server.add("a", disk.clone());
    for form in Form::ALL {
        let mut client = connected(&path, form, &disk);
        disk.fails.store(true, Ordering::SeqCst);
        for (command, flags, length) in changes() {
            let payload = vec![5; if command == WRITE { length } else { 0 }];
            let message = form.request(FUA | flags, command, COOKIE, 0, length, &payload);
            client.0.write_all(&message).unwrap();
            assert_eq!(Form::reply(&mut client.0), (COOKIE, false), "{command} {form:?}");
        }
        const FLUSH: u16 = 3;
        let message = form.request(0, FLUSH, COOKIE, 0, 0, &[]);
        client.0.write_all(&message).unwrap();
        assert_eq!(Form::reply(&mut client.0), (COOKIE, false), "{form:?}");
        disk.fails.store(false, Ordering::SeqCst);
        client.0.write_all(&message).unwrap();
        assert_eq!(Form::reply(&mut client.0), (COOKIE, true), "{form:?}");
    }
    *disk.client.lock() = None;
    server.stop();
}
