//! Durations as people write them: `500ms`, `30s`, `5m`, `60d`.
//!
//! Invariant: what is not understood is refused, never guessed.

use std::time::Duration;

const MILLISECONDS: [(&str, u64); 8] = [
    ("ms", 1),
    ("s", 1000),
    ("m", 60_000),
    ("min", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
    ("w", 7 * 86_400_000),
    ("y", 365 * 86_400_000),
];

/// A duration from a whole number with `ms`, `s`, `m` (`min`), `h`, `d`, `w` or `y`; a bare number is seconds.
///
/// # Errors
/// A sentence for the user if the text is no duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a duration; write for example 500ms, 30s, 5m, 2h or 60d");
    let trimmed = text.trim();
    let split = trimmed
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = match unit.trim() {
        "" => "s",
        unit => unit,
    };
    let (_, milliseconds) = MILLISECONDS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(wrong)?;
    number
        .checked_mul(*milliseconds)
        .map(Duration::from_millis)
        .ok_or_else(wrong)
}

/// The same of what is kept in whole seconds.
///
/// # Errors
/// A sentence for the user if the text is no duration of whole seconds.
pub fn parse_seconds(text: &str) -> Result<u64, String> {
    let duration = parse_duration(text)?;
    match duration.subsec_nanos() {
        0 => Ok(duration.as_secs()),
        _ => Err(format!(
            "'{text}' is no whole number of seconds; write for example 30s, 5m, 2h or 60d"
        )),
    }
}

/// A duration for people, in the largest unit that is exact: `500ms`, `5s`, `2h`; [`parse_duration`] reads it back.
pub fn format_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    for (unit, factor) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)] {
        if milliseconds >= factor && milliseconds.is_multiple_of(factor) {
            return format!("{}{unit}", milliseconds / factor);
        }
    }
    match milliseconds {
        0 => "0s".into(),
        milliseconds => format!("{milliseconds}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_back_as_written() {
        for (text, seconds) in [
            ("30s", 30),
            ("5", 5),
            ("5m", 300),
            ("60d", 60 * 86_400),
            ("2w", 14 * 86_400),
            ("1y", 365 * 86_400),
        ] {
            let duration = Duration::from_secs(seconds);
            assert_eq!(parse_duration(text), Ok(duration));
            assert_eq!(parse_seconds(text), Ok(seconds));
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        for wrong in [
            "",
            "s",
            "5x",
            "-1s",
            "1.5h",
            "99999999999999999999d",
            "9999999999999999y",
        ] {
            assert!(parse_duration(wrong).is_err(), "{wrong} was accepted");
        }
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(parse_seconds("500ms").is_err());
        assert_eq!(format_duration(Duration::from_millis(500)), "500ms");
        assert_eq!(format_duration(Duration::from_secs(7200)), "2h");
        assert_eq!(format_duration(Duration::from_secs(90)), "90s");
    }
}
