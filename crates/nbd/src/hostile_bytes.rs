//! Request headers, negotiation and transmission of NBD from any bytes: see `fuzzing.rs`. (Whole conversations with hostile
//! clients are in `tests/clients.rs`.)

use terrace_fuzz::fuzz;

use crate::{
    fuzzing,
    wire::{
        CMD_BLOCK_STATUS, CMD_CACHE, CMD_DISCONNECT, CMD_FLAG_FUA, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE,
        CMD_WRITE_ZEROES, EXTENDED_REQUEST_MAGIC, OPT_ABORT, OPT_EXPORT_NAME, OPT_EXTENDED_HEADERS, OPT_GO,
        OPT_INFO, OPT_LIST, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT, OPT_STARTTLS, OPT_STRUCTURED_REPLY,
        OPTION_MAGIC, REQUEST_MAGIC,
    },
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A request of either form, with its payload.
fn request(extended: bool, flags: u16, command: u16, cookie: u64, offset: u64, length: usize) -> Vec<u8> {
    let magic = if extended {
        EXTENDED_REQUEST_MAGIC
    } else {
        REQUEST_MAGIC
    };
    let mut bytes = magic.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    match extended {
        true => bytes.extend_from_slice(&(length as u64).to_be_bytes()),
        false => bytes.extend_from_slice(&(length as u32).to_be_bytes()),
    }
    if command == CMD_WRITE {
        bytes.extend(vec![cookie as u8; length]);
    }
    bytes
}

#[test]
fn request_headers() {
    let samples = [false, true].map(|extended| {
        let whole = request(extended, 1, CMD_WRITE, 7, 8192, 4096);
        whole[..crate::wire::Request::header_bytes(extended)].to_vec()
    });
    fuzz(HERE, "request", samples.to_vec(), None, &mut fuzzing::request);
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn sized(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

#[test]
fn negotiations() {
    let greeted = 3u32.to_be_bytes().to_vec();
    let contexts = [
        sized(b"b/c"),
        1u32.to_be_bytes().to_vec(),
        sized(b"base:allocation"),
    ]
    .concat();
    let asks = [sized(b"a"), [0, 3, 0, 1, 0, 2, 0, 3].to_vec()].concat();
    let conversations = [
        vec![option(OPT_LIST, &[]), option(OPT_ABORT, &[])],
        vec![option(OPT_EXPORT_NAME, b"a")],
        vec![option(OPT_STARTTLS, &[]), option(OPT_GO, &asks)],
        vec![
            option(OPT_STRUCTURED_REPLY, &[]),
            option(OPT_LIST_META_CONTEXT, &contexts),
            option(OPT_SET_META_CONTEXT, &contexts),
            option(OPT_INFO, &asks),
            option(OPT_GO, &asks),
        ],
        vec![
            option(OPT_EXTENDED_HEADERS, &[]),
            option(99, &[1; 40]),
            option(OPT_GO, &asks),
        ],
    ];
    let said = |options: Vec<Vec<u8>>| [greeted.clone(), options.concat()].concat();
    let samples = conversations.map(said).to_vec();
    fuzz(HERE, "negotiation", samples, None, &mut fuzzing::negotiation);
}

#[test]
fn transmissions() {
    let conversation = |form: u8| {
        let extended = form & 2 != 0;
        let requests = [
            (0, CMD_WRITE, 4096),
            (0, CMD_WRITE, 512),
            (0, CMD_READ, 8192),
            (CMD_FLAG_FUA, CMD_WRITE, 4096),
            (CMD_FLAG_FUA, CMD_TRIM, 8192),
            (0, CMD_WRITE_ZEROES, 512),
            (0, CMD_CACHE, 4096),
            (0, CMD_BLOCK_STATUS, 16384),
            (0, 99, 512),
            (0, CMD_FLUSH, 0),
            (0, CMD_READ, 1 << 20),
            (0, CMD_DISCONNECT, 0),
        ];
        let mut said = vec![form];
        for (cookie, (flags, command, length)) in requests.into_iter().enumerate() {
            let offset = cookie as u64 * 512;
            said.extend(request(extended, flags, command, cookie as u64, offset, length));
        }
        said
    };
    let samples = [0, 1, 2, 5, 6].map(conversation).to_vec();
    fuzz(HERE, "transmission", samples, None, &mut fuzzing::transmission);
}
