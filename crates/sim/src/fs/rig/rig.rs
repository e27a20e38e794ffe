//! `Rig`: a simulated machine with a whole engine on it, driven without threads.
//!
//! Invariant: the engine is open, or there is none; handles never outlive it.

use std::{collections::BTreeMap, sync::Arc};

use terrace_device::{Clock, Device};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};
use terrace_pool::{LABEL_BYTES, Label};

use super::{condition::Condition, handles::Handles, members::Members};
use crate::{
    hardware::{Coverage, Machine, Random, SharedRandom},
    rig::{MIB, Shape},
    trace,
    trace::Trace,
    violation::{Check, Violation},
};

/// See the module.
pub(crate) struct Rig {
    pub(crate) machine: Arc<Machine>,
    pub(crate) engine: Option<Arc<Engine>>,
    pub(crate) handles: Handles,
    /// Disks that are part of the pool, and the one that is away.
    pub(crate) members: Members,
    pub(crate) condition: Condition,
    pub(crate) trace: Trace,
    pub(crate) coverage: Arc<Coverage>,
    /// Chance of the run.
    pub(crate) random: Random,
    /// Another source of chance, so that what was added later left the kept seeds as they were.
    pub(crate) aside: Random,
    /// Chance of disks that are pulled.
    pub(crate) pulling: Random,
    /// How often what is read is read at once: in some runs again and again.
    pub(crate) reads_of_the_same: u32,
    shape: Shape,
    /// Memory budget of the engine, bytes.
    memory_bytes: u64,
    /// What a step of the mover moves, bytes: little in some runs, so that much happens between two of them.
    step_bytes: u64,
    /// Chance of openings.
    opening: Random,
}

impl Rig {
    /// The machine of a seed, with empty disks.
    pub(crate) fn new(seed: u64, coverage: Arc<Coverage>, trace: Trace) -> Self {
        let mut chance = Random::new(seed ^ 0xF5_0000_0000);
        let shape = Shape::choose(&mut chance);
        trace!(trace, "fs level, {shape:?}");
        let mut random = chance.fork(1);
        let mut disks = shape.disks();
        // Not part of the pool yet.
        for _ in 0..random.between(1, 2) {
            disks.push((random.between(16, 36) * MIB, random.chance(1, 6)));
        }
        let machine = Machine::new(&disks, random.fork(1), coverage.clone(), trace.clone());
        // In very little memory objects, region records and names are put out of RAM all the time.
        let memory_bytes = *random.pick(&[MIB / 4, 3 * MIB, 6 * MIB, 16 * MIB]);
        let step_bytes = *random.pick(&[32 << 10, 256 << 10, 4 << 20]);
        Self {
            machine,
            engine: None,
            handles: Handles::default(),
            members: Members::default(),
            condition: Condition::default(),
            trace,
            coverage,
            random: chance.fork(2),
            aside: Random::new(seed ^ 0xA51D_E000_0000),
            // A number with which the seeds that are kept do as they did.
            pulling: Random::new(seed ^ 0xAB5E_2619_0000),
            reads_of_the_same: if step_bytes < MIB { 6 } else { 1 },
            shape,
            memory_bytes,
            step_bytes,
            opening: random.fork(2),
        }
    }

    pub(crate) fn engine(&self) -> Check<Arc<Engine>> {
        self.engine
            .clone()
            .ok_or_else(|| Violation("the engine is not open".into()))
    }

    pub(crate) fn is_powered(&self) -> bool {
        self.machine.is_powered()
    }

    /// Seconds since 1970 by the simulated clock.
    pub(crate) fn now_seconds(&self) -> i64 {
        (self.machine.clock.now_nanoseconds() / 1_000_000_000) as i64
    }

    fn options(&mut self) -> OpenOptions {
        OpenOptions {
            randomness: Arc::new(SharedRandom::new(self.opening.fork(3))),
            memory_bytes: Some(self.memory_bytes),
            ..OpenOptions::driven(self.machine.clock.clone(), self.opening.next())
        }
    }

    /// Makes the pool.
    pub(crate) fn create(&mut self) -> Result<Arc<Engine>, String> {
        let mut devices = self.machine.plug_in().into_iter();
        let mut tiers = Vec::new();
        let mut spec = PoolSpec {
            name: "pool".into(),
            tiers: Vec::new(),
            properties: BTreeMap::new(),
            segment_bytes: Some(MIB as u32),
        };
        for (number, disks) in self.shape.tiers.iter().enumerate() {
            spec.tiers.push(TierSpec {
                name: format!("tier{number}"),
                devices: Vec::new(),
                copies: self.shape.copies[number],
            });
            tiers.push(
                devices
                    .by_ref()
                    .take(disks.len())
                    .collect::<Vec<Arc<dyn Device>>>(),
            );
        }
        let options = self.options();
        let engine = Engine::create_on(&spec, tiers, options).map_err(|error| error.to_string())?;
        self.set_pace(&engine);
        Ok(engine)
    }

    /// Opens the pool from the disks as they are, in an order of chance.
    pub(crate) fn open(&mut self, degraded: bool) -> Result<Arc<Engine>, String> {
        let mut devices = self.machine.plug_in();
        let turn = self.opening.index(devices.len());
        devices.rotate_left(turn);
        devices.retain(|device| is_labelled(&**device));
        let options = OpenOptions {
            degraded,
            ..self.options()
        };
        let engine = Engine::open(devices, options).map_err(|error| error.to_string())?;
        self.set_pace(&engine);
        Ok(engine)
    }

    /// Where the mover takes small steps, it also takes little for hot and little for cold.
    fn set_pace(&self, engine: &Engine) {
        engine.mover().set_step_bytes(self.step_bytes);
        if self.step_bytes < MIB {
            let reads = self.step_bytes >> 13;
            engine.environment().chunk_heat.limit_window(reads);
        }
    }
}

/// Whether there is a label on a device, or it cannot be told: what a search for the devices of a pool asks.
fn is_labelled(device: &dyn Device) -> bool {
    let label_bytes = LABEL_BYTES as u64;
    let last = device.size_bytes() - label_bytes;
    [0, label_bytes, last].into_iter().any(|offset| {
        let mut buffer = vec![0; LABEL_BYTES];
        device.read_at(offset, &mut buffer).is_err() || Label::decode(&buffer).is_ok()
    })
}
