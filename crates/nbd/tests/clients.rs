//! A client of our own, and qemu-img where it is installed, against a server over a disk in RAM.

#![allow(clippy::unwrap_used)]

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use terrace_nbd::{Address, BlockRange, Export, ExportError, Server};

const MIB: usize = 1 << 20;

#[derive(Default)]
struct Disk {
    content: Mutex<Vec<u8>>,
    flushes: AtomicU64,
    read_only: bool,
}

impl Disk {
    fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            content: Mutex::new(vec![0; bytes]),
            ..Self::default()
        })
    }
}

impl Export for Disk {
    fn size_bytes(&self) -> u64 {
        self.content.lock().len() as u64
    }
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn read_only(&self) -> bool {
        self.read_only
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ExportError> {
        let content = self.content.lock();
        let from = content
            .get(offset as usize..offset as usize + buffer.len())
            .ok_or(ExportError::Invalid)?;
        buffer.copy_from_slice(from);
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), ExportError> {
        self.content.lock()[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
    fn write_zeroes(&self, offset: u64, length: u64, _keep: bool) -> Result<(), ExportError> {
        self.content.lock()[offset as usize..][..length as usize].fill(0);
        Ok(())
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), ExportError> {
        self.write_zeroes(offset, length, false)
    }
    fn flush(&self) -> Result<(), ExportError> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockRange>, ExportError> {
        let content = self.content.lock();
        let mut ranges: Vec<BlockRange> = Vec::new();
        for block in content[offset as usize..][..length as usize].chunks(4096) {
            let hole = block.iter().all(|byte| *byte == 0);
            let full = ranges.len() == limit;
            match ranges.last_mut() {
                Some(last) if last.hole == hole => last.length += block.len() as u64,
                _ if full => break,
                _ => ranges.push(BlockRange {
                    length: block.len() as u64,
                    hole,
                }),
            }
        }
        Ok(ranges)
    }
}

fn serve(dir: &Path, disks: &[(&str, Arc<Disk>)]) -> (Server, std::path::PathBuf) {
    let path = dir.join("nbd.sock");
    let server = Server::start(Address::Unix(path.clone())).unwrap();
    for (name, disk) in disks {
        server.add(name, disk.clone());
    }
    (server, path)
}

struct Client(UnixStream);

impl Client {
    fn connect(path: &Path) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        Self(stream)
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        self.0.write_all(b"IHAVEOPT").unwrap();
        self.0.write_all(&option.to_be_bytes()).unwrap();
        self.0.write_all(&(data.len() as u32).to_be_bytes()).unwrap();
        self.0.write_all(data).unwrap();
    }

    fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let mut header = [0; 20];
        self.0.read_exact(&mut header).unwrap();
        let length = u32::from_be_bytes(header[16..].try_into().unwrap());
        let mut data = vec![0; length as usize];
        self.0.read_exact(&mut data).unwrap();
        (u32::from_be_bytes(header[12..16].try_into().unwrap()), data)
    }

    fn go(&mut self, name: &str) -> Vec<(u32, Vec<u8>)> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        data.extend(0u16.to_be_bytes());
        self.option(7, &data);
        let mut replies = Vec::new();
        loop {
            let (kind, data) = self.option_reply();
            replies.push((kind, data));
            if kind != 3 {
                return replies;
            }
        }
    }

    fn request(&mut self, flags: u16, command: u16, cookie: u64, offset: u64, length: u32, payload: &[u8]) {
        let mut message = 0x2560_9513u32.to_be_bytes().to_vec();
        message.extend(flags.to_be_bytes());
        message.extend(command.to_be_bytes());
        message.extend(cookie.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend(length.to_be_bytes());
        message.extend(payload);
        self.0.write_all(&message).unwrap();
    }

    fn simple_reply(&mut self, data: usize) -> (u32, u64, Vec<u8>) {
        let mut header = [0; 16];
        self.0.read_exact(&mut header).unwrap();
        assert_eq!(&header[..4], &0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(header[4..8].try_into().unwrap());
        let mut content = vec![0; if error == 0 { data } else { 0 }];
        self.0.read_exact(&mut content).unwrap();
        (
            error,
            u64::from_be_bytes(header[8..].try_into().unwrap()),
            content,
        )
    }
}

#[test]
fn what_is_written_is_read_and_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(4 * MIB);
    let (server, path) = serve(dir.path(), &[("a", disk.clone())]);
    let mut client = Client::connect(&path);
    assert_eq!(client.go("a").last().unwrap().0, 1);
    client.request(0, 1, 11, 8192, 4096, &[7; 4096]);
    assert_eq!(client.simple_reply(0), (0, 11, vec![]));
    client.request(0, 0, 12, 4096, 8192, &[]);
    let (error, cookie, content) = client.simple_reply(8192);
    assert_eq!((error, cookie), (0, 12));
    assert!(content[..4096].iter().all(|byte| *byte == 0) && content[4096..].iter().all(|byte| *byte == 7));
    client.request(1, 1, 13, 0, 512, &[9; 512]);
    assert_eq!(client.simple_reply(0).0, 0);
    assert_eq!(disk.flushes.load(Ordering::SeqCst), 1, "FUA flushes");
    client.request(0, 3, 14, 0, 0, &[]);
    assert_eq!(client.simple_reply(0).0, 0);
    assert_eq!(disk.flushes.load(Ordering::SeqCst), 2);
    client.request(0, 2, 15, 0, 0, &[]);
    server.stop();
    assert!(!path.exists());
}

#[test]
fn requests_outside_are_refused_and_the_connection_lives_on() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(MIB))]);
    let mut client = Client::connect(&path);
    client.go("a");
    client.request(0, 0, 1, MIB as u64 - 512, 1024, &[]);
    assert_eq!(client.simple_reply(0).0, 22);
    client.request(0, 1, 2, u64::MAX - 10, 512, &[0; 512]);
    assert_eq!(client.simple_reply(0).0, 28);
    client.request(0, 99, 3, 0, 512, &[]);
    assert_eq!(client.simple_reply(0).0, 22);
    client.request(0x80, 0, 4, 0, 512, &[]);
    assert_eq!(client.simple_reply(0).0, 22);
    client.request(0, 0, 5, 0, 512, &[]);
    assert_eq!(client.simple_reply(512).0, 0);
    server.stop();
}

#[test]
fn a_payload_beyond_the_limit_ends_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(MIB))]);
    let mut client = Client::connect(&path);
    client.go("a");
    client.request(0, 1, 1, 0, u32::MAX, &[]);
    assert_eq!(client.0.read(&mut [0; 16]).unwrap_or(0), 0);
    server.stop();
}

#[test]
fn a_read_only_export_says_so_and_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Disk {
        content: Mutex::new(vec![1; MIB]),
        read_only: true,
        ..Disk::default()
    });
    let (server, path) = serve(dir.path(), &[("a", disk)]);
    let mut client = Client::connect(&path);
    let replies = client.go("a");
    let flags = u16::from_be_bytes(replies[0].1[10..12].try_into().unwrap());
    assert_eq!(flags & 3, 3, "flags are there, and say read-only");
    client.request(0, 1, 1, 0, 512, &[0; 512]);
    assert_eq!(client.simple_reply(0).0, 1);
    server.stop();
}

#[test]
fn structured_replies_and_block_status() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(MIB);
    disk.write(65536, &[5; 65536]).unwrap();
    let (server, path) = serve(dir.path(), &[("a", disk)]);
    let mut client = Client::connect(&path);
    client.option(8, &[]);
    assert_eq!(client.option_reply().0, 1);
    let mut query = 1u32.to_be_bytes().to_vec();
    query.push(b'a');
    query.extend(1u32.to_be_bytes());
    query.extend(15u32.to_be_bytes());
    query.extend(b"base:allocation");
    client.option(10, &query);
    assert_eq!(client.option_reply().0, 4);
    assert_eq!(client.option_reply().0, 1);
    client.go("a");
    client.request(0, 7, 42, 0, MIB as u32, &[]);
    let mut header = [0; 20];
    client.0.read_exact(&mut header).unwrap();
    assert_eq!(&header[..4], &0x668e_33efu32.to_be_bytes());
    assert_eq!(u16::from_be_bytes(header[6..8].try_into().unwrap()), 5);
    let mut content = vec![0; u32::from_be_bytes(header[16..].try_into().unwrap()) as usize];
    client.0.read_exact(&mut content).unwrap();
    let numbers: Vec<u32> = content
        .chunks(4)
        .map(|four| u32::from_be_bytes(four.try_into().unwrap()))
        .collect();
    assert_eq!(numbers, [1, 65536, 3, 65536, 0, (MIB - 131072) as u32, 3]);
    server.stop();
}

#[test]
fn lists_its_exports_and_refuses_unknown_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(MIB)), ("b", Disk::new(MIB))]);
    let mut client = Client::connect(&path);
    client.option(3, &[]);
    let names: Vec<_> = (0..2).map(|_| client.option_reply().1[4..].to_vec()).collect();
    assert_eq!(names, [b"a".to_vec(), b"b".to_vec()]);
    assert_eq!(client.option_reply().0, 1);
    assert_eq!(
        client.go("c"),
        [(0x8000_0006, b"there is no such export".to_vec())]
    );
    client.option(77, &[1, 2, 3]);
    assert_eq!(client.option_reply().0, 0x8000_0001);
    client.option(7, &[0xff; 9]);
    assert_eq!(client.option_reply().0, 0x8000_0003);
    client.option(2, &[]);
    assert_eq!(client.option_reply().0, 1);
    assert!(server.remove("a"));
    assert_eq!(server.exports(), ["b"]);
    server.stop();
}

#[test]
fn many_connections_in_flight_see_one_disk() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(4 * MIB);
    let (server, path) = serve(dir.path(), &[("a", disk.clone())]);
    std::thread::scope(|scope| {
        for lane in 0u64..4 {
            let path = &path;
            scope.spawn(move || {
                let mut client = Client::connect(path);
                client.go("a");
                for round in 0..64u64 {
                    client.request(
                        0,
                        1,
                        round,
                        lane * MIB as u64 + round * 4096,
                        4096,
                        &[lane as u8 + 1; 4096],
                    );
                }
                let mut seen: Vec<u64> = (0..64).map(|_| client.simple_reply(0).1).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..64).collect::<Vec<_>>(), "each request is answered once");
            });
        }
    });
    let content = disk.content.lock();
    for lane in 0..4 {
        assert!(
            content[lane * MIB..][..64 * 4096]
                .iter()
                .all(|byte| *byte == lane as u8 + 1)
        );
    }
    drop(content);
    server.stop();
}

#[test]
fn noise_ends_the_connection_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(MIB))]);
    for seed in 0..64u8 {
        let mut client = Client::connect(&path);
        let noise: Vec<u8> = (0..200u32).map(|i| blake3_like(seed, i)).collect();
        // The server may hang up before it has read everything.
        let _ = client.0.write_all(&noise);
        let _ = client.0.shutdown(std::net::Shutdown::Write);
        let _ = client.0.read_to_end(&mut Vec::new());
    }
    assert_eq!(Client::connect(&path).go("a").last().unwrap().0, 1);
    server.stop();
}

fn blake3_like(seed: u8, index: u32) -> u8 {
    (u32::from(seed)
        .wrapping_mul(2_654_435_761)
        .wrapping_add(index.wrapping_mul(40_503))
        >> 7) as u8
}
