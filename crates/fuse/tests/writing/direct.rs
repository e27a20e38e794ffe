//! Writes past the kernel's page cache that are not waited for (libaio, O_DIRECT), beside those who read through it: once such a
//! write is done, nobody sees what was there before.

use std::{
    fs::{self, File, OpenOptions},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use crate::support::{
    aio::{Aio, aligned},
    memory::HELD,
    with_mount,
};

const PAGE: usize = 4096;

/// A file seen through a mapping.
struct Mapping {
    start: *const u8,
    bytes: usize,
}

impl Mapping {
    fn of(path: &Path, bytes: usize) -> Self {
        let file = File::open(path).unwrap();
        // SAFETY: a mapping of its own, of a file that nobody makes shorter while it is there.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        Self {
            start: start.cast(),
            bytes,
        }
    }

    fn byte(&self, at: usize) -> u8 {
        assert!(at < self.bytes);
        // SAFETY: within the mapping.
        unsafe { self.start.add(at).read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { libc::munmap(self.start.cast_mut().cast(), self.bytes) };
    }
}

fn direct(path: &Path) -> File {
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap()
}

fn read(file: &File, at: usize, length: usize) -> Vec<u8> {
    let mut buffer = vec![0; length];
    file.read_exact_at(&mut buffer, at as u64).unwrap();
    buffer
}

#[test]
fn what_was_read_beside_a_direct_write_does_not_stay_in_the_cache() {
    with_mount("gated", |mounted| {
        assert_eq!(mounted.ask("close the gate"), "ok");
        let path = mounted.path("file");
        fs::write(&path, vec![1; 4 * PAGE]).unwrap();
        let (writer, reader) = (direct(&path), File::open(&path).unwrap());
        let mapping = Mapping::of(&path, 4 * PAGE);
        let aio = Aio::new(1).unwrap();
        aio.write(&writer, aligned(&[HELD; 2 * PAGE]), 0, 0).unwrap();
        while mounted.ask("held") != "1" {
            std::thread::yield_now();
        }
        // It is under way, and has changed nothing yet.
        assert_eq!(read(&reader, 0, 4 * PAGE), [1; 4 * PAGE]);
        assert_eq!(mapping.byte(PAGE), 1);
        assert_eq!(mounted.ask("open the gate"), "ok");
        assert_eq!(aio.wait().unwrap(), (0, 2 * PAGE as u64));
        assert_eq!(mapping.byte(PAGE), HELD, "of the mapping");
        assert_eq!(read(&reader, 0, 2 * PAGE), [HELD; 2 * PAGE]);
        assert_eq!(read(&reader, 2 * PAGE, 2 * PAGE), [1; 2 * PAGE]);
    });
}

/// The number that a block was written with last.
fn number(block: &[u8]) -> u64 {
    u64::from_ne_bytes(block[..8].try_into().unwrap())
}

/// On a busy machine a page may be dropped a moment after the write is answered (decision 0085), and not never.
fn comes_true(is_so: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Has the readers end, however the test does.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn readers_through_the_cache_see_each_direct_write_once_it_is_done() {
    const BLOCKS: usize = 16;
    const ROUNDS: u64 = 40;
    with_mount("dataset", |mounted| {
        let path = mounted.path("file");
        fs::write(&path, vec![0; BLOCKS * PAGE]).unwrap();
        let writer = direct(&path);
        let done: [AtomicU64; BLOCKS] = std::array::from_fn(|_| AtomicU64::new(0));
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = Ending(&ended);
            for reader in 0..3 {
                let (path, done, ended) = (&path, &done, &ended);
                scope.spawn(move || {
                    let (file, mapping) = (File::open(path).unwrap(), Mapping::of(path, BLOCKS * PAGE));
                    let mut at = reader;
                    while !ended.load(Ordering::Relaxed) {
                        at = (at + 1) % BLOCKS;
                        let least = done[at].load(Ordering::Acquire);
                        let is_read = || number(&read(&file, at * PAGE, PAGE)) >= least;
                        assert!(
                            comes_true(is_read),
                            "block {at} is read as before {least} was written"
                        );
                        let is_mapped = || u64::from(mapping.byte(at * PAGE)) >= least;
                        assert!(
                            comes_true(is_mapped),
                            "block {at} is mapped as before {least} was written"
                        );
                    }
                });
            }
            let aio = Aio::new(BLOCKS as u32).unwrap();
            for round in 1..=ROUNDS {
                for block in 0..BLOCKS {
                    let mut data = vec![0; PAGE];
                    data[..8].copy_from_slice(&round.to_ne_bytes());
                    let offset = (block * PAGE) as u64;
                    aio.write(&writer, aligned(&data), offset, block as u64).unwrap();
                }
                for _ in 0..BLOCKS {
                    let (block, bytes) = aio.wait().unwrap();
                    assert_eq!(bytes, PAGE as u64);
                    done[block as usize].store(round, Ordering::Release);
                }
            }
            // And nothing old is left.
            let file = File::open(&path).unwrap();
            for block in 0..BLOCKS {
                let is_newest = || number(&read(&file, block * PAGE, PAGE)) == ROUNDS;
                assert!(comes_true(is_newest), "block {block}");
            }
        });
    });
}
