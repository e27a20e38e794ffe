//! Runs of small writes through rings are served by one thread, several at a time; everything else is not, and is not held up
//! by it.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod support;

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use support::{
    Mounted, Transport,
    memory::{HELD, Memory},
    with_mount_over,
};
use terrace_dataset::{Datasets, Environment, NewDataset};
use terrace_device::SystemClock;
use terrace_fuse::{Content, VolumeFile, clear_stale, mount};
use terrace_store::MemoryStore;

const BLOCK: usize = 4096;

#[test]
fn serve() {
    support::serve(|content, directory| {
        let content = match content {
            "gated" => Content::Live(Memory::gated()),
            quota => {
                let store = Arc::new(MemoryStore::new(1 << 30));
                let environment = Environment::new(store, Arc::new(SystemClock::new()));
                let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
                let new = NewDataset {
                    volume_bytes: Some(64 << 20),
                    sparse: true,
                    properties: vec![("quota".into(), quota.into())],
                    ..NewDataset::default()
                };
                datasets.create("pool/disk", &new).unwrap();
                Content::Live(VolumeFile::new(datasets.volume("pool/disk").unwrap()))
            }
        };
        mount(directory, content, None, &support::options("pool/disk"))
    })
}

/// Requests of a thread that stays on one processor all go to one of the kernel's queues.
fn stay_on_one_processor() {
    let mut allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|processor| allowed.is_set(*processor));
    allowed.clear();
    allowed.set(first.unwrap());
    rustix::thread::sched_setaffinity(None, &allowed).unwrap();
}

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options.custom_flags(libc::O_DIRECT).open(path).unwrap()
}

/// Calls `body` with a block of memory, filled with `byte`, that O_DIRECT takes.
fn with_block<T>(byte: u8, body: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut space = vec![byte; 2 * BLOCK];
    let start = space.as_ptr().align_offset(BLOCK);
    body(&mut space[start..start + BLOCK])
}

fn write_block(file: &File, number: u64, byte: u8) {
    with_block(byte, |block| {
        file.write_all_at(block, number * BLOCK as u64).unwrap()
    });
}

fn read_block(file: &File, number: u64) -> u8 {
    with_block(0, |block| {
        file.read_exact_at(block, number * BLOCK as u64).unwrap();
        assert!(block.iter().all(|byte| *byte == block[0]));
        block[0]
    })
}

fn number(mounted: &mut Mounted, question: &str) -> u64 {
    mounted.ask(question).parse().unwrap()
}

/// Writes one block again and again until so many entries wait together.
fn write_until_together(mounted: &mut Mounted, file: &File, entries: u64) {
    while number(mounted, "entries together") < entries {
        write_block(file, 0, 1);
    }
    // The last answer came from there as well, so that its entry is the one that the kernel uses next.
    write_block(file, 0, 1);
}

#[test]
fn a_run_of_small_writes_is_served_by_one_thread_until_something_else_is_asked() {
    with_mount_over(Transport::Rings, "none", |mounted| {
        stay_on_one_processor();
        let file = open(&mounted.path("volume"));
        write_until_together(mounted, &file, 1);
        let before = number(mounted, "writes together");
        (0..100).for_each(|at| write_block(&file, at, at as u8));
        assert_eq!(number(mounted, "writes together"), before + 100);
        // A read takes the entry with it, and so does a flush.
        assert_eq!(read_block(&file, 77), 77);
        assert_eq!(number(mounted, "entries together"), 0);
        (0..8).for_each(|at| write_block(&file, at, 9));
        assert_eq!(number(mounted, "writes together"), before + 100);
        write_until_together(mounted, &file, 1);
        file.sync_all().unwrap();
        assert_eq!(number(mounted, "entries together"), 0);
        write_until_together(mounted, &file, 1);
        let large = vec![3; 2 << 20];
        let large = &large[large.as_ptr().align_offset(BLOCK)..][..1 << 20];
        file.write_all_at(large, 0).unwrap();
        assert_eq!(number(mounted, "entries together"), 0);
        assert_eq!((read_block(&file, 1), read_block(&file, 255)), (3, 3));
        assert_eq!(read_block(&file, 256), 0);
    });
}

/// Under a quota each write looks for room first.
#[test]
fn what_may_have_to_wait_makes_no_run() {
    with_mount_over(Transport::Rings, "32M", |mounted| {
        stay_on_one_processor();
        let file = open(&mounted.path("volume"));
        (0..200).for_each(|at| write_block(&file, at, at as u8));
        assert_eq!(number(mounted, "writes together"), 0);
        assert_eq!(number(mounted, "entries together"), 0);
        assert!((0..200).all(|at| read_block(&file, at) == at as u8));
    });
}

#[test]
fn a_write_that_waits_does_not_hold_up_those_after_it() {
    with_mount_over(Transport::Rings, "gated", |mounted| {
        stay_on_one_processor();
        let (quick, held) = (open(&mounted.path("quick")), open(&mounted.path("held")));
        let hold = |mounted: &mut Mounted, held: &File| {
            assert_eq!(mounted.ask("close the gate"), "ok");
            let held = held.try_clone().unwrap();
            let thread = std::thread::spawn(move || write_block(&held, 0, HELD));
            while number(mounted, "held") == 0 {
                std::thread::yield_now();
            }
            thread
        };
        // While one entry is held, another comes to wait for small writes; then, with two writers, both do.
        let thread = hold(mounted, &held);
        write_until_together(mounted, &quick, 1);
        assert_eq!(mounted.ask("open the gate"), "ok");
        thread.join().unwrap();
        let is_enough = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = open(&mounted.path("other"));
            let is_enough = &is_enough;
            scope.spawn(move || {
                while !is_enough.load(Ordering::Relaxed) {
                    write_block(&other, 0, 2);
                }
            });
            write_until_together(mounted, &quick, 2);
            is_enough.store(true, Ordering::Relaxed);
        });
        // Now what is held comes to the thread that serves small writes.
        let thread = hold(mounted, &held);
        let before = number(mounted, "writes together");
        while number(mounted, "writes together") < before + 10 {
            write_block(&quick, 9, 7);
        }
        assert_eq!(number(mounted, "held"), 1);
        assert_eq!(mounted.ask("open the gate"), "ok");
        thread.join().unwrap();
        assert_eq!((read_block(&held, 0), read_block(&quick, 9)), (HELD, 7));
    });
}

/// Threads of the server that serve requests of a mount.
fn serving_threads(server: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{server}/task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with("fuse")).count()
}

/// They end: the mount has, and they are a moment behind.
fn wait_until_no_thread_serves(server: u32) {
    while serving_threads(server) > 0 {
        std::thread::yield_now();
    }
}

/// Calls `body` while several threads write without end, and some of that is served together; they end when they are refused.
fn under_load(mounted: &mut Mounted, body: impl FnOnce(&mut Mounted)) {
    let file = open(&mounted.path("volume"));
    let threads: Vec<_> = (0..4_u64)
        .map(|thread| {
            let file = file.try_clone().unwrap();
            std::thread::spawn(move || {
                with_block(thread as u8, |block| {
                    let places = (0..).map(|at| (thread * 256 + at % 256) * BLOCK as u64);
                    for at in places {
                        if file.write_all_at(block, at).is_err() {
                            return;
                        }
                    }
                });
            })
        })
        .collect();
    while number(mounted, "writes together") < 100 || number(mounted, "entries together") == 0 {}
    body(mounted);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_mount_is_taken_away_while_entries_wait_together() {
    with_mount_over(Transport::Rings, "none", |mounted| {
        let server = mounted.server_process();
        stay_on_one_processor();
        let file = open(&mounted.path("volume"));
        write_until_together(mounted, &file, 1);
        drop(file);
        assert_ne!(serving_threads(server), 0);
        mounted.unmount();
        assert_eq!(mounted.ask("ended"), "true");
        wait_until_no_thread_serves(server);
    });
}

#[test]
fn an_aborted_connection_ends_all_threads_under_load() {
    with_mount_over(Transport::Rings, "none", |mounted| {
        let server = mounted.server_process();
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root may abort a connection that is in use");
            return;
        }
        let directory = mounted.path("");
        under_load(mounted, |_| {
            // It stays mounted, as it is in use, but nothing is asked or answered any more.
            let _ = rustix::mount::unmount(&directory, rustix::mount::UnmountFlags::FORCE);
        });
        assert_eq!(mounted.ask("ended"), "true");
        wait_until_no_thread_serves(server);
    });
}

#[test]
fn a_server_is_killed_while_entries_wait_together() {
    let Some(mut mounted) = Mounted::start("none", Transport::Rings) else {
        return;
    };
    if mounted.ask("transport") != "rings" {
        println!("skipped: no requests through io_uring here");
        return;
    }
    let server = mounted.server_process();
    under_load(&mut mounted, |_| {
        // SAFETY: a plain system call; the process is a child that nobody has waited for.
        unsafe { libc::kill(server as i32, libc::SIGKILL) };
    });
    let directory = mounted.kill();
    assert!(clear_stale(directory.path()).unwrap());
    let mut again = Mounted::start_at("none", Transport::Rings, directory).unwrap();
    write_block(&open(&again.path("volume")), 0, 5);
    again.unmount();
}
