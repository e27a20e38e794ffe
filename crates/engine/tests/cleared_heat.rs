//! Heat that is forgotten: nothing is the oldest there is for it, also not after a restart.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use full_pool::{MIB, Rig};

const HOUR: u64 = 3_600_000_000_000;

#[test]
fn what_was_used_before_all_heat_was_forgotten_sinks_no_sooner_than_it_is_unused_since() {
    let mut rig = Rig::new(&[160 * MIB, 320 * MIB]);
    let data = rig.filesystem("tank/data");
    rig.is_room_for(&data, "file", 40 * MIB).unwrap();
    drop(data);
    rig.tick();
    let mut settings = rig.engine.pool().tiers()[0].settings.clone();
    settings.demote_after_seconds = 10 * 3600;
    rig.engine.set_tier("tier0", settings).unwrap();
    rig.engine.clear_heat().unwrap();
    let fast = |rig: &Rig| rig.engine.status().tiers[0].live_bytes;
    for cleanly in [true, false] {
        rig.reopen(cleanly);
        rig.clock.advance(4 * HOUR);
        (0..20).for_each(|_| rig.tick());
        assert!(fast(&rig) >= 40 * MIB, "{} MiB", fast(&rig) / MIB);
    }
    rig.clock.advance(4 * HOUR);
    (0..20).for_each(|_| rig.tick());
    assert!(fast(&rig) < MIB, "{} MiB", fast(&rig) / MIB);
}
