//! `Disk`: what a simulated device has on its medium and in its volatile cache, and what a power cut leaves of it.
//!
//! The fault model, of every simulated device:
//!
//! - A write is visible to later reads at once, and lies in a volatile cache until a flush. A flush makes durable
//!   exactly what was completed before it was issued.
//! - A power cut leaves, of each 512-byte sector written since the last flush, either the content before or that of
//!   any write to it: writes may be lost, may survive in another order than they were issued, and may be torn, each
//!   sector on its own. On a disk that stands for a directory of slot files, whole slots may be as they were, since
//!   an unsynced creation or rename is undone as one.
//! - The end of the process alone (a kill) loses nothing that was written; it is still not durable. It may come in the
//!   middle of an operation, of which any sectors were written.
//! - A read may fail once; a range may fail to be read until it is written again. A read may return a flipped bit
//!   once (on the way) or for good (on the medium).
//! - A write may fail once, any of its sectors having been written; or from some moment on all writes fail; or only
//!   those to places never written before, as on a sparse file of a full filesystem; or those to one range, while all
//!   else works.
//! - A flush may fail; nothing is known then of what was not durable, and every later flush of that opening fails.
//! - A sector may hold the content of another address, or content that it had earlier, or zeroes; for good, or just in
//!   what one read returns. A write may be acknowledged and land at another address, or nowhere.
//! - A device may vanish while it is in use, and may come back with what it had some time ago; it may come back
//!   shorter. It may take very long for anything.
//!
//! Not modelled: a flush that says it succeeded and did nothing on every device at once (nothing could be promised),
//! and damage made by someone who can forge BLAKE3.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use super::{
    fault::{Coverage, FaultKind},
    machine::{FRONT_BYTES, Survivors},
    random::Random,
};

/// Bytes that are written or lost together.
pub const SECTOR_BYTES: usize = 512;
/// The unit of device I/O.
pub const PAGE_BYTES: usize = 4096;
/// A slot file of a directory device.
const SLOT_PAGES: usize = 256;

/// One aligned unit of content.
pub type Page = [u8; PAGE_BYTES];
/// Content of a medium; `None` was never written and reads as zeroes.
pub type Image = Vec<Option<Arc<Page>>>;

#[derive(Clone)]
struct Pending {
    page: usize,
    data: Arc<[u8]>,
}

/// How often operations fail by chance, per 10,000.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// A read returns an error.
    pub read_error: u64,
    /// A page read turns bad until it is written again.
    pub bad_page: u64,
    /// A bit of what a read returns is flipped; the medium is sound.
    pub read_flip: u64,
    /// A read returns the content of another address; the medium is sound.
    pub read_misdirected: u64,
    /// A read returns in one page what was there before its last durable write; the medium is sound.
    pub read_stale: u64,
    /// A write returns an error.
    pub write_error: u64,
    /// A write is acknowledged and lands at another address.
    pub write_misdirected: u64,
    /// A write is acknowledged and never made.
    pub write_phantom: u64,
    /// A flush returns an error.
    pub flush_error: u64,
    /// The operation takes seconds.
    pub slow: u64,
}

/// The state of one device; outlives engines, processes and power.
#[derive(Clone)]
pub struct Disk {
    current: Image,
    durable: Image,
    pending: Vec<Pending>,
    /// What a page held before it was last made durable.
    previous: BTreeMap<usize, Option<Arc<Page>>>,
    bad_pages: BTreeSet<usize>,
    /// Images of earlier moments, oldest first.
    memories: Vec<Image>,
    /// Stands for a directory of slot files.
    slots: bool,
    /// Chance of failures of single operations.
    pub rates: Rates,
    /// All writes fail.
    pub writes_fail: bool,
    /// Writes to places never written fail.
    pub backing_full: bool,
    /// Writes to this range fail, bytes.
    pub unwritable: Option<Range<u64>>,
    /// Nothing works until it is put back.
    pub vanished: bool,
    /// It is not there at the next start either.
    pub pulled: bool,
}

/// The pages that a read from `offset` touches: which, what of each, and where that goes.
fn pages_of(offset: u64, length: usize) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    let start = (offset % PAGE_BYTES as u64) as usize;
    let first = (offset / PAGE_BYTES as u64) as usize;
    (0..(start + length).div_ceil(PAGE_BYTES)).map(move |index| {
        let page = index * PAGE_BYTES;
        let (from, to) = (start.max(page), (start + length).min(page + PAGE_BYTES));
        (first + index, from - page..to - page, from - start..to - start)
    })
}

fn page_of(image: &Image, index: usize) -> Page {
    image
        .get(index)
        .and_then(Option::as_ref)
        .map_or([0; PAGE_BYTES], |page| **page)
}

impl Disk {
    /// An empty disk.
    pub fn new(size_bytes: u64, slots: bool) -> Self {
        let pages = (size_bytes / PAGE_BYTES as u64) as usize;
        Self {
            current: vec![None; pages],
            durable: vec![None; pages],
            pending: Vec::new(),
            previous: BTreeMap::new(),
            bad_pages: BTreeSet::new(),
            memories: Vec::new(),
            slots,
            rates: Rates::default(),
            writes_fail: false,
            backing_full: false,
            unwritable: None,
            vanished: false,
            pulled: false,
        }
    }

    /// Bytes.
    pub fn size_bytes(&self) -> u64 {
        (self.current.len() * PAGE_BYTES) as u64
    }

    /// Bytes written and not flushed.
    pub fn pending_bytes(&self) -> u64 {
        self.pending.iter().map(|write| write.data.len() as u64).sum()
    }

    /// What a read returns; `false` if one of the pages is bad.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let mut good = true;
        for (page, within, range) in pages_of(offset, buffer.len()) {
            good &= !self.bad_pages.contains(&page);
            let part = &mut buffer[range];
            match self.current.get(page) {
                Some(Some(page)) => part.copy_from_slice(&page[within]),
                _ => part.fill(0),
            }
        }
        good
    }

    /// Whether a write there would need room that the backing has not given yet.
    pub fn is_new_place(&self, offset: u64, length: usize) -> bool {
        let first = (offset / PAGE_BYTES as u64) as usize;
        (first..first + length / PAGE_BYTES).any(|index| self.current.get(index).is_none_or(Option::is_none))
    }

    /// Whether a write there touches the range that takes none.
    pub fn is_unwritable(&self, offset: u64, length: usize) -> bool {
        let range = self.unwritable.as_ref();
        range.is_some_and(|range| offset < range.end && offset + length as u64 > range.start)
    }

    /// A write that completed.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let first = (offset / PAGE_BYTES as u64) as usize;
        for (index, part) in data.chunks_exact(PAGE_BYTES).enumerate() {
            let mut page = [0; PAGE_BYTES];
            page.copy_from_slice(part);
            if let Some(slot) = self.current.get_mut(first + index) {
                *slot = Some(Arc::new(page));
                self.bad_pages.remove(&(first + index));
            }
        }
        self.pending.push(Pending {
            page: first,
            data: data.into(),
        });
    }

    /// A write that failed on the way: some of its sectors were written.
    pub fn write_partly(&mut self, offset: u64, data: &[u8], random: &mut Random) {
        let mut mixed = vec![0; data.len()];
        self.read(offset, &mut mixed);
        let written = random.index(data.len() / SECTOR_BYTES + 1);
        let scattered = random.chance(1, 2);
        for (index, (to, from)) in mixed
            .chunks_exact_mut(SECTOR_BYTES)
            .zip(data.chunks_exact(SECTOR_BYTES))
            .enumerate()
        {
            if if scattered {
                random.chance(1, 2)
            } else {
                index < written
            } {
                to.copy_from_slice(from);
            }
        }
        self.write(offset, &mixed);
    }

    /// Makes everything written so far durable.
    pub fn flush(&mut self) {
        for write in std::mem::take(&mut self.pending) {
            for index in write.page..write.page + write.data.len() / PAGE_BYTES {
                if let (Some(durable), Some(current)) = (self.durable.get_mut(index), self.current.get(index))
                {
                    if durable.as_ref().map(Arc::as_ptr) != current.as_ref().map(Arc::as_ptr) {
                        self.previous.insert(index, durable.clone());
                    }
                    durable.clone_from(current);
                }
            }
        }
    }

    /// The range is not needed any more: it reads as before or as zeroes, as `zero` says.
    pub fn discard(&mut self, offset: u64, length: u64, zero: bool) {
        if !zero {
            return;
        }
        let first = (offset / PAGE_BYTES as u64) as usize;
        let last = first + (length / PAGE_BYTES as u64) as usize;
        for index in first..last.min(self.current.len()) {
            self.current[index] = None;
            self.durable[index] = None;
        }
        self.pending
            .retain(|write| write.page + write.data.len() / PAGE_BYTES <= first || write.page >= last);
    }

    /// The power goes: what was not flushed survives in part, as chance has it.
    pub fn lose_power(&mut self, survivors: Survivors, random: &mut Random, coverage: &Coverage) {
        let pending = std::mem::take(&mut self.pending);
        let mode = if self.slots && random.chance(1, 2) {
            7
        } else {
            random.below(7)
        };
        let count = pending.len();
        let pivot = random.index(count + 1);
        let (mode, pivot) = match survivors {
            Survivors::Any => (mode, pivot),
            Survivors::Oldest => (8, count.saturating_sub(1)),
            Survivors::Newest => (5, count.saturating_sub(1)),
        };
        let odds = random.between(1, 9);
        let lost_slots: BTreeSet<usize> = pending
            .iter()
            .map(|write| write.page / SLOT_PAGES)
            .filter(|_| random.chance(1, 2))
            .collect();
        let mut lost_before = false;
        let mut reordered = false;
        for (number, write) in pending.iter().enumerate() {
            let sectors = write.data.len() / SECTOR_BYTES;
            let whole = |survives: bool| if survives { sectors } else { 0 };
            // How many sectors survive from the start; or, in the scattered modes, each by its own chance.
            let (kept, scattered) = match mode {
                0 => (0, false),
                1 => (sectors, false),
                2 => (whole(random.chance(odds, 10)), false),
                3 => (0, true),
                4 if number == pivot => (random.index(sectors + 1), random.chance(1, 2)),
                4 => (whole(number < pivot), false),
                5 => (whole(number >= pivot), false),
                8 => (whole(number < pivot), false),
                6 => (
                    if random.chance(1, 3) {
                        random.index(sectors + 1)
                    } else {
                        sectors
                    },
                    false,
                ),
                _ => (whole(!lost_slots.contains(&(write.page / SLOT_PAGES))), false),
            };
            let mut survived = 0;
            for sector in 0..sectors {
                if if scattered {
                    random.chance(odds, 10)
                } else {
                    sector < kept
                } {
                    survived += 1;
                    let page = write.page + sector * SECTOR_BYTES / PAGE_BYTES;
                    let within = sector * SECTOR_BYTES % PAGE_BYTES;
                    if let Some(slot) = self.durable.get_mut(page) {
                        let bytes = &write.data[sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES];
                        let target = slot.get_or_insert_with(|| Arc::new([0; PAGE_BYTES]));
                        Arc::make_mut(target)[within..within + SECTOR_BYTES].copy_from_slice(bytes);
                    }
                }
            }
            if survived == 0 {
                coverage.hit(FaultKind::LostWrite);
            } else if survived < sectors {
                coverage.hit(FaultKind::Torn);
            }
            reordered |= survived > 0 && lost_before;
            lost_before |= survived == 0;
        }
        if reordered {
            coverage.hit(FaultKind::Reordered);
        }
        if mode == 7 && !lost_slots.is_empty() {
            coverage.hit(FaultKind::LostSlot);
        }
        self.current.clone_from(&self.durable);
    }

    /// Keeps what is on the medium now, to come back to later.
    pub fn remember(&mut self) {
        if self.memories.len() == 3 {
            self.memories.remove(0);
        }
        self.memories.push(self.durable.clone());
    }

    /// Puts the medium back to a remembered moment; `false` if there is none.
    pub fn come_back_old(&mut self, random: &mut Random) -> bool {
        if self.memories.is_empty() {
            return false;
        }
        let image = self.memories[random.index(self.memories.len())].clone();
        self.pending.clear();
        self.durable.clone_from(&image);
        self.current = image;
        true
    }

    /// Makes a page fail to be read until it is written again.
    pub fn spoil(&mut self, page: usize) {
        self.bad_pages.insert(page);
    }

    /// Makes every page readable again.
    pub fn unspoil(&mut self) {
        self.bad_pages.clear();
    }

    /// Changes bytes on the medium, below everything: for damage.
    pub fn alter(&mut self, page: usize, change: impl FnOnce(&mut Page)) {
        let mut content = page_of(&self.current, page);
        change(&mut content);
        let content = Arc::new(content);
        if let (Some(current), Some(durable)) = (self.current.get_mut(page), self.durable.get_mut(page)) {
            *current = Some(content.clone());
            *durable = Some(content);
        }
    }

    /// What a page holds now.
    pub fn page(&self, page: usize) -> Page {
        page_of(&self.current, page)
    }

    /// What a page holds for whoever reads it, if it can be read.
    pub(crate) fn current_page(&self, page: usize) -> Page {
        page_of(&self.current, page)
    }

    /// What a page holds once the power went and nothing unflushed survived.
    pub fn durable_page(&self, page: usize) -> Page {
        page_of(&self.durable, page)
    }

    /// What a page held before its last durable write; `None` if it was written at most once.
    pub fn earlier_page(&self, page: usize) -> Option<Page> {
        self.previous
            .get(&page)
            .map(|earlier| earlier.as_ref().map_or([0; PAGE_BYTES], |page| **page))
    }

    /// Puts an earlier content of one of its pages into what a read returns; `false` if none had another one.
    pub fn show_earlier(&self, offset: u64, buffer: &mut [u8], random: &mut Random) -> bool {
        let mut pages: Vec<_> = pages_of(offset, buffer.len()).collect();
        let from = random.index(pages.len());
        pages.rotate_left(from);
        pages.into_iter().any(|(page, within, range)| {
            let part = &mut buffer[range];
            let earlier = self.earlier_page(page);
            let other = earlier.filter(|earlier| part != &earlier[within.clone()]);
            other.is_some_and(|earlier| {
                part.copy_from_slice(&earlier[within]);
                true
            })
        })
    }

    /// A place where as much can be read or written, not the given one; the given one if there is no other.
    pub fn elsewhere(&self, offset: u64, length: usize, random: &mut Random) -> u64 {
        let places = (self.size_bytes() - length as u64) / PAGE_BYTES as u64 + 1;
        let from = offset / PAGE_BYTES as u64;
        // Near, as a head that is off by little, or anywhere.
        let to = if random.chance(1, 2) {
            from + random.between(1, 8)
        } else {
            random.below(places)
        };
        to % places * PAGE_BYTES as u64
    }

    /// The disk is as new.
    pub fn blank(&mut self) {
        *self = Self::new(self.size_bytes(), self.slots);
    }

    /// Its backing grew.
    pub fn grow(&mut self, size_bytes: u64) {
        let pages = (size_bytes / PAGE_BYTES as u64) as usize;
        self.current.resize(pages.max(self.current.len()), None);
        self.durable.resize(pages.max(self.durable.len()), None);
    }

    /// Its owner cuts the end off.
    pub fn shrink(&mut self, size_bytes: u64) {
        let pages = (size_bytes / PAGE_BYTES as u64) as usize;
        self.current.truncate(pages);
        self.durable.truncate(pages);
        self.bad_pages.retain(|page| *page < pages);
        self.previous.retain(|page, _| *page < pages);
    }

    /// Somebody cuts the end off: what was on its way is lost as well.
    pub fn truncate(&mut self, size_bytes: u64) {
        let pages = (size_bytes / PAGE_BYTES as u64) as usize;
        self.pending.clear();
        self.current.truncate(pages);
        self.durable.truncate(pages);
    }

    /// Pages that were ever written, ascending.
    pub fn written_pages(&self) -> Vec<usize> {
        (0..self.current.len())
            .filter(|index| self.current[*index].is_some())
            .collect()
    }

    /// Pages in the segments that begin with these bytes.
    pub fn pages_that_begin_with(&self, magic: &[u8]) -> Vec<usize> {
        let front = (FRONT_BYTES / PAGE_BYTES as u64) as usize;
        let begins = |index: &usize| {
            self.current[*index]
                .as_ref()
                .is_some_and(|page| page.starts_with(magic))
        };
        (front.min(self.current.len())..self.current.len())
            .filter(begins)
            .collect()
    }

    /// All content as it is now, to be restored by [`restore`](Self::restore).
    pub fn image(&self) -> Image {
        self.current.clone()
    }

    /// Puts an [`image`](Self::image) back, whole and durable.
    pub fn restore(&mut self, image: &Image) {
        self.pending.clear();
        self.bad_pages.clear();
        self.current.clone_from(image);
        self.durable.clone_from(image);
    }
}
