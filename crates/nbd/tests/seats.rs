//! More clients than the process has descriptors for. Alone in its file: the limit is the whole process's.

#![allow(clippy::unwrap_used)]

mod harness;

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use harness::{
    Client, Disk, MIB,
    holding::{Holding, Release},
    serve,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connects and waits for the greeting; `None` if the server ends the connection instead.
fn greeted(path: &Path) -> Option<UnixStream> {
    let mut client = UnixStream::connect(path).unwrap();
    let mut greeting = [0; 18];
    client.read_exact(&mut greeting).ok().map(|()| client)
}

/// The same, however often one is turned away: those that make way may still be about to let go of their descriptors.
fn taken_in(path: &Path, silent: &mut Vec<UnixStream>) -> UnixStream {
    for _ in 0..100_000 {
        if let Some(client) = greeted(path) {
            return client;
        }
        close_all(silent);
        std::thread::yield_now();
    }
    panic!("nobody of {} makes way", silent.len());
}

/// Lets go of those whose connections were ended, from the first one on.
fn close_all(silent: &mut Vec<UnixStream>) {
    let is_ended = |client: &mut UnixStream| {
        client.set_nonblocking(true).unwrap();
        matches!(client.read(&mut [0]), Ok(0))
    };
    while silent.first_mut().is_some_and(is_ended) {
        silent.remove(0);
    }
}

/// Those that say nothing make way, the longest silent first; those that have an export stay, and take the last descriptors
/// from nobody.
#[test]
fn who_is_silent_makes_way_and_descriptors_are_left() {
    let limit = Rlimit {
        current: Some(200),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(MIB))]);
    let mut good = vec![Client::connect(&path)];
    good[0].go("a");
    // It has chosen, and is only being answered: it is none of those that say nothing, however many come meanwhile.
    let slow = Holding::about_itself(MIB);
    server.add("slow", slow.clone());
    let release = Release(&slow);
    let mut chosen = Client::connect(&path);
    chosen.option(7, b"\0\0\0\x04slow\0\0");
    slow.wait_for_reader();
    let mut silent = Vec::new();
    // Both ends are in this process: without making way there are no descriptors for as many.
    for _ in 0..120 {
        let client = taken_in(&path, &mut silent);
        silent.push(client);
        close_all(&mut silent);
    }
    assert!((40..90).contains(&silent.len()), "{} are left", silent.len());
    // Those that choose an export take the place of silent ones, until there are none.
    while !silent.is_empty() {
        let mut client = Client(taken_in(&path, &mut silent));
        client.0.write_all(&3u32.to_be_bytes()).unwrap();
        client.go("a");
        good.push(client);
        close_all(&mut silent);
    }
    // More than one may have made way for one of them. Then nobody is left who could.
    while let Some(stream) = greeted(&path) {
        let mut client = Client(stream);
        client.0.write_all(&3u32.to_be_bytes()).unwrap();
        client.go("a");
        good.push(client);
        assert!(good.len() < 90, "they take the last descriptors");
    }
    std::fs::File::open("/proc/self/status").unwrap();
    drop(release);
    while chosen.option_reply().0 == 3 {}
    good.push(chosen);
    for client in &mut good {
        client.request(0, 0, 1, 0, 512, &[]);
        assert_eq!(client.simple_reply(512).2, [0; 512]);
    }
    server.stop();
}
