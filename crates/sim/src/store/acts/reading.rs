//! Clients of the store that read: records, stretches of keys, and chunks whole, in part and together.
//!
//! Invariant: every answer is what the model says, or an error that a fault explains.

use terrace_store::{ChunkId, Store};

use crate::{
    act::Act,
    ensure,
    store::{model::Value, world::StoreWorld},
    violation::Check,
};

/// Some records, their chunks, and a stretch of keys are read.
pub(crate) struct Read;

impl Act<StoreWorld> for Read {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        let store = world.store()?;
        for _ in 0..world.random.between(1, 5) {
            let key = world.key();
            match store.get(&key) {
                Ok(value) => {
                    let expected = world.model.live().get(&key).map(Value::encode);
                    ensure!(
                        value.as_deref() == expected.as_deref(),
                        "get {key:02x?} answered {:?} bytes, not {:?}",
                        value.map(|v| v.len()),
                        expected.map(|v| v.len())
                    );
                }
                Err(error) => return world.after_error("get", &error),
            }
            let Some(value) = world.model.live().get(&key).cloned() else {
                continue;
            };
            let ids: Vec<ChunkId> = value.uses.iter().map(|chunk| chunk.id).collect();
            if ids.len() > 1 && world.random.chance(1, 2) {
                // Those that lie together are read together.
                for (chunk, read) in value.uses.iter().zip(store.read_chunks(&ids)) {
                    match read {
                        Ok(bytes) => ensure!(
                            bytes == chunk.content.bytes(),
                            "chunk {} reads as something else among others",
                            chunk.id
                        ),
                        Err(error) => return world.after_error("read_chunks", &error),
                    }
                }
            }
            for chunk in &value.uses {
                let bytes = chunk.content.bytes();
                let result = if world.random.chance(1, 2) && !bytes.is_empty() {
                    let offset = world.random.index(bytes.len());
                    let length = world.random.index(bytes.len() - offset + 1);
                    store
                        .read_chunk_part(chunk.id, offset, length)
                        .map(|part| part == bytes[offset..offset + length])
                } else {
                    store.read_chunk(chunk.id).map(|whole| whole == bytes)
                };
                match result {
                    Ok(equal) => ensure!(equal, "chunk {} reads as something else", chunk.id),
                    Err(error) => return world.after_error("read_chunk", &error),
                }
            }
        }
        if world.random.chance(1, 3) {
            let (mut from, mut to) = (world.key(), world.key());
            if from > to {
                std::mem::swap(&mut from, &mut to);
            }
            let limit = world.random.between(1, 40) as usize;
            match store.scan(&from, &to, limit) {
                Ok(found) => {
                    let expected: Vec<(Vec<u8>, Vec<u8>)> = world
                        .model
                        .live()
                        .range(from.clone()..to.max(from))
                        .take(limit)
                        .map(|(key, value)| (key.clone(), value.encode()))
                        .collect();
                    ensure!(
                        found
                            .iter()
                            .map(|(k, v)| (k.to_vec(), v.to_vec()))
                            .eq(expected.iter().cloned()),
                        "a scan found {} records, not {} (or others)",
                        found.len(),
                        expected.len()
                    );
                }
                Err(error) => return world.after_error("scan", &error),
            }
        }
        Ok(())
    }
}
