//! Terrace: sim.
fn main() {}
