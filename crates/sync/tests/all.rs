//! What this crate promises, tried from outside. With the feature `shuttle` only [`orders`] runs: the rest needs the time.

#![allow(clippy::unwrap_used)]

#[cfg(feature = "shuttle")]
#[path = "orders.rs"]
mod orders;

#[cfg(not(feature = "shuttle"))]
#[path = "order_and_time.rs"]
mod order_and_time;
