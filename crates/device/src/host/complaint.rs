//! `Complaint`: what the log says of something that strangers can bring about as often as they like.
//!
//! Invariant: a line a minute at most, however often it comes; each time is counted in the line then or in a later one.

use std::time::{Duration, Instant};

/// Between two lines.
const REST: Duration = Duration::from_secs(60);

/// See above.
#[derive(Debug, Default)]
pub struct Complaint {
    said: Option<Instant>,
    unsaid: u64,
}

impl Complaint {
    /// It came once more. How often it came since the last line, if another is due.
    pub fn once_more(&mut self, now: Instant) -> Option<u64> {
        self.unsaid += 1;
        self.due(now)
    }

    /// How often it came since the last line, if it did and another is due: to be asked now and then.
    pub fn due(&mut self, now: Instant) -> Option<u64> {
        let rests = self
            .said
            .is_some_and(|said| now.saturating_duration_since(said) < REST);
        if rests || self.unsaid == 0 {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_them_is_a_line_a_minute_and_all_are_counted() {
        let (mut complaint, start) = (Complaint::default(), Instant::now());
        let mut said = Vec::new();
        // Ten a second for two minutes and a half.
        for tenth in 0..1500u64 {
            let now = start + Duration::from_millis(100 * tenth);
            said.extend(complaint.once_more(now).map(|times| (tenth, times)));
        }
        assert_eq!(said, [(0, 1), (600, 600), (1200, 600)]);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(complaint.due(after(179)), None);
        assert_eq!(complaint.due(after(180)), Some(299));
        assert_eq!(complaint.due(after(1000)), None);
    }
}
