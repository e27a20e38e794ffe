//! Every call by which the content of a file changes, each leaving what a program needs to run as it was.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
};

use crate::support::aio::{Aio, aligned};

/// Bytes in front, which are the program.
pub const PROGRAM_BYTES: u64 = 64 << 10;
/// Zeroes behind, which it does not need.
pub const PADDING_BYTES: u64 = 128 << 10;

/// The call that leaves no program.
pub const EMPTYING: &str = "only an open with O_TRUNC";

/// A call, by its name.
#[derive(Clone, Copy)]
pub struct Call {
    pub name: &'static str,
    /// Linux takes no note of it.
    pub is_mapping: bool,
    pub make: fn(&Path) -> io::Result<()>,
}

const fn call(name: &'static str, make: fn(&Path) -> io::Result<()>) -> Call {
    Call {
        name,
        is_mapping: false,
        make,
    }
}

pub const CALLS: &[Call] = &[
    call("write", |path| change(path, 0, |file, data| file.write_all(data))),
    call("pwrite of a byte", |path| {
        change(path, 0, |file, data| file.write_all_at(&data[..1], 0))
    }),
    call("append", |path| {
        change(path, libc::O_APPEND, |file, _| file.write_all(b"\0"))
    }),
    call("O_SYNC", |path| {
        change(path, libc::O_SYNC, |file, data| file.write_all(data))
    }),
    call("O_DSYNC", |path| {
        change(path, libc::O_DSYNC, |file, data| file.write_all(data))
    }),
    call("O_DIRECT", |path| {
        change(path, libc::O_DIRECT, |file, data| file.write_all(aligned(data)))
    }),
    call("O_DIRECT, O_SYNC", |path| {
        change(path, libc::O_DIRECT | libc::O_SYNC, |file, data| {
            file.write_all(aligned(data))
        })
    }),
    call("libaio, O_DIRECT", |path| change(path, libc::O_DIRECT, submit)),
    call("pwritev2, RWF_DSYNC", |path| {
        change(path, 0, |file, data| {
            let part = [io::IoSlice::new(data)];
            // SAFETY: one part, of this length, which outlives the call.
            let written =
                unsafe { libc::pwritev2(file.as_raw_fd(), part.as_ptr().cast(), 1, 0, libc::RWF_DSYNC) };
            outcome(written)
        })
    }),
    call("sendfile", |path| {
        change(path, 0, |file, data| {
            let source = holding(data)?;
            // SAFETY: plain system call.
            outcome(unsafe {
                libc::sendfile(
                    file.as_raw_fd(),
                    source.as_raw_fd(),
                    std::ptr::null_mut(),
                    data.len(),
                )
            })
        })
    }),
    call("splice", |path| {
        change(path, 0, |file, data| {
            let (from, mut to) = io::pipe()?;
            to.write_all(data)?;
            let none = std::ptr::null_mut();
            // SAFETY: plain system call; both descriptors are open.
            outcome(unsafe { libc::splice(from.as_raw_fd(), none, file.as_raw_fd(), none, data.len(), 0) })
        })
    }),
    call("copy_file_range from itself", |path| {
        change(path, 0, |file, _| {
            let (mut from, mut to) = (PROGRAM_BYTES, PROGRAM_BYTES + 65_536);
            let copied = rustix::fs::copy_file_range(&*file, Some(&mut from), &*file, Some(&mut to), 8192)?;
            assert_eq!(copied, 8192);
            Ok(())
        })
    }),
    call("copy_file_range from another", |path| {
        let source = File::open(path.with_file_name("source"))?;
        change(path, 0, |file, _| {
            let (mut from, mut to) = (0, 0);
            let copied = rustix::fs::copy_file_range(&source, Some(&mut from), &*file, Some(&mut to), 5000)?;
            assert_eq!(copied, 5000);
            Ok(())
        })
    }),
    call("truncate to the same size", |path| {
        let path = rustix::path::Arg::into_c_str(path)?;
        // SAFETY: the path ends in a zero.
        outcome(unsafe { libc::truncate(path.as_ptr(), (PROGRAM_BYTES + PADDING_BYTES) as i64) } as isize)
    }),
    call("ftruncate, shorter", |path| {
        change(path, 0, |file, _| file.set_len(PROGRAM_BYTES + 5000))
    }),
    call("ftruncate, longer", |path| {
        change(path, 0, |file, _| file.set_len(PROGRAM_BYTES + 2 * PADDING_BYTES))
    }),
    call("open with O_TRUNC", |path| {
        let mut program = vec![0; (PROGRAM_BYTES + PADDING_BYTES) as usize];
        File::open(path.with_file_name("source"))?.read_exact(&mut program)?;
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(path)?
            .write_all(&program)
    }),
    call(EMPTYING, |path| {
        OpenOptions::new().write(true).truncate(true).open(path).map(drop)
    }),
    call("fallocate within", |path| fallocate(path, 0, PROGRAM_BYTES)),
    call("fallocate behind", |path| {
        fallocate(path, 0, PROGRAM_BYTES + PADDING_BYTES)
    }),
    call("fallocate within, KEEP_SIZE", |path| {
        fallocate(path, libc::FALLOC_FL_KEEP_SIZE, PROGRAM_BYTES)
    }),
    call("fallocate behind, KEEP_SIZE", |path| {
        fallocate(path, libc::FALLOC_FL_KEEP_SIZE, PROGRAM_BYTES + PADDING_BYTES)
    }),
    call("PUNCH_HOLE", |path| {
        fallocate(
            path,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            PROGRAM_BYTES,
        )
    }),
    call("PUNCH_HOLE behind", |path| {
        fallocate(
            path,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            PROGRAM_BYTES + PADDING_BYTES,
        )
    }),
    call("ZERO_RANGE", |path| {
        fallocate(path, libc::FALLOC_FL_ZERO_RANGE, PROGRAM_BYTES)
    }),
    call("ZERO_RANGE behind", |path| {
        fallocate(path, libc::FALLOC_FL_ZERO_RANGE, PROGRAM_BYTES + PADDING_BYTES)
    }),
    call("ZERO_RANGE, KEEP_SIZE", |path| {
        fallocate(
            path,
            libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
            PROGRAM_BYTES,
        )
    }),
    Call {
        name: "mmap",
        is_mapping: true,
        make: |path| {
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            // SAFETY: a mapping of our own, within the file, which nobody makes shorter.
            unsafe {
                let place = libc::mmap(
                    std::ptr::null_mut(),
                    4096,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED,
                    file.as_raw_fd(),
                    PROGRAM_BYTES as i64,
                );
                assert_ne!(place, libc::MAP_FAILED, "{}", io::Error::last_os_error());
                place.cast::<u8>().write_volatile(7);
                let synced = outcome(libc::msync(place, 4096, libc::MS_SYNC) as isize);
                libc::munmap(place, 4096);
                synced
            }
        },
    },
];

fn outcome(result: isize) -> io::Result<()> {
    match result < 0 {
        true => Err(io::Error::last_os_error()),
        false => Ok(()),
    }
}

/// Opens the file and has its first 8 KiB written to it again.
fn change(path: &Path, flags: i32, write: impl FnOnce(&mut File, &[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut data = vec![0; 8192];
    File::open(path)?.read_exact(&mut data)?;
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)?;
    write(&mut file, &data)
}

fn holding(data: &[u8]) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(data)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

fn fallocate(path: &Path, mode: i32, offset: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    // SAFETY: plain system call.
    outcome(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, 20_000) } as isize)
}

/// Writes at the start by io_submit.
fn submit(file: &mut File, data: &[u8]) -> io::Result<()> {
    let aio = Aio::new(1)?;
    aio.write(file, aligned(data), 0, 7)?;
    assert_eq!(aio.wait()?, (7, data.len() as u64));
    Ok(())
}
