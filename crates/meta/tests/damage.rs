//! Damaged, lost and misplaced extents, hostile manifests: an error that names the extent, never a wrong value, never
//! a panic.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use terrace_meta::{
    Extent, ExtentError, ExtentStorage, MemoryExtents, MetaError, Operation, Options, PREFACE_BYTES,
    Progress, Tree, VerifyCursor,
};
use xxhash_rust::xxh3::xxh3_64;

type Model = BTreeMap<Vec<u8>, Bytes>;

fn options() -> Options {
    Options {
        memory_bytes: 1 << 20,
        block_cache_bytes: 64 << 10,
        table_bytes: 4 << 10,
        ..Options::default()
    }
}

fn put(number: u32, seed: u32) -> (Bytes, Operation) {
    let value = Bytes::from(vec![seed as u8; 8 + (number % 40) as usize]);
    (
        Bytes::from(format!("record/{number:06}")),
        Operation::Put(value.into()),
    )
}

/// Two runs that overlap, with deletions and counts; the manifest and what it holds.
fn sample(storage: &Arc<MemoryExtents>) -> (Vec<u8>, Model) {
    let tree = Tree::open(storage.clone(), None, options()).expect("an empty tree");
    let mut model = Model::new();
    let first: Vec<_> = (0..150).map(|number| put(number, 1)).collect();
    let mut second: Vec<_> = (0..150).step_by(11).map(|number| put(number, 2)).collect();
    second.push((Bytes::from_static(b"record/000001"), Operation::Delete));
    second.push((Bytes::from_static(b"sum"), Operation::Add(41)));
    for (sequence, batch) in [(1, first), (2, second)] {
        for (key, operation) in &batch {
            match operation {
                Operation::Put(value) => drop(model.insert(key.to_vec(), Bytes::copy_from_slice(value))),
                Operation::Delete => drop(model.remove(&key[..])),
                Operation::Add(sum) => drop(model.insert(key.to_vec(), terrace_meta::encode_count(*sum))),
            }
        }
        tree.apply(sequence, batch).expect("applies");
        tree.seal();
        while tree.flushed_sequence() < sequence {
            tree.step(1 << 20).expect("steps");
        }
    }
    (tree.manifest().expect("a manifest"), model)
}

fn check(tree: &Tree, model: &Model) -> Result<(), MetaError> {
    let mut outcome = Ok(());
    for (key, value) in model.iter().step_by(5) {
        match tree.get(key) {
            Ok(found) => assert_eq!(found.as_ref(), Some(value)),
            Err(cause) => outcome = Err(cause),
        }
    }
    match tree.get(b"record/000001") {
        Ok(found) => assert_eq!(found, None),
        Err(cause) => outcome = Err(cause),
    }
    let found = tree.scan(&[], &[], usize::MAX)?;
    let expected: Vec<(Bytes, Bytes)> = model
        .iter()
        .map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
        .collect();
    assert_eq!(found, expected);
    outcome
}

fn verify(tree: &Tree) -> Vec<(u32, MetaError)> {
    let mut cursor = VerifyCursor::default();
    let mut damaged = Vec::new();
    loop {
        let report = tree.verify_step(&mut cursor, 4096).expect("verifies");
        damaged.extend(report.damaged);
        if report.done {
            return damaged;
        }
    }
}

#[test]
fn every_flipped_byte_is_noticed() {
    let storage = Arc::new(MemoryExtents::new());
    let (manifest, model) = sample(&storage);
    let extents = storage.held();
    assert!(extents.len() >= 3, "several tables: {extents:?}");
    for extent in extents {
        for offset in 0..extent.bytes {
            let mask = 1 << (offset % 8);
            assert!(storage.flip(extent, offset, mask));
            let tree = Tree::open(storage.clone(), Some(&manifest), options())
                .expect("opens without reading tables");
            match check(&tree, &model) {
                // The preface is for those who have no manifest: a reader who has one does not look at it.
                Ok(()) if (offset as usize) < PREFACE_BYTES => assert_eq!(verify(&tree).len(), 1),
                Ok(()) => panic!("byte {offset} of {extent} is covered by no sum"),
                Err(MetaError::Damaged { extent: named, .. }) => assert_eq!(named, extent),
                Err(other) => panic!("{other}"),
            }
            if offset % 16 == 0 {
                let damaged = verify(&tree);
                assert_eq!(damaged.len(), 1, "{damaged:?}");
                assert!(
                    matches!(damaged[0], (0, MetaError::Damaged { extent: named, .. }) if named == extent)
                );
            }
            assert!(storage.flip(extent, offset, mask));
        }
    }
    let tree = Tree::open(storage, Some(&manifest), options()).expect("opens");
    check(&tree, &model).expect("sound again");
    assert_eq!(verify(&tree), []);
}

#[test]
fn misplaced_and_lost_extents_are_noticed() {
    let storage = Arc::new(MemoryExtents::new());
    let (manifest, model) = sample(&storage);
    let extents = storage.held();
    let contents: Vec<Bytes> = extents
        .iter()
        .map(|extent| storage.content(*extent).expect("held"))
        .collect();
    for (index, extent) in extents.iter().enumerate() {
        // Another table's sound content, cut or filled to length; then nothing at all.
        let mut other = contents[(index + 1) % contents.len()].to_vec();
        other.resize(extent.bytes as usize, 0);
        for content in [
            Bytes::from(other),
            Bytes::from(vec![0; extent.bytes as usize]),
            Bytes::new(),
        ] {
            storage.replace(*extent, content);
            let tree = Tree::open(storage.clone(), Some(&manifest), options()).expect("opens");
            assert!(check(&tree, &model).is_err());
            assert_eq!(verify(&tree).len(), 1);
        }
        storage.replace(*extent, contents[index].clone());
    }
}

#[test]
fn a_merge_leaves_damage_alone_and_the_tree_goes_on() {
    let storage = Arc::new(MemoryExtents::new());
    let (manifest, mut model) = sample(&storage);
    let tree = Tree::open(storage.clone(), Some(&manifest), options()).expect("opens");
    let extent = storage.held()[1];
    storage.flip(extent, 100, 4);
    let mut failures = 0;
    let mut sequence = tree.newest_sequence();
    for round in 0..20 {
        sequence += 1;
        let batch: Vec<_> = (1000..1100).map(|number| put(number, round)).collect();
        for (key, operation) in &batch {
            if let Operation::Put(value) = operation {
                model.insert(key.to_vec(), Bytes::copy_from_slice(value));
            }
        }
        tree.apply(sequence, batch).expect("applies");
        tree.seal();
        let mut steps = 0;
        loop {
            match tree.step(16 << 10) {
                Ok(Progress::Idle) => break,
                Ok(Progress::More) => {}
                Err(MetaError::Damaged { extent: named, .. }) => {
                    assert_eq!(named, extent);
                    failures += 1;
                }
                Err(other) => panic!("{other}"),
            }
            steps += 1;
            assert!(steps < 1000, "the steps come to an end");
        }
    }
    assert_eq!(failures, 1, "damage is reported once, not in every step");
    assert_eq!(tree.flushed_sequence(), sequence);
    assert_eq!(tree.usage().blocked_merges, 1);
    assert!(tree.usage().runs < 12, "{:?}", tree.usage());
    // Repaired underneath, everything is there.
    storage.flip(extent, 100, 4);
    check(&tree, &model).expect("sound");
    let manifest = tree.manifest().expect("a manifest");
    let tree = Tree::open(storage, Some(&manifest), options()).expect("opens");
    while tree.step(1 << 20).expect("steps") == Progress::More {}
    check(&tree, &model).expect("sound");
    assert_eq!(tree.usage().blocked_merges, 0);
}

/// Two copies; `read` prefers the first.
struct Mirrored {
    first: Arc<MemoryExtents>,
    second: Arc<MemoryExtents>,
}

impl ExtentStorage for Mirrored {
    fn write(&self, bytes: &[u8]) -> Result<Extent, ExtentError> {
        let extent = self.first.write(bytes)?;
        assert_eq!(extent, self.second.write(bytes)?);
        Ok(extent)
    }

    fn read(&self, extent: Extent, offset: u32, length: u32) -> Result<Bytes, ExtentError> {
        self.first.read(extent, offset, length)
    }

    fn read_copy(
        &self,
        copy: u32,
        extent: Extent,
        offset: u32,
        length: u32,
    ) -> Option<Result<Bytes, ExtentError>> {
        let copies = [&self.first, &self.second];
        Some(copies.get(copy as usize)?.read(extent, offset, length))
    }

    fn release(&self, extents: &[Extent]) {
        self.first.release(extents);
        self.second.release(extents);
    }

    fn sync(&self) -> Result<(), ExtentError> {
        Ok(())
    }
}

#[test]
fn another_copy_is_read_where_one_is_damaged() {
    let first = Arc::new(MemoryExtents::new());
    let (manifest, model) = sample(&first);
    let second = Arc::new(MemoryExtents::new());
    for extent in first.held() {
        second.replace(extent, first.content(extent).expect("held"));
        // All damaged on the first copy, one bit in every 97 bytes.
        for offset in (0..extent.bytes).step_by(97) {
            first.flip(extent, offset, 1);
        }
    }
    let storage = Arc::new(Mirrored {
        first: first.clone(),
        second,
    });
    let tree = Tree::open(storage.clone(), Some(&manifest), options()).expect("opens");
    check(&tree, &model).expect("the second copy is sound");
    let damaged = verify(&tree);
    assert_eq!(damaged.len(), first.held().len());
    assert!(damaged.iter().all(|(copy, _)| *copy == 0));
    // Merging reads the sound copy too.
    for sequence in 3..12 {
        tree.apply(sequence, vec![put(500, 9)]).expect("applies");
        tree.seal();
        tree.step(1 << 20).expect("steps");
    }
    first.fail_reads_after(Some(0));
    while tree.step(1 << 20).expect("merges from the second copy") == Progress::More {}
}

#[test]
fn a_damaged_copy_of_a_large_manifest_is_found() {
    let storage = Arc::new(Mirrored {
        first: Arc::new(MemoryExtents::new()),
        second: Arc::new(MemoryExtents::new()),
    });
    let memory_bytes = 64 << 20;
    let options = Options {
        memory_bytes,
        ..options()
    };
    let tree = Tree::open(storage.clone(), None, options).expect("an empty tree");
    // Long keys, of which each table names two.
    let key = |number: u32| Bytes::from(format!("{number:06}").repeat(160));
    let batch = (0..400).map(|number| (key(number), put(number, 1).1));
    tree.apply(1, batch.collect()).expect("applies");
    tree.seal();
    while tree.step(1 << 20).expect("steps") == Progress::More {}
    tree.manifest().expect("a manifest");
    let manifest = tree.manifest_extents();
    assert!(!manifest.is_empty(), "{:?}", tree.usage());
    assert_eq!(verify(&tree), []);
    for (copy, extents) in [&storage.first, &storage.second].into_iter().enumerate() {
        extents.flip(manifest[0], 7, 1);
        let damaged = verify(&tree);
        let found = |(number, error): &(u32, MetaError)| {
            let MetaError::Damaged { extent, .. } = error else {
                return false;
            };
            *number == copy as u32 && *extent == manifest[0]
        };
        assert!(damaged.len() == 1 && damaged.iter().all(found), "{damaged:?}");
        extents.flip(manifest[0], 7, 1);
    }
}

/// One copy, of which the first two readings of each place go wrong: a flipped bit, then an error.
struct Troubled {
    sound: Arc<MemoryExtents>,
    readings: Mutex<BTreeMap<(Extent, u32), u32>>,
}

impl ExtentStorage for Troubled {
    fn write(&self, bytes: &[u8]) -> Result<Extent, ExtentError> {
        self.sound.write(bytes)
    }

    fn read(&self, extent: Extent, offset: u32, length: u32) -> Result<Bytes, ExtentError> {
        let mut readings = self.readings.lock().expect("no panic");
        let reading = readings.entry((extent, offset)).or_default();
        *reading += 1;
        let mut bytes = self.sound.read(extent, offset, length)?.to_vec();
        match *reading {
            1 => bytes[0] ^= 1,
            2 => return Err(ExtentError::Failed("a cable".into())),
            _ => {}
        }
        Ok(bytes.into())
    }

    fn release(&self, extents: &[Extent]) {
        self.sound.release(extents);
    }

    fn sync(&self) -> Result<(), ExtentError> {
        Ok(())
    }
}

#[test]
fn what_is_wrong_twice_is_read_again() {
    let sound = Arc::new(MemoryExtents::new());
    let (manifest, model) = sample(&sound);
    let storage = Arc::new(Troubled {
        sound,
        readings: Mutex::default(),
    });
    let tree = Tree::open(storage, Some(&manifest), options()).expect("opens");
    check(&tree, &model).expect("the third reading is right");
}

#[test]
fn a_changed_manifest_is_refused() {
    let storage = Arc::new(MemoryExtents::new());
    let (manifest, model) = sample(&storage);
    for offset in 0..manifest.len() {
        let mut changed = manifest.clone();
        changed[offset] ^= 1 << (offset % 8);
        assert!(matches!(
            Tree::open(storage.clone(), Some(&changed), options()),
            Err(MetaError::Manifest(_))
        ));
        assert!(Tree::open(storage.clone(), Some(&manifest[..offset]), options()).is_err());
    }
    let tree = Tree::open(storage, Some(&manifest), options()).expect("opens");
    check(&tree, &model).expect("sound");
}

/// A manifest with a right sum and wrong content, as an attacker would make: no panic, no large allocation, and no
/// wrong reads beyond what the sums of tables cannot know.
#[test]
fn a_hostile_manifest_harms_nothing() {
    let storage = Arc::new(MemoryExtents::new());
    let (manifest, _) = sample(&storage);
    let mut random = SmallRng::seed_from_u64(5);
    let body = manifest.len() - 8;
    let mut opened = 0;
    for round in 0..20_000 {
        let mut hostile = manifest[..body].to_vec();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(4..hostile.len());
            match random.random_range(0..4) {
                0 => hostile[at] = random.random(),
                1 => hostile[at] = 0xff,
                2 => hostile.truncate(at.max(8)),
                _ => hostile.insert(at, random.random()),
            }
        }
        if round % 3 == 0 {
            hostile[4] = 1;
        }
        let sum = xxh3_64(&hostile);
        hostile.extend_from_slice(&sum.to_le_bytes());
        let Ok(tree) = Tree::open(storage.clone(), Some(&hostile), options()) else {
            continue;
        };
        opened += 1;
        let _ = tree.scan(&[], &[], usize::MAX);
        let _ = tree.get(b"record/000033");
        let _ = tree.usage();
        let mut cursor = VerifyCursor::default();
        let _ = tree.verify_step(&mut cursor, 1 << 20);
        let sequence = tree.newest_sequence();
        if sequence < u64::MAX {
            tree.apply(sequence + 1, vec![put(1, 1)]).expect("applies");
            tree.seal();
            for _ in 0..4 {
                let _ = tree.step(1 << 20);
            }
        }
    }
    assert!(opened > 100, "{opened} opened");
}

#[test]
fn rewriting_moves_tables_and_heals_copies() {
    let first = Arc::new(MemoryExtents::new());
    let (manifest, model) = sample(&first);
    let second = Arc::new(MemoryExtents::new());
    for (index, extent) in first.held().into_iter().enumerate() {
        second.replace(extent, first.content(extent).expect("held"));
        // Both copies damaged, in different places.
        first.flip(extent, PREFACE_BYTES as u32 + 5, 1);
        if index > 0 {
            second.flip(extent, extent.bytes - 5, 1);
        }
    }
    let storage = Arc::new(Mirrored {
        first: first.clone(),
        second: second.clone(),
    });
    let tree = Tree::open(storage.clone(), Some(&manifest), options()).expect("opens");
    let old = tree.extents();
    let bytes: u64 = old.iter().map(|extent| u64::from(extent.bytes)).sum();

    // A failed write changes nothing but what was written before it.
    first.fail_writes_after(Some(1));
    assert!(matches!(tree.rewrite(&old), Err(MetaError::Storage { .. })));
    first.fail_writes_after(None);
    check(&tree, &model).expect("sound");
    assert_eq!(tree.rewrite(&tree.extents()), Ok(bytes));
    assert!(tree.extents().iter().all(|extent| !old.contains(extent)));
    assert_eq!(verify(&tree), []);
    check(&tree, &model).expect("sound");

    let manifest = tree.manifest().expect("a manifest");
    storage.release(&tree.take_released());
    assert_eq!(first.held(), second.held());
    assert_eq!(first.held_bytes(), bytes);
    let tree = Tree::open(storage, Some(&manifest), options()).expect("opens");
    check(&tree, &model).expect("sound");

    // Damaged in all copies: the others are moved all the same.
    let lost = tree.extents()[0];
    first.flip(lost, PREFACE_BYTES as u32 + 9, 2);
    second.flip(lost, PREFACE_BYTES as u32 + 9, 2);
    let before = tree.extents();
    assert!(matches!(tree.rewrite(&before), Err(MetaError::Damaged { extent, .. }) if extent == lost));
    let kept: Vec<Extent> = tree
        .extents()
        .into_iter()
        .filter(|extent| before.contains(extent))
        .collect();
    assert_eq!(kept, [lost]);
}

#[test]
fn tables_of_a_memtable_that_is_written_in_part_are_written_anew_too() {
    let storage = Arc::new(MemoryExtents::new());
    let tree = Tree::open(storage.clone(), None, options()).expect("an empty tree");
    tree.apply(1, (0..2000).map(|number| put(number, 1)).collect())
        .expect("applies");
    tree.seal();
    tree.step(4 << 10).expect("steps");
    let old = storage.held();
    assert!(tree.flushed_sequence() == 0 && !old.is_empty());
    assert!(tree.rewrite(&old).expect("rewrites") > 0);
    while tree.flushed_sequence() < 1 {
        tree.step(4 << 10).expect("steps");
    }
    let manifest = tree.manifest().expect("a manifest");
    storage.release(&tree.take_released());
    assert!(storage.held().iter().all(|extent| !old.contains(extent)));
    drop(tree);
    let tree = Tree::open(storage, Some(&manifest), options()).expect("opens");
    assert_eq!(tree.scan(&[], &[], usize::MAX).expect("scans").len(), 2000);
    assert_eq!(verify(&tree), []);
}

#[test]
fn a_failing_merge_rests_and_is_taken_up_again() {
    let storage = Arc::new(MemoryExtents::new());
    let tree = Tree::open(storage.clone(), None, options()).expect("an empty tree");
    for sequence in 1..=10 {
        tree.apply(
            sequence,
            (0..100).map(|number| put(number, sequence as u32)).collect(),
        )
        .expect("applies");
        tree.seal();
    }
    while tree.flushed_sequence() < 10 {
        tree.step(1 << 20).expect("steps");
    }
    storage.fail_reads_after(Some(0));
    let mut failures = 0;
    for _ in 0..500 {
        failures += u32::from(tree.step(1 << 20).is_err());
    }
    assert!((3..20).contains(&failures), "{failures} failures in 500 steps");
    storage.fail_reads_after(None);
    let before = tree.usage().runs;
    for _ in 0..200 {
        tree.step(1 << 20).expect("steps");
    }
    assert!(
        before > 3 && tree.usage().runs == 1,
        "{before} {:?}",
        tree.usage()
    );
}
