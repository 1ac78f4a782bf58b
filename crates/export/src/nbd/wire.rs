//! A client's socket during transmission: one thread receives, several send whole replies.

use super::lookout::{LOOK, Lookout};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Locks even after a panic elsewhere: the data behind our locks is whole at every point where a panic could come.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What came of a wait for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// So many bytes, at least one.
    Bytes(usize),
    /// The client will send no more.
    End,
    /// The socket's time-out passed, or nothing was there and it was not to wait.
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

/// As [`receive`], but looks for a moment before it sleeps, where `lookout` thinks that it pays.
#[expect(clippy::disallowed_methods, reason = "how soon a client asks again decides how to wait for it")]
pub(crate) fn receive_soon(socket: &OwnedFd, buf: &mut [u8], lookout: &mut Lookout) -> io::Result<Received> {
    let since = Instant::now();
    let mut received = Ok(Received::Nothing);
    if lookout.looks() {
        while matches!(received, Ok(Received::Nothing)) && since.elapsed() < LOOK {
            received = receive_with(socket, buf, RecvFlags::DONTWAIT);
        }
    }
    if matches!(received, Ok(Received::Nothing)) {
        received = receive(socket, buf);
    }
    lookout.came_after(since.elapsed());
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

/// The socket of a connection and the right to send on it.
pub(crate) struct Wire {
    socket: Arc<OwnedFd>,
    /// Held while a run of whole replies is sent.
    sending: Mutex<()>,
    /// The client is gone, or is to be: nothing more is worth doing for it.
    broken: AtomicBool,
}

impl Wire {
    pub(crate) fn new(socket: Arc<OwnedFd>) -> Self {
        Self { socket, sending: Mutex::new(()), broken: AtomicBool::new(false) }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Sends whole replies. A client that does not take them is broken off.
    pub(crate) fn send(&self, replies: &[u8]) {
        let sending = lock(&self.sending);
        // What is sent after a torn reply would be taken for the rest of it.
        if !self.is_broken() && send_all(&self.socket, replies).is_err() {
            self.break_off();
        }
        drop(sending);
    }

    /// Ends both directions: threads that wait on the socket return.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::Relaxed);
        // It fails where the client has done so already.
        let _ = shutdown(&*self.socket, Shutdown::Both);
    }
}
