//! Terrace: control.
