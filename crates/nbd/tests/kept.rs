//! Few small requests that are answered soon are served by one thread; what takes long holds up nobody else.

#![allow(clippy::unwrap_used)]

mod harness;

use std::{
    sync::Arc,
    thread::{self, ThreadId},
    time::Duration,
};

use harness::{Client, Disk, MIB, request, serve};
use parking_lot::{Condvar, Mutex};
use terrace_dataset::{BlockDevice, BlockRead, BlockStatus, FsError};

/// Its first block takes a while, its second one waits until it is let go.
const SLOW: u64 = 0;
const HELD: u64 = 4096;
const QUICK: u64 = 8192;

/// A disk that knows who asked last.
struct Noting {
    disk: Arc<Disk>,
    asked: Mutex<Option<ThreadId>>,
    /// Whether somebody waits, and whether nobody has to any more.
    held: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Noting {
    fn let_go(&self) {
        self.held.lock().1 = true;
        self.changed.notify_all();
    }
}

/// Lets go, however the test ends.
struct Release<'a>(&'a Noting);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl BlockDevice for Noting {
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
        *self.asked.lock() = Some(thread::current().id());
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
fn few_that_are_answered_soon_are_served_by_one_thread_and_what_takes_long_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[]);
    let disk = Arc::new(Noting {
        disk: Disk::new(MIB),
        asked: Mutex::default(),
        held: Mutex::default(),
        changed: Condvar::new(),
    });
    server.add("a", disk.clone());
    let mut client = Client::connect(&path);
    client.go("a");
    let ask = |client: &mut Client<_>, count: u64, offset| {
        let together: Vec<u8> = (0..count)
            .flat_map(|cookie| request(0, 0, cookie, offset, 4096, &[]))
            .collect();
        std::io::Write::write_all(&mut client.0, &together).unwrap();
        for _ in 0..count {
            assert_eq!(client.simple_reply(4096).0, 0);
        }
        *disk.asked.lock()
    };
    for count in [1, 3] {
        let mut last = None;
        let mut in_a_row = 0;
        let by_one = (0..5000).any(|_| {
            let by = ask(&mut client, count, QUICK);
            in_a_row = if by == last { in_a_row + 1 } else { 0 };
            last = by;
            in_a_row == 40
        });
        assert!(by_one, "{count} at a time");
    }
    // Once some took longer, one that does not end holds up no other.
    for _ in 0..8 {
        ask(&mut client, 1, SLOW);
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
