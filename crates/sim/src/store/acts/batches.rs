//! Clients of the store that commit batches, flush them, or keep chunks for later.

use crate::{
    act::Act,
    models::Content,
    store::{
        model::{ChunkUse, Value},
        world::StoreWorld,
    },
    violation::Check,
};

/// New chunks, and a batch of records that refer to them, to chunks of other records, or to those kept before.
pub(crate) struct CommitBatch;

impl Act<StoreWorld> for CommitBatch {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        let keys: Vec<Vec<u8>> = (0..world.random.between(1, 6)).map(|_| world.key()).collect();
        let most = *world.random.pick(&[5_000, 20_000, 60_000, 131_072]);
        let count = if world.random.chance(1, 5) {
            0
        } else {
            world.random.between(1, 6)
        };
        let contents: Vec<Content> = (0..count)
            .map(|_| Content::choose(&mut world.random, most))
            .collect();
        let mut fresh = Vec::new();
        if !contents.is_empty() {
            let Some(written) = world.write_chunks(&contents, false)? else {
                return Ok(());
            };
            fresh = written.into_iter().zip(contents).collect();
        }
        if world.random.chance(1, 8) && !fresh.is_empty() {
            // Kept for a later batch, or for none.
            world.held.append(&mut fresh);
            return Ok(());
        }
        if world.random.chance(1, 3) {
            fresh.append(&mut world.held);
        }
        let mut changes: Vec<(Vec<u8>, Option<Value>)> = Vec::new();
        for key in keys {
            if changes.iter().any(|(other, _)| *other == key) {
                continue;
            }
            if world.random.chance(1, 5) {
                changes.push((key, None));
                continue;
            }
            let mut value = Value::default();
            for _ in 0..world.random.below(4) {
                // New chunks, or those of another record (a clone).
                let shared = world.random.chance(1, 4);
                if shared && !world.model.live().is_empty() {
                    let index = world.random.index(world.model.live().len());
                    let donor = world.model.live().values().nth(index);
                    if let Some(chunk) = donor.and_then(|value| value.uses.first()) {
                        value.uses.push(ChunkUse {
                            blocks: world.random.between(1, 32) as i64,
                            ..*chunk
                        });
                    }
                } else if !fresh.is_empty() {
                    let (written, content) = &fresh[world.random.index(fresh.len())];
                    let blocks = i64::from(content.length.div_ceil(4096));
                    value.uses.push(ChunkUse {
                        id: written.id,
                        content: *content,
                        blocks,
                    });
                }
            }
            let long = world.random.chance(if world.wordy { 29 } else { 1 }, 30);
            value.padding = vec![
                world.random.next() as u8;
                match (long, world.wordy) {
                    (true, true) => world.random.between(8_000, 30_000),
                    (true, false) => world.random.skewed(30_000),
                    _ => world.random.skewed(300),
                } as usize
            ];
            changes.push((key, Some(value)));
        }
        world.commit(
            changes,
            fresh.into_iter().map(|(written, _)| written).collect(),
            false,
        )
    }
}

/// Everything so far becomes durable.
pub(crate) struct Flush;

impl Act<StoreWorld> for Flush {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        world.flush()
    }
}

/// Chunks that were kept for later are given up.
pub(crate) struct DropHeld;

impl Act<StoreWorld> for DropHeld {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        world.held.clear();
        Ok(())
    }
}
