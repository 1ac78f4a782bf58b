//! The time in which one host gets a blob from another over loopback, and its cost: `cargo run --release -p
//! headstart-peer-net --example exchange [MIB [AT_ONCE]]`.
//!
//! Two whole swarms in one process, over mutual TLS: bytes are read from one cache directory, encrypted, sent,
//! decrypted, checked against the hash tree and written to the other. The CPU time is that of both ends.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement, run by hand")]
#![allow(clippy::disallowed_methods, reason = "it looks at the clock")]

use futures::StreamExt;
use headstart_block::ByteRange;
use headstart_cache::{BlobSpec, Cache, CacheSettings};
use headstart_peer_net::credentials::{Credentials, InitSettings, init};
use headstart_peer_net::{Security, Swarm, SwarmSettings};
use headstart_swarm::{NodeSettings, Role, Urgency};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of bytes that are requested at a time.
const STEP: u64 = 512 << 10;

/// Seconds of CPU time that this process has used: in user mode and in the kernel.
fn processor_seconds() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let seconds = |at: usize| fields[at].parse::<f64>().unwrap() / 100.0;
    (seconds(11), seconds(12))
}

async fn start(dir: &Path, name: &str, join: Vec<String>) -> (Arc<Swarm>, Arc<Cache>) {
    let cache = Cache::open(&dir.join(name), CacheSettings::default()).unwrap();
    let settings = SwarmSettings {
        security: Security::Tls(Credentials::load(&dir.join("pki/hosts").join(name), name).unwrap()),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        advertise: None,
        join,
        role: Role::Agent,
        node: NodeSettings { serve_window: 64 << 20, ..NodeSettings::default() },
        connections_max: 10,
        trust: None,
        authority: None,
        tracker: None,
    };
    let runtime = tokio::runtime::Handle::current();
    (Swarm::start(settings, Arc::clone(&cache), runtime).await.unwrap(), cache)
}

#[tokio::main]
async fn main() {
    let argument = |at| std::env::args().nth(at).and_then(|text| text.parse::<usize>().ok());
    let len = argument(1).unwrap_or(1024) << 20;
    let at_once = argument(2).unwrap_or(16);
    let dir = tempfile::tempdir().unwrap();
    let hosts = vec!["a".to_owned(), "b".to_owned()];
    init(&dir.path().join("pki"), &InitSettings { hosts, ..InitSettings::default() }).unwrap();
    let mut bytes = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    let (spec, outboard) = BlobSpec::of(&bytes).unwrap();

    let (a, cache) = start(dir.path(), "a", Vec::new()).await;
    let blob = cache.blob(&spec).unwrap();
    blob.tree().unwrap().insert(0, &outboard).unwrap();
    for (at, part) in bytes.chunks(4 << 20).enumerate() {
        blob.insert((at as u64) << 22, part).unwrap();
    }
    drop(bytes);
    let _at_a = a.open(&spec, None).unwrap();
    let (b, _) = start(dir.path(), "b", vec![a.address().to_string()]).await;
    let at_b = b.open(&spec, None).unwrap();
    while b.node_counters().withheld == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let (user, system) = processor_seconds();
    let since = Instant::now();
    let wants = ByteRange::between(0, spec.len).parts(STEP).map(|part| at_b.want(part, Urgency::Demand));
    let left: u64 = futures::stream::iter(wants)
        .buffer_unordered(at_once)
        .map(|from_store| from_store.iter().map(|range| range.len()).sum::<u64>())
        .fold(0, |sum, left| std::future::ready(sum + left))
        .await;
    let seconds = since.elapsed().as_secs_f64();
    let (user, system) = (processor_seconds().0 - user, processor_seconds().1 - system);
    let gigabytes = (spec.len - left) as f64 / 1e9;
    println!("{:.0} MB/s, {left} bytes left to the store", gigabytes * 1000.0 / seconds);
    println!(
        "processors, both ends: {:.2} s/GB ({:.2} user, {:.2} system)",
        (user + system) / gigabytes,
        user / gigabytes,
        system / gigabytes
    );
    println!("{:?}\n{:?}", b.counters(), b.node_counters());
}
