//! Commits: what is dirty is frozen, built into a batch, and handed to the store.
//!
//! Owns what is frozen and waits, and the rounds of those who wait for a commit ([`CommitQueue`]).

mod build;
mod build_regions;
mod chunk_writer;
mod chunking;
mod committed;
mod content;
mod freeze;
mod group;
mod preallocated_count;

pub(crate) use build::FREED_AT_ONCE_BYTES;
pub(crate) use chunk_writer::ChunkWriter;
pub(crate) use chunking::{
    Part, Run, blocks_of, compression_of, dedup_of, is_zero, joined, runs, runs_of_data,
};
pub(crate) use freeze::{STREAM_BYTES, flow};
pub(crate) use group::CommitQueue;
