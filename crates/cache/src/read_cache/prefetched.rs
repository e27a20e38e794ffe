//! `Ahead`: chunks that were fetched for readers in order before they asked for them.
//!
//! The read cache proper resists scans: what is new has a few hundredths of its room, where a stretch that was read ahead does
//! not last until its reader comes, nor until he has used all of it. Here it waits apart, and later belongs to the cache if it
//! was read.
//!
//! Invariants: bounded in bytes; what was read goes first, then what was expected first; whatever becomes of a fetch (an error, a panic, the end of the pool),
//! nobody waits for it longer than it takes.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use hashbrown::HashMap;
use terrace_store::ChunkId;
use terrace_sync::{Condvar, Mutex, rank};

/// What a chunk takes beside its content, bytes.
const ENTRY_BYTES: u64 = 64;

/// What leaves after it was read.
pub(crate) type Used = Vec<(ChunkId, Bytes)>;

struct Here {
    content: Bytes,
    used: bool,
}

#[derive(Default)]
struct State {
    /// `None`: on its way.
    chunks: HashMap<ChunkId, Option<Here>>,
    /// All of them, as they were expected: what is fetched at the same time comes in any order.
    order: VecDeque<ChunkId>,
    bytes: u64,
}

/// See the module.
pub(crate) struct Ahead {
    state: Mutex<State, rank::cache::Prefetched>,
    arrived: Condvar,
    capacity_bytes: AtomicU64,
    /// Here or on their way: most readers need no lock to know that there is nothing.
    count: AtomicUsize,
}

impl Ahead {
    /// Holds at most `capacity_bytes`.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Self {
            state: Mutex::default(),
            arrived: Condvar::new(),
            capacity_bytes: AtomicU64::new(capacity_bytes),
            count: AtomicUsize::new(0),
        }
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Relaxed)
    }

    pub(crate) fn set_capacity(&self, capacity_bytes: u64) -> Used {
        self.capacity_bytes.store(capacity_bytes, Relaxed);
        self.change(|state| trim(state, capacity_bytes))
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.count.store(state.chunks.len(), Relaxed);
        result
    }

    fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Whether the content is here.
    pub(crate) fn has(&self, id: ChunkId) -> bool {
        !self.is_empty() && matches!(self.state.lock().chunks.get(&id), Some(Some(_)))
    }

    /// Whether the content is here or on its way.
    pub(crate) fn knows(&self, id: ChunkId) -> bool {
        !self.is_empty() && self.state.lock().chunks.contains_key(&id)
    }

    /// The content.
    pub(crate) fn get(&self, id: ChunkId) -> Option<Bytes> {
        if self.is_empty() {
            return None;
        }
        used(&mut self.state.lock(), id)
    }

    /// The same, but waits for what is on its way.
    pub(crate) fn wait_for(&self, id: ChunkId) -> Option<Bytes> {
        if self.is_empty() {
            return None;
        }
        let mut state = self.state.lock();
        while matches!(state.chunks.get(&id), Some(None)) {
            self.arrived.wait(&mut state);
        }
        used(&mut state, id)
    }

    /// Somebody begins to fetch those of `ids` that are not known: they are left in it. [`ended`](Self::ended) must follow.
    pub(crate) fn begin_fetch(&self, ids: &mut Vec<ChunkId>) {
        self.change(|state| {
            ids.retain(|id| {
                let is_new = !state.chunks.contains_key(id);
                if is_new {
                    state.chunks.insert(*id, None);
                    state.order.push_back(*id);
                }
                is_new
            });
        });
    }

    /// Keeps content that is expected, and says what has to leave for it; `None` if it was not.
    pub(crate) fn arrive(&self, id: ChunkId, content: &Bytes) -> Option<Used> {
        if self.is_empty() {
            return None;
        }
        self.change(|state| {
            let Some(place @ None) = state.chunks.get_mut(&id) else {
                return None;
            };
            *place = Some(Here {
                content: content.clone(),
                used: false,
            });
            state.bytes += weight(content);
            Some(trim(state, self.capacity_bytes()))
        })
    }

    /// The fetch of `ids` has ended: what did not arrive will not.
    pub(crate) fn ended(&self, ids: &[ChunkId]) {
        self.change(|state| {
            let before = state.chunks.len();
            for id in ids {
                if matches!(state.chunks.get(id), Some(None)) {
                    state.chunks.remove(id);
                }
            }
            let State { chunks, order, .. } = state;
            if chunks.len() < before {
                order.retain(|id| chunks.contains_key(id));
            }
        });
        self.arrived.notify_all();
    }
}

fn weight(content: &Bytes) -> u64 {
    content.len() as u64 + ENTRY_BYTES
}

fn used(state: &mut State, id: ChunkId) -> Option<Bytes> {
    let here = state.chunks.get_mut(&id)?.as_mut()?;
    here.used = true;
    Some(here.content.clone())
}

/// Drops what was read, and then the oldest, until the rest fits; gives what was read.
fn trim(state: &mut State, capacity_bytes: u64) -> Used {
    let mut left = Used::new();
    while state.bytes > capacity_bytes {
        let State { chunks, order, .. } = &mut *state;
        let here = |id: &ChunkId| chunks.get(id).and_then(Option::as_ref);
        // Readers in order use the oldest first: it is seldom far.
        let read = order.iter().position(|id| here(id).is_some_and(|here| here.used));
        let leaves = read.or_else(|| order.iter().position(|id| here(id).is_some()));
        let Some(id) = leaves.and_then(|at| order.remove(at)) else {
            break;
        };
        if let Some(Some(here)) = chunks.remove(&id) {
            state.bytes -= weight(&here.content);
            if here.used {
                left.push((id, here.content));
            }
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn content(fill: u8) -> Bytes {
        Bytes::from(vec![fill; 936])
    }

    fn expected(ahead: &Ahead, ids: std::ops::Range<u64>) -> Vec<ChunkId> {
        let mut ids = ids.map(ChunkId).collect();
        ahead.begin_fetch(&mut ids);
        ids
    }

    #[test]
    fn what_is_known_is_not_expected_twice() {
        let ahead = Ahead::new(1 << 20);
        assert_eq!(expected(&ahead, 0..4).len(), 4);
        assert_eq!(ahead.arrive(ChunkId(1), &content(1)), Some(Used::new()));
        assert_eq!(expected(&ahead, 0..6), [ChunkId(4), ChunkId(5)]);
        assert!(ahead.has(ChunkId(1)) && !ahead.has(ChunkId(0)) && ahead.knows(ChunkId(0)));
        let stranger = ahead.arrive(ChunkId(9), &content(9));
        assert_eq!(stranger, None, "nobody reads it in order");
        ahead.ended(&[ChunkId(0), ChunkId(1)]);
        assert!(!ahead.knows(ChunkId(0)) && ahead.has(ChunkId(1)));
        assert_eq!(
            (ahead.get(ChunkId(1)), ahead.get(ChunkId(0))),
            (Some(content(1)), None)
        );
    }

    #[test]
    fn what_was_read_goes_first_and_is_given_on_then_the_oldest() {
        let ahead = Ahead::new(10_000);
        let arrive = |id: u64| {
            let left = ahead.arrive(ChunkId(id), &content(0)).unwrap();
            assert!(ahead.bytes() <= 10_000);
            left.iter().map(|(id, _)| id.0).collect::<Vec<_>>()
        };
        let kept = || {
            (0..100)
                .filter(|id| ahead.has(ChunkId(*id)))
                .collect::<Vec<u64>>()
        };
        expected(&ahead, 0..20);
        // Ten fit. The later ones come first.
        for id in (5..10).chain(0..5) {
            assert_eq!(arrive(id), []);
        }
        for id in [1, 2] {
            assert!(ahead.get(ChunkId(id)).is_some());
        }
        assert_eq!((arrive(10), arrive(11)), (vec![1], vec![2]));
        // Of what nobody read the first expected goes, not the first that came.
        assert_eq!((arrive(12), arrive(13)), (vec![], vec![]));
        assert_eq!(kept(), (4..14).collect::<Vec<_>>());
        ahead.get(ChunkId(12));
        assert_eq!(ahead.set_capacity(2500), [(ChunkId(12), content(0))]);
        assert_eq!(kept(), [11, 13]);
        ahead.ended(&(0..20).map(ChunkId).collect::<Vec<_>>());
        assert_eq!(ahead.state.lock().order, [ChunkId(11), ChunkId(13)]);
    }

    #[test]
    fn who_waits_gets_what_comes_and_nothing_if_it_does_not() {
        let ahead = Arc::new(Ahead::new(1 << 20));
        let ids = expected(&ahead, 0..2);
        let waiters: Vec<_> = (0..2)
            .map(|id| {
                let ahead = ahead.clone();
                std::thread::spawn(move || ahead.wait_for(ChunkId(id)))
            })
            .collect();
        ahead.arrive(ChunkId(0), &content(7));
        ahead.ended(&ids);
        let got: Vec<_> = waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect();
        assert_eq!(got, [Some(content(7)), None]);
    }
}
