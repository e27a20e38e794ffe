//! A size that changes under clients. The protocol has no word for it that clients know: whoever is connected is served by the new
//! size all the same, and whoever asks again is told.

#![allow(clippy::unwrap_used)]

use crate::harness;

use harness::{Client, Disk, MIB, serve};

/// The size in the answers to NBD_OPT_INFO or NBD_OPT_GO.
fn size_in(answers: &[(u32, Vec<u8>)]) -> u64 {
    let (_, export) = answers
        .iter()
        .find(|(kind, data)| *kind == 3 && data[..2] == [0, 0])
        .unwrap();
    u64::from_be_bytes(export[2..10].try_into().unwrap())
}

#[test]
fn who_is_connected_is_served_by_the_new_size_and_who_asks_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(MIB);
    let (server, path) = serve(dir.path(), &[("a", disk.clone())]);
    let mut client = Client::connect(&path);
    assert_eq!(size_in(&client.go("a")), MIB as u64);
    let resize = |bytes: usize| disk.content.lock().resize(bytes, 0);
    let mut ask = |command: u16, offset: usize, length: u32| {
        let payload = vec![9; if command == 1 { length as usize } else { 0 }];
        client.request(0, command, 5, offset as u64, length, &payload);
        client
            .simple_reply(if command == 0 { length as usize } else { 0 })
            .0
    };
    const ENOSPC: u32 = 28;
    const EINVAL: u32 = 22;
    assert_eq!(ask(1, MIB, 4096), ENOSPC);
    resize(2 * MIB);
    for command in [1, 0, 4, 6, 5] {
        assert_eq!(
            ask(command, 2 * MIB - 4096, 4096),
            0,
            "{command} in what was added"
        );
    }
    // One that looks around before it chooses sees it change.
    let mut looking = Client::connect(&path);
    let mut info = || {
        looking.option(6, &[0, 0, 0, 1, b'a', 0, 0]);
        let mut answers = Vec::new();
        while answers.last().is_none_or(|(kind, _)| *kind == 3) {
            answers.push(looking.option_reply());
        }
        size_in(&answers)
    };
    assert_eq!(info(), 2 * MIB as u64);
    resize(MIB / 2);
    assert_eq!(info(), MIB as u64 / 2);
    assert_eq!(size_in(&looking.go("a")), MIB as u64 / 2);
    // What was cut off is full, as a disk is that ends there: not broken.
    for (command, error) in [(1, ENOSPC), (6, ENOSPC), (0, EINVAL), (4, EINVAL), (5, EINVAL)] {
        assert_eq!(ask(command, MIB / 2, 4096), error, "{command} behind the end");
        assert_eq!(ask(command, MIB / 2 - 512, 1024), error, "{command} over the end");
        assert_eq!(ask(command, MIB / 2 - 4096, 4096), 0, "{command} before the end");
    }
    server.stop();
}
