//! A connection in its transmission phase: the data path.
//!
//! One thread receives ([`super::receiver`]). It takes as many requests as the socket has, serves reads whose bytes
//! are local straight into the reply buffer and aligned writes straight from the receive buffer, and sends the
//! replies of the whole batch by one call: a queue of 32 small reads costs 32 reads of the disk and two calls on
//! the socket. It never waits for remote bytes, for a flush, or for a sector to be changed: those go to its
//! [`WorkerPool`]s, whose threads send their own replies.
//!
//! # Reads that take a processor
//!
//! One thread copies more than a client takes, but may decode less. If the disk decodes
//! ([`decode_unit`](headstart_block::BlockDevice::decode_unit)) and more requests wait, a read of some size goes to a
//! thread of its own, if there is a processor for it, and the receiving thread goes on with the next request. Bytes
//! that this thread finds absent go to the remote pool in turn.
//!
//! # Large reads
//!
//! Structured replies come in chunks of at most [`PIECE`] bytes, sent as soon as they are read: the buffer stays in
//! the processor's cache, and the client copies one chunk while the next is read. A chunk that turns out not to be
//! local passes the rest of its read to the remote pool; chunks of one reply may be apart. A simple reply cannot take
//! back its success once its head is sent, so it is read whole before; a large one in the remote pool, as it takes
//! up to 32 MiB.
//!
//! # Memory
//!
//! 64 KiB to receive, plus a reply buffer and, for large writes, a payload buffer that grow on demand; a connection
//! that is idle gives those back. Memory that a request needs beyond that counts, for the connection and for the server
//! ([`super::budget`]): if there is no more, the request is done in small parts.
//!
//! # The end
//!
//! The receiving thread ends on a goodbye, the end of the stream, or bytes that are not the protocol. Jobs in the
//! worker pools hold the connection by their `Arc`; the socket is closed when the last of them has replied.

use super::budget::{Account, OWN_BYTES};
use super::disk::ExportState;
use super::proto::{
    CHUNK_HEADER, DATA_CHUNK_HEADER, Errno, chunk, chunk_header, data_chunk_header, put_hole_chunk,
    simple_reply,
};
use super::reply_buffer::ReplyBuffer;
use super::transmission::{NbdCommand, NbdSession, errno_of, message_of, put_error};
use super::wire::Wire;
use super::worker_pool::{Job, PoolKind, Pushed, WorkerPool};
use crate::complaints::complain;
use headstart_block::{ByteRange, ClientGuard, Error, ErrorKind, Result, exact, to_usize};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most bytes of replies that are held back, roughly: at this number they are sent.
pub(super) const SEND_AT: usize = 128 << 10;
/// The largest chunk of a structured reply that the receiving thread makes, in bytes.
pub(super) const PIECE: u64 = 256 << 10;
/// As [`PIECE`], for chunks that may wait for a store each: larger, so that fewer round trips add up.
pub(super) const PIECE_SLOW: u64 = 4 << 20;
/// The shortest hole, in bytes, that is worth a question to the disk and a chunk of its own.
const HOLE_MIN: u64 = 32 << 10;
/// The bytes of each buffer that a silent connection keeps.
pub(super) const KEEP: usize = 64 << 10;

/// The bytes of its buffer that a thread of the CPU pool keeps from job to job: room for a chunk on top of bytes that
/// are not yet sent. The thread ends when it has been idle for a while.
const KEEP_WORKING: usize = 512 << 10;

/// The state that the threads of a connection share.
pub(crate) struct Connection {
    pub(super) wire: Wire,
    /// The memory that the connection's requests may hold.
    pub(super) account: Arc<Account>,
    pub(super) state: Arc<ExportState>,
    pub(super) session: NbdSession,
    /// The pool for requests that may wait for remote bytes.
    remote: WorkerPool,
    /// The pool for requests that wait only for the disk: while a store is away, a guest can make its writes durable.
    local: WorkerPool,
    /// The pool for requests that are work for a processor.
    pub(super) cpu: WorkerPool,
    /// The client's name for messages.
    pub(super) peer: String,
    /// `true` if a fault of the disk has been logged as a warning.
    faulted: AtomicBool,
    _client: ClientGuard,
    /// The client's place: dropped with the connection, because the server counts places.
    _slot: Box<dyn Any + Send + Sync>,
}

/// The handling, by a read, of bytes that are not on this host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockingMode {
    /// The read ends at the first byte that is absent.
    LocalOnly,
    /// The read waits for absent bytes.
    MayBlock,
}

impl Connection {
    pub(crate) fn new(
        wire: Wire,
        account: Arc<Account>,
        state: Arc<ExportState>,
        session: NbdSession,
        peer: String,
        slot: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        let faulted = AtomicBool::new(false);
        let (remote, local, cpu) = Default::default();
        let client = ClientGuard::of(&state.export.device);
        Arc::new(Self {
            wire,
            account,
            state,
            session,
            remote,
            local,
            cpu,
            peer,
            faulted,
            _client: client,
            _slot: slot,
        })
    }

    pub(super) fn pool(&self, kind: PoolKind) -> &WorkerPool {
        match kind {
            PoolKind::Remote => &self.remote,
            PoolKind::Local => &self.local,
            PoolKind::Cpu => &self.cpu,
        }
    }

    /// Ends the worker pools: their threads end once their queues are empty, or at once if the client is gone.
    pub(super) fn close_pools(&self) {
        for pool in [&self.remote, &self.local, &self.cpu] {
            pool.close(self.wire.is_broken());
        }
    }

    /// Gives a job to its worker pool.
    pub(super) fn later(self: &Arc<Self>, job: Job) {
        let range = match job.command {
            NbdCommand::Read { range, .. } => Some(range),
            _ => None,
        };
        let kind = job.kind;
        match self.pool(kind).push(job) {
            Pushed::Taken => {}
            Pushed::Queued => {
                if let Some(range) = range {
                    self.state.device().prefetch(range);
                }
            }
            Pushed::StartThread => {
                let connection = Arc::clone(self);
                let name = "nbd-slow".to_owned();
                let started = std::thread::Builder::new().name(name).spawn(move || connection.work(kind));
                if let Err(error) = started {
                    complain!(self.wire.complaints, NoThread, %error, "cannot start a thread for a read that waits");
                    if let Some(mut running) = self.pool(kind).thread_failed() {
                        self.execute(&mut running.job, &mut ReplyBuffer::default());
                    }
                }
            }
        }
    }

    /// Runs a thread of a worker pool.
    fn work(self: &Arc<Self>, kind: PoolKind) {
        let mut out = ReplyBuffer::default();
        while let Some(mut running) = self.pool(kind).next(|| self.wire.is_broken()) {
            let done = catch_unwind(AssertUnwindSafe(|| self.execute(&mut running.job, &mut out)));
            if done.is_err() {
                tracing::error!(peer = self.peer, "a disk panicked; its client is disconnected");
                self.wire.break_off();
            }
            out.truncate(0);
            let keep = if kind == PoolKind::Cpu { KEEP_WORKING } else { KEEP };
            if out.held() > keep {
                out.release();
            }
        }
    }

    /// Does a job of a worker pool and answers it.
    fn execute(self: &Arc<Self>, job: &mut Job, out: &mut ReplyBuffer) {
        let cookie = job.cookie;
        let (data, share) = (std::mem::take(&mut job.data), job.share.take());
        let state = &*self.state;
        let flush = |fua: bool| if fua { state.device().flush() } else { Ok(()) };
        let done = match job.command {
            NbdCommand::Read { range, whole } => {
                let is_cpu_job = job.kind == PoolKind::Cpu;
                let mode = if is_cpu_job { BlockingMode::LocalOnly } else { BlockingMode::MayBlock };
                let absent = self.read_in_budget(out, cookie, range, whole, mode);
                if let Some(range) = absent {
                    self.later(Job::new(cookie, NbdCommand::Read { range, whole }, Vec::new()));
                }
                return;
            }
            NbdCommand::Status { range, one } => match state.status(range, one) {
                Ok(payload) => {
                    let len = exact(payload.len(), "it describes at most EXTENTS_MAX extents");
                    out.put(&chunk_header(cookie, chunk::BLOCK_STATUS, true, len));
                    out.put(&payload);
                    self.send(out);
                    return;
                }
                Err(error) => Err(error),
            },
            NbdCommand::Write { range, fua } => state.write(&data, range.offset()).and_then(|()| flush(fua)),
            NbdCommand::Zero { range, fua, .. } => state.zero(range).and_then(|()| flush(fua)),
            NbdCommand::Trim { range, fua } => state.zero_sectors(range).and_then(|()| flush(fua)),
            NbdCommand::Flush => state.device().flush(),
            NbdCommand::Resize { size } => state.device().resize(size),
            // These never wait, and so never come here.
            NbdCommand::Cache { .. } | NbdCommand::Disconnect => Ok(()),
        };
        // A client that does not take the answer must not keep the memory.
        drop((data, share));
        self.answer(out, cookie, done);
        self.send(out);
    }

    /// Does a read of a worker pool with the memory that it may have, and sends its reply. Returns the absent range, as
    /// [`read`](Self::read) does.
    fn read_in_budget(
        &self,
        out: &mut ReplyBuffer,
        cookie: u64,
        range: ByteRange,
        whole: bool,
        mode: BlockingMode,
    ) -> Option<ByteRange> {
        let in_pieces = self.session.structured && !whole;
        let piece_max = match mode {
            _ if !in_pieces => range.len(),
            BlockingMode::LocalOnly => PIECE,
            BlockingMode::MayBlock => PIECE_SLOW,
        };
        let share = self.account.reserve(piece_max.min(range.len()), || self.wire.is_broken())?;
        let absent = match (share.is_own(), in_pieces) {
            (false, _) => self.read(out, cookie, range, whole, mode, piece_max),
            (true, true) => self.read(out, cookie, range, whole, mode, OWN_BYTES),
            (true, false) => self.read_with_little(out, cookie, range, mode),
        };
        self.send(out);
        // Memory that is given back is not kept in the buffer.
        if out.held() > KEEP_WORKING {
            out.release();
        }
        absent
    }

    /// Serves a read that is answered in one piece with [`OWN_BYTES`] of memory: it is read twice. The first time shows
    /// that all of it can be read, so that a failing disk is answered with an error; a failure of the second time, when
    /// the reply's head is sent, ends the connection, as the protocol demands.
    fn read_with_little(
        &self,
        out: &mut ReplyBuffer,
        cookie: u64,
        range: ByteRange,
        mode: BlockingMode,
    ) -> Option<ByteRange> {
        self.send(out);
        let pieces = || {
            let step = to_usize(OWN_BYTES);
            (range.offset()..range.end())
                .step_by(step)
                .map(|at| ByteRange::between(at, range.end().min(at + OWN_BYTES)))
        };
        for piece in pieces() {
            out.truncate(0);
            match self.fill(out, piece, mode) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Absent && mode == BlockingMode::LocalOnly => {
                    out.truncate(0);
                    return Some(range);
                }
                Err(error) => {
                    out.truncate(0);
                    self.answer_error(out, cookie, &error);
                    return None;
                }
            }
        }
        out.truncate(0);
        self.put_head(out, cookie, range, true);
        let mut sending = self.wire.hold();
        for piece in pieces() {
            if let Err(error) = self.fill(out, piece, mode) {
                let complaints = &self.wire.complaints;
                let why = "a reply cannot be finished; its client is disconnected";
                complain!(complaints, Unfinished, peer = self.peer, %error, "{why}");
                self.wire.break_off();
                break;
            }
            sending.send(out.as_slice());
            out.truncate(0);
        }
        out.truncate(0);
        None
    }

    /// Appends the bytes of a part of the disk.
    fn fill(&self, out: &mut ReplyBuffer, piece: ByteRange, mode: BlockingMode) -> Result<()> {
        let room = out.room(to_usize(piece.len()));
        let device = self.state.device();
        match mode {
            BlockingMode::LocalOnly => device.read_local_at(room, piece.offset()),
            BlockingMode::MayBlock => device.read_at(room, piece.offset()),
        }
    }

    /// Appends the head of a reply with the bytes of `range`, or of a chunk of it.
    fn put_head(&self, out: &mut ReplyBuffer, cookie: u64, range: ByteRange, last: bool) {
        let len = exact(range.len(), "the request was judged before: it has at most PAYLOAD_MAX bytes");
        if self.session.structured {
            out.put(&data_chunk_header(cookie, last, range.offset(), len));
        } else {
            out.put(&simple_reply(cookie, 0));
        }
    }

    pub(super) fn send(&self, out: &mut ReplyBuffer) {
        if !out.is_empty() {
            self.wire.send(out.as_slice());
            out.truncate(0);
        }
    }

    /// Puts the reply to a request that moves no bytes to the client.
    pub(super) fn answer(&self, out: &mut ReplyBuffer, cookie: u64, done: Result<()>) {
        match done {
            Ok(()) if self.session.structured => out.put(&chunk_header(cookie, chunk::NONE, true, 0)),
            Ok(()) => out.put(&simple_reply(cookie, 0)),
            Err(error) => self.answer_error(out, cookie, &error),
        }
    }

    /// Puts the reply that the disk failed, and logs it: the first time as a warning.
    #[cold]
    fn answer_error(&self, out: &mut ReplyBuffer, cookie: u64, error: &Error) {
        let name = &self.state.export.name;
        if self.faulted.swap(true, Ordering::Relaxed) {
            tracing::debug!(export = name, peer = self.peer, %error, "a request failed");
        } else {
            let (complaints, peer) = (&self.wire.complaints, &self.peer);
            complain!(complaints, Fault, export = name, peer, %error, "a request failed (its next failures: debug)");
        }
        self.refuse(out, cookie, errno_of(error), message_of(error));
    }

    #[cold]
    pub(super) fn refuse(&self, out: &mut ReplyBuffer, cookie: u64, errno: Errno, message: &str) {
        let mut reply = Vec::new();
        put_error(&mut reply, cookie, self.session.structured, errno, message);
        out.put(&reply);
    }

    /// Puts the reply to a read; large ones are sent in parts. Returns the absent part of the range, whose reply is
    /// unfinished, only if `mode` is [`BlockingMode::LocalOnly`]. Parts have `piece_max` bytes at most.
    pub(super) fn read(
        &self,
        out: &mut ReplyBuffer,
        cookie: u64,
        range: ByteRange,
        whole: bool,
        mode: BlockingMode,
        piece_max: u64,
    ) -> Option<ByteRange> {
        if range.is_empty() {
            self.answer(out, cookie, Ok(()));
            return None;
        }
        let in_pieces = self.session.structured && !whole;
        let piece_max = if in_pieces { piece_max } else { range.len() };
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
            match self.read_piece(out, cookie, piece, piece.end() == rest.end(), mode) {
                Ok(()) => rest = ByteRange::between(piece.end(), rest.end()),
                Err(error) if error.kind() == ErrorKind::Absent && mode == BlockingMode::LocalOnly => {
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
        let len = exact(hole.len(), "the length of its request has 32 bits");
        put_hole_chunk(&mut chunk, cookie, hole.end() == rest.end(), hole.offset(), len);
        out.put(&chunk);
    }

    /// Puts one chunk of a reply, or a whole simple reply; puts nothing if the read fails.
    fn read_piece(
        &self,
        out: &mut ReplyBuffer,
        cookie: u64,
        piece: ByteRange,
        last: bool,
        mode: BlockingMode,
    ) -> Result<()> {
        let start = out.len();
        out.make_room(DATA_CHUNK_HEADER + to_usize(piece.len()));
        self.put_head(out, cookie, piece, last);
        let read = self.fill(out, piece, mode);
        if read.is_err() {
            out.truncate(start);
        }
        read
    }
}
