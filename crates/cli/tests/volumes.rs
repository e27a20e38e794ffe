//! Volumes through the daemon: served over NBD and read back after kill -9, attached as loop devices with a filesystem
//! on them. Where loop devices cannot be made the test says so and checks that the error does too.

#![allow(clippy::unwrap_used)]

mod harness;

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use harness::{Machine, can_mount};
use serde_json::json;

/// The smallest NBD client: one request at a time, simple replies.
struct Client {
    stream: UnixStream,
    size: u64,
    flags: u16,
}

impl Client {
    fn connect(socket: &Path, export: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        let limit = Some(std::time::Duration::from_secs(60));
        stream.set_read_timeout(limit).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeroes; then NBD_OPT_EXPORT_NAME.
        let mut hello = 3_u32.to_be_bytes().to_vec();
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&1_u32.to_be_bytes());
        hello.extend_from_slice(&u32::try_from(export.len()).unwrap().to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        stream.write_all(&hello).unwrap();
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        Self {
            stream,
            size: u64::from_be_bytes(answer[..8].try_into().unwrap()),
            flags: u16::from_be_bytes(answer[8..].try_into().unwrap()),
        }
    }

    /// The preferred unit of a request that the server tells of an export; any smaller one is served too.
    fn block_bytes(socket: &Path, export: &str) -> u32 {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        let length = u32::try_from(export.len()).unwrap();
        // NBD_OPT_INFO for NBD_INFO_BLOCK_SIZE.
        let mut hello = b"\0\0\0\x03IHAVEOPT\0\0\0\x06".to_vec();
        hello.extend_from_slice(&(length + 8).to_be_bytes());
        hello.extend_from_slice(&length.to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        hello.extend_from_slice(&[0, 1, 0, 3]);
        stream.write_all(&hello).unwrap();
        loop {
            let mut header = [0; 20];
            stream.read_exact(&mut header).unwrap();
            let length = u32::from_be_bytes(header[16..].try_into().unwrap());
            let mut data = vec![0; length as usize];
            stream.read_exact(&mut data).unwrap();
            assert_eq!(header[12..16], 3_u32.to_be_bytes(), "no block size was told");
            if data[..2] == [0, 3] {
                assert_eq!(data[2..6], 1_u32.to_be_bytes());
                return u32::from_be_bytes(data[6..10].try_into().unwrap());
            }
        }
    }

    /// Sends a request and returns the error of its reply.
    fn ask(&mut self, kind: u16, offset: u64, length: usize, data: &[u8]) -> u32 {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend_from_slice(&0_u16.to_be_bytes());
        request.extend_from_slice(&kind.to_be_bytes());
        request.extend_from_slice(&7_u64.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
        request.extend_from_slice(data);
        self.stream.write_all(&request).unwrap();
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        assert_eq!(self.ask(0, offset, length, b""), 0);
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.ask(1, offset, data.len(), data)
    }

    fn flush(&mut self) {
        assert_eq!(self.ask(3, 0, 0, b""), 0);
    }
}

/// A pool with the volume `tank/vm`, 64 MiB.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["volume", "create", "tank/vm", "--size", "64M", "--sparse"]);
    machine
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ seed).collect()
}

#[test]
fn a_served_volume_comes_back_after_kill_9() {
    let machine = machine();
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
    let machine = machine();
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
    let machine = machine();
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
    let machine = machine();
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
    let machine = machine();
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
    let machine = machine();
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
    machine.ok(&["unserve", "tank/vm"]);
}

#[test]
fn blocks_of_512_bytes_on_request() {
    let machine = machine();
    machine.error(
        &[
            "volume",
            "create",
            "tank/odd",
            "--size",
            "8M",
            "--block-size",
            "1K",
        ],
        2,
    );
    machine.ok(&[
        "volume",
        "create",
        "tank/small",
        "--size",
        "8M",
        "--block-size",
        "512",
    ]);
    assert!(machine.ok(&["get", "block_size", "tank/small"]).contains("512"));
    machine.error(&["fs", "create", "tank/fs", "-o", "block_size=512"], 2);
    machine.error(&["set", "block_size=512", "tank"], 1);
    let socket = machine.path("s");
    machine.ok(&["set", "block_size=4K", "tank/small"]);
    machine.ok(&["serve", "tank/small", "--nbd", "unix:s"]);
    assert_eq!(Client::block_bytes(&socket, "tank/small"), 4096);
    // Not under those who count in them.
    for words in [
        &["set", "block_size=512", "tank/small"][..],
        &["inherit", "block_size", "tank/small"],
    ] {
        let line = machine.error(words, 1);
        assert!(
            line.contains("in use: served at") && line.contains("unserve"),
            "{line}"
        );
    }
    machine.ok(&["unserve", "tank/small"]);
    machine.ok(&["set", "block_size=512", "tank/small"]);
    machine.ok(&["serve", "tank/small", "--nbd", "unix:s"]);
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:s"]);
    assert_eq!(Client::block_bytes(&socket, "tank/small"), 512);
    assert_eq!(Client::block_bytes(&socket, "tank/vm"), 4096);

    // Two clients write neighbouring sectors of the same blocks: none undoes what the other wrote.
    std::thread::scope(|scope| {
        for half in 0..2_usize {
            let socket = &socket;
            scope.spawn(move || {
                let mut client = Client::connect(socket, "tank/small");
                for sector in (half..256).step_by(2) {
                    let data = [sector as u8; 512];
                    assert_eq!(client.write(sector as u64 * 512, &data), 0);
                }
                client.flush();
            });
        }
    });
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    let mut client = Client::connect(&socket, "tank/small");
    let content = client.read(0, 256 * 512);
    for (sector, data) in content.chunks(512).enumerate() {
        assert!(data.iter().all(|byte| *byte == sector as u8), "sector {sector}");
    }
    machine.ok(&["unserve", "tank/small"]);

    let attached = machine.run(&["attach", "tank/small", "--via", "loop"]);
    if !can_mount() || !attached.status.success() {
        eprintln!("skipped: no loop device can be had");
        return;
    }
    let _devices = Devices(&machine);
    let device = String::from_utf8(attached.stdout).unwrap().trim_end().to_owned();
    let name = Path::new(&device).file_name().unwrap().to_str().unwrap();
    let logical = format!("/sys/block/{name}/queue/logical_block_size");
    assert_eq!(fs::read_to_string(logical).unwrap().trim(), "512");
    machine.ok(&["detach", "tank/small"]);
}

#[test]
fn a_disk_of_a_virtual_machine_comes_back_after_kill_9() {
    let machine = machine();
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

fn runs(program: &str) -> bool {
    Command::new(program)
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

#[track_caller]
fn must(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {}: {}{}",
        words.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn backing_file(device: &str) -> Option<PathBuf> {
    let name = Path::new(device).file_name().unwrap();
    let place = Path::new("/sys/block").join(name).join("loop/backing_file");
    fs::read_to_string(place)
        .ok()
        .map(|text| PathBuf::from(text.trim_end()))
}

/// Whatever becomes of the test, no device of it stays.
struct Devices<'a>(&'a Machine);

impl Drop for Devices<'_> {
    fn drop(&mut self) {
        for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let device = Path::new("/dev").join(entry.file_name());
            let ours = backing_file(device.to_str().unwrap_or_default())
                .is_some_and(|file| file.starts_with(self.0.path("state")));
            if ours {
                let _ = Command::new("umount").arg("-l").arg(&device).status();
                let _ = Command::new("losetup").arg("-d").arg(&device).status();
            }
        }
    }
}

#[test]
fn a_filesystem_on_an_attached_volume() {
    let machine = machine();
    let reason = if !can_mount() {
        Some("FUSE cannot be used here")
    } else if fs::metadata("/dev/loop-control").is_err() {
        Some("there are no loop devices here")
    } else {
        None
    };
    let attached = machine.run(&["attach", "tank/vm", "--via", "loop"]);
    if !attached.status.success() || reason.is_some() {
        let text = String::from_utf8_lossy(&attached.stderr).into_owned();
        eprintln!(
            "skipped: {}: {text}",
            reason.unwrap_or("no loop device can be had")
        );
        assert!(text.starts_with("terrace: attach 'tank/vm': "), "{text}");
        assert_eq!(
            machine.json(&["status", "tank"])["datasets"][1]["attached"],
            json!([])
        );
        return;
    }
    let _devices = Devices(&machine);
    let device = String::from_utf8(attached.stdout).unwrap().trim_end().to_owned();
    let size = |device: &str| {
        let name = Path::new(device).file_name().unwrap().to_str().unwrap();
        let sectors = fs::read_to_string(format!("/sys/block/{name}/size")).unwrap();
        sectors.trim().parse::<u64>().unwrap() * 512
    };
    let link = machine.path("state/run/disk/tank/vm");
    assert!(device.starts_with("/dev/loop"), "{device}");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new(&device));
    assert_eq!(
        machine.ok(&["attach", "tank/vm", "--via", "loop"]).trim_end(),
        device
    );
    assert_eq!(size(&device), 64 << 20);
    assert_eq!(
        machine.json(&["status", "tank"])["datasets"][1]["attached"],
        json!([device])
    );

    // Written and flushed, then the daemon is killed: the device comes back under its name.
    let mut file = fs::OpenOptions::new().write(true).open(&device).unwrap();
    file.write_all(&pattern(9, 64 << 10)).unwrap();
    file.sync_all().unwrap();
    let line = machine.error(&["detach", &device], 1);
    let me = format!("open in process {}", std::process::id());
    assert!(line.contains("in use") && line.contains(&me), "{line}");
    assert!(machine.error(&["stop", "tank"], 1).contains("in use"));
    drop(file);
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    let again = machine
        .ok(&["attach", "tank/vm", "--via", "loop"])
        .trim_end()
        .to_owned();
    assert_eq!(fs::read_link(&link).unwrap(), Path::new(&again));
    let mut head = vec![0; 64 << 10];
    fs::File::open(&again).unwrap().read_exact(&mut head).unwrap();
    assert_eq!(head, pattern(9, 64 << 10));

    machine.ok(&["volume", "resize", "tank/vm", "96M"]);
    assert_eq!(size(&again), 96 << 20);
    let line = machine.error(&["rename", "tank/vm", "tank/other"], 1);
    assert!(line.contains("detach"), "{line}");

    machine.ok(&["detach", &again]);
    assert!(!link.exists() && backing_file(&again).is_none());
    assert!(machine.error(&["detach", "tank/vm"], 1).contains("not attached"));
    with_ext4(&machine);

    // A snapshot is there for reading alone.
    machine.ok(&["snapshot", "tank/vm@one"]);
    let past = machine
        .ok(&["attach", "tank/vm@one", "--via", "loop"])
        .trim_end()
        .to_owned();
    let flag = Path::new("/sys/block")
        .join(Path::new(&past).file_name().unwrap())
        .join("ro");
    assert_eq!(fs::read_to_string(flag).unwrap().trim(), "1");
    let written = fs::OpenOptions::new()
        .write(true)
        .open(&past)
        .and_then(|mut file| file.write_all(&[1; 4096]));
    assert!(written.is_err(), "a snapshot was written");
    let mut first = [0; 4096];
    fs::File::open(&past).unwrap().read_exact(&mut first).unwrap();
    machine.ok(&["stop", "tank"]);
    // Somebody else may have taken the number meanwhile.
    assert!(backing_file(&past).is_none_or(|file| !file.starts_with(machine.path("state"))));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        !mounts.contains(&machine.text("state")),
        "a mount is left: {mounts}"
    );
    machine.ok(&["start", "tank"]);
    assert_eq!(
        machine.json(&["status", "tank"])["datasets"][1]["attached"],
        json!([])
    );
    machine.ok(&["stop", "tank"]);
}

fn with_ext4(machine: &Machine) {
    if !runs("mkfs.ext4") || !runs("e2fsck") {
        eprintln!("skipped: there is no mkfs.ext4");
        return;
    }
    let device = machine
        .ok(&["attach", "tank/vm", "--via", "loop"])
        .trim_end()
        .to_owned();
    must("mkfs.ext4", &["-q", "-F", &device]);
    let place = machine.text("mnt");
    fs::create_dir(&place).unwrap();
    must("mount", &["-t", "ext4", &device, &place]);
    let mounted_on = fs::metadata(&place).unwrap().dev();
    assert_ne!(mounted_on, fs::metadata(machine.path("state")).unwrap().dev());
    fs::write(machine.path("mnt/file"), pattern(5, 3 << 20)).unwrap();
    let line = machine.error(&["detach", "tank/vm"], 1);
    assert!(line.contains(&format!("mounted on '{place}'")), "{line}");
    assert!(machine.error(&["stop", "tank"], 1).contains("in use"));
    must("umount", &[&place]);
    machine.ok(&["detach", &device]);
    let device = machine
        .ok(&["attach", "tank/vm", "--via", "loop"])
        .trim_end()
        .to_owned();
    must("e2fsck", &["-f", "-n", &device]);
    must("mount", &["-t", "ext4", "-o", "ro", &device, &place]);
    assert_eq!(fs::read(machine.path("mnt/file")).unwrap(), pattern(5, 3 << 20));
    must("umount", &[&place]);
    machine.ok(&["detach", "tank/vm"]);
}
