//! A thread that keeps the socket beside what is answered soon gives it up for what takes long: that holds up nobody else.

#![allow(clippy::unwrap_used)]

mod harness;

use std::{sync::Arc, thread, time::Duration};

use harness::{Client, Disk, MIB, serve};
use parking_lot::{Condvar, Mutex};
use terrace_dataset::{BlockDevice, BlockRead, BlockStatus, FsError};

/// Its first block takes a while, its second one waits until it is let go.
const SLOW: u64 = 0;
const HELD: u64 = 4096;
const QUICK: u64 = 8192;

/// A disk that holds one block back.
struct Holding {
    disk: Arc<Disk>,
    /// Whether somebody waits, and whether nobody has to any more.
    held: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Holding {
    fn let_go(&self) {
        self.held.lock().1 = true;
        self.changed.notify_all();
    }
}

/// Lets go, however the test ends.
struct Release<'a>(&'a Holding);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl BlockDevice for Holding {
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
        match offset {
            SLOW => thread::sleep(Duration::from_millis(1)),
            HELD => {
                let mut held = self.held.lock();
                held.0 = true;
                self.changed.notify_all();
                while !held.1 {
                    self.changed.wait(&mut held);
                }
            }
            _ => {}
        }
        self.disk.read(offset, buffer)
    }
    fn read_many(&self, reads: &mut [BlockRead<'_>]) {
        for read in reads {
            read.outcome = self.read(read.offset, read.buffer);
        }
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
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

#[test]
fn what_takes_long_holds_up_nobody_who_asks_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[]);
    let disk = Arc::new(Holding {
        disk: Disk::new(MIB),
        held: Mutex::default(),
        changed: Condvar::new(),
    });
    server.add("a", disk.clone());
    let mut client = Client::connect(&path);
    client.go("a");
    let ask = |client: &mut Client<_>, offset| {
        client.request(0, 0, 5, offset, 4096, &[]);
        let (error, cookie, _) = client.simple_reply(4096);
        assert_eq!((error, cookie), (0, 5));
    };
    for _ in 0..100 {
        ask(&mut client, QUICK);
    }
    // Once some took longer, one that does not end holds up no other.
    for _ in 0..8 {
        ask(&mut client, SLOW);
    }
    client.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _release = Release(&disk);
    client.request(0, 0, 77, HELD, 4096, &[]);
    {
        let mut held = disk.held.lock();
        while !held.0 {
            disk.changed.wait(&mut held);
        }
    }
    for cookie in 0..3 {
        client.request(0, 0, cookie, QUICK, 4096, &[]);
        assert_eq!(client.simple_reply(4096).1, cookie);
    }
    disk.let_go();
    assert_eq!(client.simple_reply(4096).1, 77);
    server.stop();
}
