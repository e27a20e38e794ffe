//! What a disk watches over: the newest root on it that is durable is never written to, whatever the engine believes.
//!
//! Reads the root slots by itself, as `docs/format.md` has them, so that a mistake of the engine's own reading does not
//! hide here too.

use std::ops::Range;

use terrace_pool::{LABEL_BYTES, Label};

use super::disk::{Disk, PAGE_BYTES};

/// Where the two copies of each of the two slots are, bytes.
const SLOTS: [[Range<u64>; 2]; 2] = [
    [256 << 10..384 << 10, 512 << 10..640 << 10],
    [384 << 10..512 << 10, 640 << 10..768 << 10],
];
const MAGIC: &[u8; 8] = b"TERRROOT";
/// Magic, version, length, pool id, generation.
const FIELDS_BYTES: usize = 40;

/// Generation and payload of the durable root in a copy of a slot, if there is a sound one.
fn root(disk: &Disk, copy: &Range<u64>) -> Option<(u64, Vec<u8>)> {
    let first = (copy.start / PAGE_BYTES as u64) as usize;
    let header = disk.durable_page(first);
    let fields = &header[..FIELDS_BYTES];
    let length = u32::from_le_bytes(fields.get(12..16)?.try_into().ok()?) as usize;
    if &fields[..8] != MAGIC || length > 64 << 10 {
        return None;
    }
    let mut payload = Vec::with_capacity(length);
    for page in 0..length.div_ceil(PAGE_BYTES) {
        payload.extend_from_slice(&disk.durable_page(first + 1 + page));
    }
    payload.truncate(length);
    let sum = blake3::Hasher::new().update(fields).update(&payload).finalize();
    (sum.as_bytes()[..] == header[FIELDS_BYTES..FIELDS_BYTES + 32]).then(|| {
        (
            u64::from_le_bytes(fields[32..40].try_into().unwrap_or_default()),
            payload,
        )
    })
}

fn generation(disk: &Disk, copy: &Range<u64>) -> Option<u64> {
    root(disk, copy).map(|(generation, _)| generation)
}

/// On how many of these disks a root is durable that leads where the newest does that any of them holds. (One that is written again
/// as the labels change, and does not come to two disks, leaves the one before, which says the same.)
pub fn holders<'a>(disks: impl Iterator<Item = &'a Disk>) -> usize {
    let roots = |disk: &Disk| {
        SLOTS
            .iter()
            .flatten()
            .filter_map(|copy| root(disk, copy))
            .collect()
    };
    let found: Vec<Vec<(u64, Vec<u8>)>> = disks.map(roots).collect();
    let newest = found.iter().flatten().max_by_key(|(generation, _)| *generation);
    let says_the_same = |(_, payload): &(u64, Vec<u8>)| newest.is_some_and(|(_, newest)| newest == payload);
    found
        .iter()
        .filter(|roots| roots.iter().any(says_the_same))
        .count()
}

/// How many of these disks have the newest root that any of them holds in one copy of its slot only.
pub fn halves<'a>(disks: impl Iterator<Item = &'a Disk>) -> usize {
    let slots = |disk: &Disk| {
        SLOTS
            .each_ref()
            .map(|copies| copies.each_ref().map(|copy| generation(disk, copy)))
    };
    let found: Vec<[Option<u64>; 2]> = disks.flat_map(slots).collect();
    let newest = found.iter().flatten().max().copied().flatten();
    let half = |[one, other]: &&[Option<u64>; 2]| one != other && (*one == newest || *other == newest);
    found.iter().filter(half).count()
}

/// What is left of a pool on a disk that is no part of it any more, in words: whoever looks for pools would find it.
pub fn remains(disk: &Disk) -> Option<&'static str> {
    let size_bytes = disk.size_bytes();
    let label = |offset: u64| {
        let first = (offset / PAGE_BYTES as u64) as usize;
        let pages = (first..first + LABEL_BYTES / PAGE_BYTES).map(|page| disk.durable_page(page));
        Label::decode(&pages.collect::<Vec<_>>().concat()).is_ok()
    };
    let ends = [0, LABEL_BYTES as u64, size_bytes - LABEL_BYTES as u64];
    if ends.into_iter().any(label) {
        return Some("a label");
    }
    let root = SLOTS
        .iter()
        .flatten()
        .any(|copy| generation(disk, copy).is_some());
    root.then_some("a root")
}

/// What is wrong with writing this there, if it hits the newest durable root of the disk. A device that leaves its pool
/// is wiped with zeroes: that may be.
pub fn breach(disk: &Disk, offset: u64, data: &[u8]) -> Option<String> {
    let end = offset + data.len() as u64;
    let hit = |copy: &&Range<u64>| offset < copy.end && end > copy.start;
    let copies = |(slot, copies): (usize, &'static [Range<u64>; 2])| Some((slot, copies.iter().find(hit)?));
    let (written, copy) = SLOTS.iter().enumerate().find_map(copies)?;
    let own = generation(disk, copy).filter(|_| data.iter().any(|byte| *byte != 0))?;
    let other = SLOTS[1 - written]
        .iter()
        .filter_map(|copy| generation(disk, copy))
        .max();
    other.is_none_or(|other| other < own).then(|| {
        format!("root slot {written} is written to while it holds the newest durable root ({own}, beside {other:?})")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_root(disk: &mut Disk, slot: usize, generation: u64, payload: &[u8; 3]) {
        let mut page = vec![0; 2 * PAGE_BYTES];
        page[..8].copy_from_slice(MAGIC);
        page[8] = 1;
        page[12] = 3;
        page[32..40].copy_from_slice(&generation.to_le_bytes());
        page[PAGE_BYTES..PAGE_BYTES + 3].copy_from_slice(payload);
        let sum = blake3::Hasher::new()
            .update(&page[..FIELDS_BYTES])
            .update(payload)
            .finalize();
        page[FIELDS_BYTES..FIELDS_BYTES + 32].copy_from_slice(sum.as_bytes());
        disk.write(SLOTS[slot][0].start, &page);
    }

    #[test]
    fn only_the_newest_durable_root_is_watched() {
        let mut disk = Disk::new(4 << 20, false);
        let at = |slot: usize| SLOTS[slot][0].start;
        assert_eq!(breach(&disk, at(0), &[1; PAGE_BYTES]), None);
        with_root(&mut disk, 0, 7, b"new");
        assert_eq!(breach(&disk, at(0), &[1; PAGE_BYTES]), None, "not durable yet");
        disk.flush();
        assert!(breach(&disk, at(0) + 4096, &[1; PAGE_BYTES]).is_some());
        assert_eq!(breach(&disk, at(0), &[0; PAGE_BYTES]), None, "wiped");
        let mut older = Disk::new(4 << 20, false);
        with_root(&mut older, 1, 6, b"old");
        assert_eq!(remains(&older), None, "not durable yet");
        older.flush();
        assert_eq!(remains(&older), Some("a root"));
        assert_eq!(holders([&disk, &older].into_iter()), 1);
        assert_eq!(holders([&disk, &older, &disk].into_iter()), 2);
        assert_eq!(breach(&disk, at(1), &[1; PAGE_BYTES]), None);
        with_root(&mut disk, 1, 8, b"new");
        assert!(
            breach(&disk, at(0), &[1; PAGE_BYTES]).is_some(),
            "the newer one is not durable yet"
        );
        disk.flush();
        assert_eq!(breach(&disk, at(0), &[1; PAGE_BYTES]), None);
        assert!(breach(&disk, at(1), &[1; PAGE_BYTES]).is_some());
        let mut other = Disk::new(4 << 20, false);
        with_root(&mut other, 0, 7, b"new");
        other.flush();
        assert_eq!(
            holders([&disk, &other, &older].into_iter()),
            2,
            "written again elsewhere"
        );
    }
}
