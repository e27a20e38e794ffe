//! Volumes served through the daemon: over NBD and vhost-user, read back after kill -9, with TLS, at every rung of
//! durability.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use harness::{Machine, must, nbd::Client, pattern, runs};
use serde_json::json;

#[test]
fn a_served_volume_comes_back_after_kill_9() {
    let machine = Machine::with_volume();
    let socket = machine.path("nbd.sock");
    let address = format!("unix:{}", socket.display());
    let uri = machine.ok(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"]);
    assert_eq!(uri, format!("nbd+unix:///tank/vm?socket={}\n", socket.display()));
    // Asked again it stays.
    machine.ok(&["serve", "tank/vm", "--nbd", &address]);
    let line = machine.error(&["serve", "tank/vm", "--nbd", &address, "--ro"], 1);
    assert!(line.contains("unserve"), "{line}");
    let mut client = Client::connect(&socket, "tank/vm");
    assert_eq!(client.size, 64 << 20);
    let (one, two) = (pattern(1, 4096), pattern(2, 256 << 10));
    assert_eq!(client.write(12 << 20, &one), 0);
    assert_eq!(client.write(30 << 20, &two), 0);
    client.flush();
    assert_eq!(
        machine.json(&["status", "tank"])["datasets"][1]["served"],
        json!([address])
    );
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    let mut client = Client::connect(&socket, "tank/vm");
    assert_eq!(client.read(12 << 20, 4096), one);
    assert_eq!(client.read(30 << 20, 256 << 10), two);
    // The new size is seen by the next connection, which is said.
    let told = machine.ok(&["volume", "resize", "tank/vm", "80M"]);
    assert!(
        told.contains(&address) && told.contains("connect again"),
        "{told}"
    );
    assert_eq!(Client::connect(&socket, "tank/vm").size, 80 << 20);
    let line = machine.error(&["destroy", "tank/vm", "--yes"], 1);
    assert!(
        line.contains("in use: served at") && line.contains("unserve"),
        "{line}"
    );
    machine.ok(&["stop", "tank"]);
    assert!(!socket.exists());
    machine.ok(&["start", "tank"]);
    assert!(!socket.exists(), "stop forgets what is served");
    let line = machine.error(&["unserve", "tank/vm"], 1);
    assert!(line.contains("not served"), "{line}");
}

#[test]
fn snapshots_and_read_only_volumes_are_served_for_reading() {
    let machine = Machine::with_volume();
    let socket = machine.path("nbd.sock");
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"]);
    let mut client = Client::connect(&socket, "tank/vm");
    assert_eq!(client.flags & 2, 0, "may be written");
    assert_eq!(client.write(0, &pattern(1, 8192)), 0);
    machine.ok(&["snapshot", "tank/vm@one"]);
    assert_eq!(client.write(0, &pattern(2, 4096)), 0);
    // A second export at the same address.
    machine.ok(&["serve", "tank/vm@one", "--nbd", "unix:nbd.sock"]);
    let mut past = Client::connect(&socket, "tank/vm@one");
    assert_eq!((past.size, past.flags & 2), (64 << 20, 2));
    assert_eq!(past.read(0, 8192), pattern(1, 8192));
    assert_eq!(past.read(40 << 20, 4096), vec![0; 4096]);
    assert_eq!(past.write(0, &pattern(3, 4096)), 1, "EPERM");
    assert_eq!(client.read(0, 4096), pattern(2, 4096));
    let line = machine.error(&["destroy", "tank/vm@one", "--yes"], 1);
    assert!(line.contains("served"), "{line}");
    machine.ok(&["unserve", "tank/vm@one"]);
    assert_eq!(client.read(4096, 4), pattern(1, 8192)[4096..4100]);
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:ro.sock", "--ro"]);
    let mut reader = Client::connect(&machine.path("ro.sock"), "tank/vm");
    assert_eq!(reader.write(0, &[1; 4096]), 1);
    assert_eq!(reader.read(0, 4096), pattern(2, 4096));
    machine.ok(&["unserve", "tank/vm"]);
    assert!(!socket.exists() && !machine.path("ro.sock").exists());
}

#[test]
fn addresses_and_names_that_are_wrong_are_refused() {
    let machine = Machine::with_volume();
    let line = machine.error(&["serve", "tank/vm", "--nbd", "nonsense"], 2);
    assert!(line.contains("unix:PATH"), "{line}");
    machine.error(&["serve", "tank/vm"], 2);
    let line = machine.error(&["serve", "tank/vm", "--nbd", "unix:no/such/dir/s"], 1);
    assert!(line.contains("existing directory"), "{line}");
    machine.ok(&["fs", "create", "tank/fs"]);
    let line = machine.error(&["serve", "tank/fs", "--nbd", "unix:s"], 1);
    assert!(line.contains("filesystem"), "{line}");
    assert!(!machine.path("s").exists());
    machine.error(&["attach", "tank/fs"], 1);
    machine.error(&["attach", "tank/none"], 1);
    machine.error(&["attach", "tank/vm", "--via", "nonsense"], 2);
    // What is asked for by name is not replaced by something else. (scripts/ublk-guest.sh tries it where it is there.)
    if !Path::new("/dev/ublk-control").exists() {
        let line = machine.error(&["attach", "tank/vm", "--via", "ublk"], 1);
        assert!(
            line.contains("ublk cannot be used: there is no /dev/ublk-control"),
            "{line}"
        );
    }
    assert!(machine.error(&["detach", "tank/vm"], 1).contains("not attached"));
    machine.error(&["detach", "/dev/null"], 1);
    let tcp = machine.json(&["serve", "tank/vm", "--nbd", "tcp:127.0.0.1:0"]);
    let uri = tcp["uri"].as_str().unwrap();
    assert!(
        uri.starts_with("nbd://127.0.0.1:") && !uri.contains(":0/"),
        "{uri}"
    );
    let address = tcp["address"].as_str().unwrap().strip_prefix("tcp:").unwrap();
    std::net::TcpStream::connect(address).unwrap();
    let known = fs::read_to_string(machine.path("state/blocks/tank.json")).unwrap();
    assert!(
        known.contains(address) && !known.contains("tank/fs") && !known.contains("none"),
        "{known}"
    );
}

#[test]
fn the_ladder_of_durability_through_kill_9_and_stop() {
    let machine = Machine::with_volume();
    let socket = machine.path("nbd.sock");
    let rungs = ["ram", "timed", "barrier", "sync"];
    for rung in rungs {
        let (name, durability) = (format!("tank/{rung}"), format!("durability={rung}"));
        let options = ["--sparse", "-o", &durability, "-o", "commit_interval=1s"];
        let create = ["volume", "create", &name, "--size", "8M"];
        machine.ok(&[&create[..], &options].concat());
        machine.ok(&["serve", &name, "--nbd", "unix:nbd.sock"]);
    }
    let write = |rung: &str, seed: u8| {
        let mut client = Client::connect(&socket, &format!("tank/{rung}"));
        assert_eq!(client.write(4096, &pattern(seed, 8192)), 0);
        if rung != "sync" {
            client.flush();
        }
    };
    let holds = |rung: &str, seed: u8| {
        let mut client = Client::connect(&socket, &format!("tank/{rung}"));
        client.read(4096, 8192) == pattern(seed, 8192)
    };
    rungs.iter().for_each(|rung| write(rung, 1));
    // The loss window of 'timed' is over when the third tick from now begins: the first may have begun before the write,
    // and the number grows when a tick begins.
    let checkpoint = || machine.json(&["status", "tank"])["checkpoint"].as_u64().unwrap();
    let after = checkpoint() + 3;
    while checkpoint() < after {
        std::thread::yield_now();
    }
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    let kept: Vec<_> = rungs.iter().filter(|rung| holds(rung, 1)).collect();
    assert_eq!(kept, [&"timed", &"barrier", &"sync"], "'ram' is lost, as it says");
    let status = machine.ok(&["status", "tank"]);
    assert!(status.contains("tank/ram: kept in memory only"), "{status}");
    // A clean stop saves them all.
    rungs.iter().for_each(|rung| write(rung, 2));
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    for rung in rungs {
        machine.ok(&["serve", &format!("tank/{rung}"), "--nbd", "unix:nbd.sock"]);
        assert!(holds(rung, 2), "{rung}");
    }
}

#[test]
fn quotas_and_figures_like_those_of_filesystems() {
    let machine = Machine::with_volume();
    let socket = machine.path("nbd.sock");
    machine.ok(&["set", "quota=4M", "tank/vm"]);
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"]);
    let mut client = Client::connect(&socket, "tank/vm");
    let mut written = 0_u64;
    let refused = loop {
        match client.write(written, &pattern((written >> 18) as u8, 256 << 10)) {
            0 => written += 256 << 10,
            error => break error,
        }
        assert!(written <= 4 << 20, "more than the quota was taken");
    };
    assert_eq!((refused, written), (28, 4 << 20), "ENOSPC at the quota");
    // What is there may be written over, and what is given back may be used again.
    assert_eq!(client.ask(4, 0, 1 << 20, b""), 0);
    client.flush();
    assert_eq!(client.write(32 << 20, &pattern(7, 256 << 10)), 0);
    client.flush();
    let row = machine.json(&["list", "-t", "volume", "tank/vm"])[0].clone();
    let used = row["referenced_bytes"].as_u64().unwrap();
    assert_eq!(used, (3 << 20) + (256 << 10), "{row}");
    machine.ok(&["set", "quota=none", "tank/vm"]);
    assert_eq!(client.write(40 << 20, &pattern(8, 256 << 10)), 0);
    // Getting smaller is asked for twice.
    let line = machine.error(&["volume", "resize", "tank/vm", "16M"], 1);
    assert!(line.contains("lost") && line.contains("--yes"), "{line}");
    machine.ok(&["volume", "resize", "tank/vm", "16M", "--yes"]);
    assert_eq!(Client::connect(&socket, "tank/vm").size, 16 << 20);
    assert_eq!(client.ask(0, 40 << 20, 4096, b""), 22, "behind the new end");
}

/// The same installed image on two volumes; and the same system installed twice, where each filesystem writes an identity
/// of its own into its directories: there smaller chunks are needed, or every block of a directory costs 128 KiB.
#[test]
fn a_second_volume_with_the_same_system_takes_little_more() {
    if !runs("mkfs.ext4") {
        eprintln!("skipped: there is no mkfs.ext4");
        return;
    }
    let machine = Machine::new();
    machine.make_pool();
    let system = machine.path("system");
    let mut noise = 1_u64;
    for number in 0..300_usize {
        let directory = system.join(format!("directory{}", number % 12));
        fs::create_dir_all(&directory).unwrap();
        // Of sizes like those of a system's files, and not to be made smaller by compression.
        let length = [700, 3_000, 9_000, 40_000, 250_000][number % 5] + number * 13;
        let bytes = std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            (noise >> 40) as u8
        });
        let content: Vec<u8> = bytes.take(length).collect();
        fs::write(directory.join(format!("file{number}")), content).unwrap();
    }
    let socket = machine.path("nbd.sock");
    let stored = || {
        machine.json(&["status", "tank"])["stored_bytes"]
            .as_u64()
            .unwrap()
    };
    let install = |name: &str| {
        let image = machine.path(name);
        fs::File::create(&image).unwrap().set_len(48 << 20).unwrap();
        let (from, to) = (system.to_str().unwrap(), image.to_str().unwrap());
        // Blocks and inodes as on a disk of many gigabytes.
        let like_a_disk = ["-b", "4096", "-i", "16384", "-U", "random"];
        must(
            "mkfs.ext4",
            &[&["-q", "-F"][..], &like_a_disk, &["-d", from, to]].concat(),
        );
        fs::read(&image).unwrap()
    };
    let takes = |name: &str, options: &[&str], image: &[u8]| {
        let volume = format!("tank/{name}");
        let create = ["volume", "create", &volume, "--size", "48M", "--sparse"];
        machine.ok(&[&create[..], options].concat());
        machine.ok(&["serve", &volume, "--nbd", "unix:nbd.sock"]);
        let mut client = Client::connect(&socket, &volume);
        let before = stored();
        for (index, piece) in image.chunks(1 << 20).enumerate() {
            assert_eq!(client.write((index as u64) << 20, piece), 0);
        }
        client.flush();
        stored() - before
    };
    let image = install("image");
    let large = ["-o", "chunk_size=128K"];
    let (first, second) = (takes("one", &large, &image), takes("two", &large, &image));
    assert!(first > 15 << 20 && second * 20 < first, "{first}, then {second}");
    let first = takes("three", &[], &image);
    let second = takes("four", &[], &install("again"));
    assert!(first > 15 << 20 && second * 20 < first, "{first}, then {second}");
}

/// Writes a certificate that is its own authority, and its key.
fn certificate(machine: &Machine) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    fs::write(machine.path("cert.pem"), certificate.pem()).unwrap();
    fs::write(machine.path("key.pem"), key.serialize_pem()).unwrap();
}

#[test]
fn tls_is_demanded_and_comes_back_after_kill_9() {
    let machine = Machine::with_volume();
    certificate(&machine);
    let serve = ["serve", "tank/vm", "--nbd", "unix:tls.sock"];
    let with = |more: &[&'static str]| [&serve[..], more].concat();
    machine.error(&with(&["--tls-cert", "cert.pem"]), 2);
    machine.error(&with(&["--tls-ca", "cert.pem"]), 2);
    let line = machine.error(&with(&["--tls-cert", "cert.pem", "--tls-key", "none.pem"]), 1);
    assert!(line.contains("none.pem"), "{line}");
    let line = machine.error(&with(&["--tls-cert", "key.pem", "--tls-key", "key.pem"]), 1);
    assert!(line.contains("no certificate in PEM form"), "{line}");
    assert!(!machine.path("tls.sock").exists());

    let options = with(&[
        "--tls-cert",
        "cert.pem",
        "--tls-key",
        "key.pem",
        "--tls-ca",
        "cert.pem",
    ]);
    let uri = machine.ok(&options);
    let socket = machine.path("tls.sock");
    assert_eq!(uri, format!("nbds+unix:///tank/vm?socket={}\n", socket.display()));
    machine.ok(&options);
    // The same address, or the same volume, without TLS: nothing is opened behind its back.
    assert!(machine.error(&serve, 1).contains("unserve"));
    machine.ok(&["volume", "create", "tank/two", "--size", "1M", "--sparse"]);
    let line = machine.error(&["serve", "tank/two", "--nbd", "unix:tls.sock"], 1);
    assert!(line.contains("TLS"), "{line}");
    let demanded = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        let list = b"\0\0\0\x03IHAVEOPT\0\0\0\x03\0\0\0\0";
        stream.write_all(list).unwrap();
        let mut answer = [0; 20];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(
            answer[12..16],
            0x8000_0005_u32.to_be_bytes(),
            "NBD_REP_ERR_TLS_REQD"
        );
    };
    demanded();
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    demanded();
    // A renewed one that cannot be used is told until it is mended.
    let told = || {
        machine.json(&["status", "tank"])["warnings"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(told(), 0);
    let before = fs::read(machine.path("key.pem")).unwrap();
    fs::write(machine.path("key.pem"), "broken").unwrap();
    let status = machine.ok(&["status", "tank"]);
    let warning = status.lines().last().unwrap();
    assert!(
        warning.contains("warning: renew the certificate of unix:")
            && warning.contains("key.pem' holds no private key"),
        "{status}"
    );
    fs::write(machine.path("key.pem"), before).unwrap();
    assert_eq!(told(), 0);
    machine.ok(&["unserve", "tank/vm"]);
}

#[test]
fn a_disk_of_a_virtual_machine_comes_back_after_kill_9() {
    let machine = Machine::with_volume();
    machine.error(&["serve", "tank/vm", "--vhost-user", "a", "--nbd", "unix:b"], 2);
    let line = machine.error(&["serve", "tank/vm", "--vhost-user", "no/such/dir/s"], 1);
    assert!(line.contains("existing directory"), "{line}");
    let socket = machine.path("disk.sock");
    let told = machine.ok(&["serve", "tank/vm", "--vhost-user", "disk.sock"]);
    assert_eq!(told.trim_end(), socket.to_str().unwrap());
    machine.ok(&["serve", "tank/vm", "--vhost-user", "disk.sock"]);
    machine.ok(&["volume", "create", "tank/two", "--size", "1M", "--sparse"]);
    let line = machine.error(&["serve", "tank/two", "--vhost-user", "disk.sock"], 1);
    assert!(line.contains("nobody else listens"), "{line}");
    // VHOST_USER_GET_FEATURES is answered by whoever is there; VIRTIO_BLK_F_FLUSH is among them.
    let speaks = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        let mut answer = [0; 20];
        stream.read_exact(&mut answer).unwrap();
        let features = u64::from_le_bytes(answer[12..].try_into().unwrap());
        assert_ne!(features & 1 << 9, 0);
    };
    speaks();
    let address = format!("vhost-user:{}", socket.display());
    assert_eq!(
        machine.json(&["status", "tank"])["datasets"][2]["served"],
        json!([address])
    );
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    speaks();
    machine.ok(&["unserve", "tank/vm"]);
    assert!(!socket.exists());
}
