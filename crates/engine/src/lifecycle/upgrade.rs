//! The format version of the pool, and a newer one for it.
//!
//! Invariant: a pool changes its version only when somebody asks for it.

use super::lifecycle::Lifecycle;
use crate::EngineError;

/// What a format version brings, in words.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FormatNews {
    /// The version.
    pub version: u32,
    /// What it brings.
    pub brings: String,
}

impl Lifecycle {
    /// The format version of the pool.
    pub(crate) fn format_version(&self) -> u32 {
        self.chunks.format_version().into()
    }

    /// What the versions bring that are newer than that of the pool; nothing if it has the newest.
    pub(crate) fn format_news(&self) -> Vec<FormatNews> {
        let has = self.chunks.format_version();
        let newer = terrace_chunk::FORMATS
            .iter()
            .filter(|(version, _)| *version > has);
        newer
            .map(|(version, brings)| FormatNews {
                version: (*version).into(),
                brings: (*brings).to_owned(),
            })
            .collect()
    }

    /// Gives the pool the newest format version, durably: older programs cannot open it from then on.
    pub(crate) fn upgrade(&self) -> Result<(), EngineError> {
        self.open.check()?;
        let before = self.format_version();
        self.chunks.upgrade_format()?;
        let now = self.format_version();
        if now > before {
            self.events.add(
                "upgrade",
                &format!("the pool has format version {now}, before {before}"),
            );
        }
        Ok(())
    }
}
