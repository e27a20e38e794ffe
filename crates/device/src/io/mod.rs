//! Input and output: buffers for direct transfers, io_uring, and how a thread waits for a device.

pub(crate) mod batched_transfer;
mod buffer;
mod flush_gate;
mod lone_reads;
mod polling;
mod time_slice;
mod uring;

pub use buffer::{AlignedBuffer, HUGE_PAGE_BYTES};
pub use polling::allow_polling;
pub use time_slice::be_prompt;
pub use uring::Uring;

pub(crate) use batched_transfer::{Memory, RingTransfer};
pub(crate) use flush_gate::FlushGate;
pub(crate) use lone_reads::{LoneReads, SMALL_BYTES_MAX};
