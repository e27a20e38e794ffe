//! Memory between what is still in use goes back to the kernel. Alone in its file: it is the whole process's.

#![cfg(target_env = "gnu")]
#![allow(clippy::unwrap_used)]

const BUFFER_BYTES: usize = 64 << 10;
const BUFFERS: usize = 1000;

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn what_lies_between_is_given_back() {
    let mut buffers = Vec::new();
    let mut between = Vec::new();
    for number in 0..BUFFERS {
        buffers.push(vec![1u8; BUFFER_BYTES]);
        between.push(Box::new(number));
    }
    drop(buffers);
    let kept = resident_bytes();
    terrace_device::give_spare_memory_back();
    let left = resident_bytes();
    assert!(
        left + BUFFERS * BUFFER_BYTES / 2 < kept,
        "{kept} bytes before, {left} after"
    );
    assert!(between.iter().enumerate().all(|(number, kept)| **kept == number));
}
