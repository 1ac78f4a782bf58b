//! The words of the NBD protocol: numbers, and the bytes of each message.
//!
//! Nothing here decides anything. All numbers travel big-endian. Messages from a client, all of fixed layout:
//!
//! ```text
//! option   u64 IHAVEOPT, u32 option, u32 length, then `length` bytes
//! request  u32 magic, u16 flags, u16 command, u64 cookie, u64 offset, u32 length, then a write's bytes
//! ```
//!
//! and from the server:
//!
//! ```text
//! option reply      u64 magic, u32 option, u32 kind, u32 length, then `length` bytes
//! simple reply      u32 magic, u32 error, u64 cookie, then a read's bytes
//! structured chunk  u32 magic, u16 flags, u16 kind, u64 cookie, u32 length, then `length` bytes
//! ```

use headstart_block::exact;

/// `NBDMAGIC`: the first word of a server.
pub const GREETING: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: the second word of a server, and the first of each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The first word of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The first word of each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The first word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The first word of a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of an option before its data.
pub const OPTION_HEADER: usize = 16;
/// Bytes of a request before a write's data.
pub const REQUEST_HEADER: usize = 28;
/// Bytes of a simple reply before a read's data.
pub const SIMPLE_REPLY_HEADER: usize = 16;
/// Bytes of a structured chunk before its payload.
pub const CHUNK_HEADER: usize = 20;
/// Bytes of a data chunk before the data: header and offset.
pub const DATA_CHUNK_HEADER: usize = CHUNK_HEADER + 8;

/// The longest string that the protocol allows, in bytes: names, descriptions, messages.
pub const STRING_MAX: usize = 4096;
/// The largest read or write that is served, in bytes: the most that QEMU sends, and the most that the protocol lets a
/// client assume without asking.
pub const PAYLOAD_MAX: u32 = 32 << 20;

/// Handshake flag of both sides: the server knows the fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag of both sides: no padding after the answer to [`option::EXPORT_NAME`].
pub const FLAG_NO_ZEROES: u16 = 2;

/// Options of the handshake.
pub mod option {
    /// Use an export, the old way: no error can be answered.
    pub const EXPORT_NAME: u32 = 1;
    /// Give up.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Encrypt from here on.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and use it.
    pub const GO: u32 = 7;
    /// Answer by structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name the kinds of block status an export has.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose kinds of block status.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of reply to an option.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export of the list.
    pub const SERVER: u32 = 2;
    /// A fact about an export.
    pub const INFO: u32 = 3;
    /// A kind of block status.
    pub const META_CONTEXT: u32 = 4;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The option is forbidden here.
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    /// The option's data makes no sense.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// The option is allowed only over TLS.
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
}

/// Facts about an export.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// Its canonical name.
    pub const NAME: u16 = 1;
    /// A description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Sizes of requests: smallest, best, largest.
    pub const BLOCK_SIZE: u16 = 3;
}

/// The abilities of an export.
pub mod export_flag {
    /// The other flags have a meaning.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// The export can flush.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The export can make single writes durable.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The export can trim.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// The export can write zeros without their being sent.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The export can answer a read in one chunk.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see the same data, flushes included.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The export can become larger (an extension that few clients know).
    pub const SEND_RESIZE: u16 = 1 << 9;
    /// The export takes hints about the bytes that will be read.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The export can refuse to write zeros if that would be slower than a write.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands of requests.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Goodbye.
    pub const DISCONNECT: u16 = 2;
    /// Make all writes durable.
    pub const FLUSH: u16 = 3;
    /// The bytes are not needed any more.
    pub const TRIM: u16 = 4;
    /// The bytes will be read.
    pub const CACHE: u16 = 5;
    /// Write zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report holes.
    pub const BLOCK_STATUS: u16 = 7;
    /// Become larger: the new size is in the offset's place.
    pub const RESIZE: u16 = 8;
}

/// Flags of requests.
pub mod command_flag {
    /// Durable before it is answered.
    pub const FUA: u16 = 1;
    /// Zero without punching holes.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer a read in one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zero only if that is faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Kinds of structured chunks.
pub mod chunk {
    /// Flag: the last one of its reply.
    pub const DONE: u16 = 1;
    /// Only the end of the reply.
    pub const NONE: u16 = 0;
    /// Offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Offset and length of zeros.
    pub const OFFSET_HOLE: u16 = 2;
    /// Context and extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// Error and message.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// The only kind of block status here.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number of [`BASE_ALLOCATION`] in replies; any would do.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// The state of an extent that is not allocated, and reads as zeros.
pub const STATE_HOLE_ZERO: u32 = 3;

/// Errors of requests: numbers of the protocol, whatever the system calls them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: the export is read-only.
    Perm = 1,
    /// The storage failed.
    Io = 5,
    /// The request makes no sense.
    Inval = 22,
    /// No space, or past the end.
    NoSpc = 28,
    /// The request would not be fast.
    NotSup = 95,
}

/// Reads big-endian numbers and byte runs off the front of a slice.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string behind its length.
    pub(crate) fn string(&mut self) -> Option<&'a str> {
        let len = self.u32()?;
        let bytes = self.bytes(usize::try_from(len).ok()?)?;
        (bytes.len() <= STRING_MAX).then_some(())?;
        std::str::from_utf8(bytes).ok()
    }
}

/// The head of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// See [`option`].
    pub option: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionHeader {
    /// Parses an option's head; `None` if the magic is wrong.
    #[must_use]
    pub fn parse(bytes: &[u8; OPTION_HEADER]) -> Option<Self> {
        let mut fields = Fields(bytes);
        (fields.u64()? == OPTION_MAGIC).then_some(())?;
        Some(Self { option: fields.u32()?, len: fields.u32()? })
    }

    /// The bytes as a client sends them.
    #[must_use]
    pub fn encode(&self) -> [u8; OPTION_HEADER] {
        let mut out = [0; OPTION_HEADER];
        out[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[8..12].copy_from_slice(&self.option.to_be_bytes());
        out[12..].copy_from_slice(&self.len.to_be_bytes());
        out
    }
}

/// A request as it came, unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    /// See [`command_flag`].
    pub flags: u16,
    /// See [`command`].
    pub command: u16,
    /// The client's name for the request, which replies repeat.
    pub cookie: u64,
    /// First byte on the disk.
    pub offset: u64,
    /// Number of bytes on the disk.
    pub len: u32,
}

impl NbdRequest {
    /// Parses a request; `None` if the magic is wrong: the bytes after it cannot be trusted then.
    #[must_use]
    pub fn parse(bytes: &[u8; REQUEST_HEADER]) -> Option<Self> {
        let mut fields = Fields(bytes);
        (fields.u32()? == REQUEST_MAGIC).then_some(())?;
        let (flags, command) = (fields.u16()?, fields.u16()?);
        Some(Self { flags, command, cookie: fields.u64()?, offset: fields.u64()?, len: fields.u32()? })
    }

    /// The bytes as a client sends them.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_HEADER] {
        let mut out = [0; REQUEST_HEADER];
        out[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.command.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..].copy_from_slice(&self.len.to_be_bytes());
        out
    }
}

/// The head of a simple reply; `error` is 0 for success.
#[must_use]
pub fn simple_reply(cookie: u64, error: u32) -> [u8; SIMPLE_REPLY_HEADER] {
    let mut out = [0; SIMPLE_REPLY_HEADER];
    out[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}

/// The head of a structured chunk with `len` bytes of payload.
#[must_use]
pub fn chunk_header(cookie: u64, kind: u16, done: bool, len: u32) -> [u8; CHUNK_HEADER] {
    let mut out = [0; CHUNK_HEADER];
    out[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    out[4..6].copy_from_slice(&(if done { chunk::DONE } else { 0 }).to_be_bytes());
    out[6..8].copy_from_slice(&kind.to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out[16..].copy_from_slice(&len.to_be_bytes());
    out
}

/// The head of a chunk with `len` bytes of data from `offset` on; `len` is at most [`PAYLOAD_MAX`].
#[must_use]
pub fn data_chunk_header(cookie: u64, done: bool, offset: u64, len: u32) -> [u8; DATA_CHUNK_HEADER] {
    let mut out = [0; DATA_CHUNK_HEADER];
    out[..CHUNK_HEADER].copy_from_slice(&chunk_header(
        cookie,
        chunk::OFFSET_DATA,
        done,
        len.saturating_add(8),
    ));
    out[CHUNK_HEADER..].copy_from_slice(&offset.to_be_bytes());
    out
}

/// Appends a chunk that says `[offset, offset + len)` is zeros.
pub fn put_hole_chunk(out: &mut Vec<u8>, cookie: u64, done: bool, offset: u64, len: u32) {
    out.extend_from_slice(&chunk_header(cookie, chunk::OFFSET_HOLE, done, 12));
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}

/// Appends the last chunk of a reply: an error, and a message for people.
pub fn put_error_chunk(out: &mut Vec<u8>, cookie: u64, error: Errno, message: &str) {
    // Sixteen bits hold the message's length, and the protocol allows less.
    let message = clip(message, STRING_MAX);
    let len: u16 = exact(message.len(), "it was cut to STRING_MAX");
    out.extend_from_slice(&chunk_header(cookie, chunk::ERROR, true, 6 + u32::from(len)));
    out.extend_from_slice(&(error as u32).to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&message.as_bytes()[..usize::from(len)]);
}

/// Appends a reply to an option.
pub fn put_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    let len: u32 = exact(data.len(), "texts in replies are cut to STRING_MAX");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(data);
}

/// The longest part of `text` from its start that has at most `max` bytes.
pub(crate) fn clip(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_request_survives_the_wire(
            flags: u16, command: u16, cookie: u64, offset: u64, len: u32
        ) {
            let request = NbdRequest { flags, command, cookie, offset, len };
            prop_assert_eq!(NbdRequest::parse(&request.encode()), Some(request));
        }

        #[test]
        fn a_wrong_magic_is_no_request(mut bytes: [u8; REQUEST_HEADER], magic: u32) {
            prop_assume!(magic != REQUEST_MAGIC);
            bytes[..4].copy_from_slice(&magic.to_be_bytes());
            prop_assert_eq!(NbdRequest::parse(&bytes), None);
        }

        #[test]
        fn an_option_survives_the_wire(option: u32, len: u32) {
            let header = OptionHeader { option, len };
            prop_assert_eq!(OptionHeader::parse(&header.encode()), Some(header));
        }

        #[test]
        fn an_error_of_any_length_is_framed(message in ".{0,5000}") {
            let mut out = Vec::new();
            put_error_chunk(&mut out, 7, Errno::Io, &message);
            let len = u32::from_be_bytes(out[16..20].try_into().unwrap()) as usize;
            prop_assert_eq!(out.len(), CHUNK_HEADER + len);
            prop_assert_eq!(usize::from(u16::from_be_bytes(out[24..26].try_into().unwrap())), len - 6);
            prop_assert!(std::str::from_utf8(&out[26..]).is_ok());
        }
    }
}
