//! The tree against a `BTreeMap`: random batches, seals, steps, manifests, reopening, failing writes; and crashes back
//! to every manifest that was made.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use terrace_meta::{
    Extent, ExtentStorage, MemoryExtents, Operation, Options, Progress, Tree, decode_count, encode_count,
};

type Model = BTreeMap<Vec<u8>, Bytes>;
type Batch = Vec<(Bytes, Operation)>;

fn options() -> Options {
    Options {
        memory_bytes: 64 << 10,
        block_cache_bytes: 64 << 10,
        table_bytes: 4 << 10,
        ..Options::default()
    }
}

fn apply_to_model(model: &mut Model, batch: &Batch) {
    for (key, operation) in batch {
        match operation {
            Operation::Put(value) => {
                model.insert(key.to_vec(), Bytes::copy_from_slice(value));
            }
            Operation::Delete => {
                model.remove(&key[..]);
            }
            Operation::Add(delta) => {
                let base = model
                    .get(&key[..])
                    .and_then(|value| decode_count(value))
                    .unwrap_or(0);
                match base.wrapping_add(*delta) {
                    0 => model.remove(&key[..]),
                    sum => model.insert(key.to_vec(), encode_count(sum)),
                };
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Action {
    Apply(Vec<(u16, u8, u16)>),
    Seal,
    Step { budget: u32, times: u8 },
    Manifest,
    Rewrite(u16),
    Reopen,
    FailingStep { writes: u8 },
    FailingRead,
    Scan { from: u16, to: u16, limit: u16 },
    Get(u16),
    GetMany(Vec<u16>),
}

/// Keys of three tables of different shape: numbers, long shared prefixes, and long names.
fn key(number: u16) -> Vec<u8> {
    match number % 3 {
        0 => [&[1u8][..], &number.to_be_bytes()].concat(),
        1 => format!("directory/with/a/long/shared/path/{number:05}").into_bytes(),
        _ => [
            &[3u8][..],
            &number.to_be_bytes(),
            &vec![number as u8; usize::from(number % 200)],
        ]
        .concat(),
    }
}

fn operation(kind: u8, seed: u16) -> Operation {
    match kind % 8 {
        0 | 1 => Operation::Add(i64::from(seed % 7) - 3),
        2 | 3 => Operation::Delete,
        4 => Operation::Put(encode_count(i64::from(seed % 5) - 2).into()),
        5 => Operation::Put(vec![seed as u8; usize::from(seed % 3000)].into()),
        _ => Operation::Put(vec![seed as u8; usize::from(seed % 60)].into()),
    }
}

fn action() -> impl Strategy<Value = Action> {
    let batch = prop::collection::vec((0u16..400, any::<u8>(), any::<u16>()), 0..80);
    prop_oneof![
        8 => batch.prop_map(Action::Apply),
        3 => Just(Action::Seal),
        6 => (0u32..40_000, 1u8..12).prop_map(|(budget, times)| Action::Step { budget, times }),
        2 => Just(Action::Manifest),
        1 => any::<u16>().prop_map(Action::Rewrite),
        1 => Just(Action::Reopen),
        1 => (0u8..3).prop_map(|writes| Action::FailingStep { writes }),
        1 => Just(Action::FailingRead),
        4 => (0u16..400, 0u16..400, 1u16..300).prop_map(|(from, to, limit)| Action::Scan { from, to, limit }),
        4 => (0u16..420).prop_map(Action::Get),
        4 => prop::collection::vec(0u16..420, 0..200).prop_map(Action::GetMany),
    ]
}

struct Bench {
    storage: Arc<MemoryExtents>,
    tree: Tree,
    model: Model,
    sequence: u64,
    log: Vec<(u64, Batch)>,
    /// The manifest that a root holds now.
    root: Option<Vec<u8>>,
    /// Every manifest made, with the sequence it holds; only kept when nothing is released.
    manifests: Vec<(Vec<u8>, u64)>,
    release: bool,
}

impl Bench {
    fn new(release: bool) -> Self {
        let storage = Arc::new(MemoryExtents::new());
        let tree = Tree::open(storage.clone(), None, options()).expect("an empty tree");
        Self {
            storage,
            tree,
            model: Model::new(),
            sequence: 0,
            log: Vec::new(),
            root: None,
            manifests: Vec::new(),
            release,
        }
    }

    fn apply(&mut self, batch: Batch) {
        self.sequence += 1;
        apply_to_model(&mut self.model, &batch);
        self.log.push((self.sequence, batch.clone()));
        self.tree.apply(self.sequence, batch).expect("applies");
    }

    fn manifest(&mut self) {
        let manifest = self.tree.manifest().expect("a manifest");
        assert!(manifest.len() <= 48 << 10);
        self.manifests
            .push((manifest.clone(), self.tree.flushed_sequence()));
        self.root = Some(manifest);
        let released = self.tree.take_released();
        if self.release {
            self.manifests.drain(..self.manifests.len() - 1);
            self.storage.release(&released);
        }
    }

    fn reopen(&mut self) {
        // Extents that the root does not name are lost in a crash.
        self.tree = Tree::open(self.storage.clone(), self.root.as_deref(), options()).expect("reopens");
        if self.release {
            let named = self.tree.extents();
            let lost: Vec<Extent> = self
                .storage
                .held()
                .into_iter()
                .filter(|extent| !named.contains(extent))
                .collect();
            self.storage.release(&lost);
        }
        let flushed = self.tree.flushed_sequence();
        for (sequence, batch) in self.log.iter().filter(|(sequence, _)| *sequence > flushed) {
            self.tree.apply(*sequence, batch.clone()).expect("replays");
        }
    }

    fn check_all(&self) {
        let scanned = self.tree.scan(&[], &[], usize::MAX).expect("scans");
        let expected: Vec<(Bytes, Bytes)> = self
            .model
            .iter()
            .map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
            .collect();
        assert_eq!(scanned, expected);
        for number in 0..400 {
            let key = key(number);
            assert_eq!(
                self.tree.get(&key).expect("gets"),
                self.model.get(&key).cloned(),
                "key {number}"
            );
        }
        self.check_many((0..420).rev());
    }

    /// Looked up at once, in whatever order and also twice, keys give what each of them gives.
    fn check_many(&self, numbers: impl IntoIterator<Item = u16>) {
        let keys: Vec<Vec<u8>> = numbers.into_iter().map(key).collect();
        let expected: Vec<Option<Bytes>> = keys.iter().map(|key| self.model.get(key).cloned()).collect();
        let found = self.tree.get_many(&keys).expect("gets").into_iter();
        let found: Vec<Option<Bytes>> = found
            .map(|value| value.map(|value| Bytes::copy_from_slice(&value)))
            .collect();
        assert_eq!(found, expected);
        let counts: Vec<i64> = expected
            .iter()
            .map(|value| value.as_ref().and_then(|value| decode_count(value)).unwrap_or(0))
            .collect();
        assert_eq!(self.tree.get_counts(&keys).expect("gets"), counts);
    }

    fn run(&mut self, action: Action) {
        match action {
            Action::Apply(operations) => {
                let batch = operations
                    .into_iter()
                    .map(|(number, kind, seed)| (Bytes::from(key(number)), operation(kind, seed)))
                    .collect();
                self.apply(batch);
            }
            Action::Seal => assert_eq!(self.tree.seal(), self.sequence),
            Action::Step { budget, times } => {
                for _ in 0..times {
                    self.tree.step(budget as usize).expect("steps");
                }
            }
            Action::Manifest => self.manifest(),
            Action::Rewrite(mask) => {
                let extents = self.tree.extents().into_iter().enumerate();
                let some: Vec<Extent> = extents
                    .filter(|(index, _)| mask >> (index % 16) & 1 == 1)
                    .map(|(_, extent)| extent)
                    .collect();
                self.tree.rewrite(&some).expect("rewrites");
            }
            Action::Reopen => self.reopen(),
            Action::FailingStep { writes } => {
                self.storage.fail_writes_after(Some(u64::from(writes)));
                for _ in 0..4 {
                    let _ = self.tree.step(20_000);
                }
                self.storage.fail_writes_after(None);
            }
            Action::FailingRead => {
                self.storage.fail_reads_after(Some(1));
                let _ = self.tree.step(20_000);
                let found = self.tree.scan(&[], &[], usize::MAX);
                self.storage.fail_reads_after(None);
                if let Ok(found) = found {
                    assert_eq!(found.len(), self.model.len());
                }
            }
            Action::Scan { from, to, limit } => {
                let (from, to) = (key(from), key(to));
                let found = self.tree.scan(&from, &to, usize::from(limit)).expect("scans");
                let expected: Vec<(Bytes, Bytes)> = if from < to {
                    let range = self.model.range(from..to).take(usize::from(limit));
                    range
                        .map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
                        .collect()
                } else {
                    Vec::new()
                };
                assert_eq!(found, expected);
            }
            Action::Get(number) => {
                let key = key(number);
                let expected = self.model.get(&key).cloned();
                let count = expected
                    .as_ref()
                    .and_then(|value| decode_count(value))
                    .unwrap_or(0);
                assert_eq!(self.tree.get(&key).expect("gets"), expected);
                assert_eq!(self.tree.get_count(&key).expect("gets"), count);
            }
            Action::GetMany(numbers) => self.check_many(numbers),
        }
    }

    fn settle(&mut self) {
        self.tree.seal();
        let mut steps = 0;
        while self.tree.step(16 << 10).expect("steps") == Progress::More {
            steps += 1;
            assert!(steps < 100_000, "the steps do not come to an end");
        }
        assert_eq!(self.tree.flushed_sequence(), self.sequence);
    }
}

/// A fixed seed, so that every run tests the same; `META_CASES` asks for more cases.
fn configuration(cases: u32) -> ProptestConfig {
    let asked = std::env::var("META_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: asked.unwrap_or(cases),
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(7),
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(configuration(48))]

    #[test]
    fn behaves_as_a_sorted_map(actions in prop::collection::vec(action(), 1..120)) {
        let mut bench = Bench::new(true);
        for action in actions {
            bench.run(action);
        }
        bench.check_all();
        bench.settle();
        bench.check_all();
        // Nothing is left behind: the storage holds exactly what the tree names.
        bench.manifest();
        let mut named = bench.tree.extents();
        named.sort();
        prop_assert_eq!(named, bench.storage.held());
        prop_assert_eq!(bench.tree.usage().bytes_replaced, 0);
        bench.reopen();
        bench.check_all();
    }

    #[test]
    fn every_manifest_is_exactly_its_state(actions in prop::collection::vec(action(), 1..100)) {
        let mut bench = Bench::new(false);
        for action in actions {
            bench.run(action);
        }
        bench.settle();
        bench.manifest();
        for (manifest, sequence) in &bench.manifests {
            let tree = Tree::open(bench.storage.clone(), Some(manifest), options()).expect("opens");
            prop_assert_eq!(tree.flushed_sequence(), *sequence);
            let mut model = Model::new();
            for (_, batch) in bench.log.iter().filter(|(at, _)| at <= sequence) {
                apply_to_model(&mut model, batch);
            }
            let expected: Vec<(Bytes, Bytes)> =
                model.iter().map(|(key, value)| (Bytes::copy_from_slice(key), value.clone())).collect();
            prop_assert_eq!(tree.scan(&[], &[], usize::MAX).expect("scans"), expected);
        }
    }
}

/// A few hundred thousand operations on a larger key space, so that merges of all kinds run.
#[test]
fn stays_right_through_many_merges() {
    use rand::{RngExt, SeedableRng, rngs::SmallRng};
    let mut random = SmallRng::seed_from_u64(11);
    let mut bench = Bench::new(true);
    let mut deepest = 0;
    for round in 0..400u32 {
        let mut batch = Batch::new();
        for _ in 0..120 {
            let number: u32 = if round % 3 == 0 {
                round * 40 + batch.len() as u32
            } else {
                random.random_range(0..20_000)
            };
            let operation = match random.random_range(0..6) {
                0 => Operation::Delete,
                1 | 2 => Operation::Add(random.random_range(-2..3)),
                _ => Operation::Put(vec![round as u8; random.random_range(0..100)].into()),
            };
            batch.push((Bytes::copy_from_slice(&number.to_be_bytes()), operation));
        }
        bench.apply(batch);
        if round % 4 == 0 {
            bench.tree.seal();
        }
        for _ in 0..6 {
            bench.tree.step(12 << 10).expect("steps");
        }
        deepest = deepest.max(bench.tree.usage().runs);
        if round % 16 == 0 {
            bench.manifest();
        }
        if round % 100 == 99 {
            bench.reopen();
        }
        let from = random.random_range(0..20_000u32).to_be_bytes();
        let found = bench.tree.scan(&from, &[], 40).expect("scans");
        let expected: Vec<(Bytes, Bytes)> = bench
            .model
            .range(from.to_vec()..)
            .take(40)
            .map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
            .collect();
        assert_eq!(found, expected);
    }
    assert!(deepest <= 20, "{deepest} runs");
    bench.settle();
    bench.check_all();
    let usage = bench.tree.usage();
    assert!(usage.runs <= 7, "{usage:?}");
    let live: usize = bench
        .model
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    assert!(
        usage.bytes_on_device < 2 * live as u64,
        "{usage:?} for {live} live bytes"
    );
}
