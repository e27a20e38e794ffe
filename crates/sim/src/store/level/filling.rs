//! The store filled to the brim, and emptied again.
//!
//! What must hold: a full pool refuses new data, lets go of old data, and then takes new data again.

use super::Run;
use crate::{
    hardware::FaultKind,
    run::{Check, Content},
    store::model::{ChunkUse, Value},
    trace,
};

impl Run {
    /// Writes until the pool is full, then makes room again.
    pub(super) fn fill_up(&mut self) -> Check {
        if self.random.chance(1, 2) {
            return Ok(());
        }
        trace!(self.trace, "filling up");
        let newest = self.model.newest();
        for number in 0..120u64 {
            let contents: Vec<Content> = (0..8)
                .map(|_| Content {
                    texture: 0,
                    seed: self.random.next(),
                    length: 131_072,
                })
                .collect();
            let before = self.coverage.count(FaultKind::PoolFull);
            let Some(written) = self.write_chunks(&contents, false)? else {
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
            self.commit(
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
            if self.coverage.count(FaultKind::PoolFull) > before || self.model.newest() < newest {
                break;
            }
        }
        self.background()?;
        // Deleting always works.
        let doomed: Vec<Vec<u8>> = self
            .model
            .live()
            .keys()
            .filter(|key| key.starts_with(&[0x22, 9]))
            .cloned()
            .collect();
        for keys in doomed.chunks(16) {
            let changes = keys
                .iter()
                .filter(|key| self.model.live().contains_key(*key))
                .map(|key| (key.clone(), None))
                .collect();
            self.commit(changes, Vec::new(), true)?;
        }
        self.rest()
    }
}
