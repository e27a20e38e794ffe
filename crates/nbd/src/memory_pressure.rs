//! `Crowd`: notices that most of many clients have gone.
//!
//! What serves a thousand clients takes memory that the few after them do not need. Invariant: it is said once for each half
//! that goes, so that what follows from it is done a few times for any number of clients.

/// Fewer clients than this are no crowd.
const CROWD_MIN: usize = 64;

/// See above.
#[derive(Debug, Default)]
pub struct Crowd {
    /// Most clients since it was last said that half of them are gone.
    most: usize,
}

impl Crowd {
    /// One came, and there are so many now.
    pub fn came(&mut self, clients: usize) {
        self.most = self.most.max(clients);
    }

    /// One went, and there are so many left. Whether half of those that there were have gone since this was said last.
    pub fn has_gone(&mut self, clients: usize) -> bool {
        let has_gone = self.most >= CROWD_MIN && clients <= self.most / 2;
        if has_gone {
            self.most = clients;
        }
        has_gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_goes_by_halves() {
        let mut crowd = Crowd::default();
        (1..=1000).for_each(|clients| crowd.came(clients));
        let gone: Vec<usize> = (0..1000)
            .rev()
            .filter(|clients| crowd.has_gone(*clients))
            .collect();
        assert_eq!(gone, [500, 250, 125, 62]);
        crowd.came(60);
        assert!((0..60).rev().all(|clients| !crowd.has_gone(clients)));
    }
}
