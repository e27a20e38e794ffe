//! What a tier is called and how it is used.

/// Settings of a tier, kept in the labels and changeable at any time.
#[derive(Debug, Clone, PartialEq)]
pub struct TierSettings {
    /// Name as the user gave it, 1–64 bytes.
    pub name: String,
    /// Fill level (0.0–1.0) above which new data goes to the next tier and the mover sinks cold data.
    pub high_water: f64,
    /// Fill level (0.0–1.0) down to which the mover sinks.
    pub low_water: f64,
    /// Whether long sequential writes land here.
    pub landing: bool,
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
            high_water: 0.85,
            low_water: 0.75,
            landing: false,
            promote_after: 3,
            demote_after_seconds: 0,
            rate_limit: 0,
            window: String::new(),
            copies: 1,
        }
    }
}
