//! Clients that hold a chunk over its death: they have written content that is there, the last record with it is deleted, the
//! background frees what is dead, and then they commit a record with the chunk that they hold, or give it up: then it must go at
//! last.

use std::mem::swap;

use terrace_store::{Compression, Flow, Placement};

use super::background::{Background, Rest};
use crate::{
    act::Act,
    hardware::Random,
    store::{
        model::{ChunkUse, Value},
        world::StoreWorld,
    },
    trace,
    violation::Check,
};

/// Now and then, by chance of its own.
pub(crate) struct HoldOverDeath {
    random: Random,
}

impl HoldOverDeath {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed ^ 0xA51D_E000_0000),
        }
    }

    fn hold(world: &mut StoreWorld) -> Check {
        let with_chunks = |value: &Value| !value.uses.is_empty();
        let candidates: Vec<(Vec<u8>, ChunkUse)> = world
            .model
            .live()
            .iter()
            .filter(|(_, value)| with_chunks(value))
            .map(|(key, value)| (key.clone(), value.uses[0]))
            .collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let (_, held) = *world.random.pick(&candidates);
        trace!(world.trace, "holding {} over its death", held.id);
        let placement = Placement::Landing(Flow::Random);
        let Some(written) = world.write_as(&[held.content], Compression::Lz4, true, placement, false)? else {
            return Ok(());
        };
        // An opening takes what is held away.
        let id = written.first().map(|written| written.id);
        world
            .held
            .extend(written.into_iter().map(|written| (written, held.content)));
        let with_it = |value: &Value| value.uses.iter().any(|chunk| chunk.id == held.id);
        let doomed: Vec<_> = world
            .model
            .live()
            .iter()
            .filter(|(_, value)| with_it(value))
            .collect();
        let doomed = doomed.into_iter().map(|(key, _)| (key.clone(), None)).collect();
        world.commit(doomed, Vec::new(), false)?;
        for _ in 0..3 {
            Background.perform(world)?;
        }
        let Some(at) = world.held.iter().position(|(written, _)| Some(written.id) == id) else {
            return Ok(());
        };
        let (written, content) = world.held.swap_remove(at);
        if world.leaving.chance(1, 2) {
            // Nobody commits it any more, and nobody deletes anything for its sake.
            trace!(world.trace, "giving {} up", written.id);
            drop(written);
            world.held.clear();
            return Rest.perform(world);
        }
        let value = Value {
            uses: vec![ChunkUse {
                id: written.id,
                content,
                blocks: i64::from(content.length.div_ceil(4096)),
            }],
            padding: Vec::new(),
        };
        let key = world.key();
        world.commit(vec![(key, Some(value))], vec![written], false)
    }
}

impl Act<StoreWorld> for HoldOverDeath {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        if !world.is_sound() || !self.random.chance(1, 12) {
            return Ok(());
        }
        // What is done for it draws from its chance too.
        swap(&mut world.random, &mut self.random);
        let done = Self::hold(world);
        swap(&mut world.random, &mut self.random);
        done
    }
}
