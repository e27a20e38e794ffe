//! `HeatPages`: counts of regions of many objects, in order, in pages of which each says once what its regions have in common.
//!
//! Invariants: 12 bytes a region and, by capacity, no more than 16 with everything around it, unless regions lie further apart
//! than objects are numbered in practice (some dozen bytes each then, all of which [`HeatPages::memory_bytes`] counts); keys
//! ascend within a page and from page to page; no page is empty; `first` of a page is not above any of its keys, and above all
//! keys of the page before. A place is `(object - first object) << shift | region`, so that places are in the order of keys.

/// Dataset, object, region.
pub(crate) type Key = (u32, u64, u32);

/// Regions of a page at most.
const PAGE_CELLS: usize = 256;
/// Smallest number of bits for the region, so that growing files do not move all places again and again.
const SHIFT_MIN: u32 = 8;
/// What the allocator adds to an allocation, about, bytes.
const ALLOCATION_BYTES: usize = 16;
/// In the minutes: something changed since it was taken.
const CHANGED: u32 = 1 << 31;

/// What is counted of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    minutes: u32,
    pub(crate) reads: u16,
    pub(crate) writes: u16,
}

impl Counts {
    /// Counts as of a time.
    pub(crate) fn new(minutes: u32, reads: u16, writes: u16) -> Self {
        Self {
            minutes: minutes & !CHANGED,
            reads,
            writes,
        }
    }

    /// When it was touched last.
    pub(crate) fn minutes(&self) -> u32 {
        self.minutes & !CHANGED
    }

    /// The same with other reads.
    pub(crate) fn with_reads(self, reads: u16) -> Self {
        Self { reads, ..self }
    }

    /// The same, to be taken by [`HeatPages::next_changed`].
    pub(crate) fn changed(self) -> Self {
        Self {
            minutes: self.minutes | CHANGED,
            ..self
        }
    }

    /// It is taken.
    pub(crate) fn settle(&mut self) {
        self.minutes &= !CHANGED;
    }

    fn is_changed(&self) -> bool {
        self.minutes & CHANGED != 0
    }
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    place: u32,
    counts: Counts,
}

#[derive(Debug)]
struct Page {
    dataset: u32,
    region: u32,
    object: u64,
    cells: Vec<Cell>,
    /// Bits of a place that are the region, at most 32.
    shift: u8,
    /// Some counts may be changed.
    changed: bool,
}

impl Page {
    fn of(key: Key, counts: Counts) -> Self {
        let shift = bits_of(key.2).max(SHIFT_MIN);
        Self {
            dataset: key.0,
            object: key.1,
            region: key.2,
            cells: vec![Cell { place: key.2, counts }],
            shift: shift as u8,
            changed: true,
        }
    }

    fn first(&self) -> Key {
        (self.dataset, self.object, self.region)
    }

    fn memory_bytes(&self) -> usize {
        self.cells.capacity() * size_of::<Cell>() + ALLOCATION_BYTES
    }

    fn key_of(&self, cell: &Cell) -> Key {
        let object = self.object.wrapping_add(u64::from(cell.place) >> self.shift);
        (self.dataset, object, cell.place & mask_of(self.shift))
    }

    fn key_at(&self, at: usize) -> Option<Key> {
        self.cells.get(at).map(|cell| self.key_of(cell))
    }

    fn last(&self) -> Key {
        self.cells.last().map_or(self.first(), |cell| self.key_of(cell))
    }

    fn find(&self, key: Key) -> Result<usize, usize> {
        self.cells.binary_search_by(|cell| self.key_of(cell).cmp(&key))
    }

    fn place_of(&self, key: Key) -> Option<u32> {
        let apart = key.1.checked_sub(self.object)?;
        let fits = key.2 & !mask_of(self.shift) == 0 && apart <= u64::from(u32::MAX) >> self.shift;
        fits.then(|| (apart << self.shift) as u32 | key.2)
    }

    /// Makes places such that regions from `least` to `most`, and all that it has, fit; whether that is possible.
    fn fit(&mut self, least: Key, most: Key, widest: u32) -> bool {
        let first = self.first().min(least);
        if first.1 == self.object && self.place_of((0, most.1, widest)).is_some() {
            self.region = first.2;
            return true;
        }
        let mask = mask_of(self.shift);
        let widest = self
            .cells
            .iter()
            .fold(widest, |widest, cell| widest.max(cell.place & mask));
        let shift = bits_of(widest).max(SHIFT_MIN);
        let apart = most.1.max(self.last().1) - first.1;
        // Fewer bits than usual for the region, if it needs no more.
        let shift = match apart <= u64::from(u32::MAX) >> shift {
            true => shift,
            false => bits_of(widest),
        };
        if apart > u64::from(u32::MAX) >> shift {
            return false;
        }
        self.rebase(first, shift as u8);
        true
    }

    /// Gives all of its regions, which fit, other places.
    fn rebase(&mut self, first: Key, shift: u8) {
        let old = (self.object, self.shift);
        for cell in &mut self.cells {
            let object = old.0.wrapping_add(u64::from(cell.place) >> old.1);
            let region = cell.place & mask_of(old.1);
            cell.place = (object.wrapping_sub(first.1) << shift) as u32 | region;
        }
        (self.object, self.region, self.shift) = (first.1, first.2, shift);
    }

    /// Begins with its first region again.
    fn tighten(&mut self) {
        if let Some(first) = self.key_at(0) {
            self.rebase(first, self.shift);
        }
    }

    fn trim(&mut self) {
        if self.cells.capacity() > self.cells.len() + 4 + self.cells.len() / 8 {
            self.cells.shrink_to_fit();
        }
    }
}

fn mask_of(shift: u8) -> u32 {
    ((1u64 << shift) - 1) as u32
}

fn bits_of(region: u32) -> u32 {
    u32::BITS - region.leading_zeros()
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct HeatPages {
    pages: Vec<Page>,
    cells: usize,
    /// Of the pages' cells.
    cell_bytes: usize,
}

impl HeatPages {
    /// Regions.
    pub(crate) fn len(&self) -> usize {
        self.cells
    }

    /// What it takes, by capacity.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>() + self.cell_bytes
    }

    /// The page that has this key, if any has, and those before it.
    fn page_before(&self, key: Key) -> Option<usize> {
        let beyond = self.pages.partition_point(|page| page.first() <= key);
        beyond.checked_sub(1)
    }

    fn find(&self, key: Key) -> Option<(usize, usize)> {
        let at = self.page_before(key)?;
        let cell = self.pages[at].find(key).ok()?;
        Some((at, cell))
    }

    /// What is counted of a region.
    pub(crate) fn get(&self, key: Key) -> Option<Counts> {
        let (page, cell) = self.find(key)?;
        Some(self.pages[page].cells[cell].counts)
    }

    /// Counts something else of a region that is known.
    pub(crate) fn replace(&mut self, key: Key, counts: Counts) {
        if let Some((page, cell)) = self.find(key) {
            self.pages[page].cells[cell].counts = counts.changed();
            self.pages[page].changed = true;
        }
    }

    /// Counts something of a region, by what was counted before; it changed, if it is so returned.
    pub(crate) fn put(&mut self, key: Key, count: impl FnOnce(Option<Counts>) -> Counts) {
        match self.find(key) {
            Some((page, cell)) => {
                let page = &mut self.pages[page];
                let counts = count(Some(page.cells[cell].counts));
                page.changed |= counts.is_changed();
                page.cells[cell].counts = counts;
            }
            None => {
                self.insert(key, count(None));
                self.cells += 1;
            }
        }
    }

    fn insert(&mut self, key: Key, counts: Counts) {
        if let Some(at) = self.page_before(key)
            && self.pages[at].dataset == key.0
        {
            let page = &mut self.pages[at];
            let cell = page.find(key).unwrap_or_else(|cell| cell);
            let (length, is_full) = (page.cells.len(), page.cells.len() >= PAGE_CELLS);
            if !is_full && page.fit(key, key, key.2) {
                return self.insert_into(at, cell, key, counts);
            }
            // It is full, or has no place for this one; at its end another page begins.
            if cell == 0 {
                page.tighten();
                return self.insert(key, counts);
            }
            if cell < length {
                self.split(at, if is_full { length / 2 } else { cell });
                return self.insert(key, counts);
            }
        }
        let behind = self.page_before(key).map_or(0, |at| at + 1);
        if let Some(page) = self.pages.get_mut(behind)
            && page.dataset == key.0
            && page.cells.len() < PAGE_CELLS
            && page.fit(key, key, key.2)
        {
            return self.insert_into(behind, 0, key, counts);
        }
        self.insert_page(behind, Page::of(key, counts));
    }

    fn insert_into(&mut self, at: usize, cell: usize, key: Key, counts: Counts) {
        let page = &mut self.pages[at];
        let before = page.memory_bytes();
        if page.cells.len() == page.cells.capacity() {
            page.cells.reserve_exact(4 + page.cells.len() / 8);
        }
        let place = page.place_of(key).unwrap_or_default();
        page.cells.insert(cell, Cell { place, counts });
        page.changed |= counts.is_changed();
        self.cell_bytes += page.memory_bytes() - before;
    }

    fn insert_page(&mut self, at: usize, page: Page) {
        if self.pages.len() == self.pages.capacity() {
            self.pages.reserve_exact(1 + self.pages.len() / 8);
        }
        self.cell_bytes += page.memory_bytes();
        self.pages.insert(at, page);
    }

    /// Makes two pages of one; neither is to be empty.
    fn split(&mut self, at: usize, cell: usize) {
        let page = &mut self.pages[at];
        let before = page.memory_bytes();
        let mut behind = Page {
            cells: page.cells.split_off(cell),
            ..*page
        };
        page.cells.shrink_to_fit();
        behind.tighten();
        self.cell_bytes -= before - page.memory_bytes();
        self.insert_page(at + 1, behind);
    }

    /// Visits what is known of an object, in order.
    pub(crate) fn visit_object(&self, dataset: u32, object: u64, mut visit: impl FnMut(u32, &Counts)) {
        let (least, most) = ((dataset, object, 0), (dataset, object, u32::MAX));
        for page in &self.pages[self.page_before(least).unwrap_or(0)..] {
            if page.first() > most {
                return;
            }
            let from = page.cells.partition_point(|cell| page.key_of(cell) < least);
            let cells = page.cells[from..].iter();
            cells
                .take_while(|cell| page.key_of(cell) <= most)
                .for_each(|cell| visit(page.key_of(cell).2, &cell.counts));
        }
    }

    /// Forgets an object.
    pub(crate) fn remove_object(&mut self, dataset: u32, object: u64) {
        let (least, most) = ((dataset, object, 0), (dataset, object, u32::MAX));
        let from = self.page_before(least).unwrap_or(0);
        let mut at = from;
        while let Some(page) = self.pages.get_mut(at)
            && page.first() <= most
        {
            let before = page.memory_bytes();
            let first = page.cells.partition_point(|cell| page.key_of(cell) < least);
            let beyond = page.cells.partition_point(|cell| page.key_of(cell) <= most);
            page.cells.drain(first..beyond);
            self.cells -= beyond - first;
            page.trim();
            self.cell_bytes -= before - page.memory_bytes();
            at += 1;
        }
        for at in (from..at).rev() {
            if self.pages[at].cells.is_empty() {
                self.cell_bytes -= self.pages.remove(at).memory_bytes();
            }
        }
        // What is left in small pages is put together.
        for at in [from, from.wrapping_sub(1)] {
            let few = |page: &Page| page.cells.len() < PAGE_CELLS / 4;
            if self.pages.get(at).is_some_and(few) && at + 1 < self.pages.len() {
                let behind = self.pages.remove(at + 1);
                self.cell_bytes -= behind.memory_bytes();
                if let Err(behind) = self.join(at, behind) {
                    self.insert_page(at + 1, behind);
                }
            }
        }
        self.trim();
    }

    /// Appends the page that follows on one to it, or gives it back if they do not fit together.
    fn join(&mut self, at: usize, behind: Page) -> Result<(), Page> {
        let page = &mut self.pages[at];
        let before = page.memory_bytes();
        let mask = mask_of(behind.shift);
        let widest = behind.cells.iter().map(|cell| cell.place & mask).max();
        let fits = page.dataset == behind.dataset
            && page.cells.len() + behind.cells.len() <= PAGE_CELLS
            && page.fit(page.first(), behind.last(), widest.unwrap_or(0));
        if !fits {
            return Err(behind);
        }
        page.cells.reserve_exact(behind.cells.len());
        for cell in &behind.cells {
            let place = page.place_of(behind.key_of(cell)).unwrap_or_default();
            page.cells.push(Cell {
                place,
                counts: cell.counts,
            });
        }
        page.changed |= behind.changed;
        self.cell_bytes += page.memory_bytes() - before;
        Ok(())
    }

    fn trim(&mut self) {
        if self.pages.capacity() > self.pages.len() + 4 + self.pages.len() / 4 {
            self.pages.shrink_to_fit();
        }
    }

    /// Visits everything, in order.
    pub(crate) fn visit(&self, mut visit: impl FnMut(Key, &Counts)) {
        for page in &self.pages {
            page.cells
                .iter()
                .for_each(|cell| visit(page.key_of(cell), &cell.counts));
        }
    }

    /// Forgets what is not to be kept.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Counts) -> bool) {
        let pages = std::mem::take(&mut self.pages);
        (self.cells, self.cell_bytes) = (0, 0);
        for mut page in pages {
            page.cells.retain(|cell| keep(&cell.counts));
            page.trim();
            page.tighten();
            self.cells += page.cells.len();
            let last = self.pages.len().checked_sub(1);
            let rest = match last {
                _ if page.cells.is_empty() => continue,
                Some(last) => self.join(last, page),
                None => Err(page),
            };
            if let Err(page) = rest {
                self.insert_page(self.pages.len(), page);
            }
        }
        self.trim();
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The first object from a key on of which something changed.
    pub(crate) fn next_changed(&mut self, from: Key) -> Option<(u32, u64)> {
        let at = self.page_before(from).unwrap_or(0);
        for page in &mut self.pages[at..] {
            if !page.changed {
                continue;
            }
            let changed = page.cells.iter().filter(|cell| cell.counts.is_changed());
            let mut before = false;
            for cell in changed {
                let key = page.key_of(cell);
                if key >= from {
                    return Some((key.0, key.1));
                }
                before = true;
            }
            page.changed = before;
        }
        None
    }

    /// All of an object is taken.
    pub(crate) fn settle(&mut self, dataset: u32, object: u64) {
        let (least, most) = ((dataset, object, 0), (dataset, object, u32::MAX));
        let at = self.page_before(least).unwrap_or(0);
        for page in &mut self.pages[at..] {
            if page.first() > most {
                return;
            }
            let first = page.cells.partition_point(|cell| page.key_of(cell) < least);
            let beyond = page.cells.partition_point(|cell| page.key_of(cell) <= most);
            page.cells[first..beyond]
                .iter_mut()
                .for_each(|cell| cell.counts.settle());
        }
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut before = None;
        let mut cells = 0;
        let mut cell_bytes = 0;
        for page in &self.pages {
            assert!(!page.cells.is_empty() && page.cells.len() <= PAGE_CELLS);
            assert!(before.is_none_or(|before| before < page.first()));
            for cell in &page.cells {
                let key = page.key_of(cell);
                assert!(page.first() <= key && before.is_none_or(|before| before < key));
                assert!(page.changed || !cell.counts.is_changed());
                before = Some(key);
            }
            cells += page.cells.len();
            cell_bytes += page.memory_bytes();
        }
        assert_eq!((self.cells, self.cell_bytes), (cells, cell_bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::{prelude::*, test_runner::RngSeed};

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Put(Key, u16),
        Remove(u32, u64),
        Retain(u16),
        Take,
    }

    fn key() -> impl Strategy<Value = Key> {
        let object = prop_oneof![
            8 => 0..40u64,
            2 => (0..3u64).prop_map(|high| (1 << 24) * high + 7),
            1 => Just(u64::MAX),
            1 => Just(1u64 << 40),
        ];
        let region = prop_oneof![
            8 => 0..4u32,
            2 => 200..600u32,
            1 => Just(u32::MAX),
            1 => Just(1u32 << 20),
        ];
        (0..3u32, object, region)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            30 => (key(), any::<u16>()).prop_map(|(key, reads)| Step::Put(key, reads)),
            4 => (0..3u32, 0..40u64).prop_map(|(dataset, object)| Step::Remove(dataset, object)),
            1 => any::<u16>().prop_map(Step::Retain),
            2 => Just(Step::Take),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(27), ..ProptestConfig::with_cases(60) })]

        #[test]
        fn pages_agree_with_a_map(steps in proptest::collection::vec(step(), 1..900)) {
            let mut pages = HeatPages::default();
            let mut map: BTreeMap<Key, (u16, bool)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Put(key, reads) => {
                        pages.put(key, |before| {
                            assert_eq!(before.map(|counts| counts.reads), map.get(&key).map(|one| one.0));
                            Counts::new(5, reads, 1).changed()
                        });
                        map.insert(key, (reads, true));
                    }
                    Step::Remove(dataset, object) => {
                        pages.remove_object(dataset, object);
                        map.retain(|key, _| (key.0, key.1) != (dataset, object));
                    }
                    Step::Retain(least) => {
                        pages.retain(|counts| counts.reads >= least);
                        map.retain(|_, (reads, _)| *reads >= least);
                    }
                    Step::Take => {
                        let mut from = (0, 0, 0);
                        let mut taken = Vec::new();
                        while let Some((dataset, object)) = pages.next_changed(from) {
                            pages.settle(dataset, object);
                            taken.push((dataset, object));
                            from = (dataset, object, u32::MAX);
                        }
                        let changed = map.iter().filter(|(_, (_, changed))| *changed);
                        let mut wanted: Vec<_> = changed.map(|(key, _)| (key.0, key.1)).collect();
                        wanted.dedup();
                        assert_eq!(taken, wanted);
                        map.values_mut().for_each(|one| one.1 = false);
                    }
                }
                pages.check();
            }
            let mut found = Vec::new();
            pages.visit(|key, counts| found.push((key, counts.reads)));
            let wanted: Vec<_> = map.iter().map(|(key, one)| (*key, one.0)).collect();
            assert_eq!(found, wanted);
            for (key, (reads, _)) in &map {
                assert_eq!(pages.get(*key).map(|counts| counts.reads), Some(*reads));
                let mut of_object = Vec::new();
                pages.visit_object(key.0, key.1, |region, counts| of_object.push((region, counts.reads)));
                let range = map.range((key.0, key.1, 0)..=(key.0, key.1, u32::MAX));
                assert_eq!(of_object, range.map(|(key, one)| (key.2, one.0)).collect::<Vec<_>>());
            }
        }
    }
}
