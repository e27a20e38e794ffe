//! `MountOptions`: how a filesystem is mounted.

use std::sync::{Arc, atomic::AtomicU64};

use crate::protocol::TRANSFER_BYTES_MAX;

/// How a filesystem is mounted. `default_permissions` is always on: the kernel checks modes, owners and ACLs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// What `mount` and `df` show as the device: POOL/NAME.
    pub source: String,
    /// Refuse all changes.
    pub read_only: bool,
    /// Whether other users may enter. By default yes for root, no otherwise (others need `user_allow_other` in
    /// /etc/fuse.conf).
    pub allow_other: Option<bool>,
    /// Ignore setuid and setgid bits (nosuid). Always so for mounts of ordinary users.
    pub no_set_id: bool,
    /// Ignore device nodes (nodev). Always so for mounts of ordinary users.
    pub no_devices: bool,
    /// Do not run programs from it (noexec).
    pub no_execute: bool,
    /// Reads leave access times alone (noatime). Without, the dataset's `atime` property says whether they are kept.
    pub no_access_times: bool,
    /// The same of directories (nodiratime); their times never follow reads, so it is only shown.
    pub no_directory_access_times: bool,
    /// Shown (strictatime): the kernel answers reads from its cache, and access times follow by the rule of relatime.
    pub strict_access_times: bool,
    /// Times that only writes through mappings change may reach the dataset late (lazytime).
    pub lazy_times: bool,
    /// Follow no symbolic link (nosymfollow; Linux 5.10, and root alone).
    pub no_symbolic_links: bool,
    /// Every change is durable before it returns (sync).
    pub sync: bool,
    /// The same of changes of names (dirsync).
    pub sync_names: bool,
    /// Keep the kernel from messages of its own about the mount (silent).
    pub silent: bool,
    /// Labels for SELinux (`context=…` and its like), as they are passed on to the kernel.
    pub labels: Vec<String>,
    /// Whether there are extended attributes, and ACLs and capabilities with them. Without, the kernel does not ask for
    /// them, which it else does before the first write to a file and `ls -l` for every file.
    pub extended_attributes: bool,
    /// Most threads that serve requests; they are started as needed.
    pub threads_max: usize,
    /// Whether requests may come through io_uring where the kernel offers it (see `uring_entry.rs`).
    pub ring: bool,
    /// Longest WRITE and READ, bytes; whole pages.
    pub transfer_bytes: usize,
    /// Where the memory counts that the mount takes.
    pub memory_count: MemoryCount,
}

/// Where memory is counted, bytes; of all mounts of a pool in one place.
#[derive(Debug, Clone, Default)]
pub struct MemoryCount(Arc<AtomicU64>);

impl MemoryCount {
    /// In `bytes`.
    pub fn new(bytes: Arc<AtomicU64>) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &Arc<AtomicU64> {
        &self.0
    }
}

impl PartialEq for MemoryCount {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for MemoryCount {}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "terrace".into(),
            read_only: false,
            allow_other: None,
            no_set_id: false,
            no_devices: false,
            no_execute: false,
            no_access_times: false,
            no_directory_access_times: false,
            strict_access_times: false,
            lazy_times: false,
            no_symbolic_links: false,
            sync: false,
            sync_names: false,
            silent: false,
            labels: Vec::new(),
            extended_attributes: true,
            threads_max: THREADS.1 as usize,
            ring: true,
            transfer_bytes: TRANSFER_BYTES_MAX,
            memory_count: MemoryCount::default(),
        }
    }
}

/// Background requests of the kernel for each thread that serves them; the kernel's own default at the least.
const BACKGROUND_PER_THREAD: usize = 8;
const BACKGROUND_MIN: usize = 12;

/// Of the memory budget, the part that the buffers of requests may take that are served at once, and what each takes at most.
const BUFFERS_PART: u64 = 8;
const BUFFER_BYTES: u64 = TRANSFER_BYTES_MAX as u64;
/// Threads of a mount at the least and at the most.
const THREADS: (u64, u64) = (4, 32);
/// What a mount is served with when others have taken that part: what the kernel asks for anyhow, if nobody raises it.
const SPARE_TRANSFER_BYTES: usize = 128 << 10;

impl MountOptions {
    /// Background requests that the kernel may have in flight.
    pub(crate) fn background_max(&self) -> u16 {
        let requests = self.threads_max.saturating_mul(BACKGROUND_PER_THREAD);
        u16::try_from(requests.max(BACKGROUND_MIN)).unwrap_or(u16::MAX)
    }

    /// No more threads, of which each has a buffer, than there is memory for. `others`: mounts of the same budget that are there
    /// already. When those have all that buffers may take, a mount is served sparingly: through the device, by short requests.
    #[must_use]
    pub fn with_memory(mut self, budget_bytes: u64, others: usize) -> Self {
        let threads = (budget_bytes / BUFFERS_PART / BUFFER_BYTES).clamp(THREADS.0, THREADS.1);
        self.threads_max = self.threads_max.min(threads as usize);
        let mounts = budget_bytes / BUFFERS_PART / (THREADS.0 * BUFFER_BYTES);
        if others as u64 >= mounts.max(1) {
            self.threads_max = self.threads_max.min(THREADS.0 as usize);
            self.ring = false;
            self.transfer_bytes = SPARE_TRANSFER_BYTES;
        }
        self
    }

    /// The defaults, for `source` (POOL/NAME).
    pub fn of(source: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_under_way_are_as_many_as_there_is_memory_for() {
        let of = |budget_bytes| {
            let options = MountOptions::default().with_memory(budget_bytes, 0);
            (options.threads_max, options.background_max())
        };
        assert_eq!(of(32 << 20), (4, 32));
        assert_eq!(of(128 << 20), (16, 128));
        assert_eq!(of(1 << 30), (32, 256));
    }

    #[test]
    fn mounts_beyond_what_there_is_memory_for_are_served_sparingly() {
        let of = |budget_bytes, others| {
            let options = MountOptions::default().with_memory(budget_bytes, others);
            (options.ring, options.transfer_bytes, options.threads_max)
        };
        assert_eq!(of(32 << 20, 0), (true, 1 << 20, 4));
        assert_eq!(of(32 << 20, 1), (false, 128 << 10, 4));
        assert_eq!(of(1 << 30, 31), (true, 1 << 20, 32));
        assert_eq!(of(1 << 30, 32), (false, 128 << 10, 4));
    }
}
