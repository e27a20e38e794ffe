//! Sizes and durations as users write them: `512M`, `1.5T` (binary), `30s`, `5m`, `60d`.

/// Parses a size: a number with an optional unit `K M G T P E`, optionally followed by `B` or `iB`; binary.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!("'{text}' is not a size; write a number with K, M, G, T or P behind it, such as 512M or 1.5T")
    };
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit
        .trim()
        .to_ascii_uppercase()
        .trim_end_matches("IB")
        .trim_end_matches('B')
    {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        "E" => 60,
        _ => return Err(wrong()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(wrong);
    }
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = number * (1u64 << shift) as f64;
    if (0.0..9.2e18).contains(&bytes) {
        Ok(bytes.round() as u64)
    } else {
        Err(wrong())
    }
}

/// A size as users read it: exact bytes if it is no whole multiple of a unit.
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
        for (text, bytes) in [
            ("512M", 512 << 20),
            ("1.5T", 3 << 39),
            ("4096", 4096),
            ("10GiB", 10 << 30),
            ("1kb", 1024),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
            assert_eq!(parse_size(&format_size(bytes)).unwrap(), bytes);
        }
        for wrong in ["", "M", "-1", "12X", "99999999999E", "1.2.3", "infinity"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
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
