//! Root slots: two per device, written in turn, so that a torn write leaves the older root readable; each in two copies,
//! so that a bad sector does not bring the older root back.
//!
//! Invariants: on each device the slot that holds its newest valid root is never the one that is written next; the
//! generation grows with every attempt, also after a failed one; a root is believed only if the sum over its header
//! and payload matches and it names this pool. Magic, version, length, pool, generation and sum stay where they are in all
//! versions, so that a newer one is told from damage.

use terrace_codec::{Reader, Writer};
use terrace_device::{AlignedBuffer, DEVICE_BLOCK_BYTES, Device};

use super::{label::GENERATION_MAX, layout::ROOT_OFFSETS, patient_read::read_patiently};
use crate::PoolId;

/// Longest payload of the root record, bytes.
pub const ROOT_BYTES_MAX: usize = 64 * 1024;

const MAGIC: [u8; 8] = *b"TERRROOT";
/// The version of slots that is written; newer ones are refused.
pub(crate) const VERSION: u32 = 1;
/// Header fields before the sum: magic, version, length, pool id, generation.
const FIELDS_BYTES: usize = 8 + 4 + 4 + 16 + 8;

/// A root that was read and verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) generation: u64,
    pub(crate) payload: Vec<u8>,
}

/// A whole root of a version that is not known here. By age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NewerRoot {
    pub(crate) generation: u64,
    pub(crate) version: u32,
}

/// Why the bytes of a slot are no root that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoot {
    /// They are none of this pool.
    Damaged,
    /// A newer program wrote it.
    Newer(NewerRoot),
}

/// What the two slots of a device hold.
#[derive(Debug, Default)]
pub(crate) struct RootSlots {
    /// The newest valid root and its slot.
    pub(crate) newest: Option<(usize, Root)>,
    /// The generation of the newest one in the other slot.
    pub(crate) older: Option<u64>,
    /// Both copies of its slot hold it.
    pub(crate) whole: bool,
    /// The newest root that a newer program wrote.
    pub(crate) newer: Option<NewerRoot>,
    /// Copies of slots that cannot be read, or hold bytes that are not a valid root: there may be a newer one in them.
    pub(crate) unsure: Vec<(usize, u64)>,
}

/// What a copy of a slot holds.
pub(crate) enum Slot {
    /// Nothing was ever written there.
    Empty,
    /// It cannot be read.
    Unreadable(String),
    /// Its bytes are no root of this pool.
    Damaged(String),
    /// A root that a newer program wrote.
    Newer(NewerRoot),
    /// A root.
    Root(Root),
}

/// Reads the copy of a slot that starts at `offset` bytes.
pub(crate) fn read_slot(device: &dyn Device, offset: u64, pool: &PoolId) -> Slot {
    let length = DEVICE_BLOCK_BYTES + ROOT_BYTES_MAX;
    let mut buffer = AlignedBuffer::with_capacity(length);
    let decode = |bytes: &[u8]| {
        let empty = || bytes[..DEVICE_BLOCK_BYTES].iter().all(|byte| *byte == 0);
        match decode_root(bytes, pool) {
            Ok(root) => Ok(Slot::Root(root)),
            Err(NoRoot::Newer(newer)) => Ok(Slot::Newer(newer)),
            Err(NoRoot::Damaged) if empty() => Ok(Slot::Empty),
            Err(NoRoot::Damaged) => Err("its bytes are no root of this pool"),
        }
    };
    match read_patiently(device, offset, &mut buffer, length, decode, |_| false) {
        Ok(Ok(slot)) => slot,
        Ok(Err(cause)) => Slot::Damaged(cause.into()),
        Err(error) => Slot::Unreadable(error.to_string()),
    }
}

/// The bytes of a slot: a header of 4096 bytes and the payload, padded.
pub(crate) fn encode_root(pool: &PoolId, generation: u64, payload: &[u8]) -> AlignedBuffer {
    let mut fields = Writer::with_capacity(FIELDS_BYTES);
    fields
        .bytes(&MAGIC)
        .u32(VERSION)
        .u32(payload.len() as u32)
        .bytes(pool)
        .u64(generation);
    let mut bytes = AlignedBuffer::with_capacity(DEVICE_BLOCK_BYTES + payload.len());
    bytes.extend_from_slice(fields.as_bytes());
    bytes.extend_from_slice(root_sum(fields.as_bytes(), payload).as_bytes());
    bytes.pad_to_block();
    bytes.extend_from_slice(payload);
    bytes.pad_to_block();
    bytes
}

fn root_sum(fields: &[u8], payload: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(fields).update(payload);
    hasher.finalize()
}

/// Version, payload length and generation that a slot's first block states, if it looks like a root of this pool at all.
fn stated(header: &[u8], pool: &PoolId) -> Option<(u32, usize, u64)> {
    let mut reader = Reader::new(header);
    let magic: [u8; 8] = reader.array("magic").ok()?;
    let version = reader.u32("version").ok()?;
    let length = reader.u32("length").ok()? as usize;
    let id: PoolId = reader.array("pool").ok()?;
    let generation = reader.u64("generation").ok()?;
    let fits = length <= ROOT_BYTES_MAX && generation <= GENERATION_MAX;
    (magic == MAGIC && version >= VERSION && fits && id == *pool).then_some((version, length, generation))
}

/// The root in the bytes of a slot, or why there is none to be used.
pub(crate) fn decode_root(bytes: &[u8], pool: &PoolId) -> Result<Root, NoRoot> {
    let sound = || {
        let header = bytes.get(..DEVICE_BLOCK_BYTES)?;
        let (version, length, generation) = stated(header, pool)?;
        let payload = bytes.get(DEVICE_BLOCK_BYTES..)?.get(..length)?;
        let stored: [u8; 32] = header[FIELDS_BYTES..FIELDS_BYTES + 32].try_into().ok()?;
        let sum = root_sum(&header[..FIELDS_BYTES], payload);
        (sum == stored).then_some((version, generation, payload))
    };
    let (version, generation, payload) = sound().ok_or(NoRoot::Damaged)?;
    if version > VERSION {
        return Err(NoRoot::Newer(NewerRoot { generation, version }));
    }
    Ok(Root {
        generation,
        payload: payload.to_vec(),
    })
}

/// Reads both slots of a device, and both copies of each.
pub(crate) fn read_root_slots(device: &dyn Device, pool: &PoolId) -> RootSlots {
    let mut slots = RootSlots::default();
    let mut best = [None; ROOT_OFFSETS.len()];
    for (slot, copies) in ROOT_OFFSETS.iter().enumerate() {
        for offset in copies {
            let newest = slots.newest.as_ref().map(|(_, newest)| newest.generation);
            let found = read_slot(device, *offset, pool);
            if let Slot::Root(root) = &found {
                best[slot] = best[slot].max(Some(root.generation));
            }
            match found {
                Slot::Root(root) if newest == Some(root.generation) => slots.whole = true,
                Slot::Root(root) if newest.is_some_and(|newest| newest > root.generation) => {}
                Slot::Root(root) => {
                    slots.newest = Some((slot, root));
                    slots.whole = false;
                }
                Slot::Empty => {}
                Slot::Newer(newer) => slots.newer = slots.newer.max(Some(newer)),
                Slot::Unreadable(cause) | Slot::Damaged(cause) => {
                    tracing::warn!(
                        device = device.path(),
                        slot,
                        offset,
                        cause,
                        "a root slot is not a valid root"
                    );
                    slots.unsure.push((slot, *offset));
                }
            }
        }
    }
    let newest = slots.newest.as_ref().map(|(slot, _)| *slot);
    slots.older = newest.and_then(|newest| best[1 - newest]);
    slots
}
