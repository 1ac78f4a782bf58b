//! The commands that one host sends to another ([`RemoteCommand`]), and their outcomes. Most commands are *orders*: to
//! fetch a blob ahead of need, or to keep a part of an image. The others are information.
//!
//! The swarm's state machine does not see commands. An order to fetch contains the root of the blob's hash tree, by
//! which the receiver checks the fetched bytes; a host that knows that root may read the blob. The program has to take
//! the commands that were received ([`Swarm::take_commands`]) and carry them out. If it does not, all are refused.
//!
//! # Permitted orders
//!
//! Only operators, hosts whose certificate has that role, may order a host to fetch, to pin and to unpin. Such an order
//! of another host is refused. Any agent may name its blobs to a root ([`RemoteCommand::Open`]). The root then
//! exchanges these blobs as well, if it may fetch from their store for other hosts. Whichever host sent an order, the
//! bytes come from other hosts of the swarm, or from a store that the receiver may fetch from for other hosts. If an
//! order is not carried out, or not in full, its sender gets the reason (version 1 of the protocol has no reasons).

use crate::Swarm;
use crate::complain;
use crate::complaints::PeerComplaints;
use crate::frame::{DONE, FrameKind, MESSAGE_MAX, REFUSED_ORDER, VERSION_1, decode_refusal, refusal};
use crate::host::Host;
use crate::host::link::Link;
use crate::order::{Order, PARTS_MAX};
use crate::pin::{KnownPin, Pin};
use headstart_block::{Error, ErrorKind, Result};
use headstart_cache::BlobSpec;
use headstart_store::BucketScheme;
use headstart_swarm::{PeerId, Role};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{mpsc, oneshot};

/// Orders of other hosts that wait; more are refused.
const WAITING_MAX: usize = 1024;

/// A command that one host sends to another: an order to be carried out, or information.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteCommand {
    /// An order to fetch a blob, or parts of it, into the receiver's cache.
    Bring(Order),
    /// An order to keep a part of an image, or to stop that. It is done when the receiver has its part.
    Pin(Box<Pin>),
    /// The pins that the sender knows. The receiver then sends the sender the pins that are missing in this list.
    Known(Vec<KnownPin>),
    /// A blob that a disk of the sender reads. The receiver, which is a root, then exchanges that blob as well. The
    /// order must not name parts: a receiver refuses it otherwise.
    Open(Order),
}

impl RemoteCommand {
    /// The same as several commands that can be sent.
    fn split(&self) -> Vec<Self> {
        match self {
            Self::Bring(order) => order.split().into_iter().map(Self::Bring).collect(),
            other => vec![other.clone()],
        }
    }

    /// The number of bytes that this command asks the receiver to fetch: the whole length of its blobs, even if an
    /// order names only parts. A pin counts one byte more. 0 for `Known` and `Open`.
    pub fn ordered_bytes(&self) -> u64 {
        match self {
            Self::Bring(order) => order.len,
            Self::Pin(pin) => {
                let orders = pin.orders().unwrap_or_default();
                orders.iter().fold(1, |sum: u64, order| sum.saturating_add(order.len))
            }
            Self::Known(_) | Self::Open(_) => 0,
        }
    }

    /// Checks that the encoded command is short enough to be sent.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is longer than [`MESSAGE_MAX`] bytes.
    pub fn check(&self) -> Result<()> {
        self.encode().map(drop)
    }

    /// Parses a command from received bytes.
    pub(crate) fn decode(body: &[u8]) -> Result<Self> {
        let nonsense = || Error::corrupt("is not an order");
        let (command, rest): (Self, _) =
            postcard::take_from_bytes(body).map_err(|e| nonsense().caused_by(e))?;
        let fits = match &command {
            Self::Bring(order) => order.parts.len() <= PARTS_MAX,
            Self::Open(order) => order.parts.is_empty(),
            // The content of a pin is checked where it is used.
            Self::Pin(_) | Self::Known(_) => true,
        };
        if fits && rest.is_empty() { Ok(command) } else { Err(nonsense()) }
    }

    /// Encodes the command for sending (postcard).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the result is longer than [`MESSAGE_MAX`] bytes.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let bytes = postcard::to_extend(self, Vec::new());
        let bytes = bytes.map_err(|e| Error::invalid("is not an order").caused_by(e))?;
        if bytes.len() > MESSAGE_MAX {
            let error =
                Error::invalid(format!("{} bytes to be told to a host, of {MESSAGE_MAX}", bytes.len()));
            return Err(error.remedy("name fewer hosts, or flatten an image of many layers"));
        }
        Ok(bytes)
    }
}

/// The outcome of a command, as its receiver reports it to the sender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandOutcome {
    /// Bytes that the command asked for, rounded up to whole chunks (64 KiB).
    pub bytes: u64,
    /// Bytes that the command asked for and that the receiver could not fetch; 0 if the command was carried out in
    /// full.
    pub lacking: u64,
    /// The first reason for which bytes could not be fetched, or the command was refused; `None` if there is none.
    pub why: Option<String>,
}

impl CommandOutcome {
    /// Combines the outcomes of two commands: adds the bytes, and keeps the first reason.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            lacking: self.lacking.saturating_add(other.lacking),
            why: self.why.or(other.why),
        }
    }

    /// The outcome of a command for `bytes` bytes that was not carried out at all because of `error`.
    pub fn refused(bytes: u64, error: &Error) -> Self {
        Self { bytes, lacking: bytes, why: Some(error.to_string()) }
    }

    /// `true` if no part of the order was done.
    fn is_refused(&self) -> bool {
        self.why.is_some() && self.lacking == self.bytes
    }

    /// The encoding that earlier builds understand, too: the reason goes in a frame of its own.
    fn encode(&self) -> [u8; DONE] {
        let mut bytes = [0; DONE];
        bytes[..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..].copy_from_slice(&self.lacking.to_le_bytes());
        bytes
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?));
        Some(Self { bytes: number(0)?, lacking: number(8)?, why: None })
    }
}

/// A cause in the form for other hosts: without paths of this host, and with URLs without credentials and queries.
fn for_others(why: &str) -> String {
    let is_lead = |c: char| matches!(c, '(' | '[' | '<' | '`' | '"' | '\'');
    let is_end = |c: char| matches!(c, ':' | ';' | ',' | '.' | ')' | ']' | '>' | '`' | '"' | '\'');
    let mut is_path = false;
    let words = why.split(' ').map(|word| {
        let (lead, rest) = word.split_at(word.find(|c: char| !is_lead(c)).unwrap_or(word.len()));
        let (body, end) = rest.split_at(rest.trim_end_matches(is_end).len());
        let is_file = body.starts_with('/') || body.starts_with("file:");
        // A path may contain blanks.
        is_path = is_file || (is_path && body.contains('/') && !body.contains("://"));
        match body.split_once("://") {
            _ if is_path => format!("{lead}(a path){end}"),
            Some((scheme, url)) => {
                let url = url.split(['?', '#']).next().unwrap_or_default();
                let (host, path) = url.split_at(url.find('/').unwrap_or(url.len()));
                // In the URL of a bucket, the name comes first, and then its place.
                let is_bucket = BucketScheme::of(scheme).is_some();
                let host = if is_bucket { host.split('@').next() } else { host.rsplit('@').next() };
                let host = host.unwrap_or_default();
                format!("{lead}{scheme}://{host}{path}{end}")
            }
            None => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A command that another host has sent to this one.
pub struct ReceivedCommand {
    peer: PeerId,
    number: u32,
    /// The name of the host that sent the command.
    pub host: String,
    /// `true` if the certificate of the sender permits it to be an operator, that is, to give orders.
    pub is_operator: bool,
    /// The command, with its arguments.
    pub command: RemoteCommand,
}

/// An order of this host that is not done.
struct Waiting {
    done: oneshot::Sender<CommandOutcome>,
    /// The reason why the other host does not obey it, once it was received.
    why: Option<String>,
}

/// The orders of a host.
#[derive(Default)]
pub(crate) struct RemoteCommands {
    /// The queue for the orders of other hosts.
    queue: OnceLock<mpsc::Sender<ReceivedCommand>>,
    /// The callers that wait for each order.
    waiting: Mutex<HashMap<(PeerId, u32), Waiting>>,
    pub(crate) last: AtomicU32,
    /// Lines of the log about orders of other hosts.
    complaints: PeerComplaints,
}

impl RemoteCommands {
    /// Removes an order that has no waiting caller.
    fn forget(&self, key: (PeerId, u32)) {
        self.waiting.lock().remove(&key);
    }

    /// Removes the orders to a host that is not connected any more.
    pub(crate) fn gone(&self, peer: PeerId) {
        let mut waiting = self.waiting.lock();
        waiting.retain(|(of, _), _| *of != peer);
    }
}

impl Host {
    /// Handles an order of another host.
    pub(crate) fn ordered(&self, link: &Link, number: u32, body: &[u8]) -> Result<()> {
        let command = RemoteCommand::decode(body)?;
        let (host, is_operator) = (link.name.clone(), link.roles.operator);
        let received = ReceivedCommand { peer: link.peer, number, host, is_operator, command };
        if !is_operator && matches!(received.command, RemoteCommand::Bring(_) | RemoteCommand::Pin(_)) {
            let cause = "it takes orders only from hosts whose certificate has the role `operator`";
            let remedy = format!("order it at an operator's host, or give `{}` that role", received.host);
            let error = Error::new(ErrorKind::Denied, cause).remedy(remedy);
            tracing::debug!(host = %received.host, "a host that is not an operator orders something");
            self.done(&received, &CommandOutcome::refused(received.command.ordered_bytes(), &error));
            return Ok(());
        }
        let refused = match self.remote_commands.queue.get() {
            Some(queue) => queue.try_send(received).err().map(|refused| match refused {
                mpsc::error::TrySendError::Full(received) | mpsc::error::TrySendError::Closed(received) => {
                    received
                }
            }),
            None => Some(received),
        };
        if let Some(received) = refused {
            let busy = Error::new(ErrorKind::Unavailable, "it has too many orders already");
            self.done(&received, &CommandOutcome::refused(received.command.ordered_bytes(), &busy));
        }
        Ok(())
    }

    fn done(&self, received: &ReceivedCommand, done: &CommandOutcome) {
        let link = self.core().peers.get(&received.peer).map(|peer| Arc::clone(&peer.link));
        let Some(link) = link else { return };
        if link.note_order(done.is_refused(), self.now_ms()) {
            let host = &link.name;
            complain!(
                self.remote_commands.complaints,
                OrdersInVain,
                host,
                "a host whose orders are all refused is disconnected"
            );
            return link.close();
        }
        let mut sent = Ok(());
        if let Some(why) = done.why.as_ref().filter(|_| link.protocol > VERSION_1) {
            let why = for_others(why);
            sent =
                link.outbox.control_with(FrameKind::Refused, received.number, REFUSED_ORDER, refusal(&why));
        }
        if sent.and_then(|()| link.outbox.control(FrameKind::Done, received.number, &done.encode())).is_err()
        {
            // The host sends orders and does not read.
            link.close();
        }
    }

    /// Handles the refusal of an order of this host, in full or in part; its outcome follows.
    pub(crate) fn order_refused(&self, link: &Link, number: u32, body: &[u8]) -> Result<()> {
        let why = decode_refusal(body)?;
        let mut waiting = self.remote_commands.waiting.lock();
        if let Some(waiting) = waiting.get_mut(&(link.peer, number)) {
            waiting.why = Some(why);
        }
        Ok(())
    }

    /// Handles the outcome of an order of this host.
    pub(crate) fn order_done(&self, link: &Link, number: u32, body: &[u8]) -> Result<()> {
        let done = CommandOutcome::decode(body).ok_or_else(|| Error::corrupt("is not an answer"))?;
        let mut waiting = self.remote_commands.waiting.lock();
        if let Some(Waiting { done: waiting, why }) = waiting.remove(&(link.peer, number)) {
            // A caller that has stopped waiting needs no outcome.
            let _ = waiting.send(CommandOutcome { why, ..done });
        }
        Ok(())
    }
}

impl Swarm {
    /// Returns the receiver of the commands that other hosts send to this one from now on. Only the first call returns
    /// the working receiver; each later call returns one that is closed.
    pub fn take_commands(&self) -> mpsc::Receiver<ReceivedCommand> {
        let (queue, commands) = mpsc::channel(WAITING_MAX);
        let _ = self.host.remote_commands.queue.set(queue);
        commands
    }

    /// Sends the outcome of a received command to the host that sent the command. Paths of this host are left out of
    /// the reason. Does nothing if the other host is no longer connected. If too many of its commands were refused
    /// ([`REFUSED_MAX`](crate::complaints::REFUSED_MAX)), its connection is closed instead.
    pub fn report_outcome(&self, received: &ReceivedCommand, done: &CommandOutcome) {
        self.host.done(received, done);
    }

    /// Records that this host has accepted a [`RemoteCommand::Open`], for which no outcome is sent. A sender's
    /// connection is closed after too many refused commands, and each accepted one starts that count again.
    pub fn took_part(&self, received: &ReceivedCommand) {
        if let Some(peer) = self.host.core().peers.get(&received.peer) {
            peer.link.note_order(false, self.host.now_ms());
        }
    }

    /// The rate limit of log lines about other hosts' commands.
    pub fn complaints(&self) -> &PeerComplaints {
        &self.host.remote_commands.complaints
    }

    /// Returns `true` if the sender of a command has proved on its connection that it may read all of `blobs`;
    /// `false` also if it is no longer connected.
    pub fn has_shown(&self, received: &ReceivedCommand, blobs: &[BlobSpec]) -> bool {
        self.host.has_shown(received.peer, blobs)
    }

    /// The names of the connected hosts that may learn of these blobs: those that have proved that they may read all of
    /// them, and operators. The names are not sorted.
    pub fn entitled_hosts(&self, blobs: &[BlobSpec]) -> Vec<String> {
        let links = self.host.links().into_iter().map(|(link, _)| link);
        let entitled = links.filter(|link| link.roles.operator || self.host.has_shown(link.peer, blobs));
        entitled.map(|link| link.name.clone()).collect()
    }

    /// Sends a command to the connected host `name`, waits until that host has carried it out, and returns the outcome.
    /// The command must be a `Bring` or a `Pin`: a host that has accepted another command reports no outcome, so the
    /// wait would end only with the connection. An order that names too many parts for one frame is sent as several.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no connection to the host, [`ErrorKind::Unavailable`] if the connection ends
    /// before the outcome arrives, [`ErrorKind::Invalid`] if the command is too long. A failure on the other host is
    /// part of the outcome.
    pub async fn order(&self, name: &str, command: &RemoteCommand) -> Result<CommandOutcome> {
        let link = self.host.link_to(name).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "this host is not connected to it")
                .about(name)
                .remedy("`headstart swarm status` lists the hosts")
        })?;
        let mut all = CommandOutcome::default();
        for command in command.split() {
            let number = self.host.remote_commands.last.fetch_add(1, Ordering::Relaxed);
            let (done, waiting) = oneshot::channel();
            let key = (link.peer, number);
            self.host.remote_commands.waiting.lock().insert(key, Waiting { done, why: None });
            let away = || Error::new(ErrorKind::Unavailable, "the connection broke off").about(name);
            let sent = command.encode().map(|body| link.outbox.control(FrameKind::Order, number, &body));
            // The connection may have been closed before the waiting order was registered.
            if link.is_closed() || !matches!(sent, Ok(Ok(()))) {
                self.host.remote_commands.forget(key);
                return Err(sent.err().unwrap_or_else(away));
            }
            all = all.and(waiting.await.map_err(|_| away())?);
        }
        Ok(all)
    }

    /// Sends a command to the host `name` without waiting for an outcome. Returns the number of encoded
    /// bytes. If the command is too long or the host is not connected, nothing is sent, and the result is 0.
    pub fn send_command(&self, name: &str, command: &RemoteCommand) -> usize {
        let number = self.host.remote_commands.last.fetch_add(1, Ordering::Relaxed);
        match (self.host.link_to(name), command.encode()) {
            (Some(link), Ok(body)) => {
                // A host that does not read it will be cut off by the frames that follow.
                let _ = link.outbox.control(FrameKind::Order, number, &body);
                return body.len();
            }
            (_, Err(error)) => tracing::warn!(%error, host = name, "a host is not told"),
            (None, _) => {}
        }
        0
    }

    /// The size that this host's cache can reach, in bytes: its limit, or less if the file system has too
    /// little space.
    pub fn room(&self) -> u64 {
        self.host.cache.room()
    }

    /// The name of this host.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The role of this host in the swarm: root or agent.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The names of the connected hosts whose certificates permit them to give orders, sorted.
    pub fn connected_operators(&self) -> Vec<String> {
        let links = self.host.links().into_iter().filter(|(link, _)| link.roles.operator);
        let mut hosts: Vec<_> = links.map(|(link, _)| link.name.clone()).collect();
        hosts.sort_unstable();
        hosts
    }

    /// The names and roles of all connected hosts, sorted by name.
    pub fn connected_hosts(&self) -> Vec<(String, Role)> {
        let links = self.host.links();
        let mut hosts: Vec<_> = links.into_iter().map(|(link, _)| (link.name.clone(), link.role)).collect();
        hosts.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        hosts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ByteRange;

    fn order(parts: usize) -> Order {
        let hex = "ab".repeat(32);
        Order {
            digest: format!("sha256:{hex}"),
            len: 1 << 40,
            tree_root: hex.clone(),
            tree_digest: format!("sha256:{hex}"),
            tree_len: 1 << 30,
            store: "https://host/images".to_owned(),
            parts: (0..parts as u64).map(|n| (n << 20, 1 << 19)).collect(),
        }
    }

    #[test]
    fn an_order_is_sent_in_frames_that_it_fits() {
        let orders = order(5000).split();
        assert_eq!(orders.len(), 3);
        for sent in &orders {
            let command = RemoteCommand::Bring(sent.clone());
            assert_eq!(RemoteCommand::decode(&command.encode().unwrap()).unwrap(), command);
            assert!(sent.spec().is_ok());
        }
        let opened = RemoteCommand::Open(order(0));
        assert_eq!(RemoteCommand::decode(&opened.encode().unwrap()).unwrap(), opened);
        assert!(RemoteCommand::decode(&RemoteCommand::Open(order(1)).encode().unwrap()).is_err());
        assert_eq!(orders.iter().map(|order| order.ranges().len()).sum::<usize>(), 5000);
        assert_eq!(order(0).ranges(), [ByteRange::between(0, 1 << 40)]);
        let done = CommandOutcome { bytes: 5, lacking: 3, why: None };
        assert_eq!(CommandOutcome::decode(&done.encode()), Some(done));
    }

    #[test]
    fn a_cause_tells_others_no_secrets_of_this_host() {
        for (why, told) in [
            ("oci://h:5/vm/a: connection refused; name it by --plain-http h:5", None),
            (
                "cannot write /var/cache/headstart/blobs/x: No space left",
                Some("cannot write (a path): No space left"),
            ),
            ("`/srv/my images/a b`: gone", Some("`(a path) (a path) b`: gone")),
            ("file:///srv/images:a: is local", Some("(a path): is local")),
            ("(https://user:pass@h/a/b?X-Amz-Signature=s#f): 403", Some("(https://h/a/b): 403")),
            ("s3://b@127.0.0.1:9000/p/index.json: no", Some("s3://b/p/index.json: no")),
        ] {
            assert_eq!(for_others(why), told.unwrap_or(why));
        }
        assert!(refusal(&for_others(&"/x ".repeat(5000))).len() <= crate::frame::REFUSED_MAX);
    }

    #[test]
    fn nonsense_is_no_order() {
        let sent = RemoteCommand::Bring(order(3)).encode().unwrap();
        for cut in 0..sent.len() {
            assert!(RemoteCommand::decode(&sent[..cut]).is_err());
        }
        assert!(RemoteCommand::decode(&[&sent[..], &[0]].concat()).is_err());
        let long = Pin { manifest: "x".repeat(70_000), ..Pin::default() };
        assert!(RemoteCommand::Pin(Box::new(long)).encode().is_err());
        assert!(Order { digest: "sha256:x".to_owned(), ..order(0) }.spec().is_err());
        assert!(Order { store: "x".repeat(5000), ..order(0) }.spec().is_err());
        let beyond = Order { parts: vec![(u64::MAX, 2), (1 << 41, 5), (0, 0)], ..order(0) };
        assert_eq!(beyond.ranges(), []);
    }
}
