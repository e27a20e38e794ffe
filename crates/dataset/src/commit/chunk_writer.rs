//! `ChunkWriter`: hands pieces of content to the store, on the tier that a pin names or where they land.
//!
//! Invariant: chunks are written with the right to the reserve, because room for them was taken when the data was accepted.

use super::chunking::{Part, compression_of, dedup_of};
use crate::{
    live::{DatasetState, ObjectTable},
    objects::DirectoryPin,
    posix::{FsError, ROOT},
    settings::Settings,
};
use std::sync::Arc;
use terrace_store::{Owner, Piece, Placement, Written};

/// Directories above one another that are looked at for a pin.
const DEPTH_MAX: usize = 4096;
/// See the module.
pub(crate) struct ChunkWriter {
    dataset: Arc<DatasetState>,
    table: Arc<ObjectTable>,
}

impl ChunkWriter {
    pub(crate) fn new(dataset: &Arc<DatasetState>, table: &Arc<ObjectTable>) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            table: table.clone(),
        })
    }

    /// The tier of an object by its own pin, or by that of the nearest directory above it.
    fn pinned_tier(&self, object: u64) -> Option<u8> {
        let pins = &self.dataset.environment().pins;
        let dataset = self.dataset.number();
        if let Some(own) = pins.tier_of(dataset, object) {
            return Some(own);
        }
        if !pins.has_directories(dataset) {
            return None;
        }
        let (mut at, body) = {
            let object = self.table.object(object).ok()?;
            let state = object.state();
            (state.found_in, state.inode.body)
        };
        if at == 0 {
            // Found by its number alone: as the mover knows it.
            return pins.tier_beneath(dataset, body);
        }
        for _ in 0..DEPTH_MAX {
            if let Some(tier) = pins.tier_of(dataset, at) {
                let directory = at;
                pins.note_beneath(dataset, body, DirectoryPin { tier, directory });
                return Some(tier);
            }
            if at == ROOT {
                return None;
            }
            at = self.table.parent_of(&self.table.directory(at).ok()?);
        }
        None
    }

    /// Hands parts to the store; the answers come in the same order.
    pub(crate) fn store_parts(
        &self,
        settings: &Settings,
        checkpoint: u64,
        parts: &[Part<'_>],
    ) -> Result<Vec<Written>, FsError> {
        let dataset = self.dataset.number();
        let pieces: Vec<Piece<'_>> = parts
            .iter()
            .map(|part| Piece {
                content: part.content,
                compression: compression_of(settings, part.plain),
                trial: part.trial,
                dedup: dedup_of(settings, part.plain),
                placement: match self.pinned_tier(part.object).or(settings.pin_tier) {
                    Some(tier) => Placement::Tier { tier, strict: false },
                    None => Placement::Landing(part.flow),
                },
                owner: Owner {
                    dataset,
                    object: part.object,
                    block: part.block,
                    checkpoint,
                },
                privileged: true,
            })
            .collect();
        let written = self.dataset.store().write_chunks(&pieces)?;
        if written.len() != parts.len() {
            return Err(FsError::io(
                "the store returned another number of chunks than it was given",
            ));
        }
        Ok(written)
    }
}
