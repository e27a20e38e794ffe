//! Negotiation: from the greeting to the export that is transmitted.
//!
//! With TLS configured it is demanded (the text's FORCEDTLS): until it is there every other option is refused, and
//! nothing that was agreed on before counts after it.
//!
//! Invariants: an option's data is read only if it is at most [`OPTION_BYTES_MAX`] long (a longer one is skipped
//! in bounded steps, up to a limit, and refused); at most [`OPTIONS_MAX`] options are answered on one connection.

use std::{
    io::{self, Read, Write},
    sync::Arc,
};

use terrace_dataset::BlockDevice;

use crate::wire::{
    ALLOCATION_CONTEXT, ALLOCATION_CONTEXT_ID, EXPORT_CAN_MULTI_CONN, EXPORT_HAS_FLAGS, EXPORT_READ_ONLY,
    EXPORT_SEND_CACHE, EXPORT_SEND_DF, EXPORT_SEND_FAST_ZERO, EXPORT_SEND_FLUSH, EXPORT_SEND_FUA,
    EXPORT_SEND_TRIM, EXPORT_SEND_WRITE_ZEROES, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, INFO_BLOCK_SIZE,
    INFO_DESCRIPTION, INFO_EXPORT, INFO_NAME, NBD_MAGIC, OPT_ABORT, OPT_EXPORT_NAME, OPT_EXTENDED_HEADERS,
    OPT_GO, OPT_INFO, OPT_LIST, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT, OPT_STARTTLS,
    OPT_STRUCTURED_REPLY, OPTION_BYTES_MAX, OPTION_MAGIC, OPTION_REPLY_MAGIC, PAYLOAD_BYTES_MAX, REP_ACK,
    REP_ERR_INVALID, REP_ERR_TLS_REQD, REP_ERR_TOO_BIG, REP_ERR_UNKNOWN, REP_ERR_UNSUP, REP_INFO,
    REP_META_CONTEXT, REP_SERVER, Terms,
};

/// Most options on one connection; a client that has not chosen an export by then is let go.
const OPTIONS_MAX: usize = 1024;
/// Longest option that is skipped instead of ending the connection.
const OPTION_SKIP_MAX: u32 = 1 << 20;

/// Exports by name, as the server knows them at this moment.
pub trait Exports {
    /// Names in order.
    fn names(&self) -> Vec<String>;
    /// The export of that name, and its own name; the empty name is the only export, if there is one alone.
    fn find(&self, name: &str) -> Option<(String, Arc<dyn BlockDevice>)>;
    /// The same, and from now on it is this client's: asked before the client is told, since it counts on it from then on.
    fn choose(&self, name: &str) -> Option<(String, Arc<dyn BlockDevice>)>;
}

/// Whether what is said can be read by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// In the clear, for good.
    Plain,
    /// In the clear, and only to begin TLS.
    TlsWanted,
    /// In TLS.
    Tls,
}

/// How a negotiation ended.
pub enum Outcome {
    /// The client chose an export.
    Transmit(Arc<dyn BlockDevice>, Terms),
    /// The client begins TLS; what it says in there is a negotiation anew, without a greeting.
    StartTls,
    /// The client left in good order, or broke the protocol.
    Closed,
}

/// The transmission flags of an export.
pub fn transmission_flags(export: &dyn BlockDevice, terms: &Terms) -> u16 {
    let mut flags =
        EXPORT_HAS_FLAGS | EXPORT_SEND_FLUSH | EXPORT_SEND_FUA | EXPORT_CAN_MULTI_CONN | EXPORT_SEND_CACHE;
    if terms.structured || terms.extended {
        flags |= EXPORT_SEND_DF;
    }
    // What changes it is not offered where it would be refused.
    flags |= match export.read_only() {
        true => EXPORT_READ_ONLY,
        false => EXPORT_SEND_TRIM | EXPORT_SEND_WRITE_ZEROES | EXPORT_SEND_FAST_ZERO,
    };
    flags
}

/// Greets a client: whether it wants no zeroes after the export's flags; `None` if it wants what we do not know.
pub fn greet(stream: &mut (impl Read + Write)) -> io::Result<Option<bool>> {
    let mut greeting = Vec::with_capacity(18);
    greeting.extend(NBD_MAGIC.to_be_bytes());
    greeting.extend(OPTION_MAGIC.to_be_bytes());
    greeting.extend((FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    stream.write_all(&greeting)?;
    let client_flags = u32::from_be_bytes(take(stream)?);
    let known = client_flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) == 0;
    Ok(known.then_some(client_flags & u32::from(FLAG_NO_ZEROES) != 0))
}

/// Speaks with a client that was greeted until it has chosen an export, or begins TLS.
pub fn negotiate(
    stream: &mut (impl Read + Write),
    exports: &dyn Exports,
    no_zeroes: bool,
    security: Security,
) -> io::Result<Outcome> {
    let mut terms = Terms::default();
    for _ in 0..OPTIONS_MAX {
        if u64::from_be_bytes(take(stream)?) != OPTION_MAGIC {
            return Ok(Outcome::Closed);
        }
        let option = u32::from_be_bytes(take(stream)?);
        let length = u32::from_be_bytes(take(stream)?);
        if length > OPTION_BYTES_MAX {
            if length > OPTION_SKIP_MAX || option == OPT_EXPORT_NAME {
                return Ok(Outcome::Closed);
            }
            io::copy(&mut Read::by_ref(stream).take(u64::from(length)), &mut io::sink())?;
            reply(stream, option, REP_ERR_TOO_BIG, b"the option is too long")?;
            continue;
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        match option {
            OPT_ABORT => {
                // The client may be gone without waiting for the answer.
                let _ = reply(stream, option, REP_ACK, b"");
                return Ok(Outcome::Closed);
            }
            OPT_STARTTLS => match security {
                Security::Plain => reply(stream, option, REP_ERR_UNSUP, b"this server has no TLS")?,
                Security::Tls => reply(stream, option, REP_ERR_INVALID, b"this is TLS already")?,
                Security::TlsWanted if !data.is_empty() => {
                    reply(stream, option, REP_ERR_INVALID, b"STARTTLS takes no data")?;
                }
                Security::TlsWanted => {
                    reply(stream, option, REP_ACK, b"")?;
                    return Ok(Outcome::StartTls);
                }
            },
            // This option cannot be answered with an error.
            OPT_EXPORT_NAME if security == Security::TlsWanted => return Ok(Outcome::Closed),
            _ if security == Security::TlsWanted => {
                reply(stream, option, REP_ERR_TLS_REQD, b"begin TLS first")?;
            }
            OPT_EXPORT_NAME => return choose(stream, &data, exports, no_zeroes, terms),
            OPT_LIST if !data.is_empty() => reply(stream, option, REP_ERR_INVALID, b"LIST takes no data")?,
            OPT_LIST => list(stream, exports)?,
            OPT_INFO | OPT_GO => {
                if let Some((name, export)) = information(stream, option, &data, exports, &terms)?
                    && option == OPT_GO
                {
                    // Contexts hold for the export that they were asked of.
                    terms.allocation_of.take_if(|of| *of != name);
                    return Ok(Outcome::Transmit(export, terms));
                }
            }
            OPT_STRUCTURED_REPLY | OPT_EXTENDED_HEADERS if !data.is_empty() => {
                reply(stream, option, REP_ERR_INVALID, b"the option takes no data")?;
            }
            OPT_STRUCTURED_REPLY | OPT_EXTENDED_HEADERS if terms.extended => {
                reply(
                    stream,
                    option,
                    REP_ERR_INVALID,
                    b"extended headers are agreed on already",
                )?;
            }
            OPT_STRUCTURED_REPLY => {
                terms.structured = true;
                reply(stream, option, REP_ACK, b"")?;
            }
            OPT_EXTENDED_HEADERS => {
                terms.structured = true;
                terms.extended = true;
                terms.allocation_of = None;
                reply(stream, option, REP_ACK, b"")?;
            }
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => {
                contexts(stream, option, &data, exports, &mut terms)?;
            }
            _ => reply(stream, option, REP_ERR_UNSUP, b"the option is not known")?,
        }
    }
    Ok(Outcome::Closed)
}

/// Answers EXPORT_NAME: there is no way back from it.
fn choose(
    stream: &mut impl Write,
    name: &[u8],
    exports: &dyn Exports,
    no_zeroes: bool,
    mut terms: Terms,
) -> io::Result<Outcome> {
    let name = std::str::from_utf8(name).ok();
    let Some((name, export)) = name.and_then(|name| exports.choose(name)) else {
        return Ok(Outcome::Closed);
    };
    terms.allocation_of.take_if(|of| *of != name);
    let mut answer = Vec::with_capacity(134);
    answer.extend(export.size_bytes().to_be_bytes());
    answer.extend(transmission_flags(&*export, &terms).to_be_bytes());
    if !no_zeroes {
        answer.resize(134, 0);
    }
    stream.write_all(&answer)?;
    Ok(Outcome::Transmit(export, terms))
}

/// Answers LIST.
fn list(stream: &mut impl Write, exports: &dyn Exports) -> io::Result<()> {
    for name in exports.names() {
        let mut entry = Vec::with_capacity(4 + name.len());
        entry.extend((name.len() as u32).to_be_bytes());
        entry.extend(name.as_bytes());
        reply(stream, OPT_LIST, REP_SERVER, &entry)?;
    }
    reply(stream, OPT_LIST, REP_ACK, b"")
}

/// Answers INFO or GO; the export if the answer was good.
fn information(
    stream: &mut impl Write,
    option: u32,
    data: &[u8],
    exports: &dyn Exports,
    terms: &Terms,
) -> io::Result<Option<(String, Arc<dyn BlockDevice>)>> {
    let Some((name, rest)) = sized_string(data) else {
        reply(
            stream,
            option,
            REP_ERR_INVALID,
            b"the name does not fit the option",
        )?;
        return Ok(None);
    };
    let wanted = rest
        .split_first_chunk::<2>()
        .map(|(count, list)| (usize::from(u16::from_be_bytes(*count)), list));
    let Some((count, list)) = wanted.filter(|(count, list)| list.len() == count * 2) else {
        reply(
            stream,
            option,
            REP_ERR_INVALID,
            b"the list of requests does not fit the option",
        )?;
        return Ok(None);
    };
    let asked: Vec<u16> = list
        .chunks_exact(2)
        .take(count)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
        .collect();
    let found = match option {
        OPT_GO => exports.choose(name),
        _ => exports.find(name),
    };
    let Some((name, export)) = found else {
        reply(stream, option, REP_ERR_UNKNOWN, b"there is no such export")?;
        return Ok(None);
    };
    let mut info = Vec::new();
    info.extend(INFO_EXPORT.to_be_bytes());
    info.extend(export.size_bytes().to_be_bytes());
    info.extend(transmission_flags(&*export, terms).to_be_bytes());
    reply(stream, option, REP_INFO, &info)?;
    if asked.contains(&INFO_NAME) {
        let mut info = INFO_NAME.to_be_bytes().to_vec();
        info.extend(name.as_bytes());
        reply(stream, option, REP_INFO, &info)?;
    }
    if asked.contains(&INFO_DESCRIPTION) {
        let mut info = INFO_DESCRIPTION.to_be_bytes().to_vec();
        info.extend(b"a Terrace volume");
        reply(stream, option, REP_INFO, &info)?;
    }
    let mut info = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
    // Any length is served: clients that keep to the smallest one could not copy a file of an odd length otherwise. The
    // preferred one is the logical block that the same volume has as a local device.
    for size in [1, export.block_bytes(), PAYLOAD_BYTES_MAX as u32] {
        info.extend(size.to_be_bytes());
    }
    reply(stream, option, REP_INFO, &info)?;
    reply(stream, option, REP_ACK, b"")?;
    Ok(Some((name, export)))
}

/// Answers LIST_META_CONTEXT and SET_META_CONTEXT: one context is known, `base:allocation`.
fn contexts(
    stream: &mut impl Write,
    option: u32,
    data: &[u8],
    exports: &dyn Exports,
    terms: &mut Terms,
) -> io::Result<()> {
    let set = option == OPT_SET_META_CONTEXT;
    if set {
        terms.allocation_of = None;
        if !terms.structured {
            return reply(
                stream,
                option,
                REP_ERR_INVALID,
                b"structured replies must be agreed on first",
            );
        }
    }
    let parsed = sized_string(data).and_then(|(name, rest)| {
        let (count, mut rest) = rest.split_first_chunk::<4>()?;
        let mut queries = Vec::new();
        for _ in 0..u32::from_be_bytes(*count) {
            let (query, after) = sized_string(rest)?;
            queries.push(query);
            rest = after;
        }
        rest.is_empty().then_some((name, queries))
    });
    let Some((name, queries)) = parsed else {
        return reply(
            stream,
            option,
            REP_ERR_INVALID,
            b"the queries do not fit the option",
        );
    };
    let Some((name, _)) = exports.find(name) else {
        return reply(stream, option, REP_ERR_UNKNOWN, b"there is no such export");
    };
    let matches = |query: &&str| *query == ALLOCATION_CONTEXT || (!set && *query == "base:");
    if queries.iter().any(matches) || (!set && queries.is_empty()) {
        let id = if set { ALLOCATION_CONTEXT_ID } else { 0 };
        let mut context = id.to_be_bytes().to_vec();
        context.extend(ALLOCATION_CONTEXT.as_bytes());
        reply(stream, option, REP_META_CONTEXT, &context)?;
        if set {
            terms.allocation_of = Some(name);
        }
    }
    reply(stream, option, REP_ACK, b"")
}

fn sized_string(data: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    let (text, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

fn take<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn reply(stream: &mut impl Write, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut message = Vec::with_capacity(20 + data.len());
    message.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    message.extend(option.to_be_bytes());
    message.extend(kind.to_be_bytes());
    message.extend((data.len() as u32).to_be_bytes());
    message.extend(data);
    stream.write_all(&message)
}
