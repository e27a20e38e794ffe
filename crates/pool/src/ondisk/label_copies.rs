//! `LabelCopies`: the label copies of one device, as they are read. How they are written: `labels/label_io.rs`.
//!
//! Invariant: a copy 1 or a copy at the end proves that its update was in force; a copy 0 alone may be of one that never happened.

use terrace_device::{AlignedBuffer, Device};

use super::{
    label::{Label, LabelError},
    layout::{LABEL_BYTES, LABEL_OFFSETS, end_label_offset},
    patient_read::read_patiently,
};
use crate::PoolId;

/// The label copies of one device: 0, 1 and at the end.
#[derive(Debug)]
pub(crate) struct LabelCopies {
    pub(crate) copies: [Result<Label, LabelError>; 3],
}

impl LabelCopies {
    /// Reads what there is; a copy that cannot be read counts as damaged.
    pub(crate) fn read(device: &dyn Device) -> Self {
        let mut buffer = AlignedBuffer::with_capacity(LABEL_BYTES);
        let mut read = |offset: u64| {
            // What is no label at all is the rule where pools are looked for.
            let is_final = |error: &LabelError| matches!(error, LabelError::NotALabel);
            read_patiently(device, offset, &mut buffer, LABEL_BYTES, Label::decode, is_final)
                .unwrap_or_else(|error| Err(LabelError::Unreadable(error.to_string())))
        };
        let size_bytes = device.size_bytes();
        if size_bytes < 2 * LABEL_BYTES as u64 {
            let none = || Err(LabelError::NotALabel);
            return Self {
                copies: [none(), none(), none()],
            };
        }
        let (first, second) = (read(LABEL_OFFSETS[0]), read(LABEL_OFFSETS[1]));
        // The end is where the front says that the device ends: the backing may have grown since.
        let mut ends: Vec<u64> = [&first, &second]
            .into_iter()
            .filter_map(|copy| copy.as_ref().ok()?.own().map(|own| own.size_bytes))
            .filter(|size| *size <= size_bytes)
            .chain([size_bytes])
            .collect();
        ends.dedup();
        let mut last = Err(LabelError::NotALabel);
        for end in ends {
            last = read(end_label_offset(end));
            if last.is_ok() {
                break;
            }
        }
        Self {
            copies: [first, second, last],
        }
    }

    /// The valid label of the highest generation.
    pub(crate) fn newest(&self) -> Option<&Label> {
        self.copies
            .iter()
            .filter_map(|copy| copy.as_ref().ok())
            .max_by_key(|label| label.generation)
    }

    /// The newest label that reached phase two.
    pub(crate) fn confirmed(&self) -> Option<&Label> {
        let copies = self.copies[1..].iter().filter_map(|copy| copy.as_ref().ok());
        copies.max_by_key(|label| label.generation)
    }

    /// The error that says most when there is no valid label.
    pub(crate) fn error(&self) -> LabelError {
        let errors = || self.copies.iter().filter_map(|copy| copy.as_ref().err());
        let telling = errors().find(|error| !matches!(error, LabelError::NotALabel));
        telling
            .or_else(|| errors().next())
            .cloned()
            .unwrap_or(LabelError::NotALabel)
    }

    /// Whether all three copies are intact and of this generation and pool.
    pub(crate) fn are_all(&self, pool: &PoolId, generation: u64) -> bool {
        let agrees = |label: &Label| label.generation == generation && label.pool_id == *pool;
        self.copies.iter().all(|copy| copy.as_ref().is_ok_and(agrees))
    }
}
