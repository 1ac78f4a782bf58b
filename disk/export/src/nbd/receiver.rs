//! The receiving thread of a connection: takes requests from the socket, and serves those that need not wait.

use super::budget::{OWN_BYTES, Share};
use super::connection::{BlockingMode, Connection, KEEP, PIECE, PIECE_SLOW, SEND_AT};
use super::disk::ExportState;
use super::proto::{Errno, NbdRequest, PAYLOAD_MAX, REQUEST_HEADER, command};
use super::reply_buffer::ReplyBuffer;
use super::spin_policy::SpinPolicy;
use super::standing::now;
use super::transmission::{NbdCommand, judge};
use super::wire::{Received, receive, receive_soon};
use super::worker_pool::{Job, PoolKind};
use crate::complaints::complain;
use crate::processors::{decodes_much, processors};
use headstart_block::{ByteRange, Result, SECTOR_SIZE, to_usize};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The number of bytes received at once: some 2,300 reads, or 15 writes of 4 KiB.
const RECEIVE: usize = 64 << 10;
/// The largest read in one chunk that the receiving thread serves, in bytes.
const WHOLE_MAX: u64 = 1 << 20;
/// The time after which a silent connection gives buffers back.
const IDLE: Duration = Duration::from_secs(1);
/// The bytes of a reply buffer above which it counts as memory that others may need.
const OUT_MAX: usize = 512 << 10;
/// The time after which a client that sends nothing of a large write is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// The further course of the stream of requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    /// The next request is not whole yet.
    More,
    End,
}

/// Serves the client of `connection` until it goes; `early` are bytes that came with the end of its handshake.
pub(super) fn serve(connection: &Arc<Connection>, early: &[u8]) {
    let mut receiver = Receiver::new(connection, early);
    let served = catch_unwind(AssertUnwindSafe(|| receiver.run()));
    if served.is_err() {
        tracing::error!(peer = connection.peer, "a disk panicked; its client is disconnected");
        connection.wire.break_off();
    }
    connection.close_pools();
}

/// The receiving thread.
struct Receiver<'a> {
    connection: &'a Arc<Connection>,
    input: Vec<u8>,
    /// Bytes of `input` that were received and not served.
    filled: usize,
    out: ReplyBuffer,
    /// The memory that a large `out` counts as.
    out_share: Option<Share>,
    /// The bytes of large writes, all initialised.
    payload: Vec<u8>,
    /// The memory that a large `payload` counts as.
    payload_share: Option<Share>,
    /// `true` if the socket has a time-out, because there are buffers to give back.
    timed: bool,
    spin_policy: SpinPolicy,
}

impl<'a> Receiver<'a> {
    fn new(connection: &'a Arc<Connection>, early: &[u8]) -> Self {
        let mut input = vec![0; RECEIVE.max(early.len())];
        input[..early.len()].copy_from_slice(early);
        let (out, payload) = (ReplyBuffer::default(), Vec::new());
        let spin_policy = SpinPolicy::new(processors());
        let (out_share, payload_share, filled) = (None, None, early.len());
        Self { connection, input, filled, out, out_share, payload, payload_share, timed: false, spin_policy }
    }

    fn run(&mut self) {
        loop {
            if self.filled >= REQUEST_HEADER {
                self.connection.wire.activity().on_request(now());
            }
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
            self.give_way();
            if flow == Flow::End || self.connection.wire.is_broken() {
                return;
            }
            // After a large write nothing is left, however much had been received.
            self.input.copy_within(filled - left..filled, 0);
            self.filled = left;
            if !self.receive() {
                return;
            }
        }
    }

    /// Receives the bytes that are there, and waits if there are none; `false` at the end.
    fn receive(&mut self) -> bool {
        loop {
            self.set_time_out(self.out.held() > KEEP || self.payload.len() > KEEP);
            let socket = self.connection.wire.socket();
            let room = self.input.get_mut(self.filled..).unwrap_or_default();
            match receive_soon(socket, room, &mut self.spin_policy) {
                Ok(Received::Bytes(len)) => {
                    self.filled += len;
                    return true;
                }
                Ok(Received::Nothing) => self.release(),
                Ok(Received::End) => return false,
                Err(_) => {
                    self.connection.wire.break_off();
                    return false;
                }
            }
        }
    }

    /// Gives large buffers back.
    fn release(&mut self) {
        self.out.release();
        self.out_share = None;
        self.payload = Vec::new();
        self.payload_share = None;
    }

    /// Keeps no large buffers for the next request while others need memory.
    fn give_way(&mut self) {
        if (self.out_share.is_some() || self.payload_share.is_some())
            && self.connection.account.pool().is_short()
        {
            self.release();
        }
    }

    fn set_time_out(&mut self, timed: bool) {
        if timed != self.timed {
            // If this fails, buffers are only kept for longer.
            let _ = set_socket_timeout(self.connection.wire.socket(), Timeout::Recv, timed.then_some(IDLE));
            self.timed = timed;
        }
    }

    /// Serves the request at the front of `received`.
    fn next(&mut self, received: &mut &[u8]) -> Flow {
        let Some((head, tail)) = received.split_first_chunk::<REQUEST_HEADER>() else {
            return Flow::More;
        };
        let Some(request) = NbdRequest::parse(head) else {
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
        let early = tail;
        *received = &[];
        if self.has_payload_of(payload) {
            return self.serve_large(&request, early, payload);
        }
        self.serve_in_parts(&request, early, payload)
    }

    /// Makes sure of memory for a write of `len` bytes in one piece; `false` if there is none.
    fn has_payload_of(&mut self, len: usize) -> bool {
        if self.payload.len() >= len {
            return true;
        }
        // The old buffer is given back first, so that it counts once.
        (self.payload, self.payload_share) = (Vec::new(), None);
        let Some(share) = self.connection.account.try_reserve(len as u64) else { return false };
        self.payload_share = Some(share);
        // Fresh memory of zeros costs nothing until it is written to.
        self.payload = vec![0; len];
        true
    }

    /// Serves a write that is received as a whole; `early` are the bytes of it that came already.
    fn serve_large(&mut self, request: &NbdRequest, early: &[u8], len: usize) -> Flow {
        let mut data = std::mem::take(&mut self.payload);
        data[..early.len()].copy_from_slice(early);
        if !self.receive_part(&mut data[early.len()..len]) {
            return Flow::End;
        }
        let flow = self.serve(request, &data[..len], false);
        self.payload = data;
        flow
    }

    /// Serves a write with little memory: received bytes are written, then more are received.
    fn serve_in_parts(&mut self, request: &NbdRequest, early: &[u8], len: usize) -> Flow {
        let connection = self.connection;
        let size = connection.state.device().size();
        let judged = judge(request, connection.session, size);
        let mut part = vec![0; to_usize(OWN_BYTES)];
        let (mut at, mut done, mut came, mut rest) = (request.offset, Ok(()), early, len);
        while rest > 0 {
            // Parts end where sectors do, so that only the first and the last change a part of one.
            let wanted = to_usize(OWN_BYTES - at % SECTOR_SIZE).min(rest);
            let (head, tail) = came.split_at(came.len().min(wanted));
            came = tail;
            part[..head.len()].copy_from_slice(head);
            if !self.receive_part(&mut part[head.len()..wanted]) {
                return Flow::End;
            }
            if judged.is_ok() && done.is_ok() {
                done = connection.state.write(&part[..wanted], at);
            }
            // A write that goes round the end was judged to be none.
            (at, rest) = (at.wrapping_add(wanted as u64), rest - wanted);
        }
        match judged {
            Err(refusal) => connection.refuse(&mut self.out, request.cookie, refusal.errno, refusal.message),
            Ok(NbdCommand::Write { fua: true, .. }) if done.is_ok() => {
                self.later(Job::new(request.cookie, NbdCommand::Flush, Vec::new()));
            }
            Ok(_) => connection.answer(&mut self.out, request.cookie, done),
        }
        Flow::On
    }

    /// Receives all of `data`, the bytes of a write.
    fn receive_part(&mut self, data: &mut [u8]) -> bool {
        self.set_time_out(true);
        let socket = self.connection.wire.socket();
        let (mut filled, mut silent) = (0, None);
        while filled < data.len() {
            match receive(socket, &mut data[filled..]) {
                Ok(Received::Bytes(more)) => (filled, silent) = (filled + more, None),
                Ok(Received::Nothing) if now() - *silent.get_or_insert_with(now) < WRITE_TIMEOUT => {}
                _ => {
                    self.connection.wire.break_off();
                    return false;
                }
            }
        }
        true
    }

    /// Ends a stream of requests that cannot be followed any more.
    fn lost(&self, why: &str) -> Flow {
        let complaints = &self.connection.wire.complaints;
        complain!(complaints, Protocol, peer = self.connection.peer, why, "an NBD client is disconnected");
        Flow::End
    }

    /// Serves a request; `more` if others wait behind it.
    fn serve(&mut self, request: &NbdRequest, data: &[u8], more: bool) -> Flow {
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
            NbdCommand::Read { range, whole } => self.read(cookie, range, whole, more),
            NbdCommand::Write { range, fua: false } if range.is_aligned(SECTOR_SIZE) => {
                let done = if data.is_empty() {
                    Ok(())
                } else {
                    connection.state.write_sectors(data, range.offset())
                };
                connection.answer(&mut self.out, cookie, done);
            }
            NbdCommand::Cache { range } => {
                connection.state.device().prefetch(range);
                connection.answer(&mut self.out, cookie, Ok(()));
            }
            NbdCommand::Zero { range, fast: true, .. } if !ExportState::zeroes_fast(range) => {
                let message = "sectors would be read to zero a part of them";
                connection.refuse(&mut self.out, cookie, Errno::NotSup, message);
            }
            NbdCommand::Disconnect => return Flow::End,
            NbdCommand::Write { range, fua } => self.write_later(cookie, range, fua, data),
            NbdCommand::Flush
            | NbdCommand::Zero { .. }
            | NbdCommand::Trim { .. }
            | NbdCommand::Status { .. }
            | NbdCommand::Resize { .. } => self.later(Job::new(cookie, command, Vec::new())),
        }
        if self.out.len() >= SEND_AT {
            connection.send(&mut self.out);
        }
        Flow::On
    }

    /// Serves a read; `more` if requests wait behind it.
    fn read(&mut self, cookie: u64, range: ByteRange, whole: bool, more: bool) {
        let connection = self.connection;
        if more && decodes_much(connection.state.device(), range.len()) && connection.cpu.is_free() {
            let job = Job::new(cookie, NbdCommand::Read { range, whole }, Vec::new());
            return self.later(Job { kind: PoolKind::Cpu, ..job });
        }
        let one_piece = whole || !connection.session.structured;
        let absent = if one_piece && !self.has_room_for(range.len()) {
            Some(range)
        } else {
            connection.read(&mut self.out, cookie, range, whole, BlockingMode::LocalOnly, PIECE)
        };
        let Some(rest) = absent else { return };
        // A worker thread sends the end of the reply, which must not overtake its beginning.
        if rest.offset() > range.offset() {
            connection.send(&mut self.out);
        }
        // A worker thread reads in parts: the later parts are prefetched meanwhile.
        if !one_piece && rest.len() > PIECE_SLOW {
            connection.state.device().prefetch(ByteRange::between(rest.offset() + PIECE_SLOW, rest.end()));
        }
        self.later(Job::new(cookie, NbdCommand::Read { range: rest, whole }, Vec::new()));
    }

    /// `true` if the reply to a read may be put together here, in one piece.
    fn has_room_for(&mut self, len: u64) -> bool {
        let bytes = to_usize(len);
        if len > WHOLE_MAX {
            return false;
        }
        if self.out.len() + bytes + RECEIVE <= OUT_MAX || self.out_share.is_some() {
            return true;
        }
        // On top of bytes that are not yet sent.
        self.out_share = self.connection.account.try_reserve(WHOLE_MAX + SEND_AT as u64);
        self.out_share.is_some()
    }

    /// Leaves a write that may wait to a worker pool. If there is no memory to keep its bytes in, this thread does it,
    /// and only this client waits.
    fn write_later(&mut self, cookie: u64, range: ByteRange, fua: bool, data: &[u8]) {
        let connection = self.connection;
        let Some(share) = connection.account.try_reserve(data.len() as u64) else {
            connection.send(&mut self.out);
            let flush = |()| if fua { connection.state.device().flush() } else { Result::Ok(()) };
            let done = connection.state.write(data, range.offset()).and_then(flush);
            return connection.answer(&mut self.out, cookie, done);
        };
        let job = Job::new(cookie, NbdCommand::Write { range, fua }, data.to_vec());
        self.later(Job { share: Some(share), ..job });
    }

    /// Leaves a job to its worker pool. If that is full, the client gets the replies that are ready before the wait.
    fn later(&mut self, job: Job) {
        if self.connection.pool(job.kind).is_full(job.bytes()) {
            self.connection.send(&mut self.out);
        }
        self.connection.later(job);
    }
}
