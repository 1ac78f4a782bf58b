//! The state that the connections of a server share, and the count of connections.
//!
//! Exports come and go while the server runs. A connection keeps the export that it has chosen; an export that is
//! removed ends its connections. The two locks are taken in the order `table`, `exports`.
//!
//! # Places
//!
//! A server of one export has [`Limits::connections_max`] places, which clients take when they come. A server of
//! several exports does not know at that moment which export a client will choose: a client in its handshake has one of
//! [`HANDSHAKES_MAX`] separate places, and takes a place proper when it has chosen an export. There each export has its
//! share ([`standing`](super::standing)). A client that was cut off in favour of another export's may take a while to
//! leave, because its requests wait for the disk; its place is free at once, and there are at most [`LEAVING_MAX`] such
//! clients.

use super::budget::Pool;
use super::disk::ExportState;
use super::standing::{Activity, Choice, Client, choose, choose_fairly, now};
use crate::ClientCounts;
use crate::complaints::{Complaints, complain};
use parking_lot::{Condvar, Mutex, RwLock};
use rustix::fd::OwnedFd;
use rustix::net::{Shutdown, shutdown};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio_rustls::TlsAcceptor;

/// The longest time that a client waits for a place.
const PLACE_TIMEOUT: Duration = Duration::from_secs(4);
/// The time after which a client that was cut off is not waited for any more: its requests wait for the disk.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// The time between two checks for a free place.
const RECHECK: Duration = Duration::from_millis(50);

/// The most clients that were cut off in favour of other exports' clients and have not left yet.
const LEAVING_MAX: usize = 64;
/// The most clients in their handshake, if a server has several exports, and the most that wait for a place after it.
const HANDSHAKES_MAX: usize = 64;

/// The registry of a server's connections. See the [module](self).
pub(crate) struct ConnectionRegistry {
    pub(crate) limits: Limits,
    /// Memory for the requests of all connections.
    pub(crate) pool: Arc<Pool>,
    exports: RwLock<Vec<Arc<ExportState>>>,
    pub(crate) tls: Option<TlsAcceptor>,
    /// The lines of the log about clients.
    pub(crate) complaints: Arc<Complaints>,
    table: Mutex<ConnectionTable>,
    /// Notified when a connection ends, or the server stops.
    changed: Condvar,
}

/// The limits of clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connections_max: usize,
    pub(crate) handshake_timeout: Duration,
    pub(crate) send_timeout: Duration,
    pub(crate) allow_resize: bool,
}

#[derive(Default)]
struct ConnectionTable {
    stopping: bool,
    next: u64,
    /// The number of connections that have ever chosen an export.
    chosen: u64,
    connections: BTreeMap<u64, RegisteredConnection>,
}

/// A connection.
struct RegisteredConnection {
    /// The connection's sockets; the last one is served. This list does not hold them open.
    sockets: Vec<Weak<OwnedFd>>,
    /// The export that the client has chosen.
    export: Option<Arc<ExportState>>,
    activity: Arc<Activity>,
    /// The moment at which it was cut off, in favour of another.
    cut_off_at: Option<Instant>,
    /// `true` if it has finished its handshake, and waits for a place.
    is_waiting: bool,
}

/// The clients that compete for places.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Competing {
    /// All of them.
    All,
    /// Those that have not finished their handshake.
    InHandshake,
}

impl ConnectionTable {
    fn competing(&self, competing: Competing) -> impl Iterator<Item = (u64, &RegisteredConnection)> {
        let competes = move |connection: &RegisteredConnection| {
            competing == Competing::All || (connection.export.is_none() && !connection.is_waiting)
        };
        self.connections
            .iter()
            .map(|(number, connection)| (*number, connection))
            .filter(move |(_, connection)| competes(connection))
    }

    /// Cuts off a client that does not use its place, unless one is leaving already; `false` if there is none.
    fn make_room(&mut self, now: Instant, competing: Competing, complaints: &Complaints) -> bool {
        let is_leaving = |cut_off_at: Instant| now.saturating_duration_since(cut_off_at) < LEAVE_TIMEOUT;
        if self.competing(competing).any(|(_, connection)| connection.cut_off_at.is_some_and(is_leaving)) {
            return true;
        }
        let staying = self.competing(competing).filter(|(_, connection)| connection.cut_off_at.is_none());
        let choice = choose(staying.map(|(number, connection)| (number, connection.activity.standing(now))));
        self.carry_out(choice, now, complaints)
    }

    /// Finds a place for a client that has chosen `state`: `Some(true)` if there is one, `Some(false)` if there may be
    /// one soon.
    fn place(
        &mut self,
        state: &Arc<ExportState>,
        places: usize,
        now: Instant,
        complaints: &Complaints,
    ) -> Option<bool> {
        let (mut clients, mut leaving) = (Vec::new(), 0);
        for (number, connection) in &self.connections {
            let Some(export) = &connection.export else { continue };
            leaving += usize::from(connection.cut_off_at.is_some());
            if connection.cut_off_at.is_none() {
                let standing = connection.activity.standing(now);
                clients.push(Client { key: *number, export: Arc::as_ptr(export), standing });
            }
        }
        if clients.len() < places {
            return Some(true);
        }
        if leaving >= LEAVING_MAX {
            return Some(false);
        }
        let choice = choose_fairly(Arc::as_ptr(state), &clients);
        let is_free = matches!(choice, Choice::Drop(_));
        self.carry_out(choice, now, complaints).then_some(is_free)
    }

    /// Cuts off the client that the choice names; `false` if no client makes room.
    fn carry_out(&mut self, choice: Choice<u64>, now: Instant, complaints: &Complaints) -> bool {
        let Choice::Drop(number) = choice else { return choice == Choice::Wait };
        if let Some(connection) = self.connections.get_mut(&number) {
            complain!(
                complaints,
                MakesRoom,
                "an NBD client makes room for another: it asks for nothing, takes no replies, or its disk has more \
                 clients than any other"
            );
            connection.cut_off_at = Some(now);
            connection.cut_off();
        }
        true
    }
}

impl RegisteredConnection {
    fn has(&self, state: &Arc<ExportState>) -> bool {
        self.export.as_ref().is_some_and(|export| Arc::ptr_eq(export, state))
    }

    /// Shuts the receiving side: bytes that a client has sent are still received after this, then the end of the
    /// stream.
    fn stop_receiving(&self) {
        if let Some(socket) = self.sockets.last().and_then(Weak::upgrade) {
            let _ = shutdown(&*socket, Shutdown::Read);
        }
    }

    fn cut_off(&self) {
        for socket in self.sockets.iter().filter_map(Weak::upgrade) {
            let _ = shutdown(&*socket, Shutdown::Both);
        }
    }
}

/// A connection's place: freed when the last thread that works for it has ended.
pub(crate) struct Slot {
    registry: Arc<ConnectionRegistry>,
    number: u64,
    /// The server's notes about the client.
    pub(crate) activity: Arc<Activity>,
}

impl ConnectionRegistry {
    pub(crate) fn new(
        exports: Vec<Arc<ExportState>>,
        tls: Option<TlsAcceptor>,
        limits: Limits,
        memory: u64,
    ) -> Self {
        let (table, changed, exports) = (Mutex::default(), Condvar::new(), RwLock::new(exports));
        let pool = Arc::new(Pool::of(memory));
        Self { limits, pool, exports, tls, complaints: Arc::default(), table, changed }
    }

    /// The most clients in their handshake, if the server has several exports.
    fn handshakes_max(&self) -> usize {
        self.limits.connections_max.min(HANDSHAKES_MAX)
    }

    fn has_several_exports(&self) -> bool {
        self.exports.read().len() > 1
    }

    /// A place for a client on `socket`, unless the server stops or all places are taken by clients that use them:
    /// those that do not use them have to make room ([`standing`](super::standing)), which takes [`PLACE_TIMEOUT`] at
    /// most.
    pub(crate) fn admit(self: &Arc<Self>, socket: &Arc<OwnedFd>) -> Option<Slot> {
        let mut table = self.table.lock();
        let until = now() + PLACE_TIMEOUT;
        while !table.stopping {
            let (competing, places) = if self.has_several_exports() {
                (Competing::InHandshake, self.handshakes_max())
            } else {
                (Competing::All, self.limits.connections_max)
            };
            if table.competing(competing).count() < places {
                break;
            }
            if now() >= until || !table.make_room(now(), competing, &self.complaints) {
                return None;
            }
            self.changed.wait_for(&mut table, RECHECK);
        }
        if table.stopping {
            return None;
        }
        let number = table.next;
        table.next += 1;
        let activity = Arc::new(Activity::new());
        let sockets = vec![Arc::downgrade(socket)];
        let connection = RegisteredConnection {
            sockets,
            export: None,
            activity: Arc::clone(&activity),
            cut_off_at: None,
            is_waiting: false,
        };
        table.connections.insert(number, connection);
        Some(Slot { registry: Arc::clone(self), number, activity })
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.table.lock().stopping
    }

    pub(crate) fn connections(&self) -> usize {
        self.table.lock().connections.len()
    }

    /// Waits, unless the server stops.
    pub(crate) fn pause(&self, duration: Duration) {
        self.changed.wait_while_for(&mut self.table.lock(), |table| !table.stopping, duration);
    }

    /// Takes no more requests, and gives those in flight `timeout` to finish; `true` if they did. Requests that have
    /// not finished then are cut off.
    pub(crate) fn drain(&self, timeout: Duration) -> bool {
        let mut table = self.table.lock();
        table.stopping = true;
        self.changed.notify_all();
        table.connections.values().for_each(RegisteredConnection::stop_receiving);
        self.changed.wait_while_for(&mut table, |table| !table.connections.is_empty(), timeout);
        table.connections.values().for_each(RegisteredConnection::cut_off);
        table.connections.is_empty()
    }

    /// The exports that can be chosen now.
    pub(crate) fn exports(&self) -> Vec<Arc<ExportState>> {
        self.exports.read().clone()
    }

    /// Changes the exports that can be chosen.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Vec<Arc<ExportState>>) -> T) -> T {
        change(&mut self.exports.write())
    }

    /// The connections that have chosen an export, those that have ended included.
    pub(crate) fn connections_to_any(&self) -> ClientCounts {
        let table = self.table.lock();
        let connected = table.connections.values().filter(|connection| connection.export.is_some()).count();
        ClientCounts { connected, ever: table.chosen }
    }

    /// The number of connections that have chosen this export.
    pub(crate) fn connections_to(&self, state: &Arc<ExportState>) -> usize {
        self.table.lock().connections.values().filter(|connection| connection.has(state)).count()
    }

    /// Takes no more requests for an export that cannot be chosen any more, and gives those in flight `timeout` to
    /// finish; `true` if they did. The others are cut off.
    pub(crate) fn disconnect(&self, state: &Arc<ExportState>, timeout: Duration) -> bool {
        let is_used =
            |table: &mut ConnectionTable| table.connections.values().any(|connection| connection.has(state));
        let mut table = self.table.lock();
        table
            .connections
            .values()
            .filter(|connection| connection.has(state))
            .for_each(RegisteredConnection::stop_receiving);
        self.changed.wait_while_for(&mut table, is_used, timeout);
        table
            .connections
            .values()
            .filter(|connection| connection.has(state))
            .for_each(RegisteredConnection::cut_off);
        !is_used(&mut table)
    }
}

impl Slot {
    /// Notes that `socket` is served from here on.
    pub(crate) fn watch(&self, socket: &Arc<OwnedFd>) {
        let mut table = self.registry.table.lock();
        if table.stopping {
            let _ = shutdown(&**socket, Shutdown::Read);
        }
        if let Some(connection) = table.connections.get_mut(&self.number) {
            connection.sockets.push(Arc::downgrade(socket));
        }
    }

    /// Notes that the client has chosen `state`. If the server has several exports, the client gets a place only now.
    pub(crate) fn choose(&self, state: &Arc<ExportState>) -> Placed {
        let registry = &self.registry;
        let (places, until) = (registry.limits.connections_max, now() + PLACE_TIMEOUT);
        let mut table = registry.table.lock();
        loop {
            let exports = registry.exports();
            if !exports.iter().any(|export| Arc::ptr_eq(export, state)) {
                return Placed::IsGone;
            }
            let found = if exports.len() > 1 {
                table.place(state, places, now(), &registry.complaints)
            } else {
                Some(true)
            };
            let waiting = table.connections.values().filter(|connection| connection.is_waiting).count();
            let Some(connection) = table.connections.get_mut(&self.number) else { return Placed::IsFull };
            match found {
                Some(true) => {
                    (connection.export, connection.is_waiting) = (Some(Arc::clone(state)), false);
                    table.chosen += 1;
                    return Placed::HasPlace;
                }
                Some(false) if now() < until && (connection.is_waiting || waiting < HANDSHAKES_MAX) => {
                    connection.is_waiting = true;
                }
                _ => return Placed::IsFull,
            }
            if table.stopping {
                return Placed::IsFull;
            }
            registry.changed.wait_for(&mut table, RECHECK);
        }
    }
}

/// The outcome of choosing an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// The client is served.
    HasPlace,
    /// The export has gone meanwhile.
    IsGone,
    /// All places are taken.
    IsFull,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.registry.table.lock();
        table.connections.remove(&self.number);
        drop(table);
        self.registry.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::standing::GRACE;
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn socket() -> (UnixStream, Arc<OwnedFd>) {
        let (client, served) = UnixStream::pair().unwrap();
        (client, Arc::new(served.into()))
    }

    /// A client whose requests wait for the disk keeps its place after it was cut off. The next client is cut off
    /// instead.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a client is silent for a while")]
    fn a_client_that_does_not_leave_keeps_no_other_from_being_replaced() {
        let limits =
            Limits { connections_max: 2, handshake_timeout: GRACE, send_timeout: GRACE, allow_resize: false };
        let registry = Arc::new(ConnectionRegistry::new(Vec::new(), None, limits, 1 << 20));
        let (_stuck_client, stuck_socket) = socket();
        let stuck = registry.admit(&stuck_socket).unwrap();
        let (mut client, served) = socket();
        let leaving = registry.admit(&served).unwrap();
        std::thread::sleep(GRACE);
        let leaves = std::thread::spawn(move || {
            // This lasts until the socket is shut down.
            let read = client.read(&mut [0]).unwrap();
            drop((leaving, served));
            read
        });
        let (_new_client, new_socket) = socket();
        let begun = now();
        let new = registry.admit(&new_socket).expect("there is room");
        assert!(begun.elapsed() >= LEAVE_TIMEOUT, "{:?}", begun.elapsed());
        assert_eq!(leaves.join().unwrap(), 0);
        assert_eq!(registry.connections(), 2);
        // No other client can go now: the new client has not had its time.
        new.activity.on_request(now());
        assert!(registry.admit(&socket().1).is_none());
        drop((stuck, new));
    }
}
