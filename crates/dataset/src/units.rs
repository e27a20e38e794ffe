//! Sizes and durations as properties keep them: `512M`, `1536G` (binary, exact), `30s`, `5m`, `60d`.

/// A size as it is kept: exact bytes if it is no whole multiple of a unit; `terrace_device::parse_size` reads it back.
pub fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(60, 'E'), (50, 'P'), (40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')] {
        if bytes >= 1 << shift && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

const SECONDS: [(&str, u64); 7] = [
    ("y", 365 * 86_400),
    ("w", 7 * 86_400),
    ("d", 86_400),
    ("h", 3600),
    ("m", 60),
    ("min", 60),
    ("s", 1),
];

/// Parses a duration into seconds: a number with `s`, `m`, `h`, `d`, `w` or `y`; a bare number is seconds.
pub fn parse_duration(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("'{text}' is not a duration; write a number with s, m, h, d, w or y, such as 30s or 60d");
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = if unit.is_empty() { "s" } else { unit };
    let (_, seconds) = SECONDS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    number
        .checked_mul(*seconds)
        .filter(|seconds| *seconds <= i64::MAX as u64)
        .ok_or_else(wrong)
}

/// A duration as users write it.
pub fn format_duration(seconds: u64) -> String {
    for (unit, length) in [("d", 86_400), ("h", 3600), ("m", 60)] {
        if seconds >= length && seconds.is_multiple_of(length) {
            return format!("{}{unit}", seconds / length);
        }
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_read_back_as_written() {
        for bytes in [512 << 20, 3 << 39, 4097, (10 << 30) + 1, 1 << 62, 0] {
            assert_eq!(terrace_device::parse_size(&format_size(bytes)), Ok(bytes));
        }
        for (text, seconds) in [
            ("30s", 30),
            ("5m", 300),
            ("60d", 60 * 86_400),
            ("7", 7),
            ("2w", 14 * 86_400),
        ] {
            assert_eq!(parse_duration(text).unwrap(), seconds);
            assert_eq!(parse_duration(&format_duration(seconds)).unwrap(), seconds);
        }
        for wrong in ["", "h", "1.5h", "-1h", "9999999999999999999y"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
