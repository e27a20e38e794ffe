//! Mounting over FUSE within the pool's memory: filesystems, and volumes that are to be attached, share what the budget has for mounts.

use std::{path::Path, sync::Arc};

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
    let front_ends = environment.front_ends.clone();
    let mut options = options.with_memory(environment.budget.limit_bytes(), front_ends.add());
    options.memory_count = MemoryCount::new(front_ends.counter());
    let mounted = terrace_fuse::mount(directory, content, past, &options);
    match &mounted {
        Ok(session) => session.when_ended(move || front_ends.remove()),
        Err(_) => front_ends.remove(),
    }
    mounted
}
