//! Replies: the three forms an answer can take.
//!
//! Invariant: one call makes one whole reply, of which the only chunk carries DONE; except [`part`] of a read, of which
//! the caller makes several.

use std::io::{self, IoSlice, Write};

use terrace_dataset::BlockStatus;

use super::{
    protocol::{
        ALLOCATION_CONTEXT_ID, EXTENDED_REPLY_MAGIC, REPLY_BLOCK_STATUS, REPLY_BLOCK_STATUS_EXTENDED,
        REPLY_ERROR, REPLY_FLAG_DONE, REPLY_NONE, REPLY_OFFSET_DATA, Request, SIMPLE_REPLY_MAGIC, STATE_HOLE,
        STATE_ZERO, STRUCTURED_REPLY_MAGIC, WireError,
    },
    terms::Terms,
};

/// Answers "done", with no content.
pub fn done(stream: &mut impl Write, terms: &Terms, request: &Request) -> io::Result<()> {
    if terms.extended {
        chunk(stream, terms, request, REPLY_FLAG_DONE, REPLY_NONE, &[], &[])
    } else {
        simple(stream, request, 0, &[])
    }
}

/// Answers an error, with words where the form has room for them.
pub fn error(
    stream: &mut impl Write,
    terms: &Terms,
    request: &Request,
    cause: WireError,
    words: &str,
) -> io::Result<()> {
    if !terms.structured {
        return simple(stream, request, cause as u32, &[]);
    }
    let mut content = Vec::with_capacity(6 + words.len());
    content.extend((cause as u32).to_be_bytes());
    content.extend((words.len() as u16).to_be_bytes());
    content.extend(words.as_bytes());
    chunk(
        stream,
        terms,
        request,
        REPLY_FLAG_DONE,
        REPLY_ERROR,
        &content,
        &[],
    )
}

/// Answers a read.
pub fn data(stream: &mut impl Write, terms: &Terms, request: &Request, data: &[u8]) -> io::Result<()> {
    if terms.structured {
        part(stream, terms, request, request.offset, data, true)
    } else {
        simple(stream, request, 0, data)
    }
}

/// Answers a piece of a read, in structured or extended replies.
pub fn part(
    stream: &mut impl Write,
    terms: &Terms,
    request: &Request,
    offset: u64,
    data: &[u8],
    last: bool,
) -> io::Result<()> {
    let flags = if last { REPLY_FLAG_DONE } else { 0 };
    let front = offset.to_be_bytes();
    chunk(stream, terms, request, flags, REPLY_OFFSET_DATA, &front, data)
}

/// Answers a block status request.
pub fn block_status(
    stream: &mut impl Write,
    terms: &Terms,
    request: &Request,
    ranges: &[BlockStatus],
) -> io::Result<()> {
    let mut content = Vec::with_capacity(8 + ranges.len() * 16);
    content.extend(ALLOCATION_CONTEXT_ID.to_be_bytes());
    if terms.extended {
        content.extend((ranges.len() as u32).to_be_bytes());
    }
    for range in ranges {
        let state = if range.data { 0 } else { STATE_HOLE | STATE_ZERO };
        if terms.extended {
            content.extend(range.length.to_be_bytes());
            content.extend(u64::from(state).to_be_bytes());
        } else {
            content.extend((range.length as u32).to_be_bytes());
            content.extend(state.to_be_bytes());
        }
    }
    let kind = if terms.extended {
        REPLY_BLOCK_STATUS_EXTENDED
    } else {
        REPLY_BLOCK_STATUS
    };
    chunk(stream, terms, request, REPLY_FLAG_DONE, kind, &content, &[])
}

/// What stands before `length` bytes of data in the answer of a read.
pub fn data_header(terms: &Terms, request: &Request, length: usize) -> Vec<u8> {
    if terms.structured {
        let front = request.offset.to_be_bytes();
        chunk_header(terms, request, REPLY_FLAG_DONE, REPLY_OFFSET_DATA, &front, length)
    } else {
        simple_header(request, 0).into()
    }
}

fn simple_header(request: &Request, error: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    header[4..8].copy_from_slice(&error.to_be_bytes());
    header[8..].copy_from_slice(&request.cookie.to_be_bytes());
    header
}

fn simple(stream: &mut impl Write, request: &Request, error: u32, data: &[u8]) -> io::Result<()> {
    write_parts(stream, &simple_header(request, error), data)
}

fn chunk(
    stream: &mut impl Write,
    terms: &Terms,
    request: &Request,
    flags: u16,
    kind: u16,
    front: &[u8],
    data: &[u8],
) -> io::Result<()> {
    let header = chunk_header(terms, request, flags, kind, front, data.len());
    write_parts(stream, &header, data)
}

fn chunk_header(
    terms: &Terms,
    request: &Request,
    flags: u16,
    kind: u16,
    front: &[u8],
    data_bytes: usize,
) -> Vec<u8> {
    let length = (front.len() + data_bytes) as u64;
    let mut header = Vec::with_capacity(32 + front.len());
    header.extend(
        if terms.extended {
            EXTENDED_REPLY_MAGIC
        } else {
            STRUCTURED_REPLY_MAGIC
        }
        .to_be_bytes(),
    );
    header.extend(flags.to_be_bytes());
    header.extend(kind.to_be_bytes());
    header.extend(request.cookie.to_be_bytes());
    if terms.extended {
        header.extend(request.offset.to_be_bytes());
        header.extend(length.to_be_bytes());
    } else {
        header.extend((length as u32).to_be_bytes());
    }
    header.extend(front);
    header
}

/// Writes header and payload in as few calls as the socket allows.
pub fn write_parts(stream: &mut impl Write, header: &[u8], payload: &[u8]) -> io::Result<()> {
    write_all_parts(stream, &mut [IoSlice::new(header), IoSlice::new(payload)])
}

/// The same with any number of parts, one behind the other.
pub fn write_all_parts(stream: &mut impl Write, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    let mut left: &mut [IoSlice<'_>] = parts;
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match stream.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut left, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
