//! The swarm: the connections of a host to other hosts, and the state machine that decides which messages are sent.
//!
//! | module | content |
//! |---|---|
//! | `host` | the state that all tasks share, and its parts: the state machine, connections, orders, hints |
//! | [`credentials`] | the members of a cluster: its certificate authority, hosts' certificates, the gossip key |
//! | `outbox` | the queue of frames to be sent, in their order |
//! | [`frame`] | the format of connections, byte by byte |
//! | `channel` | the handshake of a connection, which identifies the host at the other end |
//! | `proof` | the proof of a host that it may read a blob |
//! | `blob` | the verification and storage of received bytes |
//! | `lookup` | blobs found by their digest, for programs that have no manifest |
//! | `members` | connections to other hosts: made, accepted, and made again if they break |
//! | `strangers` | incoming connections whose handshake is not done: any program may be at the other end |
//! | `gossip` | the search for the hosts of the swarm, by datagrams |
//! | [`remote_commands`] | the orders between hosts to fetch ahead of need |
//! | `renewing` | the renewal of this host's certificate before it expires |
//! | `joining` | connections to the hosts of [`SwarmSettings::join`], if gossip alone does not find a host |
//! | `recent_log` | the recent requests to a root, kept over a restart |
//! | `peer_key` | the name of a host as a number |
//! | [`order`] | a blob to be fetched |
//! | [`pin`] | an image that hosts keep together |
//! | [`pinning`] | the hosts that keep each part of a blob |
//! | [`complaints`] | the limits for hosts whose orders are refused |
//! | `root_announce` | the messages by which agents name their blobs to roots, so that the roots can fetch them |
//!
//! # Trust
//!
//! With [`Security::Tls`], no host connects without a certificate of the cluster, and a host is a root or a tracker
//! only if its certificate has that role. Two hosts exchange chunks of a blob only after each has proved to the other
//! that it knows the root hash of the blob's hash tree, and so may read the blob. (In the topology `roots`, an agent
//! sends this hash to hosts with the role of a root.) Received bytes are checked against the root hash before they are
//! in the cache. A host that sends wrong bytes is disconnected, and no connection to it is made for a while. The memory
//! for bytes to and from any host is bounded.

#![forbid(unsafe_code)]

mod blob;
mod channel;
pub mod complaints;
pub mod credentials;
pub mod frame;
mod gossip;
mod host;
mod joining;
mod lookup;
mod members;
pub mod order;
mod outbox;
mod peer_key;
pub mod pin;
mod proof;
mod recent_log;
mod renewing;
mod root_announce;
mod strangers;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use host::hints::{Boots, CountedImage, HintCounters, read_counts};
pub use host::pinning;
pub use host::remote_commands;
pub use host::status::{BlobStatus, MemberStatus, PeerStatus, Status, SwarmCounters};
pub use peer_key::key_of;

use crate::blob::Blob;
use crate::channel::Wire;
use crate::credentials::{Credentials, Roles, Signer, check_name, unix_now};
use crate::frame::Hello;
use crate::gossip::{Claims, Gossip, Gossiper, Member, Seal};
use crate::host::Host;
use crate::host::hints::{self, Counting, HintsSide};
use crate::host::renewals::Renewals;
use crate::host::trust::Trust;
use crate::members::Door;
use headstart_block::{ByteRange, Error, ErrorKind, Result};
use headstart_cache::{BlobSpec, Cache, CachedBlob};
use headstart_disk::RangeFetcher;
use headstart_store::Store;
use headstart_swarm::tracker::ImageKey;
use headstart_swarm::{
    Chunks, Event, Node, NodeSettings, PeerKey, ReaderId, Role, Topology, Urgency, WantId,
};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The protection of the connections between hosts.
pub enum Security {
    /// Mutual TLS under the cluster's certificate authority; gossip datagrams are sealed with the cluster's gossip key.
    /// The host's name is the one in its certificate.
    Tls(Credentials),
    /// Nothing is encrypted and every host is trusted. This is only for trying out: all addresses must be on loopback.
    PlainOnLoopback {
        /// The host's name.
        name: String,
    },
}

/// The settings of one host of the swarm.
pub struct SwarmSettings {
    /// The protection of the connections to other hosts.
    pub security: Security,
    /// The address to listen at: TCP for other hosts' connections, UDP for gossip. Port 0 takes a free port.
    pub listen: SocketAddr,
    /// The address that is named to other hosts as this one's; port 0 stands for the port of `listen`.
    /// `None`: the address of `listen`, or if that is unspecified (such as 0.0.0.0), one that is found by the
    /// routes to the other hosts.
    pub advertise: Option<SocketAddr>,
    /// The addresses (`host:port`) of hosts to contact at first, from which this host learns of all others.
    /// One that is reachable is enough. Empty: this host waits for others to contact it.
    pub join: Vec<String>,
    /// The role of this host in the swarm: root or agent.
    pub role: Role,
    /// The settings of the state machine that decides on requests and transfers.
    pub node: NodeSettings,
    /// Limit of the hosts that this host is connected to. Connections to trackers and to authorities are not counted.
    pub connections_max: usize,
    /// The file in which the tracker saves its counts of disks' reads. `None`: this host is not a tracker.
    pub tracker: Option<PathBuf>,
    /// The file in which the trust list (revoked hosts, and the gossip key) is saved. `None`: revocations
    /// received while the agent runs are not known after a restart.
    pub trust: Option<PathBuf>,
    /// The cluster's directory, which contains the authority's `ca.pem` and `ca.key`. `None`: this host does
    /// not renew the certificates of other hosts.
    pub authority: Option<PathBuf>,
}

impl SwarmSettings {
    /// The settings without the roles that a certificate of an earlier version cannot give.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if the host is to have a role that its certificate does not give.
    fn with_roles(mut self) -> Result<Self> {
        let Security::Tls(credentials) = &self.security else { return Ok(self) };
        let says = credentials.identity.says();
        let (roles, is_earlier) = (says.roles, says.is_of_earlier_version());
        let lacks_root = self.role == Role::Root && !roles.root;
        let lacks_tracker = self.tracker.is_some() && !roles.tracker;
        let lacks_authority = self.authority.is_some() && !roles.authority;
        if is_earlier {
            tracing::warn!(
                remedy = "run `headstart swarm init DIR --host NAME...` where the authority is, which keeps it, and \
                          copy what it makes to each host",
                "this host's certificate was made by an earlier version: it gives no roles and lasts for ever; the \
                 host is a plain member"
            );
        }
        let lacks = [(lacks_root, "root"), (lacks_tracker, "tracker"), (lacks_authority, "authority")];
        for (lacks, role) in lacks {
            if lacks && !is_earlier {
                let (name, option) = (&credentials.name, format!("--{role}"));
                return Err(Error::new(
                    ErrorKind::Denied,
                    format!("the certificate of `{name}` gives no such role"),
                )
                .about(option)
                .remedy(format!(
                    "run `headstart swarm init DIR --{role} {name}` where the authority is, and copy \
                         DIR/hosts/{name} here"
                )));
            }
        }
        if lacks_root {
            self.role = Role::Agent;
        }
        if lacks_tracker {
            self.tracker = None;
        }
        if lacks_authority {
            self.authority = None;
        }
        Ok(self)
    }
}

impl SwarmSettings {
    fn is_plain(&self) -> bool {
        matches!(self.security, Security::PlainOnLoopback { .. })
    }

    /// # Errors
    /// [`ErrorKind::Invalid`] if hosts without certificates could be reached from beyond loopback.
    fn check_addresses(&self) -> Result<()> {
        let mut reached = [Some(self.listen), self.advertise].into_iter().flatten();
        match reached.find(|address| self.is_plain() && !address.ip().is_loopback()) {
            Some(address) => Err(Error::invalid("without certificates it listens on loopback only")
                .about(address)
                .remedy("make certificates by `headstart swarm init`, or listen on 127.0.0.1")),
            None => Ok(()),
        }
    }
}

/// The proof of this host's identity, and the state that comes from its certificate.
struct Own {
    wire: Wire,
    name: String,
    seal: Arc<Seal>,
    trust: Trust,
    roles: Roles,
    renewals: Renewals,
    claims: Option<Claims>,
}

impl Own {
    fn of(settings: &SwarmSettings) -> Result<Self> {
        let key = match &settings.security {
            Security::Tls(credentials) => Some(credentials.gossip_key),
            Security::PlainOnLoopback { .. } => None,
        };
        let seal = Arc::new(Seal::new(key)?);
        Ok(match &settings.security {
            Security::Tls(credentials) => {
                let (authority, identity) = (settings.authority.as_ref(), Arc::clone(&credentials.identity));
                let signer = authority.map(|dir| Signer::open(dir, credentials)).transpose()?;
                Self {
                    wire: Wire::tls(credentials)?,
                    name: credentials.name.clone(),
                    trust: Trust::open(credentials, settings.trust.clone(), Arc::clone(&seal))?,
                    seal,
                    roles: credentials.roles(),
                    claims: Some(Claims::of(Arc::clone(&identity))),
                    renewals: Renewals::of(identity, signer),
                }
            }
            Security::PlainOnLoopback { name } => {
                check_name(name)?;
                let (name, roles) = (name.clone(), Roles::ALL);
                let trust = Trust::none(Arc::clone(&seal));
                let renewals = Renewals::default();
                Self { wire: Wire::Plain, name, seal, trust, roles, renewals, claims: None }
            }
        })
    }
}

/// The number of attempts to find a port that is free for both.
const PORT_TRIES: u32 = 16;

/// The longest time for taking leave of the other hosts.
const STOPPING: Duration = Duration::from_secs(2);

/// A host's membership in the swarm: its connections to other hosts, and the state machine. Dropping it
/// closes all connections.
pub struct Swarm {
    host: Arc<Host>,
    name: String,
    role: Role,
    /// The roles that this host's certificate gives.
    roles: Roles,
    key: PeerKey,
    /// Chunks of a stripe.
    stripe: u32,
    address: SocketAddr,
    stopping: watch::Sender<bool>,
    tasks: Mutex<Option<JoinSet<()>>>,
}

impl Swarm {
    /// Starts to listen, finds the other hosts, and connects to them in the background. `runtime` must be
    /// multi-threaded. It should serve nothing else, because its threads read and write the cache's files.
    ///
    /// # Errors
    /// An error if the address cannot be used, a file of the settings cannot be read, or the address of this host
    /// cannot be found out; [`ErrorKind::Denied`] if the certificate does not permit a role of the settings (with a
    /// certificate of an earlier version, which has no roles, the host starts without the role instead); an error if
    /// there is no security and an address is not on loopback.
    pub async fn start(settings: SwarmSettings, cache: Arc<Cache>, runtime: Handle) -> Result<Arc<Self>> {
        let started = runtime.clone().spawn(Self::start_here(settings, cache, runtime)).await;
        started.map_err(|e| Error::io("the swarm did not start", std::io::Error::other(e)))?
    }

    async fn start_here(settings: SwarmSettings, cache: Arc<Cache>, runtime: Handle) -> Result<Arc<Self>> {
        let settings = settings.with_roles()?;
        settings.check_addresses()?;
        let only_loopback = settings.is_plain();
        let own = Own::of(&settings)?;
        let (name, roles) = (own.name, own.roles);
        let (listener, datagrams, listening) = listen(settings.listen).await?;
        let address = match settings.advertise {
            Some(address) if address.port() == 0 => SocketAddr::new(address.ip(), listening.port()),
            Some(address) => address,
            None => reachable(listening, &settings.join).await?,
        };
        let key = key_of(&name);
        let is_root = settings.role == Role::Root;
        let stripe = settings.node.stripe;
        let announces_to_roots = !is_root && settings.node.topology == Topology::Roots;
        let node = Node::new(key, settings.role, settings.node);
        let counting = match &settings.tracker {
            Some(file) => Some(tokio::task::block_in_place(|| Counting::start(file))?),
            None => None,
        };
        let is_tracker = counting.is_some();
        let host = Host::new(cache, runtime.clone(), node, HintsSide::new(counting), own.trust, own.renewals);
        let (stopping, stopped) = watch::channel(false);
        let door = Arc::new(Door {
            host: Arc::clone(&host),
            wire: own.wire,
            hello: Hello {
                version: frame::VERSION,
                name: name.clone(),
                is_root,
                is_tracker,
                nonce: process()?,
            },
            key,
            connections_max: settings.connections_max,
            only_loopback,
            strangers: Mutex::default(),
            first_dials: Door::first_dials(),
            stopping: stopped,
        });
        let seeds = settings.join.clone();
        let strays = Arc::clone(&host.counts.strays);
        let gossip = Gossiper {
            socket: Arc::new(datagrams),
            seal: own.seal,
            claims: own.claims,
            own: Member { name: name.clone(), address },
            process: door.hello.process(),
            seeds,
            strays,
        };
        let gossip = Gossip::join(gossip).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn_on(Arc::clone(&host).keep_time(), &runtime);
        tasks.spawn_on(Arc::clone(&door).accept(listener), &runtime);
        tasks.spawn_on(Arc::clone(&door).follow(gossip), &runtime);
        tasks.spawn_on(Arc::clone(&door).join(settings.join), &runtime);
        tasks.spawn_on(hints::keep_going(Arc::clone(&host), stopping.subscribe()), &runtime);
        tasks.spawn_on(Arc::clone(&door).renew(), &runtime);
        tasks.spawn_on(door.look_after(), &runtime);
        if announces_to_roots {
            tasks.spawn_on(root_announce::keep_announcing(Arc::clone(&host), stopping.subscribe()), &runtime);
        }
        let tasks = Mutex::new(Some(tasks));
        let role = settings.role;
        Ok(Arc::new(Self { host, name, role, roles, key, stripe, address, stopping, tasks }))
    }

    /// The address that this host names to others, at which it accepts connections.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes part in the exchange of a blob and of its hash tree as long as the returned value lives. Opening
    /// a blob again is cheap. A blob without a hash tree is never exchanged: every [`want`](SharedBlob::want)
    /// of it is left to the store.
    ///
    /// If a `store` is given, this host fetches from it the chunks that other hosts request, and the parts of
    /// the hash tree that this host needs itself.
    ///
    /// # Errors
    /// As [`Cache::blob`].
    pub fn open(self: &Arc<Self>, blob: &BlobSpec, store: Option<Arc<dyn Store>>) -> Result<SharedBlob> {
        self.open_for(None, blob, store)
    }

    /// Does the same as [`open`](Self::open) for a disk that reads the blob. `reader` identifies the disk (see
    /// [`new_reader`](Self::new_reader)); one limit of prefetching applies to all blobs of the disk together. If
    /// `reader` is `None`, chunks are not prefetched when other hosts advertise them.
    ///
    /// # Errors
    /// As [`Cache::blob`].
    pub fn open_for(
        self: &Arc<Self>,
        reader: Option<ReaderId>,
        blob: &BlobSpec,
        store: Option<Arc<dyn Store>>,
    ) -> Result<SharedBlob> {
        let cached = self.host.cache.blob(blob)?;
        let tree = cached.spec().tree;
        let Some(tree) = tree else { return Ok(SharedBlob { cached, shared: None, tree: None }) };
        let range_fetcher = store.map(|store| Arc::new(RangeFetcher::new(store)));
        let blob = self.host.open(&cached, tree, range_fetcher.as_ref(), reader.is_some());
        if let Some(reader) = reader {
            self.host.event(Event::ReadBy { blob: blob.id, reader });
        }
        let shared = |blob: &Arc<Blob>| Shared {
            swarm: Arc::clone(self),
            blob: Arc::clone(blob),
            planned: AtomicBool::new(false),
        };
        let outboard = blob.tree.as_ref().map(|outboard| {
            let cached = Arc::clone(&outboard.cached);
            Box::new(SharedBlob { cached, shared: Some(shared(outboard)), tree: None })
        });
        Ok(SharedBlob { cached, shared: Some(shared(&blob)), tree: outboard })
    }

    /// Returns a new identifier for a disk, to be passed to [`open_for`](Self::open_for) for each blob of the
    /// disk.
    #[must_use]
    pub fn new_reader(&self) -> ReaderId {
        self.host.new_reader()
    }

    /// Records that a disk of `image` boots on this host, from now until the returned value is dropped. `is_new` is
    /// `false` for a disk that the tracker has counted already, such as before a restart of the agent. `None` if too
    /// many images have booting disks at once.
    pub fn boots(&self, image: ImageKey, is_new: bool) -> Option<Boots> {
        Boots::new(&self.host, image, is_new)
    }

    /// The counters of hints sent and received.
    #[must_use]
    pub fn hint_counters(&self) -> HintCounters {
        self.host.hints.counters()
    }

    /// The counts of all images that this host has as a tracker; `None` if this host is not a tracker.
    #[must_use]
    pub fn counts(&self) -> Option<Vec<CountedImage>> {
        let counting = self.host.hints.counting.as_ref()?;
        Some(counting.all().iter().map(CountedImage::of).collect())
    }

    /// The roles that this host's certificate permits; every role if the swarm has no security.
    #[must_use]
    pub fn roles(&self) -> Roles {
        self.roles
    }

    /// The present state of this host in the swarm, for display.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.host, &self.name, (self.role, self.roles), self.address)
    }

    /// Returns `true` if this host is connected to at least one other host.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.host.is_connected()
    }

    /// The names of the connected hosts that have accepted this host as a member, sorted. If there is at least one,
    /// this host is part of the swarm.
    #[must_use]
    pub fn taken_by(&self) -> Vec<String> {
        let links = self.host.links().into_iter().map(|(link, _)| link);
        let taken = links.filter(|link| link.is_taken.load(Ordering::Relaxed));
        let mut names: Vec<_> = taken.map(|link| link.name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// The remaining validity of this host's certificate, in seconds; 0 if it has expired, `None` if there is
    /// no certificate.
    #[must_use]
    pub fn certificate_seconds(&self) -> Option<u64> {
        let identity = self.host.renewals.identity.as_ref()?;
        Some(identity.says().validity.not_after.saturating_sub(unix_now()))
    }

    /// The counters of this host's connections and transfers since it was started.
    #[must_use]
    pub fn counters(&self) -> SwarmCounters {
        self.host.counts.read()
    }

    /// The counters of the state machine's decisions since this host was started.
    #[must_use]
    pub fn node_counters(&self) -> headstart_swarm::NodeCounters {
        self.host.node_counters()
    }

    /// Announces to the other hosts that this host leaves, and closes all connections. Returns after at most two
    /// seconds, even if some tasks have not ended by then.
    pub async fn stop(&self) {
        self.end();
        let tasks = self.tasks.lock().take();
        if let Some(tasks) = tasks {
            let all = tasks.join_all();
            // Tasks that take longer end anyway, later.
            let _ = tokio::time::timeout(STOPPING, all).await;
        }
    }

    fn end(&self) {
        self.stopping.send_replace(true);
        self.host.stop();
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        self.end();
    }
}

/// A nonce whose first half names this process in all of its hellos.
fn process() -> Result<[u8; 32]> {
    let mut nonce = [0; 32];
    let drawn = aws_lc_rs::rand::fill(&mut nonce[..frame::PROCESS]);
    drawn.map_err(|_| Error::new(ErrorKind::Io, "no random numbers can be drawn"))?;
    Ok(nonce)
}

/// Listens for connections and for datagrams at the same port.
async fn listen(at: SocketAddr) -> Result<(TcpListener, UdpSocket, SocketAddr)> {
    let failed = |e| Error::io("cannot listen", e).about(at).remedy("is another agent running?");
    for attempt in 1.. {
        let listener = TcpListener::bind(at).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        match UdpSocket::bind(address).await {
            Ok(datagrams) => return Ok((listener, datagrams, address)),
            Err(error) if at.port() != 0 || attempt >= PORT_TRIES => return Err(failed(error)),
            Err(_) => {}
        }
    }
    Err(Error::invalid("cannot listen"))
}

/// Addresses that no host has (RFC 5737, RFC 3849): datagrams to them would take the default route.
const NOBODY: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// The address at which other hosts reach a listener. If it listens on all addresses: the source address of datagrams
/// to the other hosts, or to any address, if the others are on this host or not known yet.
async fn reachable(listening: SocketAddr, others: &[String]) -> Result<SocketAddr> {
    if !listening.ip().is_unspecified() {
        return Ok(listening);
    }
    let unspecified = SocketAddr::new(listening.ip(), 0);
    let mut on_loopback = None;
    for other in others.iter().map(String::as_str).chain(NOBODY) {
        let Ok(socket) = UdpSocket::bind(unspecified).await else { continue };
        // This sends nothing.
        if socket.connect(other).await.is_ok()
            && let Ok(own) = socket.local_addr()
        {
            let own = SocketAddr::new(own.ip(), listening.port());
            if !own.ip().is_loopback() {
                return Ok(own);
            }
            on_loopback = Some(own);
        }
    }
    on_loopback.ok_or_else(|| {
        Error::invalid("the address at which other hosts reach this one is not known")
            .about(listening)
            .remedy("give it by --advertise")
    })
}

/// A use of one blob by one disk or program, by which it exchanges the blob's chunks with other hosts. All
/// methods take byte ranges of the blob; the part of a range beyond the blob's end is ignored.
pub struct SharedBlob {
    cached: Arc<CachedBlob>,
    shared: Option<Shared>,
    tree: Option<Box<SharedBlob>>,
}

/// A use of a blob.
struct Shared {
    swarm: Arc<Swarm>,
    blob: Arc<Blob>,
    planned: AtomicBool,
}

impl SharedBlob {
    /// The blob in this host's cache.
    #[must_use]
    pub fn blob(&self) -> &Arc<CachedBlob> {
        &self.cached
    }

    /// The blob with the hash tree of this one, which is exchanged as a blob of its own; `None` if there is
    /// no hash tree.
    #[must_use]
    pub fn tree(&self) -> Option<&SharedBlob> {
        self.tree.as_deref()
    }

    /// Fetches the chunks that overlap `range` from other hosts into the cache, verified. Returns the ranges
    /// that the swarm does not deliver: ascending, whole chunks except at the blob's end; empty if all chunks are
    /// local now. The caller must fetch each of these ranges from the store as a whole, and then report it by
    /// [`became_local`](Self::became_local). Dropping the future cancels the request.
    pub async fn want(&self, range: ByteRange, urgency: Urgency) -> Vec<ByteRange> {
        let len = self.cached.spec().len;
        let chunks = Chunks::touched(range.intersect(ByteRange::between(0, len)));
        let whole = chunks.bytes(len);
        if chunks.count == 0 || self.cached.is_local(whole) {
            return Vec::new();
        }
        let Some(shared) = &self.shared else { return vec![whole] };
        let host = &shared.swarm.host;
        let mut missing = 0;
        self.cached.missing(whole, &mut |run| missing += run.len());
        let (want, answer) = host.want(&shared.blob, chunks, urgency);
        let waiting = Waiting { host, want };
        let from_store = answer.await.unwrap_or_else(|_| vec![chunks]);
        drop(waiting);
        let from_store = host.checked(&shared.blob, chunks, &from_store);
        let mut left = 0;
        for range in &from_store {
            self.cached.missing(*range, &mut |run| left += run.len());
        }
        host.counts.elsewhere_bytes.fetch_add(left, Ordering::Relaxed);
        host.counts.brought_bytes.fetch_add(missing - left.min(missing), Ordering::Relaxed);
        from_store
    }

    /// Reports that `range` was fetched from the store into the cache. Chunks of `range` that are not completely
    /// local are ignored.
    pub fn became_local(&self, range: ByteRange) {
        if let Some(shared) = &self.shared {
            shared.swarm.host.became_local(&shared.blob, range);
        }
    }

    /// Reports that a disk or program has read `range` of the blob. A read that had to wait for a fetch is reported as
    /// well, when all of `range` is in the cache. Prefetched chunks in `range` count as read from then on, so further
    /// ones may be prefetched.
    pub fn read(&self, range: ByteRange) {
        let chunks = Chunks::touched(range.intersect(ByteRange::between(0, self.cached.spec().len)));
        if let Some(shared) = self.shared.as_ref().filter(|_| chunks.count > 0) {
            shared.swarm.host.event(Event::Read { blob: shared.blob.id, chunks });
        }
    }

    /// Returns `true` if at least one other host exchanges this blob with this host. If `false`, no other host
    /// sends chunks of this blob, and none waits for chunks of it that are fetched here.
    pub fn has_peers(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.swarm.host.has_peers(shared.blob.id))
    }

    /// A receiver that is notified when the result of [`has_peers`](Self::has_peers) may have changed.
    /// `None` if the blob is never exchanged, because it has no hash tree.
    pub fn peers_changed(&self) -> Option<watch::Receiver<()>> {
        self.shared.as_ref().map(|shared| shared.swarm.host.peers_changed.subscribe())
    }

    /// Reports that the disk starts (`true`) or stops (`false`) to preload by a plan. While the disk preloads by a
    /// plan, chunks that other hosts advertise are recorded but not prefetched.
    pub fn planned(&self, running: bool) {
        if let Some(shared) = &self.shared
            && shared.planned.swap(running, Ordering::AcqRel) != running
        {
            shared.swarm.host.planned(shared.blob.id, running);
        }
    }
}

impl Drop for SharedBlob {
    fn drop(&mut self) {
        self.planned(false);
        // The outboard is closed with its blob.
        if let Some(shared) = self.shared.as_ref().filter(|shared| !shared.blob.is_outboard()) {
            shared.swarm.host.close(shared.blob.id);
        }
    }
}

/// A want that is forgotten when its caller is dropped.
struct Waiting<'a> {
    host: &'a Arc<Host>,
    want: WantId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.host.forget(self.want);
    }
}
