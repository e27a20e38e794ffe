//! `Manifests`: the manifest made last, and what it left behind.
//!
//! Invariants: one manifest is made at a time; an extent that was replaced is handed out only when a manifest was made that does not
//! name it; who asks what there is does not wait for devices.

use std::mem;

use bytes::Bytes;
use terrace_sync::{Mutex, rank};
use xxhash_rust::xxh3::xxh3_64;

use super::table_store::TableStore;
use crate::{
    Extent, MetaError,
    runs::{Manifest, Piece, manifest},
    state::Current,
    table::TableReader,
};

/// What the last manifest left behind.
#[derive(Default)]
struct Described {
    /// The extents that hold the last manifest's body.
    pieces: Vec<Piece>,
    /// Replaced before a manifest that is not yet finished.
    waiting: Vec<Extent>,
    /// Not named by the last manifest.
    ready: Vec<Extent>,
    /// It holds everything up to here.
    sequence: u64,
}

/// See the module.
pub(super) struct Manifests {
    /// Held while a manifest is made, across its I/O; taken before `described`.
    describing: Mutex<(), rank::meta::Describing>,
    described: Mutex<Described, rank::meta::Described>,
}

/// The body of a manifest, and the pieces that it was read from, if it was not in the manifest itself.
pub(crate) fn read_manifest(reader: &TableReader, bytes: &[u8]) -> Result<(Bytes, Vec<Piece>), MetaError> {
    match manifest::decode(bytes)? {
        Manifest::Body(body) => Ok((body, Vec::new())),
        Manifest::Pieces(pieces) => {
            let mut body = Vec::new();
            for Piece { extent, sum } in &pieces {
                body.extend_from_slice(&reader.verified(*extent, 0, extent.bytes, *sum)?);
            }
            Ok((Bytes::from(body), pieces))
        }
    }
}

impl Manifests {
    /// The last one lies in these pieces.
    pub(super) fn new(pieces: Vec<Piece>) -> Self {
        Self {
            describing: Mutex::new(()),
            described: Mutex::new(Described {
                pieces,
                ..Described::default()
            }),
        }
    }

    /// Describes all tables and the sequence up to which they hold everything, in at most 48 KiB (what is larger goes
    /// into extents of its own). Syncs the storage: all that the manifest names is durable when this returns.
    pub(super) fn make(&self, store: &TableStore, current: &Current) -> Result<Vec<u8>, MetaError> {
        let _describing = self.describing.lock();
        // First the replaced extents, then the state: none of them can be in it. Who asks what there is does not wait for devices.
        self.described.lock().waiting.append(&mut store.take_released());
        let state = current.now();
        let body = manifest::encode_body(&state.version, store.next_number());
        let storage = store.reader.storage();
        let mut pieces = Vec::new();
        let written = if manifest::fits_inline(&body) {
            Ok(())
        } else {
            manifest::pieces_of(&body).try_for_each(|piece| {
                let sum = xxh3_64(piece);
                pieces.push(Piece {
                    extent: storage.write(piece)?,
                    sum,
                });
                Ok(())
            })
        };
        if let Err(cause) = written.and_then(|()| storage.sync()) {
            let mut described = self.described.lock();
            described.waiting.extend(pieces.iter().map(|piece| piece.extent));
            return Err(MetaError::Storage {
                action: "writing the metadata manifest".into(),
                cause,
            });
        }
        let bytes = if pieces.is_empty() {
            manifest::encode_inline(&body)
        } else {
            manifest::encode_pieces(&pieces)
        };
        let mut described = self.described.lock();
        let described = &mut *described;
        described.ready.append(&mut described.waiting);
        described
            .ready
            .extend(described.pieces.iter().map(|piece| piece.extent));
        described.pieces = pieces;
        described.sequence = state.version.flushed_sequence;
        Ok(bytes)
    }

    /// The sequence up to which the manifest made last holds everything.
    pub(super) fn sequence(&self) -> u64 {
        self.described.lock().sequence
    }

    /// The extents that hold the last manifest's body, with their sums.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        self.described.lock().pieces.clone()
    }

    /// Extents that the manifest made last does not name.
    pub(super) fn ready(&self) -> Vec<Extent> {
        self.described.lock().ready.clone()
    }

    pub(super) fn take_ready(&self) -> Vec<Extent> {
        mem::take(&mut self.described.lock().ready)
    }

    /// The same, and those that wait for a manifest.
    pub(super) fn replaced(&self) -> Vec<Extent> {
        let described = self.described.lock();
        [&described.waiting[..], &described.ready].concat()
    }
}
