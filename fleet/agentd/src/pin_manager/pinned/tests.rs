//! The parts of a host that dies, and of one that comes late: real swarms over loopback, whose store is away all the
//! time.

use super::*;
use crate::pin_manager::CommandLoop;
use crate::pins::tests::pin;
use crate::stores::Stores;
use headstart_cache::{Cache, CacheSettings};
use headstart_image::manifest::{Config, ImageLayer, NewImage};
use headstart_peer_net::testing::{SampleBlob, sample};
use headstart_peer_net::{Security, Swarm, SwarmSettings};
use headstart_swarm::{CHUNK_SIZE, Role};
use headstart_testkit::wait::wait_until;
use std::net::SocketAddr;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const LONG: Duration = Duration::from_secs(60);

struct Member {
    pin_manager: Arc<PinManager>,
    swarm: Arc<Swarm>,
    cache: Arc<Cache>,
    _command_loop: CommandLoop,
}

fn member(runtime: &Runtime, dir: &TempDir, name: &str, join: Option<SocketAddr>) -> Member {
    let cache = Cache::open(&dir.path().join(format!("{name}-cache")), CacheSettings::default()).unwrap();
    let settings = SwarmSettings {
        security: Security::PlainOnLoopback { name: name.to_owned() },
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        advertise: None,
        join: join.iter().map(ToString::to_string).collect(),
        role: Role::Agent,
        // The hosts wait for each other even if the machine is busy for a while.
        node: headstart_swarm::NodeSettings {
            timeout_range: (Duration::from_secs(1), Duration::from_secs(5)),
            ..headstart_swarm::NodeSettings::default()
        },
        connections_max: 100,
        trust: None,
        authority: None,
        tracker: None,
    };
    let swarm = Swarm::start(settings, Arc::clone(&cache), runtime.handle().clone());
    let swarm = runtime.block_on(swarm).unwrap();
    let own = dir.path().join(name);
    std::fs::create_dir_all(&own).unwrap();
    let stores = Arc::new(Stores::new(headstart_store::StoreSettings::default(), Vec::new()));
    let pin_manager = PinManager::new(Arc::clone(&swarm), stores, &own, cache.dir());
    let _entered = runtime.enter();
    let command_loop = pin_manager.follow_commands();
    Member { pin_manager, swarm, cache, _command_loop: command_loop }
}

impl Member {
    fn knows(&self, hosts: usize) -> bool {
        self.swarm.connected_hosts().len() == hosts
    }

    /// Runs the periodic check; returns the bytes that it keeps then, and those that are missing.
    fn looks(&self, runtime: &Runtime) -> (u64, u64) {
        let pin_manager = Arc::clone(&self.pin_manager);
        let looking = runtime.spawn(async move {
            pin_manager.look_who_is_away();
            let held = pin_manager.keep_up().await;
            PinManager::bring_held(&held).await
        });
        let CommandOutcome { bytes, lacking, .. } = runtime.block_on(looking).unwrap();
        (bytes, lacking)
    }

    /// Lets ten minutes go by.
    fn waits(&self) {
        self.pin_manager.keeping.away().values_mut().for_each(|until| *until = Instant::now());
    }
}

/// An image of one layer. Its store's address has no listener.
fn image_of(sample: &SampleBlob) -> Pin {
    let layers = vec![ImageLayer::new(sample.spec.digest, sample.spec.len, sample.spec.tree.unwrap())];
    let (options, config) = (String::new(), Config::default());
    let image = NewImage {
        layers,
        virtual_size: 1 << 30,
        options,
        config,
        optimized_from: None,
        converted_from: None,
        belongs_to: None,
    };
    let manifest = image.documents().unwrap().manifest;
    Pin {
        image: "http://127.0.0.1:9/images:v1".to_owned(),
        digest: Digest::of(&manifest).to_string(),
        manifest: String::from_utf8(manifest).unwrap(),
        store: "http://127.0.0.1:9/images".to_owned(),
        copies: 1,
        ..Pin::default()
    }
}

#[test]
fn others_take_the_part_of_a_host_that_is_gone_until_it_is_back() {
    let dir = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let a = member(&runtime, &dir, "a", None);
    let join = Some(a.swarm.address());
    let (b, c) = (member(&runtime, &dir, "b", join), member(&runtime, &dir, "c", join));
    wait_until("connected", LONG, || [&a, &b, &c].iter().all(|host| host.knows(2)));
    // One of the hosts has all of it.
    let sample = sample(usize::try_from(CHUNK_SIZE).unwrap() * 50 + 7, 5);
    let blob = a.cache.blob(&sample.spec).unwrap();
    blob.tree().unwrap().insert(0, &sample.outboard).unwrap();
    blob.insert(0, &sample.bytes).unwrap();
    let (pin_manager, pin) = (Arc::clone(&a.pin_manager), image_of(&sample));
    let pinned =
        runtime.block_on(runtime.spawn(async move { pin_manager.pin(&pin).await })).unwrap().unwrap();
    assert!(pinned.len() == 3 && pinned.iter().all(|host| host.lacking_bytes == 0), "{pinned:?}");
    let all = sample.spec.len + sample.outboard.len() as u64;
    assert_eq!(pinned.iter().map(|host| host.bytes).sum::<u64>(), all, "{pinned:?}");
    let parts = [a.looks(&runtime).0, c.looks(&runtime).0];

    // A host that is away may be back soon.
    runtime.block_on(b.swarm.stop());
    drop(b);
    wait_until("left alone", LONG, || a.knows(1) && c.knows(1));
    assert_eq!([a.looks(&runtime), c.looks(&runtime)], parts.map(|part| (part, 0)));
    // After ten minutes another host keeps its part, and gets it from any host that has it.
    a.waits();
    c.waits();
    let taken = [a.looks(&runtime), c.looks(&runtime)];
    assert_eq!(taken.map(|(_, lacking)| lacking), [0, 0]);
    assert_eq!(taken.iter().map(|(bytes, _)| bytes).sum::<u64>(), all);
    assert!(taken[1].0 > parts[1], "{taken:?} {parts:?}");
    let own = c.cache.blob(&sample.spec).unwrap();
    let mut missing = 0;
    own.missing(ByteRange::between(0, sample.spec.len), &mut |run| missing += run.len());
    assert!(sample.spec.len - missing >= taken[1].0 - sample.outboard.len() as u64, "{missing} {taken:?}");

    // The host comes back with its part, and the others let go.
    let b = member(&runtime, &dir, "b", join);
    wait_until("back", LONG, || a.knows(2) && b.knows(2) && c.knows(2));
    assert_eq!([a.looks(&runtime).0, c.looks(&runtime).0], parts);
    assert_eq!(b.looks(&runtime), (all - parts[0] - parts[1], 0));
}

/// An image with a manifest that fills a frame, kept by a host that is away.
fn long_pin(layer: u8) -> Pin {
    let mut pin = pin(layer, &["away"], 1, 10);
    pin.manifest.push_str(&" ".repeat(60_000));
    Pin { digest: Digest::of(pin.manifest.as_bytes()).to_string(), ..pin }
}

/// The pins are more than may wait for a host that does not read: it receives them one part after the other.
#[test]
fn a_host_that_joins_late_receives_all_pins() {
    let dir = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let a = member(&runtime, &dir, "a", None);
    for layer in 0..20 {
        assert!(a.pin_manager.adopt(&long_pin(layer)).unwrap());
    }
    // The hosts have other messages for each other meanwhile, too.
    let sample = sample(1 << 20, 1);
    let at_a = a.swarm.open(&sample.spec, None).unwrap();
    at_a.tree().unwrap().blob().insert(0, &sample.outboard).unwrap();
    at_a.blob().insert(0, &sample.bytes).unwrap();
    at_a.became_local(ByteRange::between(0, sample.spec.len));
    let b = member(&runtime, &dir, "b", Some(a.swarm.address()));
    let _at_b = b.swarm.open(&sample.spec, None).unwrap();
    wait_until("told of all", LONG, || b.pin_manager.keeping.pins().kept().count() == 20);
    assert_eq!(a.swarm.counters().dropped_other + b.swarm.counters().dropped_other, 0);
    assert_eq!(a.swarm.counters().connections, 1);
}
