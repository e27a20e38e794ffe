//! Chunking: how dirty pages are cut into chunks.
//!
//! Invariants: contiguous dirty blocks of an aligned 128 KiB become one chunk (or several, if the dataset wants smaller
//! ones), a lone page its own small chunk; zero blocks become holes. Where the dataset has longer chunks for what does not
//! compress, neighbours among the chunks of an aligned stretch of that length become one if none of them compresses: how equal content is
//! cut hangs on the content alone, so that it is found again.

use std::{borrow::Cow, iter::Peekable};

use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX, Compression, Dedup, Flow, Store, Trial};

use crate::{
    objects::{SLOT_BLOCKS, Slot},
    settings::Settings,
};

static ZERO: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Dirty blocks of a slot that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first, within the slot.
    pub(crate) index: u32,
    /// How many.
    pub(crate) count: u32,
    /// They hold nothing but zeroes.
    pub(crate) zero: bool,
    /// Whether it pays to compress them, if that was tried.
    pub(crate) trial: Trial,
}

/// Cuts the dirty blocks of a slot into runs for chunks of at most `chunk_bytes`, ascending.
pub(crate) fn runs(slot: &Slot, chunk_bytes: u32) -> impl Iterator<Item = Run> + '_ {
    runs_of(SLOT_BLOCKS as u32, chunk_bytes, |index| slot.page(index))
}

/// The same for whole blocks, all there, the first of which is the first of a chunk.
pub(crate) fn runs_of_data(data: &[u8], chunk_bytes: u32) -> impl Iterator<Item = Run> + '_ {
    let page = |index: u32| {
        let from = index as usize * BLOCK_BYTES;
        data.get(from..from + BLOCK_BYTES)
    };
    runs_of((data.len() / BLOCK_BYTES) as u32, chunk_bytes, page)
}

/// Whether whole blocks hold nothing but zeroes.
pub(crate) fn is_zero(blocks: &[u8]) -> bool {
    blocks.chunks(BLOCK_BYTES).all(|block| *block == ZERO)
}

/// Blocks of a chunk.
pub(crate) fn blocks_of(chunk_bytes: u32) -> u32 {
    ((chunk_bytes as usize).clamp(BLOCK_BYTES, CHUNK_BYTES_MAX) / BLOCK_BYTES) as u32
}

fn runs_of<'a>(
    blocks: u32,
    chunk_bytes: u32,
    page_of: impl Fn(u32) -> Option<&'a [u8]>,
) -> impl Iterator<Item = Run> {
    let longest = blocks_of(chunk_bytes);
    let mut next = 0u32;
    std::iter::from_fn(move || {
        let (index, page) = (next..blocks).find_map(|index| Some((index, page_of(index)?)))?;
        let zero = *page == ZERO;
        let limit = if zero {
            blocks
        } else {
            ((index / longest + 1) * longest).min(blocks)
        };
        next = index + 1;
        while next < limit && page_of(next).is_some_and(|page| (*page == ZERO) == zero) {
            next += 1;
        }
        Some(Run {
            index,
            count: next - index,
            zero,
            trial: Trial::Untried,
        })
    })
}

/// Joins runs as they are cut for [`Settings::chunk_bytes`] where none of them compresses, up to [`Settings::raw_chunk_bytes`]:
/// whole ones, the first block of which is numbered from where a chunk may begin. `content_of` gives the content of a run.
pub(crate) fn joined<'a, C: Fn(&Run) -> Cow<'a, [u8]>>(
    store: &'a dyn Store,
    settings: &Settings,
    runs: impl Iterator<Item = Run>,
    content_of: C,
) -> impl Iterator<Item = Run> {
    let (usual, longest) = (
        blocks_of(settings.chunk_bytes),
        blocks_of(settings.raw_chunk_bytes),
    );
    let compression = settings.compression;
    let tried = runs.map(move |mut run| {
        if longest > usual && !run.zero && run.count == usual {
            let content = content_of(&run);
            if content.len() == usual as usize * BLOCK_BYTES {
                run.trial = store.try_compression(&content, compression);
            }
        }
        run
    });
    Joined {
        runs: tried.peekable(),
        longest,
    }
}

struct Joined<I: Iterator<Item = Run>> {
    runs: Peekable<I>,
    longest: u32,
}

impl<I: Iterator<Item = Run>> Iterator for Joined<I> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let mut run = self.runs.next()?;
        if run.trial == Trial::Vain {
            let (window, longest) = (run.index / self.longest, self.longest);
            let goes_on = |run: &Run, next: &Run| {
                next.trial == Trial::Vain
                    && next.index == run.index + run.count
                    && next.index / longest == window
            };
            while let Some(next) = self.runs.next_if(|next| goes_on(&run, next)) {
                run.count += next.count;
            }
        }
        Some(run)
    }
}

/// How content is compressed, unless it is to be stored in its full size.
pub(crate) fn compression_of(settings: &Settings, plain: bool) -> Compression {
    match plain {
        true => Compression::Off,
        false => settings.compression,
    }
}

/// Whether it is deduplicated.
pub(crate) fn dedup_of(settings: &Settings, plain: bool) -> Dedup {
    match plain {
        true => Dedup::Apart,
        false => Dedup::of_setting(settings.dedup),
    }
}

/// Content for one chunk, and where it belongs.
pub(crate) struct Part<'a> {
    /// Not empty, not all zero.
    pub(crate) content: &'a [u8],
    /// Whether it pays to compress it, if that was tried.
    pub(crate) trial: Trial,
    /// The object it is of.
    pub(crate) object: u64,
    /// Its first block.
    pub(crate) block: u64,
    /// What kind of write it comes from.
    pub(crate) flow: Flow,
    /// It is stored in its full size, and shared with nobody.
    pub(crate) plain: bool,
}
