//! `Sinking`: writers wait while what is colder sinks for what they write, rather than let that land on a slower tier.
//!
//! What lands below because the fast tier is full of what nobody uses is read from there later, one slow request each; who waits
//! until the mover has made room pays a fraction of that, and is slowed down to what the slower tier takes in large requests.
//!
//! Invariants: nobody waits but where garbage alone would not give enough room and content may land; nor for longer than
//! [`WAIT_MAX`] for a segment, nor unless whoever moves content down said after it was asked that it does so; after a refusal it is
//! asked again ever more seldom. Nobody waits in a store without threads of its own. Nothing is held meanwhile that moving needs.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use terrace_store::StoreError;

use super::make_room::Admission;
use crate::space::{StreamKey, Waiting};

/// Steps that a writer does at most for the segment that it is about to take, and how long it waits for another who does.
const RELIEF_STEPS: usize = 256;
const RELIEF_WAIT: Duration = Duration::from_millis(20);
/// For a segment.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// For an answer.
const ANSWER_MAX: Duration = Duration::from_millis(400);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// After a refusal nobody asks for so long, and after many at most.
const REFUSED: Duration = Duration::from_secs(1);
const REFUSED_MAX: Duration = Duration::from_secs(16);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sinking {
    /// Questions so far, and the newest that was answered.
    asked: AtomicU64,
    answered: AtomicU64,
    /// Tiers that content sinks from, as bits.
    tiers: AtomicU64,
    /// Who waits.
    waiting: AtomicUsize,
    refused: Mutex<Option<(Instant, Duration)>>,
    changed: Condvar,
}

impl Sinking {
    fn may_ask(&self) -> bool {
        self.refused
            .lock()
            .is_none_or(|(at, pause)| at.elapsed() >= pause)
    }

    fn refuse(&self) {
        let mut refused = self.refused.lock();
        let pause = refused.map_or(REFUSED, |(_, pause)| (pause * 2).min(REFUSED_MAX));
        *refused = Some((Instant::now(), pause));
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn answer(&self, question: u64, tier: usize) -> Option<bool> {
        let is_answered = self.answered.load(Ordering::Acquire) >= question;
        is_answered.then(|| self.tiers.load(Ordering::Acquire) >> tier.min(63) & 1 == 1)
    }
}

impl Admission {
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
        if self.options.threads == 0 {
            return Ok(());
        }
        let Some(tier) = self.space.tier_to_sink_from(key) else {
            return Ok(());
        };
        if !self.sinking.may_ask() {
            return Ok(());
        }
        let question = self.sinking.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let _waiting = Waiting::of(&self.sinking.waiting);
        let began = Instant::now();
        while self.space.tier_to_sink_from(key).is_some() {
            if taken() {
                return Ok(());
            }
            let waited = began.elapsed();
            match self.sinking.answer(question, tier) {
                Some(true) if waited < WAIT_MAX => {}
                None if waited < ANSWER_MAX => {}
                _ => {
                    self.sinking.refuse();
                    return Ok(());
                }
            }
            let worked = match self.collector.try_turn() {
                Some(mut state) => self.compactor.bring_back(&mut state, None)?,
                None => false,
            };
            if !worked {
                let mut refused = self.sinking.refused.lock();
                self.sinking.changed.wait_for(&mut refused, LOOK);
            }
        }
        *self.sinking.refused.lock() = None;
        Ok(())
    }

    /// Before new content of this stream takes a segment: brings garbage back for it, rather than let it land on a slower
    /// tier, until there is room or somebody else has `taken` a segment for the same stream. Beside who compacts, it flushes.
    pub(crate) fn relieve(&self, key: StreamKey, taken: &dyn Fn() -> bool) -> Result<(), StoreError> {
        for _ in 0..RELIEF_STEPS {
            if !self.space.is_to_relieve(key) || taken() {
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
