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
use terrace_device::ReadRing;

const BLOCKS: u64 = 256;
const BLOCK: u64 = 4096;

/// A disk in a file, of which reads can be begun; what becomes of them goes by the block.
struct FileDisk {
    file: File,
    /// The same file, past the page cache where that can be: so that reads are under way for a while.
    direct: Arc<File>,
    /// Whether some blocks are read in other ways.
    is_odd: bool,
    begun: AtomicUsize,
    ended: AtomicUsize,
    written: AtomicUsize,
}

/// What a block holds.
fn content(block: u64) -> [u8; 4096] {
    [block as u8; 4096]
}

impl FileDisk {
    fn new(is_odd: bool) -> Arc<Self> {
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
            is_odd,
            begun: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
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
        let length = buffer.len();
        let begin = |from: u64, is_good: bool| {
            self.begun.fetch_add(1, Ordering::SeqCst);
            ReadStart::Begun(BegunRead::new(self.direct.clone(), from, length, is_good))
        };
        match offset / BLOCK % 16 {
            // In RAM; bad; not what it should be; behind the end of the file; nothing that can be begun.
            11 if self.is_odd => self.read(offset, buffer).map(|()| ReadStart::Waited),
            3 => self.read(offset, buffer).map(|()| ReadStart::Done),
            5 => Err(FsError::io("a bad block")),
            _ if !self.is_odd => Ok(begin(offset, true)),
            7 => Ok(begin(0, false)),
            9 => Ok(begin(BLOCKS * BLOCK, true)),
            _ => Ok(begin(offset, true)),
        }
    }
    fn end_read(&self, begun: BegunRead, bytes: Option<&[u8]>, buffer: &mut [u8]) -> bool {
        self.ended.fetch_add(1, Ordering::SeqCst);
        let is_good: bool = begun.into_rest().unwrap();
        match bytes {
            Some(bytes) if is_good => buffer.copy_from_slice(bytes),
            _ => return false,
        }
        true
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        self.written.fetch_add(1, Ordering::SeqCst);
        self.file.write_all_at(data, offset).map_err(FsError::io)
    }
    fn write_at_once(&self, offset: u64, data: &[u8]) -> bool {
        // Not of each third block.
        !(offset / BLOCK).is_multiple_of(3) && self.write(offset, data).is_ok()
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
    each_read_has_one_answer(FileDisk::new(false));
    each_read_has_one_answer(FileDisk::new(true));
}

fn each_read_has_one_answer(disk: Arc<FileDisk>) {
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
    let (begun, ended) = (
        disk.begun.load(Ordering::SeqCst),
        disk.ended.load(Ordering::SeqCst),
    );
    assert_eq!(begun, ended);
    match ReadRing::open(1) {
        Ok(_) => assert!(begun > 0, "none is begun"),
        Err(error) => eprintln!("skipped: nothing can be begun here: {error}"),
    }
    server.stop();
}

/// The worker that refuses a request gives the turn away: what it has under way is answered all the same.
#[test]
fn a_refusal_between_them_keeps_nothing_from_being_answered() {
    let disk = FileDisk::new(false);
    let (_dir, server, mut client) = connected(&disk);
    for round in 0..200u64 {
        let mut message = Vec::new();
        for block in [16, 17, 18, 20] {
            message.extend(request(0, 0, block, block * BLOCK, 4096, &[]));
        }
        // Beyond the end; of no length; a flag that there is not. Alone behind the reads: nothing else wakes anybody.
        let refused = match round % 3 {
            0 => request(0, 1, BLOCKS, BLOCKS * BLOCK, 4096, &[1; 4096]),
            1 => request(0, 0, BLOCKS, 0, 0, &[]),
            _ => request(1 << 9, 1, BLOCKS, 0, 4096, &[1; 4096]),
        };
        if round % 2 == 0 {
            client.0.write_all(&message).unwrap();
            client.0.write_all(&refused).unwrap();
        } else {
            message.extend(refused);
            client.0.write_all(&message).unwrap();
        }
        let mut answered: Vec<u64> = (0..5)
            .map(|_| {
                let mut header = [0; 16];
                client.0.read_exact(&mut header).unwrap();
                let error = u32::from_be_bytes(header[4..8].try_into().unwrap());
                let cookie = u64::from_be_bytes(header[8..].try_into().unwrap());
                assert_eq!(error != 0, cookie == BLOCKS, "request {cookie}");
                if error == 0 {
                    client.0.read_exact(&mut [0; 4096]).unwrap();
                }
                cookie
            })
            .collect();
        answered.sort_unstable();
        assert_eq!(answered, [16, 17, 18, 20, BLOCKS]);
    }
    server.stop();
}

/// What was acknowledged is what is read afterwards, with other reads under way before and behind.
#[test]
fn what_was_written_is_read() {
    let disk = FileDisk::new(false);
    let (_dir, server, mut client) = connected(&disk);
    for round in 0..300u64 {
        let (block, others) = (32 + round % 3, [64, 65, 66]);
        let new = [round as u8; 4096];
        for other in others {
            client.request(0, 0, other, other * BLOCK, 4096, &[]);
        }
        client.request(0, 1, BLOCKS, block * BLOCK, 4096, &new);
        while take_answer(&mut client) != BLOCKS {}
        client.request(0, 0, block, block * BLOCK, 4096, &[]);
        for other in others {
            client.request(0, 0, other, other * BLOCK, 4096, &[]);
        }
        loop {
            let mut header = [0; 16];
            client.0.read_exact(&mut header).unwrap();
            let mut bytes = [0; 4096];
            client.0.read_exact(&mut bytes).unwrap();
            if header[8..] == block.to_be_bytes() {
                assert_eq!(bytes, new, "round {round}");
                break;
            }
        }
        // The rest of them, whichever they are.
        client.request(0, 3, BLOCKS + 1, 0, 0, &[]);
        while take_answer(&mut client) != BLOCKS + 1 {}
    }
    server.stop();
}

#[test]
fn a_server_that_stops_answers_what_is_under_way() {
    for _ in 0..20 {
        let disk = FileDisk::new(false);
        let (_dir, server, mut client) = connected(&disk);
        for block in 0..8 {
            client.request(0, 0, block, block * BLOCK, 4096, &[]);
        }
        // One answer: what came before has been received, or will not be.
        take_answer(&mut client);
        server.stop();
        let mut rest = Vec::new();
        // Cut off where it was asked for more than was received.
        if client.0.read_to_end(&mut rest).is_ok() {
            // Of one block nothing but an error is told.
            assert!(matches!(rest.len() % (16 + 4096), 0 | 16), "whole answers");
        }
        assert_eq!(Arc::strong_count(&disk.direct), 1, "nobody reads any more");
    }
}

#[test]
fn what_comes_between_them_is_served_as_always() {
    let disk = FileDisk::new(true);
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
    // Each once: of ten requests two small ones, of fifty one large one.
    assert_eq!(disk.written.load(Ordering::SeqCst), 400 + 40);
    server.stop();
}

#[test]
fn a_client_that_leaves_with_reads_under_way_is_let_go() {
    let disk = FileDisk::new(true);
    let (_dir, server, mut client) = connected(&disk);
    for block in 0..100 {
        client.request(0, 0, block, block * BLOCK, 4096, &[]);
    }
    drop(client);
    // Waits for the connection's end.
    server.stop();
    assert_eq!(Arc::strong_count(&disk.direct), 1, "nobody reads any more");
}

/// A client that takes nothing for a while, and then sends more than one worker begins, and nothing after it.
#[test]
fn who_is_slow_to_take_answers_has_all_of_them() {
    let disk = FileDisk::new(false);
    let (_dir, server, mut client) = connected(&disk);
    for round in 0..200 {
        let many = 8 + round % 40;
        for block in 0..many {
            client.request(0, 0, block, block * BLOCK, 4096, &[]);
        }
        // Some are taken, so that there is room again in the middle of things.
        for _ in 0..many / 2 {
            take_answer(&mut client);
        }
        let mut message = Vec::new();
        for at in 0..6 {
            message.extend(request(0, 0, BLOCKS + at, at * 4 * BLOCK, 16384, &[]));
        }
        client.0.write_all(&message).unwrap();
        let mut left = many - many / 2 + 6;
        while left > 0 {
            // Of a large one no more than its header is looked at there.
            if take_answer(&mut client) >= BLOCKS {
                client.0.read_exact(&mut [0; 16384]).unwrap();
            }
            left -= 1;
        }
    }
    server.stop();
}
