//! `Rounds`: what many ask for at the same time is done once, by one of them.
//!
//! The group commit of databases (DeWitt and others, "Implementation Techniques for Main Memory Database Systems", 1984):
//! one leads and works for all who came before he began; of those who come meanwhile one leads the next round.
//!
//! Invariants: one round at a time; a caller gets the result of a round that serves him; a leader that panics ends his
//! round, so that nobody waits for him for ever.

use std::time::Duration;

use crate::{clock::Clock, condvar::Condvar, mutex::Mutex, rank::Rank};

#[derive(Debug)]
struct State<T> {
    started: u64,
    finished: u64,
    /// Since when one is under way, monotonic nanoseconds.
    running: Option<u64>,
    /// What the newest round came to; none if its leader panicked.
    last: Option<T>,
}

/// Rounds of work, one after the other.
#[derive(Debug)]
pub struct Rounds<T, R: Rank> {
    state: Mutex<State<T>, R>,
    ended: Condvar,
}

/// What those who come together ask for, and on which terms they wait for it.
pub trait Round {
    /// What a round comes to.
    type Result: Clone;
    /// Why somebody does not wait, or lead.
    type Refusal;

    /// Whether the newest round is enough for the caller; `is_later`: it began after he came, so it saw all that he did before.
    /// Asked with the lock of the rounds held.
    fn is_served(&self, is_later: bool) -> bool;

    /// Whether he waits for a leader who began at this monotonic moment; `is_late`: he has waited for some time already.
    fn may_wait(&self, since: u64, is_late: bool) -> Result<(), Self::Refusal>;

    /// Whether he leads.
    fn may_lead(&self) -> Result<(), Self::Refusal>;

    /// The work. No lock of the rounds is held.
    fn lead(&self) -> Self::Result;

    /// A leader panicked: what he had taken is gone.
    fn interrupted(&self) {}
}

impl<T, R: Rank> Default for Rounds<T, R> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                started: 0,
                finished: 0,
                running: None,
                last: None,
            }),
            ended: Condvar::new(),
        }
    }
}

impl<T: Clone, R: Rank> Rounds<T, R> {
    /// Waits until a round has served the caller, or leads one; what that round came to, none if its leader panicked. Whether
    /// somebody who leads is still worth waiting for is asked every `look`.
    pub fn join<W: Round<Result = T>>(
        &self,
        clock: &dyn Clock,
        look: Duration,
        work: &W,
    ) -> Result<Option<T>, W::Refusal> {
        let mut state = self.state.lock();
        let mine = state.started + 1;
        loop {
            if work.is_served(state.finished >= mine) {
                return Ok(state.last.clone());
            }
            let Some(since) = state.running else { break };
            work.may_wait(since, false)?;
            let is_late = self.ended.wait_within(clock, &mut state, look);
            if is_late && state.running == Some(since) {
                work.may_wait(since, true)?;
            }
        }
        work.may_lead()?;
        state.running = Some(clock.monotonic_nanoseconds());
        state.started += 1;
        let mut led = Led {
            rounds: self,
            work,
            number: state.started,
            result: None,
        };
        drop(state);
        led.result = Some(work.lead());
        Ok(led.result.clone())
    }
}

/// Ends a round also if its work panics.
struct Led<'a, W: Round, R: Rank> {
    rounds: &'a Rounds<W::Result, R>,
    work: &'a W,
    number: u64,
    result: Option<W::Result>,
}

impl<W: Round, R: Rank> Drop for Led<'_, W, R> {
    fn drop(&mut self) {
        if self.result.is_none() {
            self.work.interrupted();
        }
        let mut state = self.rounds.state.lock();
        state.finished = self.number;
        state.running = None;
        state.last = self.result.clone();
        drop(state);
        self.rounds.ended.notify_all();
    }
}
