//! `Control`: commands to the kernel about devices, through `/dev/ublk-control`; and whether that can be had here.
//!
//! Invariant: a command has ended before its call returns, whatever interrupts it, so that no memory of ours stays
//! with the kernel.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
    path::Path,
};

use io_uring::{opcode, squeue::Entry128, types::Fd};
use terrace_device::Uring;

use super::protocol::{ANY, CONTROL_PATH, Command, UPDATE_SIZE, control_bytes};
use crate::error::UblkError;

/// How it stands with ublk here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    /// It can be used.
    Usable {
        /// Whether a device can get another size while it is in use.
        resizes: bool,
    },
    /// The kernel has none, or its module is not loaded.
    Absent,
    /// It is there, and refused to us, for this reason.
    Refused(String),
}

/// See [`Availability`].
pub fn availability() -> Availability {
    if !Path::new(CONTROL_PATH).exists() {
        return Availability::Absent;
    }
    match Control::open() {
        Ok(control) => Availability::Usable {
            resizes: control.resizes(),
        },
        Err(error) => Availability::Refused(error.to_string()),
    }
}

/// See the module.
pub struct Control {
    file: File,
    /// What the kernel can do; older ones than 6.5 do not say.
    features: Option<u64>,
}

impl Control {
    /// Opens the control device, and asks what the kernel can do.
    pub fn open() -> Result<Self, UblkError> {
        let failed = |doing, cause| UblkError::new(doing, CONTROL_PATH, cause);
        let opened = OpenOptions::new().read(true).write(true).open(CONTROL_PATH);
        let mut control = Self {
            file: opened.map_err(|cause| failed("open", cause))?,
            features: None,
        };
        let mut features = [0; 8];
        let asked = control.send(Command::GetFeatures.code(true), ANY, &mut features, 0);
        match asked.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => control.features = Some(u64::from_ne_bytes(features)),
            // Linux 6.4 and older do not know the command.
            Err((Some(libc::ENODEV | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTTY), _)) => {}
            Err((_, error)) => return Err(failed("use", error)),
        }
        Ok(control)
    }

    /// Whether a device can get another size while it is used.
    pub fn resizes(&self) -> bool {
        self.features.is_some_and(|features| features & UPDATE_SIZE != 0)
    }

    /// Whether commands are numbered as ioctls are.
    pub fn like_ioctls(&self) -> bool {
        self.features.is_some()
    }

    /// Sends a command about a device and waits for its end. What the kernel has to say lies in `buffer`.
    pub fn call(&self, command: Command, device: u32, buffer: &mut [u8], data: u64) -> io::Result<()> {
        self.send(command.code(self.like_ioctls()), device, buffer, data)
    }

    fn send(&self, code: u32, device: u32, buffer: &mut [u8], data: u64) -> io::Result<()> {
        let mut ring = Uring::<Entry128>::shared(2)?;
        let length = u16::try_from(buffer.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let address = if buffer.is_empty() {
            0
        } else {
            buffer.as_mut_ptr() as u64
        };
        let entry = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), code)
            .cmd(control_bytes(device, address, length, data))
            .build();
        // SAFETY: the command points to `buffer` alone, which is ours and stays until the command has ended: it is
        // waited for below.
        unsafe { ring.push(&entry) }?;
        loop {
            ring.wait(None)?;
            if let Some((_, result)) = ring.completion() {
                return match result {
                    refused @ ..0 => Err(io::Error::from_raw_os_error(-refused)),
                    _ => Ok(()),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_no_device_nothing_is_promised() {
        let found = availability();
        if !Path::new(CONTROL_PATH).exists() {
            assert_eq!(found, Availability::Absent);
            assert!(Control::open().is_err_and(|error| error.to_string().contains(CONTROL_PATH)));
        }
    }
}
