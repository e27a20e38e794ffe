//! A client of our own against a server over a disk in RAM.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    io::{Read, Write},
    sync::{Arc, atomic::Ordering},
};

use harness::{Client, Disk, MIB, serve};
use parking_lot::Mutex;
use terrace_dataset::BlockDevice;

#[test]
fn what_is_written_is_read_and_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(4 * MIB);
    let (server, path) = serve(dir.path(), &[("a", disk.clone())]);
    let mut client = Client::connect(&path);
    assert_eq!(client.go("a").last().unwrap().0, 1);
    client.request(0, 1, 11, 8192, 4096, &[7; 4096]);
    assert_eq!(client.simple_reply(0), (0, 11, vec![]));
    client.request(0, 0, 12, 4096, 8192, &[]);
    let (error, cookie, content) = client.simple_reply(8192);
    assert_eq!((error, cookie), (0, 12));
    assert!(content[..4096].iter().all(|byte| *byte == 0) && content[4096..].iter().all(|byte| *byte == 7));
    client.request(1, 1, 13, 0, 512, &[9; 512]);
    assert_eq!(client.simple_reply(0).0, 0);
    assert_eq!(disk.flushes.load(Ordering::SeqCst), 1, "FUA flushes");
    client.request(0, 3, 14, 0, 0, &[]);
    assert_eq!(client.simple_reply(0).0, 0);
    assert_eq!(disk.flushes.load(Ordering::SeqCst), 2);
    client.request(0, 2, 15, 0, 0, &[]);
    server.stop();
    assert!(!path.exists());
}

#[test]
fn requests_outside_are_refused_and_the_connection_lives_on() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(MIB))]);
    let mut client = Client::connect(&path);
    client.go("a");
    client.request(0, 0, 1, MIB as u64 - 512, 1024, &[]);
    assert_eq!(client.simple_reply(0).0, 22);
    client.request(0, 1, 2, u64::MAX - 10, 512, &[0; 512]);
    assert_eq!(client.simple_reply(0).0, 28);
    client.request(0, 99, 3, 0, 512, &[]);
    assert_eq!(client.simple_reply(0).0, 22);
    client.request(0x80, 0, 4, 0, 512, &[]);
    assert_eq!(client.simple_reply(0).0, 22);
    client.request(0, 0, 5, 0, 512, &[]);
    assert_eq!(client.simple_reply(512).0, 0);
    server.stop();
}

#[test]
fn a_payload_beyond_the_limit_ends_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(MIB))]);
    let mut client = Client::connect(&path);
    client.go("a");
    client.request(0, 1, 1, 0, u32::MAX, &[]);
    assert_eq!(client.0.read(&mut [0; 16]).unwrap_or(0), 0);
    server.stop();
}

#[test]
fn a_read_only_export_says_so_and_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Disk {
        content: Mutex::new(vec![1; MIB]),
        read_only: true,
        ..Disk::default()
    });
    let (server, path) = serve(dir.path(), &[("a", disk)]);
    let mut client = Client::connect(&path);
    let replies = client.go("a");
    let flags = u16::from_be_bytes(replies[0].1[10..12].try_into().unwrap());
    assert_eq!(flags & 3, 3, "flags are there, and say read-only");
    // TRIM, WRITE_ZEROES, FAST_ZERO.
    assert_eq!(
        flags & (1 << 5 | 1 << 6 | 1 << 11),
        0,
        "what would be refused is not offered"
    );
    client.request(0, 1, 1, 0, 512, &[0; 512]);
    assert_eq!(client.simple_reply(0).0, 1);
    server.stop();
}

#[test]
fn structured_replies_and_block_status() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(MIB);
    disk.write(65536, &[5; 65536]).unwrap();
    let (server, path) = serve(dir.path(), &[("a", disk)]);
    let mut client = Client::connect(&path);
    client.option(8, &[]);
    assert_eq!(client.option_reply().0, 1);
    let mut query = 1u32.to_be_bytes().to_vec();
    query.push(b'a');
    query.extend(1u32.to_be_bytes());
    query.extend(15u32.to_be_bytes());
    query.extend(b"base:allocation");
    client.option(10, &query);
    assert_eq!(client.option_reply().0, 4);
    assert_eq!(client.option_reply().0, 1);
    client.go("a");
    client.request(0, 7, 42, 0, MIB as u32, &[]);
    let mut header = [0; 20];
    client.0.read_exact(&mut header).unwrap();
    assert_eq!(&header[..4], &0x668e_33efu32.to_be_bytes());
    assert_eq!(u16::from_be_bytes(header[6..8].try_into().unwrap()), 5);
    let mut content = vec![0; u32::from_be_bytes(header[16..].try_into().unwrap()) as usize];
    client.0.read_exact(&mut content).unwrap();
    let numbers: Vec<u32> = content
        .chunks(4)
        .map(|four| u32::from_be_bytes(four.try_into().unwrap()))
        .collect();
    assert_eq!(numbers, [1, 65536, 3, 65536, 0, (MIB - 131072) as u32, 3]);
    server.stop();
}

#[test]
fn lists_its_exports_and_refuses_unknown_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(MIB)), ("b", Disk::new(MIB))]);
    let mut client = Client::connect(&path);
    client.option(3, &[]);
    let names: Vec<_> = (0..2).map(|_| client.option_reply().1[4..].to_vec()).collect();
    assert_eq!(names, [b"a".to_vec(), b"b".to_vec()]);
    assert_eq!(client.option_reply().0, 1);
    assert_eq!(
        client.go("c"),
        [(0x8000_0006, b"there is no such export".to_vec())]
    );
    client.option(77, &[1, 2, 3]);
    assert_eq!(client.option_reply().0, 0x8000_0001);
    client.option(7, &[0xff; 9]);
    assert_eq!(client.option_reply().0, 0x8000_0003);
    client.option(2, &[]);
    assert_eq!(client.option_reply().0, 1);
    assert!(server.remove("a"));
    assert_eq!(server.exports(), ["b"]);
    server.stop();
}

#[test]
fn many_connections_in_flight_see_one_disk() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(4 * MIB);
    let (server, path) = serve(dir.path(), &[("a", disk.clone())]);
    std::thread::scope(|scope| {
        for lane in 0u64..4 {
            let path = &path;
            scope.spawn(move || {
                let mut client = Client::connect(path);
                client.go("a");
                for round in 0..64u64 {
                    client.request(
                        0,
                        1,
                        round,
                        lane * MIB as u64 + round * 4096,
                        4096,
                        &[lane as u8 + 1; 4096],
                    );
                }
                let mut seen: Vec<u64> = (0..64).map(|_| client.simple_reply(0).1).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..64).collect::<Vec<_>>(), "each request is answered once");
            });
        }
    });
    let content = disk.content.lock();
    for lane in 0..4 {
        assert!(
            content[lane * MIB..][..64 * 4096]
                .iter()
                .all(|byte| *byte == lane as u8 + 1)
        );
    }
    drop(content);
    server.stop();
}

#[test]
fn noise_ends_the_connection_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(MIB))]);
    for seed in 0..64u8 {
        let mut client = Client::connect(&path);
        let noise: Vec<u8> = (0..200u32).map(|i| blake3_like(seed, i)).collect();
        // The server may hang up before it has read everything.
        let _ = client.0.write_all(&noise);
        let _ = client.0.shutdown(std::net::Shutdown::Write);
        let _ = client.0.read_to_end(&mut Vec::new());
    }
    assert_eq!(Client::connect(&path).go("a").last().unwrap().0, 1);
    server.stop();
}

fn blake3_like(seed: u8, index: u32) -> u8 {
    (u32::from(seed)
        .wrapping_mul(2_654_435_761)
        .wrapping_add(index.wrapping_mul(40_503))
        >> 7) as u8
}

#[test]
fn long_reads_and_writes_go_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(8 * MIB);
    let (server, path) = serve(dir.path(), &[("a", disk.clone())]);
    let pattern: Vec<u8> = (0..5 * MIB + 512).map(|at| (at % 251) as u8).collect();
    let mut client = Client::connect(&path);
    client.go("a");
    client.request(1, 1, 1, 1024, pattern.len() as u32, &pattern);
    assert_eq!(client.simple_reply(0), (0, 1, vec![]));
    assert_eq!(disk.flushes.load(Ordering::SeqCst), 1, "FUA flushes once");
    client.request(0, 0, 2, 1024, pattern.len() as u32, &[]);
    assert!(client.simple_reply(pattern.len()).2 == pattern);
    // Refused, its payload is skipped and the next request is understood.
    client.request(0, 1, 3, 7 * MIB as u64, pattern.len() as u32, &pattern);
    assert_eq!(client.simple_reply(0), (28, 3, vec![]));

    // In structured replies the pieces say where they belong, the last one that it is the last.
    let mut client = Client::connect(&path);
    client.option(8, &[]);
    assert_eq!(client.option_reply().0, 1);
    client.go("a");
    client.request(0, 0, 4, 1024, pattern.len() as u32, &[]);
    let mut content = vec![0; pattern.len()];
    let mut left = pattern.len();
    while left > 0 {
        let mut header = [0; 28];
        client.0.read_exact(&mut header).unwrap();
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap()) as usize;
        let offset = u64::from_be_bytes(header[20..].try_into().unwrap()) as usize - 1024;
        let length = number(16) - 8;
        client
            .0
            .read_exact(&mut content[offset..offset + length])
            .unwrap();
        left -= length;
        assert_eq!((number(0), header[5] == 1), (0x668e_33ef, left == 0));
    }
    assert!(content == pattern);
    // A read that may not be split and is too long for one piece.
    client.request(4, 0, 5, 0, 2 * MIB as u32, &[]);
    let mut header = [0; 20];
    client.0.read_exact(&mut header).unwrap();
    assert_eq!(&header[6..8], &[0x80, 1]);
    let mut words = vec![0; u32::from_be_bytes(header[16..].try_into().unwrap()) as usize];
    client.0.read_exact(&mut words).unwrap();
    assert_eq!(words[..4], 75u32.to_be_bytes());
    server.stop();
}

/// A request and the 32 bytes of its reply's header, in extended form.
fn extended(
    client: &mut Client<std::os::unix::net::UnixStream>,
    words: (u16, u16),
    offset: u64,
    length: u64,
    payload: &[u8],
) -> (u16, Vec<u8>) {
    let mut message = 0x21e4_1c71u32.to_be_bytes().to_vec();
    message.extend(words.0.to_be_bytes());
    message.extend(words.1.to_be_bytes());
    message.extend(77u64.to_be_bytes());
    message.extend(offset.to_be_bytes());
    message.extend(length.to_be_bytes());
    message.extend(payload);
    client.0.write_all(&message).unwrap();
    let mut header = [0; 32];
    client.0.read_exact(&mut header).unwrap();
    assert_eq!(header[..4], 0x6e8a_278cu32.to_be_bytes());
    assert_eq!(header[4..6], [0, 1], "one chunk, the last");
    assert_eq!(header[8..16], 77u64.to_be_bytes());
    assert_eq!(header[16..24], offset.to_be_bytes());
    let mut content = vec![0; u64::from_be_bytes(header[24..].try_into().unwrap()) as usize];
    client.0.read_exact(&mut content).unwrap();
    (u16::from_be_bytes([header[6], header[7]]), content)
}

#[test]
fn extended_headers_carry_lengths_of_64_bits() {
    const SIZE: usize = 8 * MIB;
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(SIZE);
    disk.write(65536, &[5; 65536]).unwrap();
    let (server, path) = serve(dir.path(), &[("a", disk.clone())]);
    let mut client = Client::connect(&path);
    client.option(11, &[]);
    assert_eq!(client.option_reply().0, 1);
    for again in [8, 11] {
        client.option(again, &[]);
        assert_eq!(client.option_reply().0, 0x8000_0003);
    }
    let mut query = 1u32.to_be_bytes().to_vec();
    query.push(b'a');
    query.extend(1u32.to_be_bytes());
    query.extend(15u32.to_be_bytes());
    query.extend(b"base:allocation");
    client.option(10, &query);
    assert_eq!((client.option_reply().0, client.option_reply().0), (4, 1));
    client.go("a");
    assert_eq!(
        extended(&mut client, (0x20, 1), 4096, 4096, &[9; 4096]),
        (0, vec![])
    );
    let (kind, content) = extended(&mut client, (0, 0), 4096, 4096, &[]);
    assert_eq!(
        (kind, &content[..8], content.len()),
        (1, &4096u64.to_be_bytes()[..], 4104)
    );
    assert!(content[8..].iter().all(|byte| *byte == 9));
    // Zeroes, the hint to cache and the status of the whole disk, in one request each.
    assert_eq!(extended(&mut client, (0, 5), 0, SIZE as u64, &[]), (0, vec![]));
    let (kind, content) = extended(&mut client, (0, 7), 0, SIZE as u64, &[]);
    assert_eq!((kind, &content[..8]), (6, &[0, 0, 0, 1, 0, 0, 0, 5][..]));
    let numbers: Vec<u64> = content[8..]
        .chunks(8)
        .map(|eight| u64::from_be_bytes(eight.try_into().unwrap()))
        .collect();
    assert_eq!(
        numbers,
        [4096, 3, 4096, 0, 57344, 3, 65536, 0, SIZE as u64 - 131_072, 3]
    );
    assert_eq!(extended(&mut client, (0x10, 6), 0, SIZE as u64, &[]), (0, vec![]));
    assert!(disk.content.lock().iter().all(|byte| *byte == 0));
    // Longer than the disk, and a payload where none belongs: refused, and the connection lives on.
    let (kind, content) = extended(&mut client, (0, 4), 1, u64::MAX, &[]);
    assert_eq!((kind, &content[..4]), (0x8001, &22u32.to_be_bytes()[..]));
    let (kind, content) = extended(&mut client, (0x20, 7), 0, 12, &[0; 12]);
    assert_eq!((kind, &content[..4]), (0x8001, &22u32.to_be_bytes()[..]));
    assert_eq!(extended(&mut client, (0, 3), 0, 0, &[]), (0, vec![]));
    server.stop();
}

#[test]
fn contexts_hold_for_the_export_they_were_asked_of() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(MIB)), ("b", Disk::new(MIB))]);
    let mut client = Client::connect(&path);
    client.option(8, &[]);
    client.option_reply();
    let mut query = 1u32.to_be_bytes().to_vec();
    query.push(b'a');
    query.extend(1u32.to_be_bytes());
    query.extend(15u32.to_be_bytes());
    query.extend(b"base:allocation");
    client.option(10, &query);
    assert_eq!((client.option_reply().0, client.option_reply().0), (4, 1));
    client.go("b");
    client.request(0, 7, 1, 0, 4096, &[]);
    let mut header = [0; 20];
    client.0.read_exact(&mut header).unwrap();
    assert_eq!(&header[6..8], &[0x80, 1], "an error");
    server.stop();
}

#[test]
fn a_flush_covers_what_other_connections_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(MIB);
    let (server, path) = serve(dir.path(), &[("a", disk.clone())]);
    let (mut one, mut two) = (Client::connect(&path), Client::connect(&path));
    let flags = one.go("a")[0].1.clone();
    assert_eq!(flags[10] & 1, 1, "several connections are said to be fine");
    two.go("a");
    one.request(0, 1, 1, 0, 512, &[1; 512]);
    assert_eq!(one.simple_reply(0).0, 0);
    two.request(0, 3, 2, 0, 0, &[]);
    assert_eq!(two.simple_reply(0).0, 0);
    let durable = disk.durable.lock();
    assert!(durable[..512].iter().all(|byte| *byte == 1));
    drop(durable);
    server.stop();
}

#[test]
fn clients_that_take_no_answers_hold_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(16 * MIB))]);
    // Each asks for more than the memory of all, and takes nothing of it; some have sent half of a request.
    let mut silent: Vec<_> = (0..64)
        .map(|number| {
            let mut client = Client::connect(&path);
            client.go("a");
            for cookie in 0..16 {
                client.request(0, 0, cookie, 0, 16 * MIB as u32, &[]);
            }
            if number % 2 == 0 {
                client.request(0, 1, 99, 0, MIB as u32, &[1; 4096]);
            }
            client
        })
        .collect();
    let mut client = Client::connect(&path);
    client.go("a");
    client.request(0, 0, 1, MIB as u64, 2 * MIB as u32, &[]);
    assert_eq!(client.simple_reply(2 * MIB).0, 0);
    client.request(0, 1, 2, MIB as u64, 2 * MIB as u32, &vec![3; 2 * MIB]);
    assert_eq!(client.simple_reply(0).0, 0);
    // One of them wakes up, and is served as if nothing had been.
    assert_eq!(silent[1].simple_reply(16 * MIB).0, 0);
    server.stop();
}

#[test]
fn a_thousand_connections_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(MIB))]);
    // As many as descriptors allow: both ends are in this process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = limit
        .current
        .unwrap_or(u64::MAX)
        .min(limit.maximum.unwrap_or(u64::MAX));
    let count = 1000.min((most as usize).saturating_sub(64) / 2);
    assert!(count > 100, "{most} descriptors are too few to try");
    let mut clients: Vec<_> = (0..count).map(|_| Client::connect(&path)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.go("a");
        client.request(0, 1, 1, number as u64 * 512, 512, &[number as u8; 512]);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.simple_reply(0), (0, 1, vec![]));
        client.request(0, 0, 2, number as u64 * 512, 512, &[]);
        assert_eq!(client.simple_reply(512).2, [number as u8; 512]);
    }
    assert_eq!(server.clients(), count);
    server.stop();
}
