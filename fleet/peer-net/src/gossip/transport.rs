//! The transport of the library's messages, sealed.

use super::inspection::{Inspection, ReportedRun, RunId};
use super::loopback::{self, Passing, REMEDY};
use super::seal::{DATAGRAM, Part, Seal, whole};
use super::strays::Strays;
use anyhow::{Context, Result};
use async_trait::async_trait;
use chitchat::transport::{RecvOutcome, SendOutcome, Socket, Transport};
use chitchat::{ChitchatEnvelope, ChitchatMessage, ProtocolVersion};
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
    pub(super) fn reported(&self) -> ReportedRun {
        let (heartbeat, version) = (&self.heartbeat, &self.version);
        ReportedRun { heartbeat: heartbeat.load(Ordering::Relaxed), version: version.load(Ordering::Relaxed) }
    }

    fn note(&self, reported: ReportedRun) {
        self.heartbeat.fetch_max(reported.heartbeat, Ordering::Relaxed);
        self.version.fetch_max(reported.version, Ordering::Relaxed);
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
    async fn open(&self, _: SocketAddr) -> Result<Box<dyn Socket>> {
        loopback::check().await?;
        Ok(Box::new(SealedSocket {
            socket: Arc::clone(&self.socket),
            seal: Arc::clone(&self.seal),
            strays: Arc::clone(&self.strays),
            noticed: Arc::clone(&self.noticed),
            own: self.own.clone(),
            uncounted: 0,
            datagram: vec![0; DATAGRAM],
            halves: VecDeque::new(),
            passing: None,
            is_carried: true,
        }))
    }
}

struct SealedSocket {
    socket: Arc<UdpSocket>,
    seal: Arc<Seal>,
    strays: Arc<Strays>,
    noticed: Arc<Noticed>,
    own: RunId,
    /// Bytes of messages, unpacked, since the last notice to count entries.
    uncounted: usize,
    datagram: Vec<u8>,
    halves: VecDeque<(SocketAddr, Part)>,
    /// The message that is on its way to the library: its sender, and its bytes.
    passing: Option<(SocketAddr, usize, Passing)>,
    /// `false` after the loopback interface did not carry a message.
    is_carried: bool,
}

impl SealedSocket {
    /// Begins to pass a message of another host to the library; `None` if no host of the cluster sends it.
    fn begin(&mut self, bytes: &[u8]) -> Option<Passing> {
        let found = Inspection::of(bytes, &self.own)?;
        found.own.into_iter().for_each(|reported| self.noticed.note(reported));
        self.uncounted += found.unpacked;
        if self.uncounted >= COUNT_AFTER {
            self.uncounted = 0;
            self.noticed.notify.notify_one();
        }
        Passing::of(found.kind, found.entries, found.rest)
    }

    /// Logs the first of several messages that the loopback interface does not carry.
    fn carried<T>(&mut self, result: Result<T>) -> Result<T> {
        match &result {
            Ok(_) => self.is_carried = true,
            Err(error) if self.is_carried => {
                self.is_carried = false;
                tracing::warn!(
                    error = format!("{error:#}"),
                    remedy = REMEDY,
                    "this host's loopback interface does not carry the gossip library's messages: the host does not \
                     hear of others"
                );
            }
            Err(_) => {}
        }
        result
    }
}

#[async_trait]
impl Socket for SealedSocket {
    fn local_addr(&self) -> Result<SocketAddr> {
        Ok(self.socket.local_addr()?)
    }

    async fn send(&mut self, to: SocketAddr, envelope: ChitchatEnvelope) -> Result<SendOutcome> {
        let asks = matches!(envelope.message, ChitchatMessage::Syn { .. });
        let written = loopback::write(envelope.message).await;
        let message = self.carried(written)?;
        let sealed = message.and_then(|message| message.first(|bytes| self.seal.seal(bytes)));
        // An answer that is too long carries all entries that the other host does not know yet: they are sent in pieces
        // once this host asks that one.
        if sealed.is_none() && asks {
            self.noticed.is_too_long.store(true, Ordering::Relaxed);
            self.noticed.notify.notify_one();
        }
        let mut num_bytes_sent = 0;
        for datagram in sealed.context("a message cannot be sealed")? {
            num_bytes_sent += self.socket.send_to(&datagram, to).await?;
        }
        Ok(SendOutcome { num_bytes_sent })
    }

    async fn recv(&mut self) -> Result<RecvOutcome> {
        loop {
            // The library drops this future whenever something else is to be done, and calls again.
            if let Some((from_addr, num_bytes_received, passing)) = &mut self.passing {
                let (from_addr, num_bytes_received) = (*from_addr, *num_bytes_received);
                let passed = passing.finish().await;
                self.passing = None;
                if let Ok(message) = self.carried(passed) {
                    let envelope = ChitchatEnvelope { version: ProtocolVersion::V0, message };
                    return Ok(RecvOutcome { from_addr, envelope, num_bytes_received });
                }
            }
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
            match self.begin(&bytes) {
                Some(passing) => self.passing = Some((from, bytes.len(), passing)),
                None => self.strays.add(from.ip()),
            }
        }
    }
}
