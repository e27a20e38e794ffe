//! Roots, as an opening reads them.

use std::sync::Arc;

use terrace_pool::Pool;
use terrace_store::StoreError;

use super::{
    root::{Root, decode_root, version_of},
    storage::MetaStorage,
};
use crate::{Options, encoding::version, errors::damaged};

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

/// What is to be said where the pool cannot be opened without the metadata that missing devices alone have; `None` if they have none.
pub(crate) fn metadata_is_away(pool: &Pool, meta: &MetaStorage) -> Option<StoreError> {
    let devices = pool.devices();
    let describe = |number: u16| match devices.iter().find(|device| device.number == number) {
        Some(device) => format!("device {number} (last seen as {})", device.path),
        None => format!("device {number}"),
    };
    let on: Vec<String> = meta.devices_out_of_reach().into_iter().map(describe).collect();
    let (on, name) = (on.join(" and "), pool.name());
    (!on.is_empty()).then(|| {
        StoreError::Device(
            format!(
                "metadata that pool '{name}' cannot be opened without lies only on {on}, which is missing; no content was changed: bring it \
                 back and type 'terrace start {name}', or save what is left with 'terrace verify {name} --rebuild NEWPOOL'"
            )
            .into(),
        )
    })
}
