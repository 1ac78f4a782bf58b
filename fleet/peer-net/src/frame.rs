//! The format of connections, byte by byte.
//!
//! A connection is a sequence of *frames*: a header of 16 bytes, then a body. The header has two fields, `a` and `b`,
//! whose meaning depends on the frame's kind; they are zero where the table of kinds has nothing. Numbers in the header
//! are little-endian. Bodies that are values of Rust types are encoded by postcard.
//!
//! ```text
//! offset  length in bytes  field
//! 0       1                kind
//! 1       3                zeros
//! 4       4                length of the body
//! 8       4                a
//! 12      4                b
//!
//! kind         a          b       body
//! 1 hello                         the sender's identity, postcard
//! 2 message                       a `Message`, postcard
//! 3 chunk      request    chunk   the bytes of a requested chunk
//! 4 push       blob       chunk   the bytes of an unrequested chunk
//! 5 proof      blob               32 bytes, which prove that the sender may read the blob
//! 6 withdrawn  blob               nothing: the sender does not exchange the blob any more
//! 7 ping                          nothing
//! 8 bye                           nothing: the sender leaves the swarm
//! 9 order      number             a `RemoteCommand`, postcard: an order to fetch ahead of need, or information
//! 10 done      number             bytes that the order asked for, and those that could not be fetched: 8 bytes each
//! 11 report                       the reads of an image's disks, a tracker's `HintReport`, postcard
//! 12 hints                        the tracker's answer, a `HintAnswer`, postcard
//! 13 refused   number     what    why the sender refuses something, UTF-8; what: 0 the connection, 1 the order of that
//!                                 number, 2 the request for a certificate of that number
//! 14 trust                        the trust list, signed by the authority: revoked hosts, and the gossip key
//! 15 request      number          a signing request for the sender's certificate, PKCS #10 in DER
//! 16 certificate  number          the answer to the request of that number: a certificate in DER
//! 17 renewed                      the sender's new certificate in DER, in place of the one in the handshake: same name
//!                                 and key
//! ```
//!
//! The version of the format is agreed upon in the TLS handshake, by the name of the application protocol. Version 1
//! ends with kind 12; kinds from 13 on are sent only if both hosts speak version 2.
//!
//! In the table, `blob` stands for the number that the sender of the frame gives the blob. An answer has the number of
//! its request instead. All input is untrusted: lengths are checked before memory is allocated for them, and a body
//! that is too long, too short or malformed is an offence that ends the connection.

use crate::credentials::{CERTIFICATE_MAX, NAME_MAX, REQUEST_MAX, TRUST_LIST_MAX};
use headstart_block::{Error, Result, exact};
use headstart_swarm::tracker::{HintAnswer, HintReport, REPORT_MAX};
use headstart_swarm::{CHUNK_SIZE, Chunks, Message};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Length of a frame's header, in bytes.
pub const HEADER: usize = 16;

/// Limit of a message's body, in bytes.
pub const MESSAGE_MAX: usize = 64 << 10;
const _: () = assert!(TRUST_LIST_MAX <= MESSAGE_MAX, "a list of the authority's fits a message");

/// Limit of the runs of chunks in one advert. That many runs fit [`MESSAGE_MAX`] bytes, whatever numbers they
/// contain.
pub const RUNS_MAX: usize = 4096;

/// Limit of the hosts that one [`Message::Reject`] names, from which the asker may request the chunks instead.
pub const OTHERS_MAX: usize = 64;

/// Limit of the hashes in one [`Message::Sketch`], the summary of a host's recent reads.
pub const SKETCH_MAX: usize = 4096;

/// Limit of the hints in one answer of a tracker. That many hints fit [`MESSAGE_MAX`] bytes, whatever numbers
/// they contain.
pub const HINTS_MAX: usize = 4096;

/// Bytes of a chunk.
const CHUNK: usize = 64 << 10;
const _: () = assert!(CHUNK as u64 == CHUNK_SIZE);

/// Limit of a hello's body, in bytes. A hello is the first frame of a connection.
pub const HELLO_MAX: usize = 512;

/// Bytes of a hello's nonce that name the process: they are the same in all of its hellos.
pub(super) const PROCESS: usize = 16;

/// The number of a process, which it has drawn at random.
pub(super) type Process = [u8; PROCESS];

/// Length of the body of a [`FrameKind::Done`] frame (the outcome of an order), in bytes.
pub const DONE: usize = 16;

/// Length of the body of a [`FrameKind::Proof`] frame (the proof that its sender may read a blob), in bytes.
pub const PROOF: usize = 32;

/// The value of the header's field `b` in a [`FrameKind::Refused`] frame that refuses the connection.
pub const REFUSED_CONNECTION: u32 = 0;

/// The value of the header's field `b` in a [`FrameKind::Refused`] frame that refuses an order.
pub const REFUSED_ORDER: u32 = 1;

/// The value of the header's field `b` in a [`FrameKind::Refused`] frame that refuses a request for a
/// certificate.
pub const REFUSED_REQUEST: u32 = 2;

/// Limit of the body of a [`FrameKind::Refused`] frame (the reason as text), in bytes.
pub const REFUSED_MAX: usize = 1024;

/// The newest version of the connection format, which this code speaks with hosts that know it.
pub const VERSION: u16 = 2;

/// The oldest supported version of the connection format, spoken with hosts that do not know [`VERSION`].
pub const VERSION_1: u16 = 1;

/// The kind of a frame, which determines the meaning of its body and of the header's fields `a` and `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// The sender's identity, a [`Hello`]: the first frame in each direction, and only the first.
    Hello,
    /// A [`Message`] of the state machine.
    Message,
    /// The bytes of a requested chunk.
    Chunk,
    /// The bytes of an unrequested chunk.
    Push,
    /// A proof that the sender may read a blob.
    Proof,
    /// The sender no longer exchanges a blob with the receiver.
    Withdrawn,
    /// An empty frame that shows that the sender is alive.
    Ping,
    /// The last frame: the sender leaves the swarm.
    Bye,
    /// A command of the sender, such as to fetch a blob before it is needed.
    Order,
    /// The outcome of a received command: bytes asked for, and bytes that could not be fetched.
    Done,
    /// A report to a tracker: the first reads of an image's disks.
    Report,
    /// A tracker's answer to a report.
    Hints,
    /// The authority's signed list of revoked hosts, with the gossip key.
    Trust,
    /// A request to an authority to renew the sender's certificate.
    Request,
    /// The answer to a request: the renewed certificate.
    Certificate,
    /// The sender's renewed certificate, in place of the one of the handshake.
    Renewed,
    /// A refusal of the connection, an order, or a request: `b` is one of [`REFUSED_CONNECTION`], [`REFUSED_ORDER`],
    /// [`REFUSED_REQUEST`].
    Refused,
}

impl FrameKind {
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Hello,
            2 => Self::Message,
            3 => Self::Chunk,
            4 => Self::Push,
            5 => Self::Proof,
            6 => Self::Withdrawn,
            7 => Self::Ping,
            8 => Self::Bye,
            9 => Self::Order,
            10 => Self::Done,
            11 => Self::Report,
            12 => Self::Hints,
            13 => Self::Refused,
            14 => Self::Trust,
            15 => Self::Request,
            16 => Self::Certificate,
            17 => Self::Renewed,
            _ => return None,
        })
    }

    fn byte(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Message => 2,
            Self::Chunk => 3,
            Self::Push => 4,
            Self::Proof => 5,
            Self::Withdrawn => 6,
            Self::Ping => 7,
            Self::Bye => 8,
            Self::Order => 9,
            Self::Done => 10,
            Self::Report => 11,
            Self::Hints => 12,
            Self::Refused => 13,
            Self::Trust => 14,
            Self::Request => 15,
            Self::Certificate => 16,
            Self::Renewed => 17,
        }
    }

    /// The least and the greatest length of a body.
    fn body(self) -> (usize, usize) {
        match self {
            Self::Hello => (1, HELLO_MAX),
            Self::Message | Self::Order | Self::Report | Self::Hints | Self::Trust => (1, MESSAGE_MAX),
            Self::Request => (1, REQUEST_MAX),
            Self::Certificate | Self::Renewed => (1, CERTIFICATE_MAX),
            Self::Done => (DONE, DONE),
            Self::Refused => (1, REFUSED_MAX),
            Self::Chunk | Self::Push => (1, CHUNK),
            Self::Proof => (PROOF, PROOF),
            Self::Withdrawn | Self::Ping | Self::Bye => (0, 0),
        }
    }
}

/// The 16-byte header of a frame; the layout is in the documentation of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// Length of the frame's body, in bytes. Each kind has a range of its own.
    pub len: usize,
    /// A number whose meaning depends on the kind, such as the number of a request or a blob; see the table
    /// of this module.
    pub a: u32,
    /// A second number whose meaning depends on the kind, such as the number of a chunk; see the table of
    /// this module.
    pub b: u32,
}

impl Header {
    /// The header as bytes. Panics if `len` does not fit 32 bits.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.kind.byte();
        let len: u32 = exact(self.len, "it is within what its kind allows");
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.a.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.b.to_le_bytes());
        bytes
    }

    /// Parses a received header.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the kind is unknown, or the length is not possible for the
    /// kind.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self> {
        let number = |at: usize| {
            let mut number = [0; 4];
            number.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(number)
        };
        let kind = FrameKind::of(bytes[0]).filter(|_| bytes[1..4] == [0; 3]);
        let kind = kind.ok_or_else(|| Error::corrupt("no frame begins like that"))?;
        let len = number(4) as usize;
        let (least, most) = kind.body();
        if len < least || len > most {
            return Err(Error::corrupt(format!("a {kind:?} frame of {len} bytes")));
        }
        Ok(Self { kind, len, a: number(8), b: number(12) })
    }
}

/// The first frame of a connection in each direction: the sender's identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The newest version of the connection format that the host speaks.
    pub version: u16,
    /// The host's name. With TLS it must be the name in the host's certificate.
    pub name: String,
    /// `true` if the host is a root.
    pub is_root: bool,
    /// `true` if the host is a tracker, which counts what the disks of all hosts read while they boot.
    pub is_tracker: bool,
    /// Random bytes. The first half is the same in all connections of the sender's process; the second half
    /// is new for each connection. Version 0.1.0 draws all of it for each connection.
    pub nonce: [u8; 32],
}

impl Hello {
    /// Parses the body of a received hello.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if it is malformed,
    /// [`headstart_block::ErrorKind::Unsupported`] if its version is neither [`VERSION_1`] nor [`VERSION`].
    pub fn decode(body: &[u8]) -> Result<Self> {
        let (hello, rest): (Self, _) =
            postcard::take_from_bytes(body).map_err(|e| Error::corrupt("is not a hello").caused_by(e))?;
        if !(VERSION_1..=VERSION).contains(&hello.version) {
            return Err(hello.other_version(VERSION));
        }
        if !rest.is_empty() || hello.name.is_empty() || hello.name.len() > NAME_MAX {
            return Err(Error::corrupt("is not a hello"));
        }
        Ok(hello)
    }

    /// The number that the sender has drawn for its process.
    pub(super) fn process(&self) -> [u8; PROCESS] {
        let mut process = [0; PROCESS];
        process.copy_from_slice(&self.nonce[..PROCESS]);
        process
    }

    /// The error of a host that speaks another version than the connection.
    pub(super) fn other_version(&self, spoken: u16) -> Error {
        Error::unsupported(format!(
            "the other host speaks version {} of the protocol, this one version {spoken}",
            self.version
        ))
        .remedy("run the same version everywhere")
    }
}

/// The body of a [`FrameKind::Refused`] frame: the reason `why`, cut to at most [`REFUSED_MAX`] bytes at the end of a
/// character. An empty `why` is replaced by a text that says that no reason was given.
#[must_use]
pub fn refusal(why: &str) -> &[u8] {
    let why = if why.is_empty() { "no reason is given" } else { why };
    let end = (0..=REFUSED_MAX.min(why.len())).rev().find(|end| why.is_char_boundary(*end)).unwrap_or(0);
    &why.as_bytes()[..end]
}

/// Parses the reason in the body of a received [`FrameKind::Refused`] frame. Control characters, line ends
/// included, are replaced by blanks.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the body is not UTF-8.
pub fn decode_refusal(body: &[u8]) -> Result<String> {
    let why = std::str::from_utf8(body).map_err(|e| Error::corrupt("is not text").caused_by(e))?;
    Ok(why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

/// Appends a frame, header and body, to `out`. `a` and `b` are the fields of the header. The caller must see to it that
/// the length of `body` is one that the kind allows; this is not checked. A receiver ends the connection at a frame
/// whose body is too long or too short: see the table of the module.
pub fn push_frame(out: &mut Vec<u8>, kind: FrameKind, a: u32, b: u32, body: &[u8]) {
    out.extend_from_slice(&Header { kind, len: body.len(), a, b }.encode());
    out.extend_from_slice(body);
}

/// Appends a frame to `out` whose body is the encoding of `body` (postcard), and whose fields `a` and `b` are 0.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if the encoded body is longer than the kind allows; `out` is
/// unchanged then.
pub fn push_encoded(out: &mut Vec<u8>, kind: FrameKind, body: &impl Serialize) -> Result<()> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    let is_encoded = postcard::to_extend(body, Appended(out)).is_ok();
    let len = out.len() - start - HEADER;
    if !is_encoded || len > kind.body().1 {
        out.truncate(start);
        return Err(Error::invalid(format!("a {kind:?} is too long to be sent")));
    }
    out[start..start + HEADER].copy_from_slice(&Header { kind, len, a: 0, b: 0 }.encode());
    Ok(())
}

/// The buffer that postcard appends to.
struct Appended<'a>(&'a mut Vec<u8>);

impl Extend<u8> for Appended<'_> {
    fn extend<T: IntoIterator<Item = u8>>(&mut self, bytes: T) {
        self.0.extend(bytes);
    }
}

/// Parses the body of a received message. The numbers of blobs and chunks in it are not checked; a caller
/// must check them.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the body is malformed or too long, or a list in it is longer
/// than its limit.
pub fn decode_message(body: &[u8]) -> Result<Message> {
    let nonsense = || Error::corrupt("is not a message");
    if body.len() > MESSAGE_MAX {
        return Err(nonsense());
    }
    let (message, rest): (Message, _) =
        postcard::take_from_bytes(body).map_err(|e| nonsense().caused_by(e))?;
    let fits = match &message {
        Message::Have { runs, .. } | Message::Lost { runs, .. } | Message::Read { runs, .. } => {
            runs.len() <= RUNS_MAX
        }
        Message::Reject { others, .. } => others.len() <= OTHERS_MAX,
        Message::Sketch { least, .. } => least.len() <= SKETCH_MAX,
        _ => true,
    };
    if !fits || !rest.is_empty() {
        return Err(nonsense());
    }
    Ok(message)
}

/// Parses the body of a received report of disks' reads, sent to a tracker.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the body is malformed or too long, or has more than
/// [`REPORT_MAX`] reads.
pub fn decode_report(body: &[u8]) -> Result<HintReport> {
    decode(body, |report: &HintReport| report.accesses.len() <= REPORT_MAX)
}

/// Parses the body of a received answer of a tracker.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the body is malformed or too long, or has more than
/// [`HINTS_MAX`] hints.
pub fn decode_answer(body: &[u8]) -> Result<HintAnswer> {
    decode(body, |answer: &HintAnswer| answer.hints.len() <= HINTS_MAX)
}

fn decode<T: DeserializeOwned>(body: &[u8], fits: impl Fn(&T) -> bool) -> Result<T> {
    let nonsense = || Error::corrupt("is neither a report nor an answer");
    if body.len() > MESSAGE_MAX {
        return Err(nonsense());
    }
    let (decoded, rest): (T, _) = postcard::take_from_bytes(body).map_err(|e| nonsense().caused_by(e))?;
    if fits(&decoded) && rest.is_empty() { Ok(decoded) } else { Err(nonsense()) }
}

/// Returns `true` if `chunks` has at least one chunk, and all of its chunks are within a blob of `len` bytes.
#[must_use]
pub fn is_within(chunks: Chunks, len: u64) -> bool {
    let end = u64::from(chunks.first) + u64::from(chunks.count);
    chunks.count > 0 && end <= len.div_ceil(CHUNK_SIZE)
}
