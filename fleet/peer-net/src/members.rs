//! Connections to the other hosts: made, accepted, made again.
//!
//! Of two hosts the one with the lesser key connects, so that there is one connection and not two. A host that cannot
//! be reached is tried again, after pauses that grow; a dropped host is left alone for a while.

use crate::channel::{Channel, Wire};
use crate::credentials::{REMEDY, Reminder, unix_now};
use crate::frame::{FrameKind, Hello, REFUSED_CONNECTION, VERSION_1, push_frame, refusal};
use crate::gossip::{Gossip, Member, Members};
use crate::host::Host;
use crate::host::link::Link;
use crate::peer_key::key_of;
use crate::proof::Side;
use crate::strangers::{Place, Strangers, Verdict};
use headstart_block::{Error, ErrorKind, Result, exact};
use headstart_swarm::{Offence, PeerKey};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// The longest time to make a connection, before both ends identify each other.
const CONNECT: Duration = Duration::from_secs(3);

/// Denied addresses that are remembered, so that each is logged once.
const DENIED_MAX: usize = 64;

/// The pause before the second attempt, and the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// The longest time for sending the reason of a refusal.
const REFUSING: Duration = Duration::from_secs(1);

/// The life of a connection, in milliseconds, after which it is made again soon.
const LASTING_MS: u64 = 5000;

/// The most concurrent first connections to hosts: their identity is not proven yet.
const FIRST_DIALS_MAX: usize = 32;

/// The longest silence of a host, in milliseconds. Each sends a ping three times as often.
const SILENCE_MS: u64 = 15_000;

/// The time, in milliseconds, since the last received frame in which the host is taken to be alive.
const HEARD_LATELY_MS: u64 = 7000;

/// The longest wait for the end of the old connection of a restarted host.
const ENDING: Duration = Duration::from_secs(1);

/// The most connections that wait for a place at the door: as many as get one within two seconds.
const WAITING_MAX: usize = 256;

/// The interval at which waiting connections are checked.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The time for which a blob without disks is still given to others.
const KEPT_UNUSED: Duration = Duration::from_secs(600);

/// The state that all connections need.
pub(super) struct Door {
    pub(super) host: Arc<Host>,
    pub(super) wire: Wire,
    pub(super) hello: Hello,
    pub(super) key: PeerKey,
    pub(super) connections_max: usize,
    /// `true` without security: only hosts on loopback may connect.
    pub(super) only_loopback: bool,
    /// Connections whose other end is not known yet, and the channels that tell them to make room.
    pub(super) strangers: Mutex<(Strangers, HashMap<Place, oneshot::Sender<()>>)>,
    /// The permits for connections to hosts that have never been connected to.
    pub(super) first_dials: Semaphore,
    pub(super) stopping: watch::Receiver<bool>,
}

/// Records an address; returns `true` if it was not known.
fn is_news(known: &Mutex<HashSet<IpAddr>>, address: IpAddr) -> bool {
    let mut known = known.lock();
    known.len() < DENIED_MAX && known.insert(address)
}

/// The error of two hosts with one name.
fn namesake(name: &str, other: IpAddr) -> Error {
    Error::new(ErrorKind::Conflict, format!("two hosts are called `{name}`: one of them is at {other}"))
        .remedy(
            "make a certificate for each host, by `headstart swarm init DIR --host NAME`, and copy none to two hosts",
        )
}

async fn connect_to(address: SocketAddr) -> Result<TcpStream> {
    let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(address)).await;
    let connected = connecting.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    connected.map_err(|e| Error::io("cannot connect", e).about(address))
}

impl Door {
    /// The permits for concurrent first connections.
    pub(super) fn first_dials() -> Semaphore {
        Semaphore::new(FIRST_DIALS_MAX)
    }

    /// Runs one connection until it ends.
    pub(super) async fn run(&self, channel: Channel, address: SocketAddr) -> Result<()> {
        self.run_among(channel, address, self.connections_max).await
    }

    /// Runs one connection as [`run`](Self::run) does, even beyond the largest number of connections: the other host
    /// may know a later list of the authority's.
    pub(super) async fn run_beyond(&self, channel: Channel, address: SocketAddr) -> Result<()> {
        self.run_among(channel, address, self.connections_max.saturating_add(1)).await
    }

    async fn run_among(&self, channel: Channel, address: SocketAddr, connections_max: usize) -> Result<()> {
        let key = key_of(&channel.hello.name);
        if self.is_own(&channel) {
            return Err(Error::new(ErrorKind::Unavailable, "this is the host itself"));
        }
        if let Err(error) = self.admit(&channel, address) {
            return Err(self.refuse(channel, key, error, None).await);
        }
        if let Err(error) = self.take_place(&channel, key).await {
            // A second connection of the same process is closed without a reason.
            let is_news = error.kind() == ErrorKind::Conflict;
            return Err(if is_news { self.refuse(channel, key, error, None).await } else { error });
        }
        let link = self
            .host
            .connected(key, connections_max, |peer, now_ms| Link::new(peer, key, &channel, address, now_ms));
        let Some(link) = link else {
            let error = Error::new(ErrorKind::Unavailable, "too many hosts, or one that is left alone");
            return Err(self.refuse(channel, key, error, self.host.trust.current()).await);
        };
        // A list may have come since the host was admitted.
        if let Some(error) = self.host.trust.refusal(link.certificate().as_ref()) {
            self.host.disconnected(link.peer);
            return Err(error);
        }
        let ended = link.run(&self.host, channel.stream).await;
        match &ended {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.host.shun(link.peer, Offence::Protocol, &error.to_string());
            }
            // The error is the other host's reason to refuse this one.
            Err(error) if error.kind() == ErrorKind::Denied => {
                self.note_failure(&link.name, address, key, error);
            }
            _ => {}
        }
        self.host.disconnected(link.peer);
        ended
    }

    /// `true` if the other end of a connection is this very process.
    pub(super) fn is_own(&self, channel: &Channel) -> bool {
        channel.hello.process() == self.hello.process()
    }

    /// Decides whether a host that has proved its name may connect.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if it claims a role that its certificate does not give. A host of an earlier version is
    /// taken for a plain member instead, because its certificate could give none. [`ErrorKind::Conflict`] if it has
    /// this host's own name.
    fn admit(&self, channel: &Channel, address: SocketAddr) -> Result<()> {
        let (hello, roles) = (&channel.hello, channel.roles());
        if hello.name == self.hello.name {
            if channel.side == Side::Dialer {
                self.host.met_namesake(address);
            }
            return Err(namesake(&hello.name, address.ip()));
        }
        if let Some(error) = self.host.trust.refusal(channel.certificate.as_ref()) {
            return Err(error);
        }
        let claims =
            [(hello.is_root && !roles.root, "root"), (hello.is_tracker && !roles.tracker, "tracker")];
        for role in claims.into_iter().filter_map(|(is_beyond, role)| is_beyond.then_some(role)) {
            let error = Error::new(
                ErrorKind::Denied,
                format!("`{}` says that it is a {role}, and its certificate does not", hello.name),
            );
            let remedy = format!(
                "give it that role where the authority is, by `headstart swarm init DIR --{role} {}`, and copy what \
                 that makes",
                hello.name
            );
            if channel.protocol() > VERSION_1 {
                return Err(error.remedy(remedy));
            }
            if self.host.cannot_reach(key_of(&hello.name), &error) {
                tracing::warn!(%error, remedy, "a host of an earlier version is taken for a plain member");
            }
        }
        Ok(())
    }

    /// Waits until a connection to a host of this name has ended, if there is one: the host may have restarted.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if it goes on: there are two hosts of this name. [`ErrorKind::Unavailable`] if both
    /// connections are of the same process.
    async fn take_place(&self, channel: &Channel, key: PeerKey) -> Result<()> {
        let Some(before) = self.host.link_of(key) else { return Ok(()) };
        if before.process == channel.hello.process() {
            return Err(Error::new(ErrorKind::Unavailable, "it is connected already"));
        }
        let silent_ms = self.host.now_ms().saturating_sub(before.last_heard_ms.load(Ordering::Relaxed));
        if silent_ms > HEARD_LATELY_MS || tokio::time::timeout(ENDING, before.closed()).await.is_ok() {
            return Ok(());
        }
        // Hosts of earlier versions do not send the number of their process.
        if channel.protocol() <= VERSION_1 {
            return Err(Error::new(ErrorKind::Unavailable, "it is connected already"));
        }
        self.host.whereabouts().refused(key, channel.hello.process());
        Err(namesake(&channel.hello.name, before.address.ip()))
    }

    /// Sends a host the reason of a refusal, if it speaks a version with refusals; returns the reason. A host that is
    /// refused only for lack of room gets the authority's list before.
    async fn refuse(
        &self,
        mut channel: Channel,
        key: PeerKey,
        error: Error,
        list: Option<Arc<Vec<u8>>>,
    ) -> Error {
        self.host.counts.refused_connections.fetch_add(1, Ordering::Relaxed);
        let is_wrong = matches!(error.kind(), ErrorKind::Denied | ErrorKind::Conflict);
        if is_wrong && self.host.cannot_reach(key, &error) {
            tracing::warn!(%error, host = %channel.hello.name, "a host of the swarm is refused");
        }
        if channel.protocol() > VERSION_1 {
            let mut out = Vec::new();
            if let Some(list) = &list {
                push_frame(&mut out, FrameKind::Trust, 0, 0, list);
            }
            push_frame(&mut out, FrameKind::Refused, 0, REFUSED_CONNECTION, refusal(&error.to_string()));
            let say = async {
                channel.stream.write_all(&out).await?;
                channel.stream.shutdown().await?;
                // A connection that is closed with unread bytes is reset, and the reason is lost by that.
                while channel.stream.read(&mut [0; 1024]).await? > 0 {}
                Ok::<(), std::io::Error>(())
            };
            // A host that does not read it does not get the reason.
            let _ = tokio::time::timeout(REFUSING, say).await;
        }
        error
    }

    /// Accepts connections until the swarm ends. Connections for which there is no room wait for their turn: otherwise
    /// sockets that are opened again and again would take each place that a host at the same address waits for.
    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener) {
        let mut connections = JoinSet::new();
        let mut waiting: VecDeque<(TcpStream, SocketAddr)> = VecDeque::new();
        let mut look_again = tokio::time::interval(LOOK_AGAIN);
        look_again.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut stopping = self.stopping.clone();
        let denied: Arc<Mutex<HashSet<IpAddr>>> = Arc::default();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => Some(accepted),
                Some(_) = connections.join_next() => continue,
                _ = look_again.tick(), if !waiting.is_empty() => None,
                _ = stopping.wait_for(|stopping| *stopping) => break,
            };
            let is_new = accepted.is_some();
            match accepted {
                Some(Ok(connection)) => waiting.push_back(connection),
                Some(Err(_)) => {
                    // There are no more descriptors, for a moment.
                    tokio::time::sleep(FIRST_PAUSE).await;
                    continue;
                }
                None => {}
            }
            // A new connection has only those at the head before it; all are checked from time to time.
            let mut at = 0;
            while let Some((_, address)) = waiting.get(at) {
                let Some((place, makes_room)) = self.let_in(address.ip()) else {
                    at = if is_new { (at + 1).max(waiting.len() - 1) } else { at + 1 };
                    continue;
                };
                let Some((socket, address)) = waiting.remove(at) else { break };
                let (door, denied) = (Arc::clone(&self), Arc::clone(&denied));
                connections.spawn(async move {
                    door.receive(socket, address, (place, makes_room), &denied).await;
                });
            }
            if waiting.len() > WAITING_MAX {
                waiting.pop_back();
                self.host.counts.refused_connections.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Connections that end take leave, but not for long.
        let all = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_millis(500), all).await;
    }

    /// Identifies a host that has connected, and runs the connection until it ends.
    async fn receive(
        &self,
        socket: TcpStream,
        address: SocketAddr,
        (place, makes_room): (Place, oneshot::Receiver<()>),
        denied: &Mutex<HashSet<IpAddr>>,
    ) {
        let channel = tokio::select! {
            channel = self.wire.accept(socket, &self.hello) => channel,
            _ = makes_room => Err(Error::new(ErrorKind::Unavailable, "it made room for another one")),
        };
        self.left(place);
        match channel {
            Ok(channel) => {
                if let Err(error) = self.run(channel, address).await {
                    tracing::debug!(%error, %address, "a connection ended");
                }
            }
            Err(error) => {
                self.host.counts.refused_connections.fetch_add(1, Ordering::Relaxed);
                if error.kind() == ErrorKind::Denied && is_news(denied, address.ip()) {
                    tracing::warn!(%error, %address, "a connection was refused");
                } else {
                    tracing::debug!(%error, %address, "a connection was refused");
                }
            }
        }
    }

    /// A place for a connection until its other end is known, and the receiver that tells it to make room; `None` if
    /// there is no place.
    fn let_in(&self, from: IpAddr) -> Option<(Place, oneshot::Receiver<()>)> {
        let (is_known, now_ms) = (self.host.is_known_address(from), self.host.now_ms());
        let mut strangers = self.strangers.lock();
        let (strangers, told) = &mut *strangers;
        match strangers.come(from, is_known, now_ms) {
            Verdict::Admitted { place, instead_of } => {
                if let Some(other) = instead_of.and_then(|place| told.remove(&place)) {
                    // The receiver is gone if its handshake has just ended.
                    let _ = other.send(());
                }
                let (tell, makes_room) = oneshot::channel();
                told.insert(place, tell);
                Some((place, makes_room))
            }
            Verdict::Refused => None,
        }
    }

    /// Gives back the place of a connection.
    fn left(&self, place: Place) {
        let mut strangers = self.strangers.lock();
        strangers.0.leave(place);
        strangers.1.remove(&place);
    }

    /// Connects to the hosts that the gossip names, until the swarm ends.
    pub(super) async fn follow(self: Arc<Self>, mut gossip: Gossip) {
        let mut dialers: HashMap<Member, Arc<AtomicBool>> = HashMap::new();
        let mut tasks = JoinSet::new();
        let mut stopping = self.stopping.clone();
        loop {
            let members = tokio::select! {
                members = gossip.changed() => members,
                Some(_) = tasks.join_next() => continue,
                _ = stopping.wait_for(|stopping| *stopping) => None,
            };
            let Some(told) = members else { break };
            self.host.set_members(&told);
            let Members { others: mut members, namesakes, .. } = told;
            members.extend(namesakes);
            members.sort_unstable();
            // The task of a connected host goes on until the connection ends.
            dialers.retain(|member, goes_on| {
                let stays = members.binary_search(member).is_ok();
                goes_on.store(stays, Ordering::Relaxed);
                stays
            });
            let own = (self.key, self.hello.name.as_str());
            // A host of this one's own name is connected to, to be sure that it is there.
            for member in
                members.into_iter().filter(|member| own <= (key_of(&member.name), member.name.as_str()))
            {
                if self.only_loopback && !member.address.ip().is_loopback() {
                    continue;
                }
                let door = Arc::clone(&self);
                dialers.entry(member.clone()).or_insert_with(|| {
                    let goes_on = Arc::new(AtomicBool::new(true));
                    tasks.spawn(door.dial(member, Arc::clone(&goes_on)));
                    goes_on
                });
            }
        }
        gossip.leave().await;
        let all = async { while tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_millis(500), all).await;
    }

    /// Connects to one host, again and again.
    async fn dial(self: Arc<Self>, member: Member, goes_on: Arc<AtomicBool>) {
        let key = key_of(&member.name);
        let mut pause = FIRST_PAUSE;
        let mut stopping = self.stopping.clone();
        let (mut tries, mut is_proven) = (0u32, false);
        loop {
            if *stopping.borrow_and_update() || !goes_on.load(Ordering::Relaxed) {
                return;
            }
            if !self.host.needs_no_connection(key) {
                // Any holder of the gossip key can name hosts that are not there.
                let turn = if is_proven { None } else { self.first_dials.acquire().await.ok() };
                let connected = self.connect(&member).await;
                drop(turn);
                match connected {
                    Ok(channel) => {
                        is_proven = true;
                        let since = self.host.now_ms();
                        if let Err(error) = self.run(channel, member.address).await {
                            tracing::debug!(%error, host = %member.name, "a connection ended");
                        }
                        // A connection that ended at once was not welcome.
                        if self.host.now_ms() - since > LASTING_MS {
                            pause = FIRST_PAUSE;
                        }
                    }
                    Err(error) => self.note_failure(&member.name, member.address, key, &error),
                }
            }
            tries = tries.wrapping_add(1);
            // Hosts that lost the same host do not come back to it at the same moment.
            let jitter =
                75 + (self.key.0 ^ key.0).rotate_left(tries).wrapping_mul(0x9E37_79B9_7F4A_7C15) % 50;
            let jittered = pause * exact::<u32>(jitter, "it is at most 124") / 100;
            let stopped = tokio::time::timeout(jittered, stopping.wait_for(|stopping| *stopping)).await;
            if stopped.is_ok() {
                return;
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Records why a host cannot be connected to, and logs it once if waiting does not help.
    fn note_failure(&self, host: &str, address: SocketAddr, key: PeerKey, error: &Error) {
        let is_news = self.host.cannot_reach(key, error);
        if error.kind() == ErrorKind::Denied {
            self.host.counts.refused_connections.fetch_add(1, Ordering::Relaxed);
            if is_news {
                tracing::warn!(%error, %host, %address, "cannot connect to a host of the swarm");
                return;
            }
        }
        tracing::debug!(%error, %host, %address, "cannot connect");
    }

    async fn connect(&self, member: &Member) -> Result<Channel> {
        let socket = connect_to(member.address).await?;
        self.wire.connect(socket, &member.name, &self.hello).await
    }

    /// Connects to an address, whichever host of the cluster is there.
    pub(super) async fn connect_any(&self, address: SocketAddr) -> Result<Channel> {
        if self.only_loopback && !address.ip().is_loopback() {
            return Err(Error::invalid("without certificates it joins hosts on loopback only").about(address));
        }
        self.wire.connect_any(connect_to(address).await?, &self.hello).await
    }

    /// Ends connections that are silent or whose certificate has ended, leaves unused blobs, and logs the end of this
    /// host's certificate.
    pub(super) async fn look_after(self: Arc<Self>) {
        let mut stopping = self.stopping.clone();
        let mut reminder = Reminder::default();
        loop {
            let pause = tokio::time::timeout(Duration::from_secs(1), stopping.wait_for(|stopping| *stopping));
            if pause.await.is_ok() {
                return;
            }
            let now = self.host.now_ms();
            for (link, _) in self.host.links() {
                if now.saturating_sub(link.last_heard_ms.load(Ordering::Relaxed)) > SILENCE_MS {
                    tracing::info!(host = %link.name, "a host is silent; its connection is closed");
                    self.host.disconnected(link.peer);
                } else if link.has_ended(unix_now()) {
                    tracing::warn!(host = %link.name, "a host's certificate has ended; its connection is closed");
                    self.host.disconnected(link.peer);
                }
            }
            tokio::task::block_in_place(|| self.host.trust.tick(now));
            let validity = self.host.renewals.identity.as_ref().map(|identity| identity.says().validity);
            if let Some(notice) = validity.and_then(|validity| reminder.due(validity, unix_now())) {
                match self.host.renewals.failure() {
                    Some(why) => tracing::warn!(remedy = REMEDY, "{notice}, and was not renewed: {why}"),
                    None => tracing::warn!(remedy = REMEDY, "{notice}"),
                }
            }
            self.host.leave_unused(KEPT_UNUSED);
        }
    }
}
