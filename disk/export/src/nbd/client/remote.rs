//! A disk that another process serves, as a block device of this one.
//!
//! Each request takes a connection of its own for as long as it takes, so that threads do not wait for each other and a
//! reply is received by the thread that asked, into the buffer that it brought. Flushes have connections of their own:
//! while a flush waits for flash, reads and writes go on.
//!
//! # The end
//!
//! The disk is of no use once a connection is lost: the outcome of the requests on it is unknown. The owner decides how
//! to react, *before* any request fails ([`RemoteDisk::new`]): a process that serves a guest ends itself, so that the
//! guest sends its requests again to the successor, and is not told of a failure that the disk never had.

use super::super::proto::{
    BASE_ALLOCATION_ID, CHUNK_HEADER, CHUNK_MAGIC, Fields, NbdRequest, REQUEST_HEADER, STATE_HOLE_ZERO,
    STRING_MAX, chunk, command, command_flag,
};
use super::super::spin_policy::SpinPolicy;
use super::super::wire::{Received, receive, receive_soon};
use super::Line;
use super::handshake::{Facts, choose_with_holes};
use crate::processors::processors;
use headstart_block::{
    BlockDevice, ByteRange, Error, ErrorKind, Extent, Result, SECTOR_SIZE, exact, to_usize,
};
use parking_lot::{Condvar, Mutex};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time that the server may take until a connection is ready.
const CONNECT: Duration = Duration::from_secs(30);

/// The number of bytes that are received at once, beside those that go straight to their target.
const BUFFER: usize = 64 << 10;

/// The longest payload of a chunk that is no data: an error, with its message and an offset.
const SMALL_MAX: usize = 6 + STRING_MAX + 8;

/// The most bytes that one request zeroes.
const ZEROES_MAX: u64 = 1 << 30;

/// The most bytes that one question about holes covers: the server looks at each extent of them.
const EXTENT_MAX: u64 = 16 << 20;

/// The most small reads that are sent together.
const READS_TOGETHER: usize = 32;

/// The owner's reaction to the loss of a connection.
type OnLoss = Box<dyn Fn(&Error) + Send + Sync>;

/// A block device whose data another process serves over NBD. Each request takes a connection of its own until it is
/// answered. Once a connection is lost the disk cannot be used any more, because the outcome of the requests on that
/// connection is unknown.
pub struct RemoteDisk {
    name: String,
    size: AtomicU64,
    facts: Facts,
    requests: Connections,
    flushes: Connections,
    on_loss: OnLoss,
}

/// Connections that take turns.
struct Connections {
    idle: Mutex<Vec<Connection>>,
    returned: Condvar,
}

/// A connection in its transmission phase, with at most one request on it.
struct Connection {
    socket: OwnedFd,
    spin_policy: SpinPolicy,
    cookie: u64,
    buffer: Box<[u8]>,
    /// The received bytes that were not looked at yet.
    filled: std::ops::Range<usize>,
}

/// The end of a request that did not succeed.
enum Failure {
    /// The server's error.
    Refused(Error),
    /// The connection is of no use any more.
    Lost(Error),
}

type Answered<T> = std::result::Result<T, Failure>;

/// The place where the data of a reply goes.
enum Sink<'a> {
    None,
    /// The bytes of the disk from this offset on.
    Data(&'a mut [u8], u64),
    /// The first extent: its length and its state.
    Extent(&'a mut (u32, u32)),
}

/// The head of a chunk of a reply.
struct Chunk {
    kind: u16,
    cookie: u64,
    len: usize,
    done: bool,
}

/// A reply so far.
#[derive(Default)]
struct Reply {
    /// Bytes that came.
    came: u64,
    refused: Option<Error>,
    done: bool,
}

impl RemoteDisk {
    /// Performs the handshake for the export `name` on each of `connections`. The last `flushing` of them
    /// carry only flushes, the others all other requests. `on_loss` is called when a connection is lost, before
    /// any request fails because of the loss. A process that serves a guest can end itself in `on_loss`: the guest then
    /// sends its requests again, to the next process.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if `flushing` is 0 or leaves no connection for other requests; errors of the
    /// handshakes.
    pub fn new(
        connections: Vec<OwnedFd>,
        flushing: usize,
        name: &str,
        on_loss: impl Fn(&Error) + Send + Sync + 'static,
    ) -> Result<Self> {
        if flushing == 0 || connections.len() <= flushing {
            return Err(Error::invalid("there are too few connections to the disk").about(name));
        }
        let (mut ready, mut facts) = (Vec::new(), None);
        for socket in connections {
            let (connection, found) = Connection::begin(socket, name).map_err(|e| e.about(name))?;
            ready.push(connection);
            facts = Some(found);
        }
        let facts = facts.ok_or_else(|| Error::invalid("there is no connection"))?;
        let flushes = Connections::of(ready.split_off(ready.len() - flushing));
        Ok(Self {
            name: name.to_owned(),
            size: AtomicU64::new(facts.size),
            facts,
            requests: Connections::of(ready),
            flushes,
            on_loss: Box::new(on_loss),
        })
    }

    /// Sets the disk's new size, in bytes. The NBD protocol has no message for a changed size: the process
    /// that serves the disk reports it by other means.
    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let size = self.size();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            let cause = format!("{len} bytes from {offset} on are beyond its {size}");
            return Err(Error::invalid(cause).about(&self.name));
        }
        Ok(())
    }

    fn check_aligned(&self, range: ByteRange) -> Result<()> {
        if !range.is_aligned(SECTOR_SIZE) {
            return Err(Error::invalid("a write is not of whole sectors").about(&self.name));
        }
        self.check(range.offset(), range.len())
    }

    fn ask(
        &self,
        connections: &Connections,
        request: NbdRequest,
        payload: &[u8],
        sink: Sink<'_>,
    ) -> Result<()> {
        let mut connection = connections.take();
        let answered = connection.ask(request, payload, sink);
        connections.give_back(connection);
        answered.map_err(|failure| self.failed(failure))
    }

    /// The error of a request; a loss is reported to the owner first.
    fn failed(&self, failure: Failure) -> Error {
        match failure {
            Failure::Refused(error) => error.about(&self.name),
            Failure::Lost(error) => {
                let error = error.about(&self.name);
                (self.on_loss)(&error);
                error
            }
        }
    }
}

/// A request of less than 4 GiB without flags; its cookie is set by the connection.
fn request(command: u16, offset: u64, len: u64) -> NbdRequest {
    NbdRequest {
        flags: 0,
        command,
        cookie: 0,
        offset,
        len: exact(len, "requests are cut to PAYLOAD_MAX, ZEROES_MAX or EXTENT_MAX bytes"),
    }
}

impl BlockDevice for RemoteDisk {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = ByteRange::new(offset, buf.len() as u64).unwrap_or(ByteRange::between(0, u64::MAX));
        self.check(range.offset(), range.len())?;
        let mut rest = buf;
        for part in range.parts(self.facts.longest) {
            let (now, later) = rest.split_at_mut(to_usize(part.len()));
            let sink = Sink::Data(now, part.offset());
            self.ask(&self.requests, request(command::READ, part.offset(), part.len()), &[], sink)?;
            rest = later;
        }
        Ok(())
    }

    fn read_local_parts(&self, parts: &mut [(&mut [u8], u64)]) -> Vec<Result<()>> {
        let is_simple = |(buf, offset): &(&mut [u8], u64)| {
            let len = buf.len() as u64;
            (1..=self.facts.longest).contains(&len) && self.check(*offset, len).is_ok()
        };
        if parts.len() < 2 || !parts.iter().all(is_simple) {
            return parts.iter_mut().map(|(buf, offset)| self.read_at(buf, *offset)).collect();
        }
        let mut connection = self.requests.take();
        let answered = connection.read_parts(parts);
        self.requests.give_back(connection);
        let about = |error: Error| error.about(&self.name);
        match answered {
            Ok(refused) => {
                refused.into_iter().map(|refused| refused.map_or(Ok(()), |e| Err(about(e)))).collect()
            }
            Err(failure) => {
                let first = self.failed(failure);
                let same = || Error::new(first.kind(), first.to_string());
                parts.iter().map(|_| Err(same())).collect()
            }
        }
    }

    fn reads_together(&self) -> usize {
        READS_TOGETHER
    }

    fn is_read_only(&self) -> bool {
        self.facts.read_only
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.ask(&self.requests, request(command::RESIZE, size, 0), &[], Sink::None)?;
        self.size.fetch_max(size, Ordering::AcqRel);
        Ok(())
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        self.check(offset, 1)?;
        let len = self.size().saturating_sub(offset).min(EXTENT_MAX);
        let mut extent = (0, 0);
        let asked =
            NbdRequest { flags: command_flag::REQ_ONE, ..request(command::BLOCK_STATUS, offset, len) };
        self.ask(&self.requests, asked, &[], Sink::Extent(&mut extent))?;
        let (found, state) = extent;
        let end = offset + u64::from(found).clamp(1, len);
        Ok(Extent {
            range: ByteRange::between(offset, end),
            zero: state & STATE_HOLE_ZERO == STATE_HOLE_ZERO,
        })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let range = ByteRange::new(offset, data.len() as u64).unwrap_or(ByteRange::between(0, u64::MAX));
        self.check_aligned(range)?;
        let mut rest = data;
        for part in range.parts(self.facts.longest) {
            let (now, later) = rest.split_at(to_usize(part.len()));
            self.ask(&self.requests, request(command::WRITE, part.offset(), part.len()), now, Sink::None)?;
            rest = later;
        }
        Ok(())
    }

    fn write_zeroes(&self, range: ByteRange) -> Result<()> {
        self.check_aligned(range)?;
        for part in range.parts(ZEROES_MAX) {
            let asked = request(command::WRITE_ZEROES, part.offset(), part.len());
            self.ask(&self.requests, asked, &[], Sink::None)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if self.facts.read_only {
            return Ok(());
        }
        self.ask(&self.flushes, request(command::FLUSH, 0, 0), &[], Sink::None)
    }
}

impl Connections {
    fn of(idle: Vec<Connection>) -> Self {
        Self { idle: Mutex::new(idle), returned: Condvar::new() }
    }

    /// The connection that was used last, whose server is most likely awake; waits if all are in use.
    fn take(&self) -> Connection {
        let mut idle = self.idle.lock();
        loop {
            if let Some(connection) = idle.pop() {
                return connection;
            }
            self.returned.wait(&mut idle);
        }
    }

    fn give_back(&self, connection: Connection) {
        self.idle.lock().push(connection);
        self.returned.notify_one();
    }
}

impl Connection {
    #[expect(clippy::disallowed_methods, reason = "a handshake has a deadline")]
    fn begin(socket: OwnedFd, export: &str) -> Result<(Self, Facts)> {
        let mut line = Line { socket, until: Instant::now() + CONNECT };
        let facts = choose_with_holes(&mut line, export)?;
        let Line { socket, .. } = line;
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, None)
                .map_err(|e| Error::io("cannot be set up", e.into()))?;
        }
        let spin_policy = SpinPolicy::new(processors());
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Ok((Self { socket, spin_policy, cookie: 0, buffer, filled: 0..0 }, facts))
    }

    /// Sends a request with its payload, and receives the reply to it.
    fn ask(&mut self, request: NbdRequest, payload: &[u8], sink: Sink<'_>) -> Answered<()> {
        self.cookie = self.cookie.wrapping_add(1);
        let head = NbdRequest { cookie: self.cookie, ..request }.encode();
        send_both(&self.socket, &head, payload).map_err(lost)?;
        self.reply(sink)
    }

    /// Sends the requests for several parts at once, and receives their replies, in any order: the error of each that
    /// was refused.
    fn read_parts(&mut self, parts: &mut [(&mut [u8], u64)]) -> Answered<Vec<Option<Error>>> {
        let first = self.cookie.wrapping_add(1);
        let mut heads = Vec::with_capacity(parts.len() * REQUEST_HEADER);
        for (buf, offset) in &*parts {
            self.cookie = self.cookie.wrapping_add(1);
            let head =
                NbdRequest { cookie: self.cookie, ..request(command::READ, *offset, buf.len() as u64) };
            heads.extend_from_slice(&head.encode());
        }
        send_both(&self.socket, &heads, &[]).map_err(lost)?;
        let mut replies: Vec<_> = parts.iter().map(|_| Reply::default()).collect();
        while !replies.iter().all(|reply| reply.done) {
            let chunk = self.chunk()?;
            let at = to_usize(chunk.cookie.wrapping_sub(first));
            let (Some((buf, offset)), Some(reply)) = (parts.get_mut(at), replies.get_mut(at)) else {
                return Err(broken("answers what was not asked"));
            };
            self.take_up(&chunk, &mut Sink::Data(buf, *offset), reply)?;
        }
        let ended = parts.iter().zip(replies).map(|((buf, _), reply)| match reply.refused {
            None if reply.came != buf.len() as u64 => Err(broken("answers with less than was asked for")),
            refused => Ok(refused),
        });
        ended.collect()
    }

    /// Receives all chunks of a reply.
    fn reply(&mut self, mut sink: Sink<'_>) -> Answered<()> {
        let mut reply = Reply::default();
        while !reply.done {
            let chunk = self.chunk()?;
            if chunk.cookie != self.cookie {
                return Err(broken("answers what was not asked"));
            }
            self.take_up(&chunk, &mut sink, &mut reply)?;
        }
        let is_whole = match &sink {
            Sink::Data(buf, _) => reply.came == buf.len() as u64,
            Sink::Extent(extent) => extent.0 > 0,
            Sink::None => true,
        };
        match reply.refused {
            Some(error) => Err(Failure::Refused(error)),
            None if is_whole => Ok(()),
            None => Err(broken("answers with less than was asked for")),
        }
    }

    /// Receives the head of a chunk.
    fn chunk(&mut self) -> Answered<Chunk> {
        let head: [u8; CHUNK_HEADER] = self.take()?;
        let mut fields = Fields(&head);
        if fields.u32() != Some(CHUNK_MAGIC) {
            return Err(broken("answers with bytes that are not a reply"));
        }
        let (flags, kind) = (fields.u16().unwrap_or_default(), fields.u16().unwrap_or_default());
        let (cookie, len) = (fields.u64().unwrap_or_default(), fields.u32().unwrap_or_default());
        let len = to_usize(len.into());
        Ok(Chunk { kind, cookie, len, done: flags & chunk::DONE != 0 })
    }

    /// Receives the rest of a chunk.
    fn take_up(&mut self, chunk: &Chunk, sink: &mut Sink<'_>, reply: &mut Reply) -> Answered<()> {
        let len = chunk.len;
        match (chunk.kind, sink) {
            _ if reply.done => return Err(broken("answers twice")),
            (chunk::NONE, _) if len == 0 => {}
            (chunk::OFFSET_DATA, Sink::Data(buf, start)) if len > 8 => {
                let part = self.place(buf, *start, (len - 8) as u64)?;
                self.receive_into(part)?;
                reply.came += (len - 8) as u64;
            }
            (chunk::OFFSET_HOLE, Sink::Data(buf, start)) if len == 12 => {
                let head: [u8; 12] = self.take()?;
                let mut fields = Fields(&head);
                let (offset, len) = (fields.u64(), fields.u32().unwrap_or_default());
                part_of(buf, *start, offset, u64::from(len))?.fill(0);
                reply.came += u64::from(len);
            }
            (chunk::BLOCK_STATUS, Sink::Extent(extent)) if len >= 12 && len % 8 == 4 => {
                **extent = self.extent(len)?;
            }
            (kind, _) if kind >> 15 == 1 && (6..=SMALL_MAX).contains(&len) => {
                let error = self.error(len)?;
                // The first one is the cause.
                reply.refused.get_or_insert(error);
            }
            _ => return Err(broken("answers with a chunk that does not go with the request")),
        }
        reply.done = chunk.done;
        Ok(())
    }

    /// The part of `buf`, which begins at the disk's byte `start`, that the next `len` bytes of data belong to.
    fn place<'b>(&mut self, buf: &'b mut [u8], start: u64, len: u64) -> Answered<&'b mut [u8]> {
        let offset: [u8; 8] = self.take()?;
        part_of(buf, start, Fields(&offset).u64(), len)
    }

    /// The first extent of a block status of `len` bytes.
    fn extent(&mut self, len: usize) -> Answered<(u32, u32)> {
        let head: [u8; 12] = self.take()?;
        let mut fields = Fields(&head);
        let context = fields.u32();
        let extent = (fields.u32().unwrap_or_default(), fields.u32().unwrap_or_default());
        self.skip(len - 12)?;
        if context == Some(BASE_ALLOCATION_ID) {
            Ok(extent)
        } else {
            Err(broken("sends an answer without a request"))
        }
    }

    /// The error in a chunk of `len` bytes.
    fn error(&mut self, len: usize) -> Answered<Error> {
        let mut payload = vec![0; len];
        self.receive_into(&mut payload)?;
        let mut fields = Fields(&payload);
        let (number, said) = (fields.u32().unwrap_or_default(), fields.u16().unwrap_or_default());
        let said = fields.bytes(usize::from(said)).unwrap_or_default();
        Ok(Error::new(kind_of(number), String::from_utf8_lossy(said).into_owned()))
    }

    fn skip(&mut self, len: usize) -> Answered<()> {
        // At most the bytes of one block status.
        let mut bytes = vec![0; len.min(BUFFER)];
        let mut left = len;
        while left > 0 {
            let now = left.min(bytes.len());
            self.receive_into(&mut bytes[..now])?;
            left -= now;
        }
        Ok(())
    }

    /// The next bytes, through the buffer.
    fn take<const N: usize>(&mut self) -> Answered<[u8; N]> {
        while self.filled.len() < N {
            if self.filled.is_empty() {
                self.filled = 0..0;
            } else if self.filled.start > 0 {
                self.buffer.copy_within(self.filled.clone(), 0);
                self.filled = 0..self.filled.len();
            }
            let room = &mut self.buffer[self.filled.end..];
            let received = receive_soon(&self.socket, room, &mut self.spin_policy).map_err(lost)?;
            self.filled.end += came(received)?;
        }
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.buffer[self.filled.start..self.filled.start + N]);
        self.filled.start += N;
        Ok(bytes)
    }

    /// Receives the next bytes, straight into `target` as far as they are not in the buffer.
    fn receive_into(&mut self, target: &mut [u8]) -> Answered<()> {
        let here = self.filled.len().min(target.len());
        let (early, mut rest) = target.split_at_mut(here);
        early.copy_from_slice(&self.buffer[self.filled.start..self.filled.start + here]);
        self.filled.start += here;
        while !rest.is_empty() {
            let received = came(receive(&self.socket, rest).map_err(lost)?)?;
            rest = rest.get_mut(received..).unwrap_or_default();
        }
        Ok(())
    }
}

/// The number of bytes that came.
fn came(received: Received) -> Answered<usize> {
    match received {
        Received::Bytes(len) => Ok(len),
        Received::End => {
            Err(Failure::Lost(Error::new(ErrorKind::Unavailable, "the process that has the disk hung up")))
        }
        Received::Nothing => Ok(0),
    }
}

/// The part of `buf`, which begins at the disk's byte `start`, that `len` bytes from `offset` on belong to.
fn part_of(buf: &mut [u8], start: u64, offset: Option<u64>, len: u64) -> Answered<&mut [u8]> {
    let within = || {
        let at = usize::try_from(offset?.checked_sub(start)?).ok()?;
        Some(at..at.checked_add(usize::try_from(len).ok()?)?)
    };
    let part = within().and_then(|within| buf.get_mut(within));
    part.ok_or_else(|| broken("answers with bytes of another place than was asked for"))
}

fn lost(error: io::Error) -> Failure {
    Failure::Lost(Error::new(ErrorKind::Unavailable, "the connection to the disk is lost").caused_by(error))
}

fn broken(what: &str) -> Failure {
    Failure::Lost(Error::corrupt(format!("the process that has the disk {what}")))
}

/// The kind of an error, by the protocol's number.
fn kind_of(number: u32) -> ErrorKind {
    match number {
        1 => ErrorKind::ReadOnly,
        22 => ErrorKind::Invalid,
        28 => ErrorKind::NoSpace,
        95 => ErrorKind::Unsupported,
        _ => ErrorKind::Io,
    }
}

/// Sends `head` and `payload`, by one call if the socket takes them.
fn send_both(socket: &OwnedFd, mut head: &[u8], mut payload: &[u8]) -> io::Result<()> {
    while !head.is_empty() || !payload.is_empty() {
        let parts = [IoSlice::new(head), IoSlice::new(payload)];
        match sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => {
                let of_head = sent.min(head.len());
                head = head.get(of_head..).unwrap_or_default();
                payload = payload.get(sent - of_head..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_kinds() {
        use super::super::super::transmission::errno_of;
        for kind in [ErrorKind::ReadOnly, ErrorKind::NoSpace, ErrorKind::Invalid, ErrorKind::Io] {
            assert_eq!(kind_of(errno_of(&Error::new(kind, "x")) as u32), kind);
        }
    }

    #[test]
    fn data_goes_only_where_it_was_asked_for() {
        let mut buf = [0; 8];
        let mut fits = |offset, len| part_of(&mut buf, 100, offset, len).is_ok();
        assert!(fits(Some(100), 8) && fits(Some(107), 1) && fits(Some(108), 0));
        for (offset, len) in [(None, 1), (Some(99), 1), (Some(100), 9), (Some(108), 1), (Some(u64::MAX), 2)] {
            assert!(!fits(offset, len), "{offset:?} {len}");
        }
    }
}
