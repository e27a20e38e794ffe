//! Sizes as people write them: `4096`, `512M`, `1.5T`; binary multiples.

/// A text that is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a number with a unit.
    #[error("'{0}' is not a size; write for example 4096, 512M or 1.5T (binary units K, M, G, T, P)")]
    NotASize(String),
    /// Larger than 2^63 bytes.
    #[error("'{0}' is larger than any device can be; give less than 8E")]
    TooLarge(String),
}

const UNITS: [(char, u32); 6] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50), ('E', 60)];

/// Bytes in `text`: a decimal number, perhaps with a fraction, then nothing or one of K, M, G, T, P, E (either case,
/// also as `KiB` or `KB`; all binary). A fraction is rounded down to whole bytes.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let wrong = || SizeError::NotASize(text.to_owned());
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        unit => {
            let letter = unit.chars().next().ok_or_else(wrong)?;
            let rest = &unit[letter.len_utf8()..];
            if !matches!(rest, "" | "B" | "IB") {
                return Err(wrong());
            }
            UNITS
                .iter()
                .find(|(name, _)| *name == letter)
                .ok_or_else(wrong)?
                .1
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || number.ends_with('.') {
        return Err(wrong());
    }
    let too_large = || SizeError::TooLarge(text.to_owned());
    let whole: u128 = if whole.is_empty() {
        0
    } else {
        whole.parse().map_err(|_| too_large())?
    };
    let mut bytes = whole.checked_mul(1 << shift).ok_or_else(too_large)?;
    if !fraction.is_empty() {
        if shift == 0 || fraction.len() > 15 {
            return Err(wrong());
        }
        let digits: u128 = fraction.parse().map_err(|_| wrong())?;
        bytes += (digits << shift) / 10u128.pow(fraction.len() as u32);
    }
    u64::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= i64::MAX as u64)
        .ok_or_else(too_large)
}

/// `bytes` as properties keep it: in the largest unit of which it is a whole multiple; [`parse_size`] reads it back.
pub fn exact_size(bytes: u64) -> String {
    let is_whole = |shift: u32| bytes >> shift != 0 && bytes.trailing_zeros() >= shift;
    match UNITS.iter().rev().find(|(_, shift)| is_whole(*shift)) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// `bytes` as people read it: `512M`, `1.5T`, `4096` as `4K`; exact multiples without a fraction, else two digits.
pub fn format_size(bytes: u64) -> String {
    let Some((unit, shift)) = UNITS.iter().rev().find(|(_, shift)| bytes >> shift != 0) else {
        return format!("{bytes}B");
    };
    let whole = bytes >> shift;
    let rest = bytes & ((1 << shift) - 1);
    if rest == 0 {
        return format!("{whole}{unit}");
    }
    let value = bytes as f64 / (1u64 << shift) as f64;
    if whole >= 100 {
        format!("{value:.0}{unit}")
    } else {
        format!("{value:.2}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_sizes_read_back_as_written() {
        for bytes in [512 << 20, 3 << 39, 4097, (10 << 30) + 1, 1 << 62, 0] {
            assert_eq!(parse_size(&exact_size(bytes)), Ok(bytes));
        }
        assert_eq!(exact_size(1536 << 30), "1536G");
    }
}
