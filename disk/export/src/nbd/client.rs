//! An NBD client that reads ranges of an export, many at a time, and discards the bytes.
//!
//! The client is made for replaying recorded reads, so it discards the bytes that it receives. It has no thread of its
//! own: [`Client::read`] sends a request, and [`Client::wait`] waits in the caller's thread for answers or until a
//! given time, whichever comes first. A hostile server can cause an error, but neither a panic nor an allocation
//! without bound.
//!
//! `libnbd` would do most of that, but its crate needs the C library of that name on every host, and copies the bytes
//! of each read into a buffer of the caller. The client of the Rust crate `nbd` implements `Read` and `Seek`, so it has
//! only one request in flight.

mod handshake;
mod remote;
mod replies;
mod uri;

pub use remote::RemoteDisk;
pub use uri::NbdUri;

use super::address::Address;
use super::proto::{NbdRequest, command};
use super::wire::{Received, receive, send_all};
use handshake::Facts;
use headstart_block::{ByteRange, Error, ErrorKind, Result, exact};
use replies::{Ended, Replies};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_nodelay};
use rustix::net::{SendFlags, send};
use std::collections::BTreeMap;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The number of bytes that are received at once.
const BUFFER: usize = 256 << 10;

/// The most bytes of requests that wait for a server which takes none.
const UNSENT_MAX: usize = 16 << 20;

/// The time limits of an NBD client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// The maximum duration of connecting and choosing the export. 10 seconds by default.
    pub connect: Duration,
    /// The maximum duration without a received byte while a request is unanswered. 5 minutes by default.
    pub answer: Duration,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), answer: Duration::from_secs(300) }
    }
}

/// The outcome of one read; the bytes are discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdAnswer {
    /// The number that the caller gave the read in [`Client::read`].
    pub number: u64,
    /// The error code of the NBD protocol that the server returned, such as 5 (I/O) or 22 (invalid request);
    /// `None` if the read succeeded.
    pub error: Option<u32>,
}

/// A connection to one export of an NBD server, for reads that are timed: received bytes are discarded.
pub struct Client {
    socket: OwnedFd,
    name: String,
    facts: Facts,
    answer: Duration,
    replies: Replies,
    /// The read that each request belongs to.
    requests: BTreeMap<u64, u64>,
    /// Reads that are not answered yet: the number of their requests that are not, and the error.
    reads: BTreeMap<u64, (usize, Option<u32>)>,
    next_cookie: u64,
    /// The bytes that the server did not take yet, from `sent` on.
    unsent: Vec<u8>,
    sent: usize,
    buffer: Vec<u8>,
    ended: Vec<Ended>,
    /// The time at which the last bytes of the server came, or at which a read was sent when nothing was under way.
    last_answer_at: Instant,
}

/// A connection during the handshake, which has a deadline.
struct Line {
    socket: OwnedFd,
    until: Instant,
}

impl Client {
    /// Connects to the server and chooses the export that `uri` names.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if no server listens or it does not answer in time, [`ErrorKind::NotFound`]
    /// if it has no such export, [`ErrorKind::Unsupported`] if it demands TLS or does not speak the fixed
    /// newstyle handshake, [`ErrorKind::Corrupt`] if it is not an NBD server.
    #[expect(clippy::disallowed_methods, reason = "a handshake has a deadline")]
    pub fn connect(uri: &NbdUri, settings: &ClientSettings) -> Result<Self> {
        let until = Instant::now() + settings.connect;
        let about = |e: Error| e.about(uri);
        let socket = dial(&uri.address, settings.connect).map_err(about)?;
        let mut line = Line { socket, until };
        let facts = handshake::choose(&mut line, &uri.export).map_err(about)?;
        let socket = line.socket;
        rustix::io::ioctl_fionbio(&socket, true)
            .map_err(|e| about(Error::io("cannot be set up", e.into())))?;
        Ok(Self {
            socket,
            name: uri.to_string(),
            facts,
            answer: settings.answer,
            replies: Replies::new(),
            requests: BTreeMap::new(),
            reads: BTreeMap::new(),
            next_cookie: 0,
            unsent: Vec::new(),
            sent: 0,
            buffer: vec![0; BUFFER],
            ended: Vec::new(),
            last_answer_at: Instant::now(),
        })
    }

    /// The size of the export in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.facts.size
    }

    /// The number of reads that were sent and are not answered yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.reads.len()
    }

    /// Sends a read of `range`. The caller chooses `number`, which no other read in flight may have. If the
    /// server accepts only whole blocks, the read is extended to whole blocks; if it limits the length of a
    /// request, several requests are sent.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the range is empty or not within the export; [`ErrorKind::Unavailable`] if
    /// the connection is lost or more than 16 MiB of requests wait to be sent.
    #[expect(clippy::disallowed_methods, reason = "a server that was idle is given all its time to answer")]
    pub fn read(&mut self, number: u64, range: ByteRange) -> Result<()> {
        let Facts { size, unit, longest, .. } = self.facts;
        if range.is_empty() || range.end() > size {
            return Err(Error::invalid(format!("{range} is not within its {size} bytes")).about(&self.name));
        }
        if self.reads.is_empty() {
            self.last_answer_at = Instant::now();
        }
        let start = range.offset() / unit * unit;
        let end = range.end().next_multiple_of(unit).min(size);
        for part in ByteRange::between(start, end).parts(longest) {
            let cookie = self.next_cookie;
            self.next_cookie += 1;
            let len = exact(part.len(), "a request has at most PAYLOAD_MAX bytes");
            let request = NbdRequest { flags: 0, command: command::READ, cookie, offset: part.offset(), len };
            self.unsent.extend_from_slice(&request.encode());
            self.replies.ask(cookie, part);
            self.requests.insert(cookie, number);
            self.reads.entry(number).or_default().0 += 1;
        }
        if self.unsent.len() - self.sent > UNSENT_MAX {
            return Err(self.silent("takes no requests"));
        }
        self.send()
    }

    /// Waits until at least one read is answered, and appends the outcomes to `answers`. Returns without an outcome at
    /// the time `until`. If `until` is `None` and no read is in flight, returns at once.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server closes the connection or sends nothing for
    /// [`ClientSettings::answer`] while a read waits; [`ErrorKind::Corrupt`] if it violates the protocol. The
    /// connection cannot be used after an error.
    #[expect(clippy::disallowed_methods, reason = "waiting is what it is for")]
    pub fn wait(&mut self, until: Option<Instant>, answers: &mut Vec<NbdAnswer>) -> Result<()> {
        let before = answers.len();
        loop {
            self.send()?;
            self.receive(answers)?;
            if answers.len() > before {
                return Ok(());
            }
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                return Ok(());
            }
            let deadline = (!self.reads.is_empty()).then(|| self.last_answer_at + self.answer);
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Err(self.silent("does not answer"));
            }
            if self.reads.is_empty() && until.is_none() {
                return Ok(());
            }
            let until = until.into_iter().chain(deadline).min();
            self.sleep(until.map(|until| until.saturating_duration_since(now)))?;
        }
    }

    /// Sends the protocol's disconnect request and closes the connection, without waiting for unanswered
    /// reads. A failure to send is ignored.
    pub fn disconnect(mut self) {
        let request = NbdRequest { flags: 0, command: command::DISCONNECT, cookie: 0, offset: 0, len: 0 };
        self.unsent.extend_from_slice(&request.encode());
        let _ = self.send();
    }

    fn silent(&self, what: &str) -> Error {
        let (seconds, reads) = (self.answer.as_secs(), self.reads.len());
        Error::new(
            ErrorKind::Unavailable,
            format!("{what}: {reads} reads wait, and nothing came for {seconds} s"),
        )
        .about(&self.name)
    }

    fn lost(&self, error: impl Into<std::io::Error>) -> Error {
        Error::new(ErrorKind::Unavailable, "the connection is lost").caused_by(error.into()).about(&self.name)
    }

    /// Waits until there is something to receive or to send, for at most `time`.
    fn sleep(&self, time: Option<Duration>) -> Result<()> {
        let mut events = PollFlags::IN;
        if self.sent < self.unsent.len() {
            events |= PollFlags::OUT;
        }
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut [PollFd::new(&self.socket, events)], time.as_ref()) {
            // After an interruption the caller looks at the clock, and at what it waits for.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(self.lost(e)),
        }
    }

    /// Sends as many bytes as the server takes.
    fn send(&mut self) -> Result<()> {
        while self.sent < self.unsent.len() {
            match send(&self.socket, self.unsent.get(self.sent..).unwrap_or_default(), SendFlags::NOSIGNAL) {
                Ok(len) => self.sent += len,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.lost(e)),
            }
        }
        self.unsent.clear();
        self.sent = 0;
        Ok(())
    }

    /// Receives all bytes that are there: the socket does not wait.
    #[expect(clippy::disallowed_methods, reason = "how long a server is silent")]
    fn receive(&mut self, answers: &mut Vec<NbdAnswer>) -> Result<()> {
        loop {
            let len = match receive(&self.socket, &mut self.buffer).map_err(|e| self.lost(e))? {
                Received::Bytes(len) => len,
                Received::Nothing => return Ok(()),
                Received::End if self.reads.is_empty() => return Err(self.hung_up("hung up")),
                Received::End => return Err(self.hung_up("hung up before it had answered")),
            };
            self.last_answer_at = Instant::now();
            let bytes = self.buffer.get(..len).unwrap_or_default();
            let taken = self.replies.take(bytes, &mut self.ended);
            for ended in self.ended.drain(..) {
                let number = self.requests.remove(&ended.cookie);
                let Some((left, error)) = number.and_then(|number| self.reads.get_mut(&number)) else {
                    continue;
                };
                *left -= 1;
                *error = error.or(ended.error);
                if let (0, error, Some(number)) = (*left, *error, number) {
                    self.reads.remove(&number);
                    answers.push(NbdAnswer { number, error });
                }
            }
            taken.map_err(|e| e.about(&self.name))?;
            debug_assert_eq!(
                self.replies.is_idle(),
                self.reads.is_empty(),
                "every request belongs to a read"
            );
            if len < self.buffer.len() {
                return Ok(());
            }
        }
    }

    fn hung_up(&self, what: &str) -> Error {
        Error::new(ErrorKind::Unavailable, format!("the server {what}")).about(&self.name)
    }
}

/// Connects to an address.
fn dial(address: &Address, timeout: Duration) -> Result<OwnedFd> {
    let nobody =
        |e: std::io::Error| Error::new(ErrorKind::Unavailable, "no server listens there").caused_by(e);
    match address {
        Address::Unix(path) => Ok(UnixStream::connect(path).map_err(nobody)?.into()),
        Address::Tcp(host, port) => {
            let mut last = None;
            for address in (host.as_str(), *port).to_socket_addrs().map_err(nobody)? {
                match TcpStream::connect_timeout(&address, timeout) {
                    Ok(stream) => {
                        // Requests are small, and each is sent when it is due.
                        let _ = set_tcp_nodelay(&stream, true);
                        return Ok(stream.into());
                    }
                    Err(e) => last = Some(e),
                }
            }
            let none = || Error::new(ErrorKind::Unavailable, "that host has no address");
            Err(last.map_or_else(none, nobody))
        }
    }
}

/// Chooses an export on a connection whose next user is the kernel, which knows plain replies only. Returns the
/// connection, and the size and the flags of the export.
///
/// # Errors
/// As [`Client::connect`].
#[expect(clippy::disallowed_methods, reason = "a handshake has a deadline")]
pub(crate) fn choose_for_kernel(socket: OwnedFd, export: &str) -> Result<(OwnedFd, u64, u16)> {
    let until = Instant::now() + ClientSettings::default().connect;
    let mut line = Line { socket, until };
    let facts = handshake::choose_plain(&mut line, export)?;
    // The kernel would take these limits for its own.
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&line.socket, direction, None)
            .map_err(|e| Error::io("cannot be set up", e.into()))?;
    }
    Ok((line.socket, facts.size, facts.flags))
}

impl Line {
    #[expect(clippy::disallowed_methods, reason = "a handshake has a deadline")]
    fn wait_at_most(&self, direction: Timeout) -> Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new(ErrorKind::Unavailable, "does not answer in time"));
        }
        let failed = |e: Errno| Error::io("cannot be set up", e.into());
        set_socket_timeout(&self.socket, direction, Some(left)).map_err(failed)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.wait_at_most(Timeout::Send)?;
        send_all(&self.socket, bytes)
            .map_err(|e| Error::new(ErrorKind::Unavailable, "the connection is lost").caused_by(e))
    }

    fn receive<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.receive_into(&mut bytes)?;
        Ok(bytes)
    }

    fn receive_vec(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.receive_into(&mut bytes)?;
        Ok(bytes)
    }

    fn receive_into(&mut self, mut bytes: &mut [u8]) -> Result<()> {
        while !bytes.is_empty() {
            self.wait_at_most(Timeout::Recv)?;
            let received = receive(&self.socket, bytes)
                .map_err(|e| Error::new(ErrorKind::Unavailable, "the connection is lost").caused_by(e))?;
            match received {
                Received::Bytes(len) => bytes = bytes.get_mut(len..).unwrap_or_default(),
                Received::End => {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "the server hung up during the handshake",
                    ));
                }
                Received::Nothing => {}
            }
        }
        Ok(())
    }
}
