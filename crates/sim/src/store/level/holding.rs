//! Clients that hold a chunk over its death: they have written content that is there, the last record with it is deleted, the
//! background frees what is dead, and then they commit a record with the chunk that they hold, or give it up: then it must go at
//! last.

use std::mem::swap;

use terrace_store::{Compression, Flow, Placement};

use super::Run;
use crate::{
    run::Check,
    store::model::{ChunkUse, Value},
    trace,
};

impl Run {
    /// Now and then, by chance of its own.
    pub(super) fn hold_now_and_then(&mut self) -> Check {
        if self.lying || self.broken || self.store.is_none() || !self.aside.chance(1, 12) {
            return Ok(());
        }
        swap(&mut self.random, &mut self.aside);
        let done = self.hold_over_death();
        swap(&mut self.random, &mut self.aside);
        done
    }

    fn hold_over_death(&mut self) -> Check {
        let with_chunks = |value: &Value| !value.uses.is_empty();
        let candidates: Vec<(Vec<u8>, ChunkUse)> = self
            .model
            .live()
            .iter()
            .filter(|(_, value)| with_chunks(value))
            .map(|(key, value)| (key.clone(), value.uses[0]))
            .collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let (_, held) = *self.random.pick(&candidates);
        trace!(self.trace, "holding {} over its death", held.id);
        let placement = Placement::Landing(Flow::Random);
        let Some(written) = self.write_as(&[held.content], Compression::Lz4, true, placement, false)? else {
            return Ok(());
        };
        // An opening takes what is held away.
        let id = written.first().map(|written| written.id);
        self.held
            .extend(written.into_iter().map(|written| (written, held.content)));
        let with_it = |value: &Value| value.uses.iter().any(|chunk| chunk.id == held.id);
        let doomed: Vec<_> = self
            .model
            .live()
            .iter()
            .filter(|(_, value)| with_it(value))
            .collect();
        let doomed = doomed.into_iter().map(|(key, _)| (key.clone(), None)).collect();
        self.commit(doomed, Vec::new(), false)?;
        for _ in 0..3 {
            self.background()?;
        }
        let Some(at) = self.held.iter().position(|(written, _)| Some(written.id) == id) else {
            return Ok(());
        };
        let (written, content) = self.held.swap_remove(at);
        if self.leaving.chance(1, 2) {
            // Nobody commits it any more, and nobody deletes anything for its sake.
            trace!(self.trace, "giving {} up", written.id);
            drop(written);
            self.held.clear();
            return self.rest();
        }
        let value = Value {
            uses: vec![ChunkUse {
                id: written.id,
                content,
                blocks: i64::from(content.length.div_ceil(4096)),
            }],
            padding: Vec::new(),
        };
        let key = self.key();
        self.commit(vec![(key, Some(value))], vec![written], false)
    }
}
