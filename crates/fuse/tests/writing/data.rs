//! What is written is read: in the middle, at the end, by many at once, with holes, mapped, direct, and as one volume.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Seek, SeekFrom, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
};

use super::content::{pattern, with_both};
use crate::support::with_mount;

#[test]
fn files_are_written_read_and_removed() {
    with_both(|mounted| {
        let path = mounted.path("file");
        for length in [0, 1, 4095, 4096, 70_000, 3 << 20] {
            let content = pattern(length, length);
            fs::write(&path, &content).unwrap();
            assert!(fs::read(&path).unwrap() == content, "{length} bytes");
            assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 0);
    });
}

#[test]
fn appending_truncating_and_writing_in_the_middle() {
    with_both(|mounted| {
        let path = mounted.path("log");
        let mut expected = Vec::new();
        let mut log = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        for line in 0..500 {
            let line = format!("line {line}\n");
            log.write_all(line.as_bytes()).unwrap();
            expected.extend_from_slice(line.as_bytes());
        }
        assert!(fs::read(&path).unwrap() == expected);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"MIDDLE", 1000).unwrap();
        expected[1000..1006].copy_from_slice(b"MIDDLE");
        file.set_len(2000).unwrap();
        expected.truncate(2000);
        assert!(fs::read(&path).unwrap() == expected);
        file.set_len(10_000).unwrap();
        expected.resize(10_000, 0);
        assert!(fs::read(&path).unwrap() == expected);
        assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
    });
}

#[test]
fn many_writers_append_without_overwriting_each_other() {
    with_both(|mounted| {
        let path = mounted.path("shared log");
        File::create(&path).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    let mut log = OpenOptions::new().append(true).open(path).unwrap();
                    for line in 0..200 {
                        log.write_all(format!("writer {writer} line {line:03}\n").as_bytes())
                            .unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        let lines: BTreeSet<_> = text.lines().collect();
        assert_eq!((text.lines().count(), lines.len()), (800, 800));
        assert!(lines.iter().all(|line| line.len() == "writer 0 line 000".len()));
    });
}

#[test]
fn files_have_holes_and_ranges_are_copied() {
    with_both(|mounted| {
        let path = mounted.path("sparse");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        file.write_all_at(&pattern(8192, 9), 1 << 20).unwrap();
        let mut start = vec![1; 4096];
        file.read_exact_at(&mut start, 4096).unwrap();
        assert!(start.iter().all(|&byte| byte == 0));
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 2 << 20, 4096).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (2 << 20) + 4096);
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 1 << 20, 4096).unwrap();
        let mut both = vec![1; 8192];
        file.read_exact_at(&mut both, 1 << 20).unwrap();
        assert!(both[..4096].iter().all(|&byte| byte == 0) && both[4096..] == pattern(8192, 9)[4096..]);
        let copy = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(mounted.path("copy"))
            .unwrap();
        let (mut from, mut to, mut left) = (0_u64, 0_u64, (2 << 20) + 4096);
        while left > 0 {
            let copied =
                rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), left).unwrap();
            assert!(copied > 0);
            left -= copied;
        }
        assert!(fs::read(mounted.path("copy")).unwrap() == fs::read(&path).unwrap());
    });
}

#[test]
fn holes_are_found() {
    with_mount("dataset", |mounted| {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(mounted.path("f"))
            .unwrap();
        file.write_all_at(&pattern(4096, 5), 1 << 20).unwrap();
        file.set_len(2 << 20).unwrap();
        let seek = |offset, data: bool| {
            let whence = if data { libc::SEEK_DATA } else { libc::SEEK_HOLE };
            // SAFETY: a plain system call on an open file.
            unsafe { libc::lseek(file.as_raw_fd(), offset, whence) }
        };
        assert_eq!((seek(0, true), seek(0, false)), (1 << 20, 0));
        assert_eq!(seek(1 << 20, false), (1 << 20) + 4096);
        assert_eq!(seek((1 << 20) + 4096, true), -1);
        file.seek(SeekFrom::Start(0)).unwrap();
    });
}

#[test]
fn a_mapped_file_is_read_and_written() {
    with_both(|mounted| {
        let path = mounted.path("mapped");
        fs::write(&path, pattern(20_000, 2)).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        // SAFETY: a new mapping of an open file; it is used within its length and unmapped below.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                20_000,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED);
        // SAFETY: the mapping is 20,000 bytes long, and no one else has a reference into it.
        let mapped = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), 20_000) };
        assert!(mapped == pattern(20_000, 2));
        mapped[5000..5010].copy_from_slice(b"by mapping");
        // SAFETY: the mapping made above.
        assert_eq!(unsafe { libc::msync(address, 20_000, libc::MS_SYNC) }, 0);
        let mut read = [0; 10];
        file.read_exact_at(&mut read, 5000).unwrap();
        assert_eq!(&read, b"by mapping");
        // SAFETY: the mapping made above; `mapped` is not used any more.
        assert_eq!(unsafe { libc::munmap(address, 20_000) }, 0);
    });
}

#[test]
fn direct_and_synchronous_writes() {
    with_both(|mounted| {
        let path = mounted.path("direct");
        let options = |flags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .custom_flags(flags)
                .open(&path)
        };
        let file = options(libc::O_DIRECT).unwrap();
        let mut space = vec![0_u8; 8192 + 4096];
        let start = space.as_ptr().align_offset(4096);
        let block = &mut space[start..start + 8192];
        block.copy_from_slice(&pattern(8192, 4));
        file.write_all_at(block, 4096).unwrap();
        block.fill(0);
        file.read_exact_at(block, 4096).unwrap();
        assert!(*block == pattern(8192, 4));
        options(libc::O_SYNC)
            .unwrap()
            .write_all_at(b"synchronous", 100)
            .unwrap();
        options(libc::O_DSYNC)
            .unwrap()
            .write_all_at(b"data", 200)
            .unwrap();
        let file = options(0).unwrap();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        File::open(mounted.path("")).unwrap().sync_all().unwrap();
        let mut read = [0; 11];
        file.read_exact_at(&mut read, 100).unwrap();
        assert_eq!(&read, b"synchronous");
    });
}

#[test]
fn a_volume_is_one_file_of_fixed_size() {
    with_mount("volume", |mounted| {
        let path = mounted.path("volume");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
            .unwrap();
        assert_eq!(file.metadata().unwrap().len(), 64 << 20);
        let mut space = vec![0_u8; (1 << 20) + 4096];
        let start = space.as_ptr().align_offset(4096);
        let part = &mut space[start..start + (1 << 20)];
        part.copy_from_slice(&pattern(1 << 20, 8));
        file.write_all_at(part, 3 << 20).unwrap();
        file.sync_all().unwrap();
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, (3 << 20) + 4096, 8192).unwrap();
        part.fill(1);
        file.read_exact_at(part, 3 << 20).unwrap();
        let mut expected = pattern(1 << 20, 8);
        expected[4096..4096 + 8192].fill(0);
        assert!(*part == expected);
        assert!(file.write_at(part, 64 << 20).is_err());
        assert!(file.set_len(1 << 20).is_err());
        assert!(fs::write(mounted.path("other"), b"x").is_err());
        assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 1);
    });
}
