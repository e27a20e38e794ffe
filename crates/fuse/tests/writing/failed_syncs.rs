//! What could not be made durable is never answered as if it were: not to the call that asked, and not to a later one.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
};

use crate::support::{
    aio::{Aio, aligned},
    with_mount,
};

/// A way to ask for durability, by its name.
type Way = (&'static str, fn(&Path) -> io::Result<()>);

fn opened(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
}

fn written(path: &Path, flags: i32) -> io::Result<()> {
    opened(path, flags)?.write_all_at(aligned(&[7; 8192]), 0)
}

fn written_with(path: &Path, flag: i32) -> io::Result<()> {
    let file = opened(path, 0)?;
    let part = [io::IoSlice::new(b"content")];
    // SAFETY: one part, of this length, which outlives the call.
    outcome(unsafe { libc::pwritev2(file.as_raw_fd(), part.as_ptr().cast(), 1, 0, flag) })
}

fn outcome(result: isize) -> io::Result<()> {
    match result < 0 {
        true => Err(io::Error::last_os_error()),
        false => Ok(()),
    }
}

/// Those of a file of any kind.
const OF_FILES: &[Way] = &[
    ("fsync", |path| opened(path, 0)?.sync_all()),
    ("fdatasync", |path| opened(path, 0)?.sync_data()),
    ("O_DSYNC", |path| written(path, libc::O_DSYNC)),
    ("O_SYNC", |path| written(path, libc::O_SYNC)),
    ("O_DIRECT, O_DSYNC", |path| {
        written(path, libc::O_DIRECT | libc::O_DSYNC)
    }),
    ("RWF_DSYNC", |path| written_with(path, libc::RWF_DSYNC)),
    ("RWF_SYNC", |path| written_with(path, libc::RWF_SYNC)),
    ("libaio, O_DIRECT, O_DSYNC", |path| {
        let (file, aio) = (opened(path, libc::O_DIRECT | libc::O_DSYNC)?, Aio::new(1)?);
        aio.write(&file, aligned(&[8; 4096]), 0, 1)?;
        aio.wait().map(drop)
    }),
    ("msync", |path| {
        let file = opened(path, 0)?;
        // SAFETY: a mapping of its own, within the file, which nobody makes shorter.
        unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let start = libc::mmap(
                std::ptr::null_mut(),
                4096,
                rights,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            start.cast::<u8>().write_volatile(9);
            let synced = outcome(libc::msync(start, 4096, libc::MS_SYNC) as isize);
            libc::munmap(start, 4096);
            synced
        }
    }),
];

/// Each way fails while it must, each time, and works before and afterwards.
fn each_fails(ways: &[Way], path: &Path, mut fails: impl FnMut(&str)) {
    for what in ["flushes", "commits"] {
        for (name, way) in ways {
            way(path).unwrap_or_else(|error| panic!("{name} before: {error}"));
            // Something is left to be committed.
            written(path, 0).unwrap();
            fails(what);
            for time in 0..3 {
                match way(path) {
                    Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}, {what}"),
                    Ok(()) => panic!("{name} succeeds, time {time}, while {what} fail"),
                }
            }
            fails("nothing");
            way(path).unwrap_or_else(|error| panic!("{name} afterwards: {error}"));
        }
    }
}

#[test]
fn a_failed_sync_of_a_file_is_told_each_time() {
    with_mount("failing", |mounted| {
        let path = mounted.path("file");
        fs::write(&path, vec![1; 16384]).unwrap();
        each_fails(OF_FILES, &path, |what| {
            assert_eq!(mounted.ask(&format!("fail {what}")), "ok");
        });
    });
}

#[test]
fn a_failed_sync_of_a_directory_is_told_each_time() {
    with_mount("failing", |mounted| {
        fs::create_dir(mounted.path("directory")).unwrap();
        let path = mounted.path("directory/file");
        let ways: &[Way] = &[
            ("fsync of a directory", |path| {
                fs::write(path.with_extension("new"), b"new")?;
                File::open(path.parent().unwrap())?.sync_all()
            }),
            ("fdatasync of a directory", |path| {
                fs::remove_file(path.with_extension("new")).or(Ok::<_, io::Error>(()))?;
                File::open(path.parent().unwrap())?.sync_data()
            }),
        ];
        fs::write(&path, vec![1; 16384]).unwrap();
        each_fails(ways, &path, |what| {
            assert_eq!(mounted.ask(&format!("fail {what}")), "ok");
        });
    });
}

#[test]
fn a_failed_sync_of_a_volume_is_told_each_time() {
    with_mount("failing volume", |mounted| {
        let path = mounted.path("volume");
        each_fails(OF_FILES, &path, |what| {
            assert_eq!(mounted.ask(&format!("fail {what}")), "ok");
        });
    });
}

#[test]
fn what_was_asked_of_a_filesystem_is_what_it_answers() {
    // The server's part alone, on a filesystem that makes nothing good by itself.
    with_mount("memory", |mounted| {
        let path = mounted.path("file");
        fs::write(&path, vec![1; 16384]).unwrap();
        for (name, way) in OF_FILES {
            assert_eq!(mounted.ask("fail flushes"), "ok");
            let error = way(&path).expect_err(name);
            assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
            assert_eq!(mounted.ask("fail nothing"), "ok");
            way(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    });
}
