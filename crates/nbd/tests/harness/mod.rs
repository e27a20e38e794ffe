//! A disk in RAM, a server over it, and a client that speaks the protocol byte by byte, over any stream.

#![allow(dead_code, clippy::unwrap_used)]

pub mod holding;

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use terrace_dataset::{BlockDevice, BlockRead, BlockStatus, FsError};
use terrace_nbd::{Address, Server, Tls};

pub const MIB: usize = 1 << 20;

#[derive(Default)]
/// A disk in RAM that counts its flushes.
pub struct Disk {
    pub content: Mutex<Vec<u8>>,
    /// What the last flush covered.
    pub durable: Mutex<Vec<u8>>,
    pub flushes: AtomicU64,
    pub read_only: bool,
    /// How many reads it was asked for together, at most.
    pub together: AtomicUsize,
    /// The block that cannot be read, if any.
    pub bad_block: Mutex<Option<u64>>,
}

impl Disk {
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            content: Mutex::new(vec![0; bytes]),
            ..Self::default()
        })
    }
}

impl BlockDevice for Disk {
    fn size_bytes(&self) -> u64 {
        self.content.lock().len() as u64
    }
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn read_only(&self) -> bool {
        self.read_only
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
        if *self.bad_block.lock() == Some(offset / 4096) {
            return Err(FsError::io("a bad block"));
        }
        let content = self.content.lock();
        let from = content
            .get(offset as usize..offset as usize + buffer.len())
            .ok_or(FsError::Invalid)?;
        buffer.copy_from_slice(from);
        Ok(())
    }
    fn read_many(&self, reads: &mut [BlockRead<'_>]) {
        self.together.fetch_max(reads.len(), Ordering::SeqCst);
        for read in reads {
            read.outcome = self.read(read.offset, read.buffer);
        }
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        let mut content = self.content.lock();
        let place = content.get_mut(offset as usize..offset as usize + data.len());
        place.ok_or(FsError::Invalid)?.copy_from_slice(data);
        Ok(())
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.content.lock()[offset as usize..][..length as usize].fill(0);
        Ok(())
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.write_zeroes(offset, length)
    }
    fn flush(&self) -> Result<(), FsError> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.durable.lock().clone_from(&self.content.lock());
        Ok(())
    }
    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockStatus>, FsError> {
        let content = self.content.lock();
        let mut ranges: Vec<BlockStatus> = Vec::new();
        let mut at = offset;
        for block in content[offset as usize..][..length as usize].chunks(4096) {
            let data = block.iter().any(|byte| *byte != 0);
            let full = ranges.len() == limit;
            match ranges.last_mut() {
                Some(last) if last.data == data => last.length += block.len() as u64,
                _ if full => break,
                _ => ranges.push(BlockStatus {
                    offset: at,
                    length: block.len() as u64,
                    data,
                }),
            }
            at += block.len() as u64;
        }
        Ok(ranges)
    }
}

/// A server at a Unix socket in `dir`.
pub fn serve(dir: &Path, disks: &[(&str, Arc<Disk>)]) -> (Server, std::path::PathBuf) {
    serve_with(dir, disks, None)
}

/// The same, with TLS or without.
pub fn serve_with(dir: &Path, disks: &[(&str, Arc<Disk>)], tls: Option<Tls>) -> (Server, std::path::PathBuf) {
    let path = dir.join("nbd.sock");
    let server = Server::start(Address::Unix(path.clone()), tls).unwrap();
    for (name, disk) in disks {
        server.add(name, disk.clone());
    }
    (server, path)
}

/// A client over any stream.
/// A request as it is on the wire.
pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32, payload: &[u8]) -> Vec<u8> {
    let mut message = 0x2560_9513u32.to_be_bytes().to_vec();
    message.extend(flags.to_be_bytes());
    message.extend(command.to_be_bytes());
    message.extend(cookie.to_be_bytes());
    message.extend(offset.to_be_bytes());
    message.extend(length.to_be_bytes());
    message.extend(payload);
    message
}

pub struct Client<S>(pub S);

impl Client<UnixStream> {
    /// Greeted, over a Unix socket.
    pub fn connect(path: &Path) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        Self(stream)
    }
}

impl<S: Read + Write> Client<S> {
    pub fn option(&mut self, option: u32, data: &[u8]) {
        self.0.write_all(b"IHAVEOPT").unwrap();
        self.0.write_all(&option.to_be_bytes()).unwrap();
        self.0.write_all(&(data.len() as u32).to_be_bytes()).unwrap();
        self.0.write_all(data).unwrap();
    }

    pub fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let mut header = [0; 20];
        self.0.read_exact(&mut header).unwrap();
        let length = u32::from_be_bytes(header[16..].try_into().unwrap());
        let mut data = vec![0; length as usize];
        self.0.read_exact(&mut data).unwrap();
        (u32::from_be_bytes(header[12..16].try_into().unwrap()), data)
    }

    pub fn go(&mut self, name: &str) -> Vec<(u32, Vec<u8>)> {
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

    pub fn request(
        &mut self,
        flags: u16,
        command: u16,
        cookie: u64,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) {
        let message = request(flags, command, cookie, offset, length, payload);
        self.0.write_all(&message).unwrap();
    }

    pub fn simple_reply(&mut self, data: usize) -> (u32, u64, Vec<u8>) {
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
