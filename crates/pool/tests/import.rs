//! A pool is opened by its labels alone, and only as a whole.
#![allow(clippy::unwrap_used)]

use crate::media;

use std::path::Path;
use std::sync::Arc;

use media::{MIB, Shelf, create, create_options, open, sequential};
use terrace_device::{Device, FileDevice, SeededRandomness, open_path};
use terrace_pool::{
    DeviceState, OpenOptions, Pool, PoolError, PoolState, Request, SegmentId, SegmentKind, TierChoice,
    is_pool_member, scan,
};

fn three() -> Shelf {
    let shelf = Shelf::new(&[16, 16, 24]);
    let pool = create(
        "tank",
        1,
        vec![("fast", shelf.devices(&[0, 1])), ("slow", shelf.devices(&[2]))],
    );
    pool.write_root(b"root").unwrap();
    shelf
}

#[test]
fn devices_come_in_any_order() {
    let shelf = three();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let pool = open(shelf.devices(&order)).unwrap();
        assert_eq!(pool.name(), "tank");
        assert_eq!(pool.read_root().unwrap().unwrap(), b"root");
        let tiers = pool.tiers();
        assert_eq!(tiers[0].devices, [0, 1]);
        assert_eq!(tiers[1].devices, [2]);
        let paths: Vec<_> = pool.devices().into_iter().map(|device| device.path).collect();
        assert_eq!(paths, ["/medium/0", "/medium/1", "/medium/2"]);
        assert_eq!(pool.generation(), 1, "opening a whole pool changes nothing");
    }
}

#[test]
fn a_device_of_another_pool_is_refused() {
    let shelf = three();
    let other = Shelf::new(&[16]);
    create("other", 2, vec![("only", other.all())]);
    let mut devices = shelf.all();
    devices.extend(other.all());
    let error = open(devices).unwrap_err();
    assert!(matches!(error, PoolError::ForeignDevice { .. }), "{error}");
    assert!(error.to_string().contains("'other'"), "{error}");
    let blank = Shelf::new(&[16]);
    assert!(matches!(
        open(blank.all()).unwrap_err(),
        PoolError::NoLabel { .. }
    ));
    assert!(matches!(open(Vec::new()).unwrap_err(), PoolError::Invalid(_)));
}

#[test]
fn a_missing_device_is_named() {
    let shelf = three();
    let error = open(shelf.devices(&[0, 2])).unwrap_err();
    assert_eq!(
        error,
        PoolError::MissingDevices {
            pool: "tank".into(),
            missing: vec!["device 1 (last seen as /medium/1)".into()]
        }
    );
    let degraded = OpenOptions {
        degraded: true,
        ..sequential()
    };
    let pool = Pool::open(shelf.devices(&[0, 2]), degraded).unwrap();
    let states: Vec<_> = pool.devices().into_iter().map(|device| device.state).collect();
    assert_eq!(
        states,
        [DeviceState::Online, DeviceState::Missing, DeviceState::Online]
    );
    assert_eq!(pool.read_root().unwrap().unwrap(), b"root");
    let mut block = vec![0; 4096];
    let gone = terrace_pool::SegmentId { device: 1, index: 0 };
    let error = pool.read(gone, 0, &mut block).unwrap_err();
    assert_eq!(
        error,
        PoolError::NoDevice {
            number: 1,
            state: "missing"
        }
    );
}

#[test]
fn looking_does_not_make_others_stale() {
    let shelf = three();
    let look = OpenOptions {
        degraded: true,
        read_only: true,
        ..sequential()
    };
    let before = shelf.events();
    let pool = Pool::open(shelf.devices(&[0]), look).unwrap();
    assert_eq!(
        pool.set_property("a", Some("b")).unwrap_err(),
        PoolError::ReadOnly
    );
    assert_eq!(pool.write_root(b"x").unwrap_err(), PoolError::ReadOnly);
    assert_eq!(shelf.events(), before);
    open(shelf.all()).unwrap();
}

#[test]
fn a_copy_of_a_device_is_refused() {
    let shelf = three();
    let copy = shelf.after_power_cut(shelf.events(), 0);
    let mut devices = shelf.all();
    devices.extend(copy.devices(&[1]));
    assert!(matches!(
        open(devices).unwrap_err(),
        PoolError::DuplicateDevice { number: 1, .. }
    ));
}

#[test]
fn exported_and_destroyed_pools_open_only_on_request() {
    let shelf = three();
    for (state, options) in [
        (
            PoolState::Exported,
            OpenOptions {
                exported: true,
                ..sequential()
            },
        ),
        (
            PoolState::Destroyed,
            OpenOptions {
                destroyed: true,
                ..sequential()
            },
        ),
    ] {
        open(shelf.all()).unwrap().set_state(state).unwrap();
        let error = open(shelf.all()).unwrap_err();
        assert!(matches!(&error, PoolError::WrongState { .. }), "{error}");
        let pool = Pool::open(shelf.all(), options).unwrap();
        assert_eq!(pool.state(), PoolState::Active);
        drop(pool);
        open(shelf.all()).unwrap();
    }
}

#[test]
fn a_device_in_a_pool_is_not_taken_for_another() {
    let shelf = three();
    let again = |force| {
        let mut options = create_options("new", vec![("only", shelf.devices(&[0]))]);
        options.force = force;
        Pool::create(options, &SeededRandomness::new(9))
    };
    let error = again(false).unwrap_err();
    assert!(
        matches!(&error, PoolError::AlreadyInPool { pool, .. } if pool == "tank"),
        "{error}"
    );
    open(shelf.all())
        .unwrap()
        .set_state(PoolState::Destroyed)
        .unwrap();
    // It could be brought back.
    let error = again(false).unwrap_err();
    assert!(error.to_string().contains("the destroyed pool 'tank'"), "{error}");
    assert_eq!(again(true).unwrap().name(), "new");
    let foreign = Shelf::new(&[16]);
    let mut block = vec![0; 4096];
    block[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    foreign.media[0].memory.write_at(0, &block).unwrap();
    let options = create_options("new", vec![("only", foreign.all())]);
    let error = Pool::create(options, &SeededRandomness::new(9)).unwrap_err();
    assert!(error.to_string().contains("ext4"), "{error}");
}

#[test]
fn a_pool_that_cannot_be_is_refused_before_anything_is_written() {
    let shelf = Shelf::new(&[16, 2]);
    let refused = |name: &str, tiers| {
        let error = Pool::create(create_options(name, tiers), &SeededRandomness::new(1)).unwrap_err();
        assert!(
            matches!(error, PoolError::Invalid(_) | PoolError::TooSmall { .. }),
            "{error}"
        );
        assert_eq!(shelf.events(), 0);
    };
    refused("a b", vec![("fast", shelf.devices(&[0]))]);
    refused("tank", vec![("fast", vec![])]);
    refused("tank", vec![]);
    refused(
        "tank",
        vec![("fast", shelf.devices(&[0])), ("fast", shelf.devices(&[0]))],
    );
    refused("tank", vec![("fast", shelf.devices(&[0, 0]))]);
    refused("tank", vec![("fast", shelf.devices(&[1]))]);
}

#[test]
fn labels_survive_the_loss_of_any_two_copies() {
    let shelf = Shelf::new(&[16]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.set_property("memory", Some("1G")).unwrap();
    drop(pool);
    let offsets = [0, 64 * 1024, 16 * MIB - 64 * 1024];
    for kept in 0..3 {
        let damaged = shelf.after_power_cut(shelf.events(), 0);
        for (index, offset) in offsets.iter().enumerate() {
            if index != kept {
                damaged.media[0]
                    .memory
                    .write_at(*offset, &vec![0x55; 64 * 1024])
                    .unwrap();
            }
        }
        let pool = open(damaged.all()).unwrap();
        assert_eq!(pool.property("memory").as_deref(), Some("1G"), "copy {kept}");
        drop(pool);
        // Opening mended the copies.
        damaged.media[0]
            .memory
            .write_at(offsets[kept], &vec![0x55; 64 * 1024])
            .unwrap();
        assert_eq!(
            open(damaged.all()).unwrap().property("memory").as_deref(),
            Some("1G")
        );
    }
}

#[test]
fn a_truncated_device_is_refused_and_taken_as_it_is_where_one_may_be_missing() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("disk");
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(&path, Some(16 * MIB)).unwrap());
    drop(create("tank", 1, vec![("only", vec![device])]));
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(12 * MIB)
        .unwrap();
    let error = open(vec![open_path(&path).unwrap()]).unwrap_err();
    assert!(matches!(error, PoolError::Shrunk { .. }), "{error}");
    let options = OpenOptions {
        degraded: true,
        ..OpenOptions::default()
    };
    // Again and again, although the label at its end cannot be written.
    for _ in 0..3 {
        let pool = Pool::open(vec![open_path(&path).unwrap()], options.clone()).unwrap();
        let device = pool.devices().remove(0);
        assert_eq!(
            (device.state, device.cut_off_bytes),
            (DeviceState::Failing, 4 * MIB)
        );
        let mut reached = (0..device.segments).map(|index| pool.has_segment(SegmentId { device: 0, index }));
        // The first MiB is for labels and roots.
        let left = 11 * MIB / u64::from(pool.segment_bytes());
        assert_eq!(reached.position(|reached| !reached), Some(left as usize));
        let taken = pool.allocate(&Request {
            choice: TierChoice::Fastest,
            kind: SegmentKind::Data,
            avoid: &[],
            garbage: &[],
            leave_free: 0,
        });
        assert!(taken.is_err(), "something new is put on it");
    }
    // Too little of it is left.
    let cut = |bytes| {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(bytes).unwrap();
    };
    cut(MIB / 2);
    let error = Pool::open(vec![open_path(&path).unwrap()], options).unwrap_err();
    assert!(matches!(error, PoolError::Shrunk { .. }), "{error}");
    // It has its size back.
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(16 * MIB)
        .unwrap();
    let pool = open(vec![open_path(&path).unwrap()]).unwrap();
    assert_eq!(pool.devices()[0].state, DeviceState::Online);
}

#[test]
fn scanning_finds_pools_under_other_paths() {
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    std::fs::create_dir(at("old")).unwrap();
    std::fs::create_dir(at("new")).unwrap();
    let make = |name: &str| -> Arc<dyn Device> {
        let spec: terrace_device::DeviceSpec = format!("{}:8M", at(name).display()).parse().unwrap();
        spec.create().unwrap()
    };
    create(
        "tank",
        1,
        vec![
            ("fast", vec![make("old/a"), make("old/b")]),
            ("slow", vec![make("old/c/")]),
        ],
    );
    let other = create("other", 2, vec![("only", vec![make("new/z")])]);
    std::fs::write(at("new/note.txt"), b"not a device").unwrap();
    std::fs::rename(at("old/a"), at("new/1")).unwrap();
    std::fs::rename(at("old/c"), at("new/2")).unwrap();

    let (found, _) = scan(&[at("new"), at("nowhere")], &[]);
    let names: Vec<_> = found
        .iter()
        .map(|pool| (pool.name.as_str(), pool.devices.len()))
        .collect();
    assert_eq!(names, [("other", 1), ("tank", 2)]);
    assert_eq!(found[1].missing.len(), 1);
    assert!(found[1].missing[0].contains("old/b"), "{:?}", found[1].missing);

    let (found, _) = scan(&[at("new")], &[at("old/b"), at("new/1")]);
    let tank = &found[1];
    assert!(tank.missing.is_empty());
    assert_eq!(tank.tiers, ["fast", "slow"]);
    assert_eq!(tank.paths(), [at("new/1"), at("old/b"), at("new/2")]);
    let devices = tank.paths().iter().map(|path| open_path(path).unwrap()).collect();
    let pool = open(devices).unwrap();
    assert_eq!(pool.tiers().len(), 2);

    // Held by the pools that are open, yet found; and not to be opened twice.
    assert_eq!(scan(&[at("new")], &[]).0.len(), 2);
    assert!(open_path(&at("new/z")).err().unwrap().is_in_use());
    assert_eq!(is_pool_member(&at("new/z")).as_deref(), Some("other"));
    other.set_state(PoolState::Destroyed).unwrap();
    assert_eq!(is_pool_member(&at("new/z")), None);
    assert_eq!(is_pool_member(Path::new("/dev/null")), None);
}
