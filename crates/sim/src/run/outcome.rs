//! What came of a run: the hash of its trace, and what was found wrong.

/// Which part of the engine a run drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// Every level, chosen by the seed.
    All,
    /// Chunks and records: the store against batches kept in RAM.
    Store,
    /// The whole engine: filesystems and volumes against a plain model.
    Fs,
    /// Damage to what lies on the devices.
    Damage,
    /// Devices that come and go.
    Away,
    /// As `fs`, with disks that are missing and are replaced.
    Replace,
}

impl Level {
    /// The level that a seed runs.
    pub fn of_seed(self, seed: u64) -> Level {
        match self {
            Level::All => match seed % 5 {
                0 | 1 => Level::Store,
                2 | 3 => Level::Fs,
                _ if seed % 10 == 4 => Level::Away,
                _ if seed % 20 == 19 => Level::Replace,
                _ => Level::Damage,
            },
            one => one,
        }
    }

    /// As on the command line.
    pub fn words(self) -> &'static str {
        match self {
            Level::All => "all",
            Level::Store => "store",
            Level::Fs => "fs",
            Level::Damage => "damage",
            Level::Away => "away",
            Level::Replace => "replace",
        }
    }
}

/// A run that ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// Its level.
    pub level: Level,
    /// Hash of everything that happened.
    pub hash: u64,
    /// Number of things that happened.
    pub events: u64,
    /// What was wrong, if anything.
    pub violation: Option<String>,
    /// The last calls of the workload before it.
    pub tail: Vec<String>,
}
