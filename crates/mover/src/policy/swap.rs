//! `Exchange`: on a full fast tier, what is clearly colder makes way for what is hotter and lies below.
//!
//! Invariants: room is made only for what was found below and has none, only of what is clearly colder than that (by the
//! counts of single chunks where they tell, else by the heat of regions), no more than it needs, and at once no more than
//! a part of the tier; what the room was made for gets it, and nothing else does meanwhile. Between two exchanges passes
//! ever more time while they do not lower the part of reads that slower tiers answer, less while they do, and the least
//! again once that part grows: so what is as hot as each other comes to rest, and a hot set that moves is followed.
//! What is not used at all makes way for regions that are without such pauses, and more of it at once: nothing there comes back for it.
//! Memory is bounded; all of it is lost with the process, and found again.

use std::collections::BTreeMap;

use terrace_cache::ChunkHeat;
use terrace_store::ChunkId;

use super::{demotion_passes::clearly_colder, hot_chunks::reads_that_give_way, swap_room::Room};
use crate::{mover::SECOND, relayout::Hot};

/// Shortest time between two exchanges.
const INTERVAL_MIN: u64 = 2 * SECOND;
/// And the longest, as long as it is not known whether they help.
const INTERVAL_UNKNOWN: u64 = 60 * SECOND;
/// And after many that did not.
const INTERVAL_MAX: u64 = 900 * SECOND;
/// After this long without a wish it begins with the shortest again.
const FORGOTTEN: u64 = 600 * SECOND;
/// How long nothing is sought after a search in vain: for chunks, and for regions, whose heat changes more slowly.
const VAIN_CHUNKS: u64 = 600 * SECOND;
const VAIN_REGIONS: u64 = 3600 * SECOND;
/// And after what waited turned out not to be worth it.
const UNFOUNDED: u64 = 10 * SECOND;
/// How long room is kept for what does not come: before any came, as compaction has to bring it back, and after some did.
const KEPT: u64 = 20 * SECOND;
const KEPT_AFTER: u64 = 10 * SECOND;
/// Chunks and regions that wait for room at most.
const CHUNKS_MAX: usize = 4096;
const REGIONS_MAX: usize = 1024;
/// At once, one part in so many of the tier changes.
pub(crate) const EXCHANGED_PART: u64 = 16;
/// And one part in so many of what is not used.
const UNUSED_PART: u64 = 4;
/// How long nothing of that is sought once there was no more.
const WITHOUT_UNUSED: u64 = 60 * SECOND;
/// Samples of reads of slower tiers, or reads, that make a judgement.
const JUDGED_SAMPLES: u64 = 128;
const JUDGED_READS: u64 = 1 << 17;
/// So many exchanges are judged together.
const TRIED: u32 = 3;
/// They helped if slower tiers answer less than this part of what they did, and what is hot has moved if they
/// answer more than that.
const HELPED: f64 = 0.9;
const MOVED: f64 = 1.5;
/// After so many judgements that they did not, what comes up must be read twice as often, as far as counts go.
const VAIN_ENOUGH: u32 = 2;
const CLEARLY_READ: u8 = 12;
/// How much the newest part of reads counts in the one to compare with.
const NEWEST: f64 = 0.25;

/// A region: dataset, body, number.
pub(crate) type Place = (u32, u64, u32);

/// Room to be made, and how much.
pub(crate) struct Wish {
    pub(crate) room: Room,
    pub(crate) bytes: u64,
}

/// What a demotion makes room for.
enum For {
    Chunks(Vec<Hot>),
    /// Hottest first, with reads and the bytes that lie below.
    Regions(Vec<(Place, f32, u64)>),
}

struct UnderWay {
    job: u64,
    /// Room that is wanted, and what is moved down for it: more where the tier is too full as it is, less where it has some.
    bytes: u64,
    total_bytes: u64,
    wanted: For,
    /// Of what is not used.
    unused: bool,
}

/// See the module.
pub(crate) struct Exchange {
    /// Found below without room: chunks, and regions with reads and the bytes that lie there.
    chunks: BTreeMap<ChunkId, Hot>,
    regions: BTreeMap<Place, (f32, u64)>,
    /// What the next demotion is for.
    planned: Option<For>,
    plans_unused: bool,
    under_way: Option<UnderWay>,
    /// Room was made for these, which may have to be compacted first; until when it is kept, and when to look next.
    ready_chunks: Vec<Hot>,
    ready_regions: Vec<(Place, f32, u64)>,
    ready_until: u64,
    next_ready: u64,
    /// Regions that are on their way into it, with their bytes.
    coming: BTreeMap<Place, u64>,
    /// Some came, and what else waits has not been looked for since.
    came: bool,
    /// Before these times none is sought.
    next: u64,
    next_chunks: u64,
    next_regions: u64,
    /// Before this time nothing that is not used is left.
    next_unused: u64,
    interval: u64,
    /// Several judgements in a row were that exchanges do not help: what comes up must be read twice as often.
    vain_judgements: u32,
    /// All reads, and samples of those of slower tiers, when judging began.
    since: (u64, u64),
    /// The part of reads that slower tiers answered before.
    slow_part: Option<f64>,
    /// Exchanges since then, and whether there was one since judging began.
    exchanges: u32,
    exchanged: bool,
}

impl Default for Exchange {
    fn default() -> Self {
        Self {
            chunks: BTreeMap::new(),
            regions: BTreeMap::new(),
            planned: None,
            plans_unused: false,
            under_way: None,
            ready_chunks: Vec::new(),
            ready_regions: Vec::new(),
            ready_until: 0,
            next_ready: 0,
            coming: BTreeMap::new(),
            came: false,
            next: 0,
            next_chunks: 0,
            next_regions: 0,
            next_unused: 0,
            interval: INTERVAL_MIN,
            vain_judgements: 0,
            since: (0, 0),
            slow_part: None,
            exchanges: 0,
            exchanged: false,
        }
    }
}

impl Exchange {
    /// Whether room is sought now: what lies below and has none is to be told.
    pub(crate) fn seeks(&self, now: u64) -> bool {
        self.under_way.is_none()
            && !self.is_ready()
            && now >= self.next
            && (now >= self.next_chunks || now >= self.next_regions)
    }

    /// A chunk below that is read often has no room on the fastest tier.
    pub(crate) fn want_chunk(&mut self, hot: Hot) {
        if self.chunks.len() < CHUNKS_MAX {
            self.chunks.insert(hot.id(), hot);
        }
    }

    /// So much of a region that was read this often lies below and has no room.
    pub(crate) fn want_region(&mut self, place: Place, reads: f32, bytes: u64) {
        if self.regions.len() < REGIONS_MAX {
            self.regions.insert(place, (reads, bytes));
        }
    }

    /// Whether regions come up for what is not used, which needs no knowledge of what else is.
    pub(crate) fn takes_unused(&self, now: u64) -> bool {
        now >= self.next_unused
    }

    /// Whether something was found below that has no room.
    pub(crate) fn is_wanting(&self) -> bool {
        !self.chunks.is_empty() || !self.regions.is_empty()
    }

    /// Whether something waits for room that may be sought now.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        let chunks = !self.chunks.is_empty() && now >= self.next_chunks;
        let regions = !self.regions.is_empty() && now >= self.next_regions;
        self.seeks(now) && (chunks || regions)
    }

    /// Whether room is being made for something, or will be at the next look, or was made for what has not come yet.
    pub(crate) fn is_at_work(&self, now: u64) -> bool {
        self.under_way.is_some() || self.is_due(now) || self.is_coming(now)
    }

    /// What room is to be made for now on a tier of this size, if any: the most read of what waits. `least`: reads of late
    /// from which a chunk is worth it.
    pub(crate) fn wish(&mut self, heat: &ChunkHeat, least: u8, size_bytes: u64, now: u64) -> Option<Wish> {
        if !self.is_due(now) {
            return None;
        }
        let most_bytes = (size_bytes / EXCHANGED_PART).max(1);
        self.plans_unused = false;
        let wish = self.wish_for_chunks(heat, least, most_bytes, now);
        let wish = wish.or_else(|| self.wish_for_unused(heat, (size_bytes / UNUSED_PART).max(1), now));
        let wish = wish.or_else(|| self.wish_for_regions(heat, most_bytes, now));
        if wish.is_none() {
            self.next = now + UNFOUNDED;
        }
        // What lies below may have moved until the next time.
        self.chunks.clear();
        self.regions.clear();
        wish
    }

    fn wish_for_chunks(&mut self, heat: &ChunkHeat, least: u8, most_bytes: u64, now: u64) -> Option<Wish> {
        if now < self.next_chunks {
            return None;
        }
        // Before, counts say what is hot, but not what is cold.
        let is_informed = heat.is_informed();
        let least = match self.vain_judgements >= VAIN_ENOUGH {
            true => least.saturating_mul(2).min(CLEARLY_READ),
            false => least,
        };
        let may = |hot: &&Hot| is_informed || matches!(hot, Hot::Piece(_));
        let counted = self.chunks.values().filter(may);
        let counted = counted.filter_map(|hot| hot.still(heat, least));
        let mut wanted: Vec<(u8, Hot)> = counted.collect();
        wanted.sort_unstable_by_key(|(reads, hot)| (std::cmp::Reverse(*reads), hot.id()));
        let fit = first_of(&wanted, most_bytes, |(_, hot)| hot.bytes()).len();
        wanted.truncate(fit.max(1));
        let (fewest, _) = *wanted.last()?;
        let chunks: Vec<Hot> = wanted.into_iter().map(|(_, hot)| hot).collect();
        let bytes = chunks.iter().map(Hot::bytes).sum();
        self.planned = Some(For::Chunks(chunks));
        let room = match is_informed {
            true => Room {
                colder: f32::INFINITY,
                gives_way: Some(reads_that_give_way(fewest)),
            },
            false => Room {
                colder: clearly_colder(f32::from(fewest)),
                gives_way: None,
            },
        };
        Some(Wish { room, bytes })
    }

    /// Regions in the place of what is not used, as long as there may be any.
    fn wish_for_unused(&mut self, heat: &ChunkHeat, most_bytes: u64, now: u64) -> Option<Wish> {
        if heat.is_telling() || now < self.next_unused || self.regions.is_empty() {
            return None;
        }
        let mut wanted = self.hottest_regions();
        let fit = first_of(&wanted, most_bytes, |(_, _, bytes)| *bytes).len();
        wanted.truncate(fit.max(1));
        let bytes = wanted.iter().map(|(_, _, bytes)| bytes).sum();
        self.planned = Some(For::Regions(wanted));
        self.plans_unused = true;
        let room = Room {
            colder: clearly_colder(0.0),
            gives_way: None,
        };
        Some(Wish { room, bytes })
    }

    /// The regions that wait, hottest first.
    fn hottest_regions(&self) -> Vec<(Place, f32, u64)> {
        let all = self.regions.iter();
        let mut wanted: Vec<(Place, f32, u64)> = all
            .map(|(place, (reads, bytes))| (*place, *reads, *bytes))
            .collect();
        wanted.sort_unstable_by_key(|(place, reads, _)| (std::cmp::Reverse(reads.to_bits()), *place));
        wanted
    }

    fn wish_for_regions(&mut self, heat: &ChunkHeat, most_bytes: u64, now: u64) -> Option<Wish> {
        // Where chunks tell, a region is as hot as those of its chunks that lie below.
        if heat.is_telling() || now < self.next_regions {
            return None;
        }
        let mut wanted = self.hottest_regions();
        let hottest = wanted.first()?.1;
        // What is much less hot waits: for it, less is clearly colder.
        wanted.retain(|(_, reads, _)| *reads * 2.0 >= hottest);
        let fit = first_of(&wanted, most_bytes, |(_, _, bytes)| *bytes).len();
        wanted.truncate(fit.max(1));
        let coolest = wanted.last()?.1;
        let bytes = wanted.iter().map(|(_, _, bytes)| bytes).sum();
        self.planned = Some(For::Regions(wanted));
        let room = Room {
            colder: clearly_colder(coolest),
            gives_way: None,
        };
        Some(Wish { room, bytes })
    }

    /// The demotion for what was wished last has begun.
    pub(crate) fn begin(&mut self, job: u64, bytes: u64, total_bytes: u64) {
        let wanted = self.planned.take();
        self.under_way = wanted.map(|wanted| UnderWay {
            job,
            bytes,
            total_bytes,
            wanted,
            unused: self.plans_unused,
        });
    }

    /// The job that makes room, if there is one.
    pub(crate) fn job(&self) -> Option<u64> {
        self.under_way.as_ref().map(|under_way| under_way.job)
    }

    /// Whether this job moves what is not used out of the way.
    pub(crate) fn is_for_unused(&self, job: u64) -> bool {
        let under_way = self.under_way.as_ref();
        under_way.is_some_and(|under_way| under_way.job == job && under_way.unused)
    }

    /// It is not worked on any more.
    pub(crate) fn give_up(&mut self) {
        self.under_way = None;
    }

    /// Marks or pins changed: what was sought in vain may be found now.
    pub(crate) fn seek_again(&mut self) {
        (self.next_chunks, self.next_regions) = (0, 0);
    }

    /// The demotion has ended, and has moved so much; whether it made room.
    pub(crate) fn ended(&mut self, job: u64, moved_bytes: u64, answered: (u64, u64), now: u64) -> bool {
        let Some(ended) = self.under_way.take_if(|under_way| under_way.job == job) else {
            return false;
        };
        if now > self.next + FORGOTTEN {
            (self.interval, self.vain_judgements) = (INTERVAL_MIN, 0);
        }
        if ended.unused && moved_bytes < ended.total_bytes {
            self.next_unused = now + WITHOUT_UNUSED;
        }
        if moved_bytes == 0 {
            match ended.wanted {
                // What is used may be colder than what waits.
                For::Regions(regions) if ended.unused => {
                    let again = regions
                        .into_iter()
                        .map(|(place, reads, bytes)| (place, (reads, bytes)));
                    self.regions.extend(again);
                }
                For::Chunks(_) => self.next_chunks = now + VAIN_CHUNKS,
                For::Regions(_) => self.next_regions = now + VAIN_REGIONS,
            }
            return false;
        }
        self.since = answered;
        if ended.unused {
            self.next = now;
        } else {
            self.next = now + self.interval;
            if self.interval < INTERVAL_UNKNOWN {
                self.interval = (self.interval / 4 * 5).min(INTERVAL_UNKNOWN);
            }
            self.exchanged = true;
            self.exchanges += 1;
        }
        let left = (moved_bytes + ended.bytes).saturating_sub(ended.total_bytes);
        match ended.wanted {
            For::Chunks(chunks) => self.ready_chunks = first_of(&chunks, left, Hot::bytes).to_vec(),
            For::Regions(regions) => {
                self.ready_regions = first_of(&regions, left, |region| region.2).to_vec()
            }
        }
        (self.ready_until, self.next_ready) = (now + KEPT, now);
        self.coming.clear();
        true
    }

    /// Whether something waits for the room that was made for it.
    fn is_ready(&self) -> bool {
        !self.ready_chunks.is_empty() || !self.ready_regions.is_empty()
    }

    /// Whether it is time to look if that room is there.
    pub(crate) fn may_come(&mut self, now: u64) -> bool {
        if now >= self.ready_until {
            (self.ready_chunks, self.ready_regions) = (Vec::new(), Vec::new());
            self.coming.clear();
        }
        let looks = self.is_ready() && now >= self.next_ready;
        if looks {
            self.next_ready = now + SECOND;
        }
        looks
    }

    /// There is so much room on the fastest tier: what comes into it.
    pub(crate) fn come(&mut self, room_bytes: u64, now: u64) -> (Vec<Hot>, Vec<(Place, f32)>) {
        let fit = first_of(&self.ready_chunks, room_bytes, Hot::bytes).len();
        let chunks: Vec<Hot> = self.ready_chunks.drain(..fit).collect();
        let fit = first_of(&self.ready_regions, room_bytes, |region| region.2).len();
        let regions: Vec<(Place, f32, u64)> = self.ready_regions.drain(..fit).collect();
        if !chunks.is_empty() || !regions.is_empty() {
            // Most of the room is there: others may have taken the rest.
            self.ready_until = now + KEPT_AFTER;
            self.came = true;
        }
        self.coming
            .extend(regions.iter().map(|(place, _, bytes)| (*place, *bytes)));
        let regions = regions
            .into_iter()
            .map(|(place, reads, _)| (place, reads))
            .collect();
        (chunks, regions)
    }

    /// What came is there: from when on more may wait for room. Once for each time.
    pub(crate) fn looks_again(&mut self) -> Option<u64> {
        std::mem::take(&mut self.came).then_some(self.next)
    }

    /// Whether it still comes up for what room was made: what slower tiers answer meanwhile tells nothing.
    fn is_coming(&self, now: u64) -> bool {
        now < self.ready_until && (self.is_ready() || !self.coming.is_empty())
    }

    /// Room on the fastest tier that is being made, or was made for what has not come yet.
    pub(crate) fn kept_bytes(&self, now: u64) -> u64 {
        let being_made = self.under_way.as_ref().map_or(0, |under_way| under_way.bytes);
        let chunks: u64 = self.ready_chunks.iter().map(Hot::bytes).sum();
        let regions: u64 = self.ready_regions.iter().map(|region| region.2).sum();
        let coming: u64 = self.coming.values().sum();
        match now < self.ready_until {
            true => being_made + chunks + regions + coming,
            false => being_made,
        }
    }

    /// A region is here: the room that was made for it, if any, is kept no longer.
    pub(crate) fn is_here(&mut self, place: Place) -> Option<u64> {
        self.coming.remove(&place)
    }

    /// Looks at how many reads slower tiers have answered: whether exchanges help, and whether what is hot has moved.
    pub(crate) fn judge(&mut self, answered: (u64, u64), now: u64) {
        if self.is_coming(now) {
            self.since = answered;
            return;
        }
        let reads = answered.0.saturating_sub(self.since.0);
        let samples = answered.1.saturating_sub(self.since.1);
        if samples < JUDGED_SAMPLES && reads < JUDGED_READS {
            return;
        }
        let part = samples as f64 / reads as f64;
        let exchanged = self.exchanged;
        (self.exchanged, self.since) = (false, answered);
        let Some(before) = self.slow_part else {
            self.slow_part = Some(part);
            return;
        };
        if part > before * MOVED {
            (self.interval, self.vain_judgements) = (INTERVAL_MIN, 0);
            (self.next, self.next_chunks, self.next_regions) = (self.next.min(now), now, now);
        } else if self.exchanges >= TRIED {
            (self.interval, self.vain_judgements) = match part < before * HELPED {
                true => ((self.interval / 2).max(INTERVAL_MIN), 0),
                false => ((self.interval * 4).min(INTERVAL_MAX), self.vain_judgements + 1),
            };
        } else if self.exchanges > 0 || exchanged {
            // Not before there were some more.
            return;
        } else {
            self.slow_part = Some(before + (part - before) * NEWEST);
            return;
        }
        (self.slow_part, self.exchanges) = (Some(part), 0);
    }
}

/// The first of these that come to no more than so many bytes.
fn first_of<T>(all: &[T], most_bytes: u64, bytes_of: impl Fn(&T) -> u64) -> &[T] {
    let mut bytes = 0;
    let fits = all.iter().take_while(|one| {
        bytes += bytes_of(one);
        bytes <= most_bytes
    });
    &all[..fits.count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where all that lies on the fast tier is used.
    fn where_all_is_used() -> Exchange {
        Exchange {
            next_unused: u64::MAX,
            ..Exchange::default()
        }
    }

    /// An exchange of one region, and reads after it, of which slower tiers answer this part; until when none is sought.
    fn exchange(exchange: &mut Exchange, answered: &mut (u64, u64), slow_part: f64) -> u64 {
        let heat = ChunkHeat::new(0);
        let now = exchange.next;
        exchange.want_region((1, 2, 3), 100.0, 1 << 20);
        let wish = exchange.wish(&heat, 3, 1 << 30, now).unwrap();
        assert_eq!((wish.bytes, wish.room.colder), (1 << 20, 49.0));
        exchange.begin(7, wish.bytes, wish.bytes);
        assert!(!exchange.seeks(now) && exchange.kept_bytes(now) == wish.bytes);
        assert!(!exchange.ended(8, 1, *answered, now) && !exchange.may_come(now));
        assert!(exchange.ended(7, wish.bytes, *answered, now) && exchange.may_come(now));
        assert_eq!(
            exchange.come(1000, now),
            (vec![], vec![]),
            "compaction has not brought it back yet"
        );
        assert!(!exchange.may_come(now) && exchange.may_come(now + SECOND));
        assert_eq!(exchange.come(1 << 20, now), (vec![], vec![((1, 2, 3), 100.0)]));
        assert_eq!(
            (exchange.kept_bytes(now), exchange.is_here((1, 2, 3))),
            (1 << 20, Some(1 << 20))
        );
        assert_eq!(exchange.kept_bytes(now), 0);
        read(exchange, answered, slow_part);
        exchange.next - now
    }

    fn read(exchange: &mut Exchange, answered: &mut (u64, u64), slow_part: f64) {
        *answered = (answered.0 + 10_000, answered.1 + (10_000.0 * slow_part) as u64);
        exchange.judge(*answered, exchange.next);
    }

    #[test]
    fn what_does_not_help_is_done_ever_more_seldom_until_what_is_hot_moves() {
        let (mut pool, mut answered) = (where_all_is_used(), (0, 0));
        read(&mut pool, &mut answered, 0.5);
        // It helps.
        for at in 0..9 {
            assert!(exchange(&mut pool, &mut answered, 0.45 - 0.03 * f64::from(at)) < 4 * SECOND);
        }
        // It does not any more.
        let pauses: Vec<u64> = (0..30)
            .map(|_| exchange(&mut pool, &mut answered, 0.2) / SECOND)
            .collect();
        assert!(
            pauses[3] > 4 && pauses[6] > 16 && pauses[12..].iter().all(|pause| *pause >= 300),
            "{pauses:?}"
        );
        assert!(pauses.iter().all(|pause| *pause * SECOND <= INTERVAL_MAX));
        assert!(pool.vain_judgements >= VAIN_ENOUGH);
        // A little more or less is chance.
        for part in [0.22, 0.18, 0.2] {
            read(&mut pool, &mut answered, part);
        }
        assert!(exchange(&mut pool, &mut answered, 0.2) >= 300 * SECOND);
        // What is hot has moved.
        let now = pool.next - 100 * SECOND;
        answered = (answered.0 + 10_000, answered.1 + 4000);
        pool.judge(answered, now);
        assert!(pool.seeks(now) && pool.vain_judgements == 0);
        assert_eq!(exchange(&mut pool, &mut answered, 0.4), INTERVAL_MIN);
    }

    #[test]
    fn what_is_read_before_it_came_up_is_not_held_against_it() {
        let (mut pool, heat, mut answered) = (where_all_is_used(), ChunkHeat::new(0), (0, 0));
        read(&mut pool, &mut answered, 0.5);
        for round in 0..2 * TRIED {
            let now = pool.next;
            pool.want_region((1, 2, 3), 100.0, 1 << 20);
            let wish = pool.wish(&heat, 3, 1 << 30, now).unwrap();
            pool.begin(7, wish.bytes, wish.bytes);
            assert!(pool.ended(7, wish.bytes, answered, now));
            assert_eq!(pool.looks_again(), None);
            // As many slow reads as before, until compaction has brought the room back, and until it came up.
            answered = (answered.0 + 10_000, answered.1 + 5000);
            pool.judge(answered, now + SECOND);
            assert_eq!(pool.come(1 << 20, now + SECOND).1.len(), 1);
            answered = (answered.0 + 10_000, answered.1 + 5000);
            pool.judge(answered, now + 2 * SECOND);
            assert_eq!(pool.is_here((1, 2, 3)), Some(1 << 20));
            assert_eq!((pool.looks_again(), pool.looks_again()), (Some(pool.next), None));
            let slow = 4000 - 500 * u64::from(round);
            answered = (answered.0 + 10_000, answered.1 + slow);
            pool.judge(answered, now + 2 * SECOND);
            assert!(
                pool.next - now < 4 * SECOND && pool.vain_judgements == 0,
                "{round}"
            );
        }
        // What never comes does not keep it from judging.
        let now = pool.next;
        pool.want_region((1, 2, 3), 100.0, 1 << 20);
        let wish = pool.wish(&heat, 3, 1 << 30, now).unwrap();
        pool.begin(7, wish.bytes, wish.bytes);
        assert!(pool.ended(7, wish.bytes, answered, now));
        assert!(pool.is_coming(now) && !pool.is_coming(now + KEPT));
    }

    #[test]
    fn a_search_in_vain_is_not_repeated_soon() {
        let (mut pool, heat) = (where_all_is_used(), ChunkHeat::new(0));
        pool.want_region((1, 2, 3), 100.0, 1 << 20);
        let wish = pool.wish(&heat, 3, 1 << 30, 5).unwrap();
        pool.begin(7, wish.bytes, wish.bytes);
        assert!(!pool.ended(7, 0, (0, 0), 5));
        pool.want_region((1, 2, 3), 100.0, 1 << 20);
        assert!(!pool.is_due(5 + VAIN_REGIONS - 1) && pool.is_due(5 + VAIN_REGIONS));
        // Unless something changed by which it may be found.
        pool.seek_again();
        assert!(pool.is_due(5 + VAIN_REGIONS - 1));
        // Less room than was wanted: for the hottest alone.
        pool.want_region((1, 2, 4), 90.0, 1 << 20);
        pool.want_region((1, 2, 5), 9.0, 1 << 20);
        let now = 5 + VAIN_REGIONS;
        let wish = pool.wish(&heat, 3, 1 << 30, now).unwrap();
        assert_eq!(wish.bytes, 2 << 20, "what is much colder waits");
        pool.begin(8, wish.bytes, wish.bytes + 500);
        assert!(pool.ended(8, (1 << 20) + 700, (0, 0), now) && pool.may_come(now));
        assert_eq!(pool.come(4 << 20, now), (vec![], vec![((1, 2, 3), 100.0)]));
        assert_eq!((pool.kept_bytes(now), pool.kept_bytes(now + KEPT)), (1 << 20, 0));
    }

    #[test]
    fn what_is_not_used_makes_way_without_pauses_until_there_is_no_more() {
        let (mut pool, heat) = (Exchange::default(), ChunkHeat::new(0));
        let (tier_bytes, mib) = (64 << 20, 1 << 20);
        let mut now = 5;
        for round in 0..2 * TRIED {
            (0..20).for_each(|region| pool.want_region((1, 2, region), 3.0 + region as f32, mib));
            let wish = pool.wish(&heat, 3, tier_bytes, now).unwrap();
            assert_eq!((wish.bytes, wish.room.colder), (16 * mib, clearly_colder(0.0)));
            pool.begin(u64::from(round), wish.bytes, wish.bytes);
            assert!(pool.ended(u64::from(round), wish.bytes, (0, 0), now) && pool.may_come(now));
            let (_, regions) = pool.come(tier_bytes, now);
            assert_eq!((regions.len(), regions[0].1), (16, 22.0));
            assert!(regions.iter().all(|(place, _)| pool.is_here(*place).is_some()));
            assert!(pool.seeks(now), "no pause");
            now += 1;
        }
        // There was less of it: what is clearly colder is sought next, with all its pauses.
        let seek = |pool: &mut Exchange, now| {
            pool.want_region((1, 2, 3), 100.0, mib);
            pool.wish(&heat, 3, tier_bytes, now).unwrap().room.colder
        };
        assert_eq!(seek(&mut pool, now), clearly_colder(0.0));
        pool.begin(99, mib, mib);
        assert!(
            !pool.ended(99, 0, (0, 0), now) && pool.is_due(now),
            "it waits still"
        );
        assert_eq!(seek(&mut pool, now), 49.0);
        assert_eq!(seek(&mut pool, now + WITHOUT_UNUSED), clearly_colder(0.0));
    }
}
