//! How connections end, and what is said of exports: answers that are due still go out, noise of any kind ends its own
//! connection alone.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

use harness::{Client, Disk, MIB, request, serve};
use parking_lot::{Condvar, Mutex};
use terrace_dataset::{BlockDevice, BlockStatus, FsError};
use terrace_device::{Randomness, SeededRandomness};

/// A disk whose writes wait until they are let go.
struct Gate {
    disk: Arc<Disk>,
    waiting: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl BlockDevice for Gate {
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
        let mut waiting = self.waiting.lock();
        waiting.0 += 1;
        self.changed.notify_all();
        while !waiting.1 {
            self.changed.wait(&mut waiting);
        }
        self.disk.write(offset, data)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.disk.write_zeroes(offset, length)
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.disk.discard(offset, length)
    }
    fn flush(&self) -> Result<(), FsError> {
        self.disk.flush()
    }
    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockStatus>, FsError> {
        self.disk.block_status(offset, length, limit)
    }
}

/// What was asked for before an export is taken away is answered; what comes later is not.
#[test]
fn requests_under_way_are_answered_when_an_export_goes() {
    for whole_server in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (server, path) = serve(dir.path(), &[]);
        let gate = Arc::new(Gate {
            disk: Disk::new(MIB),
            waiting: Mutex::default(),
            changed: Condvar::new(),
        });
        server.add("a", gate.clone());
        let mut client = Client::connect(&path);
        client.go("a");
        client.request(0, 1, 1, 0, 20_000, &[7; 20_000]);
        client.request(0, 1, 2, 65536, 20_000, &[8; 20_000]);
        {
            let mut waiting = gate.waiting.lock();
            while waiting.0 < 2 {
                gate.changed.wait(&mut waiting);
            }
        }
        let ending = std::thread::spawn(move || {
            if whole_server {
                server.stop();
            } else {
                assert!(server.remove("a"));
                server.stop();
            }
        });
        // Until the server hears no more of the client; what it has heard by then is answered.
        let mut answers = Vec::new();
        client.0.set_nonblocking(true).unwrap();
        loop {
            match client.0.write(&request(0, 3, 3, 0, 0, &[])) {
                Ok(sent) => assert_eq!(sent, 28),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => break assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe),
            }
            let mut some = [0; 4096];
            if let Ok(count) = client.0.read(&mut some) {
                answers.extend_from_slice(&some[..count]);
            }
        }
        client.0.set_nonblocking(false).unwrap();
        gate.waiting.lock().1 = true;
        gate.changed.notify_all();
        // What it said last was not read: the kernel tells it so behind the answers.
        if let Err(error) = client.0.read_to_end(&mut answers) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        assert_eq!(answers.len() % 16, 0);
        let answered = |cookie: u64| {
            let mut whole = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0].to_vec();
            whole.extend(cookie.to_be_bytes());
            answers.chunks(16).filter(|answer| *answer == whole).count()
        };
        assert_eq!((answered(1), answered(2)), (1, 1));
        ending.join().unwrap();
        assert!(gate.disk.content.lock()[..20_000].iter().all(|byte| *byte == 7));
        assert!(!path.exists());
    }
}

/// The empty name is told what it stands for, and has its contexts.
#[test]
fn the_only_export_is_told_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("pool/volume", Disk::new(MIB))]);
    let mut client = Client::connect(&path);
    client.option(8, &[]);
    assert_eq!(client.option_reply().0, 1);
    // Set by the one name, used by the other.
    let mut query = 11u32.to_be_bytes().to_vec();
    query.extend(b"pool/volume\0\0\0\x01\0\0\0\x0fbase:allocation");
    client.option(10, &query);
    assert_eq!((client.option_reply().0, client.option_reply().0), (4, 1));
    // GO of "", with NBD_INFO_NAME.
    client.option(7, &[0, 0, 0, 0, 0, 1, 0, 1]);
    let mut name = None;
    loop {
        let (kind, data) = client.option_reply();
        match (kind, data.get(..2)) {
            (3, Some([0, 1])) => name = Some(String::from_utf8(data[2..].to_vec()).unwrap()),
            (3, _) => {}
            (kind, _) => break assert_eq!(kind, 1),
        }
    }
    assert_eq!(name.as_deref(), Some("pool/volume"));
    client.request(0, 7, 1, 0, 4096, &[]);
    let mut header = [0; 20];
    client.0.read_exact(&mut header).unwrap();
    assert_eq!(&header[6..8], &[0, 5], "a block status");
    server.stop();
}

/// The protocol's errors for what lies outside, or is too much.
#[test]
fn each_mistake_has_its_error() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(40 * MIB))]);
    let mut client = Client::connect(&path);
    client.go("a");
    let (size, beyond) = (40 * MIB as u64, 33 << 20);
    for (flags, command, offset, length, error) in [
        (0, 0, size, 1, 22),
        (0, 0, u64::MAX, u32::MAX, 22),
        (0, 4, size - 1, 2, 22),
        (0, 6, size - 1, 2, 28),
        (0, 5, size, 1, 22),
        (0, 7, 0, 4096, 22),
        (0, 0, 0, 0, 22),
        (0, 4, 0, 0, 22),
        (0, 6, 0, 0, 22),
        (0, 0, 0, beyond, 22),
        (4, 0, 0, beyond, 75),
        (1 << 15, 0, 0, 512, 22),
        (0, 99, 0, 512, 22),
        // Lengths and places of any size are fine.
        (0, 4, 513, 777, 0),
        (1, 6, 1, beyond, 0),
        (3, 6, 1, 1, 0),
        (16, 6, 5, 5, 0),
        (0, 5, 0, u32::try_from(size).unwrap(), 0),
    ] {
        client.request(flags, command, 9, offset, length, &[]);
        let answer = client.simple_reply(0);
        assert_eq!(answer, (error, 9, vec![]), "{flags} {command} {offset} {length}");
    }
    server.stop();
}

/// Noise of every kind, at every stage, from seeds: each conversation ends or is answered, and others go on.
#[test]
fn noise_at_every_stage_costs_its_own_connection() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(MIB);
    let (server, path) = serve(dir.path(), &[("a", disk)]);
    let mut good = Client::connect(&path);
    good.go("a");
    let random = SeededRandomness::new(27);
    let below = |limit: u64| random.number() % limit;
    for round in 0..600 {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut noise = Vec::new();
        let extended = below(2) == 0;
        if below(8) != 0 {
            noise.extend(3u32.to_be_bytes());
            for _ in 0..below(6) {
                noise.extend(b"IHAVEOPT");
                noise.extend((below(13) as u32).to_be_bytes());
                let data: Vec<u8> = (0..below(40)).map(|_| below(256) as u8).collect();
                let told = if below(4) == 0 {
                    below(1 << 33) as u32
                } else {
                    data.len() as u32
                };
                noise.extend(told.to_be_bytes());
                noise.extend(data);
            }
            if below(4) != 0 {
                let option: &[u8] = if extended {
                    b"IHAVEOPT\0\0\0\x0b\0\0\0\0"
                } else {
                    b""
                };
                noise.extend(option);
                noise.extend(b"IHAVEOPT\0\0\0\x07\0\0\0\x07\0\0\0\x01a\0\0");
            }
            for _ in 0..below(20) {
                let magic = if extended { 0x21e4_1c71u32 } else { 0x2560_9513 };
                noise.extend(magic.to_be_bytes());
                noise.extend((below(64) as u16).to_be_bytes());
                noise.extend((below(9) as u16).to_be_bytes());
                noise.extend(below(u64::MAX).to_be_bytes());
                let offset = if below(5) == 0 {
                    below(u64::MAX)
                } else {
                    below(MIB as u64)
                };
                noise.extend(offset.to_be_bytes());
                let length = if below(5) == 0 {
                    below(1 << 34)
                } else {
                    below(70_000)
                };
                if extended {
                    noise.extend(length.to_be_bytes());
                } else {
                    noise.extend((length as u32).to_be_bytes());
                }
                noise.extend((0..below(5000)).map(|_| below(256) as u8));
            }
        } else {
            noise.extend((0..below(9000)).map(|_| below(256) as u8));
        }
        // The server may have ended the conversation by then.
        let mut sending = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            let _ = sending.write_all(&noise);
            let _ = sending.shutdown(std::net::Shutdown::Write);
        });
        let mut answers = Vec::new();
        match stream.read_to_end(&mut answers) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "round {round}"),
        }
        sender.join().unwrap();
        if round % 50 == 0 {
            good.request(0, 0, round, 0, 512, &[]);
            assert_eq!(good.simple_reply(512).1, round);
        }
    }
    server.stop();
}
