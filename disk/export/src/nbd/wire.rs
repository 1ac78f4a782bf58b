//! A client's socket during transmission: one thread receives, several send whole replies.

use super::budget::Pool;
use super::spin_policy::{SPIN, SpinPolicy};
use super::standing::{Activity, now};
use crate::complaints::{Complaints, complain};
use parking_lot::{Mutex, MutexGuard};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The outcome of a wait for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// This many bytes came, at least one.
    Bytes(usize),
    /// The client will send no more.
    End,
    /// The socket's time-out passed, or nothing was there and the call did not wait.
    Nothing,
}

/// Receives into `buf`, which is not empty.
pub(crate) fn receive(socket: &OwnedFd, buf: &mut [u8]) -> io::Result<Received> {
    receive_with(socket, buf, RecvFlags::empty())
}

fn receive_with(socket: &OwnedFd, buf: &mut [u8], flags: RecvFlags) -> io::Result<Received> {
    loop {
        match recv(socket, &mut *buf, flags) {
            Ok((0, _)) => return Ok(Received::End),
            Ok((len, _)) => return Ok(Received::Bytes(len)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(e) => return Err(e.into()),
        }
    }
}

/// As [`receive`], but polls the socket for a moment before it sleeps, if `spin_policy` decides so.
#[expect(clippy::disallowed_methods, reason = "how soon a client asks again decides how to wait for it")]
pub(crate) fn receive_soon(
    socket: &OwnedFd,
    buf: &mut [u8],
    spin_policy: &mut SpinPolicy,
) -> io::Result<Received> {
    let since = Instant::now();
    let mut received = Ok(Received::Nothing);
    if spin_policy.should_spin() {
        while matches!(received, Ok(Received::Nothing)) && since.elapsed() < SPIN {
            received = receive_with(socket, buf, RecvFlags::DONTWAIT);
        }
    }
    if matches!(received, Ok(Received::Nothing)) {
        received = receive(socket, buf);
    }
    spin_policy.came_after(since.elapsed());
    received
}

/// Sends all of `bytes`.
pub(crate) fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => bytes = bytes.get(len..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// The time that one call on the socket waits for a client that takes nothing.
const SEND_WAIT: Duration = Duration::from_millis(500);
/// The bytes that a client has to take before its time starts again.
const PROGRESS: usize = 64 << 10;
/// The time that a client may leave its replies while the server is short of memory.
const SEND_TIMEOUT_SHORT: Duration = Duration::from_secs(10);

/// The socket of a connection and the right to send on it.
pub(crate) struct Wire {
    socket: Arc<OwnedFd>,
    /// The client's own, encrypted socket, if that is another one.
    beneath: Option<Arc<OwnedFd>>,
    /// The server's notes about the client.
    activity: Arc<Activity>,
    /// The time that a client may leave its replies.
    send_timeout: Duration,
    pool: Arc<Pool>,
    /// The lines of the log about the server's clients.
    pub(super) complaints: Arc<Complaints>,
    /// Held while a run of whole replies is sent.
    sending: Mutex<()>,
    /// `true` if the client is gone, or has to go: no work for it is worth doing.
    broken: AtomicBool,
}

impl Wire {
    /// Takes over `socket` after the handshake; `beneath` is the encrypted socket below it, if there is one.
    pub(crate) fn new(
        socket: Arc<OwnedFd>,
        beneath: Option<Arc<OwnedFd>>,
        activity: Arc<Activity>,
        send_timeout: Duration,
        pool: Arc<Pool>,
        complaints: Arc<Complaints>,
    ) -> io::Result<Self> {
        set_socket_timeout(&*socket, Timeout::Recv, None)?;
        set_socket_timeout(&*socket, Timeout::Send, Some(SEND_WAIT.min(send_timeout)))?;
        let (sending, broken) = (Mutex::new(()), AtomicBool::new(false));
        Ok(Self { socket, beneath, activity, send_timeout, pool, complaints, sending, broken })
    }

    /// The server's notes about the client.
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Sends whole replies. A client that does not take them is broken off.
    pub(crate) fn send(&self, replies: &[u8]) {
        self.hold().send(replies);
    }

    /// The right to send, so that a reply can be sent in parts.
    pub(crate) fn hold(&self) -> Sending<'_> {
        Sending { wire: self, _held: self.sending.lock() }
    }

    /// Sends all of `bytes` to a client that takes them in time.
    fn send_in_time(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut since = None;
        let mut taken = 0;
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => {
                    bytes = bytes.get(len..).unwrap_or_default();
                    taken += len;
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(e) => return Err(e.into()),
            }
            if bytes.is_empty() {
                break;
            }
            let now = now();
            if since.is_none() || taken >= PROGRESS {
                (since, taken) = (Some(now), 0);
                self.activity.set_stalled(since);
            }
            let waited = since.map_or(Duration::ZERO, |since| now - since);
            let short = waited >= SEND_TIMEOUT_SHORT && self.pool.is_short();
            if waited >= self.send_timeout || short || self.is_broken() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        if since.is_some() {
            self.activity.set_stalled(None);
        }
        Ok(())
    }

    /// Ends both directions: threads that wait on the socket return.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::Relaxed);
        // This fails if the client has done so already.
        let _ = shutdown(&*self.socket, Shutdown::Both);
        if let Some(beneath) = &self.beneath {
            let _ = shutdown(&**beneath, Shutdown::Both);
        }
    }
}

/// The right to send on a connection: others that reply wait meanwhile.
pub(crate) struct Sending<'a> {
    wire: &'a Wire,
    _held: MutexGuard<'a, ()>,
}

impl Sending<'_> {
    /// Sends a part of a reply. A client that does not take it is broken off.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // Bytes after a torn reply would be taken for the rest of it.
        if !self.wire.is_broken()
            && let Err(error) = self.wire.send_in_time(bytes)
        {
            if error.kind() == io::ErrorKind::TimedOut {
                complain!(
                    self.wire.complaints,
                    NoReplies,
                    "an NBD client does not take its replies, and is disconnected"
                );
            }
            self.wire.break_off();
        }
    }
}
