//! The wire: requests, replies and refusals in bytes.

mod protocol;
mod refusal;
pub(crate) mod reply;
mod terms;

#[cfg(test)]
pub(crate) use protocol::CMD_BLOCK_STATUS;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use protocol::EXTENDED_REPLY_MAGIC;
#[cfg(test)]
pub(crate) use protocol::EXTENDED_REQUEST_MAGIC;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use protocol::REPLY_FLAG_DONE;
#[cfg(test)]
pub(crate) use protocol::REQUEST_MAGIC;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use protocol::SIMPLE_REPLY_MAGIC;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use protocol::STRUCTURED_REPLY_MAGIC;
pub(crate) use protocol::{
    ALLOCATION_CONTEXT, ALLOCATION_CONTEXT_ID, CMD_CACHE, CMD_DISCONNECT, CMD_FLAG_DF, CMD_FLAG_FUA,
    CMD_FLAG_PAYLOAD_LEN, CMD_FLAG_REQ_ONE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES,
    EXPORT_CAN_MULTI_CONN, EXPORT_HAS_FLAGS, EXPORT_READ_ONLY, EXPORT_SEND_CACHE, EXPORT_SEND_DF,
    EXPORT_SEND_FAST_ZERO, EXPORT_SEND_FLUSH, EXPORT_SEND_FUA, EXPORT_SEND_TRIM, EXPORT_SEND_WRITE_ZEROES,
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT, INFO_NAME,
    NBD_MAGIC, OPT_ABORT, OPT_EXPORT_NAME, OPT_EXTENDED_HEADERS, OPT_GO, OPT_INFO, OPT_LIST,
    OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT, OPT_STARTTLS, OPT_STRUCTURED_REPLY, OPTION_BYTES_MAX,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, PAYLOAD_BYTES_MAX, PIECE_BYTES, REP_ACK, REP_ERR_INVALID,
    REP_ERR_TLS_REQD, REP_ERR_TOO_BIG, REP_ERR_UNKNOWN, REP_ERR_UNSUP, REP_INFO, REP_META_CONTEXT,
    REP_SERVER, Request, WireError, command_name,
};
pub(crate) use refusal::{Refusal, refusal, words};
pub(crate) use reply::write_all_parts;
pub(crate) use terms::Terms;
