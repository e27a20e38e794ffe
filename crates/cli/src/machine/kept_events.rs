//! What happened in a pool that took no writes any more: kept here, beside what else this machine knows of it, until the pool is
//! opened again and takes it.
//!
//! Invariant: a report, not data: what cannot be written or read here stops nothing.

use std::{fs, io};

use serde::{Deserialize, Serialize};
use terrace_engine::{KeepEvents, Unwritten};

use super::places::{Places, replace_file};

/// Most bytes of the file that are read.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Most events of daemons that are kept for a pool that never opens.
const EVENTS_MAX: usize = 256;

/// As they are in the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// Another pool may have got the name since.
    pool_id: String,
    events: Vec<Unwritten>,
}

/// Those of the pool of this name.
pub struct KeptEvents {
    places: Places,
    pool: String,
}

impl KeptEvents {
    /// Of a pool.
    pub fn of(places: &Places, pool: &str) -> Self {
        Self {
            places: places.clone(),
            pool: pool.to_owned(),
        }
    }

    /// The newest of some kinds.
    pub fn newest(&self, pool_id: &str, kinds: &[&str]) -> Option<Unwritten> {
        let events = self.kept(pool_id).into_iter();
        events.rev().find(|event| kinds.contains(&&*event.kind))
    }

    /// Keeps one more.
    pub fn add(&self, pool_id: &str, event: Unwritten) {
        let mut events = self.kept(pool_id);
        events.push(event);
        let surplus = events.len().saturating_sub(EVENTS_MAX);
        events.drain(..surplus);
        self.keep(pool_id, &events);
    }

    fn read(&self) -> io::Result<Kept> {
        use io::Read;
        let mut text = Vec::new();
        let file = fs::File::open(self.places.events_file(&self.pool))?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

impl KeepEvents for KeptEvents {
    fn kept(&self, pool_id: &str) -> Vec<Unwritten> {
        match self.read() {
            Ok(kept) if kept.pool_id == pool_id => kept.events,
            Ok(_) => Vec::new(),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%error, pool = self.pool, "events of an earlier run cannot be read");
                }
                Vec::new()
            }
        }
    }

    fn keep(&self, pool_id: &str, events: &[Unwritten]) {
        let path = self.places.events_file(&self.pool);
        let kept = match events {
            [] => fs::remove_file(&path),
            events => serde_json::to_vec_pretty(&Kept {
                pool_id: pool_id.to_owned(),
                events: events.to_vec(),
            })
            .map_err(io::Error::other)
            .and_then(|text| replace_file(&path, &text)),
        };
        if let Err(error) = kept
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, pool = self.pool, "what happens is told as long as the daemon runs, and cannot be kept");
        }
    }
}
