//! The gate of segments: what is appended to a stream that has no segment waits here until one may be taken.
//!
//! Whether there is space was asked when the write was accepted. Here it is asked where it lands: on its tier, or on a slower one
//! since that is full ([`Landing`]). Nobody is refused for the answer.
//!
//! Invariant: nothing is held meanwhile that those need who bring segments back. What is moved does not come by here.

use std::{sync::atomic::Ordering, time::Duration};

use terrace_store::StoreError;

use super::make_room::Admission;
use crate::{
    append::TryAppend,
    buffers::Chunk,
    encoding::Location,
    space::{Landing, StreamKey, Waiting},
};

/// How often space that was made for a write may be gone before it is written.
const ATTEMPTS: usize = 64;
/// Steps that a writer does at most for the segment that it is about to take, and how long it waits for another who does.
const RELIEF_STEPS: usize = 256;
const RELIEF_WAIT: Duration = Duration::from_millis(20);
/// For a segment.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// For an answer.
const ANSWER_MAX: Duration = Duration::from_millis(400);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

impl Admission {
    /// Writes or moves something, and where that finds no segment makes room until there is `enough`, or nothing more can be had. This
    /// is no second look at what was reserved: a reservation counts bytes, and which segments they fill is known only here.
    pub(crate) fn retry_with_room<T>(
        &self,
        enough: impl Fn() -> bool,
        mut attempt: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut result = attempt();
        for _ in 0..ATTEMPTS {
            if !matches!(result, Err(StoreError::NoSpace)) || !self.make_room(&enough)? {
                break;
            }
            // Others may be quicker to take it.
            result = attempt();
        }
        result
    }

    /// Appends one chunk of new content; `placed` is told where.
    pub(crate) fn append(
        &self,
        key: StreamKey,
        privileged: bool,
        chunk: &Chunk<'_>,
        placed: &mut dyn FnMut(Vec<Location>),
    ) -> Result<(), StoreError> {
        let stream = self.writer.stream(key);
        while let TryAppend::NeedsSegment = self.writer.try_append(&stream, key, privileged, chunk, placed)? {
            let taken = || stream.has_open();
            self.relieve(key, &taken)?;
            self.wait_for_sinking(key, &taken)?;
            self.writer.begin_segment(&stream, key, privileged, chunk)?;
        }
        Ok(())
    }

    /// Whether somebody waits for content to sink.
    pub(crate) fn is_demotion_waited_for(&self) -> bool {
        self.sinking.is_waited_for()
    }

    /// The newest question whether anything sinks for those who write, if it was not answered.
    pub(crate) fn sinking_asked(&self) -> Option<u64> {
        let asked = self.sinking.asked.load(Ordering::Acquire);
        (asked > self.sinking.answered.load(Ordering::Acquire)).then_some(asked)
    }

    /// Content sinks from these tiers now, as bits, and `answered` is the newest question that was known before that was looked at.
    pub(crate) fn set_sinking(&self, tiers: u64, answered: Option<u64>) {
        self.sinking.tiers.store(tiers, Ordering::Release);
        if let Some(answered) = answered {
            self.sinking.answered.fetch_max(answered, Ordering::AcqRel);
            self.sinking.changed.notify_all();
        }
    }

    /// Before new content of this stream takes a segment on a slower tier: waits until there is one where it is to land, as long
    /// as content sinks for it, or until somebody else has `taken` one.
    pub(crate) fn wait_for_sinking(
        &self,
        key: StreamKey,
        taken: &dyn Fn() -> bool,
    ) -> Result<(), StoreError> {
        let Landing::AfterDemotion(tier) = self.space.landing(key) else {
            return Ok(());
        };
        let clock = &*self.options.clock;
        if !self.sinking.may_ask(clock) {
            return Ok(());
        }
        let question = self.sinking.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let _waiting = Waiting::of(&self.sinking.waiting);
        let began = clock.monotonic_nanoseconds();
        while matches!(self.space.landing(key), Landing::AfterDemotion(_)) {
            if taken() {
                return Ok(());
            }
            let waited = clock.since(began);
            match self.sinking.answer(question, tier) {
                Some(true) if waited < WAIT_MAX => {}
                None if waited < ANSWER_MAX => {}
                _ => {
                    self.sinking.refuse(clock);
                    return Ok(());
                }
            }
            let worked = match self.collector.try_turn() {
                Some(mut state) => self.compactor.bring_back(&mut state, None)?,
                None => false,
            };
            if !worked {
                let mut refused = self.sinking.refused.lock();
                self.sinking.changed.wait_within(clock, &mut refused, LOOK);
            }
        }
        *self.sinking.refused.lock() = None;
        Ok(())
    }

    /// Before new content of this stream takes a segment: brings garbage back for it, rather than let it land on a slower
    /// tier, until there is room or somebody else has `taken` a segment for the same stream. Beside who compacts, it flushes.
    pub(crate) fn relieve(&self, key: StreamKey, taken: &dyn Fn() -> bool) -> Result<(), StoreError> {
        for _ in 0..RELIEF_STEPS {
            if self.space.landing(key) != Landing::AfterCleaning || taken() {
                return Ok(());
            }
            let Some(mut state) = self.collector.try_turn() else {
                self.journal.flush_given_up()?;
                // What that made durable is released by whoever comes next.
                if !self.merger.merge_step() {
                    drop(self.collector.try_turn_for(RELIEF_WAIT));
                }
                continue;
            };
            let free = self.space.free_where_pressed().unwrap_or(1);
            if !self.compactor.bring_back(&mut state, Some(free))? {
                return Ok(());
            }
        }
        Ok(())
    }
}
