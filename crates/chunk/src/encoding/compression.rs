//! Compression of chunk content: LZ4 or Zstandard, only where it pays.
//!
//! Invariants: what decompresses is exactly as long as the record says, or an error; the output buffer is bounded by
//! [`CHUNK_BYTES_MAX`]. Of a beginning nobody knows whether the rest would decompress: who takes it compares its sums.

use std::{
    cell::RefCell,
    ffi::{c_char, c_int},
};

use bytes::Bytes;
use terrace_store::{CHUNK_BYTES_MAX, Compression, Trial};

use crate::buffer_pool;

/// Code of content stored as it is.
pub const RAW: u8 = 0;
/// Code of LZ4 block format.
pub const LZ4: u8 = 1;
/// Code of Zstandard.
pub const ZSTD: u8 = 2;

/// How much of a large chunk is tried, at three places, before all of it is compressed; of smaller ones a sixteenth.
const PROBE_BYTES_MAX: usize = 4096;
const PROBE_PART: usize = 16;
/// Samples must become shorter by this part of them. What would save an eighth as a whole is missed where samples save less: of what
/// programs, libraries and documents save 0.1 to 0.5 %, of Rust's archives 1.2 %. Noise with something regular in each line of the
/// processor's cache, which saves 7 %, is not compressed in vain.
const SAMPLES_SAVE_PART: usize = 13;
/// Less is never compressed.
const BYTES_MIN: usize = 64;
/// Chunks below this are compressed without a probe.
const PROBE_FROM_BYTES: usize = 16 * 1024;
/// So are those that come after so many which LZ4 compressed: trying it all in vain costs less than that many samples.
const NO_PROBE_AFTER: u8 = 8;

/// Whether it pays to compress `content`, as far as that can be told without doing it: three small samples tell data that
/// does not compress (media, archives, ciphertext) at a fraction of the cost.
pub fn try_samples(content: &[u8], wanted: Compression, scratch: &mut Scratch) -> Trial {
    if wanted == Compression::Off || content.len() < BYTES_MIN {
        return Trial::Vain;
    }
    if content.len() < PROBE_FROM_BYTES {
        return Trial::Untried;
    }
    let probe = (content.len() / PROBE_PART).min(PROBE_BYTES_MAX);
    // Tried together: clearing the tables of the compressor costs as much as a sample.
    let Scratch { output, samples, .. } = scratch;
    samples.clear();
    for start in [0, content.len() / 2, content.len() - probe] {
        samples.extend_from_slice(&content[start..start + probe]);
    }
    match lz4_into(samples, output)
        .is_some_and(|length| length < samples.len() - samples.len() / SAMPLES_SAVE_PART)
    {
        true => Trial::Pays,
        false => Trial::Vain,
    }
}

/// Compresses `content` into the output of `scratch` if that saves at least an eighth; returns the code of what
/// is to be stored ([`RAW`]: store the content itself). `trial`: what is known of it already.
pub fn compress(content: &[u8], wanted: Compression, trial: Trial, scratch: &mut Scratch) -> u8 {
    if wanted == Compression::Off || content.len() < BYTES_MIN {
        return RAW;
    }
    let runs = wanted == Compression::Lz4 && scratch.compressed_in_a_row >= NO_PROBE_AFTER;
    let trial = match trial {
        Trial::Untried if !runs => try_samples(content, wanted, scratch),
        known => known,
    };
    if trial == Trial::Vain {
        scratch.compressed_in_a_row = 0;
        return RAW;
    }
    let (code, length) = match wanted {
        Compression::Zstd(level) => (ZSTD, zstd_into(content, level, scratch)),
        _ => (LZ4, lz4_into(content, &mut scratch.output)),
    };
    match length {
        Some(length) if length <= content.len() - content.len() / 8 => {
            scratch.output.truncate(length);
            scratch.compressed_in_a_row = scratch.compressed_in_a_row.saturating_add(1);
            code
        }
        _ => {
            scratch.compressed_in_a_row = 0;
            RAW
        }
    }
}

fn lz4_into(content: &[u8], output: &mut Vec<u8>) -> Option<usize> {
    let bound = lz4::block::compress_bound(content.len()).ok()?;
    if output.len() < bound {
        output.resize(bound, 0);
    }
    lz4::block::compress_to_buffer(content, None, false, output).ok()
}

thread_local! {
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
    /// Where beginnings are unpacked.
    static UNPACKED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" {
    /// Of the C library of LZ4, which the crate links and does not show: ends once `target` bytes are there. Writes at most
    /// `capacity` bytes; returns how many are there, or less than 0 if the input is not of the format.
    fn LZ4_decompress_safe_partial(
        source: *const c_char,
        destination: *mut c_char,
        source_length: c_int,
        target: c_int,
        capacity: c_int,
    ) -> c_int;
}

fn lz4_beginning(stored: &[u8], output: &mut [u8]) -> Option<usize> {
    let (source_length, length) = (
        c_int::try_from(stored.len()).ok()?,
        c_int::try_from(output.len()).ok()?,
    );
    // SAFETY: both pointers are of memory of the lengths given beside them; the function reads and writes nothing else,
    // whatever the input.
    let got = unsafe {
        LZ4_decompress_safe_partial(
            stored.as_ptr().cast(),
            output.as_mut_ptr().cast(),
            source_length,
            length,
            length,
        )
    };
    usize::try_from(got).ok()
}

/// What compressing needs besides the content; kept for the next chunk, since making a Zstandard context costs as much
/// as compressing a small chunk.
#[derive(Default)]
pub struct Scratch {
    /// What came out.
    pub output: Vec<u8>,
    samples: Vec<u8>,
    compressed_in_a_row: u8,
    compressor: Option<(i32, zstd::bulk::Compressor<'static>)>,
}

fn zstd_into(content: &[u8], level: u8, scratch: &mut Scratch) -> Option<usize> {
    let Scratch {
        output, compressor, ..
    } = scratch;
    let bound = zstd::zstd_safe::compress_bound(content.len());
    if output.len() < bound {
        output.resize(bound, 0);
    }
    let level = i32::from(level.clamp(1, 19));
    if compressor.as_ref().is_none_or(|(of, _)| *of != level) {
        *compressor = Some((level, zstd::bulk::Compressor::new(level).ok()?));
    }
    let (_, compressor) = compressor.as_mut()?;
    compressor.compress_to_buffer(content, &mut output[..]).ok()
}

fn zstd_from(stored: &[u8], content: &mut [u8]) -> Option<usize> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Some(zstd::bulk::Decompressor::new().ok()?);
        }
        kept.as_mut()?.decompress_to_buffer(stored, content).ok()
    })
}

/// Gives at least the first `until` bytes of content of `length` bytes to `use_beginning`; `None` if the bytes are not what
/// they should be, as far as that shows.
pub fn with_beginning<T>(
    stored: &[u8],
    code: u8,
    length: usize,
    until: usize,
    use_beginning: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<T> {
    if length > CHUNK_BYTES_MAX || until > length {
        return None;
    }
    UNPACKED.with_borrow_mut(|unpacked| {
        if unpacked.len() < length {
            unpacked.resize(length, 0);
        }
        let got = match code {
            LZ4 => lz4_beginning(stored, &mut unpacked[..until])?,
            ZSTD => zstd_from(stored, &mut unpacked[..length])?,
            _ => return None,
        };
        use_beginning(unpacked.get(..got).filter(|there| there.len() >= until)?)
    })
}

/// Restores content of `length` bytes; `None` if the bytes are not what they should be.
pub fn decompress(stored: &[u8], code: u8, length: usize) -> Option<Bytes> {
    if length > CHUNK_BYTES_MAX {
        return None;
    }
    match code {
        RAW => (stored.len() == length).then(|| buffer_pool::copy(stored)),
        LZ4 => buffer_pool::filled(length, |content| {
            let got = lz4::block::decompress_to_buffer(stored, i32::try_from(length).ok(), content).ok()?;
            (got == length).then_some(())
        }),
        ZSTD => buffer_pool::filled(length, |content| {
            (zstd_from(stored, content)? == length).then_some(())
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_compresses_comes_back_and_what_does_not_is_left_alone() {
        let text: Vec<u8> = (0..100_000u32)
            .flat_map(|n| (n / 100).to_le_bytes())
            .take(CHUNK_BYTES_MAX)
            .collect();
        let mut noise = vec![0u8; 65536];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        let mut scratch = Scratch::default();
        for wanted in [Compression::Lz4, Compression::Zstd(3)] {
            let code = compress(&text, wanted, Trial::Untried, &mut scratch);
            assert_ne!(code, RAW);
            assert!(scratch.output.len() < text.len() / 2);
            assert_eq!(decompress(&scratch.output, code, text.len()).unwrap(), text);
            assert!(decompress(&scratch.output, code, text.len() - 1).is_none());
            assert!(decompress(&scratch.output[..scratch.output.len() / 2], code, text.len()).is_none());
            assert_eq!(compress(&noise, wanted, Trial::Untried, &mut scratch), RAW);
            assert_eq!(try_samples(&text, wanted, &mut scratch), Trial::Pays);
            assert_eq!(try_samples(&noise, wanted, &mut scratch), Trial::Vain);
            assert_eq!(compress(&text, wanted, Trial::Pays, &mut scratch), code);
            assert_eq!(compress(&text, wanted, Trial::Vain, &mut scratch), RAW);
        }
        assert_eq!(
            compress(&text, Compression::Off, Trial::Untried, &mut scratch),
            RAW
        );
    }

    #[test]
    fn noise_with_something_regular_in_each_line_of_cache_is_not_compressed_in_vain() {
        // As benchmarks fill their buffers: of each 64 bytes, the first begin with zeroes. LZ4 would save 7 %.
        let mut content = vec![0u8; 16 * 1024];
        blake3::Hasher::new().finalize_xof().fill(&mut content);
        for line in content.chunks_mut(64) {
            line[2..10].fill(0);
        }
        let mut scratch = Scratch::default();
        let length = lz4_into(&content, &mut scratch.output).unwrap();
        let saved = content.len() - length;
        assert!(saved > content.len() / 32 && saved < content.len() / 8, "{saved}");
        assert_eq!(try_samples(&content, Compression::Lz4, &mut scratch), Trial::Vain);
        // What barely pays as a whole is found all the same.
        for line in content.chunks_mut(64) {
            line[10..18].fill(0);
        }
        assert_eq!(
            compress(&content, Compression::Lz4, Trial::Untried, &mut scratch),
            LZ4
        );
    }

    #[test]
    fn what_follows_much_that_compressed_is_not_sampled_until_something_does_not() {
        // Its beginning, middle and end are noise, the rest compresses: samples tell nothing of it.
        let mut hidden = vec![7u8; 64 * 1024];
        let mut noise = vec![0u8; 16 * 1024];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        for (at, noise) in [0, 32 * 1024, 60 * 1024].into_iter().zip(noise.chunks(4096)) {
            hidden[at..at + 4096].copy_from_slice(noise);
        }
        let text = vec![1u8; 64 * 1024];
        let mut scratch = Scratch::default();
        assert_eq!(
            compress(&hidden, Compression::Lz4, Trial::Untried, &mut scratch),
            RAW
        );
        for _ in 0..NO_PROBE_AFTER {
            assert_eq!(
                compress(&text, Compression::Lz4, Trial::Untried, &mut scratch),
                LZ4
            );
        }
        assert_eq!(
            compress(&hidden, Compression::Zstd(1), Trial::Untried, &mut scratch),
            RAW
        );
        for _ in 0..NO_PROBE_AFTER {
            assert_eq!(
                compress(&text, Compression::Lz4, Trial::Untried, &mut scratch),
                LZ4
            );
        }
        assert_eq!(
            compress(&hidden, Compression::Lz4, Trial::Untried, &mut scratch),
            LZ4
        );
        let found = decompress(&scratch.output, LZ4, hidden.len()).unwrap();
        assert_eq!(found, hidden);
        assert_eq!(
            compress(&noise, Compression::Lz4, Trial::Untried, &mut scratch),
            RAW
        );
        assert_eq!(
            compress(&hidden, Compression::Lz4, Trial::Untried, &mut scratch),
            RAW
        );
    }

    #[test]
    fn a_beginning_is_that_of_the_content_and_nothing_of_it_needs_the_end() {
        let text: Vec<u8> = (0..100_000u32)
            .flat_map(|n| (n / 7).to_le_bytes())
            .take(65_536)
            .collect();
        let mut scratch = Scratch::default();
        for wanted in [Compression::Lz4, Compression::Zstd(3)] {
            let code = compress(&text, wanted, Trial::Untried, &mut scratch);
            let stored = &scratch.output[..];
            for until in [1, 4095, 4096, 40_000, text.len()] {
                let beginning = |stored: &[u8]| {
                    with_beginning(stored, code, text.len(), until, |there| {
                        Some(there[..until].to_vec())
                    })
                };
                assert_eq!(beginning(stored).unwrap(), text[..until]);
                // Of LZ4 what is behind it is not looked at; it is never taken for content.
                let cut = beginning(&stored[..stored.len() - 1]);
                assert!(cut.is_none_or(|there| until < text.len() && there == text[..until]));
                assert!(beginning(&[]).is_none());
            }
            let longer = with_beginning(stored, code, text.len(), text.len() + 1, |_| Some(()));
            assert!(longer.is_none());
            // The same memory is used again for what is shorter.
            assert!(with_beginning(&stored[..20], code, text.len(), text.len(), |_| Some(())).is_none());
        }
        assert!(with_beginning(&text, RAW, text.len(), 10, |_| Some(())).is_none());
    }
}
