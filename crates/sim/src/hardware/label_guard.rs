//! What a machine watches over: no generation is used for two labels of a pool. A device that was away would be taken for one
//! that knows the newest state, or the reverse.
//!
//! What an engine could know of is what lies on its disks when it starts, and what it has written itself since, whatever came of
//! that: any sectors of a write that failed may be there. Labels are read by the pool's own decoder; what they are compared by is
//! all that they say but for the device that carries them.

use std::collections::BTreeMap;

use terrace_pool::{LABEL_BYTES, Label, PoolId};

use super::disk::{Disk, PAGE_BYTES};

/// See the module.
#[derive(Default)]
pub(crate) struct LabelGuard {
    /// On the disks when the session began.
    found: BTreeMap<(PoolId, u64), Label>,
    /// Written, or begun to be, in this session.
    written: BTreeMap<(PoolId, u64), Label>,
}

/// What a label says, whichever device carries it.
fn carried(bytes: &[u8]) -> Option<Label> {
    let label = Label::decode(bytes).ok()?;
    Some(Label { number: 0, ..label })
}

impl LabelGuard {
    /// A session begins with these disks.
    pub(crate) fn begin<'a>(&mut self, disks: impl Iterator<Item = &'a Disk>) {
        self.written.clear();
        self.found.clear();
        for disk in disks {
            let size_bytes = disk.size_bytes();
            for offset in [0, LABEL_BYTES as u64, size_bytes - LABEL_BYTES as u64] {
                let first = (offset / PAGE_BYTES as u64) as usize;
                let pages = (first..first + LABEL_BYTES / PAGE_BYTES).map(|page| disk.current_page(page));
                if let Some(label) = carried(&pages.collect::<Vec<_>>().concat()) {
                    self.found.insert((label.pool_id, label.generation), label);
                }
            }
        }
    }

    /// What is wrong with writing this, if it is a label. `sees_all`: nothing was read wrong in this session.
    pub(crate) fn breach(&mut self, data: &[u8], sees_all: bool) -> Option<String> {
        if data.len() != LABEL_BYTES {
            return None;
        }
        let label = carried(data)?;
        let place = (label.pool_id, label.generation);
        let other = |labels: &BTreeMap<_, Label>| labels.get(&place).is_some_and(|other| *other != label);
        let is_used = other(&self.written) || sees_all && other(&self.found);
        let generation = label.generation;
        self.written.insert(place, label);
        is_used.then(|| format!("generation {generation} is used for two labels"))
    }
}

#[cfg(test)]
mod tests {
    use terrace_pool::{Member, PoolState, Presence, TierSettings};

    use super::*;

    fn label(generation: u64, number: u16, name: &str) -> Vec<u8> {
        let member = |number: u16| Member {
            number,
            id: [number as u8 + 1; 16],
            tier: 0,
            size_bytes: 64 << 20,
            path: format!("/dev/disk{number}"),
            presence: Presence::Whole,
            begun: Vec::new(),
        };
        let label = Label {
            pool_id: [9; 16],
            pool_name: name.into(),
            state: PoolState::Active,
            generation,
            number,
            next_number: 2,
            segment_bytes: 1 << 20,
            created_nanoseconds: 1,
            tiers: vec![TierSettings::named("only")],
            members: vec![member(0), member(1)],
            properties: BTreeMap::new(),
        };
        label.encode().expect("a label").to_vec()
    }

    #[test]
    fn a_generation_is_for_one_label_on_all_devices() {
        let mut guard = LabelGuard::default();
        let mut disk = Disk::new(4 << 20, false);
        disk.write(0, &label(5, 0, "tank"));
        guard.begin([&disk].into_iter());
        assert_eq!(
            guard.breach(&label(5, 1, "tank"), true),
            None,
            "on another device"
        );
        assert_eq!(guard.breach(&label(6, 0, "tank"), true), None);
        assert!(guard.breach(&label(6, 1, "pond"), false).is_some());
        guard.begin([&disk].into_iter());
        assert_eq!(guard.breach(&label(6, 1, "pond"), true), None, "nobody has that");
        assert!(guard.breach(&label(5, 1, "pond"), true).is_some());
        guard.begin([&disk].into_iter());
        assert_eq!(
            guard.breach(&label(5, 1, "pond"), false),
            None,
            "it was read wrong"
        );
    }
}
