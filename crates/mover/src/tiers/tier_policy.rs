//! `TierPolicy`: what the mover needs to know of a tier, and when it may work.

use jiff::{Timestamp, tz::TimeZone};
use terrace_pool::{HIGH_WATER_DEFAULT, LOW_WATER_DEFAULT};

/// So far below its high-water mark a tier is taken for nearly full,
const NEAR: f64 = 0.1;
/// and so far content is moved up: what is written next would else be one too many, and bring down what was just moved up.
const RISE: f64 = 0.05;

/// The settings of a tier that concern the mover.
#[derive(Debug, Clone, PartialEq)]
pub struct TierPolicy {
    /// Its name.
    pub name: String,
    /// Fill level (0.0–1.0) above which cold data is moved down.
    pub high_water: f64,
    /// Fill level (0.0–1.0) down to which it is; what is hot stays.
    pub low_water: f64,
    /// Reads of a region, decayed, from which it is moved up out of this tier; 0: never.
    pub promote_after: u32,
    /// Seconds without use after which content moves down although there is room; 0: never.
    pub demote_after_seconds: u64,
    /// Fill level (0.0–1.0) up to which nothing is moved between this tier and slower ones.
    pub hold: Option<f64>,
    /// Bytes per second that the mover may write to this tier; 0: no limit.
    pub rate_limit: u64,
    /// When policies may move data, `HH:MM-HH:MM` in local time; empty: always. Jobs asked for by hand ignore it.
    pub window: String,
}

impl TierPolicy {
    /// A tier with the default settings.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            high_water: HIGH_WATER_DEFAULT,
            low_water: LOW_WATER_DEFAULT,
            promote_after: 3,
            demote_after_seconds: 0,
            hold: None,
            rate_limit: 0,
            window: String::new(),
        }
    }

    /// Fill level from which on there is room for what is sure to be used alone; at or below the high-water mark, and not below the
    /// low-water mark.
    pub(crate) fn near_water(&self) -> f64 {
        self.high_water - self.between().min(NEAR)
    }

    /// Fill level up to which content is moved up; half way between the marks where they are close to each other.
    pub(crate) fn rise_water(&self) -> f64 {
        self.high_water - (self.between() / 2.0).min(RISE)
    }

    fn between(&self) -> f64 {
        (self.high_water - self.low_water).max(0.0)
    }
}

/// A daily span of minutes; may pass midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    from: u32,
    to: u32,
}

impl Window {
    /// Parses `HH:MM-HH:MM`; empty is always.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        let text = text.trim();
        if text.is_empty() || text == "always" {
            return Ok(None);
        }
        let wrong = || format!("'{text}' is no window; write HH:MM-HH:MM, such as 22:00-06:00, or 'always'");
        let (from, to) = text.split_once('-').ok_or_else(wrong)?;
        let minutes = |part: &str| {
            let (hours, minutes) = part.trim().split_once(':')?;
            let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
            (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
        };
        let (from, to) = (minutes(from).ok_or_else(wrong)?, minutes(to).ok_or_else(wrong)?);
        if from == to {
            Err(wrong())
        } else {
            Ok(Some(Self { from, to }))
        }
    }

    /// Whether a minute of the day lies in it.
    pub fn contains(&self, minute: u32) -> bool {
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

/// The minute of the local day at a time in nanoseconds since 1970.
pub(crate) fn minute_of_day(now_nanoseconds: u64) -> u32 {
    let instant = Timestamp::from_nanosecond(i128::from(now_nanoseconds)).unwrap_or_default();
    let local = instant.to_zoned_datetime(TimeZone::system());
    u32::try_from(local.hour()).unwrap_or(0) * 60 + u32::try_from(local.minute()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_may_pass_midnight() {
        assert_eq!(Window::parse("").unwrap(), None);
        let night = Window::parse("22:00-06:30").unwrap().unwrap();
        assert!(night.contains(23 * 60) && night.contains(0) && night.contains(6 * 60 + 29));
        assert!(!night.contains(6 * 60 + 30) && !night.contains(12 * 60));
        let day = Window::parse("08:00-09:00").unwrap().unwrap();
        assert!(day.contains(480) && !day.contains(540) && !day.contains(0));
        for wrong in ["8-9", "24:00-01:00", "08:60-09:00", "08:00-08:00", "x", "08:00"] {
            Window::parse(wrong).unwrap_err();
        }
    }
}
