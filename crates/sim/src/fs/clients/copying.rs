//! Copies by `copy_range`, within and beside what is shared, and changes of what was copied before it is committed.
//!
//! What must hold: a copy is made in pieces, from its start to its end, none of which is longer than what is left of a
//! region (or 256 KiB where bytes are copied); a commit may come between two of them, as it does when room is short.

use std::collections::BTreeSet;

use terrace_dataset::{AllocateMode, Context};

use super::{
    call::{Change, Client, Done},
    file_data::{caller, stripped, strips},
    workload::{Chosen, FileCall},
};
use crate::{fs::models::TreeModel, violation::Check};

const BLOCK_BYTES: u64 = 4096;
const REGION_BYTES: u64 = 1 << 20;
const PIECE_BYTES: u64 = 256 << 10;

/// Bytes after which a commit may come in a copy of `length` bytes, whether its pieces are shared or copied.
fn cuts(from: u64, to: u64, length: u64) -> BTreeSet<u64> {
    let mut cuts = BTreeSet::new();
    let mut next = vec![0];
    while let Some(done) = next.pop() {
        let (at, onto) = (from + done, to + done);
        let reach = (REGION_BYTES - at % REGION_BYTES)
            .min(REGION_BYTES - onto % REGION_BYTES)
            .min(length - done);
        let aligned = at.is_multiple_of(BLOCK_BYTES) && onto.is_multiple_of(BLOCK_BYTES);
        let shared = if aligned {
            reach / BLOCK_BYTES * BLOCK_BYTES
        } else {
            0
        };
        for piece in [reach.min(PIECE_BYTES), shared, reach] {
            if piece > 0
                && (aligned || piece <= PIECE_BYTES)
                && done + piece < length
                && cuts.insert(done + piece)
            {
                next.push(done + piece);
            }
        }
    }
    cuts
}

/// What a crash may find of a copy of `data`, which lies at `from` in its source, to `offset` of an object of the tree.
pub(crate) fn copied_in_part(
    tree: &TreeModel,
    (from, object): (u64, u64),
    offset: u64,
    data: &[u8],
) -> Vec<TreeModel> {
    let cuts = cuts(from, offset, data.len() as u64);
    let parts = cuts.into_iter().filter_map(|cut| {
        let mut part = tree.clone();
        part.write(object, offset, &data[..cut as usize]).ok()?;
        Some(part)
    });
    parts.collect()
}

/// A range of a file is copied to another one.
pub(crate) struct CopyRange;

impl FileCall for CopyRange {
    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check {
        let Some(from) = chosen.file else {
            return Ok(());
        };
        let to = *client.random().clone().pick(&chosen.files);
        if from == to {
            return Ok(());
        }
        let (size, target_size) = (client.size_of(from), client.size_of(to));
        if size == 0 {
            return Ok(());
        }
        let aligned = client.random().chance(2, 3);
        let mut from_offset = client.random().below(size);
        let mut to_offset = client.random().below(1 << 20);
        if aligned {
            from_offset = from_offset / 4096 * 4096;
            to_offset = to_offset / 4096 * 4096;
        }
        let mut length = client.random().between(1, size).min(300_000);
        if client.aside().chance(1, 3) {
            // Up to the end of the source, into the middle of the target; what is committed can be shared.
            (from_offset, to_offset) = (
                from_offset / 4096 * 4096,
                client.aside().below(target_size / 4096 + 1) * 4096,
            );
            length = (size - from_offset).min(300_000);
        }
        if client.aside().chance(1, 3)
            && let Err(error) = client.commit()
        {
            return client.world.after_error("commit", &error);
        }
        let words = format!("copy {length} bytes from {from_offset} of {from} to {to_offset} of {to}");
        client.call(&words, |fs, tree| {
            let strips = strips(to_offset + length);
            let result = fs.copy_range(&caller(strips), from, from_offset, to, to_offset, length);
            let data = tree
                .file(from)
                .map(|file| file.read(from_offset, length as usize))
                .unwrap_or_default();
            let copied = result.as_ref().map_or(data.len() as u64, |copied| *copied);
            if copied > data.len() as u64 || (copied == 0 && !data.is_empty()) {
                return Done::wrong(format!("{copied} of {} bytes copied", data.len()));
            }
            let data = &data[..copied as usize];
            let mut pieces = copied_in_part(tree, (from_offset, to), to_offset, data);
            for piece in &mut pieces {
                if let Err(refused) = stripped(piece, to, strips) {
                    return Done::wrong(refused.to_string());
                }
            }
            let model = tree.write(to, to_offset, data);
            let model = model.and_then(|()| stripped(tree, to, strips));
            let done = Done::of(result, model, vec![from, to]).by_way_of(pieces);
            done.stamping(&[(to, Change::Content)])
        })?;
        let choice = client.aside().below(6);
        let offset = to_offset + client.aside().clone().below(length);
        match choice {
            0 => Self::punch_copied(client, to, offset),
            1 => Self::write_copied(client, to, offset),
            _ => Ok(()),
        }
    }
}

impl CopyRange {
    /// A hole in what was copied just before, and is not committed.
    fn punch_copied(client: &mut Client<'_>, object: u64, offset: u64) -> Check {
        let length = client.aside().between(1, 20_000);
        let words = format!("punch {length} bytes at {offset} out of what was copied to {object}");
        client.call(&words, |fs, tree| {
            let result = fs.allocate(&Context::root(), object, AllocateMode::Punch, offset, length);
            Done::of(result, tree.punch(object, offset, length), vec![object])
        })
    }

    /// The same with something else in the place of it.
    fn write_copied(client: &mut Client<'_>, object: u64, offset: u64) -> Check {
        let data = vec![0x5B; client.aside().between(1, 20_000) as usize];
        let words = format!(
            "write {} bytes at {offset} of {object} over what was copied",
            data.len()
        );
        client.call(&words, |fs, tree| {
            let result = fs.write(&Context::root(), object, offset, &data, false);
            let written = result.as_ref().map_or(data.len(), |written| *written);
            Done::of(result, tree.write(object, offset, &data[..written]), vec![object])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_cut_where_regions_end_and_where_its_pieces_do() {
        let cuts = |from, to, length| cuts(from, to, length).into_iter().collect::<Vec<_>>();
        assert_eq!(cuts(0, 0, 4096), []);
        assert_eq!(cuts(824_308, 858_667, 300_000), [189_909, 224_268]);
        assert_eq!(cuts(0, 1 << 20, 300_000), [262_144, 299_008]);
    }
}
