//! Writes that wait for nothing: of whole blocks, into RAM, when all that they need is at hand.
//!
//! For a front end's thread that serves several callers and may not be held up by one. What cannot be done so is left to
//! [`Volume::write`](crate::Volume::write), which waits, and says what is wrong if something is.
//!
//! Invariants: either the whole write is done, as the ordinary way does it, or nothing is; no device is waited for, no gate,
//! no lock that anybody holds while he waits for such (a state's lock is not one), and no delay is slept.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use terrace_store::BLOCK_BYTES;

use crate::{
    live::LiveDataset,
    object::{Object, State},
    settings::Durability,
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Longer ones would hold up those beside them by the copy alone.
const BYTES_MAX: usize = 64 << 10;

impl LiveDataset {
    /// Writes within the object, if nothing need be waited for; `after` runs with the state locked, at the moment of the write.
    pub(crate) fn write_object_at_once(
        &self,
        object: &Arc<Object>,
        offset: u64,
        data: &[u8],
        after: &mut dyn FnMut(&mut State),
    ) -> bool {
        let bytes = data.len() as u64;
        let is_whole = offset.is_multiple_of(BLOCK) && bytes.is_multiple_of(BLOCK);
        if !is_whole || data.is_empty() || data.len() > BYTES_MAX || self.must_wait() {
            return false;
        }
        let environment = self.dataset.environment();
        let Some(_admitted) = environment.admit(bytes) else {
            return false;
        };
        let Some(_beside) = object.inode_lock.try_read() else {
            return false;
        };
        let Some(gate) = self.gate.try_read() else {
            return false;
        };
        if !self.rooms.take_at_hand(bytes) {
            return false;
        }
        let mut state = object.state.lock();
        let end = offset.checked_add(bytes);
        let is_within = end.is_some_and(|end| end <= state.inode.size);
        if state.freed || !is_within || !environment.budget.passes(bytes) {
            drop((state, gate));
            self.rooms.give(bytes);
            return false;
        }
        environment.foreground.note();
        let became = self.put_pages(object, &mut state, offset, data, |_| None, after);
        drop((state, gate));
        self.rooms.give(bytes - became);
        true
    }

    /// Whether a writer has to wait for, or help with, something, or is refused.
    fn must_wait(&self) -> bool {
        let settings = self.settings();
        let is_kept_full = || {
            let kept_bytes = self.dirty_bytes.load(Relaxed);
            let budget = &self.dataset.environment().budget;
            settings.durability == Durability::Ram && budget.is_kept_full(kept_bytes)
        };
        self.dataset.is_gone()
            || settings.readonly
            || settings.durability == Durability::Sync
            || self.ahead.is_long()
            || is_kept_full()
            || self.dataset.usage().is_short_of_working_room()
    }
}
