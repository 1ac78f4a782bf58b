//! The NBD protocol's constants, and the encoding of its messages.
//!
//! This module decides nothing. All numbers are sent big-endian. A client's messages, all of fixed layout:
//!
//! ```text
//! option   u64 IHAVEOPT, u32 option, u32 length, then `length` bytes
//! request  u32 magic, u16 flags, u16 command, u64 cookie, u64 offset, u32 length, then a write's bytes
//! ```
//!
//! The server's messages:
//!
//! ```text
//! option reply      u64 magic, u32 option, u32 kind, u32 length, then `length` bytes
//! simple reply      u32 magic, u32 error, u64 cookie, then a read's bytes
//! structured chunk  u32 magic, u16 flags, u16 kind, u64 cookie, u32 length, then `length` bytes
//! ```

use headstart_block::exact;

/// `NBDMAGIC`, the magic number with which the server begins a connection.
pub const GREETING: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, the magic number that follows [`GREETING`], and with which each option of a client begins.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The magic number with which each reply to an option begins.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The magic number with which each request begins.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The magic number with which a simple reply begins.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The magic number with which each chunk of a structured reply begins.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Length of the header of an option, in bytes; the option's data follow it.
pub const OPTION_HEADER: usize = 16;
/// Length of a request, in bytes; the data of a write follow it.
pub const REQUEST_HEADER: usize = 28;
/// Length of a simple reply, in bytes; the data of a read follow it.
pub const SIMPLE_REPLY_HEADER: usize = 16;
/// Length of the header of a structured reply's chunk, in bytes; the payload follows it.
pub const CHUNK_HEADER: usize = 20;
/// Length of the header and the offset of a chunk of data, in bytes; the data follow.
pub const DATA_CHUNK_HEADER: usize = CHUNK_HEADER + 8;

/// The maximum length that the protocol allows for a name, a description or a message, in bytes.
pub const STRING_MAX: usize = 4096;
/// The maximum length of a read or write that is served, in bytes. QEMU sends no longer ones. By the protocol, a client
/// that has not asked for the maximum must not send longer ones.
pub const PAYLOAD_MAX: u32 = 32 << 20;

/// Handshake flag of server and client: the handshake is the fixed newstyle, which answers unknown options.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag of server and client: 124 bytes of padding after the answer to [`option::EXPORT_NAME`] are
/// omitted.
pub const FLAG_NO_ZEROES: u16 = 2;

/// Options of the handshake.
pub mod option {
    /// Choose an export and start transmission, by the oldest form of the protocol. The server cannot answer
    /// an error and closes the connection instead.
    pub const EXPORT_NAME: u32 = 1;
    /// End the handshake and the connection.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Encrypt the connection with TLS from here on.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export, choose it and start transmission.
    pub const GO: u32 = 7;
    /// Use structured replies from here on.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts (kinds of block status) of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts (kinds of block status). The replies to later `BLOCK_STATUS` requests report on these.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of reply to an option.
pub mod option_reply {
    /// The option succeeded; the last reply to it.
    pub const ACK: u32 = 1;
    /// One export in the answer to a list request.
    pub const SERVER: u32 = 2;
    /// One fact about an export; the module `info` has the types of facts.
    pub const INFO: u32 = 3;
    /// One metadata context: its name and the number that replies use for it.
    pub const META_CONTEXT: u32 = 4;
    /// The server does not know the option.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The server's policy forbids the option.
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    /// The option's data are invalid.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// The option is allowed only over TLS.
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    /// The server has no export of that name, or hides it from this client.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
}

/// Facts about an export.
pub mod info {
    /// The export's size in bytes and its transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's canonical name.
    pub const NAME: u16 = 1;
    /// The export's description, for people.
    pub const DESCRIPTION: u16 = 2;
    /// The minimum, preferred and maximum size of requests, in bytes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// The abilities of an export.
pub mod export_flag {
    /// The transmission flags are valid; always set.
    pub const HAS_FLAGS: u16 = 1;
    /// The export is read-only: writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// The server handles flush requests.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The server handles the FUA flag: a single write is durable before it is answered.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The server handles trim requests.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// The server handles requests to write zeros, whose data are not transmitted.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The server handles the DF flag: the data of a read are answered in one chunk.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections are consistent: a flush on one covers the answered writes of all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The server handles requests to resize the export (an extension that few clients know).
    pub const SEND_RESIZE: u16 = 1 << 9;
    /// The server handles cache requests: hints that bytes will be read.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The server handles the FAST_ZERO flag: a request to write zeros fails if it would be slower than a
    /// write.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands of requests.
pub mod command {
    /// Read a range.
    pub const READ: u16 = 0;
    /// Write a range; the data follow the request.
    pub const WRITE: u16 = 1;
    /// Close the connection once all requests are answered; this request has no reply.
    pub const DISCONNECT: u16 = 2;
    /// Make all answered writes durable.
    pub const FLUSH: u16 = 3;
    /// Discard a range whose bytes are not needed any more.
    pub const TRIM: u16 = 4;
    /// Prepare a range that will be read soon.
    pub const CACHE: u16 = 5;
    /// Write zeros to a range.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report the extents of a range: holes and data.
    pub const BLOCK_STATUS: u16 = 7;
    /// Enlarge the export; the request's offset field has the new size in bytes.
    pub const RESIZE: u16 = 8;
}

/// Flags of requests.
pub mod command_flag {
    /// Make the written bytes durable before the request is answered.
    pub const FUA: u16 = 1;
    /// Write zeros without deallocating the range.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer the read's data in one chunk.
    pub const DF: u16 = 1 << 2;
    /// Report only the first extent of the range.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Write zeros only if that is faster than a write; otherwise fail at once.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Kinds of structured chunks.
pub mod chunk {
    /// Chunk flag: this is the last chunk of its reply.
    pub const DONE: u16 = 1;
    /// Chunk type without payload, which only ends a reply.
    pub const NONE: u16 = 0;
    /// Chunk type: an offset on the disk and the data from there on.
    pub const OFFSET_DATA: u16 = 1;
    /// Chunk type: the offset and the length of a range of zeros.
    pub const OFFSET_HOLE: u16 = 2;
    /// Chunk type: the number of a metadata context, and the lengths and states of extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// Chunk type: an error code and a message for people.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// The name of the only metadata context (kind of block status) that this server supports: allocated or hole.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number that stands for [`BASE_ALLOCATION`] in replies. The server may choose any.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// The block status flags of an extent that is a hole and reads as zeros.
pub const STATE_HOLE_ZERO: u32 = 3;

/// The error codes of replies. The protocol fixes the numbers, independent of the operating system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: the export is read-only.
    Perm = 1,
    /// An I/O error of the storage.
    Io = 5,
    /// The request is invalid.
    Inval = 22,
    /// The storage has no space, or a write extends past the disk's end.
    NoSpc = 28,
    /// A request to write zeros has the flag `FAST_ZERO`, but would not be faster than a write.
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

/// The header of an option, which a client sends during the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// The number of the option, one of the module [`option`]; others are possible.
    pub option: u32,
    /// Length of the option's data, which follow, in bytes.
    pub len: u32,
}

impl OptionHeader {
    /// Parses an option's header; returns `None` if its magic number is wrong.
    #[must_use]
    pub fn parse(bytes: &[u8; OPTION_HEADER]) -> Option<Self> {
        let mut fields = Fields(bytes);
        (fields.u64()? == OPTION_MAGIC).then_some(())?;
        Some(Self { option: fields.u32()?, len: fields.u32()? })
    }

    /// Encodes the header as a client sends it.
    #[must_use]
    pub fn encode(&self) -> [u8; OPTION_HEADER] {
        let mut out = [0; OPTION_HEADER];
        out[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[8..12].copy_from_slice(&self.option.to_be_bytes());
        out[12..].copy_from_slice(&self.len.to_be_bytes());
        out
    }
}

/// A request as received from a client; only its magic number was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    /// The flags, a sum of those of the module [`command_flag`]; others are possible.
    pub flags: u16,
    /// The number of the command, one of the module [`command`]; others are possible.
    pub command: u16,
    /// The client's identifier of the request; the reply repeats it.
    pub cookie: u64,
    /// Offset of the first byte on the disk; for [`command::RESIZE`] the new size in bytes.
    pub offset: u64,
    /// Length of the requested range, in bytes.
    pub len: u32,
}

impl NbdRequest {
    /// Parses a request; returns `None` if its magic number is wrong: the bytes that follow cannot be
    /// interpreted then.
    #[must_use]
    pub fn parse(bytes: &[u8; REQUEST_HEADER]) -> Option<Self> {
        let mut fields = Fields(bytes);
        (fields.u32()? == REQUEST_MAGIC).then_some(())?;
        let (flags, command) = (fields.u16()?, fields.u16()?);
        Some(Self { flags, command, cookie: fields.u64()?, offset: fields.u64()?, len: fields.u32()? })
    }

    /// Encodes the request as a client sends it.
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

/// Encodes the header of a simple reply to the request with identifier `cookie`; `error` is 0 for success, otherwise an
/// error code of the protocol ([`Errno`]).
#[must_use]
pub(crate) fn simple_reply(cookie: u64, error: u32) -> [u8; SIMPLE_REPLY_HEADER] {
    let mut out = [0; SIMPLE_REPLY_HEADER];
    out[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}

/// Encodes the header of a structured reply's chunk with `len` bytes of payload. `cookie` is the identifier of the
/// request, `kind` a chunk type of the module [`chunk`], and `done` marks the reply's last chunk.
#[must_use]
pub(crate) fn chunk_header(cookie: u64, kind: u16, done: bool, len: u32) -> [u8; CHUNK_HEADER] {
    let mut out = [0; CHUNK_HEADER];
    out[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    out[4..6].copy_from_slice(&(if done { chunk::DONE } else { 0 }).to_be_bytes());
    out[6..8].copy_from_slice(&kind.to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out[16..].copy_from_slice(&len.to_be_bytes());
    out
}

/// Encodes the header of a chunk with `len` bytes of data from `offset` on; `len` is at most [`PAYLOAD_MAX`].
/// `done` marks the reply's last chunk.
#[must_use]
pub(crate) fn data_chunk_header(cookie: u64, done: bool, offset: u64, len: u32) -> [u8; DATA_CHUNK_HEADER] {
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

/// Appends to `out` a chunk that reports the `len` bytes from `offset` on as zeros. `cookie` is the identifier of the
/// request; `done` marks the reply's last chunk.
pub(crate) fn put_hole_chunk(out: &mut Vec<u8>, cookie: u64, done: bool, offset: u64, len: u32) {
    out.extend_from_slice(&chunk_header(cookie, chunk::OFFSET_HOLE, done, 12));
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}

/// Appends to `out` the last chunk of a failed reply: the error code, and a message for people, which is cut at the
/// protocol's limit ([`STRING_MAX`]). `cookie` is the identifier of the request.
pub(crate) fn put_error_chunk(out: &mut Vec<u8>, cookie: u64, error: Errno, message: &str) {
    // Sixteen bits hold the message's length, and the protocol allows less.
    let message = clip(message, STRING_MAX);
    let len: u16 = exact(message.len(), "it was cut to STRING_MAX");
    out.extend_from_slice(&chunk_header(cookie, chunk::ERROR, true, 6 + u32::from(len)));
    out.extend_from_slice(&(error as u32).to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&message.as_bytes()[..usize::from(len)]);
}

/// Appends to `out` a reply to the option number `option`, with `data` as its data. `kind` is a type of the module
/// [`option_reply`].
pub(crate) fn put_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
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
