//! Landing: on which tier new content lands, and whether that has room for it, but for garbage.

use std::sync::atomic::Ordering::{self, Relaxed};

use terrace_pool::{TierInfo, landing_tier};

use super::{accounting::SpaceView, placement::StreamKey, tier_room::TierRoom};

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

    /// Whether the tier on which this lands has room for it but for garbage.
    pub(crate) fn is_to_relieve(&self, key: StreamKey) -> bool {
        self.is_room_where_it_lands(key, |at, room, mark| {
            at < usize::from(self.resting_from()) && room.is_out() && !room.is_above(mark)
        })
    }

    /// The tier on which this lands, if garbage is some of what keeps it from there, but too little for compaction to win much:
    /// what is colder is to go.
    pub(crate) fn tier_to_sink_from(&self, key: StreamKey) -> Option<usize> {
        let full = self.is_room_where_it_lands(key, |at, room, mark| {
            at < usize::from(self.resting_from())
                && room.is_at_floor()
                && !room.is_worth_it()
                && !room.is_above(mark)
        });
        full.then(|| self.landing_tier(key, &self.pool.tiers())).flatten()
    }

    /// Whether the tier on which this lands has room for a segment of it.
    pub(crate) fn has_room_again(&self, key: StreamKey) -> bool {
        self.is_room_where_it_lands(key, |_, room, mark| room.has_room(mark))
    }

    fn is_room_where_it_lands(&self, key: StreamKey, is: impl Fn(usize, &TierRoom, f64) -> bool) -> bool {
        let tiers = self.pool.tiers();
        let Some(at) = self.landing_tier(key, &tiers) else {
            return false;
        };
        let rooms = self.rooms_of(&tiers);
        let here = tiers.get(at).zip(rooms.get(at));
        here.is_some_and(|(tier, room)| is(at, room, tier.landing_mark))
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
            room.raise_floor(self.reserve_segments());
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
