//! Regions that random writes left in pieces are laid out anew: what that gives back, and what it may not change.

#![allow(clippy::unwrap_used)]

mod edges;
mod interleaved;
mod meanwhile;
mod past;
mod pieces;
mod world;
