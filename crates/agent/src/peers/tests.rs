//! Several swarms over loopback: what gets through, and what must not.
//!
//! Each host has a cache directory of its own; certificates are made for the test. Waits are bounded, and no test
//! depends on how long something takes.

use super::channel::Wire;
use super::frame::{HEADER, Header, Hello, Kind, VERSION, push_encoded, push_frame};
use super::*;
use crate::credentials::{Credentials, init};
use headstart_block::{Digest, ErrorKind, ReadAt};
use headstart_cache::CacheSettings;
use headstart_image::hash_tree::TreeBuilder;
use headstart_image::manifest::Tree;
use headstart_swarm::{CHUNK_SIZE, Message, RequestId};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LONG: Duration = Duration::from_secs(20);

/// A blob with a tree of several chunks.
struct Sample {
    bytes: Vec<u8>,
    outboard: Vec<u8>,
    spec: BlobSpec,
}

fn sample(len: usize, seed: u64) -> Sample {
    let mut state = 0x9E37_79B9_7F4A_7C15u64 ^ seed;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    let mut builder = TreeBuilder::new(&std::env::temp_dir());
    builder.update(&bytes).unwrap();
    let mut outboard = Vec::new();
    let root = builder.finish(&mut outboard).unwrap();
    let tree = Tree { root, digest: Digest::of(&outboard), size: outboard.len() as u64 };
    let spec = BlobSpec { digest: Digest::of(&bytes), len: len as u64, tree: Some(tree), origin: None };
    Sample { bytes, outboard, spec }
}

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
        init(&dir.path().join("pki"), &names).unwrap();
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
        let cache = self.cache(name);
        let settings = SwarmSettings {
            security: Security::Tls(self.credentials(name)),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            join: join.iter().map(ToString::to_string).collect(),
            role,
            node: Settings::default(),
            connections_max: 100,
        };
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
    /// Has all of a blob.
    fn fill(&self, sample: &Sample) {
        let blob = self.cache.blob(&sample.spec).unwrap();
        blob.tree().unwrap().insert(0, &sample.outboard).unwrap();
        for (at, part) in sample.bytes.chunks(1 << 20).enumerate() {
            blob.insert((at as u64) << 20, part).unwrap();
        }
    }

    fn is_connected_to(&self, hosts: usize) -> bool {
        self.swarm.status().peers.len() == hosts
    }

    fn shares_with(&self, hosts: usize) -> bool {
        self.swarm.status().blobs.iter().all(|blob| blob.peers == hosts)
    }

    /// Whether it has heard what others have.
    fn has_heard(&self) -> bool {
        let counters = self.swarm.node_counters();
        counters.withheld + counters.prefetched > 0
    }
}

/// Wants `range`, all of which has to come from others.
#[track_caller]
fn bring(cluster: &Cluster, shared: &SharedBlob, range: ByteRange) {
    let swarm = &shared.shared.as_ref().unwrap().swarm;
    // No more at once than a host queues for another.
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
    // The tree has three chunks, the last chunk of the blob is short.
    let sample = sample((40 << 20) + 12345, 1);
    let a = cluster.host("a", Role::Agent, &[]);
    a.fill(&sample);
    let at_a = a.swarm.open(&sample.spec, None).unwrap();
    let b = cluster.host("b", Role::Agent, &[a.swarm.address()]);
    let at_b = b.swarm.open(&sample.spec, None).unwrap();
    cluster.wait_until("they share the blob", || b.shares_with(1) && b.is_connected_to(1) && b.has_heard());
    let all = ByteRange::between(0, sample.spec.len);
    let some = ByteRange::between(5 << 20, (5 << 20) + 1);
    bring(&cluster, &at_b, some);
    assert_same(at_b.blob(), &sample, ByteRange::between(5 << 20, (5 << 20) + CHUNK_SIZE));
    bring(&cluster, &at_b, all);
    assert_same(at_b.blob(), &sample, all);
    // And on, from somebody who has it only by that.
    drop(at_a);
    cluster.runtime.block_on(a.swarm.stop());
    let c = cluster.host("c", Role::Agent, &[b.swarm.address()]);
    let at_c = c.swarm.open(&sample.spec, None).unwrap();
    cluster.wait_until("they share the blob", || c.shares_with(1) && c.has_heard());
    bring(&cluster, &at_c, all);
    assert_same(at_c.blob(), &sample, all);
    let counters = c.swarm.counters();
    assert!(counters.received_bytes >= sample.spec.len, "{counters:?}");
    assert_eq!((counters.dropped_corrupt, counters.dropped_other), (0, 0), "{counters:?}");
}
