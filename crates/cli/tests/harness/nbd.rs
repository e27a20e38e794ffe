//! The smallest NBD client: one request at a time, simple replies.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

/// A client of one export.
pub struct Client {
    stream: UnixStream,
    /// The export, bytes.
    pub size: u64,
    /// What the server says of it.
    pub flags: u16,
}

impl Client {
    pub fn connect(socket: &Path, export: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        let limit = Some(std::time::Duration::from_secs(60));
        stream.set_read_timeout(limit).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeroes; then NBD_OPT_EXPORT_NAME.
        let mut hello = 3_u32.to_be_bytes().to_vec();
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&1_u32.to_be_bytes());
        hello.extend_from_slice(&u32::try_from(export.len()).unwrap().to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        stream.write_all(&hello).unwrap();
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        Self {
            stream,
            size: u64::from_be_bytes(answer[..8].try_into().unwrap()),
            flags: u16::from_be_bytes(answer[8..].try_into().unwrap()),
        }
    }

    /// The preferred unit of a request that the server tells of an export; any smaller one is served too.
    pub fn block_bytes(socket: &Path, export: &str) -> u32 {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        let length = u32::try_from(export.len()).unwrap();
        // NBD_OPT_INFO for NBD_INFO_BLOCK_SIZE.
        let mut hello = b"\0\0\0\x03IHAVEOPT\0\0\0\x06".to_vec();
        hello.extend_from_slice(&(length + 8).to_be_bytes());
        hello.extend_from_slice(&length.to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        hello.extend_from_slice(&[0, 1, 0, 3]);
        stream.write_all(&hello).unwrap();
        loop {
            let mut header = [0; 20];
            stream.read_exact(&mut header).unwrap();
            let length = u32::from_be_bytes(header[16..].try_into().unwrap());
            let mut data = vec![0; length as usize];
            stream.read_exact(&mut data).unwrap();
            assert_eq!(header[12..16], 3_u32.to_be_bytes(), "no block size was told");
            if data[..2] == [0, 3] {
                assert_eq!(data[2..6], 1_u32.to_be_bytes());
                return u32::from_be_bytes(data[6..10].try_into().unwrap());
            }
        }
    }

    /// Sends a request and returns the error of its reply.
    pub fn ask(&mut self, kind: u16, offset: u64, length: usize, data: &[u8]) -> u32 {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend_from_slice(&0_u16.to_be_bytes());
        request.extend_from_slice(&kind.to_be_bytes());
        request.extend_from_slice(&7_u64.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
        request.extend_from_slice(data);
        self.stream.write_all(&request).unwrap();
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    pub fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        assert_eq!(self.ask(0, offset, length, b""), 0);
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.ask(1, offset, data.len(), data)
    }

    pub fn flush(&mut self) {
        assert_eq!(self.ask(3, 0, 0, b""), 0);
    }
}
