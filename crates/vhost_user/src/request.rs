//! One request of a guest: taken out of its descriptor chain, done, answered with a status byte.
//!
//! Invariants: the status byte is written last, and only after everything that it speaks for; at most
//! [`PIECE_BYTES`] are copied at a time, whatever the chain claims to hold.

use std::{
    io::{Read, Write},
    ops::Deref,
};

use terrace_dataset::{BlockDevice, FsError};
use terrace_device::ServedRequest;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
    VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::{DescriptorChain, Reader, Writer};
use vm_memory::GuestMemoryMmap;

use crate::config::{RANGE_SECTORS_MAX, RANGES_MAX, SECTOR_BYTES};

/// Data is copied in pieces of this size.
pub const PIECE_BYTES: usize = 1 << 20;
/// Most data of one request; drivers make far shorter ones.
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// What a request says about itself before its data.
struct Header {
    kind: u32,
    sector: u64,
}

/// Why a request was not done.
enum Refusal {
    /// It has no meaning here.
    Unsupported,
    /// It could not be done, or makes no sense.
    Failed,
}

impl From<FsError> for Refusal {
    fn from(error: FsError) -> Self {
        match error {
            FsError::ReadOnly | FsError::Invalid => {}
            error => tracing::error!("vhost-user: a volume failed: {error}"),
        }
        Self::Failed
    }
}

impl From<std::io::Error> for Refusal {
    /// The chain is shorter than its request.
    fn from(_: std::io::Error) -> Self {
        Self::Failed
    }
}

/// Does what a chain asks for. How many bytes were written into the guest's memory.
pub fn serve<M>(
    disk: &dyn BlockDevice,
    chain: DescriptorChain<M>,
    id: &str,
    write_through: bool,
    buffer: &mut Vec<u8>,
) -> u32
where
    M: Deref<Target = GuestMemoryMmap> + Clone,
{
    let memory = chain.memory().clone();
    let (Ok(mut reader), Ok(mut data)) = (
        Reader::new(&memory, chain.clone()),
        Writer::new(&memory, chain.clone()),
    ) else {
        return 0;
    };
    // Without a place for the status there is nobody to tell.
    let Some(room) = data.available_bytes().checked_sub(1) else {
        return 0;
    };
    let Ok(mut status) = data.split_at(room) else {
        return 0;
    };
    let outcome = perform(disk, &mut reader, &mut data, id, write_through, buffer);
    let (code, written) = match outcome {
        Ok(written) => (VIRTIO_BLK_S_OK, written),
        Err(Refusal::Unsupported) => (VIRTIO_BLK_S_UNSUPP, 0),
        Err(Refusal::Failed) => (VIRTIO_BLK_S_IOERR, 0),
    };
    match status.write_all(&[code as u8]) {
        Ok(()) => u32::try_from(written + 1).unwrap_or(u32::MAX),
        Err(_) => 0,
    }
}

fn header(reader: &mut impl Read) -> std::io::Result<Header> {
    let mut bytes = [0; 16];
    reader.read_exact(&mut bytes)?;
    let [a, b, c, d, _, _, _, _, sector @ ..] = bytes;
    Ok(Header {
        kind: u32::from_le_bytes([a, b, c, d]),
        sector: u64::from_le_bytes(sector),
    })
}

/// Where `sectors` from `sector` lie, in bytes, if they are inside the disk.
fn range(disk: &dyn BlockDevice, sector: u64, length: u64) -> Result<u64, Refusal> {
    let offset = sector.checked_mul(SECTOR_BYTES).ok_or(Refusal::Failed)?;
    let end = offset.checked_add(length).ok_or(Refusal::Failed)?;
    if end > disk.size_bytes() {
        return Err(Refusal::Failed);
    }
    Ok(offset)
}

/// What a request is called.
fn name(kind: u32) -> &'static str {
    match kind {
        VIRTIO_BLK_T_IN => "IN",
        VIRTIO_BLK_T_OUT => "OUT",
        VIRTIO_BLK_T_FLUSH => "FLUSH",
        VIRTIO_BLK_T_GET_ID => "GET_ID",
        VIRTIO_BLK_T_DISCARD => "DISCARD",
        VIRTIO_BLK_T_WRITE_ZEROES => "WRITE_ZEROES",
        _ => "unknown",
    }
}

fn perform(
    disk: &dyn BlockDevice,
    reader: &mut Reader<'_>,
    writer: &mut Writer<'_>,
    id: &str,
    write_through: bool,
    buffer: &mut Vec<u8>,
) -> Result<usize, Refusal> {
    let header = header(reader)?;
    let (incoming, outgoing) = (reader.available_bytes(), writer.available_bytes());
    if incoming.max(outgoing) > REQUEST_BYTES_MAX {
        return Err(Refusal::Failed);
    }
    let piece = incoming.max(outgoing).min(PIECE_BYTES);
    if buffer.len() < piece {
        buffer.resize(piece, 0);
    }
    let whole_sectors = |length: usize| {
        if (length as u64).is_multiple_of(SECTOR_BYTES) {
            Ok(length)
        } else {
            Err(Refusal::Failed)
        }
    };
    let _serving = ServedRequest::begin("virtio-blk", header.kind, name);
    match header.kind {
        VIRTIO_BLK_T_IN => {
            let length = whole_sectors(outgoing)?;
            let offset = range(disk, header.sector, length as u64)?;
            for at in (0..length).step_by(PIECE_BYTES) {
                let piece = &mut buffer[..PIECE_BYTES.min(length - at)];
                disk.read(offset + at as u64, piece)?;
                writer.write_all(piece)?;
            }
            return Ok(length);
        }
        VIRTIO_BLK_T_OUT => {
            let length = whole_sectors(incoming)?;
            let offset = range(disk, header.sector, length as u64)?;
            for at in (0..length).step_by(PIECE_BYTES) {
                let piece = &mut buffer[..PIECE_BYTES.min(length - at)];
                reader.read_exact(piece)?;
                disk.write(offset + at as u64, piece)?;
            }
        }
        VIRTIO_BLK_T_FLUSH => {
            disk.flush()?;
            return Ok(0);
        }
        VIRTIO_BLK_T_GET_ID => {
            let mut text = [0; VIRTIO_BLK_ID_BYTES as usize];
            let length = id.len().min(text.len());
            text[..length].copy_from_slice(&id.as_bytes()[..length]);
            let length = outgoing.min(text.len());
            writer.write_all(&text[..length])?;
            return Ok(length);
        }
        VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
            give_back(disk, reader, incoming, header.kind == VIRTIO_BLK_T_DISCARD)?;
        }
        _ => return Err(Refusal::Unsupported),
    }
    if write_through {
        disk.flush()?;
    }
    Ok(0)
}

/// Discards, or writes zeroes to, the ranges that follow.
fn give_back(
    disk: &dyn BlockDevice,
    reader: &mut Reader<'_>,
    length: usize,
    discard: bool,
) -> Result<(), Refusal> {
    const SEGMENT_BYTES: usize = 16;
    if length == 0 || !length.is_multiple_of(SEGMENT_BYTES) || length / SEGMENT_BYTES > RANGES_MAX as usize {
        return Err(Refusal::Failed);
    }
    for _ in 0..length / SEGMENT_BYTES {
        let mut bytes = [0; SEGMENT_BYTES];
        reader.read_exact(&mut bytes)?;
        let [sector @ .., a, b, c, d, e, f, g, h] = bytes;
        let sectors = u32::from_le_bytes([a, b, c, d]);
        let flags = u32::from_le_bytes([e, f, g, h]);
        let known = if discard {
            0
        } else {
            VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP
        };
        if flags & !known != 0 {
            return Err(Refusal::Unsupported);
        }
        if sectors > RANGE_SECTORS_MAX {
            return Err(Refusal::Failed);
        }
        let length = u64::from(sectors) * SECTOR_BYTES;
        let offset = range(disk, u64::from_le_bytes(sector), length)?;
        match (discard, length) {
            (_, 0) => {}
            (true, _) => disk.discard(offset, length)?,
            (false, _) => disk.write_zeroes(offset, length)?,
        }
    }
    Ok(())
}
