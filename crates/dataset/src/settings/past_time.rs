//! `At`: which past state is meant: `@@N`, `@@TIME`, `@@-1h`, or a snapshot's name.

use jiff::{Timestamp, civil, tz::TimeZone};
use terrace_device::parse_seconds;

use crate::records::Time;

/// A past state of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    /// This checkpoint; it must be held.
    Checkpoint(u64),
    /// The newest held checkpoint taken at or before this time.
    Time(Time),
    /// The snapshot of this name.
    Snapshot(String),
}

impl At {
    /// Parses what stands behind `@@` or `at=`: a checkpoint number, an RFC 3339 time, a local date with or without
    /// a time of day, an age such as `-1h`, or `@NAME` for a snapshot.
    pub fn parse(text: &str, now: Time) -> Result<Self, String> {
        let text = text.trim();
        let wrong =
            || format!("'{text}' is no checkpoint, time or age; write a number, 2026-11-21T10:00:00, or -1h");
        if let Some(name) = text.strip_prefix('@') {
            return if name.is_empty() {
                Err(wrong())
            } else {
                Ok(Self::Snapshot(name.to_owned()))
            };
        }
        if let Some(age) = text.strip_prefix('-') {
            let seconds = parse_seconds(age).map_err(|_| wrong())?;
            return Ok(Self::Time(Time {
                seconds: now.seconds.saturating_sub_unsigned(seconds),
                nanos: now.nanos,
            }));
        }
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Self::Checkpoint).map_err(|_| wrong());
        }
        if let Ok(instant) = text.parse::<Timestamp>() {
            return Ok(Self::Time(Time::from_nanos(instant.as_nanosecond())));
        }
        let local = text.parse::<civil::DateTime>().map_err(|_| wrong())?;
        let instant = local.to_zoned_datetime(TimeZone::system()).map_err(|_| wrong())?;
        Ok(Self::Time(Time::from_nanos(instant.timestamp().as_nanosecond())))
    }
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Checkpoint(checkpoint) => write!(f, "checkpoint {checkpoint}"),
            Self::Time(time) => f.write_str(&format_time(*time)),
            Self::Snapshot(name) => write!(f, "snapshot {name}"),
        }
    }
}

/// A time as RFC 3339 in UTC, to the second.
pub fn format_time(time: Time) -> String {
    match Timestamp::new(time.seconds, 0) {
        Ok(instant) => instant.to_string(),
        Err(_) => format!("{} seconds since 1970", time.seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_times_ages_and_names() {
        let now = Time {
            seconds: 1_800_000_000,
            nanos: 5,
        };
        assert_eq!(At::parse("42", now), Ok(At::Checkpoint(42)));
        assert_eq!(
            At::parse("-1h", now),
            Ok(At::Time(Time {
                seconds: now.seconds - 3600,
                nanos: 5
            }))
        );
        assert_eq!(
            At::parse("1970-01-01T00:01:00Z", now),
            Ok(At::Time(Time {
                seconds: 60,
                nanos: 0
            }))
        );
        assert_eq!(
            At::parse("1970-01-01T02:00:00+02:00", now),
            Ok(At::Time(Time { seconds: 0, nanos: 0 }))
        );
        assert!(matches!(At::parse("2026-11-21T10:00:00", now), Ok(At::Time(_))));
        assert!(matches!(At::parse("2026-11-21", now), Ok(At::Time(_))));
        assert_eq!(At::parse("@daily", now), Ok(At::Snapshot("daily".into())));
        for wrong in [
            "",
            "@",
            "-",
            "-1",
            "yesterday",
            "99999999999999999999999",
            "-1.5h",
            "2026-13-01",
        ] {
            let parsed = At::parse(wrong, now);
            assert!(parsed.is_err() || wrong == "-1", "{wrong}: {parsed:?}");
        }
        assert_eq!(
            format_time(Time {
                seconds: 60,
                nanos: 0
            }),
            "1970-01-01T00:01:00Z"
        );
    }
}
