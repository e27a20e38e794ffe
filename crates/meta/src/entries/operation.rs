//! `Operation`: what a batch does to a key, and how operations on one key fold into one.
//!
//! Invariant: folding is associative, so that any grouping by memtables, runs and merges gives what applying the
//! operations one after another would give.

use bytes::Bytes;
use terrace_codec::Reader;

use crate::Value;

/// A change to one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Sets the value.
    Put(Value),
    /// Removes the key.
    Delete,
    /// Adds to a count without reading it: the value is a signed variable-length integer ([`encode_count`]), a
    /// missing one counts as 0, and so does a value that is not a count. A sum of 0 removes the key. Wraps at 64 bits.
    Add(i64),
}

impl Operation {
    /// What `self` followed by `newer` amounts to.
    pub(crate) fn then(self, newer: Operation) -> Operation {
        let Operation::Add(delta) = newer else {
            return newer;
        };
        match self {
            Operation::Add(base) => Operation::Add(base.wrapping_add(delta)),
            Operation::Delete => Self::from_sum(delta),
            Operation::Put(value) => Self::from_sum(decode_count(&value).unwrap_or(0).wrapping_add(delta)),
        }
    }

    /// A count that stands on nothing older.
    pub(crate) fn from_sum(sum: i64) -> Operation {
        if sum == 0 {
            Operation::Delete
        } else {
            Operation::Put(Value::of_count(sum))
        }
    }

    /// What a reader sees when nothing older exists.
    pub(crate) fn into_value(self) -> Option<Bytes> {
        self.into_set().map(Value::into_bytes)
    }

    /// The same, as it is held.
    pub(crate) fn into_set(self) -> Option<Value> {
        match self {
            Operation::Put(value) => Some(value),
            Operation::Delete | Operation::Add(0) => None,
            Operation::Add(sum) => Some(Value::of_count(sum)),
        }
    }
}

/// An operation whose value lies elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationRef<'a> {
    Put(&'a [u8]),
    Delete,
    Add(i64),
}

impl OperationRef<'_> {
    pub(crate) fn to_owned(self) -> Operation {
        match self {
            OperationRef::Put(value) => Operation::Put(Value::new(value)),
            OperationRef::Delete => Operation::Delete,
            OperationRef::Add(delta) => Operation::Add(delta),
        }
    }
}

impl<'a> From<&'a Operation> for OperationRef<'a> {
    fn from(operation: &'a Operation) -> Self {
        match operation {
            Operation::Put(value) => OperationRef::Put(value),
            Operation::Delete => OperationRef::Delete,
            Operation::Add(delta) => OperationRef::Add(*delta),
        }
    }
}

/// The value that stands for a count.
pub fn encode_count(count: i64) -> Bytes {
    Value::of_count(count).into_bytes()
}

/// The count that a value stands for; `None` if it does not stand for one.
pub fn decode_count(value: &[u8]) -> Option<i64> {
    let mut reader = Reader::new(value);
    let count = reader.signed_varint("count").ok()?;
    reader.finish().ok()?;
    Some(count)
}
