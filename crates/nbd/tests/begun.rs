//! Reads that a worker has under way while it receives more: each has one answer, with the right content, whatever comes
//! of the read itself and whatever else is asked for meanwhile.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use terrace_dataset::{BegunRead, BlockDevice, BlockStatus, FsError, ReadStart};

use harness::{Client, request, serve};

const BLOCKS: u64 = 256;
const BLOCK: u64 = 4096;

/// A disk in a file, of which reads can be begun; what becomes of them goes by the block.
struct FileDisk {
    file: File,
    /// The same file, past the page cache where that can be: so that reads are under way for a while.
    direct: Arc<File>,
    begun: AtomicUsize,
    ended: AtomicUsize,
}

/// What a block holds.
fn content(block: u64) -> [u8; 4096] {
    [block as u8; 4096]
}

impl FileDisk {
    fn new() -> Arc<Self> {
        let named = tempfile::NamedTempFile::new().unwrap();
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
            .open(named.path())
            .or_else(|_| File::open(named.path()))
            .unwrap();
        let file = named.into_file();
        (0..BLOCKS).for_each(|block| file.write_all_at(&content(block), block * BLOCK).unwrap());
        Arc::new(Self {
            file,
            direct: Arc::new(direct),
            begun: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        })
    }
}

impl BlockDevice for FileDisk {
    fn size_bytes(&self) -> u64 {
        BLOCKS * BLOCK
    }
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
        if offset / BLOCK % 16 == 5 {
            return Err(FsError::io("a bad block"));
        }
        self.file.read_exact_at(buffer, offset).map_err(FsError::io)
    }
    fn begin_read(&self, offset: u64, buffer: &mut [u8]) -> Result<ReadStart, FsError> {
        let begin = |from: u64, is_good: bool| {
            self.begun.fetch_add(1, Ordering::SeqCst);
            ReadStart::Begun(BegunRead::new(self.direct.clone(), from, 4096, is_good))
        };
        match offset / BLOCK % 16 {
            // In RAM; bad; not what it should be; behind the end of the file.
            3 => self.read(offset, buffer).map(|()| ReadStart::Done),
            5 => Err(FsError::io("a bad block")),
            7 => Ok(begin(0, false)),
            9 => Ok(begin(BLOCKS * BLOCK, true)),
            _ => Ok(begin(offset, true)),
        }
    }
    fn end_read(&self, begun: BegunRead, bytes: &[u8], buffer: &mut [u8]) -> bool {
        self.ended.fetch_add(1, Ordering::SeqCst);
        let is_good: bool = begun.into_rest().unwrap();
        if is_good {
            buffer.copy_from_slice(bytes);
        }
        is_good
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        self.file.write_all_at(data, offset).map_err(FsError::io)
    }
    fn write_zeroes(&self, _: u64, _: u64) -> Result<(), FsError> {
        Err(FsError::Invalid)
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), FsError> {
        Err(FsError::Invalid)
    }
    fn flush(&self) -> Result<(), FsError> {
        Ok(())
    }
    fn block_status(&self, _: u64, _: u64, _: usize) -> Result<Vec<BlockStatus>, FsError> {
        Err(FsError::Invalid)
    }
}

/// Takes one answer to a read of a block, whose cookie is the block, or to something else, whose cookie is larger.
fn take_answer(client: &mut Client<std::os::unix::net::UnixStream>) -> u64 {
    let mut header = [0; 16];
    client.0.read_exact(&mut header).unwrap();
    let error = u32::from_be_bytes(header[4..8].try_into().unwrap());
    let cookie = u64::from_be_bytes(header[8..].try_into().unwrap());
    if cookie >= BLOCKS {
        assert_eq!(error, 0, "request {cookie}");
        return cookie;
    }
    assert_eq!(error, if cookie % 16 == 5 { 5 } else { 0 }, "block {cookie}");
    if error == 0 {
        let mut bytes = [0; 4096];
        client.0.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, content(cookie), "block {cookie}");
    }
    cookie
}

fn connected(
    disk: &Arc<FileDisk>,
) -> (
    tempfile::TempDir,
    terrace_nbd::Server,
    Client<std::os::unix::net::UnixStream>,
) {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[]);
    server.add("a", disk.clone());
    let mut client = Client::connect(&path);
    client.go("a");
    client.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // Enough to be known for one who is answered soon.
    for _ in 0..64 {
        client.request(0, 0, 3, 3 * BLOCK, 4096, &[]);
        assert_eq!(take_answer(&mut client), 3);
    }
    (dir, server, client)
}

/// Keeps so many requests under way until all are answered.
fn keep_under_way(
    client: &mut Client<std::os::unix::net::UnixStream>,
    depth: usize,
    all: &[Vec<u8>],
) -> Vec<u64> {
    let mut answered = Vec::new();
    for message in &all[..depth] {
        client.0.write_all(message).unwrap();
    }
    for message in &all[depth..] {
        answered.push(take_answer(client));
        client.0.write_all(message).unwrap();
    }
    answered.extend((0..depth).map(|_| take_answer(client)));
    answered.sort_unstable();
    answered
}

#[test]
fn each_read_has_one_answer_at_any_depth() {
    let disk = FileDisk::new();
    let (_dir, server, mut client) = connected(&disk);
    for depth in [1, 2, 3, 4, 8, 16, 40, 100] {
        for round in 0..8 {
            let blocks = (0..BLOCKS).map(|at| (at * 37 + round) % BLOCKS);
            let all: Vec<Vec<u8>> = blocks
                .map(|block| request(0, 0, block, block * BLOCK, 4096, &[]))
                .collect();
            let answered = keep_under_way(&mut client, depth, &all);
            assert_eq!(answered, (0..BLOCKS).collect::<Vec<_>>(), "depth {depth}");
        }
    }
    if disk.begun.load(Ordering::SeqCst) == 0 {
        eprintln!("skipped: no io_uring, nothing was begun");
    } else {
        // But for one in sixteen, which is behind the end of the file.
        let (begun, ended) = (
            disk.begun.load(Ordering::SeqCst),
            disk.ended.load(Ordering::SeqCst),
        );
        assert!(
            begun > 1000 && ended < begun && ended > begun / 2,
            "{begun} begun, {ended} ended"
        );
    }
    server.stop();
}

#[test]
fn what_comes_between_them_is_served_as_always() {
    let disk = FileDisk::new();
    let (_dir, server, mut client) = connected(&disk);
    let mut all = Vec::new();
    let mut expected = Vec::new();
    for at in 0..2000u64 {
        let block = at * 7 % BLOCKS;
        let other = BLOCKS + at;
        let (cookie, message) = match at % 10 {
            // A write of what is there, a flush, a write that is made durable at once, a large write.
            4 => (other, request(0, 1, other, block * BLOCK, 4096, &content(block))),
            6 => (other, request(0, 3, other, 0, 0, &[])),
            8 => (other, request(1, 1, other, block * BLOCK, 4096, &content(block))),
            9 if at % 50 == 9 => {
                let whole: Vec<u8> = (0..BLOCKS).flat_map(content).collect();
                (other, request(0, 1, other, 0, whole.len() as u32, &whole))
            }
            _ => (block, request(0, 0, block, block * BLOCK, 4096, &[])),
        };
        expected.push(cookie);
        all.push(message);
    }
    expected.sort_unstable();
    assert_eq!(keep_under_way(&mut client, 6, &all), expected);
    server.stop();
}

#[test]
fn a_client_that_leaves_with_reads_under_way_is_let_go() {
    let disk = FileDisk::new();
    let (_dir, server, mut client) = connected(&disk);
    for block in 0..100 {
        client.request(0, 0, block, block * BLOCK, 4096, &[]);
    }
    drop(client);
    // Waits for the connection's end.
    server.stop();
    assert_eq!(Arc::strong_count(&disk.direct), 1, "nobody reads any more");
}
