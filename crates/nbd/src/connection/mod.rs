//! One client: its socket, plain or in TLS, what is negotiated and what is transmitted.

mod batch;
pub(crate) mod channel;
mod negotiation;
mod stream;
mod tls;
mod transmission;
mod turns;

pub use tls::{Tls, TlsError, TlsFiles};

pub(crate) use channel::Dialogue;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use channel::plain;
pub(crate) use negotiation::{Exports, Outcome, Security, greet, negotiate};
pub(crate) use stream::Stream;
pub(crate) use transmission::{Resources, transmit};
