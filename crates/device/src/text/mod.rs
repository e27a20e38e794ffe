//! Sizes, durations and devices as people write them.

mod duration;
mod size;
mod spec;

pub use duration::{format_duration, parse_duration, parse_seconds};
pub use size::{SizeError, exact_size, format_size, parse_size};
pub use spec::{DeviceKind, DeviceSpec, SpecError, open_path, peek_path};
