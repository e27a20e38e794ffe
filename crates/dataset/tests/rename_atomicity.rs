//! A rename is seen whole or not at all: by who lists and looks up meanwhile, and in the states that commits leave.
//!
//! One thread looks a given number of times, another renames until it has ended: what is seen must be right each time,
//! however the threads take turns.

#![allow(clippy::unwrap_used)]

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use terrace_dataset::{
    At, Context, Datasets, Environment, FileKind, Filesystem, NewDataset, Progress, ROOT, RenameMode, Tree,
};
use terrace_device::SystemClock;
use terrace_store::MemoryStore;

const LOOKS: usize = 20_000;
const SNAPSHOTS: usize = 300;

struct World {
    datasets: Datasets,
    fs: Arc<Filesystem>,
    /// The directories of `one` and `two`, which name the objects.
    places: [u64; 2],
    objects: [u64; 2],
}

const NAMES: [&[u8]; 2] = [b"one", b"two"];

fn world(in_one_directory: bool) -> World {
    let store = Arc::new(MemoryStore::new(1 << 30));
    let environment = Environment::new(store, Arc::new(SystemClock::new()));
    let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    let fs = datasets.filesystem("pool/a").unwrap();
    let root = Context::root();
    let place = |name: &[u8]| match in_one_directory {
        true => ROOT,
        false => fs.make_directory(&root, ROOT, name, 0o755).unwrap().object,
    };
    let places = [place(b"left"), place(b"right")];
    let mut objects = [0; 2];
    for at in 0..2 {
        let made = fs.create(&root, places[at], NAMES[at], FileKind::File, 0o644, 0);
        objects[at] = made.unwrap().object;
    }
    World {
        datasets,
        fs,
        places,
        objects,
    }
}

impl World {
    fn rename(&self, mode: RenameMode) {
        let (from, to) = (self.places[0], self.places[1]);
        self.fs
            .rename(&Context::root(), from, NAMES[0], to, NAMES[1], mode)
            .unwrap();
    }

    fn named(&self, tree: &dyn Tree, at: usize) -> u64 {
        tree.lookup(&Context::root(), self.places[at], NAMES[at])
            .unwrap()
            .object
    }

    /// What a listing of the directory of `one` shows, in the order of the names.
    fn listed(&self, tree: &dyn Tree) -> Vec<(Vec<u8>, u64)> {
        let entries = tree.read_directory(self.places[0], 0, 100).unwrap();
        let mut listed: Vec<_> = entries
            .into_iter()
            .map(|entry| (entry.name, entry.object))
            .collect();
        listed.sort();
        listed
    }
}

/// Runs `look` so many times, and `change` over and over beside it until that has ended.
fn beside(times: usize, change: impl Fn() + Sync, look: impl Fn()) {
    /// Ends the other thread, also when this one panics.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                change();
            }
        });
        let _end = End(&ended);
        (0..times).for_each(|_| look());
    });
}

#[test]
fn a_listing_never_shows_half_of_an_exchange() {
    let world = world(true);
    let exchange = || world.rename(RenameMode::Exchange);
    beside(LOOKS, exchange, || {
        let mut objects: Vec<u64> = world
            .listed(&*world.fs)
            .into_iter()
            .map(|(_, object)| object)
            .collect();
        objects.sort_unstable();
        assert_eq!(objects, world.objects, "both names have an object of their own");
    });
}

#[test]
fn a_lookup_never_sees_half_of_an_exchange() {
    for in_one_directory in [true, false] {
        let world = world(in_one_directory);
        let begun = AtomicUsize::new(0);
        let exchange = || {
            begun.fetch_add(1, Ordering::SeqCst);
            world.rename(RenameMode::Exchange);
        };
        let look = || {
            let number = begun.load(Ordering::SeqCst);
            if number == 0 {
                return;
            }
            let (second, first) = (world.named(&*world.fs, 1), world.named(&*world.fs, 0));
            let (first_again, second_again) = (world.named(&*world.fs, 0), world.named(&*world.fs, 1));
            if begun.load(Ordering::SeqCst) != number {
                return;
            }
            // In this exchange what `one` named comes to `two`. Where `two` has it, `one` no longer does; and where `one`
            // has the other object, so does `two` not.
            let moved = world.objects[(number - 1) % 2];
            assert!(second != moved || first != moved, "one object under both names");
            assert!(
                first_again == moved || second_again == moved,
                "one object under both names"
            );
        };
        beside(LOOKS, exchange, look);
    }
}

#[test]
fn a_state_never_has_half_of_an_exchange() {
    for in_one_directory in [true, false] {
        let world = world(in_one_directory);
        world.datasets.commit_all().unwrap();
        let exchange = || world.rename(RenameMode::Exchange);
        let taken = Cell::new(0);
        beside(SNAPSHOTS, exchange, || {
            taken.set(taken.get() + 1);
            let taken = taken.get();
            let name = format!("pool/a@s{taken}");
            world.datasets.snapshots().take(&name, false, "").unwrap();
            let view = world
                .datasets
                .view("pool/a", &At::Snapshot(format!("s{taken}")))
                .unwrap();
            let mut objects = [0, 1].map(|at| world.named(&*view, at));
            objects.sort_unstable();
            assert_eq!(objects, world.objects, "snapshot {taken}");
            drop(view);
            world.datasets.snapshots().destroy(&name, false, false).unwrap();
            while world.datasets.sweeper().step(64).unwrap() == Progress::More {}
        });
    }
}

#[test]
fn a_name_that_a_whiteout_takes_is_never_absent() {
    let world = world(true);
    let root = Context::root();
    let turn = || {
        world.rename(RenameMode::Whiteout);
        world
            .fs
            .rename(&root, ROOT, NAMES[1], ROOT, NAMES[0], RenameMode::Replace)
            .unwrap();
    };
    beside(LOOKS, turn, || {
        let listed = world.listed(&*world.fs);
        let names: Vec<&[u8]> = listed.iter().map(|(name, _)| &name[..]).collect();
        assert!(names == NAMES || names == [NAMES[0]], "{listed:?}");
        // A whiteout, or the file and then the other name has gone.
        let file = listed
            .iter()
            .filter(|(_, object)| *object == world.objects[0])
            .count();
        assert_eq!(file, 1, "{listed:?}");
    });
}
