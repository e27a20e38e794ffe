//! Mounting over FUSE within the pool's memory: filesystems, and volumes that are to be attached, share what the budget has for mounts.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use terrace_dataset::Environment;
use terrace_fuse::{Content, FuseError, MemoryCount, MountOptions, Past, Session};

/// Mounts `content` as [`terrace_fuse::mount`] does, with what is left of the budget.
pub fn mount_within(
    environment: &Environment,
    directory: &Path,
    content: Content,
    past: Option<Arc<dyn Past>>,
    options: MountOptions,
) -> Result<Session, FuseError> {
    let others = environment.front_ends.fetch_add(1, Relaxed);
    let mut options = options.with_memory(environment.budget.limit_bytes(), others);
    options.memory_count = MemoryCount::new(environment.front_end_bytes.clone());
    let count = environment.front_ends.clone();
    let mounted = terrace_fuse::mount(directory, content, past, &options);
    match &mounted {
        Ok(session) => session.when_ended(move || {
            count.fetch_sub(1, Relaxed);
        }),
        Err(_) => {
            count.fetch_sub(1, Relaxed);
        }
    }
    mounted
}
