//! `Tree`: a reader, an applier and the upkeep of one tree. Wiring only.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Applier, Extent, ExtentStorage, Key, MetaError, Operation, Options, Progress, Reader, UnreadableExtent,
    Upkeep, Usage, Value, VerifyCursor, VerifyReport,
    entries::Memtable,
    runs::{Version, manifest},
    state::{Current, SEALED_AT},
    table::{Released, TableReader},
    upkeep::read_manifest,
};

/// Smallest and largest target size of a table, bytes.
const TABLE_BYTES: (usize, usize) = (4 << 10, 8 << 20);

/// An ordered map from byte keys to byte values. All methods may be called from any thread.
pub struct Tree {
    reader: Reader,
    applier: Arc<Applier>,
    upkeep: Arc<Upkeep>,
}

/// Its parts.
impl Tree {
    /// Opens the state that `manifest` describes (`None`: an empty tree). Reads no table.
    pub fn open(
        storage: Arc<dyn ExtentStorage>,
        manifest: Option<&[u8]>,
        options: Options,
    ) -> Result<Tree, MetaError> {
        let options = Options {
            table_bytes: options.table_bytes.clamp(TABLE_BYTES.0, TABLE_BYTES.1),
            ..options
        };
        let tables = TableReader::new(storage, options.block_cache_bytes, options.identity);
        let tables = Arc::new(tables);
        let released: Arc<Released> = Arc::default();
        let (mut version, mut next_table, mut pieces) = (Version::default(), 1, Vec::new());
        if let Some(bytes) = manifest {
            let body;
            (body, pieces) = read_manifest(&tables, bytes)?;
            (version, next_table) = manifest::decode_body(&body, &released)?;
        }
        let active = Memtable::after(version.flushed_sequence, options.memory_bytes / SEALED_AT);
        let current = Arc::new(Current::new(version, active));
        let upkeep = Upkeep::new(
            current.clone(),
            tables.clone(),
            released,
            next_table,
            pieces,
            &options,
        );
        Ok(Tree {
            applier: Arc::new(Applier::new(current.clone(), options.memory_bytes)),
            reader: Reader::new(tables, current),
            upkeep: Arc::new(upkeep),
        })
    }

    /// For whoever reads.
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// For the one who applies batches.
    pub fn applier(&self) -> Arc<Applier> {
        self.applier.clone()
    }

    /// For whoever does the background work.
    pub fn upkeep(&self) -> Arc<Upkeep> {
        self.upkeep.clone()
    }

    /// What it may use from now on, as [`Options::memory_bytes`] and [`Options::block_cache_bytes`] say. What is too much
    /// of cached blocks leaves at once; of records as the next steps write them to tables.
    pub fn set_memory(&self, memory_bytes: usize, block_cache_bytes: usize) {
        self.applier.set_memory_bytes(memory_bytes);
        self.reader.set_cache_bytes(block_cache_bytes);
    }
}

/// Applying; see [`Applier`].
impl Tree {
    /// See [`Applier::memory_bytes`].
    pub fn memory_bytes(&self) -> usize {
        self.applier.memory_bytes()
    }

    /// See [`Applier::apply`].
    pub fn apply<K: Into<Key> + AsRef<[u8]>>(
        &self,
        sequence: u64,
        operations: Vec<(K, Operation)>,
    ) -> Result<(), MetaError> {
        self.applier.apply(sequence, operations)
    }

    /// See [`Applier::seal`].
    pub fn seal(&self) -> u64 {
        self.applier.seal()
    }

    /// See [`Applier::newest_sequence`].
    pub fn newest_sequence(&self) -> u64 {
        self.applier.newest_sequence()
    }

    /// See [`Applier::pressure`].
    pub fn pressure(&self) -> f64 {
        self.applier.pressure()
    }

    /// See [`Applier::memory_share`].
    pub fn memory_share(&self) -> f64 {
        self.applier.memory_share()
    }
}

/// Reading; see [`Reader`].
impl Tree {
    /// See [`Reader::flushed_sequence`].
    pub fn flushed_sequence(&self) -> u64 {
        self.reader.flushed_sequence()
    }

    /// See [`Reader::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        self.reader.get(key)
    }

    /// See [`Reader::get_count`].
    pub fn get_count(&self, key: &[u8]) -> Result<i64, MetaError> {
        self.reader.get_count(key)
    }

    /// See [`Reader::scan`].
    pub fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, MetaError> {
        self.reader.scan(from, to, limit)
    }

    /// See [`Reader::get_many`].
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, MetaError> {
        self.reader.get_many(keys)
    }

    /// See [`Reader::recent`].
    pub fn recent(&self, key: &[u8]) -> Option<Option<Bytes>> {
        self.reader.recent(key)
    }

    /// See [`Reader::recent_since`].
    pub fn recent_since(&self, key: &[u8], flushed: u64) -> Option<Option<Bytes>> {
        self.reader.recent_since(key, flushed)
    }

    /// See [`Reader::get_counts`].
    pub fn get_counts<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<i64>, MetaError> {
        self.reader.get_counts(keys)
    }
}

/// Upkeep; see [`Upkeep`].
impl Tree {
    /// See [`Upkeep::merge_closely`].
    pub fn merge_closely(&self, closely: bool) {
        self.upkeep.merge_closely(closely);
    }

    /// See [`Upkeep::step`].
    pub fn step(&self, budget_bytes: usize) -> Result<Progress, MetaError> {
        self.upkeep.step(budget_bytes)
    }

    /// See [`Upkeep::manifest`].
    pub fn manifest(&self) -> Result<Vec<u8>, MetaError> {
        self.upkeep.manifest()
    }

    /// See [`Upkeep::described_sequence`].
    pub fn described_sequence(&self) -> u64 {
        self.upkeep.described_sequence()
    }

    /// See [`Upkeep::take_released`].
    pub fn take_released(&self) -> Vec<Extent> {
        self.upkeep.take_released()
    }

    /// See [`Upkeep::undescribed`].
    pub fn undescribed(&self) -> Vec<Extent> {
        self.upkeep.undescribed()
    }

    /// See [`Upkeep::replaced`].
    pub fn replaced(&self) -> Vec<Extent> {
        self.upkeep.replaced()
    }

    /// See [`Upkeep::manifest_extents`].
    pub fn manifest_extents(&self) -> Vec<Extent> {
        self.upkeep.manifest_extents()
    }

    /// See [`Upkeep::extents`].
    pub fn extents(&self) -> Vec<Extent> {
        self.upkeep.extents()
    }

    /// See [`Upkeep::keys_in`].
    pub fn keys_in(&self, is_one: impl Fn(Extent) -> bool) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.upkeep.keys_in(is_one)
    }

    /// See [`Upkeep::known_unreadable`].
    pub fn known_unreadable(&self) -> Vec<UnreadableExtent> {
        self.upkeep.known_unreadable()
    }

    /// See [`Upkeep::usage`].
    pub fn usage(&self) -> Usage {
        self.upkeep.usage()
    }

    /// See [`Upkeep::rewrite`].
    pub fn rewrite(&self, extents: &[Extent]) -> Result<u64, MetaError> {
        self.upkeep.rewrite(extents)
    }

    /// See [`Upkeep::unreadable`].
    pub fn unreadable(&self) -> Vec<(Vec<u8>, Vec<u8>, MetaError)> {
        self.upkeep.unreadable()
    }

    /// See [`Upkeep::verify_step`].
    pub fn verify_step(
        &self,
        cursor: &mut VerifyCursor,
        budget_bytes: usize,
    ) -> Result<VerifyReport, MetaError> {
        self.upkeep.verify_step(cursor, budget_bytes)
    }
}
