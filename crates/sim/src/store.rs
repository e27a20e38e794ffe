//! The level of the simulator that drives the chunk store alone: batches, flushes, checkpoints, compaction, moves,
//! scrubs and full pools, checked against batches kept in RAM (`store/model.rs`). A run is `store/level.rs`.

pub mod level;
pub mod model;
