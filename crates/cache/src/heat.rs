//! `Heat`: how often each region (1 MiB of an object) is read and written, so that the mover knows what to raise and
//! what to sink. The idea is TIER's heat per 1 MiB block, with exponential decay instead of sweeps.
//!
//! Invariants: 12 bytes a region; counts halve every [`HALF_LIFE_MINUTES`] and are brought up to date only when they
//! are touched or asked for; the number of regions is bounded, the least recently touched object goes first.

use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

/// Minutes in which a count halves.
pub const HALF_LIFE_MINUTES: u32 = 60;
const SHARDS: usize = 16;
/// Counts are kept in units of 1/16.
const SCALE: f32 = 16.0;
const CELL_BYTES: usize = 12;

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Written.
    Write,
}

/// Heat of one region.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RegionHeat {
    /// Reads, decayed.
    pub reads: f32,
    /// Writes, decayed.
    pub writes: f32,
    /// Minutes (of the caller's clock) at the last touch.
    pub touched_minutes: u32,
}

#[derive(Clone, Copy)]
struct Cell {
    region: u32,
    minutes: u32,
    reads: u16,
    writes: u16,
}

impl Cell {
    fn at(&self, minutes: u32) -> (f32, f32) {
        let halvings = minutes.saturating_sub(self.minutes) as f32 / HALF_LIFE_MINUTES as f32;
        let factor = 0.5f32.powf(halvings) / SCALE;
        (f32::from(self.reads) * factor, f32::from(self.writes) * factor)
    }
}

#[derive(Default)]
struct ObjectHeat {
    cells: Vec<Cell>,
    touched: u32,
    changed: bool,
}

#[derive(Default)]
struct Shard {
    objects: HashMap<(u32, u64), ObjectHeat>,
    cells: usize,
}

/// Heat of all regions.
pub struct Heat {
    shards: Box<[Mutex<Shard>]>,
    cells_per_shard: usize,
    /// Where what changed is looked for first: so what changes again and again keeps nothing else from its turn.
    next_shard: AtomicUsize,
}

impl Heat {
    /// At most `regions` regions, 12 bytes each and about 64 bytes per object.
    pub fn new(regions: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self {
            shards,
            cells_per_shard: (regions / SHARDS).max(16),
            next_shard: AtomicUsize::new(0),
        }
    }

    fn shard(&self, dataset: u32, object: u64) -> &Mutex<Shard> {
        let hash = (object ^ u64::from(dataset) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(hash >> 60) as usize % SHARDS]
    }

    /// Counts `amount` accesses (1 for one request; a fraction for a request that covers the region partly).
    pub fn record(&self, dataset: u32, object: u64, region: u32, access: Access, amount: f32, minutes: u32) {
        let mut shard = self.shard(dataset, object).lock();
        let Shard { objects, cells } = &mut *shard;
        let heat = objects.entry((dataset, object)).or_default();
        heat.touched = minutes;
        heat.changed = true;
        let place = match heat.cells.last() {
            Some(last) if last.region < region => Err(heat.cells.len()),
            _ => heat.cells.binary_search_by_key(&region, |cell| cell.region),
        };
        let place = place.unwrap_or_else(|place| {
            heat.cells.insert(
                place,
                Cell {
                    region,
                    minutes,
                    reads: 0,
                    writes: 0,
                },
            );
            *cells += 1;
            place
        });
        let cell = &mut heat.cells[place];
        let (mut reads, mut writes) = if cell.minutes == minutes {
            (f32::from(cell.reads) / SCALE, f32::from(cell.writes) / SCALE)
        } else {
            cell.at(minutes)
        };
        match access {
            Access::Read => reads += amount,
            Access::Write => writes += amount,
        }
        let pack = |count: f32| (count * SCALE).round().clamp(0.0, f32::from(u16::MAX)) as u16;
        *cell = Cell {
            region,
            minutes,
            reads: pack(reads),
            writes: pack(writes),
        };
        if shard.cells > self.cells_per_shard {
            shrink(&mut shard, self.cells_per_shard);
        }
    }

    /// Takes back reads that were counted, and turned out to be none that count.
    pub fn take_back(&self, dataset: u32, object: u64, region: u32, amount: f32, minutes: u32) {
        let mut shard = self.shard(dataset, object).lock();
        if let Some(heat) = shard.objects.get_mut(&(dataset, object))
            && let Ok(place) = heat.cells.binary_search_by_key(&region, |cell| cell.region)
        {
            heat.changed = true;
            let cell = &mut heat.cells[place];
            let since = minutes.saturating_sub(cell.minutes) as f32 / HALF_LIFE_MINUTES as f32;
            // As if it had been taken back when the cell was touched last.
            let then = amount * 2f32.powf(since) * SCALE;
            cell.reads = cell.reads.saturating_sub(then.round() as u16);
        }
    }

    /// Heat of a region at a time; zero if nothing is known.
    pub fn of(&self, dataset: u32, object: u64, region: u32, minutes: u32) -> RegionHeat {
        let shard = self.shard(dataset, object).lock();
        let cell = shard.objects.get(&(dataset, object)).and_then(|heat| {
            heat.cells
                .binary_search_by_key(&region, |cell| cell.region)
                .ok()
                .map(|place| heat.cells[place])
        });
        cell.map_or_else(RegionHeat::default, |cell| {
            let (reads, writes) = cell.at(minutes);
            RegionHeat {
                reads,
                writes,
                touched_minutes: cell.minutes,
            }
        })
    }

    /// Reads of all regions of an object, decayed.
    pub fn reads_of(&self, dataset: u32, object: u64, minutes: u32) -> f32 {
        let shard = self.shard(dataset, object).lock();
        let cells = shard.objects.get(&(dataset, object)).map(|heat| &heat.cells[..]);
        cells
            .unwrap_or_default()
            .iter()
            .map(|cell| cell.at(minutes).0)
            .sum()
    }

    /// Forgets the reads of a region; returns how many that were, decayed. When it was touched stays known.
    pub fn forget_reads(&self, dataset: u32, object: u64, region: u32, minutes: u32) -> f32 {
        let mut shard = self.shard(dataset, object).lock();
        let Some(heat) = shard.objects.get_mut(&(dataset, object)) else {
            return 0.0;
        };
        let Ok(place) = heat.cells.binary_search_by_key(&region, |cell| cell.region) else {
            return 0.0;
        };
        heat.changed = true;
        let cell = &mut heat.cells[place];
        let (reads, _) = cell.at(minutes);
        cell.reads = 0;
        reads
    }

    /// Calls `visit(dataset, object, region, heat)` for every known region, in an order that does not depend on
    /// chance. One shard is locked at a time.
    pub fn for_each(&self, minutes: u32, mut visit: impl FnMut(u32, u64, u32, RegionHeat)) {
        for shard in &self.shards {
            let shard = shard.lock();
            let mut objects: Vec<_> = shard.objects.iter().collect();
            objects.sort_unstable_by_key(|(key, _)| **key);
            for ((dataset, object), heat) in objects {
                for cell in &heat.cells {
                    let (reads, writes) = cell.at(minutes);
                    visit(
                        *dataset,
                        *object,
                        cell.region,
                        RegionHeat {
                            reads,
                            writes,
                            touched_minutes: cell.minutes,
                        },
                    );
                }
            }
        }
    }

    /// Drops what is known of an object (it was deleted).
    pub fn forget(&self, dataset: u32, object: u64) {
        let mut shard = self.shard(dataset, object).lock();
        if let Some(heat) = shard.objects.remove(&(dataset, object)) {
            shard.cells -= heat.cells.len();
        }
    }

    /// Forgets everything; returns the objects that something was known of, so that their records can be dropped.
    pub fn clear(&self) -> Vec<(u32, u64)> {
        let mut known = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            known.extend(shard.objects.drain().map(|(place, _)| place));
            shard.cells = 0;
        }
        known
    }

    /// Up to `limit` objects whose heat changed since they were last taken, encoded to be kept as records.
    pub fn take_changed(&self, limit: usize) -> Vec<(u32, u64, Vec<u8>)> {
        let mut taken = Vec::new();
        let first = self.next_shard.load(Ordering::Relaxed);
        for number in (first..first + SHARDS).map(|number| number % SHARDS) {
            if taken.len() == limit {
                self.next_shard.store(number, Ordering::Relaxed);
                break;
            }
            let mut shard = self.shards[number].lock();
            let mut changed: Vec<_> = shard
                .objects
                .iter_mut()
                .filter(|(_, heat)| heat.changed)
                .collect();
            changed.sort_unstable_by_key(|(key, _)| **key);
            for ((dataset, object), heat) in changed.into_iter().take(limit - taken.len()) {
                heat.changed = false;
                taken.push((*dataset, *object, encode(&heat.cells)));
            }
        }
        taken
    }

    /// Takes back what [`take_changed`](Self::take_changed) encoded; damaged bytes are ignored (heat is a hint).
    pub fn load(&self, dataset: u32, object: u64, encoded: &[u8]) {
        let mut loaded: Vec<Cell> = Vec::with_capacity(encoded.len() / CELL_BYTES);
        for bytes in encoded.as_chunks::<CELL_BYTES>().0 {
            let word =
                |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let cell = Cell {
                region: word(0),
                minutes: word(4),
                reads: half(8),
                writes: half(10),
            };
            if loaded.last().is_none_or(|last| last.region < cell.region) {
                loaded.push(cell);
            }
        }
        let touched = loaded.iter().map(|cell| cell.minutes).max().unwrap_or(0);
        let mut shard = self.shard(dataset, object).lock();
        let count = loaded.len();
        let before = shard.objects.insert(
            (dataset, object),
            ObjectHeat {
                cells: loaded,
                touched,
                changed: false,
            },
        );
        shard.cells = shard.cells + count - before.map_or(0, |heat| heat.cells.len());
        if shard.cells > self.cells_per_shard {
            shrink(&mut shard, self.cells_per_shard);
        }
    }

    /// Regions known.
    pub fn regions(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().cells).sum()
    }
}

fn encode(cells: &[Cell]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(cells.len() * CELL_BYTES);
    for cell in cells {
        bytes.extend_from_slice(&cell.region.to_le_bytes());
        bytes.extend_from_slice(&cell.minutes.to_le_bytes());
        bytes.extend_from_slice(&cell.reads.to_le_bytes());
        bytes.extend_from_slice(&cell.writes.to_le_bytes());
    }
    bytes
}

/// Forgets the least recently touched objects until a quarter of the room is free again; when one object alone is
/// too large, every second of its regions.
fn shrink(shard: &mut Shard, limit: usize) {
    let mut ages: Vec<(u32, (u32, u64))> = shard
        .objects
        .iter()
        .map(|(key, heat)| (heat.touched, *key))
        .collect();
    ages.sort_unstable();
    let newest = ages.pop().map(|(_, key)| key);
    for (_, key) in ages {
        if shard.cells <= limit / 4 * 3 {
            return;
        }
        if let Some(heat) = shard.objects.remove(&key) {
            shard.cells -= heat.cells.len();
        }
    }
    if shard.cells > limit
        && let Some(heat) = newest.and_then(|key| shard.objects.get_mut(&key))
    {
        let mut keep = false;
        heat.cells.retain(|_| {
            keep = !keep;
            keep
        });
        shard.cells = heat.cells.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_halves_in_its_half_life() {
        let heat = Heat::new(1000);
        for _ in 0..8 {
            heat.record(1, 2, 3, Access::Read, 1.0, 0);
        }
        assert_eq!(heat.of(1, 2, 3, 0).reads, 8.0);
        assert_eq!(heat.of(1, 2, 3, HALF_LIFE_MINUTES).reads, 4.0);
        assert_eq!(heat.of(1, 2, 4, 0), RegionHeat::default());
        heat.record(1, 2, 5, Access::Read, 6.0, HALF_LIFE_MINUTES);
        heat.record(1, 2, 5, Access::Write, 3.0, HALF_LIFE_MINUTES);
        assert_eq!(heat.reads_of(1, 2, HALF_LIFE_MINUTES), 10.0);
        assert_eq!(heat.forget_reads(1, 2, 5, 2 * HALF_LIFE_MINUTES), 3.0);
        assert_eq!(heat.forget_reads(1, 2, 5, 2 * HALF_LIFE_MINUTES), 0.0);
        assert_eq!(heat.reads_of(1, 2, 2 * HALF_LIFE_MINUTES), 2.0);
        assert_eq!(heat.of(1, 2, 5, HALF_LIFE_MINUTES).writes, 3.0);
    }

    #[test]
    fn what_is_taken_back_leaves_what_others_read() {
        let heat = Heat::new(1000);
        heat.record(1, 2, 3, Access::Read, 5.0, 0);
        heat.record(1, 2, 3, Access::Write, 2.0, 0);
        heat.take_back(1, 2, 3, 1.0, 0);
        assert_eq!(
            (heat.of(1, 2, 3, 0).reads, heat.of(1, 2, 3, 0).writes),
            (4.0, 2.0)
        );
        heat.take_back(1, 2, 3, 9.0, 0);
        assert_eq!(heat.of(1, 2, 3, 0).reads, 0.0);
        heat.take_back(1, 2, 4, 1.0, 0);
        heat.take_back(1, 3, 3, 1.0, 0);
        assert_eq!(heat.regions(), 1);
    }

    #[test]
    fn it_is_bounded() {
        let heat = Heat::new(320);
        for at in 0..5000 {
            heat.record(1, at % 50, at as u32, Access::Write, 1.0, at as u32);
        }
        assert!(heat.regions() <= 320);
        let one = Heat::new(320);
        (0..5000).for_each(|at| one.record(1, 1, at, Access::Write, 1.0, 1));
        assert!(one.regions() <= 320);
    }

    #[test]
    fn records_of_any_bytes_are_taken_as_far_as_they_make_sense() {
        let sample = [
            7, 0, 0, 0, 5, 0, 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 5, 0, 0, 0, 1, 0, 9, 0,
        ]
        .to_vec();
        terrace_fuzz::fuzz(
            env!("CARGO_MANIFEST_DIR"),
            "heat",
            vec![sample],
            None,
            &mut |bytes| {
                let heat = Heat::new(100);
                heat.load(1, 2, bytes);
                // As seen from before and after the times that it claims.
                for minutes in [0, 5, u32::MAX] {
                    let _ = heat.of(1, 2, 7, minutes);
                    heat.record(1, 2, 7, Access::Read, 1.0, minutes);
                }
                assert!(heat.regions() <= bytes.len() / CELL_BYTES + 1);
            },
        );
    }

    #[test]
    fn what_is_taken_can_be_loaded() {
        let heat = Heat::new(1000);
        heat.record(1, 2, 9, Access::Write, 2.0, 5);
        heat.record(1, 2, 3, Access::Read, 1.0, 5);
        let taken = heat.take_changed(10);
        assert!(heat.take_changed(10).is_empty());
        let again = Heat::new(1000);
        again.load(taken[0].0, taken[0].1, &taken[0].2);
        again.load(7, 7, &[1; 13]);
        assert_eq!(again.of(1, 2, 9, 5), heat.of(1, 2, 9, 5));
        heat.forget(1, 2);
        assert_eq!(heat.regions(), 0);
    }
}
