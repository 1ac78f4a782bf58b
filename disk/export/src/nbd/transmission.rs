//! The meaning of a request: the pure part of the transmission phase.
//!
//! [`judge`] turns a received request into a [`NbdCommand`] that is valid for this disk, or into a [`NbdRefusal`].
//! A client's numbers are checked here and nowhere else, except that the receiver bounds the length of a write's data.
//! The code that executes a command may rely on this: the range is inside the disk, a read has at most
//! [`PAYLOAD_MAX`] bytes, and the disk is writable if the command writes.

use super::proto::{Errno, NbdRequest, PAYLOAD_MAX, command, command_flag};
use super::proto::{SIMPLE_REPLY_HEADER, put_error_chunk, simple_reply};
use headstart_block::{ByteRange, Error, ErrorKind};

/// The features that client and server agreed on in the handshake, and the operations that the disk allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdSession {
    /// `true` if the client accepts structured replies.
    pub structured: bool,
    /// `true` if the client may send block status requests.
    pub base_allocation: bool,
    /// `true` if the disk is read-only, so that writes are refused.
    pub read_only: bool,
    /// `true` if the client may enlarge the disk.
    pub resizable: bool,
}

/// A checked request, which can be executed as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdCommand {
    /// Read a range of the disk and send its bytes.
    Read {
        /// The range to read.
        range: ByteRange,
        /// `true` if the bytes must be sent in one chunk.
        whole: bool,
    },
    /// Write the bytes that came with the request.
    Write {
        /// The range to write.
        range: ByteRange,
        /// `true` if the bytes must be durable before the request is answered.
        fua: bool,
    },
    /// Make all answered writes durable.
    Flush,
    /// Write zeros to a range.
    Zero {
        /// The range to zero.
        range: ByteRange,
        /// `true` if the zeros must be durable before the request is answered.
        fua: bool,
        /// `true` if the zeros may be written only if that is faster than a write; otherwise the request
        /// fails at once.
        fast: bool,
    },
    /// Discard a range whose bytes are no longer needed.
    Trim {
        /// The range to discard.
        range: ByteRange,
        /// `true` if the discard must be durable before the request is answered.
        fua: bool,
    },
    /// Prepare a range that the client will read soon.
    Cache {
        /// The range that will be read.
        range: ByteRange,
    },
    /// Report the extents of a range: holes and data.
    Status {
        /// The range to report on.
        range: ByteRange,
        /// `true` if only the first extent is to be reported.
        one: bool,
    },
    /// Enlarge the disk.
    Resize {
        /// The new size in bytes.
        size: u64,
    },
    /// Finish the requests in flight, then close.
    Disconnect,
}

/// The error that answers a request which is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRefusal {
    /// The error code of the reply.
    pub errno: Errno,
    /// A message for people, which structured replies carry.
    pub message: &'static str,
}

const fn refuse(errno: Errno, message: &'static str) -> NbdRefusal {
    NbdRefusal { errno, message }
}

/// Checks `request` against the session and a disk of `size` bytes, and returns the command to execute.
///
/// # Errors
/// The [`NbdRefusal`] to answer: the request is invalid, past the disk's end, or not allowed in this session.
pub fn judge(request: &NbdRequest, session: NbdSession, size: u64) -> Result<NbdCommand, NbdRefusal> {
    let has = |flag: u16| request.flags & flag != 0;
    // FUA may be set on any request, as the protocol demands; it has a meaning only if bytes are written.
    let known = command_flag::FUA
        | match request.command {
            command::READ if session.structured => command_flag::DF,
            command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::BLOCK_STATUS => command_flag::REQ_ONE,
            _ => 0,
        };
    if request.flags & !known != 0 {
        return Err(refuse(Errno::Inval, "the request has flags that do not go with it"));
    }
    let fua = has(command_flag::FUA);
    let writes =
        matches!(request.command, command::WRITE | command::TRIM | command::WRITE_ZEROES | command::RESIZE);
    if writes && session.read_only {
        return Err(refuse(Errno::Perm, "this disk is read-only"));
    }
    let inside = || {
        let past = if writes { Errno::NoSpc } else { Errno::Inval };
        let range = ByteRange::new(request.offset, u64::from(request.len));
        range.filter(|range| range.end() <= size).ok_or(refuse(past, "past the end of the disk"))
    };
    match request.command {
        command::READ => {
            let range = inside()?;
            if request.len > PAYLOAD_MAX {
                return Err(refuse(Errno::Inval, "a read of more than 32 MiB"));
            }
            Ok(NbdCommand::Read { range, whole: has(command_flag::DF) })
        }
        command::WRITE => Ok(NbdCommand::Write { range: inside()?, fua }),
        command::FLUSH => Ok(NbdCommand::Flush),
        // NO_HOLE demands that later writes there cannot run out of space. A disk that is a log takes space for
        // each write wherever it goes, so zeros written out would promise no more than zeroing does.
        command::WRITE_ZEROES => {
            Ok(NbdCommand::Zero { range: inside()?, fua, fast: has(command_flag::FAST_ZERO) })
        }
        command::TRIM => Ok(NbdCommand::Trim { range: inside()?, fua }),
        command::CACHE => Ok(NbdCommand::Cache { range: inside()? }),
        command::BLOCK_STATUS if !session.base_allocation => {
            Err(refuse(Errno::Inval, "block status was not negotiated"))
        }
        command::BLOCK_STATUS if request.len == 0 => Err(refuse(Errno::Inval, "block status of no bytes")),
        command::BLOCK_STATUS => Ok(NbdCommand::Status { range: inside()?, one: has(command_flag::REQ_ONE) }),
        command::RESIZE if !session.resizable => {
            Err(refuse(Errno::Perm, "clients may not change the size of this disk"))
        }
        command::RESIZE if request.len != 0 => {
            Err(refuse(Errno::Inval, "a resize has its size in the offset's place, and no length"))
        }
        command::RESIZE => Ok(NbdCommand::Resize { size: request.offset }),
        command::DISCONNECT => Ok(NbdCommand::Disconnect),
        _ => Err(refuse(Errno::Inval, "this server does not know the command")),
    }
}

/// Returns the NBD error code for an error of the disk: `Perm` if the disk is read-only, `NoSpc` if it has no space
/// left, `Inval` if it refuses the request as invalid, and [`Errno::Io`] in all other cases.
#[must_use]
pub fn errno_of(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::ReadOnly => Errno::Perm,
        ErrorKind::NoSpace => Errno::NoSpc,
        ErrorKind::Invalid => Errno::Inval,
        _ => Errno::Io,
    }
}

/// Returns the message that a client gets for an error of the disk. The error itself is only logged, because
/// it names paths of this host and addresses of stores.
#[must_use]
pub(crate) fn message_of(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::ReadOnly => "the disk is read-only",
        ErrorKind::NoSpace => "there is no space left for what the disk takes",
        ErrorKind::Invalid => "the disk cannot do that",
        ErrorKind::Corrupt => "bytes of the disk are damaged; the server's log has more",
        ErrorKind::Unavailable => "bytes of the disk cannot be fetched at present; the server's log has more",
        _ => "the disk failed; the server's log has more",
    }
}

/// Appends to `out` the reply to the failed request with identifier `cookie`. `message` is sent only if `structured` is
/// `true`, because simple replies have no message.
pub(crate) fn put_error(out: &mut Vec<u8>, cookie: u64, structured: bool, errno: Errno, message: &str) {
    if structured {
        put_error_chunk(out, cookie, errno, message);
    } else {
        let reply: [u8; SIMPLE_REPLY_HEADER] = simple_reply(cookie, errno as u32);
        out.extend_from_slice(&reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANY: NbdSession =
        NbdSession { structured: true, base_allocation: true, read_only: false, resizable: true };

    fn request(command: u16, flags: u16, offset: u64, len: u32) -> NbdRequest {
        NbdRequest { flags, command, cookie: 1, offset, len }
    }

    proptest! {
        #[test]
        fn accepted_requests_lie_inside_the_disk(
            flags in 0u16..64, command in 0u16..12, offset in 0u64..3000, len in 0u32..3000, size in 0u64..4000,
            structured: bool, base_allocation: bool, read_only: bool, resizable: bool,
        ) {
            let session = NbdSession { structured, base_allocation, read_only, resizable };
            let Ok(command) = judge(&request(command, flags, offset, len), session, size) else {
                return Ok(());
            };
            match command {
                NbdCommand::Read { range, .. } | NbdCommand::Cache { range } | NbdCommand::Status { range, .. } => {
                    prop_assert!(range.end() <= size);
                }
                NbdCommand::Write { range, .. } | NbdCommand::Zero { range, .. } | NbdCommand::Trim { range, .. } => {
                    prop_assert!(range.end() <= size && !read_only);
                }
                NbdCommand::Resize { .. } => prop_assert!(!read_only && resizable),
                NbdCommand::Flush | NbdCommand::Disconnect => {}
            }
        }
    }

    #[test]
    fn refuses_with_the_protocols_errors() {
        let read_only = NbdSession { read_only: true, ..ANY };
        let simple = NbdSession { structured: false, base_allocation: false, ..ANY };
        let fixed = NbdSession { resizable: false, ..ANY };
        let cases = [
            (request(command::WRITE, 0, 0, 512), read_only, Errno::Perm),
            (request(command::TRIM, 0, 0, 512), read_only, Errno::Perm),
            (request(command::RESIZE, 0, 8192, 0), read_only, Errno::Perm),
            (request(command::RESIZE, 0, 8192, 0), fixed, Errno::Perm),
            (request(command::WRITE, 0, 4000, 512), ANY, Errno::NoSpc),
            (request(command::WRITE_ZEROES, 0, u64::MAX, 2), ANY, Errno::NoSpc),
            (request(command::READ, 0, u64::MAX, 2), ANY, Errno::Inval),
            (request(command::READ, 0, 4000, 512), ANY, Errno::Inval),
            (request(command::READ, command_flag::DF, 0, 512), simple, Errno::Inval),
            (request(command::READ, command_flag::NO_HOLE, 0, 512), ANY, Errno::Inval),
            (request(command::BLOCK_STATUS, 0, 0, 512), simple, Errno::Inval),
            (request(command::BLOCK_STATUS, 0, 0, 0), ANY, Errno::Inval),
            (request(command::RESIZE, 0, 8192, 1), ANY, Errno::Inval),
            (request(99, 0, 0, 0), ANY, Errno::Inval),
        ];
        for (request, session, errno) in cases {
            assert_eq!(judge(&request, session, 4096).unwrap_err().errno, errno, "{request:?}");
        }
        let large = request(command::READ, 0, 0, PAYLOAD_MAX + 1);
        assert_eq!(judge(&large, ANY, u64::MAX).unwrap_err().errno, Errno::Inval);
    }

    #[test]
    fn errors_of_the_disk_have_numbers() {
        for (kind, errno) in [
            (ErrorKind::ReadOnly, Errno::Perm),
            (ErrorKind::NoSpace, Errno::NoSpc),
            (ErrorKind::Invalid, Errno::Inval),
            (ErrorKind::Corrupt, Errno::Io),
            (ErrorKind::Unavailable, Errno::Io),
        ] {
            assert_eq!(errno_of(&Error::new(kind, "x")), errno);
        }
    }
}
