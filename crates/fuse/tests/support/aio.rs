//! `Aio`: writes that are submitted and not waited for (libaio's system calls).

use std::{fs::File, io, os::fd::AsRawFd};

/// `struct iocb`.
#[repr(C)]
#[derive(Default)]
struct Control {
    data: u64,
    key: u32,
    flags: u32,
    operation: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    more_flags: u32,
    event: u32,
}

const WRITE: u16 = 1;

/// See above.
pub struct Aio {
    context: u64,
}

impl Aio {
    /// For so many requests at a time.
    pub fn new(depth: u32) -> io::Result<Self> {
        let mut context = 0_u64;
        // SAFETY: the kernel writes one number.
        outcome(unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) })?;
        Ok(Self { context })
    }

    /// Begins to write `data` at `offset`; `tag` comes back with what becomes of it.
    pub fn write(&self, file: &File, data: &'static [u8], offset: u64, tag: u64) -> io::Result<()> {
        let mut control = Control {
            data: tag,
            operation: WRITE,
            file: file.as_raw_fd() as u32,
            buffer: data.as_ptr() as u64,
            bytes: data.len() as u64,
            offset: offset as i64,
            ..Control::default()
        };
        let mut list = [&raw mut control];
        // SAFETY: the kernel copies the control block; the data lives for ever.
        outcome(unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, list.as_mut_ptr()) })
    }

    /// Waits for one: its tag and the bytes written.
    pub fn wait(&self) -> io::Result<(u64, u64)> {
        // `struct io_event`.
        let mut event = [0_u64; 4];
        let none = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: there is room for the one event that is asked for.
        outcome(unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                1,
                1,
                event.as_mut_ptr(),
                none,
            )
        })?;
        match event[2] as i64 {
            written if written >= 0 => Ok((event[0], written as u64)),
            error => Err(io::Error::from_raw_os_error(-error as i32)),
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: plain system call.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn outcome(result: libc::c_long) -> io::Result<()> {
    match result < 0 {
        true => Err(io::Error::last_os_error()),
        false => Ok(()),
    }
}

/// Memory that a device can take data from. It lives for ever, since a request may outlive whoever made it.
pub fn aligned(data: &[u8]) -> &'static [u8] {
    let memory = Vec::leak(vec![0; data.len() + 4096]);
    let start = memory.as_ptr().align_offset(4096);
    let memory = &mut memory[start..start + data.len()];
    memory.copy_from_slice(data);
    memory
}
