//! A tier of which a device takes nothing new: how full the tier is, is measured by the others.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use full_pool::{MIB, Rig};

fn half_emptied() -> Rig {
    let rig = Rig::of(&[(vec![160 * MIB; 2], 1), (vec![640 * MIB], 1)]);
    let job = rig.engine.evacuate_device("/disk1").unwrap();
    for _ in 0..10_000 {
        if !rig.engine.is_leaving(job) {
            return rig;
        }
        rig.engine.step().unwrap();
    }
    panic!("it does not come to its end");
}

#[test]
fn policies_count_what_takes_something_new_and_status_counts_all() {
    let mut rig = half_emptied();
    let data = rig.filesystem("tank/data");
    rig.is_room_for(&data, "file", 40 * MIB).unwrap();
    rig.tick();
    let (status, space) = (rig.engine.status(), rig.engine.store().space());
    let (shown, counted) = (&status.tiers[0], &space.tiers[0]);
    assert_eq!(
        shown.size_bytes,
        shown.devices.iter().map(|device| device.size_bytes).sum()
    );
    assert_eq!(counted.size_bytes, shown.devices[0].size_bytes);
    assert_eq!(counted.used_bytes, shown.devices[0].used_bytes);
    assert!(counted.live_bytes >= 40 * MIB && shown.live_bytes == counted.live_bytes);
    assert_eq!(shown.devices[1].used_bytes, 0, "it is empty");
    for bytes in [
        [
            status.size_bytes,
            space.size_bytes,
            status.tiers.iter().map(|tier| tier.size_bytes).sum(),
        ],
        [
            status.used_bytes,
            space.used_bytes,
            status.tiers.iter().map(|tier| tier.used_bytes).sum(),
        ],
    ] {
        assert_eq!(bytes[0], bytes[1]);
        assert_eq!(bytes[0], bytes[2], "the pool is the sum of its tiers");
    }
}

#[test]
fn content_sinks_from_the_device_that_is_left_when_it_passes_the_mark() {
    let mut rig = half_emptied();
    let data = rig.filesystem("tank/data");
    rig.is_room_for(&data, "file", 100 * MIB).unwrap();
    rig.tick();
    let live = |rig: &Rig| rig.engine.status().tiers[0].live_bytes;
    assert!(live(&rig) >= 90 * MIB, "{}", live(&rig) / MIB);
    let mut settings = rig.engine.pool().tiers()[0].settings.clone();
    (settings.high_water, settings.low_water) = (0.4, 0.3);
    rig.engine.set_tier("tier0", settings).unwrap();
    for _ in 0..20 {
        rig.tick();
    }
    // A third of both devices, two thirds of the one that can be used.
    assert!(live(&rig) <= 64 * MIB, "{}", live(&rig) / MIB);
}
