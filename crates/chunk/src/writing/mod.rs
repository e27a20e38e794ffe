//! Writing: content becomes chunks; what is stored already is referred to.

mod writer;
pub(crate) use writer::ChunkWriter;
