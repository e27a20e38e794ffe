//! Serving: queues, the threads behind them, and one request.

mod queue;
mod request;
mod threads;
mod unflushed;
mod write_back;

pub(crate) use queue::Queue;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use request::Operation;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use request::Request;
pub(crate) use request::Service;
#[cfg(test)]
pub(crate) use request::tests;
pub(crate) use threads::{Crew, Mailbox, stay_out_of_writeback};
pub(crate) use unflushed::Unflushed;
pub(crate) use write_back::{Bell, WriteBack};
