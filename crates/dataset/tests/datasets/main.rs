//! Creating, destroying, renaming, properties, quotas, retention, views.

#![allow(clippy::unwrap_used)]

mod lifecycle;
mod past;
mod pool;
mod properties;
