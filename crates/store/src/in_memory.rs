//! `in_memory!`: for tests that count, refuse or wait for some calls of a store and leave the others to a
//! [`MemoryStore`](crate::MemoryStore).
//!
//! Invariant: what it writes passes the call on, and nothing else.

/// Within `impl Store for …`: passes these calls on to the field, `in_memory!(memory: get scan flush)`.
#[macro_export]
macro_rules! in_memory {
    (@ $field:ident get) => {
        fn get(&self, key: &[u8]) -> Result<Option<::bytes::Bytes>, $crate::StoreError> {
            self.$field.get(key)
        }
    };
    (@ $field:ident scan) => {
        fn scan(
            &self,
            from: &[u8],
            to: &[u8],
            limit: usize,
        ) -> Result<Vec<(::bytes::Bytes, ::bytes::Bytes)>, $crate::StoreError> {
            self.$field.scan(from, to, limit)
        }
    };
    (@ $field:ident write_chunks) => {
        fn write_chunks(&self, pieces: &[$crate::Piece<'_>]) -> Result<Vec<$crate::Written>, $crate::StoreError> {
            self.$field.write_chunks(pieces)
        }
    };
    (@ $field:ident read_chunk) => {
        fn read_chunk(&self, id: $crate::ChunkId) -> Result<::bytes::Bytes, $crate::StoreError> {
            self.$field.read_chunk(id)
        }
    };
    (@ $field:ident chunk_info) => {
        fn chunk_info(&self, id: $crate::ChunkId) -> Result<Option<$crate::ChunkInfo>, $crate::StoreError> {
            self.$field.chunk_info(id)
        }
    };
    (@ $field:ident commit) => {
        fn commit(&self, batch: $crate::Batch) -> Result<$crate::Sequence, $crate::StoreError> {
            self.$field.commit(batch)
        }
    };
    (@ $field:ident flush) => {
        fn flush(&self, sequence: $crate::Sequence) -> Result<(), $crate::StoreError> {
            self.$field.flush(sequence)
        }
    };
    (@ $field:ident newest) => {
        fn newest(&self) -> $crate::Sequence {
            self.$field.newest()
        }
    };
    (@ $field:ident reserve_beside) => {
        fn reserve_beside(
            &self,
            bytes: u64,
            own: &dyn Fn() -> u64,
        ) -> Result<$crate::Reservation, $crate::StoreError> {
            self.$field.reserve_beside(bytes, own)
        }
    };
    (@ $field:ident reserve_always) => {
        fn reserve_always(&self, bytes: u64) -> $crate::Reservation {
            self.$field.reserve_always(bytes)
        }
    };
    (@ $field:ident space) => {
        fn space(&self) -> $crate::Space {
            self.$field.space()
        }
    };
    (@ $field:ident rewrite) => {
        fn rewrite(
            &self,
            ids: &[$crate::ChunkId],
            placement: $crate::Placement,
        ) -> Result<$crate::RewriteOutcome, $crate::StoreError> {
            self.$field.rewrite(ids, placement)
        }
    };
    ($field:ident: $($call:ident)+) => {
        $($crate::in_memory!(@ $field $call);)+
    };
}
