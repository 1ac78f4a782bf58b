//! Both ends, over a real socket.

use super::wire::{DirectoryId, FromAgent, FromDisk, VERSION, receive, send};
use super::*;
use crate::stores::Stores;
use headstart_block::{ByteRange, Digest, PlanItem};
use headstart_cache::{BlobSpec, Cache, CacheSettings, CachedBlob};
use headstart_disk::SwarmClient as _;
use headstart_disk::swarm::AgentConnection;
use headstart_hash_tree::{TreeRoot, outboard_len};
use headstart_image::manifest::Tree;
use headstart_peer_net::testing::sample;
use headstart_peer_net::{Security, Swarm, SwarmSettings};
use headstart_store::{StoreSettings, Urgency};
use headstart_swarm::tracker::{ImageKey, SliceAccess};
use headstart_testkit::wait::wait_until_async;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

/// A limit that nothing here exceeds on any machine.
const LIMIT: Duration = Duration::from_secs(60);

const LEN: u64 = 1 << 20;

struct Rig {
    dir: TempDir,
    cache: Arc<Cache>,
    blob: Arc<CachedBlob>,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(&dir.path().join("cache"), CacheSettings::default()).unwrap();
        let tree =
            Tree { root: TreeRoot::of(b"root"), digest: Digest::of(b"outboard"), size: outboard_len(LEN) };
        let spec = BlobSpec { digest: Digest::of(b"blob"), len: LEN, tree: Some(tree), origin: None };
        let blob = cache.blob(&spec).unwrap();
        Self { dir, cache, blob }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("swarm.sock")
    }

    async fn agent(&self) -> (Arc<Swarm>, LocalServer) {
        let settings = settings("a", Vec::new(), Some(self.dir.path().join("counts")));
        let swarm = Swarm::start(settings, Arc::clone(&self.cache), Handle::current()).await.unwrap();
        let dir = self.dir.path().join("cache");
        let server = LocalServer::start(
            &self.socket(),
            Arc::clone(&swarm),
            &dir,
            Arc::new(Stores::new(StoreSettings::default(), Vec::new())),
        )
        .unwrap();
        (swarm, server)
    }

    async fn disk(&self) -> Arc<AgentSwarm> {
        AgentSwarm::start(&self.socket(), &self.cache, &Handle::current()).await.unwrap()
    }
}

fn settings(name: &str, join: Vec<String>, tracker: Option<PathBuf>) -> SwarmSettings {
    SwarmSettings {
        security: Security::PlainOnLoopback { name: name.to_owned() },
        listen: ([127, 0, 0, 1], 0).into(),
        advertise: None,
        join,
        role: headstart_swarm::Role::Agent,
        node: headstart_swarm::NodeSettings::default(),
        connections_max: 4,
        trust: None,
        authority: None,
        tracker,
    }
}

async fn bring(disk: &AgentSwarm, digest: &Digest) {
    let range = ByteRange::between(0, 128 << 10);
    timeout(LIMIT, disk.bring(digest, range, Urgency::Demand)).await.expect("it hangs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_want_is_over_when_the_agent_says_so_and_when_it_is_away() {
    let rig = Rig::new();
    let disk = rig.disk().await;
    let digest = rig.blob.spec().digest;
    disk.join(&rig.blob, "http://127.0.0.1:9/store");
    bring(&disk, &digest).await;
    assert_eq!(disk.connection(), AgentConnection { connected: false, lost: 0, wants: 1, unanswered: 1 });
    for times in 1..=2 {
        let (swarm, server) = rig.agent().await;
        wait_until_async("the agent is found", LIMIT, || disk.connection().connected).await;
        // The disk sends its state again; a disk is one of the blob's users.
        wait_until_async("the blob is known", LIMIT, || !swarm.status().blobs.is_empty()).await;
        bring(&disk, &digest).await;
        bring(&disk, &Digest::of(b"outboard")).await;
        assert_eq!(disk.connection().unanswered, times);
        drop(server);
        wait_until_async("the agent is missed", LIMIT, || !disk.connection().connected).await;
        assert_eq!(disk.connection().lost, times);
        bring(&disk, &digest).await;
        assert_eq!(disk.connection().unanswered, times + 1);
        swarm.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_that_no_disk_has_is_left() {
    let rig = Rig::new();
    let (swarm, _server) = rig.agent().await;
    let disk = rig.disk().await;
    let digest = rig.blob.spec().digest;
    disk.join(&rig.blob, "http://127.0.0.1:9/store");
    disk.join(&rig.blob, "http://127.0.0.1:9/store");
    // A blob without users is kept for a while; the test counts the users.
    let users = || swarm.status().blobs.iter().map(|blob| blob.users).max();
    wait_until_async("the blob is known", LIMIT, || users() == Some(1)).await;
    disk.planned(&digest, true);
    disk.read(&digest, ByteRange::between(0, 64 << 10));
    disk.became_local(&digest, ByteRange::between(0, 64 << 10));
    disk.leave(&digest);
    bring(&disk, &digest).await;
    assert_eq!((disk.connection().unanswered, users()), (0, Some(1)));
    disk.leave(&digest);
    wait_until_async("the blob is left", LIMIT, || users() == Some(0)).await;
    bring(&disk, &digest).await;
    assert_eq!(disk.connection().unanswered, 1, "nobody is asked for what nobody has");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_with_another_cache_is_refused() {
    let rig = Rig::new();
    let (_swarm, _server) = rig.agent().await;
    let mut stream = UnixStream::connect(rig.socket()).await.unwrap();
    let cache = DirectoryId::of(rig.dir.path()).unwrap();
    send(&mut stream, &FromDisk::Hello { version: VERSION, cache }).await.unwrap();
    let answer = receive::<FromAgent>(&mut stream).await.unwrap();
    assert!(matches!(answer, Some(FromAgent::Refused { why }) if why.contains("--cache")));
    // Other versions and noise are refused, too.
    let cache = DirectoryId::of(&rig.dir.path().join("cache")).unwrap();
    for word in [FromDisk::Hello { version: VERSION + 1, cache }, FromDisk::Ping] {
        let mut stream = UnixStream::connect(rig.socket()).await.unwrap();
        send(&mut stream, &word).await.unwrap();
        let answer = receive::<FromAgent>(&mut stream).await.unwrap();
        assert!(matches!(answer, Some(FromAgent::Refused { .. })), "{answer:?}");
    }
    let mut stream = UnixStream::connect(rig.socket()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &[0xff; 64]).await.unwrap();
    assert!(matches!(receive::<FromAgent>(&mut stream).await, Ok(None) | Err(_)));
    assert!(rig.disk().await.connection().connected);
}

/// An agent that was stopped, or hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_agent_counts_as_away() {
    let rig = Rig::new();
    let listener = UnixListener::bind(rig.socket()).unwrap();
    let silent = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let hello = receive::<FromDisk>(&mut stream).await.unwrap();
        assert!(matches!(hello, Some(FromDisk::Hello { .. })));
        send(&mut stream, &FromAgent::Welcome).await.unwrap();
        // The next disks do not even get a welcome.
        std::future::pending::<()>().await;
        drop((stream, listener));
    });
    let disk = rig.disk().await;
    disk.join(&rig.blob, "http://127.0.0.1:9/store");
    wait_until_async("it is welcomed", LIMIT, || disk.connection().connected).await;
    let started = Instant::now();
    bring(&disk, &rig.blob.spec().digest).await;
    assert!(started.elapsed() > Duration::from_secs(2), "it had no time to answer");
    assert_eq!(disk.connection(), AgentConnection { connected: false, lost: 1, wants: 1, unanswered: 1 });
    // It is known to be away: nothing is waited for.
    let at_once = tokio::select! {
        biased;
        () = bring(&disk, &rig.blob.spec().digest) => true,
        () = std::future::ready(()) => false,
    };
    assert!(at_once, "it is known to be away");
    silent.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_one_disk_become_hints_for_another_at_each_agent() {
    let rig = Rig::new();
    let image = ImageKey(5);
    let (disk, other) = (rig.disk().await, rig.disk().await);
    let (mut first, mut second) = (disk.boot(image).unwrap(), other.boot(image).unwrap());
    // There is no agent yet: the reads are reported later.
    first.read(&[SliceAccess { slice: 33, at_ms: 4 }, SliceAccess { slice: 1, at_ms: 9 }]);
    let item = |block, mask| PlanItem { block, mask };
    for life in 0..2 {
        let (swarm, server) = rig.agent().await;
        let mut told = None;
        wait_until_async("the other disk is told", LIMIT, || {
            let _ = first.hinted();
            told = second.hinted().or(told.take());
            told.is_some()
        })
        .await;
        // The next agent has the reads of the first life from its tracker's file.
        let told = told.unwrap();
        assert_eq!(told.items, [item(1, 2), item(0, 2)]);
        assert!((1..=2).contains(&told.disks), "{told:?}");
        assert_eq!(swarm.hint_counters().reads, if life == 0 { 2 } else { 0 });
        drop(server);
        wait_until_async("the agent is missed", LIMIT, || {
            !disk.connection().connected && !other.connection().connected
        })
        .await;
        swarm.stop().await;
    }
}

/// No host can send a blob that no other host has, and no host waits for the parts that a disk fetches of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_asks_for_a_blob_only_while_another_host_has_it() {
    let rig = Rig::new();
    let sample = sample(2 << 20, 1);
    let (swarm, _server) = rig.agent().await;
    let (disk, blob) = (rig.disk().await, rig.cache.blob(&sample.spec).unwrap());
    disk.join(&blob, "http://127.0.0.1:9/store");
    let asks = async |wanted: bool| {
        let started = Instant::now();
        loop {
            let before = disk.connection().wants;
            bring(&disk, &sample.spec.digest).await;
            if (disk.connection().wants > before) == wanted {
                return;
            }
            assert!(started.elapsed() < LIMIT, "it still asks, or does not: {wanted}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    asks(false).await;
    // The parts that it fetches are reported anyway.
    blob.tree().unwrap().insert(0, &sample.outboard).unwrap();
    for chunk in [0_u64, 1, 5] {
        let at = chunk * (64 << 10);
        let place = usize::try_from(at).unwrap();
        blob.insert(at, &sample.bytes[place..place + (64 << 10)]).unwrap();
        disk.became_local(&sample.spec.digest, ByteRange::between(at, at + (64 << 10)));
    }
    wait_until_async("the agent is told", LIMIT, || swarm.node_counters().from_store == 3).await;
    assert_eq!(disk.connection().unanswered, 0);
    // Another host comes, and goes.
    let there = tempfile::tempdir().unwrap();
    let cache = Cache::open(there.path(), CacheSettings::default()).unwrap();
    let settings = settings("b", vec![swarm.address().to_string()], None);
    let other = Swarm::start(settings, cache, Handle::current()).await.unwrap();
    let theirs = other.open(&sample.spec, None).unwrap();
    asks(true).await;
    drop(theirs);
    other.stop().await;
    asks(false).await;
    swarm.stop().await;
}
