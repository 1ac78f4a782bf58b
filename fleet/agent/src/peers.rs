//! The swarm: connections to other hosts, and the state machine that decides what goes over them.
//!
//! | module | what it does |
//! |---|---|
//! | `host` | what all tasks share: whoever has an event moves the state machine |
//! | `core` | the state machine with what its numbers mean, and how what it says is done |
//! | `link` | one connection: its two tasks, and what was asked for over it |
//! | `outbox` | what waits to be sent, in the order in which it is |
//! | [`frame`] | what goes over a connection, byte by byte |
//! | `channel` | who is at the other end |
//! | `proof` | how a host proves that it may read a blob |
//! | `blob` | how bytes that came are checked and kept |
//! | `parking` | chunks that came before the pages of the tree that they are checked by |
//! | `fetching` | what the agent itself fetches from stores |
//! | `finding` | blobs for who has none of his own |
//! | `members` | connections made, accepted, made anew |
//! | `strangers` | connections at the door, whose other end is not known yet |
//! | `gossip` | who is there |
//! | `whereabouts` | where hosts listen, also where two have one name |
//! | `joining` | the first host of the swarm, and what is there instead |
//! | `remembering` | what a root was asked for, kept over a restart |
//! | `pinning` | who keeps which part of a blob |
//! | [`orders`] | what hosts ask each other to bring ahead of need |
//! | `telling_roots` | agents name what they have to roots, so that those can bring it |
//! | `hints` | what disks of an image read first, told and heard |
//! | `trust` | hosts that are members no longer, and the gossip key |
//! | `renewing` | certificates renewed over connections |
//! | `status` | all of it as plain data |
//!
//! # What is believed
//!
//! Nobody connects who has no certificate of the cluster, and a host is a root or a tracker only where its certificate
//! says so. Who has one is asked and answered only about blobs that he
//! proves that he may read: he knows the root of their hash trees. (In the topology `roots`, agents tell it their
//! roots.) What he sends is checked against that root
//! before it is in the cache. Who sends what is not right is dropped, and left alone for a while. What waits in
//! memory for or from anybody is bounded.

mod blob;
mod channel;
pub(crate) mod complaints;
mod core;
mod fetching;
mod finding;
pub mod frame;
mod gossip;
mod hints;
mod host;
mod joining;
mod link;
mod members;
pub mod orders;
mod outbox;
mod parking;
pub(crate) mod pinning;
mod proof;
mod remembering;
mod renewing;
mod status;
mod strangers;
mod telling_roots;
mod trust;
mod whereabouts;

#[cfg(test)]
mod tests;

pub(crate) use hints::Boots;
pub use hints::{CountedImage, HintCounters, read_counts};
pub use status::{BlobStatus, Counters, MemberStatus, PeerStatus, Status};

use crate::credentials::{Credentials, Roles, Signer, check_name, unix_now};
use crate::peers::blob::Blob;
use crate::peers::channel::Wire;
use crate::peers::frame::Hello;
use crate::peers::gossip::{Claims, Gossip, Gossiper, Member, Seal};
use crate::peers::hints::{Counting, HintsSide};
use crate::peers::host::Host;
use crate::peers::members::Door;
pub(crate) use crate::peers::members::key_of;
use crate::peers::renewing::Renewals;
use crate::peers::trust::Trust;
use headstart_block::{ByteRange, Error, ErrorKind, Result};
use headstart_cache::{BlobSpec, Cache, CachedBlob};
use headstart_disk::Carrier;
use headstart_store::Store;
use headstart_swarm::tracker::ImageKey;
use headstart_swarm::{Chunks, Event, Node, PeerKey, ReaderId, Role, Settings, Topology, Urgency, WantId};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How hosts know each other.
pub enum Security {
    /// Mutual TLS under the cluster's certificate authority; gossip sealed with its key. The host's name is that of
    /// its certificate.
    Tls(Credentials),
    /// Nothing is encrypted and everybody is believed: only on loopback, for trying out.
    PlainOnLoopback {
        /// The host's name.
        name: String,
    },
}

/// How a host takes part.
pub struct SwarmSettings {
    /// How hosts know each other.
    pub security: Security,
    /// Where to listen: TCP for other hosts' connections, UDP for gossip. Port 0: one that is free.
    pub listen: SocketAddr,
    /// Where others reach this host, if that is elsewhere.
    pub advertise: Option<SocketAddr>,
    /// Where to find hosts that know others: `host:port`, any of them.
    pub join: Vec<String>,
    /// What this host is to the others.
    pub role: Role,
    /// The state machine's knobs.
    pub node: Settings,
    /// Most hosts that it is connected to. Trackers come on top.
    pub connections_max: usize,
    /// Where this host counts what disks of all hosts read: the file in which that is kept.
    pub tracker: Option<PathBuf>,
    /// The file that keeps which hosts were revoked. Without one, that is not known after a restart.
    pub trust: Option<PathBuf>,
    /// The cluster's directory, where this host renews the certificates of others: with `ca.pem` and `ca.key`.
    pub authority: Option<PathBuf>,
}

impl SwarmSettings {
    /// The settings without the roles that a certificate of an earlier version cannot give.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] where the host is to have a role that its certificate does not give.
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
    /// [`ErrorKind::Invalid`] where hosts without certificates could be reached from beyond loopback.
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

/// What a host proves to others, and what it has from its certificate.
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

/// How often a port is looked for that is free for both.
const PORT_TRIES: u32 = 16;

/// How long saying goodbye may take.
const STOPPING: Duration = Duration::from_secs(2);

/// One host's part in the swarm. Dropping it ends all connections.
pub struct Swarm {
    host: Arc<Host>,
    name: String,
    role: Role,
    /// What this host's certificate lets it be.
    roles: Roles,
    key: PeerKey,
    /// Chunks of a stripe.
    stripe: u32,
    address: SocketAddr,
    stopping: watch::Sender<bool>,
    tasks: Mutex<Option<JoinSet<()>>>,
}

impl Swarm {
    /// Listens, joins the others, and connects to them as they are found. `runtime` is a multi-threaded one, best one
    /// of its own: its threads read and write the cache's files.
    ///
    /// # Errors
    /// Where it cannot listen, or security is none on an address that others reach.
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
        let tells_roots = !is_root && settings.node.topology == Topology::Roots;
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
        if tells_roots {
            tasks.spawn_on(telling_roots::keep_telling(Arc::clone(&host), stopping.subscribe()), &runtime);
        }
        let tasks = Mutex::new(Some(tasks));
        let role = settings.role;
        Ok(Arc::new(Self { host, name, role, roles, key, stripe, address, stopping, tasks }))
    }

    /// Where others reach it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes part in a blob as long as what it returns lives, together with the outboard of its hash tree. A blob
    /// without a hash tree never goes through the swarm: all that is wanted of it is elsewhere. Opening one again is
    /// cheap.
    ///
    /// With a `store` this host fetches from there what others ask it to bring, and tree pages that it needs itself.
    ///
    /// # Errors
    /// As [`Cache::blob`].
    pub fn open(self: &Arc<Self>, blob: &BlobSpec, store: Option<Arc<dyn Store>>) -> Result<SharedBlob> {
        self.open_for(None, blob, store)
    }

    /// As [`open`](Self::open), for a disk that reads the blob: by its [reader](Self::new_reader) what is prefetched
    /// of all its blobs is kept within what it reads of it.
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
        let carrier = store.map(|store| Arc::new(Carrier::new(store)));
        let blob = self.host.open(&cached, tree, carrier.as_ref(), reader.is_some());
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

    /// A name for a disk, by which it opens all its blobs.
    #[must_use]
    pub fn new_reader(&self) -> ReaderId {
        self.host.new_reader()
    }

    /// A disk of an image boots on this host, which was not counted before, or was. Nothing where too many do.
    pub(crate) fn boots(&self, image: ImageKey, is_new: bool) -> Option<Boots> {
        Boots::new(&self.host, image, is_new)
    }

    /// What hints were worth, and what they cost.
    #[must_use]
    pub fn hint_counters(&self) -> HintCounters {
        self.host.hints.counters()
    }

    /// What it has counted of images, where it is a tracker.
    #[must_use]
    pub fn counts(&self) -> Option<Vec<CountedImage>> {
        let counting = self.host.hints.counting.as_ref()?;
        Some(counting.all().iter().map(CountedImage::of).collect())
    }

    /// What this host's certificate lets it be; every role where security is none.
    #[must_use]
    pub fn roles(&self) -> Roles {
        self.roles
    }

    /// What it does at present, for people.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.host, &self.name, (self.role, self.roles), self.address)
    }

    /// `true` if this host is connected to any other.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.host.is_connected()
    }

    /// The hosts, by name, that are connected and have taken this one: it is in the swarm where there are any.
    #[must_use]
    pub fn taken_by(&self) -> Vec<String> {
        let links = self.host.links().into_iter().map(|(link, _)| link);
        let taken = links.filter(|link| link.is_taken.load(Ordering::Relaxed));
        let mut names: Vec<_> = taken.map(|link| link.name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Seconds until this host's certificate ends, 0 once it has; nothing where it has none.
    #[must_use]
    pub fn certificate_seconds(&self) -> Option<u64> {
        let identity = self.host.renewals.identity.as_ref()?;
        Some(identity.says().validity.not_after.saturating_sub(unix_now()))
    }

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.host.counts.read()
    }

    /// What the state machine counted.
    #[must_use]
    pub fn node_counters(&self) -> headstart_swarm::Counters {
        self.host.node_counters()
    }

    /// Says goodbye to the others, and ends all connections, within a bounded time.
    pub async fn stop(&self) {
        self.end();
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(tasks) = tasks {
            let all = tasks.join_all();
            // Later they end all the same.
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
    drawn.map_err(|_| Error::new(ErrorKind::Io, "no randomness can be had"))?;
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

/// Addresses that are nobody's (RFC 5737, RFC 3849): what is sent there would go where most goes.
const NOBODY: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// Where others reach who listens there. If that is everywhere: the address that datagrams to the others come from,
/// or to anybody, where the others are on this host or nobody knows them yet.
async fn reachable(listening: SocketAddr, others: &[String]) -> Result<SocketAddr> {
    if !listening.ip().is_unspecified() {
        return Ok(listening);
    }
    let unspecified = SocketAddr::new(listening.ip(), 0);
    let mut on_loopback = None;
    for other in others.iter().map(String::as_str).chain(NOBODY) {
        let Ok(socket) = UdpSocket::bind(unspecified).await else { continue };
        // Nothing is sent by that.
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
        Error::invalid("it is not known where other hosts reach this one")
            .about(listening)
            .remedy("say where, by --advertise")
    })
}

/// One disk's part in one blob. All methods take ranges of the blob in bytes; what is past its end is not there.
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
    /// The blob in the cache.
    #[must_use]
    pub fn blob(&self) -> &Arc<CachedBlob> {
        &self.cached
    }

    /// The outboard of its hash tree, a blob of its own to the swarm.
    #[must_use]
    pub fn tree(&self) -> Option<&SharedBlob> {
        self.tree.as_deref()
    }

    /// Brings `range` from other hosts into the cache. When it returns, all chunks that touch `range` are local and
    /// verified but those it returns: ascending runs of whole chunks, cut at the blob's end, which the disk is to
    /// fetch from the store itself, all of each run, and then to tell by [`became_local`](Self::became_local).
    /// Dropping the future is fine: it is then wanted no longer.
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
        let elsewhere = answer.await.unwrap_or_else(|_| vec![chunks]);
        drop(waiting);
        let elsewhere = host.checked(&shared.blob, chunks, &elsewhere);
        let mut left = 0;
        for range in &elsewhere {
            self.cached.missing(*range, &mut |run| left += run.len());
        }
        host.counts.elsewhere_bytes.fetch_add(left, Ordering::Relaxed);
        host.counts.brought_bytes.fetch_add(missing - left.min(missing), Ordering::Relaxed);
        elsewhere
    }

    /// A disk brought `range` into the cache. What of it is not there in whole chunks is not believed.
    pub fn became_local(&self, range: ByteRange) {
        if let Some(shared) = &self.shared {
            shared.swarm.host.became_local(&shared.blob, range);
        }
    }

    /// A disk read `range`, which was local.
    pub fn read(&self, range: ByteRange) {
        let chunks = Chunks::touched(range.intersect(ByteRange::between(0, self.cached.spec().len)));
        if let Some(shared) = self.shared.as_ref().filter(|_| chunks.count > 0) {
            shared.swarm.host.event(Event::Read { blob: shared.blob.id, chunks });
        }
    }

    /// Whether another host shares it: else nobody brings anything, and nobody waits for what is brought here.
    pub(crate) fn has_company(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.swarm.host.has_company(shared.blob.id))
    }

    /// Changes whenever that may have.
    pub(crate) fn company(&self) -> Option<watch::Receiver<()>> {
        self.shared.as_ref().map(|shared| shared.swarm.host.company.subscribe())
    }

    /// A disk preloads by a plan (or does so no longer): what others advertise is only taken note of meanwhile.
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
        // The outboard goes with its blob.
        if let Some(shared) = self.shared.as_ref().filter(|shared| !shared.blob.is_outboard()) {
            shared.swarm.host.close(shared.blob.id);
        }
    }
}

/// A want that is forgotten when nobody waits any more.
struct Waiting<'a> {
    host: &'a Arc<Host>,
    want: WantId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.host.forget(self.want);
    }
}
