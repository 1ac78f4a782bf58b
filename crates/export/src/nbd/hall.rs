//! What the connections of a server share, and the count of them.

use super::disk::ExportState;
use super::wire::lock;
use rustix::fd::OwnedFd;
use rustix::net::{Shutdown, shutdown};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

/// See the module's documentation.
pub(crate) struct Hall {
    pub(crate) exports: Vec<Arc<ExportState>>,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) handshake_timeout: Duration,
    connections_max: usize,
    guests: Mutex<Guests>,
    /// A connection ended, or the server stops.
    changed: Condvar,
}

#[derive(Default)]
struct Guests {
    stopping: bool,
    next: u64,
    /// The sockets of each connection; the last one is what is served. Not held open by being listed here.
    sockets: BTreeMap<u64, Vec<Weak<OwnedFd>>>,
}

/// A connection's place: freed when the last thread that works for it has ended.
pub(crate) struct Slot {
    hall: Arc<Hall>,
    number: u64,
}

impl Hall {
    pub(crate) fn new(
        exports: Vec<Arc<ExportState>>,
        tls: Option<TlsAcceptor>,
        handshake_timeout: Duration,
        connections_max: usize,
    ) -> Self {
        let (guests, changed) = (Mutex::default(), Condvar::new());
        Self { exports, tls, handshake_timeout, connections_max, guests, changed }
    }

    /// A place for a client on `socket`, unless all are taken or the server stops.
    pub(crate) fn admit(self: &Arc<Self>, socket: &Arc<OwnedFd>) -> Option<Slot> {
        let mut guests = lock(&self.guests);
        if guests.stopping || guests.sockets.len() >= self.connections_max {
            return None;
        }
        let number = guests.next;
        guests.next += 1;
        guests.sockets.insert(number, vec![Arc::downgrade(socket)]);
        Some(Slot { hall: Arc::clone(self), number })
    }

    pub(crate) fn is_stopping(&self) -> bool {
        lock(&self.guests).stopping
    }

    pub(crate) fn connections(&self) -> usize {
        lock(&self.guests).sockets.len()
    }

    /// Waits, unless the server stops.
    pub(crate) fn pause(&self, duration: Duration) {
        let guests = lock(&self.guests);
        let waited = self.changed.wait_timeout_while(guests, duration, |guests| !guests.stopping);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes no more requests, and gives those in flight `patience` to finish; whether they did. What has not
    /// finished then is cut off.
    pub(crate) fn empty(&self, patience: Duration) -> bool {
        let mut guests = lock(&self.guests);
        guests.stopping = true;
        self.changed.notify_all();
        // What a client has sent is still received after this, then the end of the stream.
        for socket in guests.sockets.values().filter_map(|sockets| sockets.last()?.upgrade()) {
            let _ = shutdown(&*socket, Shutdown::Read);
        }
        let waited = self.changed.wait_timeout_while(guests, patience, |guests| !guests.sockets.is_empty());
        let guests = waited.unwrap_or_else(PoisonError::into_inner).0;
        for socket in guests.sockets.values().flatten().filter_map(Weak::upgrade) {
            let _ = shutdown(&*socket, Shutdown::Both);
        }
        guests.sockets.is_empty()
    }
}

impl Slot {
    /// From here on `socket` is what is served.
    pub(crate) fn watch(&self, socket: &Arc<OwnedFd>) {
        let mut guests = lock(&self.hall.guests);
        if guests.stopping {
            let _ = shutdown(&**socket, Shutdown::Read);
        }
        if let Some(sockets) = guests.sockets.get_mut(&self.number) {
            sockets.push(Arc::downgrade(socket));
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut guests = lock(&self.hall.guests);
        guests.sockets.remove(&self.number);
        drop(guests);
        self.hall.changed.notify_all();
    }
}
