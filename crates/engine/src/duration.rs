//! Times as users type and read them: `30s`, `5m`, `60d`.
//!
//! Invariant: what is not understood is refused, never guessed.

use std::time::Duration;

/// A duration from `500ms`, `30s`, `5m`, `2h`, `60d`, `1w`; a bare number is seconds.
///
/// # Errors
/// A sentence for the user if the text is no duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is not a duration; write for example 500ms, 30s, 5m, 2h or 60d");
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let milliseconds: u64 = match unit.trim() {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 604_800_000,
        _ => return Err(bad()),
    };
    number
        .checked_mul(milliseconds)
        .map(Duration::from_millis)
        .ok_or_else(bad)
}

/// A duration for people, in the largest unit that is exact: `500ms`, `5s`, `2h`.
pub fn format_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    for (unit, factor) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)] {
        if milliseconds >= factor && milliseconds.is_multiple_of(factor) {
            return format!("{}{unit}", milliseconds / factor);
        }
    }
    if milliseconds == 0 {
        "0s".into()
    } else {
        format!("{milliseconds}ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_shown() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("60d"), Ok(Duration::from_secs(60 * 86400)));
        for bad in ["", "s", "5y", "-1s", "1.5h", "99999999999999999999d"] {
            assert!(parse_duration(bad).is_err(), "{bad} was accepted");
        }
        assert_eq!(format_duration(Duration::from_millis(500)), "500ms");
        assert_eq!(format_duration(Duration::from_secs(7200)), "2h");
        assert_eq!(format_duration(Duration::from_secs(90)), "90s");
    }
}
