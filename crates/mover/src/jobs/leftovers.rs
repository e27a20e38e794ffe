//! `Left`: what a move by hand had to leave where it is, so that it does not end as if all had been moved.
//!
//! Invariants: what could not be read makes the move fail, with figures; what is pinned to another tier stays there and does not.
//! Kept with the job, so that a restart in the middle does not forget it.

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_device::format_size;

/// Tiers that are told apart.
const TIERS_MAX: usize = 64;

/// See the module. Content, bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// By tier, what could not be read there.
    unreadable_by_tier: Vec<u64>,
    /// What no device of the pool holds any more.
    lost_bytes: u64,
    /// What is pinned to another tier than the one that it was to move to.
    pinned_bytes: u64,
}

impl Left {
    /// So much more could not be read on this tier.
    pub(crate) fn unreadable(&mut self, tier: u8, bytes: u64) {
        let at = usize::from(tier).min(TIERS_MAX - 1);
        if self.unreadable_by_tier.len() <= at {
            self.unreadable_by_tier.resize(at + 1, 0);
        }
        self.unreadable_by_tier[at] = self.unreadable_by_tier[at].saturating_add(bytes);
    }

    /// So much more is gone.
    pub(crate) fn lost(&mut self, bytes: u64) {
        self.lost_bytes = self.lost_bytes.saturating_add(bytes);
    }

    /// So much more is pinned elsewhere.
    pub(crate) fn pinned(&mut self, bytes: u64) {
        self.pinned_bytes = self.pinned_bytes.saturating_add(bytes);
    }

    /// All that could not be read, or is gone.
    pub(crate) fn unread_bytes(&self) -> u64 {
        let readable = self.unreadable_by_tier.iter();
        readable.fold(self.lost_bytes, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Why a move of so many bytes of content to a tier failed, if something of it could not be read.
    pub(crate) fn failure(
        &self,
        moved_bytes: u64,
        target: &str,
        name: impl Fn(u8) -> String,
    ) -> Option<String> {
        let unread = self.unread_bytes();
        if unread == 0 {
            return None;
        }
        let there = moved_bytes.saturating_sub(unread.saturating_add(self.pinned_bytes));
        let by_tier = self.unreadable_by_tier.iter().enumerate();
        let mut stays: Vec<String> = by_tier
            .filter(|(_, bytes)| **bytes > 0)
            .map(|(tier, bytes)| format!("{} on tier '{}'", format_size(*bytes), name(tier as u8)))
            .collect();
        if self.lost_bytes > 0 {
            stays.push(format!(
                "{} on no device of the pool",
                format_size(self.lost_bytes)
            ));
        }
        Some(format!(
            "{} of it cannot be read ({unread} bytes: {}); {} lie on tier '{target}'{}; 'terrace scrub --wait' names the files",
            format_size(unread),
            stays.join(", "),
            format_size(there),
            self.describe_pinned()
        ))
    }

    /// What stays for a pin, for people: empty if nothing does.
    pub(crate) fn describe_pinned(&self) -> String {
        match self.pinned_bytes {
            0 => String::new(),
            bytes => format!(
                "; {} that are pinned elsewhere stay where their pin says",
                format_size(bytes)
            ),
        }
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.varint(self.unreadable_by_tier.len() as u64);
        for bytes in &self.unreadable_by_tier {
            writer.varint(*bytes);
        }
        writer.varint(self.lost_bytes).varint(self.pinned_bytes);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let tiers = reader.varint("tiers")?;
        if tiers > TIERS_MAX as u64 {
            return Err(DecodeError::Invalid("tiers"));
        }
        let unreadable_by_tier = (0..tiers).map(|_| reader.varint("unreadable"));
        Ok(Self {
            unreadable_by_tier: unreadable_by_tier.collect::<Result<_, _>>()?,
            lost_bytes: reader.varint("lost")?,
            pinned_bytes: reader.varint("pinned")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_told_with_figures_and_what_is_pinned_is_no_failure() {
        let name = |tier: u8| ["ssd", "hdd"][usize::from(tier)].to_owned();
        let mut left = Left::default();
        assert!(left.failure(9 << 20, "ssd", name).is_none());
        left.pinned(1 << 20);
        assert!(left != Left::default() && left.failure(9 << 20, "ssd", name).is_none());
        assert!(
            left.describe_pinned().contains("1M"),
            "{}",
            left.describe_pinned()
        );
        left.unreadable(1, 2 << 20);
        left.lost(4096);
        let words = left.failure(9 << 20, "ssd", name).unwrap();
        for part in [
            "2101248 bytes",
            "2M on tier 'hdd'",
            "4K on no device",
            "6.00M lie on tier 'ssd'",
            "1M that are pinned",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
        let mut writer = Writer::new();
        left.encode(&mut writer);
        let bytes = writer.into_bytes();
        assert_eq!(Left::decode(&mut Reader::new(&bytes)).as_ref(), Ok(&left));
        assert!((0..bytes.len()).all(|cut| Left::decode(&mut Reader::new(&bytes[..cut])).is_err()));
        assert!(Left::decode(&mut Reader::new(&[200, 1])).is_err());
    }
}
