//! A client's half of the handshake: the choice of the export, its size, and the requests that it takes.

use super::super::proto::{
    BASE_ALLOCATION, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, Fields, GREETING, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    OptionHeader, PAYLOAD_MAX, export_flag, info, option, option_reply,
};
use super::Line;
use headstart_block::{Error, ErrorKind, Result};

/// The second word of a server from before 2011.
const OLD_STYLE: u64 = 0x0000_4202_8186_1253;
/// The longest answer to an option that is read: messages of errors are longer than facts.
const ANSWER_MAX: u32 = 8192;
/// The most facts about an export that are read: more than any server has.
const FACTS_MAX: usize = 64;
/// Zeros behind the answer of the oldest way to name an export.
const PADDING: usize = 124;

/// The facts about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The size in bytes.
    pub(super) size: u64,
    /// The unit in bytes: requests begin and end at its multiples.
    pub(super) unit: u64,
    /// The longest request, in bytes.
    pub(super) longest: u64,
    /// `true` if writes are refused.
    pub(super) read_only: bool,
    /// The flags as the server sent them.
    pub(super) flags: u16,
}

/// An answer to an option.
struct OptionAnswer {
    kind: u32,
    data: Vec<u8>,
}

/// Chooses `export`; the next messages are requests.
pub(super) fn choose(line: &mut Line, export: &str) -> Result<Facts> {
    let no_zeroes = greet(line)?;
    // Any answer will do: both kinds of replies are understood.
    ask(line, option::STRUCTURED_REPLY, &[])?;
    answer(line, option::STRUCTURED_REPLY)?;
    go(line, export, no_zeroes)
}

/// Chooses `export` for a client that knows no structured replies.
pub(super) fn choose_plain(line: &mut Line, export: &str) -> Result<Facts> {
    let no_zeroes = greet(line)?;
    go(line, export, no_zeroes)
}

/// Chooses `export` at a server that answers by structured replies and reports holes.
pub(super) fn choose_with_holes(line: &mut Line, export: &str) -> Result<Facts> {
    let no_zeroes = greet(line)?;
    let lacks = |what: &str| Error::unsupported(format!("has no {what}"));
    ask(line, option::STRUCTURED_REPLY, &[])?;
    if answer(line, option::STRUCTURED_REPLY)?.kind != option_reply::ACK {
        return Err(lacks("structured replies"));
    }
    let mut data = string(export)?;
    data.extend_from_slice(&1_u32.to_be_bytes());
    data.extend_from_slice(&string(BASE_ALLOCATION)?);
    ask(line, option::SET_META_CONTEXT, &data)?;
    let mut has_holes = false;
    loop {
        match answer(line, option::SET_META_CONTEXT)?.kind {
            option_reply::META_CONTEXT if !has_holes => has_holes = true,
            option_reply::ACK if has_holes => return go(line, export, no_zeroes),
            _ => return Err(lacks("block status")),
        }
    }
}

/// A string behind its length.
fn string(text: &str) -> Result<Vec<u8>> {
    let len = u32::try_from(text.len()).map_err(|_| Error::invalid("the export's name is too long"))?;
    let mut data = len.to_be_bytes().to_vec();
    data.extend_from_slice(text.as_bytes());
    Ok(data)
}

/// Exchanges greetings; `true` if nothing pads the answer of the oldest way to name an export.
fn greet(line: &mut Line) -> Result<bool> {
    let greeting: [u8; 18] = line.receive()?;
    let mut fields = Fields(&greeting);
    let (first, second, flags) = (fields.u64(), fields.u64(), fields.u16().unwrap_or_default());
    match second.filter(|_| first == Some(GREETING)) {
        Some(OPTION_MAGIC) if flags & FLAG_FIXED_NEWSTYLE != 0 => {}
        Some(OPTION_MAGIC | OLD_STYLE) => {
            return Err(Error::unsupported("speaks a style of NBD that is older than the fixed newstyle"));
        }
        _ => {
            let error = Error::corrupt("greets as no NBD server does");
            return Err(error.remedy("look whether the address is right"));
        }
    }
    let no_zeroes = flags & FLAG_NO_ZEROES;
    line.send(&u32::from(FLAG_FIXED_NEWSTYLE | no_zeroes).to_be_bytes())?;
    Ok(no_zeroes != 0)
}

fn ask(line: &mut Line, option: u32, data: &[u8]) -> Result<()> {
    let len = u32::try_from(data.len()).map_err(|_| Error::invalid("the export's name is too long"))?;
    let mut message = OptionHeader { option, len }.encode().to_vec();
    message.extend_from_slice(data);
    line.send(&message)
}

fn answer(line: &mut Line, option: u32) -> Result<OptionAnswer> {
    let head: [u8; 20] = line.receive()?;
    let mut fields = Fields(&head);
    let magic = fields.u64();
    let (to, kind, len) = (fields.u32(), fields.u32(), fields.u32());
    let (Some(OPTION_REPLY_MAGIC), Some(kind), Some(len)) = (magic.filter(|_| to == Some(option)), kind, len)
    else {
        return Err(Error::corrupt(
            "answers with bytes that are not an answer to an option of the NBD protocol",
        ));
    };
    if len > ANSWER_MAX {
        return Err(Error::corrupt(format!("answers to an option with {len} bytes")));
    }
    Ok(OptionAnswer { kind, data: line.receive_vec(len as usize)? })
}

fn go(line: &mut Line, export: &str, no_zeroes: bool) -> Result<Facts> {
    let mut data = string(export)?;
    data.extend_from_slice(&1_u16.to_be_bytes());
    data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    ask(line, option::GO, &data)?;
    let (mut export_facts, mut unit, mut longest) = (None, 1, u64::from(PAYLOAD_MAX));
    for _ in 0..FACTS_MAX {
        let OptionAnswer { kind, data } = answer(line, option::GO)?;
        match kind {
            option_reply::ACK => {
                let none = || Error::corrupt("does not say how large the export is");
                let (size, flags) = export_facts.ok_or_else(none)?;
                return facts(size, flags, unit, longest);
            }
            option_reply::INFO => {
                let mut fields = Fields(&data);
                match fields.u16() {
                    Some(info::EXPORT) => export_facts = fields.u64().zip(fields.u16()),
                    Some(info::BLOCK_SIZE) => {
                        let sizes = (fields.u32(), fields.u32(), fields.u32());
                        if let (Some(least), _, Some(most)) = sizes {
                            (unit, longest) = (u64::from(least), u64::from(most).min(longest));
                        }
                    }
                    _ => {}
                }
            }
            option_reply::ERR_UNSUP => return by_name(line, export, no_zeroes),
            kind => return Err(refusal(kind, export, &data)),
        }
    }
    Err(Error::corrupt("does not end its description of the export"))
}

/// Chooses an export the old way, for servers that do not know the new one. They hang up on an export that they refuse.
fn by_name(line: &mut Line, export: &str, no_zeroes: bool) -> Result<Facts> {
    ask(line, option::EXPORT_NAME, export.as_bytes())?;
    let answer: [u8; 10] = line.receive().map_err(|e| {
        Error::new(e.kind(), format!("does not serve the export `{}`", export.escape_debug())).caused_by(e)
    })?;
    if !no_zeroes {
        line.receive_vec(PADDING)?;
    }
    let mut fields = Fields(&answer);
    let (size, flags) = (fields.u64().unwrap_or_default(), fields.u16().unwrap_or_default());
    facts(size, flags, 1, u64::from(PAYLOAD_MAX))
}

fn facts(size: u64, flags: u16, unit: u64, longest: u64) -> Result<Facts> {
    let unit = unit.max(1);
    if !unit.is_power_of_two() || unit > 64 << 10 || longest < unit || size > i64::MAX as u64 {
        return Err(Error::corrupt(format!(
            "says that its export has {size} bytes and takes requests of {unit} to {longest}"
        )));
    }
    let read_only = flags & export_flag::READ_ONLY != 0;
    Ok(Facts { size, unit, longest: longest - longest % unit, read_only, flags })
}

fn refusal(kind: u32, export: &str, message: &[u8]) -> Error {
    let name = export.escape_debug();
    let said = String::from_utf8_lossy(message);
    let said = if said.is_empty() { String::new() } else { format!(": {}", said.escape_debug()) };
    match kind {
        option_reply::ERR_UNKNOWN => Error::new(ErrorKind::NotFound, format!("has no export `{name}`{said}"))
            .remedy("`nbdinfo --list` names what it has"),
        option_reply::ERR_TLS_REQD => Error::unsupported("demands TLS, which is not spoken here")
            .remedy("have the server listen without TLS on this host, at a Unix socket say"),
        option_reply::ERR_POLICY => {
            Error::new(ErrorKind::Denied, format!("refuses the export `{name}`{said}"))
        }
        kind => Error::new(ErrorKind::Io, format!("refuses the export `{name}` (error {kind:#x}){said}")),
    }
}
