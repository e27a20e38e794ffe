//! `Retention`: which checkpoints stay held without a name, and which of them are let go as time passes.
//!
//! Invariant: thinning depends only on the rules, the time and the set of held checkpoints; done twice it changes
//! nothing more.

use std::{fmt, time::Duration};

use terrace_device::{format_duration, parse_seconds};

/// How densely one rule keeps checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Every {
    /// Each one.
    Checkpoint,
    /// The newest of each period of this many seconds (periods start at multiples of it since 1970, UTC).
    Seconds(u64),
}

/// One rule: how densely, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// How densely.
    pub every: Every,
    /// Up to which age, seconds.
    pub for_seconds: u64,
}

/// A list of rules; a checkpoint is kept if one rule keeps it. No rules: nothing is held.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Retention {
    rules: Vec<Rule>,
}

const NAMED: [(&str, u64); 7] = [
    ("minutely", 60),
    ("hourly", 3600),
    ("daily", 86_400),
    ("weekly", 7 * 86_400),
    ("monthly", 30 * 86_400),
    ("quarterly", 91 * 86_400),
    ("yearly", 365 * 86_400),
];
const RULES_MAX: usize = 16;

impl Retention {
    /// Parses `none` or a list such as `all:1h hourly:2d daily:60d`; spaces or commas between the rules.
    pub fn parse(text: &str) -> Result<Self, String> {
        if matches!(text.trim(), "" | "none" | "off") {
            return Ok(Self::default());
        }
        let mut rules = Vec::new();
        for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
            let expected = || {
                format!(
                    "'{word}' is no retention rule; give rules such as 'all:1h hourly:2d daily:60d', or 'none'"
                )
            };
            let (every, age) = word.split_once(':').ok_or_else(expected)?;
            let every = match (every, NAMED.iter().find(|(name, _)| *name == every)) {
                ("all", _) => Every::Checkpoint,
                (_, Some((_, seconds))) => Every::Seconds(*seconds),
                _ => Every::Seconds(parse_seconds(every).map_err(|_| expected())?),
            };
            let for_seconds = parse_seconds(age).map_err(|_| expected())?;
            if for_seconds == 0 || every == Every::Seconds(0) {
                return Err(expected());
            }
            rules.push(Rule { every, for_seconds });
        }
        if rules.len() > RULES_MAX {
            return Err(format!("retention takes at most {RULES_MAX} rules"));
        }
        Ok(Self { rules })
    }

    /// The rules.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether nothing is held.
    pub fn is_none(&self) -> bool {
        self.rules.is_empty()
    }

    /// Which of `held` (checkpoint, time in seconds since 1970; ascending) are to be let go at `now_seconds`.
    pub fn thin(&self, held: &[(u64, i64)], now_seconds: i64) -> Vec<u64> {
        let mut kept = vec![false; held.len()];
        for rule in &self.rules {
            let oldest = now_seconds.saturating_sub_unsigned(rule.for_seconds);
            let mut period = None;
            // Newest first, so that each period keeps its newest.
            for (at, (_, time)) in held.iter().enumerate().rev() {
                if *time < oldest {
                    continue;
                }
                match rule.every {
                    Every::Checkpoint => kept[at] = true,
                    Every::Seconds(seconds) => {
                        let this = time.div_euclid(i64::try_from(seconds).unwrap_or(i64::MAX).max(1));
                        if period != Some(this) {
                            kept[at] = true;
                            period = Some(this);
                        }
                    }
                }
            }
        }
        held.iter()
            .zip(kept)
            .filter(|(_, kept)| !kept)
            .map(|((checkpoint, _), _)| *checkpoint)
            .collect()
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rules.is_empty() {
            return f.write_str("none");
        }
        for (at, rule) in self.rules.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            let every = match rule.every {
                Every::Checkpoint => "all".to_owned(),
                Every::Seconds(seconds) => NAMED.iter().find(|(_, named)| *named == seconds).map_or_else(
                    || format_duration(Duration::from_secs(seconds)),
                    |(name, _)| (*name).to_owned(),
                ),
            };
            write!(
                f,
                "{space}{every}:{}",
                format_duration(Duration::from_secs(rule.for_seconds))
            )?;
        }
        Ok(())
    }
}
