//! Writing the label copies of devices.
//!
//! Invariants of an update: phase one writes copy 0 on every device and flushes; only then phase two writes copy 1
//! and, after a flush, the copy at the end. So a copy 1 or end copy of generation G proves that every device of the
//! pool carries G in copy 0: a device that knows nothing of G was absent (stale). An update that did not reach phase
//! two anywhere never happened. At every moment each device has an intact copy of the old or the new label: before copy 0
//! is written over, copy 1 has what is in force.

use std::sync::Arc;

use terrace_device::AlignedBuffer;

use crate::{
    PoolError,
    devices::OpenDevice,
    ondisk::{LABEL_BYTES, LABEL_OFFSETS, Label, Presence, end_label_offset, read_patiently},
};

/// A device that did not take a label, before that was in force anywhere.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Its number, if it was the fault of one.
    pub(crate) device: Option<u16>,
    pub(crate) error: PoolError,
}

impl Refused {
    fn by(device: &OpenDevice) -> impl FnOnce(PoolError) -> Self {
        let device = Some(device.number);
        move |error| Self { device, error }
    }
}

/// Writes `label` (with each device's own number) in two phases. An error in phase one means that the update did not
/// happen; phase two fails only if it fails on every device. Returns whether every device has a durable copy 1: only
/// then no opening, with whatever devices, finds the label before.
///
/// `in_force`: the label that all of them carry until then, if there is one.
pub(crate) fn write_labels(
    devices: &[Arc<OpenDevice>],
    label: &Label,
    in_force: Option<&Label>,
) -> Result<bool, Refused> {
    let invalid = |reason: String| Refused {
        device: None,
        error: PoolError::Invalid(reason),
    };
    if let Some(in_force) = in_force {
        finish_labels(devices, in_force)?;
    }
    let mut encoded = Vec::with_capacity(devices.len());
    for device in devices {
        let own = Label {
            number: device.number,
            ..label.clone()
        };
        let Some(size_bytes) = own.own().map(|own| own.size_bytes) else {
            return Err(invalid(format!("device {} is not in the label", device.number)));
        };
        let bytes = own.encode().map_err(|error| invalid(error.to_string()))?;
        encoded.push((bytes, size_bytes));
    }
    for (device, (bytes, _)) in devices.iter().zip(&encoded) {
        let written = device.write_front(LABEL_OFFSETS[0], bytes);
        // Once may be chance, and whoever does not take a label is out.
        let written = written.or_else(|_| device.write_front(LABEL_OFFSETS[0], bytes));
        written.map_err(Refused::by(device))?;
    }
    for device in devices {
        device.flush().map_err(Refused::by(device))?;
    }
    let mut failure = None;
    let mut confirmed: usize = 0;
    for (device, (bytes, size_bytes)) in devices.iter().zip(&encoded) {
        let second = device
            .write_front(LABEL_OFFSETS[1], bytes)
            .and_then(|()| device.flush());
        // A durable copy 1 alone puts the change in force, whatever becomes of the copy at the end.
        confirmed += usize::from(second.is_ok());
        let end = second.and_then(|()| {
            device.write_front(end_label_offset(*size_bytes), bytes)?;
            device.flush()
        });
        if let Err(error) = end {
            tracing::warn!(%error, "a label copy could not be written");
            failure = Some(error);
        }
    }
    match failure {
        Some(error) if confirmed == 0 => Err(Refused { device: None, error }),
        _ => Ok(confirmed == devices.len()),
    }
}

/// Ends an update that did not get through phase two on every device (power went, or one refused): copy 0 may be all that
/// a device has of the label in force, and the next update begins by writing over that.
fn finish_labels(devices: &[Arc<OpenDevice>], in_force: &Label) -> Result<(), Refused> {
    let mut buffer = AlignedBuffer::with_capacity(LABEL_BYTES);
    for device in devices {
        let own = Label {
            number: device.number,
            ..in_force.clone()
        };
        // One that joins has nothing to lose; one that was away keeps what tells of that until it has what is new.
        if own
            .own()
            .is_none_or(|own| matches!(own.presence, Presence::Absent { .. }))
        {
            continue;
        }
        let read = read_patiently(
            device.raw(),
            LABEL_OFFSETS[1],
            &mut buffer,
            LABEL_BYTES,
            Label::decode,
            |_| false,
        );
        let same = |found: &Label| found.generation == own.generation && found.pool_id == own.pool_id;
        if !matches!(read, Ok(Ok(found)) if same(&found)) {
            let bytes = own.encode().map_err(|error| Refused {
                device: None,
                error: PoolError::Invalid(error.to_string()),
            })?;
            // A device that cannot hold it can do no worse than before.
            if let Err(error) = device.write_front(LABEL_OFFSETS[1], &bytes) {
                tracing::warn!(%error, "a label copy that was left behind could not be written");
            }
        }
        // What can be read need not be durable: the process may have ended before its flush.
        device.flush().map_err(Refused::by(device))?;
    }
    Ok(())
}
