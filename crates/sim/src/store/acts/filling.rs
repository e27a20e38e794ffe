//! The store filled to the brim, and emptied again.
//!
//! What must hold: a full pool refuses new data, lets go of old data, and then takes new data again.

use super::background::{Background, Rest};
use crate::{
    act::Act,
    hardware::FaultKind,
    models::Content,
    store::{
        model::{ChunkUse, Value},
        world::StoreWorld,
    },
    trace,
    violation::Check,
};

/// Writes until the pool is full, then makes room again.
pub(crate) struct FillUp;

impl Act<StoreWorld> for FillUp {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        if world.random.chance(1, 2) {
            return Ok(());
        }
        trace!(world.trace, "filling up");
        let newest = world.model.newest();
        for number in 0..120u64 {
            let contents: Vec<Content> = (0..8)
                .map(|_| Content {
                    texture: 0,
                    seed: world.random.next(),
                    length: 131_072,
                })
                .collect();
            let before = world.coverage.count(FaultKind::PoolFull);
            let Some(written) = world.write_chunks(&contents, false)? else {
                break;
            };
            let uses = written
                .iter()
                .zip(contents)
                .map(|(w, content)| ChunkUse {
                    id: w.id,
                    content,
                    blocks: 32,
                })
                .collect();
            let mut key = vec![0x22, 9];
            key.extend_from_slice(&number.to_be_bytes());
            world.commit(
                vec![(
                    key,
                    Some(Value {
                        uses,
                        padding: Vec::new(),
                    }),
                )],
                written,
                false,
            )?;
            if world.coverage.count(FaultKind::PoolFull) > before || world.model.newest() < newest {
                break;
            }
        }
        Background.perform(world)?;
        // Deleting always works.
        let doomed: Vec<Vec<u8>> = world
            .model
            .live()
            .keys()
            .filter(|key| key.starts_with(&[0x22, 9]))
            .cloned()
            .collect();
        for keys in doomed.chunks(16) {
            let changes = keys
                .iter()
                .filter(|key| world.model.live().contains_key(*key))
                .map(|key| (key.clone(), None))
                .collect();
            world.commit(changes, Vec::new(), true)?;
        }
        Rest.perform(world)
    }
}
