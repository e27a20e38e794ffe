//! Every form of device keeps the same promises: whole transfers or clear errors, exclusive opening, nothing cut off.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrace_device::{
    AlignedBuffer, Cause, Device, DeviceSpec, DirectoryDevice, FileDevice, MemoryDevice, Operation,
    Randomness, ReadRequest, SeededRandomness, open_path, peek_path,
};

const MIB: u64 = 1024 * 1024;

fn devices(base: &Path) -> Vec<Arc<dyn Device>> {
    vec![
        Arc::new(MemoryDevice::new("memory", 40 * MIB)),
        Arc::new(FileDevice::create(&base.join("file"), Some(40 * MIB)).unwrap()),
        Arc::new(DirectoryDevice::create(&base.join("directory"), Some(40 * MIB)).unwrap()),
    ]
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    SeededRandomness::new(seed).fill(&mut bytes);
    bytes
}

#[test]
fn all_forms_behave_as_an_array_of_blocks() {
    let base = tempfile::tempdir().unwrap();
    for device in devices(base.path()) {
        assert_eq!(device.size_bytes(), 40 * MIB, "{}", device.path());
        let random = SeededRandomness::new(7);
        let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for round in 0..200u64 {
            // Around the border of the slots of a directory, where mistakes would show.
            let start = 4000 + random.number() % 200;
            let blocks = 1 + random.number() % 12;
            let data = pattern(blocks as usize * 4096, round);
            if round % 3 == 0 {
                let (front, back) = data.split_at(4096);
                device.write_vectored_at(start * 4096, &[front, back]).unwrap();
            } else {
                // An address that direct I/O does not take must work as well.
                let mut shifted = vec![0; data.len() + 1];
                shifted[1..].copy_from_slice(&data);
                device.write_at(start * 4096, &shifted[1..]).unwrap();
            }
            for (index, block) in data.chunks(4096).enumerate() {
                model.insert(start + index as u64, block.to_vec());
            }
        }
        device.flush().unwrap();
        let mut all = AlignedBuffer::zeroed(220 * 4096);
        device.read_at(4000 * 4096, &mut all).unwrap();
        for (index, block) in all.chunks(4096).enumerate() {
            let expected = model.get(&(4000 + index as u64));
            assert!(expected.map_or(block.iter().all(|byte| *byte == 0), |expected| expected == block));
        }
        device.discard(0, 4 * MIB).unwrap();
    }
}

#[test]
fn what_was_written_is_there_after_opening_again() {
    let base = tempfile::tempdir().unwrap();
    let data = pattern(3 * MIB as usize, 1);
    for device in devices(base.path()).split_off(1) {
        device.write_at(15 * MIB, &data).unwrap();
        device.flush().unwrap();
        let path = device.path();
        drop(device);
        let device = open_path(Path::new(&path)).unwrap();
        let mut back = AlignedBuffer::zeroed(data.len());
        device.read_at(15 * MIB, &mut back).unwrap();
        assert!(back[..] == data[..]);
        assert_eq!(device.size_bytes(), 40 * MIB);
    }
}

#[test]
fn transfers_outside_or_askew_are_refused() {
    let base = tempfile::tempdir().unwrap();
    for device in devices(base.path()) {
        let mut buffer = AlignedBuffer::zeroed(8192);
        let error = device.read_at(40 * MIB - 4096, &mut buffer).unwrap_err();
        assert_eq!(error.cause, Cause::OutOfRange { size_bytes: 40 * MIB });
        assert_eq!(error.operation, Operation::Read);
        assert!(error.to_string().contains(&device.path()), "{error}");
        assert!(device.read_at(u64::MAX - 4095, &mut buffer).is_err());
        assert_eq!(
            device.write_at(100, &buffer).unwrap_err().cause,
            Cause::Misaligned
        );
        assert_eq!(
            device.write_at(0, &buffer[..100]).unwrap_err().cause,
            Cause::Misaligned
        );
        assert!(
            device
                .write_vectored_at(40 * MIB - 4096, &[&buffer[..4096], &buffer[4096..]])
                .is_err()
        );
        assert!(device.discard(40 * MIB, 4096).is_err());
    }
}

#[test]
fn a_second_opener_is_told_that_the_device_is_in_use() {
    let base = tempfile::tempdir().unwrap();
    for device in devices(base.path()).split_off(1) {
        let path = device.path();
        let error = open_path(Path::new(&path)).err().unwrap();
        assert!(error.is_in_use(), "{error}");
        assert!(error.to_string().contains("in use"), "{error}");
        // Looking at it is allowed meanwhile, changing is not.
        let peeked = peek_path(Path::new(&path)).unwrap();
        let mut block = AlignedBuffer::zeroed(4096);
        peeked.read_at(0, &mut block).unwrap();
        assert_eq!(peeked.write_at(0, &block).unwrap_err().cause, Cause::ReadOnly);
        drop(device);
        open_path(Path::new(&path)).unwrap();
    }
}

#[test]
fn creating_never_cuts_off_and_says_what_to_do() {
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| format!("{}/{name}", base.path().display());
    let create = |text: String| text.parse::<DeviceSpec>().unwrap().create();
    let error = create(at("absent")).err().unwrap();
    assert!(error.to_string().contains(":10G"), "{error}");
    for (name, has, more) in [("file", "8M", "12M"), ("directory/", "8M", "12M")] {
        drop(create(format!("{}:{has}", at(name))).unwrap());
        assert_eq!(create(at(name)).unwrap().size_bytes(), 8 * MIB);
        let error = create(format!("{}:4M", at(name))).err().unwrap();
        assert!(error.to_string().contains("leave the size away"), "{error}");
        assert_eq!(
            create(format!("{}:{more}", at(name))).unwrap().size_bytes(),
            12 * MIB
        );
    }
    std::fs::create_dir(base.path().join("full")).unwrap();
    std::fs::write(base.path().join("full/photo"), b"precious").unwrap();
    let error = create(format!("{}:8M", at("full/"))).err().unwrap();
    assert!(error.to_string().contains("not empty"), "{error}");
    assert!(open_path(&base.path().join("full")).is_err());
    assert!(open_path(Path::new("/dev/null")).is_err());
}

#[test]
fn no_file_is_made_where_devices_are() {
    let path = Path::new("/dev/terrace-no-such-device");
    for wanted in [None, Some(MIB)] {
        let error = FileDevice::create(path, wanted).err().unwrap();
        assert!(error.to_string().contains("there is no such device"), "{error}");
        assert!(!path.exists());
    }
}

#[test]
fn a_file_larger_than_the_host_is_sparse_and_leaves_it_room() {
    let base = tempfile::tempdir().unwrap();
    let device = FileDevice::create(&base.path().join("file"), Some(8 << 40)).unwrap();
    assert_eq!(device.size_bytes(), 8 << 40);
    let taken = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(base.path().join("file")).unwrap());
    assert!(taken < 2048, "{taken} sectors");
    let small = FileDevice::create(&base.path().join("small"), Some(4 * MIB)).unwrap();
    small.write_at(0, &AlignedBuffer::zeroed(4096)).unwrap();
    small.flush().unwrap();
}

#[test]
fn growth_of_the_backing_is_seen_when_asked_for() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("file");
    let device = FileDevice::create(&path, Some(8 * MIB)).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(20 * MIB + 1000).unwrap();
    assert_eq!(device.size_bytes(), 8 * MIB);
    assert_eq!(device.refresh_size().unwrap(), 20 * MIB);
    file.set_len(4 * MIB).unwrap();
    assert_eq!(device.refresh_size().unwrap(), 20 * MIB);
    let mut block = AlignedBuffer::zeroed(4096);
    assert_eq!(
        device.read_at(10 * MIB, &mut block).unwrap_err().cause,
        Cause::Short
    );
}

#[test]
fn a_hostile_description_of_a_directory_is_an_error() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("directory");
    drop(DirectoryDevice::create(&path, Some(8 * MIB)).unwrap());
    for text in [
        "",
        "something else\n",
        "terrace directory device 1\n",
        "terrace directory device 1\nsize_bytes=0\nslot_bytes=4096\n",
        "terrace directory device 1\nsize_bytes=8192\nslot_bytes=99999999999999\n",
        "terrace directory device 1\nsize_bytes=8191\nslot_bytes=4096\n",
        "terrace directory device 1\nsize_bytes=-1\nslot_bytes=4096\n",
    ] {
        std::fs::write(path.join("terrace-device"), text).unwrap();
        assert!(open_path(&path).is_err(), "{text:?}");
    }
    std::fs::write(path.join("terrace-device"), vec![0xff; 5000]).unwrap();
    assert!(open_path(&path).is_err());
}

#[test]
fn reads_by_the_unit_of_each_form_see_what_was_written() {
    let base = tempfile::tempdir().unwrap();
    let mut forms = devices(base.path());
    // What a kill would lose is held in blocks, and read in parts of them.
    let inner = Arc::new(MemoryDevice::new("inner", 40 * MIB));
    forms.push(Arc::new(terrace_device::VolatileDevice::new(inner, 3)));
    for device in forms {
        let unit = device.read_unit_bytes();
        assert!(unit.is_power_of_two() && (512..=4096).contains(&unit), "{unit}");
        // Across the border of two slots of a directory.
        let start = 16 * MIB - 64 * 1024;
        let data = pattern(128 * 1024, 11);
        let mut aligned = AlignedBuffer::zeroed(data.len());
        aligned.copy_from_slice(&data);
        device.write_at(start, &aligned).unwrap();
        let random = SeededRandomness::new(5);
        for round in 0..200 {
            let units = data.len() / unit;
            let from = random.number() as usize % units;
            let count = 1 + random.number() as usize % (units - from).min(20);
            let range = from * unit..(from + count) * unit;
            let mut buffer = AlignedBuffer::zeroed(range.len());
            device.read_at(start + range.start as u64, &mut buffer).unwrap();
            assert!(buffer[..] == data[range.clone()], "{} {range:?}", device.path());
            // Several at once, packed as whoever reads many packs them.
            let (front, back) = buffer.split_at_mut(range.len() / unit / 2 * unit);
            let (at, more) = (start + range.start as u64, front.len() as u64);
            let mut reads = [ReadRequest::new(at, front), ReadRequest::new(at + more, back)];
            device.read_many(&mut reads);
            assert!(reads.iter().all(|read| read.outcome.is_ok()), "round {round}");
            assert!(buffer[..] == data[range]);
        }
        let mut buffer = AlignedBuffer::zeroed(unit);
        let askew = device.read_at(start + unit as u64 / 2, &mut buffer).unwrap_err();
        assert_eq!(askew.cause, Cause::Misaligned);
    }
}
