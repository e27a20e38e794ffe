//! A live filesystem against a plain model in RAM, with commits, snapshots, clean reopening and crashes in between.
//! After each commit and crash everything is compared, and the references with a full walk.

#![allow(clippy::unwrap_used)]

mod change;
mod comparison;
mod model;
mod world;

use proptest::prelude::*;

use self::{change::change, world::World};

/// The same cases in every run, unless `TERRACE_SEED` and `TERRACE_CASES` ask for others.
fn config() -> ProptestConfig {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse::<u64>().ok())
    };
    ProptestConfig {
        cases: number("TERRACE_CASES").unwrap_or(32) as u32,
        rng_seed: proptest::test_runner::RngSeed::Fixed(number("TERRACE_SEED").unwrap_or(2)),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_filesystem_is_its_model(changes in proptest::collection::vec(change(), 1..90)) {
        let mut world = World::new();
        for change in &changes {
            world = world.apply(change);
        }
        world.finish();
    }
}
