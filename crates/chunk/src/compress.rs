//! Compression of chunk content: LZ4 or Zstandard, only where it pays.
//!
//! Invariants: what decompresses is exactly as long as the record says, or an error; the output buffer is bounded by
//! [`CHUNK_BYTES_MAX`].

use terrace_store::{CHUNK_BYTES_MAX, Compression};

/// Code of content stored as it is.
pub const RAW: u8 = 0;
/// Code of LZ4 block format.
pub const LZ4: u8 = 1;
/// Code of Zstandard.
pub const ZSTD: u8 = 2;

/// How much of a large chunk is tried before all of it is compressed.
const PROBE_BYTES: usize = 4096;
/// Chunks up to this are compressed without a probe.
const PROBE_FROM_BYTES: usize = 32 * 1024;

/// Compresses `content` into `output` (cleared first) if that saves at least an eighth; returns the code of what
/// is to be stored ([`RAW`]: store the content itself).
pub fn compress(content: &[u8], wanted: Compression, output: &mut Vec<u8>) -> u8 {
    if wanted == Compression::Off || content.len() < 64 {
        return RAW;
    }
    // Three small samples tell data that does not compress (media, archives, ciphertext) at 3 % of the cost.
    if content.len() >= PROBE_FROM_BYTES {
        let places = [0, content.len() / 2, content.len() - PROBE_BYTES];
        let promising = places.iter().any(|start| {
            let sample = &content[*start..*start + PROBE_BYTES];
            lz4_into(sample, output).is_some_and(|length| length < PROBE_BYTES - PROBE_BYTES / 16)
        });
        if !promising {
            return RAW;
        }
    }
    let (code, length) = match wanted {
        Compression::Zstd(level) => (ZSTD, zstd_into(content, level, output)),
        _ => (LZ4, lz4_into(content, output)),
    };
    match length {
        Some(length) if length <= content.len() - content.len() / 8 => {
            output.truncate(length);
            code
        }
        _ => RAW,
    }
}

fn lz4_into(content: &[u8], output: &mut Vec<u8>) -> Option<usize> {
    let bound = lz4::block::compress_bound(content.len()).ok()?;
    if output.len() < bound {
        output.resize(bound, 0);
    }
    lz4::block::compress_to_buffer(content, None, false, output).ok()
}

fn zstd_into(content: &[u8], level: u8, output: &mut Vec<u8>) -> Option<usize> {
    let bound = zstd::zstd_safe::compress_bound(content.len());
    if output.len() < bound {
        output.resize(bound, 0);
    }
    zstd::bulk::compress_to_buffer(content, &mut output[..], i32::from(level.clamp(1, 19))).ok()
}

/// Restores content of `length` bytes; `None` if the bytes are not what they should be.
pub fn decompress(stored: &[u8], code: u8, length: usize) -> Option<Vec<u8>> {
    if length > CHUNK_BYTES_MAX {
        return None;
    }
    match code {
        RAW => (stored.len() == length).then(|| stored.to_vec()),
        LZ4 => {
            let mut content = vec![0; length];
            let got =
                lz4::block::decompress_to_buffer(stored, i32::try_from(length).ok(), &mut content).ok()?;
            (got == length).then_some(content)
        }
        ZSTD => {
            let content = zstd::bulk::decompress(stored, length).ok()?;
            (content.len() == length).then_some(content)
        }
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
        let mut output = Vec::new();
        for wanted in [Compression::Lz4, Compression::Zstd(3)] {
            let code = compress(&text, wanted, &mut output);
            assert_ne!(code, RAW);
            assert!(output.len() < text.len() / 2);
            assert_eq!(decompress(&output, code, text.len()).unwrap(), text);
            assert!(decompress(&output, code, text.len() - 1).is_none());
            assert!(decompress(&output[..output.len() / 2], code, text.len()).is_none());
            assert_eq!(compress(&noise, wanted, &mut output), RAW);
        }
        assert_eq!(compress(&text, Compression::Off, &mut output), RAW);
    }
}
