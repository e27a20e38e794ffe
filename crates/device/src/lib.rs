//! Terrace: device.
