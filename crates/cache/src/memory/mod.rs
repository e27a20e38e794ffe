//! Memory: one budget, its shares, and what is lent.

mod budget;
mod lending;

pub use budget::{Admitted, Budget};
