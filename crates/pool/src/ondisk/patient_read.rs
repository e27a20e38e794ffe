//! Reading labels and roots: again, when it fails or gives something that makes no sense.
//!
//! Invariant: what is wrong once may be right the next time, and an opening draws far-reaching conclusions from what it
//! does not find (an older root, an older label), so nothing is given up after one look.

use terrace_device::{AlignedBuffer, Device, DeviceError};

/// How often a place is read before what is wrong there counts.
const READ_ATTEMPTS: usize = 3;

/// Reads `length` bytes at `offset` until `settle` has an answer, at most three times. An answer is `Ok`, or an `Err`
/// that `is_final` takes for one; the last one counts in any case.
pub(crate) fn read_patiently<T, E>(
    device: &dyn Device,
    offset: u64,
    buffer: &mut AlignedBuffer,
    length: usize,
    decode: impl Fn(&[u8]) -> Result<T, E>,
    is_final: impl Fn(&E) -> bool,
) -> Result<Result<T, E>, DeviceError> {
    let mut attempts = READ_ATTEMPTS;
    loop {
        attempts -= 1;
        match device.read_at(offset, buffer.reuse(length)) {
            Err(_) if attempts > 0 => {}
            Err(error) => return Err(error),
            Ok(()) => match decode(buffer) {
                Err(cause) if attempts > 0 && !is_final(&cause) => {}
                answer => return Ok(answer),
            },
        }
    }
}
