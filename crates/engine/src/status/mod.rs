//! Status: the pool as it is now, put together from what all others know. It owns no state but when the pool was opened.

mod bad_devices;
mod builder;
mod health;

pub(crate) use builder::StatusBuilder;
