//! A store in memory, and what is written to it, for the tests of its parts.

use std::sync::Arc;

use terrace_device::{Device, MemoryDevice, SeededRandomness};
use terrace_pool::{CreateOptions, Parallelism, Pool, TierSettings};
use terrace_store::{Compression, Dedup, Flow, Owner, Piece, Placement, Trial};

use crate::{ChunkStore, Options};

/// A new store on one device of so many bytes, without threads of its own.
#[allow(clippy::unwrap_used)]
pub(crate) fn store_in_memory(bytes: u64, options: Options) -> Arc<ChunkStore> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("d", bytes));
    let create = CreateOptions {
        name: "tank".into(),
        tiers: vec![(TierSettings::named("only"), vec![device])],
        properties: Default::default(),
        segment_bytes: None,
        created_nanoseconds: 1,
        force: false,
        parallelism: Parallelism::Sequential,
    };
    let pool = Arc::new(Pool::create(create, &SeededRandomness::new(7)).unwrap());
    let options = Options {
        threads: 0,
        nonce: 1,
        ..options
    };
    ChunkStore::create(pool, options).unwrap()
}

/// A piece that is stored as it is, whatever else is there.
pub(crate) fn raw_piece(content: &[u8]) -> Piece<'_> {
    Piece {
        content,
        compression: Compression::Off,
        trial: Trial::Untried,
        dedup: Dedup::Off,
        placement: Placement::Landing(Flow::Random),
        owner: Owner::default(),
        privileged: false,
    }
}
