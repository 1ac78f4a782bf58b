//! The server's side of the handshake as a pure state machine: it is given a client's bytes, and returns replies and a
//! decision.
//!
//! Only the fixed newstyle of the protocol is supported. The states follow one another:
//!
//! ```text
//! Flags ----> Options -----> transmission (EXPORT_NAME or GO)
//!              |    ^
//!              |    | (once) everything negotiated so far is forgotten
//!              +----+ STARTTLS
//! ```
//!
//! # Invariants
//!
//! * If TLS is demanded, an unencrypted client gets only refusals: it learns no export's name or size.
//! * An export that is restricted to certificate names ([`ExportView::certificates`]) is visible only to clients whose
//!   certificate has one of the names. Other clients get the answers that they would get if there were no such export.
//! * Bytes that arrive after STARTTLS and before its reply are not part of the encrypted stream. An attacker between
//!   client and server could have inserted them, so the connection is closed.
//! * Metadata contexts hold for the export that they were requested for. A client that chooses another export has none.
//! * No option is longer than [`OPTION_LEN_MAX`]. Of the options that were answered, the handshake keeps only two flags
//!   and the number of an export.

use super::proto::{
    self, BASE_ALLOCATION, BASE_ALLOCATION_ID, Fields, OPTION_HEADER, OptionHeader, PAYLOAD_MAX, STRING_MAX,
    clip, export_flag, info, option, option_reply, put_option_reply,
};
use headstart_block::exact;

/// The maximum length of an option's data, in bytes. This has room for an export name of 4,096 bytes and many
/// metadata queries; a client that sends more is disconnected.
pub const OPTION_LEN_MAX: u32 = 16 << 10;

/// Bytes with which an export's answer is padded for clients that do not decline it.
const PADDING: usize = 124;

/// The unit of requests that is served best, in bytes: a page.
const BLOCK_PREFERRED: u32 = 4096;

/// The facts about an export that the handshake may tell a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportView {
    /// The name of the export.
    pub name: String,
    /// A description for people; may be empty.
    pub description: String,
    /// The size of the export, in bytes.
    pub size: u64,
    /// `true` if the export is read-only.
    pub read_only: bool,
    /// `true` if clients that may write may also enlarge the disk.
    pub resizable: bool,
    /// The certificate names that give access: only a client whose certificate has one of them sees the
    /// export. `None`: every client does.
    pub certificates: Option<Vec<String>>,
}

/// The TLS state of a connection during the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// The server has no certificate, so no client can use TLS.
    Unavailable,
    /// The server has a certificate and demands TLS, but the connection is not encrypted yet.
    Demanded,
    /// The connection is encrypted.
    On,
}

/// The action that the caller takes after [`Handshake::advance`], once it has sent the replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// Read more bytes from the client, then call [`Handshake::advance`] again.
    More,
    /// Perform the TLS handshake, then call [`Handshake::encrypted`] and continue.
    StartTls,
    /// Start the transmission phase, because the client has chosen an export.
    Transmit(Chosen),
    /// Close the connection, for the reason given: the client has ended the handshake or made an error.
    Close(&'static str),
}

/// The result of a handshake: the export that the client chose, and the agreed features of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The index of the export in the list given to [`Handshake::new`].
    pub export: usize,
    /// `true` if the client accepts structured replies.
    pub structured: bool,
    /// `true` if the client may send block status requests, for the context `base:allocation`.
    pub base_allocation: bool,
}

/// The server's side of the NBD handshake with one client, without I/O.
#[derive(Debug)]
pub struct Handshake<'a> {
    exports: &'a [ExportView],
    encryption: Encryption,
    /// `true` if the client wants padding; `None` until its flags have come.
    padding: Option<bool>,
    structured: bool,
    /// The export whose `base:allocation` was chosen.
    base_allocation: Option<usize>,
    /// The names in the client's certificate; none if it has shown none.
    names: Vec<String>,
}

impl<'a> Handshake<'a> {
    /// Begins a handshake with a new client that may choose among `exports`.
    #[must_use]
    pub fn new(exports: &'a [ExportView], encryption: Encryption) -> Self {
        let (structured, base_allocation, names) = Default::default();
        Self { exports, encryption, padding: None, structured, base_allocation, names }
    }

    /// Appends the server's greeting, the first bytes of a connection, to `out`.
    pub fn greet(out: &mut Vec<u8>) {
        out.extend_from_slice(&proto::GREETING.to_be_bytes());
        out.extend_from_slice(&proto::OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(proto::FLAG_FIXED_NEWSTYLE | proto::FLAG_NO_ZEROES).to_be_bytes());
    }

    /// Records that the stream is encrypted from here on and that the client's certificate has these `names`
    /// (empty if it has shown none). Structured replies and block status must be negotiated again.
    pub fn encrypted(&mut self, names: Vec<String>) {
        self.encryption = Encryption::On;
        self.names = names;
        self.structured = false;
        self.base_allocation = None;
    }

    /// Consumes at most one message at the start of `input`, appends the replies to `out`, and returns the
    /// number of consumed bytes with the next action. 0 bytes with [`HandshakeStep::More`] mean that the
    /// message is not complete yet.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, HandshakeStep) {
        let Some(padding) = self.padding else {
            return self.take_flags(input);
        };
        let Some(header) = input.first_chunk::<OPTION_HEADER>() else {
            return (0, HandshakeStep::More);
        };
        let Some(header) = OptionHeader::parse(header) else {
            return (0, HandshakeStep::Close("an option has a wrong magic"));
        };
        if header.len > OPTION_LEN_MAX {
            return (0, HandshakeStep::Close("an option is too long"));
        }
        let end = OPTION_HEADER + header.len as usize;
        let Some(data) = input.get(OPTION_HEADER..end) else {
            return (0, HandshakeStep::More);
        };
        let step = self.answer(header.option, data, padding, out);
        if step == HandshakeStep::StartTls && input.len() > end {
            return (end, HandshakeStep::Close("bytes follow STARTTLS before it was answered"));
        }
        (end, step)
    }

    fn take_flags(&mut self, input: &[u8]) -> (usize, HandshakeStep) {
        let Some(flags) = input.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)) else {
            return (0, HandshakeStep::More);
        };
        let (fixed, no_zeroes) = (u32::from(proto::FLAG_FIXED_NEWSTYLE), u32::from(proto::FLAG_NO_ZEROES));
        if flags & !(fixed | no_zeroes) != 0 {
            return (4, HandshakeStep::Close("the client has flags that this server does not know"));
        }
        if flags & fixed == 0 {
            return (4, HandshakeStep::Close("the client does not speak the fixed newstyle"));
        }
        self.padding = Some(flags & no_zeroes == 0);
        (4, HandshakeStep::More)
    }

    fn answer(&mut self, asked: u32, data: &[u8], padding: bool, out: &mut Vec<u8>) -> HandshakeStep {
        let mut reply = Reply { option: asked, out };
        let plain_allowed = matches!(asked, option::STARTTLS | option::ABORT);
        if self.encryption == Encryption::Demanded && !plain_allowed {
            if asked == option::EXPORT_NAME {
                return HandshakeStep::Close("the client wants an export without TLS");
            }
            return reply.error(option_reply::ERR_TLS_REQD, "this server wants TLS: begin with STARTTLS");
        }
        match asked {
            option::EXPORT_NAME => self.use_export(data, padding, reply.out),
            option::ABORT => {
                reply.ack();
                HandshakeStep::Close("the client gave up")
            }
            option::LIST => self.list(data, &mut reply),
            option::STARTTLS => self.start_tls(data, &mut reply),
            option::INFO | option::GO => self.describe(asked == option::GO, data, &mut reply),
            option::STRUCTURED_REPLY => {
                if !data.is_empty() {
                    return reply.error(option_reply::ERR_INVALID, "STRUCTURED_REPLY has no data");
                }
                self.structured = true;
                reply.ack()
            }
            option::LIST_META_CONTEXT => self.meta_context(false, data, &mut reply),
            option::SET_META_CONTEXT => self.meta_context(true, data, &mut reply),
            _ => reply.error(option_reply::ERR_UNSUP, "this server does not know the option"),
        }
    }

    /// The exports that this client may have, with their numbers.
    fn visible(&self) -> impl Iterator<Item = (usize, &'a ExportView)> {
        self.exports.iter().enumerate().filter(|(_, export)| match &export.certificates {
            None => true,
            Some(names) => names.iter().any(|name| self.names.contains(name)),
        })
    }

    /// The export called `name`. An empty name means the only export, if there is only one.
    fn find(&self, name: &str) -> Option<usize> {
        let found = self.visible().find(|(_, export)| export.name == name);
        let only =
            || (name.is_empty() && self.visible().count() == 1).then(|| self.visible().next()).flatten();
        found.or_else(only).map(|(at, _)| at)
    }

    fn choose(&self, export: usize) -> HandshakeStep {
        let base_allocation = self.base_allocation == Some(export);
        HandshakeStep::Transmit(Chosen { export, structured: self.structured, base_allocation })
    }

    fn use_export(&self, data: &[u8], padding: bool, out: &mut Vec<u8>) -> HandshakeStep {
        let found = std::str::from_utf8(data).ok().and_then(|name| self.find(name));
        let Some((at, export)) = found.and_then(|at| Some((at, self.exports.get(at)?))) else {
            return HandshakeStep::Close("the client wants an export that does not exist");
        };
        out.extend_from_slice(&export.size.to_be_bytes());
        out.extend_from_slice(&self.flags(export).to_be_bytes());
        if padding {
            out.resize(out.len() + PADDING, 0);
        }
        self.choose(at)
    }

    fn flags(&self, export: &ExportView) -> u16 {
        let mut flags = export_flag::HAS_FLAGS | export_flag::CAN_MULTI_CONN | export_flag::SEND_CACHE;
        // Flushing a disk that cannot be written does nothing, but some clients ask anyway.
        flags |= export_flag::SEND_FLUSH | export_flag::SEND_FUA;
        if self.structured {
            flags |= export_flag::SEND_DF;
        }
        if export.read_only {
            return flags | export_flag::READ_ONLY;
        }
        flags |= export_flag::SEND_TRIM | export_flag::SEND_WRITE_ZEROES | export_flag::SEND_FAST_ZERO;
        if export.resizable { flags | export_flag::SEND_RESIZE } else { flags }
    }

    fn list(&self, data: &[u8], reply: &mut Reply<'_>) -> HandshakeStep {
        if !data.is_empty() {
            return reply.error(option_reply::ERR_INVALID, "LIST has no data");
        }
        for (_, export) in self.visible() {
            let name = clip(&export.name, STRING_MAX);
            let mut entry = Vec::with_capacity(4 + name.len() + export.description.len());
            entry.extend_from_slice(&exact::<u32>(name.len(), "it was cut to STRING_MAX").to_be_bytes());
            entry.extend_from_slice(name.as_bytes());
            entry.extend_from_slice(clip(&export.description, STRING_MAX).as_bytes());
            reply.put(option_reply::SERVER, &entry);
        }
        reply.ack()
    }

    fn start_tls(&self, data: &[u8], reply: &mut Reply<'_>) -> HandshakeStep {
        if !data.is_empty() {
            return reply.error(option_reply::ERR_INVALID, "STARTTLS has no data");
        }
        match self.encryption {
            Encryption::Unavailable => {
                reply.error(option_reply::ERR_POLICY, "this server has no certificate, so no TLS")
            }
            Encryption::On => reply.error(option_reply::ERR_INVALID, "TLS is on already"),
            Encryption::Demanded => {
                reply.ack();
                HandshakeStep::StartTls
            }
        }
    }

    fn describe(&self, go: bool, data: &[u8], reply: &mut Reply<'_>) -> HandshakeStep {
        let Some((name, wanted)) = parse_info(data) else {
            return reply.error(option_reply::ERR_INVALID, "the request for an export is malformed");
        };
        let Some((at, export)) = self.find(name).and_then(|at| Some((at, self.exports.get(at)?))) else {
            let message = format!("there is no export `{}`", name.escape_debug());
            return reply.error(option_reply::ERR_UNKNOWN, &message);
        };
        let mut fact = |kind: u16, parts: &[&[u8]]| {
            reply.put(option_reply::INFO, &[&kind.to_be_bytes()[..], &parts.concat()].concat());
        };
        fact(info::EXPORT, &[&export.size.to_be_bytes(), &self.flags(export).to_be_bytes()]);
        let [smallest, best, largest] = [1, BLOCK_PREFERRED, PAYLOAD_MAX].map(u32::to_be_bytes);
        fact(info::BLOCK_SIZE, &[&smallest, &best, &largest]);
        if wanted.contains(&info::NAME) {
            fact(info::NAME, &[clip(&export.name, STRING_MAX).as_bytes()]);
        }
        if wanted.contains(&info::DESCRIPTION) && !export.description.is_empty() {
            fact(info::DESCRIPTION, &[clip(&export.description, STRING_MAX).as_bytes()]);
        }
        reply.ack();
        if go { self.choose(at) } else { HandshakeStep::More }
    }

    fn meta_context(&mut self, set: bool, data: &[u8], reply: &mut Reply<'_>) -> HandshakeStep {
        if set {
            self.base_allocation = None;
        }
        if !self.structured {
            return reply
                .error(option_reply::ERR_INVALID, "metadata needs structured replies: ask for those first");
        }
        let Some((name, queries)) = parse_queries(data) else {
            return reply.error(option_reply::ERR_INVALID, "the metadata queries are malformed");
        };
        let Some(at) = self.find(name) else {
            return reply.error(option_reply::ERR_UNKNOWN, "there is no such export");
        };
        // No query at all asks for a list of everything; a name space alone, for a list of its contexts.
        let all = !set && queries.is_empty();
        let matches = |query: &&[u8]| *query == BASE_ALLOCATION.as_bytes() || (!set && *query == b"base:");
        if all || queries.iter().any(matches) {
            let id = if set { BASE_ALLOCATION_ID } else { 0 };
            reply.put(
                option_reply::META_CONTEXT,
                &[&id.to_be_bytes()[..], BASE_ALLOCATION.as_bytes()].concat(),
            );
            if set {
                self.base_allocation = Some(at);
            }
        }
        reply.ack()
    }
}

/// Replies to one option.
struct Reply<'a> {
    option: u32,
    out: &'a mut Vec<u8>,
}

impl Reply<'_> {
    fn put(&mut self, kind: u32, data: &[u8]) {
        put_option_reply(self.out, self.option, kind, data);
    }

    fn ack(&mut self) -> HandshakeStep {
        self.put(option_reply::ACK, &[]);
        HandshakeStep::More
    }

    fn error(&mut self, kind: u32, message: &str) -> HandshakeStep {
        self.put(kind, clip(message, STRING_MAX).as_bytes());
        HandshakeStep::More
    }
}

/// Parses the name of an export and the wanted facts about it.
fn parse_info(data: &[u8]) -> Option<(&str, Vec<u16>)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u16()?;
    let wanted = (0..count).map(|_| fields.u16()).collect::<Option<_>>()?;
    fields.0.is_empty().then_some((name, wanted))
}

/// Parses the name of an export and the contexts asked for.
fn parse_queries(data: &[u8]) -> Option<(&str, Vec<&[u8]>)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        // Each takes four bytes at least, so that a wild count ends with the data.
        let len = fields.u32()?;
        queries.push(fields.bytes(usize::try_from(len).ok()?)?);
    }
    fields.0.is_empty().then_some((name, queries))
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
