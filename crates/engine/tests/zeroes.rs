//! Zeroes written to a volume on a full pool: they need no room and give some back.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use full_pool::{MIB, Modelled, Rig};
use terrace_dataset::{FsError, NewDataset};

#[test]
fn zeroes_are_taken_on_a_full_pool_and_give_room_back() {
    let mut rig = Rig::new(&[128 * MIB]);
    let new = NewDataset {
        volume_bytes: Some(512 * MIB),
        sparse: true,
        properties: vec![("compression".into(), "off".into())],
        ..NewDataset::default()
    };
    rig.engine.datasets().create("tank/v", &new).unwrap();
    let mut volume = Modelled::new(rig.engine.datasets().volume("tank/v").unwrap());
    let mut at = 0;
    while volume.write(&mut rig.random, at, MIB / 4).is_ok() {
        at += MIB / 4;
    }
    assert!(at > 32 * MIB, "{at}");
    volume.volume.flush().unwrap();
    let data = rig.filesystem("tank/data");
    assert_eq!(rig.is_room_for(&data, "none", 16 * MIB), Err(FsError::NoSpace));

    // What a guest does that has no trim: all that is free in it, in order, never flushed.
    let zeroes = vec![0; MIB as usize];
    for offset in (MIB..at - MIB).step_by(MIB as usize) {
        volume
            .volume
            .write(offset, &zeroes)
            .unwrap_or_else(|error| panic!("at {} MiB: {error}", offset / MIB));
        volume.model[offset as usize..(offset + MIB) as usize].fill(0);
    }
    volume.verify();
    rig.is_room_for(&data, "new", 16 * MIB).unwrap();
    volume.write(&mut rig.random, 3 * MIB, MIB).unwrap();
    volume.verify();
    let model = std::mem::take(&mut volume.model);
    volume.volume.flush().unwrap();
    drop((volume, data));
    rig.reopen(false);
    let volume = rig.engine.datasets().volume("tank/v").unwrap();
    Modelled { volume, model }.verify();
    // No more than before is taken behind the end.
    let volume = rig.engine.datasets().volume("tank/v").unwrap();
    assert_eq!(volume.write(512 * MIB, &zeroes), Err(FsError::NoSpace));
}

/// A whole write of zeroes that finds no room is made a hole; one that has anything else in it is not, and is refused as it is.
#[test]
fn mixed_write_that_finds_no_room_is_refused_and_changes_nothing() {
    let mut rig = Rig::new(&[128 * MIB]);
    let new = NewDataset {
        volume_bytes: Some(512 * MIB),
        sparse: true,
        properties: vec![("compression".into(), "off".into())],
        ..NewDataset::default()
    };
    rig.engine.datasets().create("tank/v", &new).unwrap();
    let mut volume = Modelled::new(rig.engine.datasets().volume("tank/v").unwrap());
    let mut at = 0;
    for length in [MIB / 4, 4096] {
        while volume.write(&mut rig.random, at, length).is_ok() {
            at += length;
        }
    }
    // Nobody made room, or took some, in between.
    for data_at in [0, 3, 7] {
        let mut mixed = vec![0; 8 * 4096];
        mixed[data_at * 4096..][..4096].fill(7);
        let refused = volume.volume.write(at + MIB, &mixed);
        assert_eq!(refused, Err(FsError::NoSpace), "data in block {data_at}");
        let refused = volume.volume.write(MIB + 4096, &mixed);
        assert_eq!(refused, Err(FsError::NoSpace), "data in block {data_at}");
    }
    volume.verify();
    volume.volume.flush().unwrap();
    volume.verify();
}
