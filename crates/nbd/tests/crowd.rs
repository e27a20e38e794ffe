//! Many requests of one client at once, and many clients at once of which not all behave.

#![allow(clippy::unwrap_used)]

mod harness;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    sync::atomic::Ordering,
};

use harness::{Client, Disk, MIB, request, serve};

/// Small reads that come in one piece are asked for together; each has its own answer, also beside those that fail, and
/// what comes between them is served as always.
#[test]
fn reads_that_come_together_are_served_together() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(MIB);
    for (block, bytes) in disk.content.lock().chunks_mut(4096).enumerate() {
        bytes.fill(block as u8);
    }
    *disk.bad_block.lock() = Some(5);
    let (server, path) = serve(dir.path(), &[("a", disk.clone())]);
    let mut client = Client::connect(&path);
    client.go("a");
    let mut message = Vec::new();
    for cookie in 0..14u64 {
        message.extend(request(0, 0, cookie, cookie * 4096, 4096, &[]));
    }
    // Beyond the end, of no length, a write, half a block, and more than fits.
    message.extend(request(0, 0, 14, MIB as u64, 4096, &[]));
    message.extend(request(0, 0, 15, 0, 0, &[]));
    message.extend(request(0, 1, 16, 200 * 4096, 4096, &[7; 4096]));
    message.extend(request(0, 0, 17, 100 * 4096 + 512, 1024, &[]));
    for cookie in 18..60u64 {
        message.extend(request(0, 0, cookie, cookie * 4096, 4096, &[]));
    }
    client.0.write_all(&message).unwrap();
    let mut answers = BTreeMap::new();
    for _ in 0..60 {
        let mut header = [0; 16];
        client.0.read_exact(&mut header).unwrap();
        let error = u32::from_be_bytes(header[4..8].try_into().unwrap());
        let cookie = u64::from_be_bytes(header[8..].try_into().unwrap());
        let length = match cookie {
            _ if error != 0 => 0,
            16 => 0,
            17 => 1024,
            _ => 4096,
        };
        let mut content = vec![0; length];
        client.0.read_exact(&mut content).unwrap();
        assert!(
            answers.insert(cookie, (error, content)).is_none(),
            "request {cookie} has two answers"
        );
    }
    for (cookie, (error, content)) in answers {
        let expected = match cookie {
            5 => 5,
            14 | 15 => 22,
            _ => 0,
        };
        assert_eq!(error, expected, "request {cookie}");
        let value = if cookie == 17 { 100 } else { cookie as u8 };
        assert!(content.iter().all(|byte| *byte == value), "request {cookie}");
    }
    let together = disk.together.load(Ordering::SeqCst);
    assert!((2..=16).contains(&together), "{together} at once");
    server.stop();
}

/// Small writes that come in one piece, with reads, a flush and such as fail between them: all are done, each has one answer.
#[test]
fn writes_that_come_together_are_all_done() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(MIB);
    let (server, path) = serve(dir.path(), &[("a", disk.clone())]);
    let mut client = Client::connect(&path);
    client.go("a");
    let mut message = Vec::new();
    for cookie in 0..200u64 {
        let fill = [cookie as u8 + 1; 4096];
        match cookie % 20 {
            // Beyond the end, a read, made durable at once, a flush, half a block.
            3 => message.extend(request(0, 1, cookie, MIB as u64 - 512, 4096, &fill)),
            7 => message.extend(request(0, 0, cookie, 255 * 4096, 4096, &[])),
            11 => message.extend(request(1, 1, cookie, cookie * 4096, 4096, &fill)),
            13 => message.extend(request(0, 3, cookie, 0, 0, &[])),
            17 => message.extend(request(0, 1, cookie, cookie * 4096 + 512, 1024, &fill[..1024])),
            _ => message.extend(request(0, 1, cookie, cookie * 4096, 4096, &fill)),
        }
    }
    let mut sending = client.0.try_clone().unwrap();
    let sender = std::thread::spawn(move || sending.write_all(&message).unwrap());
    let mut answered = [false; 200];
    for _ in 0..200 {
        let mut header = [0; 16];
        client.0.read_exact(&mut header).unwrap();
        let error = u32::from_be_bytes(header[4..8].try_into().unwrap());
        let cookie = u64::from_be_bytes(header[8..].try_into().unwrap());
        assert_eq!(error, if cookie % 20 == 3 { 28 } else { 0 }, "request {cookie}");
        if cookie % 20 == 7 {
            let mut content = [1; 4096];
            client.0.read_exact(&mut content).unwrap();
            assert_eq!(content, [0; 4096]);
        }
        assert!(!std::mem::replace(&mut answered[cookie as usize], true));
    }
    sender.join().unwrap();
    assert_eq!(disk.flushes.load(Ordering::SeqCst), 20);
    let content = disk.content.lock();
    for cookie in 0..200usize {
        let block = &content[cookie * 4096..][..4096];
        let filled = |range: std::ops::Range<usize>| {
            block
                .iter()
                .enumerate()
                .all(|(at, byte)| *byte == if range.contains(&at) { cookie as u8 + 1 } else { 0 })
        };
        let right = match cookie % 20 {
            3 | 7 | 13 => filled(0..0),
            17 => filled(512..1536),
            _ => filled(0..4096),
        };
        assert!(right, "block {cookie}");
    }
    drop(content);
    server.stop();
}

/// A thousand clients: some say nothing, some stop in the middle of what they say, some ask for much and take nothing of
/// it. The others are served as if they were alone, and the threads that serve all are bounded.
#[test]
fn a_thousand_clients_of_which_not_all_behave() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(4 * MIB))]);
    // As many as descriptors allow: both ends are in this process, and the server leaves some for others.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = limit
        .current
        .unwrap_or(u64::MAX)
        .min(limit.maximum.unwrap_or(u64::MAX));
    let count = 1000.min((most as usize).saturating_sub(320) / 2);
    assert!(count > 100, "{most} descriptors are too few to try");
    let mut bad = Vec::new();
    let mut good = Vec::new();
    for number in 0..count {
        let mut client = Client::connect(&path);
        match number % 5 {
            // Has said nothing.
            0 => {}
            // Half of an option.
            1 => client.0.write_all(b"IHAVE").unwrap(),
            kind => {
                client.go("a");
                match kind {
                    // Half of a header, then half of a payload.
                    2 => client.0.write_all(&request(0, 0, 1, 0, 4096, &[])[..20]).unwrap(),
                    3 if number % 2 == 0 => client.request(0, 1, 1, 0, 1 << 20, &[1; 4096]),
                    3 => {
                        let many = (0..64).flat_map(|cookie| request(0, 0, cookie, 0, 4 * MIB as u32, &[]));
                        client.0.write_all(&many.collect::<Vec<u8>>()).unwrap();
                    }
                    _ => {
                        good.push((number, client));
                        continue;
                    }
                }
            }
        }
        bad.push(client);
    }
    for round in 0..4u8 {
        for (number, client) in &mut good {
            client.request(0, 1, 1, *number as u64 * 512, 512, &[round; 512]);
        }
        for (number, client) in &mut good {
            assert_eq!(client.simple_reply(0), (0, 1, vec![]));
            client.request(0, 0, 2, *number as u64 * 512, 512, &[]);
        }
        for (_, client) in &mut good {
            assert_eq!(client.simple_reply(512).2, [round; 512]);
        }
    }
    assert_eq!(server.clients(), count);
    // One for each client, those that all share beside them, and a few of the test itself.
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    assert!(threads <= count + 1024 + 32, "{threads} threads");
    server.stop();
    drop(bad);
}
