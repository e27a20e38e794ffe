//! A pool written by an earlier build, kept as compressed images: whatever the code becomes, it must open it, replay its log and
//! find everything. `docs/format.md` tells when new images are due.
//!
//! The same pool is made by this build as well, and must hold the same. With `TERRACE_STORE_IMAGES=1` in the environment its images
//! take the place of those that are kept.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{fs, os::unix::fs::symlink, path::PathBuf, sync::Arc};

use harness::{Machine, noise};
use terrace_device::{Device, FileDevice};
use terrace_pool::{OpenOptions, Pool};

/// The format versions that are read; the images are of the oldest.
const OLDEST: u8 = 3;
const NEWEST: u8 = 4;
const IMAGES: [&str; 2] = ["fast.img", "slow.img"];

fn stored(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/stored_pool")
        .join(format!("version-{OLDEST}-{name}.zst"))
}

/// Makes both roots of the stopped pool say this format version.
fn set_version(machine: &Machine, version: u8) {
    let open = |name: &&str| -> Arc<dyn Device> { Arc::new(FileDevice::open(&machine.path(name)).unwrap()) };
    let pool = Pool::open(IMAGES.iter().map(open).collect(), OpenOptions::default()).unwrap();
    let mut root = pool.read_root().unwrap().unwrap();
    root[0] = version;
    pool.write_root(&root).unwrap();
    pool.write_root(&root).unwrap();
}

fn text(lines: usize) -> String {
    (0..lines)
        .map(|line| format!("line {line} of a text\n"))
        .collect()
}

/// Makes the pool, in the oldest version. The daemon is killed at the end, so that there is a log to replay.
fn make(machine: &Machine) {
    machine.make_pool();
    machine.ok(&["stop", "tank"]);
    set_version(machine, OLDEST);
    let tree = machine.path("tree");
    fs::create_dir_all(tree.join("deep/deeper")).unwrap();
    fs::write(tree.join("noise"), noise(70_001, 1)).unwrap();
    fs::write(tree.join("blocks"), noise(81_920, 3)).unwrap();
    fs::write(tree.join("text"), text(20_000)).unwrap();
    fs::write(tree.join("deep/again"), text(20_000)).unwrap();
    fs::write(tree.join("deep/deeper/small"), "small").unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    symlink("deep/again", tree.join("link")).unwrap();
    fs::hard_link(tree.join("text"), tree.join("second")).unwrap();
    let holes = fs::File::create(tree.join("holes")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&holes, b"end", 5 << 20).unwrap();
    machine.ok(&["fs", "create", "tank/data"]);
    machine.ok(&["fs", "create", "tank/tight", "-o", "compression=zstd"]);
    machine.ok(&["put", "tank/data", "tree"]);
    machine.ok(&["put", "tank/tight", "tree"]);
    machine.ok(&["set", "user:note=kept", "tank/data"]);
    machine.ok(&["set", "quota=100M", "tank/tight"]);
    machine.ok(&["snapshot", "tank/data@before", "-m", "a note"]);
    // A clean stop and a start lie between, then changes that only the log has.
    machine.ok(&["stop", "tank"]);
    fs::write(tree.join("noise"), noise(40_000, 2)).unwrap();
    fs::write(tree.join("later"), "later").unwrap();
    machine.ok(&["put", "tank/data", "tree"]);
    machine.kill_daemon("tank");
}

#[test]
fn the_pool_that_is_stored_can_be_made_anew_and_opens_on_another_machine() {
    let (maker, machine) = (Machine::new(), Machine::new());
    make(&maker);
    for name in IMAGES {
        let image = fs::read(maker.path(name)).unwrap();
        if std::env::var_os("TERRACE_STORE_IMAGES").is_some_and(|value| value == "1") {
            fs::write(stored(name), zstd::encode_all(&image[..], 19).unwrap()).unwrap();
        }
        fs::write(machine.path(name), image).unwrap();
    }
    has_everything(&machine);
}

#[test]
fn a_pool_of_an_earlier_build_opens_with_everything_in_it() {
    let machine = Machine::new();
    unpack(&machine);
    has_everything(&machine);
}

fn unpack(machine: &Machine) {
    for name in IMAGES {
        let image = zstd::decode_all(&fs::read(stored(name)).unwrap()[..]).unwrap();
        fs::write(machine.path(name), image).unwrap();
    }
}

/// The version of the pool, as the status has it, and the newest.
fn versions(machine: &Machine) -> (u64, u64) {
    let status = machine.json(&["status", "tank"]);
    let version = |key: &str| status[key].as_u64().unwrap();
    (version("format_version"), version("newest_format_version"))
}

#[test]
fn a_stored_pool_keeps_its_version_until_it_is_upgraded() {
    let machine = Machine::new();
    unpack(&machine);
    machine.ok(&["pool", "import", "--search", &machine.text("")]);
    machine.run_with(&["put", "tank/data/one"], text(1000).as_bytes());
    machine.ok(&["stop", "tank"]);
    let listed = machine.json(&["pool", "upgrade"]);
    assert_eq!(listed[0]["format_version"], 3, "{listed}");
    assert_eq!(listed[0]["can_be_upgraded"], true, "{listed}");
    machine.run_with(&["put", "tank/data/two"], text(1000).as_bytes());
    assert_eq!(versions(&machine), (3, 4));
    assert!(machine.ok(&["status"]).contains("'terrace pool upgrade tank -n'"));

    let told = machine.ok(&["pool", "upgrade", "tank", "-n"]);
    assert!(
        told.contains("4: 'fallocate'") && told.contains("cannot open"),
        "{told}"
    );
    machine.error_last(&["pool", "upgrade", "tank"], 1);
    assert_eq!(versions(&machine), (3, 4));

    let done = machine.json(&["pool", "upgrade", "tank", "--yes"]);
    assert_eq!(
        (&done["format_version"], &done["upgraded"]),
        (&4.into(), &true.into())
    );
    assert!(!machine.ok(&["status"]).contains("pool upgrade"));
    assert!(machine.ok(&["events"]).contains("format version 4, before 3"));
    machine.run_with(&["put", "tank/data/three"], text(1000).as_bytes());
    machine.kill_daemon("tank");
    assert_eq!(versions(&machine), (4, 4));
    let again = machine.ok(&["pool", "upgrade", "tank"]);
    assert!(again.contains("the newest"), "{again}");
    for name in ["one", "two", "three"] {
        let content = machine.run(&["cat", &format!("tank/data/{name}")]).stdout;
        assert!(content == text(1000).as_bytes(), "{name}");
    }
    machine.ok(&["stop", "tank"]);
    assert_eq!(machine.json(&["verify", "tank"])["clean"], true);
}

#[test]
fn a_pool_of_a_version_that_is_not_read_is_refused_by_that_version() {
    for (version, words, known) in [
        (NEWEST + 1, "made by a newer terrace", "this one knows up to 4"),
        (
            OLDEST - 1,
            "from before the first release",
            "this terrace knows 3 and newer",
        ),
    ] {
        let machine = Machine::new();
        machine.make_pool();
        assert_eq!(versions(&machine), (4, 4));
        machine.ok(&["stop", "tank"]);
        set_version(&machine, version);
        for command in [
            &["start", "tank"][..],
            &["verify", "tank"],
            &["start", "tank", "--rewind", "-n"],
        ] {
            let error = machine.error_last(command, 1);
            let says = |words: &str| assert!(error.contains(words), "{command:?}: {error}");
            says(words);
            says(&format!(
                "version {}",
                if version > NEWEST { "is 5" } else { "2" }
            ));
            says(known);
            assert!(!error.contains("damaged"), "{error}");
        }
    }
}

/// As docs/format.md has them.
const ROOT_SLOTS: [u64; 4] = [256 << 10, 384 << 10, 512 << 10, 640 << 10];

#[test]
fn a_pool_whose_root_records_are_of_a_newer_terrace_is_called_that() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["stop", "tank"]);
    for name in IMAGES {
        let device = FileDevice::open(&machine.path(name)).unwrap();
        for slot in ROOT_SLOTS {
            let mut bytes = terrace_device::AlignedBuffer::zeroed(128 << 10);
            device.read_at(slot, &mut bytes).unwrap();
            bytes[8..12].copy_from_slice(&2u32.to_le_bytes());
            let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
            let Some(payload) = bytes.get(4096..4096 + length) else {
                continue;
            };
            let sum = blake3::hash(&[&bytes[..40], payload].concat());
            bytes[40..72].copy_from_slice(sum.as_bytes());
            device.write_at(slot, &bytes).unwrap();
        }
        device.flush().unwrap();
    }
    for command in [&["start", "tank"][..], &["verify", "tank"]] {
        let error = machine.error_last(command, 1);
        let says = |words: &str| assert!(error.contains(words), "{command:?}: {error}");
        says("made by a newer terrace");
        says("use the newer terrace");
        assert!(!error.contains("damaged"), "{error}");
    }
}

#[test]
fn a_pool_with_labels_from_before_the_first_release_is_called_that() {
    const LABEL_BYTES: usize = terrace_pool::LABEL_BYTES;
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["stop", "tank"]);
    for name in IMAGES {
        let mut image = fs::read(machine.path(name)).unwrap();
        for label in [0, LABEL_BYTES, image.len() - LABEL_BYTES] {
            let label = &mut image[label..label + LABEL_BYTES];
            label[8] = 1;
            let sum = blake3::hash(&label[..LABEL_BYTES - 32]);
            label[LABEL_BYTES - 32..].copy_from_slice(sum.as_bytes());
        }
        fs::write(machine.path(name), image).unwrap();
    }
    let directory = machine.text("");
    for command in [
        &["start", "tank"][..],
        &["start", "tank", "--degraded"],
        &["verify", "tank"],
        &["pool", "import", "--search", &directory],
        &["verify", "tank", "--rebuild", "other", "--search", &directory],
    ] {
        let error = machine.error_last(command, 1);
        let says = |words: &str| assert!(error.contains(words), "{command:?}: {error}");
        says("fast.img");
        says("from before the first release: its label has format version 1");
        says("copy its files");
    }
    let one = format!("only={}", machine.text("fast.img"));
    let error = machine.error_last(&["pool", "create", "other", "--tier", &one], 1);
    assert!(error.contains("a label of a Terrace pool"), "{error}");
}

/// The pool whose images lie there is imported, whole, and goes on.
fn has_everything(machine: &Machine) {
    let directory = machine.text("");
    machine.ok(&["pool", "import", "--search", &directory]);
    let report = machine.json(&["verify", "tank"]);
    assert_eq!(report["clean"], true, "{report}");

    let cat = |path: &str| machine.run(&["cat", path]).stdout;
    assert!(cat("tank/data/tree/noise") == noise(40_000, 2));
    assert!(cat("tank/data/tree/later") == b"later");
    let snapshot = machine.ok(&["get", "tank/data@before", "past"]);
    assert!(
        fs::read(machine.path("past/tree/noise")).unwrap() == noise(70_001, 1),
        "{snapshot}"
    );
    assert!(!machine.path("past/tree/later").exists());
    machine.ok(&["get", "tank/tight/tree", "tight"]);
    for (tree, first) in [("past/tree", 1), ("tight", 1)] {
        let tree = machine.path(tree);
        assert!(fs::read(tree.join("noise")).unwrap() == noise(70_001, first));
        assert!(fs::read(tree.join("blocks")).unwrap() == noise(81_920, 3));
        assert!(fs::read(tree.join("text")).unwrap() == text(20_000).as_bytes());
        assert!(fs::read(tree.join("second")).unwrap() == text(20_000).as_bytes());
        assert!(fs::read(tree.join("deep/again")).unwrap() == text(20_000).as_bytes());
        assert_eq!(fs::read(tree.join("deep/deeper/small")).unwrap(), b"small");
        assert_eq!(fs::read(tree.join("empty")).unwrap(), b"");
        assert_eq!(
            fs::read_link(tree.join("link")).unwrap().to_str(),
            Some("deep/again")
        );
        let mut holes = vec![0; 5 << 20];
        holes.extend_from_slice(b"end");
        assert!(fs::read(tree.join("holes")).unwrap() == holes);
    }
    let property = |name: &str, of: &str| machine.ok(&["get", name, of]);
    assert!(property("user:note", "tank/data").contains("kept"));
    assert!(property("quota", "tank/tight").contains("100M"));
    assert!(
        machine
            .ok(&["list", "-t", "snapshot"])
            .contains("tank/data@before")
    );
    // And it goes on from there.
    machine.ok(&["snapshot", "tank/data@after"]);
    machine.ok(&["destroy", "tank/data@before", "--yes"]);
    machine.ok(&["scrub", "tank", "--wait"]);
    machine.ok(&["stop", "tank"]);
    assert_eq!(machine.json(&["verify", "tank"])["clean"], true);
}
