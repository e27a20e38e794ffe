//! Load: whether users want anything just now.

mod foreground;

pub use foreground::{Background, Foreground, Service, Waiting};
