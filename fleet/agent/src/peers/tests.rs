//! Several swarms over loopback: the frames that get through, and those that must not.
//!
//! Each host has a cache directory of its own; certificates are made for the test. Waits are bounded, and no test
//! depends on the duration of an operation.

use super::channel::Wire;
use super::frame::{HEADER, Header, Hello, Kind, VERSION, push_encoded, push_frame};
use super::*;
use crate::credentials::{Credentials, InitSettings, init};
use crate::sample::{Sample, sample};
use headstart_block::{ErrorKind, ReadAt};
use headstart_cache::CacheSettings;
use headstart_swarm::{CHUNK_SIZE, Message, RequestId};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

mod earlier;
pub(super) mod gossip;
mod hints;
mod orders;
mod renewing;
mod rogues;
mod roles;
mod trust;

const LONG: Duration = Duration::from_secs(60);

/// A cluster's certificates, and hosts.
struct Cluster {
    dir: TempDir,
    runtime: tokio::runtime::Runtime,
}

struct TestHost {
    swarm: Arc<Swarm>,
    cache: Arc<Cache>,
}

impl Cluster {
    fn new(names: &[&str]) -> Self {
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

    fn credentials(&self, name: &str) -> Credentials {
        Credentials::load(&self.dir.path().join("pki/hosts").join(name), name).unwrap()
    }

    fn cache(&self, name: &str) -> Arc<Cache> {
        Cache::open(&self.dir.path().join(name), CacheSettings::default()).unwrap()
    }

    fn host(&self, name: &str, role: Role, join: &[SocketAddr]) -> TestHost {
        self.host_with(name, role, join, None)
    }

    fn tracker(&self, name: &str, join: &[SocketAddr]) -> TestHost {
        self.host_with(name, Role::Agent, join, Some(self.dir.path().join("counts")))
    }

    fn settings(&self, name: &str, join: &[SocketAddr]) -> SwarmSettings {
        SwarmSettings {
            security: Security::Tls(self.credentials(name)),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            join: join.iter().map(ToString::to_string).collect(),
            role: Role::Agent,
            node: Settings::default(),
            connections_max: 100,
            trust: None,
            authority: None,
            tracker: None,
        }
    }

    fn host_with(&self, name: &str, role: Role, join: &[SocketAddr], tracker: Option<PathBuf>) -> TestHost {
        self.start(name, SwarmSettings { role, tracker, ..self.settings(name, join) })
    }

    /// A host that waits for others even if the machine is busy for seconds.
    fn patient_host(&self, name: &str, join: &[SocketAddr]) -> TestHost {
        let patience = (Duration::from_secs(5), Duration::from_secs(20));
        let node = Settings { patience, ..Settings::default() };
        self.start(name, SwarmSettings { node, ..self.settings(name, join) })
    }

    fn start(&self, name: &str, settings: SwarmSettings) -> TestHost {
        let cache = self.cache(name);
        let handle = self.runtime.handle().clone();
        let swarm = self.runtime.block_on(Swarm::start(settings, Arc::clone(&cache), handle)).unwrap();
        TestHost { swarm, cache }
    }

    #[track_caller]
    fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        #[expect(clippy::disallowed_methods, reason = "a time limit")]
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < LONG, "{what}");
            self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(10)).await });
        }
    }
}

impl TestHost {
    /// Puts all of a blob into the host's cache.
    fn fill(&self, sample: &Sample) {
        let blob = self.cache.blob(&sample.spec).unwrap();
        blob.tree().unwrap().insert(0, &sample.outboard).unwrap();
        for (at, part) in sample.bytes.chunks(1 << 20).enumerate() {
            blob.insert((at as u64) << 20, part).unwrap();
        }
    }

    /// Opens a blob for a disk of the host.
    fn attach(&self, sample: &Sample) -> SharedBlob {
        self.swarm.open_for(Some(self.swarm.new_reader()), &sample.spec, None).unwrap()
    }

    fn is_connected_to(&self, hosts: usize) -> bool {
        self.swarm.status().peers.len() == hosts
    }

    fn shares_with(&self, hosts: usize) -> bool {
        self.swarm.status().blobs.iter().all(|blob| blob.peers == hosts)
    }

    /// `true` if it has received adverts of others.
    fn has_heard(&self) -> bool {
        let counters = self.swarm.node_counters();
        counters.withheld + counters.prefetched > 0
    }
}

/// Wants `range`, all of which has to come from other hosts.
#[track_caller]
fn bring(cluster: &Cluster, shared: &SharedBlob, range: ByteRange) {
    let swarm = &shared.shared.as_ref().unwrap().swarm;
    // The parts are no larger than the queue of a host for another.
    for part in range.parts(4 << 20) {
        let want = async { tokio::time::timeout(LONG, shared.want(part, Urgency::Demand)).await };
        let elsewhere = cluster.runtime.block_on(want).unwrap();
        assert!(elsewhere.is_empty(), "{elsewhere:?} {:?} {:?}", swarm.counters(), swarm.node_counters());
    }
}

#[track_caller]
fn assert_same(blob: &CachedBlob, sample: &Sample, range: ByteRange) {
    let mut read = vec![0; usize::try_from(range.len()).unwrap()];
    blob.read_at(&mut read, range.offset()).unwrap();
    let start = usize::try_from(range.offset()).unwrap();
    assert!(read == sample.bytes[start..start + read.len()]);
}

#[test]
fn a_blob_goes_from_host_to_host() {
    let cluster = Cluster::new(&["a", "b", "c"]);
    // The tree has three chunks, and the last chunk of the blob is short.
    let sample = sample((40 << 20) + 12345, 1);
    let a = cluster.host("a", Role::Agent, &[]);
    a.fill(&sample);
    let at_a = a.attach(&sample);
    let b = cluster.patient_host("b", &[a.swarm.address()]);
    let at_b = b.attach(&sample);
    cluster.wait_until("they share the blob", || b.shares_with(1) && b.is_connected_to(1) && b.has_heard());
    let all = ByteRange::between(0, sample.spec.len);
    let some = ByteRange::between(5 << 20, (5 << 20) + 1);
    bring(&cluster, &at_b, some);
    assert_same(at_b.blob(), &sample, ByteRange::between(5 << 20, (5 << 20) + CHUNK_SIZE));
    bring(&cluster, &at_b, all);
    assert_same(at_b.blob(), &sample, all);
    // The blob goes on from a host that has it only from the first one.
    drop(at_a);
    cluster.runtime.block_on(a.swarm.stop());
    let c = cluster.patient_host("c", &[b.swarm.address()]);
    let at_c = c.attach(&sample);
    cluster.wait_until("they share the blob", || c.shares_with(1) && c.has_heard());
    bring(&cluster, &at_c, all);
    assert_same(at_c.blob(), &sample, all);
    let counters = c.swarm.counters();
    assert!(counters.received_bytes >= sample.spec.len, "{counters:?}");
    assert_eq!((counters.dropped_corrupt, counters.dropped_other), (0, 0), "{counters:?}");
}

/// One end of a connection that sends frames that no real host would.
struct Rogue {
    stream: channel::Stream,
    binding: proof::Binding,
}

impl Rogue {
    /// Connects to `to` as the host whose credentials it has.
    fn connect(cluster: &Cluster, credentials: &Credentials, to: (&str, SocketAddr)) -> Result<Self> {
        Self::connect_as(cluster, credentials, to, false)
    }

    fn connect_as(
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

    fn send(&mut self, cluster: &Cluster, bytes: &[u8]) {
        cluster.runtime.block_on(async {
            // The connection may have been closed: the next read shows that.
            let _ = self.stream.write_all(bytes).await;
            let _ = self.stream.flush().await;
        });
    }

    fn prove(&mut self, cluster: &Cluster, number: u32, blob: &BlobSpec, root: &[u8; 32]) {
        let proof = proof::proof(root, &self.binding, proof::Side::Dialer, &blob.digest);
        let mut frame = Vec::new();
        push_frame(&mut frame, Kind::Proof, number, 0, proof.as_bytes());
        self.send(cluster, &frame);
    }

    fn say(&mut self, cluster: &Cluster, message: &Message) {
        let mut frame = Vec::new();
        push_encoded(&mut frame, Kind::Message, message).unwrap();
        self.send(cluster, &frame);
    }

    /// The next frame that is no ping; `None` if the connection is closed.
    fn next(&mut self, cluster: &Cluster) -> Option<(Header, Vec<u8>)> {
        cluster.runtime.block_on(async {
            tokio::time::timeout(LONG, async {
                loop {
                    let mut header = [0; HEADER];
                    self.stream.read_exact(&mut header).await.ok()?;
                    let header = Header::decode(&header).unwrap();
                    let mut body = vec![0; header.len];
                    self.stream.read_exact(&mut body).await.ok()?;
                    match header.kind {
                        Kind::Ping => {}
                        Kind::Bye => return None,
                        _ => return Some((header, body)),
                    }
                }
            })
            .await
            .unwrap()
        })
    }

    fn next_message(&mut self, cluster: &Cluster) -> Option<Message> {
        loop {
            let (header, body) = self.next(cluster)?;
            if header.kind == Kind::Message {
                return Some(frame::decode_message(&body).unwrap());
            }
            assert_ne!(header.kind, Kind::Chunk, "bytes of a blob");
        }
    }
}

fn ask(request: u32, blob: u32, chunk: u32) -> Message {
    Message::Ask {
        request: RequestId(request),
        blob: headstart_swarm::BlobId(blob),
        chunks: Chunks::one(chunk),
        urgency: Urgency::Demand,
        hops: 0,
        insist: false,
    }
}

#[test]
fn a_stranger_gets_nothing() {
    let cluster = Cluster::new(&["a"]);
    let strangers = Cluster::new(&["b"]);
    let a = cluster.host("a", Role::Agent, &[]);
    // A certificate of another authority.
    let refused = Rogue::connect(&cluster, &strangers.credentials("b"), ("a", a.swarm.address()));
    assert!(refused.is_err());
    // No certificate, and no TLS.
    let nothing = cluster.runtime.block_on(async {
        let mut socket = TcpStream::connect(a.swarm.address()).await.unwrap();
        let mut frame = Vec::new();
        let hello =
            Hello { version: VERSION, name: "b".into(), is_root: false, is_tracker: false, nonce: [0; 32] };
        push_encoded(&mut frame, Kind::Hello, &hello).unwrap();
        socket.write_all(&frame).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(LONG, socket.read_to_end(&mut answer)).await.unwrap();
        read.is_err() || answer.len() < HEADER || answer[0] != 1
    });
    assert!(nothing, "a plain hello was answered");
    cluster.wait_until("both are counted", || a.swarm.counters().refused_connections >= 2);
    assert!(a.is_connected_to(0));
    // A host that gossips with another key is not connected: hosts that know no others see none.
    let b = strangers.host("b", Role::Agent, &[a.swarm.address()]);
    cluster.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1500)).await });
    assert!(a.is_connected_to(0) && b.is_connected_to(0));
}

#[test]
fn nobody_is_who_his_certificate_does_not_name() {
    let cluster = Cluster::new(&["a", "b", "c"]);
    let a = cluster.host("a", Role::Agent, &[]);
    let mut false_name = cluster.credentials("b");
    false_name.name = "c".into();
    // The other end notices and hangs up, before or after this end is done.
    if let Ok(mut rogue) = Rogue::connect(&cluster, &false_name, ("a", a.swarm.address())) {
        assert!(rogue.next(&cluster).is_none());
    }
    cluster.wait_until("it is counted", || a.swarm.counters().refused_connections >= 1);
    assert!(a.is_connected_to(0));
    // A host with another name than the expected one does not get through.
    let refused = Rogue::connect(&cluster, &cluster.credentials("b"), ("c", a.swarm.address()));
    assert!(refused.is_err());
}

#[test]
fn who_cannot_prove_that_he_may_read_a_blob_gets_nothing_of_it() {
    let cluster = Cluster::new(&["a", "b"]);
    let sample = sample(300_000, 2);
    let a = cluster.host("a", Role::Agent, &[]);
    a.fill(&sample);
    let _at_a = a.attach(&sample);
    let root = *sample.spec.tree.unwrap().root.as_bytes();
    let mut rogue = Rogue::connect(&cluster, &cluster.credentials("b"), ("a", a.swarm.address())).unwrap();
    // Without a proof.
    rogue.say(&cluster, &ask(1, 7, 0));
    let refused = |request| Message::Sorry {
        request: RequestId(request),
        chunks: Chunks::one(0),
        why: headstart_swarm::Why::Missing,
        others: Vec::new(),
    };
    assert_eq!(rogue.next_message(&cluster), Some(refused(1)));
    // With the proof for another root, another direction, another connection.
    rogue.prove(&cluster, 7, &sample.spec, &[7; 32]);
    rogue.say(&cluster, &ask(2, 7, 0));
    assert_eq!(rogue.next_message(&cluster), Some(refused(2)));
    let reflected = proof::proof(&root, &rogue.binding, proof::Side::Acceptor, &sample.spec.digest);
    let replayed = proof::proof(&root, &[9; 32], proof::Side::Dialer, &sample.spec.digest);
    for (number, proof) in [(8, reflected), (9, replayed)] {
        let mut frame = Vec::new();
        push_frame(&mut frame, Kind::Proof, number, 0, proof.as_bytes());
        rogue.send(&cluster, &frame);
        rogue.say(&cluster, &ask(number, number, 0));
        assert_eq!(rogue.next_message(&cluster), Some(refused(number)));
    }
    assert!(a.shares_with(0));
    assert_eq!(a.swarm.counters().sent_bytes, 0);
    // With the right proof the rogue gets the chunk: the refusals above had no other cause.
    rogue.prove(&cluster, 10, &sample.spec, &root);
    rogue.say(&cluster, &ask(10, 10, 1));
    let came = loop {
        let (header, body) = rogue.next(&cluster).unwrap();
        if header.kind == Kind::Chunk {
            break (header, body);
        }
    };
    assert_eq!((came.0.a, came.0.b), (10, 1));
    assert!(came.1 == sample.bytes[65536..131072]);
}

#[test]
fn who_corrupts_is_dropped_and_left_alone() {
    let cluster = Cluster::new(&["a", "b"]);
    let sample = sample(1 << 20, 3);
    let a = cluster.host("a", Role::Agent, &[]);
    let at_a = a.attach(&sample);
    at_a.tree().unwrap().blob().insert(0, &sample.outboard).unwrap();
    let root = *sample.spec.tree.unwrap().root.as_bytes();
    let b = cluster.credentials("b");
    let mut rogue = Rogue::connect(&cluster, &b, ("a", a.swarm.address())).unwrap();
    rogue.prove(&cluster, 1, &sample.spec, &root);
    let all = Chunks { first: 0, count: 16 };
    rogue.say(&cluster, &Message::Have { blob: headstart_swarm::BlobId(1), runs: vec![all] });
    // It asks for advertised chunks, and gets other bytes.
    let asked = loop {
        if let Message::Ask { request, chunks, .. } = rogue.next_message(&cluster).expect("it asks") {
            break (request, chunks);
        }
    };
    let mut frame = Vec::new();
    push_frame(&mut frame, Kind::Chunk, asked.0.0, asked.1.first, &vec![0x55; 65536]);
    rogue.send(&cluster, &frame);
    cluster.wait_until("it is dropped", || a.swarm.counters().dropped_corrupt == 1 && a.is_connected_to(0));
    assert_eq!(at_a.blob().local_bytes(), 0);
    // The rogue may come back, but is not let in.
    if let Ok(mut again) = Rogue::connect(&cluster, &b, ("a", a.swarm.address())) {
        while let Some((header, _)) = again.next(&cluster) {
            assert_eq!(header.kind, Kind::Refused);
        }
    }
    assert!(a.is_connected_to(0));
}

#[test]
fn a_wrong_chunk_of_a_tree_is_found() {
    let cluster = Cluster::new(&["a", "b"]);
    let sample = sample(40 << 20, 4);
    let a = cluster.host("a", Role::Agent, &[]);
    let at_a = a.attach(&sample);
    let tree = at_a.shared.as_ref().unwrap().blob.tree.clone().unwrap();
    let from = headstart_swarm::PeerId(1);
    let chunk = |at: usize| &sample.outboard[at << 16..sample.outboard.len().min((at + 1) << 16)];
    // Later chunks cannot be checked before the first is there; then they are, and their senders are known.
    let mut wrong = chunk(1).to_vec();
    wrong[5000] ^= 1;
    let kept = |kept: Result<blob::Kept>| match kept {
        Ok(blob::Kept::Whole(late)) => Ok((late.liars, late.right)),
        Ok(blob::Kept::TreeMissing) => unreachable!("it has no tree"),
        Err(error) => Err(error.kind()),
    };
    let other = headstart_swarm::PeerId(2);
    assert_eq!(kept(tree.keep(1, &wrong, from)), Ok((vec![], vec![])));
    assert_eq!(kept(tree.keep(2, chunk(2), other)), Ok((vec![], vec![])));
    // Until then they are not passed on.
    assert!(tree.is_unchecked(1) && tree.is_unchecked(2));
    let (liars, mut right) = kept(tree.keep(0, chunk(0), other)).unwrap();
    assert_eq!(liars, [from]);
    // The wrong chunk is gone, and now a wrong one is found at once.
    assert!(!tree.cached.is_local(tree.bytes_of(1)));
    assert_eq!(kept(tree.keep(1, &wrong, from)), Err(ErrorKind::Corrupt));
    let (liars, later) = kept(tree.keep(1, chunk(1), from)).unwrap();
    assert_eq!(liars, []);
    right.extend(later);
    assert_eq!(right, [2]);
    assert!((0..3).all(|chunk| !tree.is_unchecked(chunk)));
    let mut bytes = vec![0; sample.outboard.len()];
    tree.cached.read_at(&mut bytes, 0).unwrap();
    assert!(bytes == sample.outboard);
}

/// The refusal is no lie, although the host had announced that it has the chunk.
#[test]
fn what_cannot_be_checked_yet_is_not_passed_on() {
    let cluster = Cluster::new(&["a", "b"]);
    let sample = sample(40 << 20, 6);
    let a = cluster.host("a", Role::Agent, &[]);
    let at_a = a.attach(&sample);
    let outboard = at_a.tree().unwrap();
    let tree = Arc::clone(&outboard.shared.as_ref().unwrap().blob);
    let chunk = |at: usize| &sample.outboard[at << 16..(at + 1) << 16];
    let keep = |at: u32| match tree.keep(at, chunk(at as usize), headstart_swarm::PeerId(9)).unwrap() {
        blob::Kept::Whole(late) => late,
        blob::Kept::TreeMissing => unreachable!("it has no tree"),
    };
    keep(1);
    outboard.became_local(tree.bytes_of(1));
    let known = sample.spec.tree.unwrap();
    let mut other = Rogue::connect(&cluster, &cluster.credentials("b"), ("a", a.swarm.address())).unwrap();
    let spec = BlobSpec { digest: known.digest, ..sample.spec.clone() };
    other.prove(&cluster, 1, &spec, known.root.as_bytes());
    other.say(&cluster, &ask(5, 1, 1));
    let why = loop {
        if let Message::Sorry { why, .. } = other.next_message(&cluster).expect("it answers") {
            break why;
        }
    };
    assert_eq!(why, headstart_swarm::Why::Unchecked);
    // The chunk is passed on as soon as it can be checked.
    let late = keep(0);
    assert_eq!(late.right, [1]);
    a.swarm.host.checked_late(&tree, &late);
    other.say(&cluster, &ask(6, 1, 1));
    let came = loop {
        let (header, body) = other.next(&cluster).unwrap();
        if header.kind == Kind::Chunk {
            break body;
        }
    };
    assert!(came == chunk(1));
}

#[test]
fn nonsense_ends_the_connection() {
    let cluster = Cluster::new(&["a", "b", "c", "d", "e", "f"]);
    let sample = sample(300_000, 5);
    let a = cluster.host("a", Role::Agent, &[]);
    let _at_a = a.attach(&sample);
    let root = *sample.spec.tree.unwrap().root.as_bytes();
    let header = |kind: u8, len: u32| {
        let mut bytes = [0; HEADER];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes.to_vec()
    };
    let mut beyond = Vec::new();
    push_encoded(&mut beyond, Kind::Message, &ask(1, 1, 5)).unwrap();
    let garbage = [header(2, 5), vec![0xff; 5]].concat();
    let nonsense = [
        ("b", header(99, 0)),
        ("c", header(2, u32::MAX)),
        ("d", garbage),
        ("e", beyond),
        ("f", header(1, 0)),
    ];
    for (dropped, (name, bytes)) in nonsense.into_iter().enumerate() {
        let credentials = cluster.credentials(name);
        let mut rogue = Rogue::connect(&cluster, &credentials, ("a", a.swarm.address())).unwrap();
        rogue.prove(&cluster, 1, &sample.spec, &root);
        rogue.send(&cluster, &bytes);
        while rogue.next(&cluster).is_some() {}
        let expected = dropped as u64 + 1;
        cluster.wait_until("it is dropped", || a.swarm.counters().dropped_other == expected);
    }
    cluster.wait_until("none is left", || a.is_connected_to(0));
}

/// Sockets without a certificate, many more than are let in at a time, keep no host of the cluster out.
#[test]
fn strangers_do_not_keep_hosts_out() {
    let cluster = Cluster::new(&["a", "b"]);
    let a = cluster.host("a", Role::Agent, &[]);
    let credentials = cluster.credentials("b");
    let mut sockets = std::collections::VecDeque::new();
    for _ in 0..20 {
        // The sockets come again as fast as they are thrown out.
        for _ in 0..70 {
            sockets.push_back(std::net::TcpStream::connect(a.swarm.address()).unwrap());
        }
        while sockets.len() > 200 {
            sockets.pop_front();
        }
        let mut rogue = None;
        cluster.wait_until("it is let in", || {
            rogue = Rogue::connect(&cluster, &credentials, ("a", a.swarm.address())).ok();
            rogue.is_some()
        });
        drop(rogue);
    }
    assert!(a.swarm.counters().refused_connections > 0);
}

/// Sockets that are opened again as soon as they are closed, at the address of an honest host, do not keep it out.
#[test]
fn strangers_at_its_own_address_do_not_keep_a_host_out() {
    let cluster = Cluster::new(&["a", "b"]);
    let a = cluster.host("a", Role::Agent, &[]);
    let (credentials, address) = (cluster.credentials("b"), a.swarm.address());
    for _ in 0..70 {
        cluster.runtime.spawn(async move {
            loop {
                let Ok(mut socket) = TcpStream::connect(address).await else { continue };
                // The socket sends nothing, and waits until it is closed.
                let _ = socket.read(&mut [0]).await;
            }
        });
    }
    cluster.runtime.block_on(async { tokio::time::sleep(Duration::from_secs(1)).await });
    for attempt in 0..10 {
        // A host on a busy machine sometimes loses its place, and comes again.
        let is_let_in = (0..20).any(|_| Rogue::connect(&cluster, &credentials, ("a", address)).is_ok());
        assert!(is_let_in, "it is kept out at attempt {attempt}");
    }
}
