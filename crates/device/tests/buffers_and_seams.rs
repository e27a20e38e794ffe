//! Aligned buffers hold what a vector would; clocks and chance do as they are told.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use terrace_device::{
    AlignedBuffer, Clock, HUGE_PAGE_BYTES, ManualClock, Randomness, SeededRandomness, SystemClock,
    SystemRandomness,
};

#[derive(Debug, Clone)]
enum Step {
    Extend(Vec<u8>),
    Resize(usize),
    Truncate(usize),
    Pad,
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..9000).prop_map(Step::Extend),
        (0usize..300_000).prop_map(Step::Resize),
        (0usize..20_000).prop_map(Step::Truncate),
        Just(Step::Pad),
        Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(13), ..ProptestConfig::with_cases(64) })]
    #[test]
    fn a_buffer_holds_what_a_vector_would(steps in proptest::collection::vec(step(), 0..12)) {
        let mut buffer = AlignedBuffer::default();
        let mut model = Vec::new();
        for step in steps {
            match step {
                Step::Extend(bytes) => { buffer.extend_from_slice(&bytes); model.extend(bytes); }
                Step::Resize(length) => { buffer.resize(length); model.resize(length, 0); }
                Step::Truncate(length) => { buffer.truncate(length); model.truncate(length); }
                Step::Pad => { buffer.pad_to_block(); model.resize(model.len().next_multiple_of(4096), 0); }
                Step::Clear => { buffer.clear(); model.clear(); }
            }
            prop_assert!(buffer[..] == model[..]);
            prop_assert!(buffer.as_ptr().addr().is_multiple_of(4096));
            prop_assert!(buffer.capacity() >= buffer.len());
        }
        prop_assert!(buffer.clone()[..] == model[..]);
    }
}

/// Whether the kernel has huge pages or not.
#[test]
fn a_buffer_in_huge_pages_begins_with_one_and_is_zero_and_used_again() {
    for (wanted, capacity) in [(1, HUGE_PAGE_BYTES), (HUGE_PAGE_BYTES + 1, 2 * HUGE_PAGE_BYTES)] {
        let mut buffer = AlignedBuffer::in_huge_pages(wanted);
        assert!(buffer.is_empty() && buffer.capacity() == capacity);
        let bytes = buffer.reuse(capacity);
        assert!(bytes.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(7);
        buffer.clear();
        let again = buffer.reuse(capacity);
        assert!(again.iter().all(|byte| *byte == 7));
        // It grows like any other, and its memory is given back once.
        buffer.extend_from_slice(&[8; 5000]);
        assert!(buffer[..capacity].iter().all(|byte| *byte == 7) && buffer[capacity..] == [8; 5000]);
    }
}

#[test]
fn a_reused_buffer_keeps_its_memory() {
    let mut buffer = AlignedBuffer::zeroed(1 << 20);
    let address = buffer.as_ptr();
    buffer.clear();
    assert_eq!(buffer.reuse(1 << 20).len(), 1 << 20);
    assert_eq!(buffer.as_ptr(), address);
    assert_eq!(&AlignedBuffer::padded_from(b"abc")[..4], b"abc\0");
    assert_eq!(AlignedBuffer::padded_from(b"abc").len(), 4096);
}

#[test]
fn a_manual_clock_moves_only_when_told() {
    let clock = ManualClock::new(1_000);
    clock.advance(5);
    assert_eq!(
        (clock.now_nanoseconds(), clock.monotonic_nanoseconds()),
        (1_005, 5)
    );
    clock.set_now(10);
    assert_eq!((clock.now_nanoseconds(), clock.monotonic_nanoseconds()), (10, 5));
    let system = SystemClock::new();
    let first = system.monotonic_nanoseconds();
    assert!(system.monotonic_nanoseconds() >= first);
}

#[test]
fn a_seed_names_a_sequence() {
    let draw = |seed| {
        let random = SeededRandomness::new(seed);
        (random.number(), random.identifier())
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    assert_ne!(SystemRandomness.identifier(), SystemRandomness.identifier());
}
