//! A thread that keeps its turn at the socket beside what is answered soon gives it up for what takes long: that holds up nobody
//! else. Nor does what was received together with it.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    io::{Read, Write},
    time::Duration,
};

use harness::{
    Client, MIB,
    holding::{HELD, Holding, QUICK, Release, SLOW},
    request, serve,
};

#[test]
fn what_takes_long_holds_up_nobody_who_asks_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[]);
    let disk = Holding::new(MIB);
    server.add("a", disk.clone());
    let mut client = Client::connect(&path);
    client.go("a");
    let ask = |client: &mut Client<_>, offset| {
        client.request(0, 0, 5, offset, 4096, &[]);
        let (error, cookie, _) = client.simple_reply(4096);
        assert_eq!((error, cookie), (0, 5));
    };
    for _ in 0..100 {
        ask(&mut client, QUICK);
    }
    // Once some took longer, one that does not end holds up no other.
    for _ in 0..8 {
        ask(&mut client, SLOW);
    }
    client.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _release = Release(&disk);
    client.request(0, 0, 77, HELD, 4096, &[]);
    disk.wait_for_reader();
    for cookie in 0..3 {
        client.request(0, 0, cookie, QUICK, 4096, &[]);
        assert_eq!(client.simple_reply(4096).1, cookie);
    }
    disk.release();
    assert_eq!(client.simple_reply(4096).1, 77);
    server.stop();
}

#[test]
fn what_was_received_with_it_does_not_wait_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[]);
    let disk = Holding::new(MIB);
    server.add("a", disk.clone());
    let mut client = Client::connect(&path);
    client.go("a");
    client.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _release = Release(&disk);
    // Each too long to be served with the other.
    let held = request(0, 0, 77, HELD, 64 << 10, &[]);
    let other = request(0, 0, 78, 2 * QUICK, 64 << 10, &[]);
    client.0.write_all(&[held, other].concat()).unwrap();
    assert_eq!(client.simple_reply(64 << 10).1, 78);
    disk.release();
    assert_eq!(client.simple_reply(64 << 10).1, 77);
    // Who says farewell sees the end of the connection: it reaches all who wait for their turn.
    client.request(0, 2, 79, 0, 0, &[]);
    assert_eq!(client.0.read(&mut [0]).unwrap(), 0);
    server.stop();
}
