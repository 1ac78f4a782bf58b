//! The transport of the library's messages, sealed.

use super::inspection::{Inspection, RunId, Said};
use super::seal::{DATAGRAM, Part, Seal, whole};
use super::strays::Strays;
use anyhow::Context;
use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::Notify;

/// The pause after a datagram could not be received.
const AFTER_ERROR: Duration = Duration::from_millis(2);

/// Bytes of messages, unpacked, after which entries are counted.
pub(super) const COUNT_AFTER: usize = 128 << 10;

/// Reasons to count the entries that the library holds, as messages come and go.
#[derive(Default)]
pub(super) struct Noticed {
    /// Notifies of either reason.
    notify: Notify,
    is_too_long: AtomicBool,
    /// The latest state of this host's run that others have told.
    heartbeat: AtomicU64,
    version: AtomicU64,
}

impl Noticed {
    /// Returns once enough bytes for many entries have come, or a message that names all entries does not fit.
    pub(super) async fn some(&self) {
        self.notify.notified().await;
    }

    /// `true` if a message that names all entries could not be sent. Other hosts do not learn of this host then, and it
    /// learns only from those with fewer entries.
    pub(super) fn is_too_long(&self) -> bool {
        self.is_too_long.load(Ordering::Relaxed)
    }

    /// The latest state of this host's run that others have told.
    pub(super) fn said(&self) -> Said {
        let (heartbeat, version) = (&self.heartbeat, &self.version);
        Said { heartbeat: heartbeat.load(Ordering::Relaxed), version: version.load(Ordering::Relaxed) }
    }

    fn note(&self, said: Said) {
        self.heartbeat.fetch_max(said.heartbeat, Ordering::Relaxed);
        self.version.fetch_max(said.version, Ordering::Relaxed);
    }
}

/// The sealed transport of the library.
pub(super) struct Sealed {
    pub(super) socket: Arc<UdpSocket>,
    pub(super) seal: Arc<Seal>,
    pub(super) strays: Arc<Strays>,
    pub(super) noticed: Arc<Noticed>,
    /// The run of this host.
    pub(super) own: RunId,
}

#[async_trait]
impl Transport for Sealed {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        Ok(Box::new(SealedSocket {
            socket: Arc::clone(&self.socket),
            seal: Arc::clone(&self.seal),
            strays: Arc::clone(&self.strays),
            noticed: Arc::clone(&self.noticed),
            own: self.own.clone(),
            uncounted: 0,
            datagram: vec![0; DATAGRAM],
            halves: VecDeque::new(),
        }))
    }
}

struct SealedSocket {
    socket: Arc<UdpSocket>,
    seal: Arc<Seal>,
    strays: Arc<Strays>,
    noticed: Arc<Noticed>,
    own: RunId,
    /// Bytes of messages, unpacked, since that was told.
    uncounted: usize,
    datagram: Vec<u8>,
    halves: VecDeque<(SocketAddr, Part)>,
}

#[async_trait]
impl Socket for SealedSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        message.serialize(&mut bytes);
        let sealed = self.seal.seal(&bytes);
        // An answer that is too long carries all entries that the other host does not know yet: they are sent in pieces
        // once this host asks that one.
        if sealed.is_none() && matches!(message, ChitchatMessage::Syn { .. }) {
            self.noticed.is_too_long.store(true, Ordering::Relaxed);
            self.noticed.notify.notify_one();
        }
        for datagram in sealed.context("a message cannot be sealed")? {
            self.socket.send_to(&datagram, to).await?;
        }
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            // The error is about a datagram that was sent before, to an address without a listener. Even a lasting
            // error of another kind must not make this loop spin.
            let Ok((len, from)) = self.socket.recv_from(&mut self.datagram).await else {
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            };
            let part = self.datagram.get_mut(..len).and_then(|datagram| self.seal.open(datagram));
            let Some(part) = part else {
                self.strays.add(from.ip());
                continue;
            };
            let Some(bytes) = whole(&mut self.halves, from, part) else { continue };
            let Some(found) = Inspection::of(&bytes, &self.own) else {
                self.strays.add(from.ip());
                continue;
            };
            found.own.into_iter().for_each(|said| self.noticed.note(said));
            self.uncounted += found.unpacked;
            if self.uncounted >= COUNT_AFTER {
                self.uncounted = 0;
                self.noticed.notify.notify_one();
            }
            match ChitchatMessage::deserialize(&mut &bytes[..]) {
                Ok(message) => return Ok((from, message)),
                Err(_) => self.strays.add(from.ip()),
            }
        }
    }
}
