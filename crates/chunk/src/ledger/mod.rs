//! The ledger: which segment holds what, and which may be used again.
//!
//! Owns the state of all segments and devices under one lock, that no I/O happens under.

mod ledger;

pub(crate) use ledger::{Claim, DeviceContent, Ledger, PinGuard};
