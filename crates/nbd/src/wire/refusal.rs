//! What a client is told of a request that is not done: of its header, and of errors of the export.
//!
//! Invariant: nothing of the storage is told but what the client can act on; the rest is in the log.

use terrace_dataset::{BlockDevice, FsError};

use super::{
    protocol::{
        CMD_BLOCK_STATUS, CMD_CACHE, CMD_FLAG_DF, CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE,
        CMD_FLAG_PAYLOAD_LEN, CMD_FLAG_REQ_ONE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES,
        PAYLOAD_BYTES_MAX, Request, WireError,
    },
    terms::Terms,
};

/// Why a request is not done, for the client.
pub type Refusal = (WireError, String);

/// What is wrong with a request, as far as its header tells.
pub fn refusal(request: &Request, export: &dyn BlockDevice, terms: &Terms) -> Option<Refusal> {
    let mut allowed = match request.command {
        CMD_READ => CMD_FLAG_DF | CMD_FLAG_FUA,
        CMD_WRITE_ZEROES => CMD_FLAG_FUA | CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
        CMD_BLOCK_STATUS => CMD_FLAG_REQ_ONE | CMD_FLAG_FUA,
        _ => CMD_FLAG_FUA,
    };
    if terms.extended && request.command == CMD_WRITE {
        allowed |= CMD_FLAG_PAYLOAD_LEN;
    }
    if request.flags & !allowed != 0 {
        return Some(invalid("a flag that this command does not have"));
    }
    match request.command {
        CMD_FLUSH => return None,
        CMD_READ | CMD_WRITE | CMD_TRIM | CMD_CACHE | CMD_WRITE_ZEROES => {}
        CMD_BLOCK_STATUS if terms.allocation_of.is_some() => {}
        CMD_BLOCK_STATUS => return Some(invalid("no context was agreed on")),
        _ => return Some(invalid("a command that is not known")),
    }
    let size = export.size_bytes();
    let end = request.offset.checked_add(request.length);
    if end.is_none_or(|end| end > size) {
        let cause = if matches!(request.command, CMD_WRITE | CMD_WRITE_ZEROES) {
            WireError::NoSpace
        } else {
            WireError::Invalid
        };
        return Some((
            cause,
            format!("the request ends beyond the export's {size} bytes"),
        ));
    }
    if request.length == 0 {
        return Some(invalid("a request of no length"));
    }
    let changes = matches!(request.command, CMD_WRITE | CMD_TRIM | CMD_WRITE_ZEROES);
    if changes && export.read_only() {
        return Some(words(FsError::ReadOnly));
    }
    if request.command == CMD_READ && request.length > PAYLOAD_BYTES_MAX {
        // Overflow is the answer to reads that may not be split, and to nothing else.
        let cause = match request.flags & CMD_FLAG_DF {
            0 => WireError::Invalid,
            _ => WireError::Overflow,
        };
        return Some((cause, format!("a read of more than {PAYLOAD_BYTES_MAX} bytes")));
    }
    None
}

fn invalid(words: &str) -> (WireError, String) {
    (WireError::Invalid, words.into())
}

/// An error in the protocol's numbers, and in words for clients that take them.
pub fn words(error: FsError) -> Refusal {
    let (cause, words) = match error {
        FsError::NoSpace | FsError::QuotaExceeded => {
            (WireError::NoSpace, "the pool or the volume's quota is full")
        }
        FsError::ReadOnly => (WireError::NotPermitted, "the export is read-only"),
        FsError::Invalid => (WireError::Invalid, "the request lies outside the volume"),
        error => {
            tracing::error!("NBD: a volume failed: {error}");
            let words = "the volume could not be read or written; see 'terrace status'";
            (WireError::Io, words)
        }
    };
    (cause, words.into())
}
