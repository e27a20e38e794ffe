//! `Batch`: small reads and writes that came together are done together and answered together.
//!
//! A client that keeps many small requests under way costs a wake-up, a read of the device or a change of thread, and a
//! send for each otherwise. Invariants: only requests that have arrived whole are taken, with what they write, so that
//! nobody waits for a client to go on; a batch has at most [`BATCH_BYTES`] of data; each request of it gets its own answer,
//! also when others fail. Reads are answered before a write that may have to wait; writes that are to
//! be durable at once (FUA) are none of a batch's.

use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};

use terrace_dataset::{BlockDevice, BlockRead, FsError};

use super::channel::Outgoing;
use crate::{
    buffers::SMALL_BYTES,
    wire::{
        CMD_FLAG_DF, CMD_FLAG_PAYLOAD_LEN, CMD_READ, CMD_WRITE, Request, Terms, WireError, reply,
        write_all_parts,
    },
};

/// Most data of one batch: what any request may have, however many clients there are.
const BATCH_BYTES: u64 = SMALL_BYTES as u64;
/// Requests up to this size are put together.
const REQUEST_BYTES_MAX: u64 = 16 << 10;

/// Requests to be answered together; at least two.
#[derive(Default)]
pub struct Batch {
    reads: Vec<Request>,
    read_bytes: u64,
    writes: Vec<Request>,
    /// What they write, one behind the other.
    written: Vec<u8>,
}

impl Batch {
    /// Begins with `first` and takes what came behind it as far as that has been received and fits. `None` if that is
    /// nothing. `is_sound`: whether a request can be answered as it is.
    pub fn collect<R: Read>(
        first: &Request,
        reader: &mut BufReader<R>,
        extended: bool,
        is_sound: impl Fn(&Request) -> bool,
    ) -> Option<Self> {
        let header_bytes = Request::header_bytes(extended);
        let fits = |request: &Request| {
            let flags = match request.command {
                CMD_READ => CMD_FLAG_DF,
                CMD_WRITE => CMD_FLAG_PAYLOAD_LEN,
                _ => return false,
            };
            request.flags & !flags == 0
                && (1..=REQUEST_BYTES_MAX).contains(&request.length)
                && is_sound(request)
        };
        if !fits(first) {
            return None;
        }
        // Its header has been read; of what it writes nothing has.
        let second = payload_bytes(first, extended);
        let header = reader.buffer().get(second..second + header_bytes)?;
        let whole = |next: &Request| {
            let end = second + header_bytes + payload_bytes(next, extended);
            reader.buffer().len() >= end
        };
        Request::parse(extended, header).filter(&fits).filter(whole)?;
        let mut batch = Self::default();
        batch.take(first, reader, extended);
        while let Some(header) = reader.buffer().get(..header_bytes) {
            let next = Request::parse(extended, header).filter(&fits);
            let Some(next) = next.filter(|next| {
                batch.bytes() as u64 + next.length <= BATCH_BYTES
                    && reader.buffer().len() >= header_bytes + payload_bytes(next, extended)
            }) else {
                break;
            };
            reader.consume(header_bytes);
            batch.take(&next, reader, extended);
        }
        Some(batch)
    }

    /// Takes a request, and what it writes out of the buffer, where it lies whole.
    fn take<R: Read>(&mut self, request: &Request, reader: &mut BufReader<R>, extended: bool) {
        if request.command == CMD_READ {
            self.read_bytes += request.length;
            self.reads.push(*request);
            return;
        }
        let payload = payload_bytes(request, extended).min(reader.buffer().len());
        self.written.extend_from_slice(&reader.buffer()[..payload]);
        reader.consume(payload);
        self.writes.push(*request);
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.reads.len() + self.writes.len()
    }

    /// What is to be read.
    pub fn reads(&self) -> &[Request] {
        &self.reads
    }

    /// Whether something is written.
    pub fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }

    /// Bytes of data in all.
    pub fn bytes(&self) -> usize {
        self.read_bytes as usize + self.written.len()
    }

    /// Bytes that are read.
    pub fn read_bytes(&self) -> usize {
        self.read_bytes as usize
    }

    /// Writes all that is to be written, and answers. `refused`: what a client is told of an error.
    pub fn answer_writes(
        &self,
        export: &dyn BlockDevice,
        terms: &Terms,
        writer: &parking_lot::Mutex<Outgoing>,
        refused: impl Fn(FsError) -> (WireError, String),
    ) -> io::Result<()> {
        let mut answers = Vec::with_capacity(self.writes.len() * 20);
        let mut rest = &self.written[..];
        for request in &self.writes {
            let (mine, others) = rest.split_at((request.length as usize).min(rest.len()));
            rest = others;
            match export.write(request.offset, mine) {
                Ok(()) => reply::done(&mut answers, terms, request)?,
                Err(error) => {
                    let (cause, words) = refused(error);
                    reply::error(&mut answers, terms, request, cause, &words)?;
                }
            }
        }
        if answers.is_empty() {
            return Ok(());
        }
        writer.lock().write_all(&answers)
    }

    /// Reads all that is asked for into `buffer`, which holds [`read_bytes`](Self::read_bytes), and answers.
    pub fn answer_reads(
        &self,
        export: &dyn BlockDevice,
        terms: &Terms,
        mut buffer: &mut [u8],
        writer: &parking_lot::Mutex<Outgoing>,
        refused: impl Fn(FsError) -> (WireError, String),
    ) -> io::Result<()> {
        let mut reads = Vec::with_capacity(self.reads.len());
        for request in &self.reads {
            let (mine, others) = buffer.split_at_mut(request.length as usize);
            reads.push(BlockRead::new(request.offset, mine));
            buffer = others;
        }
        export.read_many(&mut reads);
        let mut headers = Vec::with_capacity(reads.len());
        let mut failures = Vec::new();
        for (request, read) in self.reads.iter().zip(reads) {
            match read.outcome {
                Ok(()) => headers.push((reply::data_header(terms, request, read.buffer.len()), read.buffer)),
                Err(error) => failures.push((request, refused(error))),
            }
        }
        let parts = headers
            .iter()
            .flat_map(|(header, data)| [IoSlice::new(header), IoSlice::new(data)]);
        let mut parts: Vec<IoSlice<'_>> = parts.collect();
        let writer = &mut *writer.lock();
        write_all_parts(writer, &mut parts)?;
        for (request, (cause, words)) in failures {
            reply::error(writer, terms, request, cause, &words)?;
        }
        Ok(())
    }
}

/// Of a request that fits: at most [`REQUEST_BYTES_MAX`].
fn payload_bytes(request: &Request, extended: bool) -> usize {
    request.payload_bytes(extended).min(REQUEST_BYTES_MAX) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CMD_FLAG_FUA, CMD_FLUSH, REQUEST_MAGIC};

    fn message(command: u16, flags: u16, cookie: u64, length: u32, payload: &[u8]) -> Vec<u8> {
        let mut message = REQUEST_MAGIC.to_be_bytes().to_vec();
        message.extend(flags.to_be_bytes());
        message.extend(command.to_be_bytes());
        message.extend(cookie.to_be_bytes());
        message.extend((cookie * 4096).to_be_bytes());
        message.extend(length.to_be_bytes());
        message.extend(payload);
        message
    }

    /// Reads the first header of `bytes`, all received, and makes a batch; what is left in the buffer beside it.
    fn collected(bytes: &[u8]) -> (Option<Batch>, Vec<u8>) {
        let mut reader = BufReader::with_capacity(1 << 20, bytes);
        reader.fill_buf().unwrap();
        let first = Request::parse(false, &reader.buffer()[..28]).unwrap();
        reader.consume(28);
        let batch = Batch::collect(&first, &mut reader, false, |request| request.offset < 1 << 40);
        (batch, reader.buffer().to_vec())
    }

    fn cookies(requests: &[Request]) -> Vec<u64> {
        requests.iter().map(|request| request.cookie).collect()
    }

    #[test]
    fn what_came_whole_is_taken_with_what_it_writes() {
        let bytes = [
            message(CMD_WRITE, 0, 1, 4096, &[1; 4096]),
            message(CMD_READ, 0, 2, 8192, &[]),
            message(CMD_WRITE, 0, 3, 512, &[3; 512]),
            message(CMD_WRITE, 0, 4, 4096, &[4; 100]),
        ];
        let (batch, left) = collected(&bytes.concat());
        let batch = batch.unwrap();
        assert_eq!(
            (cookies(&batch.writes), cookies(&batch.reads)),
            (vec![1, 3], vec![2])
        );
        assert_eq!(batch.read_bytes(), 8192);
        assert!(batch.written[..4096] == [1; 4096] && batch.written[4096..] == [3; 512]);
        // The last has not come whole: it is left, from its header on.
        assert_eq!(left, bytes[3]);
    }

    #[test]
    fn what_does_not_fit_ends_a_batch_and_is_left() {
        let small = message(CMD_WRITE, 0, 1, 512, &[1; 512]);
        for other in [
            message(CMD_WRITE, CMD_FLAG_FUA, 3, 512, &[3; 512]),
            message(CMD_FLUSH, 0, 3, 0, &[]),
            message(CMD_WRITE, 0, 1 << 40, 512, &[3; 512]),
            message(CMD_WRITE, 0, 3, 17 << 10, &[3; 17 << 10]),
            message(CMD_WRITE, 0, 3, u32::MAX, &[3; 512]),
            vec![7; 64],
        ] {
            let (batch, left) = collected(&[&small[..], &small, &other, &small].concat());
            assert_eq!(cookies(&batch.unwrap().writes), [1, 1]);
            assert!(left == [&other[..], &small].concat());
            // Alone it makes none, and neither does one before it.
            assert!(collected(&[&small[..], &other].concat()).0.is_none());
            if other.len() > 64 || other.len() == 28 {
                let (none, left) = collected(&[&other[..], &small].concat());
                assert!(none.is_none());
                assert!(left == [&other[28..], &small].concat(), "nothing is taken");
            }
        }
        let many = small.repeat(200);
        let (batch, left) = collected(&many);
        assert_eq!(batch.unwrap().writes.len(), 128, "64 KiB");
        assert_eq!(left.len(), 72 * small.len());
    }
}
