//! The world of a run: rig and models; how an error is judged, and how the pool is opened again and compared.

mod judging;
mod members;
mod recovery;
mod world;

pub(crate) use judging::{Consequence, Judged};
pub(crate) use world::World;
