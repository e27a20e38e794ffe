//! Which checkpoints retention holds, by rules that are worked out here on their own.
//!
//! What must hold: of the checkpoints exactly those are held that the rules keep. What was not durable when the power went
//! may be held or not.

use std::ops::RangeInclusive;

use super::dataset::{FilesystemState, TreeState};
use crate::{ensure, violation, violation::Check};

/// A rule of retention: the newest of every so many seconds (0: each), for so many seconds.
pub(crate) type RetentionRule = (i64, i64);

/// What is known of a checkpoint that retention holds.
#[derive(Debug, Clone)]
pub struct Retained {
    /// What it must show.
    pub state: TreeState,
    /// When it was closed, seconds since 1970.
    pub seconds: i64,
    /// A power cut cannot undo that it is held.
    pub durable: bool,
}

/// Rules of retention that the workload sets, with what they mean: (every so many seconds, for so long); 0: each.
pub(crate) const RETENTIONS: [(&str, &[RetentionRule]); 5] = [
    ("none", &[]),
    ("all:30s", &[(0, 30)]),
    ("all:20s minutely:5m", &[(0, 20), (60, 300)]),
    ("minutely:2h hourly:1d", &[(60, 7200), (3600, 86_400)]),
    ("15s:2m", &[(15, 120)]),
];
/// Which of these checkpoints, with their times in seconds, the rules keep at this time.
fn kept(checkpoints: &[(u64, i64)], rules: &[RetentionRule], now: i64) -> Vec<u64> {
    let keeps = |(number, time): &(u64, i64)| {
        rules.iter().any(|(every, for_seconds)| {
            let of_age = now - time <= *for_seconds;
            // The newest of its period: no later one lies in the same.
            let newest = *every == 0
                || !checkpoints
                    .iter()
                    .any(|(other, at)| other > number && at.div_euclid(*every) == time.div_euclid(*every));
            of_age && newest
        })
    };
    checkpoints
        .iter()
        .filter(|one| keeps(one))
        .map(|(number, _)| *number)
        .collect()
}

impl FilesystemState {
    /// After a tick closed these checkpoints, or after pruning: exactly those are held that the rules keep. A tick closes one of
    /// all datasets, or where that failed (what a full pool refused before is made up for, say) one of each.
    pub(crate) fn compare_retained(
        &mut self,
        listed: &[(u64, i64)],
        closed: Option<&RangeInclusive<u64>>,
        (before, after): (i64, i64),
        lacks_room: bool,
    ) -> Check {
        let name = self.name.clone();
        let mut all: Vec<(u64, i64)> = self
            .retained
            .iter()
            .map(|(number, one)| (*number, one.seconds))
            .collect();
        let known = self.retained.len();
        for (number, seconds) in listed {
            if self.retained.contains_key(number) {
                continue;
            }
            ensure!(
                closed.is_some_and(|closed| closed.contains(number)) && all.len() == known,
                "{name} holds checkpoint {number}, of those just closed ({closed:?}) not the only one"
            );
            ensure!(
                (before..=after).contains(seconds),
                "checkpoint {number} of {name} is of second {seconds}, not of {before} to {after}"
            );
            all.push((*number, *seconds));
            let retained = Retained {
                state: self.history.newest().clone(),
                seconds: *seconds,
                durable: false,
            };
            self.retained.insert(*number, retained);
        }
        if let Some(rules) = &self.retention {
            let numbers: Vec<u64> = listed.iter().map(|(number, _)| *number).collect();
            let expected = [before, after].map(|now| kept(&all, rules, now));
            ensure!(
                expected.contains(&numbers),
                "retention of {name} holds checkpoints {numbers:?}, the rules keep {expected:?} of {all:?} at {after}"
            );
            ensure!(
                closed.is_none_or(|closed| {
                    let holds_one = numbers.iter().any(|number| closed.contains(number));
                    rules.is_empty() || !self.changed || holds_one || lacks_room
                }),
                "{name} changed, and none of the checkpoints {closed:?} is held"
            );
        }
        // Held also where it is not known by which rules (setting others had failed): nothing has changed since.
        let holds_one =
            |closed: &RangeInclusive<u64>| listed.iter().any(|(number, _)| closed.contains(number));
        let ruled = self.retention.as_ref().is_some_and(|rules| !rules.is_empty());
        if closed.is_some_and(|closed| ruled || holds_one(closed)) {
            self.changed = false;
        }
        for (number, _) in all {
            if !listed.iter().any(|(other, _)| *other == number)
                && let Some(gone) = self.retained.remove(&number)
            {
                self.released.insert(number, gone);
            }
        }
        Ok(())
    }

    /// After an opening: what was durable is held, and nothing is that never was.
    pub(crate) fn recover_retained(&mut self, listed: Vec<(u64, i64)>, tick_failed: bool) -> Check {
        let name = self.name.clone();
        let mut known = std::mem::take(&mut self.retained);
        let mut released = std::mem::take(&mut self.released);
        let unfinished = self.unfinished.take();
        for (number, seconds) in listed {
            let found = known.remove(&number).or_else(|| released.remove(&number));
            let found = found.or_else(|| {
                unfinished.clone().map(|state| Retained {
                    state,
                    seconds,
                    durable: true,
                })
            });
            let Some(found) = found else {
                violation!("{name} holds checkpoint {number} after opening, and never did before");
            };
            self.retained.insert(
                number,
                Retained {
                    durable: true,
                    ..found
                },
            );
        }
        for (number, gone) in known {
            ensure!(
                !gone.durable || tick_failed,
                "checkpoint {number} of {name} was held and durable, and is gone after opening"
            );
        }
        // What was undone may have to be held again at the next tick.
        self.changed = false;
        Ok(())
    }

    /// A tick failed that had closed these checkpoints: what it would have held may be held, and is if it had come to that.
    pub(crate) fn tick_was_interrupted(&mut self, listed: &[(u64, i64)], closed: &RangeInclusive<u64>) {
        let state = self.history.newest().clone();
        for (number, seconds) in listed {
            if closed.contains(number) && !self.retained.contains_key(number) {
                let retained = Retained {
                    state: state.clone(),
                    seconds: *seconds,
                    durable: false,
                };
                self.retained.insert(*number, retained);
                self.changed = false;
            }
        }
        self.unfinished = Some(state);
    }
}
