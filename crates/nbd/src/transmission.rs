//! Transmission: requests of one client, several at once, answered as they finish.
//!
//! Workers take turns at the socket: whoever holds the read lock reads one request with its payload, lets go, and
//! serves it while the next worker reads on (the leader/followers pattern, Schmidt et al. 2000). So requests are
//! served out of order, with no queue between threads, and at most [`WORKERS`] payloads are in memory.
//!
//! Invariants: a client that sends nonsense, or more than it may, loses its connection; the replies of requests
//! already read are still sent if they can be.

use std::{
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use parking_lot::Mutex;

use crate::{
    BlockRange, Export, ExportError,
    connection::{Stream, Terms},
    protocol::{
        CMD_BLOCK_STATUS, CMD_CACHE, CMD_DISCONNECT, CMD_FLAG_DF, CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA,
        CMD_FLAG_NO_HOLE, CMD_FLAG_REQ_ONE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES,
        PAYLOAD_BYTES_MAX, Request, WireError,
    },
    reply,
};

/// Requests of one connection that are served at the same time.
pub const WORKERS: usize = 8;
/// Most stretches in one block status reply.
const STATUS_RANGES_MAX: usize = 1024;
/// Buffers above this are given back after the request.
const BUFFER_KEPT_BYTES: usize = 1 << 20;

struct Transmission {
    reader: Mutex<Stream>,
    writer: Mutex<Stream>,
    export: Arc<dyn Export>,
    terms: Terms,
    allocation: bool,
    closing: AtomicBool,
}

/// Serves `export` on `stream` until the client leaves or the stream is shut down.
pub fn transmit(stream: Stream, export: Arc<dyn Export>, terms: Terms) -> std::io::Result<()> {
    let writer = stream.try_clone()?;
    let allocation = terms.allocation_of.is_some();
    let transmission = Transmission {
        reader: Mutex::new(stream),
        writer: Mutex::new(writer),
        export,
        terms,
        allocation,
        closing: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        for _ in 1..WORKERS {
            // With fewer workers than wished for, the ones there are serve all the same.
            let _ = thread::Builder::new()
                .name("nbd-request".into())
                .spawn_scoped(scope, || transmission.work());
        }
        transmission.work();
    });
    Ok(())
}

impl Transmission {
    fn work(&self) {
        let mut buffer = Vec::new();
        while let Some(request) = self.next(&mut buffer) {
            if self.serve(&request, &mut buffer).is_err() {
                self.close();
            }
            if buffer.capacity() > BUFFER_KEPT_BYTES {
                buffer = Vec::new();
            }
        }
    }

    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.writer.lock().shutdown();
    }

    /// Reads the next request and its payload; `None` at the end of the connection.
    fn next(&self, buffer: &mut Vec<u8>) -> Option<Request> {
        let mut reader = self.reader.lock();
        if self.closing.load(Ordering::Acquire) {
            return None;
        }
        let mut header = [0; 32];
        let header = &mut header[..Request::header_bytes(self.terms.extended)];
        let request = reader
            .read_exact(header)
            .ok()
            .and_then(|()| Request::parse(self.terms.extended, header));
        let request = request.filter(|request| request.command != CMD_DISCONNECT);
        let Some(request) = request else {
            // Requests that other workers still serve are answered: only reading ends here.
            self.closing.store(true, Ordering::Release);
            return None;
        };
        let payload = request.payload_bytes(self.terms.extended);
        buffer.clear();
        if payload > PAYLOAD_BYTES_MAX {
            drop(reader);
            self.close();
            return None;
        }
        buffer.resize(payload as usize, 0);
        if reader.read_exact(buffer).is_err() {
            drop(reader);
            self.close();
            return None;
        }
        Some(request)
    }

    fn serve(&self, request: &Request, buffer: &mut Vec<u8>) -> std::io::Result<()> {
        let outcome = self.perform(request, buffer);
        let mut writer = self.writer.lock();
        let (terms, writer) = (&self.terms, &mut *writer);
        match outcome {
            Ok(Answer::Done) => reply::done(writer, terms, request),
            Ok(Answer::Data) => reply::data(writer, terms, request, buffer),
            Ok(Answer::Status(ranges)) => reply::block_status(writer, terms, request, &ranges),
            Err((cause, words)) => reply::error(writer, terms, request, cause, &words),
        }
    }

    fn perform(&self, request: &Request, buffer: &mut Vec<u8>) -> Result<Answer, (WireError, String)> {
        let export = &*self.export;
        let allowed = match request.command {
            CMD_READ => CMD_FLAG_DF | CMD_FLAG_FUA,
            CMD_WRITE_ZEROES => CMD_FLAG_FUA | CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
            CMD_BLOCK_STATUS => CMD_FLAG_REQ_ONE | CMD_FLAG_FUA,
            _ => CMD_FLAG_FUA,
        } | if self.terms.extended {
            crate::protocol::CMD_FLAG_PAYLOAD_LEN
        } else {
            0
        };
        if request.flags & !allowed != 0 {
            return Err(invalid("a flag that this command does not have"));
        }
        if request.command != CMD_FLUSH {
            let size = export.size_bytes();
            let end = request.offset.checked_add(request.length);
            if end.is_none_or(|end| end > size) {
                let cause = if request.command == CMD_WRITE {
                    WireError::NoSpace
                } else {
                    WireError::Invalid
                };
                return Err((
                    cause,
                    format!("the request ends beyond the export's {size} bytes"),
                ));
            }
            if request.length == 0 {
                return Err(invalid("a request of no length"));
            }
        }
        let writes = matches!(request.command, CMD_WRITE | CMD_TRIM | CMD_WRITE_ZEROES);
        if writes && export.read_only() {
            return Err((WireError::NotPermitted, ExportError::ReadOnly.to_string()));
        }
        let (offset, length) = (request.offset, request.length);
        let answer = match request.command {
            CMD_READ => {
                if length > PAYLOAD_BYTES_MAX {
                    return Err((
                        WireError::Overflow,
                        format!("a read of more than {PAYLOAD_BYTES_MAX} bytes"),
                    ));
                }
                buffer.resize(length as usize, 0);
                export.read(offset, buffer).map_err(words)?;
                Answer::Data
            }
            CMD_WRITE => export
                .write(offset, buffer)
                .map(|()| Answer::Done)
                .map_err(words)?,
            CMD_FLUSH => export.flush().map(|()| Answer::Done).map_err(words)?,
            CMD_TRIM => export
                .discard(offset, length)
                .map(|()| Answer::Done)
                .map_err(words)?,
            CMD_WRITE_ZEROES => {
                // Zeroes are never stored, so every zeroing is fast; NO_HOLE keeps the room set aside.
                let keep = request.flags & CMD_FLAG_NO_HOLE != 0;
                export
                    .write_zeroes(offset, length, keep)
                    .map(|()| Answer::Done)
                    .map_err(words)?
            }
            CMD_CACHE => {
                let mut at = offset;
                while at < offset + length {
                    let step = (offset + length - at).min(1 << 20);
                    buffer.resize(step as usize, 0);
                    export.read(at, buffer).map_err(words)?;
                    at += step;
                }
                Answer::Done
            }
            CMD_BLOCK_STATUS if !self.allocation => return Err(invalid("no context was agreed on")),
            CMD_BLOCK_STATUS => {
                let limit = if request.flags & CMD_FLAG_REQ_ONE != 0 {
                    1
                } else {
                    STATUS_RANGES_MAX
                };
                let ranges = export.block_status(offset, length, limit).map_err(words)?;
                Answer::Status(within_request(ranges, length, limit))
            }
            _ => return Err(invalid("a command that is not known")),
        };
        if request.flags & CMD_FLAG_FUA != 0 && writes {
            export.flush().map_err(words)?;
        }
        Ok(answer)
    }
}

enum Answer {
    Done,
    Data,
    Status(Vec<BlockRange>),
}

/// Cuts the stretches to the request's length: with REQ_ONE nothing may reach beyond it.
fn within_request(ranges: Vec<BlockRange>, length: u64, limit: usize) -> Vec<BlockRange> {
    let mut left = length;
    let mut cut = Vec::with_capacity(ranges.len().min(limit));
    for range in ranges.into_iter().take(limit) {
        if left == 0 {
            break;
        }
        let length = range.length.min(left);
        left -= length;
        cut.push(BlockRange {
            length,
            hole: range.hole,
        });
    }
    cut
}

fn invalid(words: &str) -> (WireError, String) {
    (WireError::Invalid, words.into())
}

fn words(error: ExportError) -> (WireError, String) {
    let cause = match error {
        ExportError::NoSpace => WireError::NoSpace,
        ExportError::ReadOnly => WireError::NotPermitted,
        ExportError::Invalid => WireError::Invalid,
        ExportError::Io => WireError::Io,
    };
    (cause, error.to_string())
}
