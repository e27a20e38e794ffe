//! Region records against an array of 256 blocks.

#![allow(clippy::unwrap_used)]

use proptest::{prelude::*, test_runner::RngSeed};
use terrace_dataset::{CHUNK_BLOCKS, REGION_BLOCKS, RegionRecord};
use terrace_store::ChunkId;

type Model = Vec<Option<(u64, u32)>>;

#[derive(Debug, Clone)]
enum Change {
    Overwrite {
        block: u32,
        count: u32,
        chunk: u64,
        index: u32,
    },
    Punch {
        from: u32,
        to: u32,
    },
    Truncate {
        block: u32,
    },
    Split {
        block: u32,
    },
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (0..REGION_BLOCKS, 1..40u32, 1..6u64, 0..CHUNK_BLOCKS)
            .prop_map(|(block, count, chunk, index)| Change::Overwrite { block, count, chunk, index }),
        2 => (0..REGION_BLOCKS, 0..=REGION_BLOCKS + 3).prop_map(|(from, to)| Change::Punch { from, to }),
        1 => (0..=REGION_BLOCKS).prop_map(|block| Change::Truncate { block }),
        1 => (0..=REGION_BLOCKS).prop_map(|block| Change::Split { block }),
    ]
}

fn apply(record: &mut RegionRecord, model: &mut Model, change: &Change) {
    match *change {
        Change::Overwrite {
            block,
            count,
            chunk,
            index,
        } => {
            record.overwrite(block, count, ChunkId(chunk), index);
            for step in 0..count {
                if block + step < REGION_BLOCKS && index + step < CHUNK_BLOCKS {
                    model[(block + step) as usize] = Some((chunk, index + step));
                }
            }
        }
        Change::Punch { from, to } => {
            record.punch(from, to);
            (from..to.min(REGION_BLOCKS)).for_each(|block| model[block as usize] = None);
        }
        Change::Truncate { block } => {
            record.truncate(block);
            (block..REGION_BLOCKS).for_each(|block| model[block as usize] = None);
        }
        Change::Split { block } => {
            let tail = record.split(block);
            for at in 0..REGION_BLOCKS {
                let expected = if at >= block { model[at as usize] } else { None };
                assert_eq!(tail.lookup(at).map(|(chunk, index)| (chunk.0, index)), expected);
            }
            (block..REGION_BLOCKS).for_each(|block| model[block as usize] = None);
        }
    }
}

fn compare(record: &RegionRecord, model: &Model) {
    for block in 0..REGION_BLOCKS {
        let found = record.lookup(block).map(|(chunk, index)| (chunk.0, index));
        assert_eq!(found, model[block as usize], "block {block} of {record:?}");
        let hole = (block..REGION_BLOCKS).find(|at| model[*at as usize].is_none());
        assert_eq!(record.next_hole(block), hole);
        let mapped = (block..REGION_BLOCKS).find(|at| model[*at as usize].is_some());
        assert_eq!(record.next_mapped(block), mapped);
    }
    assert_eq!(record.mapped_blocks() as usize, model.iter().flatten().count());
    let runs = record.runs();
    for pair in runs.windows(2) {
        assert!(pair[0].end() <= pair[1].block);
        let continues = pair[0].end() == pair[1].block
            && pair[0].chunk == pair[1].chunk
            && pair[0].index + pair[0].count == pair[1].index;
        assert!(!continues, "neighbours are not joined: {record:?}");
    }
    let decoded = RegionRecord::decode(&record.encode()).unwrap();
    assert_eq!(&decoded, record);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, rng_seed: RngSeed::Fixed(2026), ..ProptestConfig::default() })]

    #[test]
    fn changes_equal_those_of_an_array(changes in proptest::collection::vec(change(), 1..40)) {
        let mut record = RegionRecord::new();
        let mut model: Model = vec![None; REGION_BLOCKS as usize];
        for change in &changes {
            let (old, old_model) = (record.clone(), model.clone());
            apply(&mut record, &mut model, change);
            compare(&record, &model);
            let difference = RegionRecord::difference(&old, &record);
            for chunk in 1..6 {
                let count = |model: &Model| model.iter().flatten().filter(|(at, _)| *at == chunk).count() as i64;
                let expected = count(&model) - count(&old_model);
                prop_assert_eq!(difference.get(&ChunkId(chunk)).copied().unwrap_or(0), expected);
            }
        }
        let parts: Vec<_> = record.range(10, 100).collect();
        for part in &parts {
            prop_assert!(part.block >= 10 && part.end() <= 100);
            prop_assert_eq!(record.lookup(part.block), Some((part.chunk, part.index)));
        }
        let mapped = model[10..100].iter().flatten().count() as u32;
        prop_assert_eq!(parts.iter().map(|part| part.count).sum::<u32>(), mapped);
    }

    #[test]
    fn hostile_bytes_are_refused_or_valid(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(record) = RegionRecord::decode(&bytes) {
            for run in record.runs() {
                prop_assert!(run.count > 0 && run.end() <= REGION_BLOCKS && run.index + run.count <= CHUNK_BLOCKS);
                prop_assert!(run.chunk.0 != 0);
            }
        }
    }

    #[test]
    fn damaged_records_never_panic(changes in proptest::collection::vec(change(), 1..10), at: usize, bits: u8) {
        let mut record = RegionRecord::new();
        let mut model: Model = vec![None; REGION_BLOCKS as usize];
        changes.iter().for_each(|change| apply(&mut record, &mut model, change));
        let mut bytes = record.encode();
        let at = at % bytes.len();
        bytes[at] ^= bits;
        let _ = RegionRecord::decode(&bytes);
        let _ = RegionRecord::decode(&bytes[..at]);
    }
}

#[test]
fn sequential_data_takes_a_few_runs() {
    let mut record = RegionRecord::new();
    for chunk in 0..8 {
        record.overwrite(chunk * 32, 32, ChunkId(1000 + u64::from(chunk)), 0);
    }
    assert_eq!(record.runs().len(), 8);
    assert!(record.encode().len() < 48, "{} bytes", record.encode().len());
    record.overwrite(5, 1, ChunkId(77), 3);
    assert_eq!(record.runs().len(), 10);
}
