//! The one harness for parsers of outside bytes: kept inputs, and mutations of them. A test tool of all crates, in none.
//!
//! A crate's `hostile_bytes` tests give each parser samples (from the real encoder) and say what must hold of its answer;
//! the harness adds the files in `corpus/PARSER/` of that crate, runs all of them, and then mutations: bits, bytes, numbers
//! at the edges, cuts, insertions, pieces of other inputs. Inputs behind a sum are sealed again after most mutations, since
//! else nothing but the sum would be tested (structure-aware mutation, as libFuzzer's custom mutators do it).
//! `TERRACE_FUZZ_ITERATIONS` says how many mutations (2000 if it is not set; `make soak` sets it), `TERRACE_FUZZ_SEED`
//! from which seed; with `TERRACE_FUZZ_KEEP=1` the samples are written into the corpus. An input that fails is written to a
//! file whose name is printed: put it into the corpus, so that it is tried ever after.
//! Invariant: the same corpus, seed and number of iterations give the same inputs.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

/// Longest input that mutations make, bytes, if the samples are not longer.
const INPUT_BYTES_MAX: usize = 256 << 10;
const ITERATIONS: u64 = 2000;

/// Puts the right sums into an input.
pub type Seal<'a> = &'a dyn Fn(&mut Vec<u8>);

/// Chance from a seed (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).unwrap_or_default();
    text.parse().unwrap_or(otherwise)
}

/// The corpus of a parser: `corpus/NAME` of the crate at `crate_directory`, ascending by file name.
fn corpus(directory: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| fs::read(path).ok()).collect()
}

/// Runs `parse` over the samples, the corpus and mutations of both. `parse` asserts what must hold of any answer.
///
/// # Panics
/// If `parse` panics for some input, or if there is nothing to start from.
pub fn fuzz(
    crate_directory: &str,
    name: &str,
    samples: Vec<Vec<u8>>,
    seal: Option<Seal<'_>>,
    parse: &mut dyn FnMut(&[u8]),
) {
    let directory = Path::new(crate_directory).join("corpus").join(name);
    if number("TERRACE_FUZZ_KEEP", 0) == 1 {
        let kept = fs::create_dir_all(&directory).and_then(|()| {
            let mut samples = samples.iter().enumerate();
            samples.try_for_each(|(index, bytes)| {
                fs::write(directory.join(format!("sample-{index}.bin")), bytes)
            })
        });
        assert!(kept.is_ok(), "the corpus cannot be written: {kept:?}");
    }
    let mut inputs = samples;
    inputs.extend(corpus(&directory));
    inputs.push(Vec::new());
    assert!(
        inputs.iter().any(|input| !input.is_empty()),
        "{name}: nothing to start from"
    );
    for input in &inputs {
        run(name, input, parse);
    }
    let longest = inputs
        .iter()
        .map(Vec::len)
        .max()
        .unwrap_or(0)
        .max(INPUT_BYTES_MAX);
    let mut chance = Chance(number("TERRACE_FUZZ_SEED", 1));
    for _ in 0..number("TERRACE_FUZZ_ITERATIONS", ITERATIONS) {
        let mut input = inputs[chance.below(inputs.len())].clone();
        for _ in 0..=chance.below(4) {
            mutate(&mut input, &inputs, &mut chance);
        }
        input.truncate(longest);
        if let Some(seal) = seal
            && chance.below(4) > 0
        {
            seal(&mut input);
        }
        run(name, &input, parse);
    }
}

fn run(name: &str, input: &[u8], parse: &mut dyn FnMut(&[u8])) {
    if catch_unwind(AssertUnwindSafe(|| parse(input))).is_ok() {
        return;
    }
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for byte in input {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    let path = std::env::temp_dir().join(format!("terrace-fuzz-{name}-{sum:016x}.bin"));
    let written = fs::write(&path, input);
    panic!(
        "{name} failed; the input is {} ({written:?}): put it into its corpus",
        path.display()
    );
}

/// Numbers at which lengths and counts go wrong.
const EDGES: [u64; 12] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    u64::MAX / 2,
    u64::MAX,
];

fn mutate(input: &mut Vec<u8>, inputs: &[Vec<u8>], chance: &mut Chance) {
    let at = chance.below(input.len());
    match chance.below(8) {
        0 if !input.is_empty() => input[at] ^= 1 << chance.below(8),
        1 if !input.is_empty() => input[at] = chance.next() as u8,
        2 => input.truncate(at),
        3 => {
            // A number at an edge, in either byte order and any width.
            let width = [1, 2, 4, 8][chance.below(4)];
            let edge = EDGES[chance.below(EDGES.len())].to_le_bytes();
            let big = chance.below(2) == 1;
            for index in 0..width {
                let byte = if big { edge[width - 1 - index] } else { edge[index] };
                if let Some(place) = input.get_mut(at + index) {
                    *place = byte;
                }
            }
        }
        4 => {
            let more: Vec<u8> = (0..=chance.below(16)).map(|_| chance.next() as u8).collect();
            input.splice(at..at, more);
        }
        5 if !input.is_empty() => {
            let end = (at + 1 + chance.below(32)).min(input.len());
            input.drain(at..end);
        }
        6 => {
            let other = &inputs[chance.below(inputs.len())];
            let from = chance.below(other.len());
            let end = (from + 1 + chance.below(256)).min(other.len());
            if let Some(piece) = other.get(from..end) {
                let end = (at + piece.len()).min(input.len());
                input.splice(at.min(end)..end, piece.iter().copied());
            }
        }
        _ if !input.is_empty() => {
            // A varint that goes on and on.
            let end = (at + 1 + chance.below(11)).min(input.len());
            input[at..end].fill(0xff);
        }
        _ => input.push(chance.next() as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_planted_fault_and_keeps_the_input() {
        let mut seen = 0;
        let found = catch_unwind(AssertUnwindSafe(|| {
            fuzz(
                "/nonexistent",
                "planted",
                vec![vec![1, 2, 3, 4]],
                None,
                &mut |bytes| {
                    seen += 1;
                    assert!(bytes.first() != Some(&0xff), "a fault");
                },
            );
        }));
        let message = found.expect_err("the fault is found");
        let message = message.downcast_ref::<String>().expect("a message");
        let path = message
            .split("the input is ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let path = PathBuf::from(path.expect("names the input"));
        assert_eq!(fs::read(&path).expect("kept").first(), Some(&0xff));
        fs::remove_file(path).expect("removed");
        assert!(seen > 2);
    }

    #[test]
    fn most_inputs_behind_a_sum_pass_it() {
        let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        let seal = |bytes: &mut Vec<u8>| {
            if let Some((last, rest)) = bytes.split_last_mut() {
                *last = sum(rest);
            }
        };
        let mut sample = vec![5, 6, 7, 0];
        seal(&mut sample);
        let (mut right, mut all) = (0, 0);
        fuzz(
            "/nonexistent",
            "sealed",
            vec![sample],
            Some(&seal),
            &mut |bytes| {
                all += 1;
                right += u32::from(bytes.split_last().is_some_and(|(last, rest)| *last == sum(rest)));
            },
        );
        assert!(right * 2 > all, "{right} of {all}");
    }
}
