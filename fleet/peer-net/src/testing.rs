//! Clusters, hosts and blobs for the tests of this crate and of crates that use this one (feature `testing`).
//!
//! Each host has a cache directory of its own; certificates are made for the test. A wait that takes longer than
//! [`LONG`] panics.

#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc, reason = "a part of tests")]

mod sample;

pub use sample::{SampleBlob, sample};

use crate::channel::{self, Wire};
use crate::credentials::{Credentials, InitSettings, init};
use crate::frame::{self, FrameKind, HEADER, Header, Hello, VERSION, push_encoded, push_frame};
use crate::{Security, SharedBlob, Swarm, SwarmSettings, proof};
use headstart_block::{Error, Result};
use headstart_cache::{BlobSpec, Cache, CacheSettings};
use headstart_swarm::{Chunks, Message, NodeSettings, RequestId, Role, Urgency};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The time after which a wait for an expected event fails the test.
pub const LONG: Duration = Duration::from_secs(60);

/// A cluster for tests: a directory with certificates, and a runtime on which its hosts run.
pub struct Cluster {
    /// The temporary directory of the certificates and the hosts' caches.
    pub dir: TempDir,
    /// The runtime on which all hosts of the cluster run.
    pub runtime: tokio::runtime::Runtime,
}

/// A running host of a test cluster.
pub struct TestHost {
    /// The host's membership in the swarm.
    pub swarm: Arc<Swarm>,
    /// The host's cache.
    pub cache: Arc<Cache>,
}

impl Cluster {
    /// Creates a cluster and the certificates of hosts with these names. All hosts may be roots and trackers except
    /// those whose names begin with `plain`; those whose names begin with `operator` may give orders. The first host is
    /// the authority, and may give orders if there is no operator. No host is started.
    pub fn new(names: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        // All hosts may be roots and trackers, and claim the roles of the test, except those whose names begin with
        // `plain`.
        let may = || names.iter().filter(|name| !name.starts_with("plain")).cloned().collect::<Vec<_>>();
        // The hosts whose names begin with `operator` give orders.
        let operators = names.iter().filter(|name| name.starts_with("operator")).cloned().collect();
        let settings = InitSettings {
            hosts: names.clone(),
            roots: may(),
            trackers: may(),
            operators,
            ..InitSettings::default()
        };
        init(&dir.path().join("pki"), &settings).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
        Self { dir, runtime }
    }

    /// Reads the credentials of a host of this cluster.
    pub fn credentials(&self, name: &str) -> Credentials {
        Credentials::load(&self.dir.path().join("pki/hosts").join(name), name).unwrap()
    }

    /// Opens the cache of a host, in a directory of its own.
    pub fn cache(&self, name: &str) -> Arc<Cache> {
        Cache::open(&self.dir.path().join(name), CacheSettings::default()).unwrap()
    }

    /// Starts a host with default settings and the given role. `join` are the addresses of hosts to contact at first.
    pub fn host(&self, name: &str, role: Role, join: &[SocketAddr]) -> TestHost {
        self.host_with(name, role, join, None)
    }

    /// Starts an agent that is also a tracker, which counts what the disks of all hosts read.
    pub fn tracker(&self, name: &str, join: &[SocketAddr]) -> TestHost {
        self.host_with(name, Role::Agent, join, Some(self.dir.path().join("counts")))
    }

    /// Default settings for a host: an agent with TLS, on a free loopback port.
    pub fn settings(&self, name: &str, join: &[SocketAddr]) -> SwarmSettings {
        SwarmSettings {
            security: Security::Tls(self.credentials(name)),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            join: join.iter().map(ToString::to_string).collect(),
            role: Role::Agent,
            node: NodeSettings::default(),
            connections_max: 100,
            trust: None,
            authority: None,
            tracker: None,
        }
    }

    /// Starts a host with the given role. If `tracker` is given, the host is a tracker and saves its counts
    /// in that file.
    pub fn host_with(
        &self,
        name: &str,
        role: Role,
        join: &[SocketAddr],
        tracker: Option<PathBuf>,
    ) -> TestHost {
        self.start(name, SwarmSettings { role, tracker, ..self.settings(name, join) })
    }

    /// Starts a host whose requests time out only after 5 to 20 seconds, for tests on a busy machine.
    pub fn patient_host(&self, name: &str, join: &[SocketAddr]) -> TestHost {
        let timeout_range = (Duration::from_secs(5), Duration::from_secs(20));
        let node = NodeSettings { timeout_range, ..NodeSettings::default() };
        self.start(name, SwarmSettings { node, ..self.settings(name, join) })
    }

    /// Starts a host with these settings.
    pub fn start(&self, name: &str, settings: SwarmSettings) -> TestHost {
        let cache = self.cache(name);
        let handle = self.runtime.handle().clone();
        let swarm = self.runtime.block_on(Swarm::start(settings, Arc::clone(&cache), handle)).unwrap();
        TestHost { swarm, cache }
    }

    /// Calls `is_so` again and again until it returns `true`. Panics with the text `what` after [`LONG`].
    #[track_caller]
    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        #[expect(clippy::disallowed_methods, reason = "a time limit")]
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < LONG, "{what}");
            self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(10)).await });
        }
    }
}

impl TestHost {
    /// Inserts all bytes of a blob and its hash tree into the host's cache.
    pub fn fill(&self, sample: &SampleBlob) {
        let blob = self.cache.blob(&sample.spec).unwrap();
        blob.tree().unwrap().insert(0, &sample.outboard).unwrap();
        for (at, part) in sample.bytes.chunks(1 << 20).enumerate() {
            blob.insert((at as u64) << 20, part).unwrap();
        }
    }

    /// Opens a blob, without a store, for a new disk of the host.
    pub fn attach(&self, sample: &SampleBlob) -> SharedBlob {
        self.swarm.open_for(Some(self.swarm.new_reader()), &sample.spec, None).unwrap()
    }

    /// Returns `true` if the host is connected to exactly `hosts` other hosts.
    pub fn is_connected_to(&self, hosts: usize) -> bool {
        self.swarm.status().peers.len() == hosts
    }

    /// Returns `true` if the host exchanges each of its blobs with exactly `hosts` other hosts; also if it has no blob.
    pub fn shares_with(&self, hosts: usize) -> bool {
        self.swarm.status().blobs.iter().all(|blob| blob.peers == hosts)
    }

    /// Returns `true` if the host has prefetched a chunk from another host, or has only recorded a chunk that another
    /// host advertised.
    pub fn has_heard(&self) -> bool {
        let counters = self.swarm.node_counters();
        counters.withheld + counters.prefetched > 0
    }
}

/// A client that writes and reads single frames, and so can send frames that a real host would not send.
pub struct Rogue {
    pub(crate) stream: channel::Stream,
    pub(crate) binding: proof::Binding,
}

impl Rogue {
    /// Connects to the host with the name and address `to`, with `credentials`.
    ///
    /// # Errors
    /// An error if the connection is refused, or the handshake fails.
    pub fn connect(cluster: &Cluster, credentials: &Credentials, to: (&str, SocketAddr)) -> Result<Self> {
        Self::connect_as(cluster, credentials, to, false)
    }

    /// Does the same as [`connect`](Self::connect), and claims to be a root if `is_root` is `true`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_as(
        cluster: &Cluster,
        credentials: &Credentials,
        to: (&str, SocketAddr),
        is_root: bool,
    ) -> Result<Self> {
        let hello = Hello {
            version: VERSION,
            name: credentials.name().to_owned(),
            is_root,
            is_tracker: false,
            nonce: [0; 32],
        };
        let wire = Wire::tls(credentials)?;
        cluster.runtime.block_on(async {
            let socket = TcpStream::connect(to.1).await.map_err(|e| Error::io("cannot connect", e))?;
            let channel = wire.connect(socket, to.0, &hello).await?;
            Ok(Self { stream: channel.stream, binding: channel.binding })
        })
    }

    /// Sends raw bytes. Returns `false` if the other end has closed the connection or does not read the bytes
    /// within [`LONG`].
    pub fn sends(&mut self, cluster: &Cluster, bytes: &[u8]) -> bool {
        let sending = async { tokio::time::timeout(LONG, self.stream.write_all(bytes)).await };
        matches!(cluster.runtime.block_on(sending), Ok(Ok(())))
    }

    /// Sends raw bytes. An error is ignored, because the next read of the connection fails as well.
    pub fn send(&mut self, cluster: &Cluster, bytes: &[u8]) {
        cluster.runtime.block_on(async {
            // The connection may have been closed: the next read shows that.
            let _ = self.stream.write_all(bytes).await;
            let _ = self.stream.flush().await;
        });
    }

    /// Sends the proof that this client may read `blob`, made of the root hash `root`, and gives the blob the
    /// number `number` on this connection.
    pub fn prove(&mut self, cluster: &Cluster, number: u32, blob: &BlobSpec, root: &[u8; 32]) {
        let proof = proof::proof(root, &self.binding, proof::Side::Dialer, &blob.digest);
        let mut frame = Vec::new();
        push_frame(&mut frame, FrameKind::Proof, number, 0, proof.as_bytes());
        self.send(cluster, &frame);
    }

    /// Sends a message in a frame.
    pub fn say(&mut self, cluster: &Cluster, message: &Message) {
        let mut frame = Vec::new();
        push_encoded(&mut frame, FrameKind::Message, message).unwrap();
        self.send(cluster, &frame);
    }

    /// Waits for the next frame that is not a ping, and returns its header and body. `None` if the connection
    /// is closed, or if the frame is a [`FrameKind::Bye`]. Panics after [`LONG`], or if the header is malformed.
    pub fn next(&mut self, cluster: &Cluster) -> Option<(Header, Vec<u8>)> {
        cluster.runtime.block_on(async {
            tokio::time::timeout(LONG, async {
                loop {
                    let mut header = [0; HEADER];
                    self.stream.read_exact(&mut header).await.ok()?;
                    let header = Header::decode(&header).unwrap();
                    let mut body = vec![0; header.len];
                    self.stream.read_exact(&mut body).await.ok()?;
                    match header.kind {
                        FrameKind::Ping => {}
                        FrameKind::Bye => return None,
                        _ => return Some((header, body)),
                    }
                }
            })
            .await
            .unwrap()
        })
    }

    /// Waits for the next message, and skips other frames. `None` as in [`next`](Self::next). Panics as `next` does,
    /// and if bytes of a requested chunk come before a message.
    pub fn next_message(&mut self, cluster: &Cluster) -> Option<Message> {
        loop {
            let (header, body) = self.next(cluster)?;
            if header.kind == FrameKind::Message {
                return Some(frame::decode_message(&body).unwrap());
            }
            assert_ne!(header.kind, FrameKind::Chunk, "bytes of a blob");
        }
    }
}

/// An urgent request for one chunk: `request` is the number of the request and `blob` that of the blob on the
/// connection, `chunk` is the chunk's number in the blob, from 0.
pub fn ask(request: u32, blob: u32, chunk: u32) -> Message {
    Message::Ask {
        request: RequestId(request),
        blob: headstart_swarm::BlobId(blob),
        chunks: Chunks::one(chunk),
        urgency: Urgency::Demand,
        hops: 0,
        no_redirect: false,
    }
}
