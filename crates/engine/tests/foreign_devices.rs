//! Devices that hold anything are refused by create, add and replace, by name, and not a byte of them changes; what is empty is taken.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use terrace_engine::{Engine, EngineError, OpenOptions, PoolSpec};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const SIZE: u64 = 16 * MIB;

/// A foreign image: what is said of it, and its bytes: from the start, or (negative) from the end.
type Image = (&'static str, &'static [(i64, &'static [u8])]);

const K: i64 = 1024;
const M: i64 = 1024 * K;

const IMAGES: &[Image] = &[
    (
        "a member of a Linux software RAID",
        &[(0, b"\xfc\x4e\x2b\xa9\x01\0\0\0")],
    ),
    (
        "a member of a Linux software RAID",
        &[(4 * K, b"\xfc\x4e\x2b\xa9\x01\0\0\0")],
    ),
    (
        "a member of a Linux software RAID",
        &[(-8 * K, b"\xfc\x4e\x2b\xa9\x01\0\0\0")],
    ),
    (
        "a member of a Linux software RAID",
        &[(-64 * K, b"\xfc\x4e\x2b\xa9\0\0\0\0")],
    ),
    (
        "a member of a Linux software RAID",
        &[(-64 * K, b"\xa9\x2b\x4e\xfc\0\0\0\0")],
    ),
    (
        "(mdadm) ('host:5')",
        &[(4 * K, b"\xfc\x4e\x2b\xa9\x01\0\0\0"), (4 * K + 32, b"host:5\0")],
    ),
    (
        "Intel firmware RAID",
        &[(-1024, b"Intel Raid ISM Cfg Sig. 1.3.00")],
    ),
    ("firmware RAID (DDF)", &[(-512, b"\xde\x11\xde\x11")]),
    ("LSI MegaRAID", &[(-512, b"$XIDE$")]),
    ("NVIDIA RAID", &[(-1024, b"NVIDIA  ")]),
    (
        "Promise FastTrak RAID",
        &[(-63 * 512, b"Promise Technology, Inc.")],
    ),
    ("a member of a ZFS pool", &[(128 * K, b"\x0c\xb1\xba\0\0\0\0\0")]),
    ("a member of a ZFS pool", &[(128 * K, b"\0\0\0\0\0\xba\xb1\x0c")]),
    (
        "a member of a ZFS pool",
        &[(-256 * K + 128 * K, b"\x0c\xb1\xba\0\0\0\0\0")],
    ),
    (
        "a member of a ZFS pool ('rpool')",
        &[
            (
                16 * K + 4,
                b"\0\0\0\x04name\0\0\0\x09\0\0\0\x01\0\0\0\x05rpool\0\0\0",
            ),
            (132 * K, b"\x0c\xb1\xba\0\0\0\0\0"),
        ],
    ),
    (
        "a physical volume of LVM",
        &[(512, b"LABELONE\x01\0\0\0\0\0\0\0"), (536, b"LVM2 001")],
    ),
    ("a physical volume of LVM", &[(1536, b"LABELONE")]),
    ("a LUKS1 volume", &[(0, b"LUKS\xba\xbe\0\x01")]),
    (
        "a LUKS2 volume ('vault')",
        &[(0, b"LUKS\xba\xbe\0\x02"), (24, b"vault\0")],
    ),
    (
        "a LUKS volume with a damaged first header",
        &[(16 * K, b"SKUL\xba\xbe\0\x02")],
    ),
    (
        "a LUKS volume with a damaged first header",
        &[(4 * M, b"SKUL\xba\xbe\0\x02")],
    ),
    (
        "a BitLocker volume",
        &[(0, b"\xeb\x58\x90-FVE-FS-"), (510, b"\x55\xaa")],
    ),
    (
        "a bcache device",
        &[(
            4 * K + 24,
            b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        )],
    ),
    (
        "a bcachefs filesystem",
        &[(
            4 * K + 24,
            b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        )],
    ),
    ("a Ceph BlueStore device", &[(0, b"bluestore block device\n")]),
    (
        "a device of a Stratis pool",
        &[(516, b"!Stra0tis\x86\xff\x02^Arh")],
    ),
    ("DRBD metadata", &[(-4 * K + 60, b"\x83\x74\x02\x6b")]),
    ("DRBD metadata", &[(-4 * K + 60, b"\x83\x74\x02\x6d")]),
    ("a VDO volume", &[(0, b"dmvdo001")]),
    ("a dm-integrity device", &[(0, b"integrt\0")]),
    ("a dm-verity hash device", &[(0, b"verity\0\0")]),
    ("a device-mapper snapshot", &[(0, b"SnAp")]),
    ("an Oracle ASM disk", &[(32, b"ORCLDISK")]),
    ("a VMFS volume", &[(M, b"\x0d\xd0\x01\xc0")]),
    ("a VMFS volume", &[(2 * M, b"\x5e\xf1\xab\x2f")]),
    (
        "an XFS filesystem ('data')",
        &[(0, b"XFSB\0\0\x10\0"), (0x6c, b"data\0")],
    ),
    ("an external XFS log", &[(0, b"\xfe\xed\xba\xbe")]),
    (
        "a Btrfs filesystem ('tree')",
        &[(64 * K + 64, b"_BHRfS_M"), (64 * K + 0x12b, b"tree\0")],
    ),
    ("an F2FS filesystem", &[(K, b"\x10\x20\xf5\xf2")]),
    (
        "an exFAT filesystem",
        &[(0, b"\xeb\x76\x90EXFAT   "), (510, b"\x55\xaa")],
    ),
    (
        "an NTFS filesystem",
        &[(0, b"\xeb\x52\x90NTFS    "), (510, b"\x55\xaa")],
    ),
    ("a ReFS filesystem", &[(0, b"\0\0\0ReFS\0")]),
    (
        "a FAT filesystem ('STICK')",
        &[(82, b"FAT32   "), (71, b"STICK      "), (510, b"\x55\xaa")],
    ),
    ("a FAT filesystem", &[(54, b"FAT16   "), (510, b"\x55\xaa")]),
    (
        "an HPFS filesystem",
        &[(8 * K, b"\x49\xe8\x95\xf9\xc5\xe9\x53\xfa")],
    ),
    ("swap space", &[(4086, b"SWAPSPACE2")]),
    (
        "swap space ('pages', 64K)",
        &[(65526, b"SWAPSPACE2"), (1052, b"pages\0")],
    ),
    ("a hibernated system", &[(4086, b"S1SUSPEND")]),
    ("a ReiserFS filesystem", &[(64 * K + 52, b"ReIsEr2Fs")]),
    ("a Reiser4 filesystem", &[(64 * K, b"ReIsEr4")]),
    ("a JFS filesystem", &[(32 * K, b"JFS1")]),
    ("a GFS2 filesystem", &[(64 * K, b"\x01\x16\x19\x70")]),
    ("an OCFS2 filesystem", &[(8 * K, b"OCFSV2")]),
    ("an APFS container", &[(32, b"NXSB")]),
    ("an HFS+ filesystem", &[(K, b"H+\0\x04")]),
    ("an HFSX filesystem", &[(K, b"HX\0\x05")]),
    ("a SquashFS filesystem", &[(0, b"hsqs")]),
    ("an EROFS filesystem", &[(K, b"\xe2\xe1\xf5\xe0")]),
    ("a cramfs filesystem", &[(0, b"\x45\x3d\xcd\x28")]),
    ("a romfs filesystem", &[(0, b"-rom1fs-")]),
    ("a UBI volume", &[(0, b"UBI#")]),
    ("a UBIFS filesystem", &[(0, b"\x31\x18\x10\x06")]),
    ("a zonefs filesystem", &[(0, b"SFOZ")]),
    ("a VxFS filesystem", &[(K, b"\xf5\xfc\x01\xa5")]),
    ("a UFS filesystem", &[(8 * K + 0x55c, b"\x54\x19\x01\0")]),
    ("a UFS filesystem", &[(64 * K + 0x55c, b"\x19\x01\x54\x19")]),
    ("a BeFS filesystem", &[(544, b"1SFB")]),
    (
        "an ISO 9660 filesystem ('DEBIAN')",
        &[(32 * K, b"\x01CD001\x01"), (32 * K + 40, b"DEBIAN  ")],
    ),
    ("a UDF filesystem", &[(32 * K, b"\0BEA01"), (34 * K, b"\0NSR03")]),
    (
        "a qcow2 image of a virtual disk (1G)",
        &[(0, b"QFI\xfb\0\0\0\x03"), (24, b"\0\0\0\0\x40\0\0\0")],
    ),
    ("a QED image", &[(0, b"QED\0")]),
    ("a VMDK image", &[(0, b"KDMV\x01\0\0\0")]),
    ("a VMDK image", &[(0, b"# Disk DescriptorFile\n")]),
    (
        "a VDI image",
        &[
            (0, b"<<< Oracle VM VirtualBox Disk Image >>>\n"),
            (64, b"\x7f\x10\xda\xbe"),
        ],
    ),
    ("a VHDX image", &[(0, b"vhdxfile")]),
    ("a VHD image", &[(-512, b"conectix")]),
    ("a Parallels image", &[(0, b"WithoutFreeSpace")]),
    ("a DMG image", &[(-512, b"koly")]),
    ("a tar archive", &[(0, b"etc/passwd\0"), (257, b"ustar\x0000")]),
    ("a zip archive", &[(0, b"PK\x03\x04")]),
    ("a 7z archive", &[(0, b"7z\xbc\xaf\x27\x1c")]),
    ("a RAR archive", &[(0, b"Rar!\x1a\x07\x01\0")]),
    ("xz-compressed data", &[(0, b"\xfd7zXZ\0")]),
    ("zstd-compressed data", &[(0, b"\x28\xb5\x2f\xfd")]),
    ("bzip2-compressed data", &[(0, b"BZh91AY&SY")]),
    ("gzip-compressed data", &[(0, b"\x1f\x8b\x08\0")]),
    ("a cpio archive", &[(0, b"070701")]),
    ("an ar archive", &[(0, b"!<arch>\ndebian-binary")]),
    ("a Git pack", &[(0, b"PACK\0\0\0\x02")]),
    ("a Borg repository segment", &[(0, b"BORG_SEG")]),
    ("an SQLite database", &[(0, b"SQLite format 3\0")]),
    ("an HDF5 file", &[(0, b"\x89HDF\r\n\x1a\n")]),
    ("a PDF document", &[(0, b"%PDF-1.7")]),
    ("an ELF program", &[(0, b"\x7fELF\x02\x01\x01")]),
    ("a PNG picture", &[(0, b"\x89PNG\r\n\x1a\n")]),
    ("a JPEG picture", &[(0, b"\xff\xd8\xff\xe0")]),
    ("an MP4 or QuickTime film", &[(0, b"\0\0\0\x20ftypisom")]),
    ("a Matroska or WebM film", &[(0, b"\x1a\x45\xdf\xa3")]),
    ("a program for Windows", &[(0, b"MZ\x90\0")]),
    ("a script", &[(0, b"#!/bin/sh\n")]),
    ("an ext2, ext3 or ext4 filesystem", &[(K + 56, b"\x53\xef")]),
    (
        "an ext3 filesystem",
        &[(K + 56, b"\x53\xef"), (K + 0x5c, b"\x04\0\0\0")],
    ),
    (
        "an ext4 filesystem ('root', 1M)",
        &[
            (K + 4, b"\0\x04\0\0"),
            (K + 56, b"\x53\xef"),
            (K + 0x5c, b"\x04\0\0\0\x40\0\0\0"),
            (K + 0x78, b"root\0"),
        ],
    ),
    ("a NILFS2 filesystem", &[(K + 6, b"\x34\x34")]),
    ("a minix filesystem", &[(K + 16, b"\x8f\x13")]),
    ("an HFS filesystem", &[(K, b"BD")]),
    (
        "a partition table (GPT)",
        &[(510, b"\x55\xaa"), (512, b"EFI PART")],
    ),
    ("a partition table (GPT)", &[(4 * K, b"EFI PART")]),
    (
        "the second copy of a partition table (GPT)",
        &[(-512, b"EFI PART")],
    ),
    ("with 1 partition", &[(446 + 4, b"\x83"), (510, b"\x55\xaa")]),
    ("a partition table (Sun)", &[(508, b"\xda\xbe")]),
    ("a partition table (Apple)", &[(0, b"ER"), (512, b"PM\0\0")]),
    (
        "a label of a Terrace pool, damaged or of another version",
        &[(0, b"TERRLABL broken")],
    ),
    (
        "a root record of a Terrace pool",
        &[(384 * K, b"TERRROOT broken")],
    ),
    // No format of the table.
    ("data of no known format: its first MiB", &[(0, b"\x01")]),
    ("data of no known format: its first MiB", &[(M - 1, b"\x80")]),
    ("data of no known format: its last MiB", &[(-1, b"\x01")]),
    ("data of no known format: its last MiB", &[(-M, b"\x01")]),
    ("text: its first MiB", &[(0, b"Dear diary,\nit is raining.\n")]),
    // Quotes and control characters of a label end no message and reach no terminal.
    (
        "('\u{fffd}[31mred, ’x')",
        &[(64 * K + 64, b"_BHRfS_M"), (64 * K + 0x12b, b"\x1b[31mred; 'x\0")],
    ),
];

fn write_image(path: &Path, parts: &[(i64, &[u8])]) {
    let file = fs::File::create(path).unwrap();
    file.set_len(SIZE).unwrap();
    for (offset, bytes) in parts {
        let at = match *offset {
            offset @ 0.. => offset as u64,
            back => SIZE - back.unsigned_abs(),
        };
        file.write_all_at(bytes, at).unwrap();
    }
}

fn hash(path: &Path) -> (u64, blake3::Hash) {
    (
        fs::metadata(path).unwrap().len(),
        blake3::hash(&fs::read(path).unwrap()),
    )
}

fn spec(name: &str, devices: &[String]) -> PoolSpec {
    PoolSpec::parse(name, &[format!("only={}", devices.join(","))], &[], &[]).unwrap()
}

fn options() -> OpenOptions {
    OpenOptions {
        threads: false,
        ..OpenOptions::default()
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// An open pool of two devices below a directory.
fn open_pool(directory: &Path) -> Arc<Engine> {
    let devices = ["a", "b"].map(|name| format!("{}:64M", text(&directory.join(name))));
    Engine::create(&spec("tank", &devices), false, options()).unwrap()
}

/// What create, add and replace say of a device, with and without a dry run.
fn refusals(engine: &Engine, directory: &Path, device: &str, force: bool) -> Vec<String> {
    let parsed = [device.parse().unwrap()];
    let old = text(&directory.join("a"));
    let info = engine.find_device(&old).unwrap();
    let told = |outcome: Result<(), EngineError>| outcome.unwrap_err().to_string();
    let other = spec("other", &[device.to_owned()]);
    vec![
        told(Engine::plan(&other, force).map(drop)),
        told(Engine::create(&other, force, options()).map(drop)),
        told(engine.plan_adding("only", &parsed, None, 1, force).map(drop)),
        told(engine.add_devices("only", &parsed, None, 1, force).map(drop)),
        told(engine.plan_replacing(&info, &parsed[0], force).map(drop)),
        told(engine.replace_device(&old, &parsed[0], force).map(drop)),
    ]
}

#[test]
fn every_foreign_image_is_refused_by_name_and_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open_pool(directory.path());
    let members = engine.pool().devices().len();
    assert!(IMAGES.len() > 100, "{}", IMAGES.len());
    let path = directory.path().join("image");
    for (words, parts) in IMAGES {
        write_image(&path, parts);
        let before = hash(&path);
        // As it is, and where it would be grown.
        for device in [text(&path), format!("{}:32M", text(&path))] {
            for told in refusals(&engine, directory.path(), &device, false) {
                assert!(told.contains(words), "{words}: {told}");
                assert!(
                    told.contains("--force") && told.contains("nothing was changed"),
                    "{told}"
                );
                assert!(!told.contains(char::is_control), "{told:?}");
                assert_eq!(
                    told.matches("; ").count(),
                    2,
                    "one way out, not of the device's words: {told}"
                );
            }
        }
        assert!(hash(&path) == before, "{words}");
    }
    assert_eq!(engine.pool().devices().len(), members);
    engine.close().unwrap();
}

#[test]
fn of_many_devices_all_that_are_bad_are_named_and_none_is_touched() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open_pool(directory.path());
    let at = |name: &str| directory.path().join(name);
    let mut paths: Vec<PathBuf> = Vec::new();
    for (number, (_, parts)) in IMAGES.iter().take(5).enumerate() {
        paths.push(at(&format!("image{number}")));
        write_image(paths.last().unwrap(), parts);
    }
    fs::File::create(at("empty")).unwrap().set_len(SIZE).unwrap();
    fs::create_dir(at("full")).unwrap();
    fs::write(at("full/photo"), b"precious").unwrap();
    let before: Vec<_> = paths.iter().map(|path| hash(path)).collect();
    let mut devices = vec![
        format!("{}:64M", text(&at("empty"))),
        format!("{}:64M", text(&at("absent"))),
        format!("{}/:64M", text(&at("absent_directory"))),
        format!("{}/:64M", text(&at("full"))),
    ];
    devices.extend(paths.iter().map(|path| text(path)));
    let parsed: Vec<_> = devices.iter().map(|device| device.parse().unwrap()).collect();
    let told = [
        Engine::create(&spec("other", &devices), false, options())
            .map(drop)
            .unwrap_err()
            .to_string(),
        engine
            .add_devices("only", &parsed, None, 1, false)
            .unwrap_err()
            .to_string(),
    ];
    for told in told {
        for path in &paths {
            assert!(told.contains(&format!("'{}' holds", path.display())), "{told}");
        }
        assert!(told.contains("the directory is not empty ('photo')"), "{told}");
        assert!(!told.contains("empty'") && !told.contains("absent"), "{told}");
    }
    assert!(paths.iter().map(|path| hash(path)).eq(before));
    assert_eq!(fs::metadata(at("empty")).unwrap().len(), SIZE, "it was grown");
    assert!(!at("absent").exists() && !at("absent_directory").exists());
    assert_eq!(fs::read_dir(at("full")).unwrap().count(), 1);
    engine.close().unwrap();
}

#[test]
fn what_is_empty_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::File::create(at("sparse")).unwrap().set_len(SIZE).unwrap();
    fs::write(at("zeroes"), vec![0; SIZE as usize]).unwrap();
    fs::write(at("short"), b"").unwrap();
    let odd = fs::File::create(at("odd")).unwrap();
    odd.set_len(SIZE + 1000).unwrap();
    // What a device that left a pool may have left in it.
    write_image(&at("middle"), &[(8 * M, b"in the middle")]);
    fs::create_dir_all(at("directory/lost+found")).unwrap();
    std::os::unix::fs::symlink("sparse", at("link")).unwrap();
    let devices = [
        text(&at("link")),
        text(&at("zeroes")),
        format!("{}:16M", text(&at("short"))),
        text(&at("odd")),
        text(&at("middle")),
        format!("{}/:16M", text(&at("directory"))),
        format!("{}:16M", text(&at("absent"))),
        format!("{}/:16M", text(&at("new"))),
        // Colons and all.
        text(&at("a:b")),
    ];
    fs::File::create(at("a:b")).unwrap().set_len(SIZE).unwrap();
    let spec = spec("tank", &devices);
    let planned = Engine::plan(&spec, false).unwrap();
    assert!(
        planned.iter().all(|device| device.overwrites.is_empty()),
        "{planned:?}"
    );
    assert!(
        !at("absent").exists() && !at("new").exists(),
        "a plan makes nothing"
    );
    assert_eq!(fs::metadata(at("short")).unwrap().len(), 0, "and grows nothing");
    Engine::create(&spec, false, options()).unwrap().close().unwrap();
}

#[test]
fn what_is_at_the_last_byte_of_an_odd_length_counts() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open_pool(directory.path());
    let path = directory.path().join("odd");
    for (length, at) in [(SIZE + 1000, SIZE + 999), (5, 4), (4097, 4096), (512, 0)] {
        let file = fs::File::create(&path).unwrap();
        file.set_len(length).unwrap();
        file.write_all_at(b"x", at).unwrap();
        let device = format!("{}:64M", text(&path));
        for told in refusals(&engine, directory.path(), &device, false) {
            assert!(told.contains("no known format"), "{length}: {told}");
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), length);
    }
    engine.close().unwrap();
}

#[test]
fn labels_of_pools_are_named_with_pool_and_state() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open_pool(directory.path());
    let other = tempfile::tempdir().unwrap();
    let device = format!("{}:64M", text(&other.path().join("x")));
    for (state, words) in [
        (terrace_pool::PoolState::Active, "device 0 of pool 'old'"),
        (
            terrace_pool::PoolState::Exported,
            "device 0 of the exported pool 'old'",
        ),
        (
            terrace_pool::PoolState::Destroyed,
            "device 0 of the destroyed pool 'old'",
        ),
    ] {
        let made = Engine::create(&spec("old", std::slice::from_ref(&device)), true, options()).unwrap();
        // While it is open, also by force.
        for force in [false, true] {
            for told in refusals(&engine, directory.path(), &device, force) {
                assert!(told.contains("'old', which is open"), "{told}");
            }
        }
        match state {
            terrace_pool::PoolState::Active => made.close().unwrap(),
            state => made.close_as(state).unwrap(),
        }
        drop(made);
        for told in refusals(&engine, directory.path(), &device, false) {
            assert!(told.contains(words), "{told}");
        }
    }
    engine.close().unwrap();
}

#[test]
fn by_force_it_is_taken_and_neither_end_keeps_what_others_know_it_by() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let both: &[(i64, &[u8])] = &[
        (800 * K, b"front"),
        (-64 * K, b"\xfc\x4e\x2b\xa9\0\0\0\0"),
        (-M, b"back"),
        (8 * M, b"in the middle"),
    ];
    write_image(&path, both);
    let spec = spec("tank", &[text(&path)]);
    let planned = Engine::plan(&spec, true).unwrap();
    assert!(
        planned[0].overwrites.contains("Linux software RAID"),
        "{planned:?}"
    );
    let engine = Engine::create(&spec, true, options()).unwrap();
    engine.close().unwrap();
    drop(engine);
    let content = fs::read(&path).unwrap();
    assert!(content[800 * 1024..][..5] == [0; 5]);
    let end = content.len() - 64 * 1024;
    assert!(content[end..][..4] != *b"\xfc\x4e\x2b\xa9");
}

#[test]
fn a_device_that_left_is_empty_again() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open_pool(directory.path());
    let path = text(&directory.path().join("c"));
    let device = [format!("{path}:64M").parse().unwrap()];
    engine.add_devices("only", &device, None, 1, false).unwrap();
    for _ in 0..2 {
        let job = engine.remove_device(&path).unwrap();
        for _ in 0..10_000 {
            if !engine.is_leaving(job) {
                break;
            }
            engine.step().unwrap();
            engine.settle_leaving().unwrap();
        }
        assert!(!engine.is_leaving(job));
        assert!(engine.find_device(&path).is_err());
        engine.add_devices("only", &device, None, 1, false).unwrap();
    }
    engine.close().unwrap();
}
