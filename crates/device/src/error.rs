//! What goes wrong on a device, in words that name the device, the operation, the place and the cause.

use std::{fmt, io};

/// What was being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Making the backing file or directory.
    Create,
    /// Opening it.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making writes durable.
    Flush,
    /// Giving a range back.
    Discard,
    /// Measuring, growing, cutting off.
    Resize,
}

impl Operation {
    fn words(self) -> &'static str {
        match self {
            Self::Create => "cannot create",
            Self::Open => "cannot open",
            Self::Read => "cannot read",
            Self::Write => "cannot write",
            Self::Flush => "cannot flush",
            Self::Discard => "cannot discard",
            Self::Resize => "cannot measure or resize",
        }
    }
}

/// Why it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The system said so; the value is an `errno`.
    System(i32),
    /// Another process holds the device.
    InUse,
    /// The range is not inside the device, whose size in bytes this is.
    OutOfRange {
        /// Size of the device in bytes.
        size_bytes: u64,
    },
    /// Offset or length is not a multiple of the block.
    Misaligned,
    /// The transfer ended early.
    Short,
    /// The device was opened for reading only.
    ReadOnly,
    /// An earlier flush failed, so that nothing written since can be trusted to be durable.
    FlushFailedBefore,
    /// The device is not there (missing, removed, power cut in a simulation).
    Gone,
    /// It was asked before and has not answered for too long: it is asked for nothing more until it does.
    NoAnswer,
    /// Anything else, in words that go on after a colon.
    Other(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(code) => write!(f, "{}", io::Error::from_raw_os_error(*code)),
            Self::InUse => f.write_str("it is in use by another process; stop that one first"),
            Self::OutOfRange { size_bytes } => write!(f, "outside of the device, which has {size_bytes} bytes"),
            Self::Misaligned => f.write_str("offset and length must be multiples of 4096"),
            Self::Short => f.write_str("the transfer ended early; was the backing file truncated?"),
            Self::ReadOnly => f.write_str("it was opened for reading only"),
            Self::FlushFailedBefore => f.write_str(
                "an earlier flush failed and what was written since may be lost; close and open the pool again",
            ),
            Self::Gone => f.write_str("the device is gone"),
            Self::NoAnswer => f.write_str("the device does not answer"),
            Self::Other(words) => f.write_str(words),
        }
    }
}

/// An operation on a device that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceError {
    /// Path of the device.
    pub device: String,
    /// What was being done.
    pub operation: Operation,
    /// Where, in bytes from the start of the device (0 where that means nothing).
    pub offset: u64,
    /// How much, in bytes (0 where that means nothing).
    pub length: u64,
    /// Why it failed.
    pub cause: Cause,
}

impl DeviceError {
    /// An error of an operation on the device as a whole.
    pub fn whole(device: impl Into<String>, operation: Operation, cause: Cause) -> Self {
        Self {
            device: device.into(),
            operation,
            offset: 0,
            length: 0,
            cause,
        }
    }

    /// An error of an operation on a range, in bytes.
    pub fn range(
        device: impl Into<String>,
        operation: Operation,
        offset: u64,
        length: u64,
        cause: Cause,
    ) -> Self {
        Self {
            device: device.into(),
            operation,
            offset,
            length,
            cause,
        }
    }

    /// Another process holds the device.
    pub fn is_in_use(&self) -> bool {
        self.cause == Cause::InUse
    }

    /// The `errno` that fits best.
    pub fn errno(&self) -> i32 {
        match self.cause {
            Cause::System(code) => code,
            Cause::InUse => libc::EBUSY,
            Cause::OutOfRange { .. } | Cause::Misaligned => libc::EINVAL,
            Cause::ReadOnly => libc::EROFS,
            Cause::Gone => libc::ENODEV,
            Cause::Short | Cause::FlushFailedBefore | Cause::NoAnswer | Cause::Other(_) => libc::EIO,
        }
    }
}

impl From<&io::Error> for Cause {
    fn from(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(code) => Self::System(code),
            None => Self::Other(error.to_string()),
        }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.operation.words(), self.device)?;
        if self.length != 0 {
            write!(f, " ({} bytes at offset {})", self.length, self.offset)?;
        }
        write!(f, ": {}", self.cause)?;
        if self.operation == Operation::Create && self.cause == Cause::System(libc::ENOENT) {
            f.write_str("; make the directory that it lies in first")?;
        }
        // The pool has room: it is what is under the device that has none.
        if matches!(self.operation, Operation::Write | Operation::Flush)
            && matches!(self.cause, Cause::System(libc::ENOSPC | libc::EDQUOT))
        {
            write!(
                f,
                "; free room on the filesystem that holds '{}', or give it more: what the device lies on is full",
                self.device
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for DeviceError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_filesystem_under_a_device_is_told_with_the_way_out() {
        let error = |operation, code| {
            DeviceError::range("/host/a.img", operation, 4096, 4096, Cause::System(code)).to_string()
        };
        let full = error(Operation::Write, libc::ENOSPC);
        assert!(
            full.contains("; free room on the filesystem that holds '/host/a.img'"),
            "{full}"
        );
        assert!(!error(Operation::Write, libc::EIO).contains(';'));
        assert!(!error(Operation::Discard, libc::ENOSPC).contains(';'));
    }
}
