//! What a tier is called and how it is used.
//!
//! Invariant: settings that reach a label passed [`TierSettings::validate`], and what comes from a label passes it
//! again.

use terrace_codec::{DecodeError, Reader, Writer};

use super::landing::Landing;

/// Longest name of a tier, bytes.
const NAME_BYTES_MAX: usize = 64;
/// Longest window, bytes.
const WINDOW_BYTES_MAX: usize = 64;

/// The marks of a tier for which none were set. Between them is room for what is written: where content of longer chunks is
/// written over at random, as much again lies dead meanwhile.
pub const HIGH_WATER_DEFAULT: f64 = 0.85;
/// See [`HIGH_WATER_DEFAULT`].
pub const LOW_WATER_DEFAULT: f64 = 0.6;

/// The most copies that a tier may keep.
pub const COPIES_MAX: u8 = 4;

/// Settings of a tier, kept in the labels and changeable at any time.
#[derive(Debug, Clone, PartialEq)]
pub struct TierSettings {
    /// Name as the user gave it, 1–64 bytes.
    pub name: String,
    /// Fill level (0.0–1.0) above which new data goes to the next tier and the mover sinks cold data. Garbage that
    /// compaction brings back does not count. From the usual 85 % on new data goes to the next tier above 15/16 only: the
    /// mover is to make room first.
    pub high_water: f64,
    /// Fill level (0.0–1.0) down to which the mover sinks what is cold. What is between the marks is room for writes.
    pub low_water: f64,
    /// Which kinds of new writes land here.
    pub landing: Landing,
    /// Reads of a region, decayed, from which it is moved up into a faster tier; 0: never.
    pub promote_after: u32,
    /// Seconds without use after which a region sinks although there is room; 0: never.
    pub demote_after_seconds: u64,
    /// Bytes per second that the mover may write to this tier; 0: no limit.
    pub rate_limit: u64,
    /// When the mover may work, `HH:MM-HH:MM`; empty: always.
    pub window: String,
    /// Copies of each chunk, on different devices.
    pub copies: u8,
}

impl TierSettings {
    /// A tier with the default settings.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            high_water: HIGH_WATER_DEFAULT,
            low_water: LOW_WATER_DEFAULT,
            landing: Landing::OFF,
            promote_after: 3,
            demote_after_seconds: 0,
            rate_limit: 0,
            window: String::new(),
            copies: 1,
        }
    }

    /// Whether the settings make sense; else what does not, and what would.
    pub fn validate(&self) -> Result<(), String> {
        check_name(&self.name, NAME_BYTES_MAX)
            .map_err(|reason| format!("tier name '{}': {reason}", self.name))?;
        let level = |value: f64| value.is_finite() && (0.0..=1.0).contains(&value);
        if !level(self.high_water) || !level(self.low_water) || self.low_water > self.high_water {
            return Err(format!(
                "tier '{}': low_water {} and high_water {} must be between 0 and 1, low not above high",
                self.name, self.low_water, self.high_water
            ));
        }
        if self.window.len() > WINDOW_BYTES_MAX {
            return Err(format!(
                "tier '{}': the window is too long; write HH:MM-HH:MM",
                self.name
            ));
        }
        if !(1..=COPIES_MAX).contains(&self.copies) {
            return Err(format!(
                "tier '{}': copies must be 1 to {COPIES_MAX}, not {}",
                self.name, self.copies
            ));
        }
        Ok(())
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.string(self.name.as_bytes());
        writer
            .u64(self.high_water.to_bits())
            .u64(self.low_water.to_bits());
        writer.u8(self.landing.bits()).u32(self.promote_after);
        writer.u64(self.demote_after_seconds).u64(self.rate_limit);
        writer.string(self.window.as_bytes()).u8(self.copies);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let name = text(reader.string(NAME_BYTES_MAX, "tier name")?);
        let high_water = f64::from_bits(reader.u64("high_water")?);
        let low_water = f64::from_bits(reader.u64("low_water")?);
        let landing = Landing::from_bits(reader.u8("landing")?)?;
        let promote_after = reader.u32("promote_after")?;
        let demote_after_seconds = reader.u64("demote_after")?;
        let rate_limit = reader.u64("rate_limit")?;
        let window = text(reader.string(WINDOW_BYTES_MAX, "window")?);
        let copies = reader.u8("copies")?;
        Ok(Self {
            name,
            high_water,
            low_water,
            landing,
            promote_after,
            demote_after_seconds,
            rate_limit,
            window,
            copies,
        })
    }
}

/// Text from a device: anything that is not UTF-8 is replaced (and then fails the check of names).
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Names of pools and tiers: a letter or digit, then letters, digits, `_`, `-`, `.`.
pub(crate) fn check_name(name: &str, limit: usize) -> Result<(), String> {
    if name.is_empty() || name.len() > limit {
        return Err(format!("a name has 1 to {limit} characters"));
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if !name.chars().all(fits) || !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err("use letters, digits, '_', '-' and '.', and start with a letter or digit".into());
    }
    Ok(())
}
