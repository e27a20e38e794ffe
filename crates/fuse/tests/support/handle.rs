//! File handles as programs have them: `name_to_handle_at` and `open_by_handle_at`.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

/// `struct file_handle` with as much room as a handle may take.
#[derive(Clone)]
#[repr(C, align(8))]
pub struct Handle {
    bytes: u32,
    kind: i32,
    content: [u8; 128],
}

impl Handle {
    /// Of what lies at `path`; a symbolic link is not followed.
    pub fn of(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut handle = Self {
            bytes: 128,
            kind: 0,
            content: [0; 128],
        };
        let mut mount = 0;
        // SAFETY: the path ends in a zero; the handle has the room that it says it has.
        let result = unsafe {
            libc::name_to_handle_at(
                libc::AT_FDCWD,
                path.as_ptr(),
                (&raw mut handle).cast(),
                &raw mut mount,
                0,
            )
        };
        match result {
            0 => Ok(handle),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Opens what it names, in the mount in which `root` is.
    pub fn open(&self, root: &File, flags: i32) -> io::Result<File> {
        let mut handle = self.clone();
        // SAFETY: a handle that the kernel made, or one of the same form; the result is a descriptor of our own.
        unsafe {
            match libc::open_by_handle_at(
                root.as_raw_fd(),
                (&raw mut handle).cast(),
                flags | libc::O_CLOEXEC,
            ) {
                -1 => Err(io::Error::last_os_error()),
                descriptor => Ok(File::from_raw_fd(descriptor)),
            }
        }
    }

    /// The error with which it cannot be opened.
    pub fn refusal(&self, root: &File) -> Option<i32> {
        self.open(root, libc::O_RDONLY).err()?.raw_os_error()
    }

    /// The same handle of another use of the number.
    pub fn of_another_generation(&self) -> Self {
        let mut other = self.clone();
        other.content[8] ^= 1;
        other
    }
}
