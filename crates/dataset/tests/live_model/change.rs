//! What may happen to a filesystem, chosen by proptest: calls of users, commits, snapshots, reopening and crashes.

use proptest::prelude::*;

const MIB: u64 = 1 << 20;

#[derive(Debug, Clone)]
pub(super) enum Change {
    Create {
        dir: usize,
        name: u8,
    },
    MakeDirectory {
        dir: usize,
        name: u8,
    },
    Symlink {
        dir: usize,
        name: u8,
    },
    Link {
        of: usize,
        dir: usize,
        name: u8,
    },
    Unlink {
        dir: usize,
        name: u8,
    },
    RemoveDirectory {
        dir: usize,
        name: u8,
    },
    Rename {
        dir: usize,
        name: u8,
        to: usize,
        new: u8,
        mode: u8,
    },
    Write {
        file: usize,
        at: u64,
        length: usize,
        byte: u8,
    },
    Truncate {
        file: usize,
        size: u64,
    },
    Punch {
        file: usize,
        at: u64,
        length: u64,
        zero: bool,
    },
    Copy {
        from: usize,
        at: u64,
        to: usize,
        onto: u64,
        length: u64,
    },
    Mode {
        of: usize,
        mode: u32,
    },
    SetXattr {
        of: usize,
        name: u8,
        length: usize,
    },
    RemoveXattr {
        of: usize,
        name: u8,
    },
    Open {
        of: usize,
    },
    Release {
        of: usize,
    },
    Commit,
    Tick,
    Snapshot,
    Reopen,
    Crash,
}

fn place() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..20_000u64,
        2 => (0..40u64).prop_map(|block| block * 4096),
        1 => (0..8u64).prop_map(|chunk| chunk * 131_072),
        1 => (MIB - 9000)..(MIB + 9000),
        1 => 0..3 * MIB,
    ]
}

fn extent() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1..5000u64,
        2 => (1..40u64).prop_map(|blocks| blocks * 4096),
        1 => 1..400_000u64,
    ]
}

pub(super) fn change() -> impl Strategy<Value = Change> {
    let which = || any::<usize>();
    let name = || 0..6u8;
    prop_oneof![
        8 => (which(), name()).prop_map(|(dir, name)| Change::Create { dir, name }),
        4 => (which(), name()).prop_map(|(dir, name)| Change::MakeDirectory { dir, name }),
        1 => (which(), name()).prop_map(|(dir, name)| Change::Symlink { dir, name }),
        2 => (which(), which(), name()).prop_map(|(of, dir, name)| Change::Link { of, dir, name }),
        5 => (which(), name()).prop_map(|(dir, name)| Change::Unlink { dir, name }),
        3 => (which(), name()).prop_map(|(dir, name)| Change::RemoveDirectory { dir, name }),
        8 => (which(), name(), which(), name(), 0..6u8)
            .prop_map(|(dir, name, to, new, mode)| Change::Rename { dir, name, to, new, mode }),
        16 => (which(), place(), extent(), any::<u8>())
            .prop_map(|(file, at, length, byte)| Change::Write { file, at, length: length as usize, byte }),
        5 => (which(), prop_oneof![Just(0), place()]).prop_map(|(file, size)| Change::Truncate { file, size }),
        4 => (which(), place(), extent(), any::<bool>())
            .prop_map(|(file, at, length, zero)| Change::Punch { file, at, length, zero }),
        4 => (which(), place(), which(), place(), extent(), any::<bool>()).prop_map(|(from, at, to, onto, length, align)| {
            let round = |value: u64| if align { value / 4096 * 4096 } else { value };
            Change::Copy { from, at: round(at), to, onto: round(onto), length }
        }),
        2 => (which(), 0..0o10000u32).prop_map(|(of, mode)| Change::Mode { of, mode: mode & !0o2000 }),
        3 => (which(), 0..4u8, 0..300usize).prop_map(|(of, name, length)| Change::SetXattr { of, name, length }),
        2 => (which(), 0..4u8).prop_map(|(of, name)| Change::RemoveXattr { of, name }),
        2 => which().prop_map(|of| Change::Open { of }),
        2 => which().prop_map(|of| Change::Release { of }),
        6 => Just(Change::Commit),
        2 => Just(Change::Tick),
        2 => Just(Change::Snapshot),
        1 => Just(Change::Reopen),
        2 => Just(Change::Crash),
    ]
}
