//! Terrace: bench.
fn main() {}
