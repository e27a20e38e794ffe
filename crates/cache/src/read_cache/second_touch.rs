//! `Touches`: how often large chunks were asked for lately, in parts, so that those that are wanted again are fetched whole.
//!
//! Invariants: bounded, whatever is read: two chunks may share a counter, and then earn their place a little early; old
//! touches fade.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use terrace_store::ChunkId;

/// Counters of recent touches.
const TOUCH_SLOTS: usize = 1 << 16;
/// Touches after which a large chunk is fetched whole.
const TOUCHES: u8 = 2;
/// Touches after which all counters are halved.
const AGING_INTERVAL: u64 = 4 * TOUCH_SLOTS as u64;

pub(crate) struct Touches {
    slots: Box<[AtomicU8]>,
    touched: AtomicU64,
}

impl Touches {
    pub(crate) fn new() -> Self {
        Self {
            slots: (0..TOUCH_SLOTS).map(|_| AtomicU8::new(0)).collect(),
            touched: AtomicU64::new(0),
        }
    }

    /// Counts a touch; whether the chunk has earned its place.
    pub(crate) fn count(&self, id: ChunkId) -> bool {
        let slot = (id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % TOUCH_SLOTS;
        if self.touched.fetch_add(1, Relaxed) % AGING_INTERVAL == AGING_INTERVAL - 1 {
            self.slots
                .iter()
                .for_each(|count| count.store(count.load(Relaxed) / 2, Relaxed));
        }
        let count = self.slots[slot].load(Relaxed).saturating_add(1);
        let earned = count >= TOUCHES;
        self.slots[slot].store(if earned { 0 } else { count }, Relaxed);
        earned
    }
}
