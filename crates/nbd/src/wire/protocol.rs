//! Numbers of the NBD protocol, and the header of a request.
//!
//! Invariant: nothing here trusts a length; [`Request::parse`] only takes fields apart.

pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub const FLAG_NO_ZEROES: u16 = 2;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_STARTTLS: u32 = 5;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_LIST_META_CONTEXT: u32 = 9;
pub const OPT_SET_META_CONTEXT: u32 = 10;
pub const OPT_EXTENDED_HEADERS: u32 = 11;

pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_META_CONTEXT: u32 = 4;
pub const REP_ERR_UNSUP: u32 = 0x8000_0001;
pub const REP_ERR_INVALID: u32 = 0x8000_0003;
pub const REP_ERR_TLS_REQD: u32 = 0x8000_0005;
pub const REP_ERR_UNKNOWN: u32 = 0x8000_0006;
pub const REP_ERR_TOO_BIG: u32 = 0x8000_0009;

pub const INFO_EXPORT: u16 = 0;
pub const INFO_NAME: u16 = 1;
pub const INFO_DESCRIPTION: u16 = 2;
pub const INFO_BLOCK_SIZE: u16 = 3;

pub const EXPORT_HAS_FLAGS: u16 = 1;
pub const EXPORT_READ_ONLY: u16 = 1 << 1;
pub const EXPORT_SEND_FLUSH: u16 = 1 << 2;
pub const EXPORT_SEND_FUA: u16 = 1 << 3;
pub const EXPORT_SEND_TRIM: u16 = 1 << 5;
pub const EXPORT_SEND_WRITE_ZEROES: u16 = 1 << 6;
pub const EXPORT_SEND_DF: u16 = 1 << 7;
pub const EXPORT_CAN_MULTI_CONN: u16 = 1 << 8;
pub const EXPORT_SEND_CACHE: u16 = 1 << 10;
pub const EXPORT_SEND_FAST_ZERO: u16 = 1 << 11;

pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISCONNECT: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_TRIM: u16 = 4;
pub const CMD_CACHE: u16 = 5;
pub const CMD_WRITE_ZEROES: u16 = 6;
pub const CMD_BLOCK_STATUS: u16 = 7;

/// What a command is called.
pub fn command_name(command: u32) -> &'static str {
    let names = [
        "READ",
        "WRITE",
        "DISCONNECT",
        "FLUSH",
        "TRIM",
        "CACHE",
        "WRITE_ZEROES",
        "BLOCK_STATUS",
    ];
    names.get(command as usize).copied().unwrap_or("unknown")
}

pub const CMD_FLAG_FUA: u16 = 1;
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub const CMD_FLAG_DF: u16 = 1 << 2;
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;
pub const CMD_FLAG_PAYLOAD_LEN: u16 = 1 << 5;

pub const REPLY_FLAG_DONE: u16 = 1;
pub const REPLY_NONE: u16 = 0;
pub const REPLY_OFFSET_DATA: u16 = 1;
pub const REPLY_BLOCK_STATUS: u16 = 5;
pub const REPLY_BLOCK_STATUS_EXTENDED: u16 = 6;
pub const REPLY_ERROR: u16 = 0x8001;

pub const STATE_HOLE: u32 = 1;
pub const STATE_ZERO: u32 = 2;

/// Most bytes that one read or write may carry.
pub const PAYLOAD_BYTES_MAX: u64 = 32 << 20;
/// Longer reads and writes are served in pieces of this size.
pub const PIECE_BYTES: usize = 1 << 20;
/// Most bytes of data that an option may carry.
pub const OPTION_BYTES_MAX: u32 = 16 << 10;
/// The context that block status is told of.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";
/// Its number in replies.
pub const ALLOCATION_CONTEXT_ID: u32 = 1;

/// Errors as the protocol numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum WireError {
    NotPermitted = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    Overflow = 75,
}

/// The header of a request, whichever of its two forms it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u64,
}

impl Request {
    /// Length of the header, bytes.
    pub const fn header_bytes(extended: bool) -> usize {
        if extended { 32 } else { 28 }
    }

    /// Takes a header apart; `None` if it does not start with the magic of its form.
    pub fn parse(extended: bool, header: &[u8]) -> Option<Self> {
        let u16_at = |at: usize| Some(u16::from_be_bytes(header.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_be_bytes(header.get(at..at + 8)?.try_into().ok()?));
        let magic = if extended {
            EXTENDED_REQUEST_MAGIC
        } else {
            REQUEST_MAGIC
        };
        if u32_at(0)? != magic {
            return None;
        }
        Some(Self {
            flags: u16_at(4)?,
            command: u16_at(6)?,
            cookie: u64_at(8)?,
            offset: u64_at(16)?,
            length: if extended {
                u64_at(24)?
            } else {
                u64::from(u32_at(24)?)
            },
        })
    }

    /// Bytes of payload that follow the header on the wire.
    pub fn payload_bytes(&self, extended: bool) -> u64 {
        if self.command == CMD_WRITE || (extended && self.flags & CMD_FLAG_PAYLOAD_LEN != 0) {
            self.length
        } else {
            0
        }
    }
}
