//! `History`: the states that a dataset may be found in after a crash.
//!
//! The rule: after a crash a dataset is in one of the states that it was in since its last fsync (or the last commit
//! interval) succeeded, wholly: one prefix of its operations, in order.

use std::collections::VecDeque;

use crate::violation::Check;

/// States since the newest durable one, which is the first.
#[derive(Debug, Clone)]
pub struct History<S> {
    states: VecDeque<(u64, S)>,
    next: u64,
}

impl<S: Clone> History<S> {
    /// Starts with a durable state.
    pub fn new(state: S) -> Self {
        Self {
            states: VecDeque::from([(0, state)]),
            next: 1,
        }
    }

    /// The newest state.
    pub fn newest(&self) -> &S {
        &self.states[self.states.len() - 1].1
    }

    /// All of them, oldest first.
    pub fn states(&self) -> impl Iterator<Item = &S> {
        self.states.iter().map(|(_, state)| state)
    }

    /// An operation made this of the newest state.
    pub fn push(&mut self, state: S) {
        self.states.push_back((self.next, state));
        self.next += 1;
    }

    /// Changes the newest state without making it another: for what is only observed.
    pub fn amend(&mut self, change: impl FnOnce(&mut S)) {
        if let Some((_, state)) = self.states.back_mut() {
            change(state);
        }
    }

    /// The newest state is durable.
    pub fn synced(&mut self) {
        while self.states.len() > 1 {
            self.states.pop_front();
        }
    }

    /// Operations that a crash may undo.
    pub fn uncertain(&self) -> usize {
        self.states.len() - 1
    }

    /// The engine was opened again and shows a state that `matches` recognises: later ones are gone. Says how many
    /// operations were undone; `difference` explains why the newest does not match.
    pub fn recovered(
        &mut self,
        matches: impl Fn(&S) -> bool,
        difference: impl Fn(&S) -> String,
    ) -> Check<usize> {
        let Some(found) = self.states.iter().rposition(|(_, state)| matches(state)) else {
            crate::violation!(
                "the state is none of the {} since the last fsync; to the one at the fsync: {}; to the newest: {}",
                self.states.len(),
                difference(&self.states[0].1),
                difference(self.newest())
            );
        };
        let undone = self.states.len() - 1 - found;
        self.states.truncate(found + 1);
        Ok(undone)
    }
}
