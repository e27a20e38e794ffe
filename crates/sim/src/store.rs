//! The level of the simulator that drives the chunk store alone: batches, flushes, checkpoints, compaction, moves,
//! scrubs and full pools, checked against batches kept in RAM (`store/model.rs`). Its tables are in `store/level.rs`.

mod acts;
pub mod level;
pub mod model;
mod world;

pub(crate) use acts::Populate;
pub(crate) use world::StoreWorld;
