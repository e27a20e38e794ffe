//! `Options`: what a tree may use; and `Usage`: what it does use.

/// Bounds of a tree. All sizes in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Memory for records that are not yet in tables. The newest part is sealed by itself at a quarter of this;
    /// [`Tree::pressure`](crate::Tree::pressure) reaches 1 when all of it is taken.
    pub memory_bytes: usize,
    /// Memory for blocks, indexes and filters read from tables.
    pub block_cache_bytes: usize,
    /// Target size of a table, which is one extent: 64 KiB to 8 MiB; a table exceeds it by at most one block.
    pub table_bytes: usize,
    /// Whose tree it is; stands in every table, so that tables can be told apart that were found without a manifest.
    pub identity: [u8; 16],
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            block_cache_bytes: 64 << 20,
            table_bytes: 896 << 10,
            identity: [0; 16],
        }
    }
}

/// What a tree takes and how it is shaped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of all extents of the current state (tables and manifest).
    pub bytes_on_device: u64,
    /// Bytes of extents that were replaced and wait for a manifest or for readers.
    pub bytes_replaced: u64,
    /// Memory of records not yet in tables, bytes.
    pub memory_bytes: usize,
    /// Memory of cached blocks, indexes and filters, bytes.
    pub cache_bytes: usize,
    /// Memtables sealed and not yet written.
    pub sealed: usize,
    /// Sorted runs; a get may look into each (a filter spares most of them).
    pub runs: usize,
    /// Tables in all runs.
    pub tables: usize,
    /// Entries in all tables, counting superseded ones and deletions.
    pub entries: u64,
    /// Merges that stand still because an input is damaged.
    pub blocked_merges: usize,
}

/// Whether there is more background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Something was done; call again.
    More,
    /// Nothing is left to do now.
    Idle,
}
