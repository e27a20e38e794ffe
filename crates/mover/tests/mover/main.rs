//! Policies and jobs over the in-memory store with its two tiers: one module for each thing that moves data.

#![allow(clippy::unwrap_used)]

mod by_hand;
mod demotion;
mod jobs;
mod pins;
mod pool;
mod promotion;
