//! What metadata was written and is not known to be durable yet; of what one device has alone, the content too, so that it does
//! not go with that device: what it took the place of in memory is gone already, and the log is read at openings only.
//!
//! Invariants: an extent is in here from its write on until a flush that began after the write has covered a copy of it, or it was
//! released; what is kept in memory is bounded; an extent that was given up stays readable until it is released.

use std::collections::BTreeMap;

use bytes::Bytes;
use terrace_meta::Extent;

/// Content in memory from which on it is made durable at once, bytes.
pub(crate) const KEPT_BYTES_FLUSHED: usize = 8 << 20;
/// Content in memory at most, bytes: beyond that nothing is kept, as flushing has failed.
const KEPT_BYTES_MAX: usize = 4 * KEPT_BYTES_FLUSHED;

/// One extent of these.
struct Written {
    /// No manifest may name it before it is durable; the others are flushed if they can be.
    is_needed: bool,
    /// The devices that took it: a flush of another one covers nothing of it.
    devices: Vec<u16>,
    content: Option<Bytes>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Unflushed {
    extents: BTreeMap<Extent, Written>,
    kept_bytes: usize,
}

impl Unflushed {
    /// Something was written, to these devices; `content`: what it is if only one has it.
    pub(crate) fn add(&mut self, extent: Extent, is_needed: bool, devices: Vec<u16>, content: Option<&[u8]>) {
        self.remove(extent);
        let fits = |content: &&[u8]| self.kept_bytes + content.len() <= KEPT_BYTES_MAX;
        let content = content.filter(fits).map(Bytes::copy_from_slice);
        self.kept_bytes += content.as_ref().map_or(0, Bytes::len);
        let written = Written {
            is_needed,
            devices,
            content,
        };
        self.extents.insert(extent, written);
    }

    /// All that lies from `from` on and before `to` was copied from these devices to another one, and flushed there.
    pub(crate) fn copied(&mut self, from: Extent, to: Extent, sources: &[u16], device: u16) {
        for (_, written) in self.extents.range_mut(from..to) {
            if sources.iter().all(|source| written.devices.contains(source)) {
                written.devices.push(device);
            }
        }
    }

    /// It is durable, or was released.
    pub(crate) fn remove(&mut self, extent: Extent) {
        let content = self.extents.remove(&extent).and_then(|written| written.content);
        self.kept_bytes -= content.map_or(0, |content| content.len());
    }

    /// Each, whether it is needed, and the devices that took it.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Extent, bool, &[u16])> + '_ {
        let all = self.extents.iter();
        all.map(|(extent, written)| (*extent, written.is_needed, &written.devices[..]))
    }

    /// The devices that took it; none if it does not wait for a flush.
    pub(crate) fn devices(&self, extent: Extent) -> &[u16] {
        self.extents.get(&extent).map_or(&[], |written| &written.devices)
    }

    /// Whether it waits for a flush that covers it.
    pub(crate) fn is_needed(&self, extent: Extent) -> bool {
        self.extents.get(&extent).is_some_and(|written| written.is_needed)
    }

    /// The content, if one device had it alone.
    pub(crate) fn content(&self, extent: Extent) -> Option<&Bytes> {
        self.extents.get(&extent)?.content.as_ref()
    }

    /// It was written elsewhere: who still reads it here can, and nothing waits for it.
    pub(crate) fn give_up(&mut self, extent: Extent) {
        if let Some(written) = self.extents.get_mut(&extent) {
            written.is_needed = false;
        }
    }

    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_counted_and_bounded() {
        let extent = |number: u64| Extent {
            location: number << 32,
            bytes: KEPT_BYTES_FLUSHED as u32,
        };
        let content = vec![1; KEPT_BYTES_FLUSHED];
        let mut unflushed = Unflushed::default();
        (0..6).for_each(|number| unflushed.add(extent(number), true, vec![0], Some(&content)));
        assert_eq!(unflushed.kept_bytes(), KEPT_BYTES_MAX);
        assert!(unflushed.content(extent(3)).is_some() && unflushed.content(extent(4)).is_none());
        unflushed.give_up(extent(3));
        assert_eq!(unflushed.all().filter(|(_, is_needed, _)| *is_needed).count(), 5);
        // Written anew at the same place, and gone.
        unflushed.add(extent(0), true, vec![0, 1], None);
        (1..7).for_each(|number| unflushed.remove(extent(number)));
        assert_eq!((unflushed.kept_bytes(), unflushed.all().count()), (0, 1));
    }
}
