//! Whether a device can join a pool, and what it is then in the labels.
//!
//! Invariant: what holds something is refused, unless it is forced; what joins has no label or root of an earlier life.

use terrace_device::{AlignedBuffer, Device, Randomness};

use crate::{
    PoolError,
    content::Content,
    devices::OpenDevice,
    ondisk::{
        DEVICE_BYTES_MIN, LABEL_BYTES, Member, Presence, SEGMENT_AREA_OFFSET, SEGMENTS_MIN, segment_count,
    },
};

/// Refuses a device that belongs to an active pool or holds something else, unless forced.
pub(super) fn check_unused(device: &dyn Device, force: bool) -> Result<(), PoolError> {
    check_device_size(&device.path(), device.size_bytes())?;
    match force {
        true => Ok(()),
        false => check_content(device),
    }
}

/// Refuses what is too small for a device of any pool.
///
/// # Errors
/// `TooSmall`.
pub fn check_device_size(path: &str, size_bytes: u64) -> Result<(), PoolError> {
    check_smallest(path, size_bytes, DEVICE_BYTES_MIN)
}

fn check_smallest(path: &str, has: u64, wanted: u64) -> Result<(), PoolError> {
    match has < wanted {
        true => Err(PoolError::TooSmall {
            path: path.into(),
            has,
            wanted,
        }),
        false => Ok(()),
    }
}

/// Refuses devices with so few segments that there is nothing to be done with them.
pub(super) fn check_size(path: &str, size_bytes: u64, segment_bytes: u32) -> Result<(), PoolError> {
    check_smallest(path, size_bytes, DEVICE_BYTES_MIN)?;
    if segment_count(size_bytes, segment_bytes) < SEGMENTS_MIN {
        let segments = u64::from(SEGMENTS_MIN) * u64::from(segment_bytes);
        let wanted = SEGMENT_AREA_OFFSET + segments + LABEL_BYTES as u64;
        return check_smallest(path, size_bytes, wanted);
    }
    Ok(())
}

/// Refuses devices that hold something.
fn check_content(device: &dyn Device) -> Result<(), PoolError> {
    let path = device.path();
    match Content::of_device(device)? {
        None => Ok(()),
        Some(content) => Err(match content.pool() {
            Some(pool) => PoolError::AlreadyInPool {
                pool: pool.to_owned(),
                path,
            },
            None => PoolError::HoldsSomething {
                path,
                content: content.to_string(),
            },
        }),
    }
}

/// The entry of a device that is about to join.
pub(super) fn new_member(
    device: &dyn Device,
    number: u16,
    tier: u8,
    segment_bytes: u32,
    randomness: &dyn Randomness,
) -> Result<Member, PoolError> {
    let size_bytes = device.size_bytes();
    check_size(&device.path(), size_bytes, segment_bytes)?;
    Ok(Member {
        number,
        id: randomness.identifier(),
        tier,
        size_bytes,
        path: device.path(),
        presence: Presence::Whole,
        begun: Vec::new(),
    })
}

/// Zeroes labels and roots of an earlier life, and all that others would recognise the device by: its first and last MiB.
pub(super) fn wipe_ends(device: &OpenDevice) -> Result<(), PoolError> {
    let zeroes = AlignedBuffer::zeroed(SEGMENT_AREA_OFFSET as usize);
    device.write_front(0, &zeroes)?;
    let size_bytes = device.raw().size_bytes();
    device.write_front(size_bytes.saturating_sub(SEGMENT_AREA_OFFSET), &zeroes)?;
    device.flush()
}
