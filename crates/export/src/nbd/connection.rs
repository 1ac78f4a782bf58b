//! A connection in its transmission phase: the data path.
//!
//! One thread receives. It takes as many requests as the socket has, serves reads whose bytes are local straight into
//! the reply buffer and aligned writes straight from the receive buffer, and sends the replies of the whole batch by
//! one call: a queue of 32 small reads costs 32 reads of the disk and two calls on the socket. It never waits for
//! bytes from elsewhere, for a flush, or for a sector to be changed: those go to its [`Lane`]s, whose threads send
//! their own replies.
//!
//! # Reads that are work
//!
//! One thread copies more than a client takes, but may decode less. Where the disk decodes
//! ([`decode_unit`](headstart_block::BlockDevice::decode_unit)) and more requests wait, a read of some size goes to a
//! thread of its own, if there is a processor for it, and the receiving thread goes on with the next request. What that
//! thread finds absent it leaves to the slow lane in its turn.
//!
//! # Large reads
//!
//! Structured replies come in chunks of at most [`PIECE`] bytes, sent as soon as they are read: the buffer stays in
//! the processor's cache, and the client copies one chunk while the next is read. A chunk that turns out not to be
//! local passes the rest of its read to the slow lane; chunks of one reply may be apart. A simple reply cannot take
//! back its success once its head is sent, so it is read whole before; above [`WHOLE_MAX`] that is done in the slow
//! lane, as it takes up to 32 MiB.
//!
//! # Memory
//!
//! 64 KiB to receive, plus a reply buffer and, for large writes, a payload buffer that grow on demand. A
//! connection that is idle for [`IDLE`] gives those back.
//!
//! # The end
//!
//! The receiving thread ends on a goodbye, the end of the stream, or bytes that are not the protocol. Jobs in the slow
//! lane hold the connection by their `Arc`; the socket is closed when the last of them has replied.

use super::disk::ExportState;
use super::lane::{Job, Lane, Pushed, Which};
use super::lookout::Lookout;
use super::proto::{
    CHUNK_HEADER, DATA_CHUNK_HEADER, Errno, PAYLOAD_MAX, REQUEST_HEADER, Request, SIMPLE_REPLY_HEADER, chunk,
    chunk_header, command, data_chunk_header, put_hole_chunk, simple_reply,
};
use super::reply_buffer::ReplyBuffer;
use super::transmission::{Command, Session, errno_of, judge, put_error};
use super::wire::{Received, Wire, receive, receive_soon};
use crate::processors::{decodes_much, processors};
use headstart_block::{ByteRange, Error, ErrorKind, Result, SECTOR_SIZE};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes received at once: some 2,300 reads, or 15 writes of 4 KiB.
const RECEIVE: usize = 64 << 10;
/// Replies are sent at the latest when there are so many bytes.
const SEND_AT: usize = 128 << 10;
/// Largest chunk of a structured reply that the receiving thread makes.
const PIECE: u64 = 256 << 10;
/// As [`PIECE`], where each piece may wait for a store: fewer, so that fewer round trips add up.
const PIECE_SLOW: u64 = 4 << 20;
/// Largest read in one piece that the receiving thread serves.
const WHOLE_MAX: u64 = 1 << 20;
/// Shortest hole worth a question to the disk and a chunk of its own.
const HOLE_MIN: u64 = 32 << 10;
/// A connection that is silent for so long gives buffers back.
const IDLE: Duration = Duration::from_secs(1);
/// What a silent connection keeps of each buffer, in bytes.
const KEEP: usize = 64 << 10;

/// What a thread that works keeps of its buffer from job to job, in bytes: room for a chunk on top of what is not yet
/// sent. It ends when it has been idle for a while.
const KEEP_WORKING: usize = 512 << 10;

/// What the threads of a connection share.
pub(crate) struct Connection {
    wire: Wire,
    state: Arc<ExportState>,
    session: Session,
    /// What may wait for bytes from elsewhere.
    far: Lane,
    /// What waits for the disk alone: while a store is away a guest can make its writes durable.
    near: Lane,
    /// What is work for a processor.
    work: Lane,
    /// For messages.
    peer: String,
    /// Whether a fault of the disk has been said aloud.
    faulted: AtomicBool,
    /// Dropped with the connection: the server counts these.
    _slot: Box<dyn Any + Send + Sync>,
}

/// Whether a read waits for bytes that are not here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Local,
    Waiting,
}

/// Whether the stream of requests goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    /// The next request is not whole yet.
    More,
    End,
}

impl Connection {
    pub(crate) fn new(
        wire: Wire,
        state: Arc<ExportState>,
        session: Session,
        peer: String,
        slot: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        let faulted = AtomicBool::new(false);
        let (far, near, work) = Default::default();
        Arc::new(Self { wire, state, session, far, near, work, peer, faulted, _slot: slot })
    }

    fn lane(&self, which: Which) -> &Lane {
        match which {
            Which::Far => &self.far,
            Which::Near => &self.near,
            Which::Work => &self.work,
        }
    }

    /// Serves the client until it goes; `early` are bytes that came with the end of its handshake.
    pub(crate) fn serve(self: &Arc<Self>, early: &[u8]) {
        let mut receiver = Receiver::new(self, early);
        let served = catch_unwind(AssertUnwindSafe(|| receiver.run()));
        if served.is_err() {
            tracing::error!(peer = self.peer, "a disk panicked; its client is disconnected");
            self.wire.break_off();
        }
        for lane in [&self.far, &self.near, &self.work] {
            lane.close(self.wire.is_broken());
        }
    }

    /// Leaves a job to the slow lane.
    fn later(self: &Arc<Self>, job: Job) {
        let range = match job.command {
            Command::Read { range, .. } => Some(range),
            _ => None,
        };
        let lane = job.lane;
        match self.lane(lane).push(job) {
            Pushed::Taken => {}
            Pushed::Queued => {
                if let Some(range) = range {
                    self.state.device().prefetch(range);
                }
            }
            Pushed::StartThread => {
                let connection = Arc::clone(self);
                let name = "nbd-slow".to_owned();
                let started = std::thread::Builder::new().name(name).spawn(move || connection.work(lane));
                if let Err(error) = started {
                    tracing::warn!(%error, "cannot start a thread for a read that waits");
                    if let Some(mut running) = self.lane(lane).thread_failed() {
                        self.execute(&mut running.job, &mut ReplyBuffer::default());
                    }
                }
            }
        }
    }

    /// A thread of a slow lane.
    fn work(self: &Arc<Self>, lane: Which) {
        let mut out = ReplyBuffer::default();
        while let Some(mut running) = self.lane(lane).next(|| self.wire.is_broken()) {
            let done = catch_unwind(AssertUnwindSafe(|| self.execute(&mut running.job, &mut out)));
            if done.is_err() {
                tracing::error!(peer = self.peer, "a disk panicked; its client is disconnected");
                self.wire.break_off();
            }
            out.truncate(0);
            let keep = if lane == Which::Work { KEEP_WORKING } else { KEEP };
            if out.held() > keep {
                out.release();
            }
        }
    }

    /// Does a job of the slow lane and answers it.
    fn execute(self: &Arc<Self>, job: &mut Job, out: &mut ReplyBuffer) {
        let cookie = job.cookie;
        let data = std::mem::take(&mut job.data);
        let state = &*self.state;
        let flush = |fua: bool| if fua { state.device().flush() } else { Ok(()) };
        let done = match job.command {
            Command::Read { range, whole } => {
                let work = job.lane == Which::Work;
                let patience = if work { Patience::Local } else { Patience::Waiting };
                let absent = self.read(out, cookie, range, whole, patience);
                self.send(out);
                if let Some(range) = absent {
                    self.later(Job::new(cookie, Command::Read { range, whole }, Vec::new()));
                }
                return;
            }
            Command::Status { range, one } => match state.status(range, one) {
                Ok(payload) => {
                    let len = u32::try_from(payload.len()).unwrap_or(0);
                    out.put(&chunk_header(cookie, chunk::BLOCK_STATUS, true, len));
                    out.put(&payload);
                    self.send(out);
                    return;
                }
                Err(error) => Err(error),
            },
            Command::Write { range, fua } => state.write(&data, range.offset()).and_then(|()| flush(fua)),
            Command::Zero { range, fua, .. } => state.zero(range).and_then(|()| flush(fua)),
            Command::Trim { range, fua } => state.zero_sectors(range).and_then(|()| flush(fua)),
            Command::Flush => state.device().flush(),
            Command::Resize { size } => state.device().resize(size),
            // These never wait, and so never come here.
            Command::Cache { .. } | Command::Disconnect => Ok(()),
        };
        self.answer(out, cookie, done);
        self.send(out);
    }

    fn send(&self, out: &mut ReplyBuffer) {
        if !out.is_empty() {
            self.wire.send(out.as_slice());
            out.truncate(0);
        }
    }

    /// Puts the reply to a request that moves no bytes to the client.
    fn answer(&self, out: &mut ReplyBuffer, cookie: u64, done: Result<()>) {
        match done {
            Ok(()) if self.session.structured => out.put(&chunk_header(cookie, chunk::NONE, true, 0)),
            Ok(()) => out.put(&simple_reply(cookie, 0)),
            Err(error) => self.answer_error(out, cookie, &error),
        }
    }

    /// Puts the reply that the disk failed, and says it in the log: the first time aloud.
    #[cold]
    fn answer_error(&self, out: &mut ReplyBuffer, cookie: u64, error: &Error) {
        let name = &self.state.export.name;
        if self.faulted.swap(true, Ordering::Relaxed) {
            tracing::debug!(export = name, peer = self.peer, %error, "a request failed");
        } else {
            tracing::warn!(export = name, peer = self.peer, %error, "a request failed (its next failures: debug)");
        }
        self.refuse(out, cookie, errno_of(error), &error.to_string());
    }

    #[cold]
    fn refuse(&self, out: &mut ReplyBuffer, cookie: u64, errno: Errno, message: &str) {
        let mut reply = Vec::new();
        put_error(&mut reply, cookie, self.session.structured, errno, message);
        out.put(&reply);
    }

    /// Puts the reply to a read; large ones are sent piece by piece. What of the range is absent is given back,
    /// its reply unfinished: only where patience is [`Patience::Local`].
    fn read(
        &self,
        out: &mut ReplyBuffer,
        cookie: u64,
        range: ByteRange,
        whole: bool,
        patience: Patience,
    ) -> Option<ByteRange> {
        if range.is_empty() {
            self.answer(out, cookie, Ok(()));
            return None;
        }
        let in_pieces = self.session.structured && !whole;
        let piece_max = match patience {
            _ if !in_pieces => range.len(),
            Patience::Local => PIECE,
            Patience::Waiting => PIECE_SLOW,
        };
        let mut rest = range;
        while !rest.is_empty() {
            if in_pieces && rest.len() >= HOLE_MIN {
                let hole = self.hole(rest);
                if hole.len() >= HOLE_MIN {
                    self.put_hole(out, cookie, hole, rest);
                    self.state.device().hole_was_read(hole);
                    rest = ByteRange::between(hole.end(), rest.end());
                    continue;
                }
            }
            let piece = ByteRange::between(rest.offset(), rest.end().min(rest.offset() + piece_max));
            match self.read_piece(out, cookie, piece, piece.end() == rest.end(), patience) {
                Ok(()) => rest = ByteRange::between(piece.end(), rest.end()),
                Err(error) if error.kind() == ErrorKind::Absent && patience == Patience::Local => {
                    return Some(rest);
                }
                Err(error) => {
                    self.answer_error(out, cookie, &error);
                    return None;
                }
            }
            if out.len() >= SEND_AT {
                self.send(out);
            }
        }
        None
    }

    /// The hole at the start of `range`, perhaps empty.
    fn hole(&self, range: ByteRange) -> ByteRange {
        let none = ByteRange::between(range.offset(), range.offset());
        match self.state.device().extent_at(range.offset()) {
            Ok(extent) if extent.zero => {
                ByteRange::between(range.offset(), extent.range.end().min(range.end()))
            }
            _ => none,
        }
    }

    fn put_hole(&self, out: &mut ReplyBuffer, cookie: u64, hole: ByteRange, rest: ByteRange) {
        let mut chunk = Vec::with_capacity(CHUNK_HEADER + 12);
        let len = u32::try_from(hole.len()).unwrap_or(0);
        put_hole_chunk(&mut chunk, cookie, hole.end() == rest.end(), hole.offset(), len);
        out.put(&chunk);
    }

    /// Puts one chunk of a reply, or a whole simple reply; nothing where it fails.
    fn read_piece(
        &self,
        out: &mut ReplyBuffer,
        cookie: u64,
        piece: ByteRange,
        last: bool,
        patience: Patience,
    ) -> Result<()> {
        let start = out.len();
        // Judged before: at most PAYLOAD_MAX.
        let (len, len_u32) =
            (usize::try_from(piece.len()).unwrap_or(0), u32::try_from(piece.len()).unwrap_or(0));
        let header = if self.session.structured { DATA_CHUNK_HEADER } else { SIMPLE_REPLY_HEADER };
        let room = out.room(header + len);
        let (head, data) = room.split_at_mut(header);
        if self.session.structured {
            head.copy_from_slice(&data_chunk_header(cookie, last, piece.offset(), len_u32));
        } else {
            head.copy_from_slice(&simple_reply(cookie, 0));
        }
        let device = self.state.device();
        let read = match patience {
            Patience::Local => device.read_local_at(data, piece.offset()),
            Patience::Waiting => device.read_at(data, piece.offset()),
        };
        if read.is_err() {
            out.truncate(start);
        }
        read
    }
}

/// The receiving thread.
struct Receiver<'a> {
    connection: &'a Arc<Connection>,
    input: Vec<u8>,
    /// Bytes of `input` that were received and not served.
    filled: usize,
    out: ReplyBuffer,
    /// The bytes of large writes, all initialised.
    payload: Vec<u8>,
    /// Whether the socket has a time-out, because there are buffers to give back.
    timed: bool,
    lookout: Lookout,
}

impl<'a> Receiver<'a> {
    fn new(connection: &'a Arc<Connection>, early: &[u8]) -> Self {
        let mut input = vec![0; RECEIVE.max(early.len())];
        input[..early.len()].copy_from_slice(early);
        let (out, payload) = (ReplyBuffer::default(), Vec::new());
        let lookout = Lookout::new(processors());
        Self { connection, input, filled: early.len(), out, payload, timed: false, lookout }
    }

    fn run(&mut self) {
        loop {
            let input = std::mem::take(&mut self.input);
            let mut received = input.get(..self.filled).unwrap_or_default();
            let flow = loop {
                match self.next(&mut received) {
                    Flow::On => {}
                    flow => break flow,
                }
            };
            let (left, filled) = (received.len(), self.filled);
            self.input = input;
            self.connection.send(&mut self.out);
            if flow == Flow::End || self.connection.wire.is_broken() {
                return;
            }
            // After a large write nothing is left, whatever had been received.
            self.input.copy_within(filled - left..filled, 0);
            self.filled = left;
            if !self.receive() {
                return;
            }
        }
    }

    /// Receives what there is, and waits if there is nothing; false at the end.
    fn receive(&mut self) -> bool {
        loop {
            self.set_time_out(self.out.held() > KEEP || self.payload.len() > KEEP);
            let socket = self.connection.wire.socket();
            let room = self.input.get_mut(self.filled..).unwrap_or_default();
            match receive_soon(socket, room, &mut self.lookout) {
                Ok(Received::Bytes(len)) => {
                    self.filled += len;
                    return true;
                }
                Ok(Received::Nothing) => {
                    self.out.release();
                    self.payload = Vec::new();
                }
                Ok(Received::End) => return false,
                Err(_) => {
                    self.connection.wire.break_off();
                    return false;
                }
            }
        }
    }

    fn set_time_out(&mut self, timed: bool) {
        if timed != self.timed {
            // Failing that, buffers are kept for longer, and nothing else happens.
            let _ = set_socket_timeout(self.connection.wire.socket(), Timeout::Recv, timed.then_some(IDLE));
            self.timed = timed;
        }
    }

    /// Serves the request at the front of `received`.
    fn next(&mut self, received: &mut &[u8]) -> Flow {
        let Some((head, tail)) = received.split_first_chunk::<REQUEST_HEADER>() else {
            return Flow::More;
        };
        let Some(request) = Request::parse(head) else {
            return self.lost("a request has a wrong magic");
        };
        let payload = if request.command == command::WRITE { request.len as usize } else { 0 };
        if payload > PAYLOAD_MAX as usize {
            return self.lost("a write is larger than 32 MiB");
        }
        if let Some((data, behind)) = tail.split_at_checked(payload) {
            *received = behind;
            return self.serve(&request, data, !behind.is_empty());
        }
        if REQUEST_HEADER + payload <= RECEIVE {
            return Flow::More;
        }
        self.connection.send(&mut self.out);
        let mut data = std::mem::take(&mut self.payload);
        if !self.receive_payload(&mut data, tail, payload) {
            return Flow::End;
        }
        *received = &[];
        let flow = self.serve(&request, &data[..payload], false);
        self.payload = data;
        flow
    }

    /// Fills `data` with the `len` bytes of a write, of which `early` came already.
    fn receive_payload(&self, data: &mut Vec<u8>, early: &[u8], len: usize) -> bool {
        if data.len() < len {
            // Fresh memory of zeros costs nothing until it is written to.
            *data = vec![0; len];
        }
        data[..early.len()].copy_from_slice(early);
        let mut filled = early.len();
        while filled < len {
            match receive(self.connection.wire.socket(), &mut data[filled..len]) {
                Ok(Received::Bytes(more)) => filled += more,
                Ok(Received::Nothing) => {}
                Ok(Received::End) | Err(_) => {
                    self.connection.wire.break_off();
                    return false;
                }
            }
        }
        true
    }

    /// The stream of requests cannot be followed any more.
    fn lost(&self, why: &str) -> Flow {
        tracing::warn!(peer = self.connection.peer, why, "an NBD client is disconnected");
        Flow::End
    }

    /// Serves a request; `more` tells that others wait behind it.
    fn serve(&mut self, request: &Request, data: &[u8], more: bool) -> Flow {
        let connection = self.connection;
        let cookie = request.cookie;
        let size = connection.state.device().size();
        let command = match judge(request, connection.session, size) {
            Ok(command) => command,
            Err(refusal) => {
                connection.refuse(&mut self.out, cookie, refusal.errno, refusal.message);
                return Flow::On;
            }
        };
        match command {
            Command::Read { range, whole } => self.read(cookie, range, whole, more),
            Command::Write { range, fua: false } if range.is_aligned(SECTOR_SIZE) => {
                let done = if data.is_empty() {
                    Ok(())
                } else {
                    connection.state.write_sectors(data, range.offset())
                };
                connection.answer(&mut self.out, cookie, done);
            }
            Command::Cache { range } => {
                connection.state.device().prefetch(range);
                connection.answer(&mut self.out, cookie, Ok(()));
            }
            Command::Zero { range, fast: true, .. } if !ExportState::zeroes_fast(range) => {
                let message = "sectors would be read to zero a part of them";
                connection.refuse(&mut self.out, cookie, Errno::NotSup, message);
            }
            Command::Disconnect => return Flow::End,
            Command::Write { .. } => self.later(Job::new(cookie, command, data.to_vec())),
            Command::Flush
            | Command::Zero { .. }
            | Command::Trim { .. }
            | Command::Status { .. }
            | Command::Resize { .. } => self.later(Job::new(cookie, command, Vec::new())),
        }
        if self.out.len() >= SEND_AT {
            connection.send(&mut self.out);
        }
        Flow::On
    }

    /// Serves a read; `more` tells that requests wait behind it.
    fn read(&mut self, cookie: u64, range: ByteRange, whole: bool, more: bool) {
        let connection = self.connection;
        if more && decodes_much(connection.state.device(), range.len()) && connection.work.is_free() {
            let job = Job::new(cookie, Command::Read { range, whole }, Vec::new());
            return self.later(Job { lane: Which::Work, ..job });
        }
        let one_piece = whole || !connection.session.structured;
        let absent = if one_piece && range.len() > WHOLE_MAX {
            Some(range)
        } else {
            connection.read(&mut self.out, cookie, range, whole, Patience::Local)
        };
        if let Some(range) = absent {
            // The slow lane reads piece by piece: let the later pieces be on their way meanwhile.
            if !one_piece && range.len() > PIECE_SLOW {
                connection
                    .state
                    .device()
                    .prefetch(ByteRange::between(range.offset() + PIECE_SLOW, range.end()));
            }
            self.later(Job::new(cookie, Command::Read { range, whole }, Vec::new()));
        }
    }

    /// Leaves a job to the slow lane. If that is full, the client gets the replies that are ready before the wait.
    fn later(&mut self, job: Job) {
        if self.connection.lane(job.lane).is_full(job.bytes()) {
            self.connection.send(&mut self.out);
        }
        self.connection.later(job);
    }
}
