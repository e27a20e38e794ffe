//! Landing: on which tier new content lands, and whether that has room for it, but for garbage: every question about one tier.

use std::sync::atomic::Ordering::{self, Relaxed};

use terrace_pool::{TierInfo, landing_tier};

use super::{accounting::SpaceView, placement::StreamKey, tier_room::TierRoom};

/// Whether new content finds a segment on the tier where it is to land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landing {
    /// It does.
    Fits,
    /// Once garbage has been brought back.
    AfterCleaning,
    /// Garbage is too little of what keeps it from this tier for compaction to win much: once what is colder has left.
    AfterDemotion(usize),
    /// Not by anything that a writer waits for; or it is no content that lands.
    Elsewhere,
}

impl Landing {
    /// Of content that is to land on the tier `at` with this room, up to this mark; one that `rests` is not compacted for it.
    fn of(at: usize, room: &TierRoom, mark: f64, rests: bool) -> Self {
        if room.has_room(mark) {
            Self::Fits
        } else if rests || !room.is_at_floor() || room.is_above(mark) {
            Self::Elsewhere
        } else if room.is_worth_it() {
            Self::AfterCleaning
        } else {
            Self::AfterDemotion(at)
        }
    }
}

impl SpaceView {
    /// Free segments of the tier that has the fewest, of those where garbage is to be brought back before other work.
    pub(crate) fn free_where_pressed(&self) -> Option<u64> {
        let resting = usize::from(self.resting_from());
        let rooms = self.tier_rooms();
        let pressed = rooms.iter().take(resting).filter(|room| room.is_pressed());
        pressed.map(TierRoom::free).min()
    }

    /// The tier on which a stream is to land, if it is one that new content lands by.
    pub(crate) fn landing_tier(&self, key: StreamKey, tiers: &[TierInfo]) -> Option<usize> {
        let of = |sequential| landing_tier(tiers.iter().map(|tier| &tier.settings), sequential);
        match key {
            StreamKey::Random => Some(of(false)),
            StreamKey::Sequential => Some(of(true)),
            StreamKey::Tier(..) => None,
        }
    }

    /// Whether new content of this stream finds a segment on the tier where it is to land: the one question about that.
    pub(crate) fn landing(&self, key: StreamKey) -> Landing {
        let tiers = self.pool.tiers();
        let Some(at) = self.landing_tier(key, &tiers) else {
            return Landing::Elsewhere;
        };
        let rooms = self.rooms_of(&tiers);
        match tiers.get(at).zip(rooms.get(at)) {
            Some((tier, room)) => {
                let rests = at >= usize::from(self.resting_from());
                Landing::of(at, room, tier.landing_mark, rests)
            }
            None => Landing::Elsewhere,
        }
    }

    pub(crate) fn resting_from(&self) -> u8 {
        self.resting_from.load(Ordering::Relaxed)
    }

    /// Segments of this tier and slower ones are not compacted while there is room otherwise; 255: none of them rests.
    pub(crate) fn set_resting_from(&self, tier: u8) {
        self.resting_from.store(tier, Ordering::Relaxed);
    }

    /// Room for what lands until garbage has to be brought back for it, bytes.
    pub(crate) fn landing_bytes(&self) -> u64 {
        let free = self.pool.free_for_content() * u64::from(self.pool.segment_bytes());
        let rooms = self.tier_rooms();
        let contested = rooms.iter().filter(|room| room.is_worth_it());
        contested.map(TierRoom::landing_bytes).fold(free, u64::min)
    }

    /// The tier where small writes land, if too little room is there for so many bytes. On the last one that is room beyond the
    /// reserve of the pool: there is no other place for them.
    pub(crate) fn short_tier_for(&self, bytes: u64, garbage_part: u64) -> Option<u8> {
        let tiers = self.pool.tiers();
        let at = self.landing_tier(StreamKey::Random, &tiers)?;
        if at >= usize::from(self.resting_from()) {
            return None;
        }
        let rooms = self.rooms_of(&tiers);
        let (mut room, tier) = (*rooms.get(at)?, tiers.get(at)?);
        let is_last = at + 1 >= tiers.len();
        if is_last {
            room.raise_floor(self.watermarks().reserve());
        }
        let mark = if is_last { 1.0 } else { tier.landing_mark };
        (!room.has_room_for(bytes, garbage_part, mark)).then_some(at as u8)
    }

    /// The room of each tier, fastest first.
    pub(crate) fn tier_rooms(&self) -> Vec<TierRoom> {
        self.rooms_of(&self.pool.tiers())
    }

    fn rooms_of(&self, tiers: &[TierInfo]) -> Vec<TierRoom> {
        let segment_bytes = u64::from(self.pool.segment_bytes());
        let mut content = vec![(0, 0); tiers.len()];
        let place = |device: u16| {
            let tier = self.pool.tier_of(device).filter(|_| self.pool.takes_new(device));
            tier.map(usize::from)
        };
        // What can still be appended is no garbage.
        for open in self.open_segments.all() {
            let room = open.room() as u64;
            for copy in &open.copies {
                if let Some((taken, _)) = place(copy.device).and_then(|tier| content.get_mut(tier)) {
                    *taken += room;
                }
            }
        }
        let devices: Vec<_> = self.ledger.lock().devices().collect();
        let pending = self.pending_free.load(Relaxed).max(0).unsigned_abs();
        let mut segments = vec![0; tiers.len()];
        for (device, held) in devices {
            let Some(tier) = place(device) else { continue };
            if let (Some((_, live)), Some(segments)) = (content.get_mut(tier), segments.get_mut(tier)) {
                *live += (held.live + held.pending).max(0).unsigned_abs();
                *segments += held.segments;
            }
        }
        let all = tiers.iter().zip(content).zip(segments);
        all.map(|((tier, (open, held_bytes)), data)| {
            let live_bytes = held_bytes.saturating_sub(pending);
            TierRoom {
                segments: tier.segments,
                free: tier.free_segments,
                floor: tier.floor_segments,
                segment_bytes,
                live_bytes,
                garbage_bytes: (data * segment_bytes).saturating_sub(live_bytes + open),
            }
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn landing(free: u64, garbage_segments: u64, mark: f64, rests: bool) -> Landing {
        let room = TierRoom {
            segments: 128,
            free,
            floor: 4,
            segment_bytes: 1 << 20,
            live_bytes: (128 - free - garbage_segments) << 20,
            garbage_bytes: garbage_segments << 20,
        };
        Landing::of(1, &room, mark, rests)
    }

    #[test]
    fn full_tier_is_cleaned_if_garbage_suffices_and_demoted_otherwise() {
        assert_eq!(landing(5, 60, 1.0, false), Landing::Fits);
        assert_eq!(landing(4, 60, 1.0, false), Landing::AfterCleaning);
        assert_eq!(landing(4, 10, 1.0, false), Landing::AfterDemotion(1));
    }

    #[test]
    fn nobody_waits_for_a_tier_that_rests_or_is_above_its_mark() {
        assert_eq!(landing(4, 60, 1.0, true), Landing::Elsewhere);
        assert_eq!(landing(5, 60, 1.0, true), Landing::Fits);
        assert_eq!(landing(4, 10, 0.85, false), Landing::Elsewhere);
        assert_eq!(landing(30, 10, 0.5, false), Landing::Elsewhere);
    }
}
