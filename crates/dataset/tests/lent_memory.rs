//! Memory that writers and the store leave is lent to readers, and is there again for the writer that wants it.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_cache::Budget;
use terrace_dataset::{Datasets, Environment, NewDataset};
use terrace_device::ManualClock;
use terrace_store::MemoryStore;

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;

#[test]
fn readers_have_what_writers_leave_until_they_want_it() {
    let limit = 64 * MIB;
    let budget = Arc::new(Budget::new(limit).without_delays());
    let store = Arc::new(MemoryStore::new(1 << 30));
    let environment = Arc::new(Environment::with_budget(
        store,
        Arc::new(ManualClock::new(1)),
        budget.clone(),
    ));
    let datasets = Datasets::open(environment.clone(), "pool").unwrap();
    let new = NewDataset {
        volume_bytes: Some(64 * MIB),
        sparse: true,
        ..NewDataset::default()
    };
    datasets.create("pool/v", &new).unwrap();
    let volume = datasets.volume("pool/v").unwrap();
    let blocks = (limit / BLOCK as u64) as usize;
    let mut block = [0; BLOCK];
    let mut fill = |index: usize, seed: u64| {
        let mut state = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
        for word in block.chunks_exact_mut(8) {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(seed | 1);
            word.copy_from_slice(&state.to_le_bytes());
        }
        block
    };
    let mut content = vec![0; BLOCK];
    for index in 0..blocks {
        volume.write((index * BLOCK) as u64, &fill(index, 1)).unwrap();
    }
    volume.flush().unwrap();

    let scattered = |at: usize| at * 7919 % blocks;
    let read_all = |content: &mut Vec<u8>| {
        for at in 0..blocks {
            volume.read((scattered(at) * BLOCK) as u64, content).unwrap();
        }
    };
    read_all(&mut content);
    let before = environment.cache.counters().bytes;
    assert!(before <= limit / 4);
    // Nobody writes any more, and what there was is forgotten in time.
    (0..60).for_each(|_| environment.lend_memory(4 * MIB, u64::MAX));
    (0..2).for_each(|_| read_all(&mut content));
    let lent = environment.cache.counters().bytes;
    assert!(lent > before + 16 * MIB, "{before}, then {lent}");

    // All shares in use fit into the whole at any moment.
    let mut most = 0;
    for at in 0..blocks {
        volume
            .write((scattered(at) * BLOCK) as u64, &fill(at, 2))
            .unwrap();
        let used = budget.dirty_bytes() + environment.cache.counters().bytes;
        assert!(
            used + 4 * MIB + budget.object_bytes() <= limit,
            "{used} bytes after {at} blocks, {} of them dirty",
            budget.dirty_bytes()
        );
        most = most.max(budget.dirty_bytes());
    }
    assert!(
        most + MIB >= budget.dirty_limit_bytes(),
        "writers have all of their share"
    );
    volume.flush().unwrap();
    for at in [0, 1, blocks / 2, blocks - 1] {
        volume.read((scattered(at) * BLOCK) as u64, &mut content).unwrap();
        assert!(content == fill(at, 2), "block {at}");
    }
}
