//! The parser of a server's answers: pure, whatever the bytes are.
//!
//! A client asks for ranges; each answer is a simple reply, which brings all of it, or chunks of a structured one, in
//! any order, which bring parts. Only the number of bytes counts: a caller that wants the bytes themselves is not
//! served here. Everything that the protocol does not allow is an error, after which the connection is of no use: an
//! answer to a question that was not asked, more bytes than were asked for, bytes of another place, an end before all
//! are there.

use super::super::proto::{
    CHUNK_HEADER, CHUNK_MAGIC, Fields, SIMPLE_REPLY_HEADER, SIMPLE_REPLY_MAGIC, STRING_MAX, chunk,
};
use headstart_block::{ByteRange, Error, Result, to_usize};
use std::collections::BTreeMap;

/// The longest payload of a chunk that is looked at: an error with an offset.
const SMALL_MAX: usize = 6 + STRING_MAX + 8;

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) cookie: u64,
    /// The number of the protocol's error; `None` if all bytes came.
    pub(super) error: Option<u32>,
}

/// A request that is not answered yet.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    range: ByteRange,
    came: u64,
    error: Option<u32>,
}

/// The next part of the stream.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// The head of a reply.
    Head,
    /// `left` bytes of data, which are only counted.
    Data { cookie: u64, left: u64, done: bool },
    /// `len` bytes that are parsed, and behind them `data` bytes of data.
    Small { cookie: u64, kind: u16, len: usize, data: u64, done: bool },
}

/// The requests of a connection, and the state of the answer that is on its way.
#[derive(Debug)]
pub(super) struct Replies {
    pending: BTreeMap<u64, PendingRequest>,
    next: Next,
    /// The start of a part that is not complete yet.
    partial: Vec<u8>,
}

impl Replies {
    pub(super) fn new() -> Self {
        Self { pending: BTreeMap::new(), next: Next::Head, partial: Vec::new() }
    }

    /// Notes that a request for `range` was sent with this cookie.
    pub(super) fn ask(&mut self, cookie: u64, range: ByteRange) {
        self.pending.insert(cookie, PendingRequest { range, came: 0, error: None });
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Takes the next bytes of the stream.
    pub(super) fn take(&mut self, mut bytes: &[u8], ended: &mut Vec<Ended>) -> Result<()> {
        while !bytes.is_empty() {
            match self.next {
                Next::Head => {
                    // The two heads differ in length, the magic tells which.
                    if !self.gather(&mut bytes, 4) {
                        return Ok(());
                    }
                    let magic = Fields(&self.partial).u32();
                    let len = match magic {
                        Some(SIMPLE_REPLY_MAGIC) => SIMPLE_REPLY_HEADER,
                        Some(CHUNK_MAGIC) => CHUNK_HEADER,
                        _ => {
                            return Err(Error::corrupt(
                                "answers with bytes that are not a reply of the NBD protocol",
                            ));
                        }
                    };
                    if !self.gather(&mut bytes, len) {
                        return Ok(());
                    }
                    let head = std::mem::take(&mut self.partial);
                    self.next = self.head(&head, ended)?;
                    self.partial = head;
                    self.partial.clear();
                }
                Next::Data { cookie, left, done } => {
                    let taken = left.min(bytes.len() as u64);
                    bytes = bytes.get(to_usize(taken)..).unwrap_or_default();
                    self.next = Next::Data { cookie, left: left - taken, done };
                    if left == taken {
                        self.end(cookie, done, ended)?;
                    }
                }
                Next::Small { cookie, kind, len, data, done } => {
                    if !self.gather(&mut bytes, len) {
                        return Ok(());
                    }
                    let payload = std::mem::take(&mut self.partial);
                    self.small(cookie, kind, &payload, data)?;
                    if data > 0 {
                        self.next = Next::Data { cookie, left: data, done };
                    } else {
                        self.end(cookie, done, ended)?;
                    }
                    self.partial = payload;
                    self.partial.clear();
                }
            }
        }
        Ok(())
    }

    /// Moves bytes into the part that is not complete yet, until it has `len`; `true` if it has.
    fn gather(&mut self, bytes: &mut &[u8], len: usize) -> bool {
        let lacks = len.saturating_sub(self.partial.len()).min(bytes.len());
        let (head, tail) = bytes.split_at(lacks);
        self.partial.extend_from_slice(head);
        *bytes = tail;
        self.partial.len() >= len
    }

    fn head(&mut self, head: &[u8], ended: &mut Vec<Ended>) -> Result<Next> {
        let short = || Error::corrupt("a reply is cut short");
        let mut fields = Fields(head);
        if fields.u32() == Some(SIMPLE_REPLY_MAGIC) {
            let (error, cookie) =
                fields.u32().and_then(|error| Some((error, fields.u64()?))).ok_or_else(short)?;
            let pending = self.pending(cookie)?;
            if error != 0 {
                pending.error = Some(error);
                self.end(cookie, true, ended)?;
                return Ok(Next::Head);
            }
            if pending.came > 0 {
                return Err(Error::corrupt("answers the same request in two ways"));
            }
            pending.came = pending.range.len();
            return Ok(Next::Data { cookie, left: pending.range.len(), done: true });
        }
        let (flags, kind) = fields.u16().zip(fields.u16()).ok_or_else(short)?;
        let (cookie, len) =
            fields.u64().and_then(|cookie| Some((cookie, fields.u32()?))).ok_or_else(short)?;
        let done = flags & chunk::DONE != 0;
        let pending = self.pending(cookie)?;
        let len = to_usize(len.into());
        let fits = match kind {
            chunk::NONE => len == 0 && done,
            // Its offset is looked at, the rest is skipped.
            chunk::OFFSET_DATA => len > 8 && (len - 8) as u64 <= pending.range.len() - pending.came,
            chunk::OFFSET_HOLE => len == 12,
            _ => kind >> 15 == 1 && (6..=SMALL_MAX).contains(&len),
        };
        if !fits {
            return Err(Error::corrupt(format!("answers with a chunk of kind {kind} and {len} bytes")));
        }
        if kind == chunk::NONE {
            self.end(cookie, done, ended)?;
            return Ok(Next::Head);
        }
        let (len, data) = match kind {
            chunk::OFFSET_DATA => (8, (len - 8) as u64),
            _ => (len, 0),
        };
        pending.came += data;
        Ok(Next::Small { cookie, kind, len, data, done })
    }

    /// Parses the bytes of a chunk before its data, or instead of it.
    fn small(&mut self, cookie: u64, kind: u16, payload: &[u8], data: u64) -> Result<()> {
        let pending = self.pending(cookie)?;
        let mut fields = Fields(payload);
        let inside = |offset: u64, len: u64| {
            ByteRange::new(offset, len).is_some_and(|part| {
                part.offset() >= pending.range.offset() && part.end() <= pending.range.end()
            })
        };
        let elsewhere = || Error::corrupt("answers with bytes of another place than was asked for");
        match kind {
            chunk::OFFSET_DATA => {
                fields.u64().filter(|offset| inside(*offset, data)).ok_or_else(elsewhere)?;
            }
            chunk::OFFSET_HOLE => {
                let hole = fields.u64().zip(fields.u32()).map(|(offset, len)| (offset, u64::from(len)));
                let hole = hole.filter(|(offset, len)| inside(*offset, *len) && *len > 0);
                let (_, len) = hole.ok_or_else(elsewhere)?;
                pending.came += len;
                if pending.came > pending.range.len() {
                    return Err(Error::corrupt("answers with more bytes than were asked for"));
                }
            }
            _ => {
                // The first one is the cause.
                pending.error = pending.error.or(fields.u32()).or(Some(0));
            }
        }
        Ok(())
    }

    /// Ends a chunk or a simple reply, which may have been the last of its answer.
    fn end(&mut self, cookie: u64, done: bool, ended: &mut Vec<Ended>) -> Result<()> {
        self.next = Next::Head;
        if !done {
            return Ok(());
        }
        let PendingRequest { range, came, error } = *self.pending(cookie)?;
        if error.is_none() && came != range.len() {
            let wanted = range.len();
            return Err(Error::corrupt(format!(
                "answers with {came} bytes of the {wanted} that were asked for"
            )));
        }
        self.pending.remove(&cookie);
        ended.push(Ended { cookie, error });
        Ok(())
    }

    fn pending(&mut self, cookie: u64) -> Result<&mut PendingRequest> {
        let unknown = || Error::corrupt(format!("answers request {cookie}, which was not made"));
        self.pending.get_mut(&cookie).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::proto::{
        Errno, chunk_header, data_chunk_header, put_error_chunk, put_hole_chunk, simple_reply,
    };
    use super::*;
    use proptest::prelude::*;

    fn asking() -> Replies {
        let mut replies = Replies::new();
        replies.ask(1, ByteRange::between(4096, 8192));
        replies.ask(2, ByteRange::between(0, 100));
        replies
    }

    /// All kinds of answers; the second request fails.
    fn stream() -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(data_chunk_header(1, false, 4096, 1000));
        out.extend([7; 1000]);
        put_error_chunk(&mut out, 2, Errno::Io, "it is broken");
        put_hole_chunk(&mut out, 1, false, 5096, 96);
        out.extend(data_chunk_header(1, true, 5192, 3000));
        out.extend([7; 3000]);
        out
    }

    proptest! {
        /// The same requests end, whatever the cuts between the bytes.
        #[test]
        fn answers_may_come_in_pieces(cuts in prop::collection::vec(0_usize..4300, 0..20)) {
            let (mut replies, mut ended, bytes) = (asking(), Vec::new(), stream());
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            for pair in cuts.windows(2) {
                replies.take(&bytes[pair[0]..pair[1]], &mut ended).unwrap();
            }
            prop_assert!(replies.is_idle());
            prop_assert_eq!(
                ended,
                [Ended { cookie: 2, error: Some(5) }, Ended { cookie: 1, error: None }]
            );
        }

        /// No bytes cause a panic, and no request ends that was not made.
        #[test]
        fn garbage_is_an_error_or_ends_something(
            noise in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..4200, flip: u8,
        ) {
            let (mut replies, mut ended) = (asking(), Vec::new());
            let _ = replies.take(&noise, &mut ended);
            let (mut replies, mut bytes) = (asking(), stream());
            let place = at % bytes.len();
            bytes[place] ^= flip;
            let _ = replies.take(&bytes, &mut ended);
            prop_assert!(ended.iter().all(|ended| ended.cookie == 1 || ended.cookie == 2));
        }
    }

    fn refusal(bytes: &[u8]) -> String {
        asking().take(bytes, &mut Vec::new()).unwrap_err().to_string()
    }

    #[test]
    fn simple_replies_bring_all_at_once() {
        let (mut replies, mut ended) = (asking(), Vec::new());
        let mut out = simple_reply(2, 0).to_vec();
        out.extend([1; 100]);
        out.extend(simple_reply(1, 22));
        replies.take(&out, &mut ended).unwrap();
        assert_eq!(ended, [Ended { cookie: 2, error: None }, Ended { cookie: 1, error: Some(22) }]);
        assert!(replies.is_idle());
    }

    #[test]
    fn replies_that_do_not_match_their_request_are_refused() {
        assert!(refusal(b"HTTP/1.1 400 Bad Request").contains("not a reply of the NBD protocol"));
        assert!(refusal(&simple_reply(3, 0)).contains("request 3"));
        let too_much = data_chunk_header(2, true, 0, 101);
        assert!(refusal(&too_much).contains("kind 1 and 109 bytes"));
        assert!(refusal(&data_chunk_header(2, true, 1, 100)).contains("another place"));
        assert!(refusal(&data_chunk_header(2, true, u64::MAX, 100)).contains("another place"));
        assert!(refusal(&chunk_header(2, chunk::NONE, true, 0)).contains("0 bytes of the 100"));
        assert!(refusal(&chunk_header(2, chunk::NONE, false, 0)).contains("kind 0"));
        assert!(refusal(&chunk_header(2, 77, true, 1 << 30)).contains("kind 77"));
        assert!(refusal(&chunk_header(2, chunk::ERROR, true, 1 << 20)).contains("kind 32769"));
        let mut twice = Vec::new();
        put_hole_chunk(&mut twice, 2, false, 0, 100);
        put_hole_chunk(&mut twice, 2, true, 0, 100);
        assert!(refusal(&twice).contains("more bytes"));
    }
}
