//! Roots, as an opening reads them.

use std::sync::Arc;

use terrace_pool::Pool;
use terrace_store::StoreError;

use crate::{
    Options,
    encoding::{Root, decode_root, version, version_of},
    errors::damaged,
};

pub(crate) fn tree_options(options: &Options, pool: &Pool) -> terrace_meta::Options {
    let table_bytes = terrace_meta::Options::default()
        .table_bytes
        .min(pool.segment_bytes() as usize / 2);
    terrace_meta::Options {
        memory_bytes: options.memtable_bytes,
        block_cache_bytes: options.block_cache_bytes,
        table_bytes,
        identity: pool.id(),
    }
}

pub(crate) fn read_root(pool: &Arc<Pool>, payload: &[u8]) -> Result<Root, StoreError> {
    match version_of(payload).map(u32::from) {
        Some(version) if version > version::FORMAT_NEWEST.into() => {
            let known = version::FORMAT_NEWEST.into();
            return Err(StoreError::Newer { version, known });
        }
        // No version is 0: that is damage.
        Some(version @ 1..) if version < version::FORMAT_OLDEST.into() => {
            let oldest = version::FORMAT_OLDEST.into();
            return Err(StoreError::Older { version, oldest });
        }
        _ => {}
    }
    decode_root(pool.clone(), payload).map_err(|error| damaged(format!("root record: {error}")))
}
