//! One connection: the shared state of both ends, the open requests, and the two tasks that move its bytes.
//!
//! The reader takes a frame at a time: a message goes to the state machine; a chunk is checked and stored at once, by
//! the same thread, whose CPU cache has its bytes. The writer takes the most urgent item, reads a chunk into the buffer
//! that is encrypted, and waits only for the socket.

use crate::blob::Blob;
use crate::channel::Channel;
use crate::complaints::InVain;
use crate::credentials::{HostCertificate, Roles};
use crate::frame::{self, FrameKind, HEADER, Header, PROCESS};
use crate::host::Host;
use crate::outbox::{Next, Outbox, STALLED_MS, Sending};
use crate::proof::{Binding, Side};
use headstart_block::{Error, ErrorKind, ReadAt, Result};
use headstart_swarm::event::Served;
use headstart_swarm::{Chunks, Event, PeerId, PeerKey, RequestId, Role, Urgency};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

/// The most requests whose chunks may still come; the oldest are forgotten.
const REQUESTS_MAX: usize = 65_536;

const HOUR_MS: u64 = 3_600_000;

/// The time without a sent frame after which a ping is sent.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Unrequested bytes that a host may send, in addition to a part of the requested ones.
const STRAY_MAX: u64 = 8 << 20;

/// That part of the requested bytes: an eighth.
const STRAY_PART: u64 = 8;

/// The part of pushed bytes that may come twice: a half, because other hosts may send a chunk while it is on its way.
const PUSHED_PART: u64 = 2;

/// One connection.
pub(crate) struct Link {
    pub(crate) peer: PeerId,
    pub(crate) key: PeerKey,
    pub(crate) name: String,
    pub(crate) role: Role,
    /// `true` if the other host counts disks' reads.
    pub(crate) is_tracker: bool,
    /// The roles that the other host's certificate gives.
    pub(crate) roles: Roles,
    /// The version of the protocol on this connection: frames and words of version 2 are sent only if it is that or a
    /// later one.
    pub(crate) protocol: u16,
    pub(crate) address: SocketAddr,
    /// The process of the other host.
    pub(crate) process: [u8; PROCESS],
    /// The other host's certificate, which it may have renewed since the connection was made.
    certificate: Mutex<Option<HostCertificate>>,
    /// The end that this host is.
    pub(crate) side: Side,
    pub(crate) binding: Binding,
    pub(crate) outbox: Outbox,
    requests: Mutex<BTreeMap<RequestId, Request>>,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    strays: AtomicU64,
    /// The start of the current hour, in milliseconds of the host's clock, and the requests for certificates in it.
    certificate_requests: Mutex<(u64, u32)>,
    /// The orders of the other host that were refused.
    in_vain: Mutex<InVain>,
    /// `true` once the other host has sent a frame other than a refusal: it has accepted this host.
    pub(crate) is_taken: AtomicBool,
    /// The time of the last received frame, in milliseconds of the host's clock.
    pub(crate) last_heard_ms: AtomicU64,
    closed: AtomicBool,
    closing: Notify,
}

/// An open request.
struct Request {
    blob: Arc<Blob>,
    chunks: Chunks,
    /// A bit for each chunk that is still to come.
    coming: Vec<u64>,
    left: u32,
}

impl Request {
    /// Marks a chunk as received; `true` if it was still to come.
    fn take(&mut self, chunk: u32) -> bool {
        let Some(at) = chunk.checked_sub(self.chunks.first).filter(|at| *at < self.chunks.count) else {
            return false;
        };
        let Some(word) = self.coming.get_mut((at / 64) as usize) else { return false };
        let was_coming = *word & 1 << (at % 64) != 0;
        *word &= !(1 << (at % 64));
        self.left -= u32::from(was_coming);
        was_coming
    }
}

impl Link {
    /// A connection whose other end was admitted.
    pub(crate) fn new(
        peer: PeerId,
        key: PeerKey,
        channel: &Channel,
        address: SocketAddr,
        now_ms: u64,
    ) -> Self {
        let (roles, hello) = (channel.roles(), &channel.hello);
        Self {
            peer,
            key,
            name: hello.name.clone(),
            role: if hello.is_root && roles.root { Role::Root } else { Role::Agent },
            is_tracker: hello.is_tracker && roles.tracker,
            roles,
            protocol: channel.protocol(),
            address,
            process: hello.process(),
            certificate: Mutex::new(channel.certificate.clone()),
            side: channel.side,
            binding: channel.binding,
            outbox: Outbox::default(),
            requests: Mutex::default(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            strays: AtomicU64::new(0),
            certificate_requests: Mutex::default(),
            in_vain: Mutex::default(),
            is_taken: AtomicBool::new(false),
            last_heard_ms: AtomicU64::new(now_ms),
            closed: AtomicBool::new(false),
            closing: Notify::new(),
        }
    }

    /// The other host's certificate.
    pub(crate) fn certificate(&self) -> Option<HostCertificate> {
        self.certificate.lock().clone()
    }

    /// Sets a new certificate of the other host, for the same name and key.
    pub(crate) fn set_certificate(&self, renewed: HostCertificate) {
        *self.certificate.lock() = Some(renewed);
    }

    /// `true` if the other host's certificate has ended.
    pub(crate) fn has_ended(&self, now: u64) -> bool {
        let certificate = self.certificate.lock();
        certificate.as_ref().is_some_and(|one| now > one.validity.not_after)
    }

    /// `true` if the other host's certificate gives it the role of an authority.
    pub(crate) fn is_authority(&self) -> bool {
        let certificate = self.certificate.lock();
        certificate.as_ref().is_some_and(|certificate| certificate.roles.authority)
    }

    /// Counts a request of the other host for a certificate; returns the number of requests within an hour.
    pub(crate) fn count_certificate_request(&self, now_ms: u64) -> u32 {
        let mut requests = self.certificate_requests.lock();
        if now_ms.saturating_sub(requests.0) >= HOUR_MS {
            *requests = (now_ms, 0);
        }
        requests.1 = requests.1.saturating_add(1);
        requests.1
    }

    fn requests(&self) -> parking_lot::MutexGuard<'_, BTreeMap<RequestId, Request>> {
        self.requests.lock()
    }

    /// Records chunks that are about to be requested. A second request under the same number changes nothing.
    pub(crate) fn expect(&self, request: RequestId, blob: &Arc<Blob>, chunks: Chunks) {
        let mut requests = self.requests();
        requests.entry(request).or_insert_with(|| {
            let mut coming = vec![u64::MAX; (chunks.count as usize).div_ceil(64)];
            if let Some(last) = coming.last_mut()
                && !chunks.count.is_multiple_of(64)
            {
                *last = (1 << (chunks.count % 64)) - 1;
            }
            Request { blob: Arc::clone(blob), chunks, coming, left: chunks.count }
        });
        if requests.len() > REQUESTS_MAX {
            requests.pop_first();
        }
    }

    /// The blob of a chunk, if the chunk was requested and has not come yet.
    fn take(&self, request: RequestId, chunk: u32) -> Option<Arc<Blob>> {
        let mut requests = self.requests();
        let entry = requests.get_mut(&request)?;
        let found = entry.take(chunk).then(|| Arc::clone(&entry.blob));
        if entry.left == 0 {
            requests.remove(&request);
        }
        found
    }

    /// Records that these chunks do not come.
    pub(crate) fn refused(&self, request: RequestId, chunks: Chunks) {
        let mut requests = self.requests();
        let Some(entry) = requests.get_mut(&request) else { return };
        let of_it = entry.chunks.numbers();
        let numbers = chunks.numbers();
        for chunk in numbers.start.max(of_it.start)..numbers.end.min(of_it.end) {
            entry.take(chunk);
        }
        if entry.left == 0 {
            requests.remove(&request);
        }
    }

    /// Records the outcome of an order of the other host. Returns `true` if too many of its orders are refused.
    pub(crate) fn note_order(&self, is_refused: bool, now_ms: u64) -> bool {
        self.in_vain.lock().note(is_refused, now_ms)
    }

    /// Ends the connection; any thread may call this.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closing.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns when the connection is to end.
    pub(crate) async fn closed(&self) {
        let mut closing = std::pin::pin!(self.closing.notified());
        closing.as_mut().enable();
        if !self.closed.load(Ordering::Acquire) {
            closing.await;
        }
    }

    /// Moves the bytes of the connection until it ends.
    pub(crate) async fn run(
        self: &Arc<Self>,
        host: &Arc<Host>,
        stream: crate::channel::Stream,
    ) -> Result<()> {
        let (reading, writing) = tokio::io::split(stream);
        let (link, its_host) = (Arc::clone(self), Arc::clone(host));
        let mut writer = tokio::spawn(async move { link.write(&its_host, writing).await });
        let (ended, has_written) = tokio::select! {
            read = self.read(host, reading) => (read, false),
            written = &mut writer => (written.unwrap_or(Ok(())), true),
            () = self.closed() => (Ok(()), false),
        };
        self.outbox.close(&host.send_gate);
        // The last frames are sent, but not for long.
        if !has_written && tokio::time::timeout(Duration::from_millis(200), &mut writer).await.is_err() {
            writer.abort();
        }
        ended
    }

    async fn read(&self, host: &Arc<Host>, mut stream: impl AsyncRead + Unpin) -> Result<()> {
        let lost = |e| Error::io("the connection broke off", e);
        let mut header = [0; HEADER];
        let mut body = Vec::new();
        loop {
            stream.read_exact(&mut header).await.map_err(lost)?;
            let header = Header::decode(&header)?;
            if body.len() < header.len {
                body.resize(header.len, 0);
            }
            let bytes = &mut body[..header.len];
            stream.read_exact(bytes).await.map_err(lost)?;
            self.last_heard_ms.store(host.now_ms(), Ordering::Relaxed);
            // A host that refuses another one sends it the authority's list, and the reason.
            if !matches!(header.kind, FrameKind::Trust | FrameKind::Refused | FrameKind::Bye) {
                self.is_taken.store(true, Ordering::Relaxed);
            }
            match header.kind {
                FrameKind::Message => host.received(self, frame::decode_message(bytes)?)?,
                FrameKind::Chunk => self.chunk_came(host, header, &mut body)?,
                FrameKind::Push => self.chunk_was_pushed(host, header, &mut body)?,
                FrameKind::Proof => host.proved(self, header.a, bytes)?,
                FrameKind::Withdrawn => host.withdrawn(self, header.a),
                FrameKind::Report => host.reported(self, bytes)?,
                FrameKind::Hints => host.hinted(self, bytes)?,
                FrameKind::Ping => {}
                FrameKind::Bye => return Ok(()),
                FrameKind::Order => host.ordered(self, header.a, bytes)?,
                FrameKind::Done => host.order_done(self, header.a, bytes)?,
                FrameKind::Refused if header.b == frame::REFUSED_CONNECTION => return Err(refused(bytes)?),
                FrameKind::Refused if header.b == frame::REFUSED_ORDER => {
                    host.order_refused(self, header.a, bytes)?;
                }
                FrameKind::Refused if header.b == frame::REFUSED_REQUEST => {
                    host.request_refused(self, header.a, bytes)?;
                }
                FrameKind::Refused => {}
                FrameKind::Request => host.certificate_requested(self, header.a, bytes)?,
                FrameKind::Certificate => host.certificate_came(self, header.a, bytes),
                FrameKind::Renewed => host.certificate_renewed(self, bytes)?,
                FrameKind::Trust => host.on_trust_list(Some(self), bytes)?,
                FrameKind::Hello => return Err(Error::corrupt("a second hello")),
            }
        }
    }

    fn chunk_came(&self, host: &Arc<Host>, header: Header, body: &mut Vec<u8>) -> Result<()> {
        let (request, chunk) = (RequestId(header.a), header.b);
        let came = header.len as u64;
        self.received.fetch_add(came, Ordering::Relaxed);
        host.counts.received_bytes.fetch_add(came, Ordering::Relaxed);
        let Some(blob) = self.take(request, chunk) else {
            // The request may have been given up, so that the chunk comes twice.
            return self.strayed(host, came, STRAY_PART);
        };
        if blob.bytes_of(chunk).len() != came {
            return Err(Error::corrupt("a chunk of another length"));
        }
        host.arrived(self.peer, Some(request), &blob, chunk, body, header.len);
        Ok(())
    }

    fn chunk_was_pushed(&self, host: &Arc<Host>, header: Header, body: &mut Vec<u8>) -> Result<()> {
        let came = header.len as u64;
        self.received.fetch_add(came, Ordering::Relaxed);
        host.counts.received_bytes.fetch_add(came, Ordering::Relaxed);
        // Only roots push. A blob that was closed meanwhile is no offence.
        let Some(blob) = host.shared_blob(self, header.a).filter(|_| self.role == Role::Root) else {
            return self.strayed(host, came, STRAY_PART);
        };
        if !frame::is_within(Chunks::one(header.b), blob.len()) || blob.bytes_of(header.b).len() != came {
            return Err(Error::corrupt("a chunk of another length"));
        }
        if blob.cached.is_local(blob.bytes_of(header.b)) {
            return self.strayed(host, came, PUSHED_PART);
        }
        host.arrived(self.peer, None, &blob, header.b, body, header.len);
        Ok(())
    }

    /// Counts received bytes that are of no use: some are allowed, within a limit.
    fn strayed(&self, host: &Host, came: u64, part: u64) -> Result<()> {
        host.counts.stray_bytes.fetch_add(came, Ordering::Relaxed);
        let strays = self.strays.fetch_add(came, Ordering::Relaxed) + came;
        if strays > STRAY_MAX + self.received.load(Ordering::Relaxed) / part {
            return Err(Error::corrupt("it sends chunks that were not requested"));
        }
        Ok(())
    }

    async fn write(&self, host: &Arc<Host>, mut stream: impl AsyncWrite + Unpin) -> Result<()> {
        let lost = |e| Error::io("the connection broke off", e);
        let mut buf = Vec::new();
        loop {
            buf.clear();
            match self.outbox.next(&mut buf, &host.send_gate, host.now_ms()) {
                Next::Chunk(sending) => {
                    let put = if sending.was_sent { Ok(0) } else { put_chunk(&mut buf, &sending) };
                    let moving = host.send_gate.sending(&sending);
                    send(host, &mut stream, &buf, Some(sending.serve.urgency)).await.map_err(lost)?;
                    drop(moving);
                    if let Ok(bytes) = put {
                        self.sent.fetch_add(bytes, Ordering::Relaxed);
                        host.counts.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
                    }
                    host.served(self, &sending, put.err().unwrap_or(Served::Well));
                }
                Next::Small => send(host, &mut stream, &buf, None).await.map_err(lost)?,
                Next::Nothing { held_back } => {
                    stream.flush().await.map_err(lost)?;
                    let pause = if held_back { Duration::from_millis(STALLED_MS) } else { PING_EVERY };
                    let ready = self.outbox.ready.notified();
                    let waited = tokio::time::timeout(pause, async {
                        tokio::select! {
                            () = ready => {}
                            () = host.send_gate.opened.notified(), if held_back => {}
                        }
                    });
                    if waited.await.is_err() && !held_back {
                        frame::push_frame(&mut buf, FrameKind::Ping, 0, 0, &[]);
                        send(host, &mut stream, &buf, None).await.map_err(lost)?;
                    }
                }
                Next::Closed => {
                    frame::push_frame(&mut buf, FrameKind::Bye, 0, 0, &[]);
                    send(host, &mut stream, &buf, None).await.map_err(lost)?;
                    return stream.shutdown().await.map_err(lost);
                }
            }
        }
    }
}

/// Appends a chunk's frame, its bytes read from the cache into place; returns their number, or the cause if nothing was
/// appended.
fn put_chunk(buf: &mut Vec<u8>, sending: &Sending) -> std::result::Result<u64, Served> {
    let serve = &sending.serve;
    let range = serve.blob.bytes_of(sending.chunk);
    let len = usize::try_from(range.len()).ok().filter(|len| *len > 0).ok_or(Served::Missing)?;
    let start = buf.len();
    let (kind, a) = match serve.request {
        Some(request) => (FrameKind::Chunk, request.0),
        None => (FrameKind::Push, serve.blob.id.0),
    };
    buf.extend_from_slice(&Header { kind, len, a, b: sending.chunk }.encode());
    buf.resize(start + HEADER + len, 0);
    let why = match serve.blob.cached.read_at(&mut buf[start + HEADER..], range.offset()) {
        // The check is on the very bytes that are sent, because other processes may change the cache meanwhile.
        Ok(()) if serve.blob.may_send(sending.chunk, &buf[start + HEADER..]) => return Ok(range.len()),
        Ok(()) => Served::Unchecked,
        Err(_) => Served::Missing,
    };
    buf.truncate(start);
    Err(why)
}

/// The error for a refusal of the connection by the other host.
fn refused(body: &[u8]) -> Result<Error> {
    let why = frame::decode_refusal(body)?;
    Ok(Error::new(ErrorKind::Denied, format!("the other host refuses this one: {why}")))
}

async fn send(
    host: &Host,
    stream: &mut (impl AsyncWrite + Unpin),
    mut bytes: &[u8],
    urgency: Option<Urgency>,
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let sent = stream.write(bytes).await?;
        if sent == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[sent..];
        if urgency == Some(Urgency::Demand) {
            host.send_gate.progressed(host.now_ms());
        }
    }
    Ok(())
}

/// The event for the state machine after a chunk was sent, or could not be.
pub(crate) fn served_event<'a>(link: &Link, sending: &Sending, outcome: Served) -> Event<'a> {
    Event::Served {
        peer: link.peer,
        request: sending.serve.request,
        blob: sending.serve.blob.id,
        chunks: Chunks::one(sending.chunk),
        outcome,
    }
}
