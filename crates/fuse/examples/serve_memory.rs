//! Mounts the tests' filesystem in RAM at the given directory until it is unmounted: the cost of the mount alone.

#[path = "../tests/support/memory.rs"]
#[allow(dead_code, missing_docs)]
mod memory;

use std::path::Path;

use terrace_fuse::{Content, MountOptions, mount};

fn main() {
    let directory = std::env::args().nth(1).expect("a directory to mount at");
    let options = MountOptions::of("memory");
    let session = mount(
        Path::new(&directory),
        Content::Live(memory::Memory::new()),
        None,
        &options,
    )
    .unwrap_or_else(|error| panic!("{error}"));
    session.wait();
}
