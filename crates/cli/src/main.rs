//! Terrace: cli.
fn main() {}
