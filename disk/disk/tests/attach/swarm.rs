//! Other hosts beside the store: bytes that they bring are not requested from the store, and no fault of theirs fails a
//! read.

use super::*;
use futures::FutureExt;
use futures::future::BoxFuture;
use headstart_block::ReadAt;
use headstart_cache::CachedBlob;
use headstart_disk::SwarmClient;
use headstart_pull::Plan;
use headstart_store::Urgency;
use std::collections::HashMap;
use std::sync::Mutex;

const CHUNK: u64 = 64 << 10;

/// The answer of the swarm to a request for a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gives {
    Nothing,
    /// Every chunk.
    All,
    /// Every second chunk of data, all of the trees.
    Half,
    /// No answer.
    Silence,
    /// No data, and no answer to requests for trees.
    SilenceOfTrees,
    /// Every chunk that a read waits for, otherwise no answer.
    WhatIsUrgent,
    /// Wrong pages of trees.
    WrongTrees,
}

/// Hosts that have all of an image, in memory.
struct Fake {
    gives: Mutex<Gives>,
    /// The time that an answer takes.
    delay: Mutex<Duration>,
    /// The source of its chunks: the same image's blobs, by digest.
    from: Mutex<HashMap<Digest, Vec<u8>>>,
    blobs: Mutex<HashMap<Digest, Arc<CachedBlob>>>,
    asked: Mutex<Vec<(Digest, ByteRange, Urgency)>>,
    told: Mutex<Vec<(Digest, ByteRange)>>,
    read: Mutex<Vec<(Digest, ByteRange)>>,
    planned: Mutex<Vec<bool>>,
    left: Mutex<usize>,
}

impl Fake {
    fn new(gives: Gives) -> Arc<Self> {
        Arc::new(Self {
            gives: Mutex::new(gives),
            delay: Mutex::default(),
            from: Mutex::default(),
            blobs: Mutex::default(),
            asked: Mutex::default(),
            told: Mutex::default(),
            read: Mutex::default(),
            planned: Mutex::default(),
            left: Mutex::default(),
        })
    }

    /// Gives it all blobs of the rig's store, which is a layout.
    fn knows(&self, rig: &Rig) {
        let blobs = rig.dir.path().join("store/blobs/sha256");
        let mut from = self.from.lock().unwrap();
        for entry in std::fs::read_dir(blobs).unwrap().flatten() {
            let bytes = std::fs::read(entry.path()).unwrap();
            from.insert(Digest::of(&bytes), bytes);
        }
    }

    fn asked_of_the_data(&self) -> Vec<(ByteRange, Urgency)> {
        let data: Vec<_> = self.blobs.lock().unwrap().values().map(|blob| blob.spec().digest).collect();
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(blob, ..)| data.contains(blob)).map(|(_, range, how)| (*range, *how)).collect()
    }

    /// Puts the chunks of a range that it gives into the cache, the pages of the tree first, as an agent does.
    fn give(&self, digest: &Digest, range: ByteRange) {
        let blobs = self.blobs.lock().unwrap();
        let tree = |blob: &Arc<CachedBlob>| blob.tree().filter(|tree| tree.spec().digest == *digest).cloned();
        let (blob, is_tree) = match blobs.get(digest) {
            Some(blob) => (Arc::clone(blob), false),
            None => (blobs.values().find_map(tree).expect("nobody joined with it"), true),
        };
        let (gives, from) = (*self.gives.lock().unwrap(), self.from.lock().unwrap());
        for chunk in range.parts(CHUNK) {
            let given = match gives {
                Gives::Nothing | Gives::Silence | Gives::SilenceOfTrees => false,
                Gives::All | Gives::WhatIsUrgent => true,
                Gives::Half => is_tree || (chunk.offset() / CHUNK).is_multiple_of(2),
                Gives::WrongTrees => is_tree,
            };
            if !given {
                continue;
            }
            let place = chunk.offset() as usize..chunk.end() as usize;
            let mut bytes = from[digest][place].to_vec();
            if gives == Gives::WrongTrees {
                bytes.iter_mut().skip(8).for_each(|byte| *byte ^= 1);
            }
            if let Some(tree) = blob.tree() {
                let all = ByteRange::between(0, tree.len());
                tree.insert(0, &from[&tree.spec().digest][..all.len() as usize]).unwrap();
            }
            blob.insert(chunk.offset(), &bytes).unwrap();
        }
    }
}

impl SwarmClient for Fake {
    fn join(&self, blob: &Arc<CachedBlob>, origin: &str) {
        assert!(origin.starts_with("file:///"), "{origin}");
        self.blobs.lock().unwrap().insert(blob.spec().digest, Arc::clone(blob));
    }

    fn leave(&self, _: &Digest) {
        *self.left.lock().unwrap() += 1;
    }

    fn bring<'a>(&'a self, blob: &'a Digest, range: ByteRange, urgency: Urgency) -> BoxFuture<'a, ()> {
        async move {
            self.asked.lock().unwrap().push((*blob, range, urgency));
            let gives = *self.gives.lock().unwrap();
            let is_tree = !self.blobs.lock().unwrap().contains_key(blob);
            let silent = match gives {
                Gives::Silence => true,
                Gives::SilenceOfTrees => is_tree,
                Gives::WhatIsUrgent => urgency == Urgency::Background && !is_tree,
                Gives::Nothing | Gives::All | Gives::Half | Gives::WrongTrees => false,
            };
            if silent {
                std::future::pending::<()>().await;
            }
            let delay = *self.delay.lock().unwrap();
            tokio::time::sleep(delay).await;
            tokio::task::block_in_place(|| self.give(blob, range));
        }
        .boxed()
    }

    fn longest(&self) -> Duration {
        match *self.gives.lock().unwrap() {
            Gives::Silence => Duration::from_secs(2),
            _ => Duration::from_secs(240),
        }
    }

    fn became_local(&self, blob: &Digest, range: ByteRange) {
        self.told.lock().unwrap().push((*blob, range));
    }

    fn read(&self, blob: &Digest, range: ByteRange) {
        self.read.lock().unwrap().push((*blob, range));
    }

    fn planned(&self, _: &Digest, running: bool) {
        self.planned.lock().unwrap().push(running);
    }
}

fn attached(gives: Gives, options: &DiskOptions) -> (Rig, Arc<Fake>, Arc<Disk>) {
    let (rig, fake) = (Rig::new(), Fake::new(gives));
    fake.knows(&rig);
    let host = DiskHost { swarm: Some(Arc::clone(&fake) as Arc<dyn SwarmClient>), ..rig.host() };
    let disk = rig.try_attach(&host, options).unwrap().disk;
    (rig, fake, disk)
}

fn sequential() -> DiskOptions {
    DiskOptions { plan: Plan::Sequential, ..with_deadline(LIMIT) }
}

/// Checks that whole chunks were requested, except at the end of a blob.
fn check_whole_chunks(fake: &Fake) {
    let blobs = fake.blobs.lock().unwrap();
    for (digest, range, _) in &*fake.asked.lock().unwrap() {
        let tree =
            || blobs.values().find_map(|blob| blob.tree().filter(|t| t.spec().digest == *digest).cloned());
        let len = blobs.get(digest).cloned().or_else(tree).unwrap().len();
        assert!(range.offset() % CHUNK == 0 && (range.end() % CHUNK == 0 || range.end() == len), "{range}");
    }
}

#[test]
fn chunks_of_the_swarm_are_not_requested_from_the_store() {
    for options in [with_deadline(LIMIT), sequential()] {
        let (rig, fake, disk) = attached(Gives::All, &options);
        rig.check(&disk, 0, DISK);
        assert!(rig.store.given.lock().unwrap().is_empty());
        check_whole_chunks(&fake);
        assert!(fake.told.lock().unwrap().is_empty());
        assert!(fake.asked_of_the_data().iter().any(|(_, urgency)| *urgency == Urgency::Demand));
    }
}

#[test]
fn chunks_that_the_swarm_lacks_come_whole_from_the_store() {
    for (gives, options) in [
        (Gives::Nothing, with_deadline(LIMIT)),
        (Gives::Half, with_deadline(LIMIT)),
        (Gives::Half, sequential()),
    ] {
        let (rig, fake, disk) = attached(gives, &options);
        rig.check(&disk, 0, DISK);
        wait_until("all is there", LIMIT, || {
            let blobs = fake.blobs.lock().unwrap();
            blobs.values().all(|blob| blob.is_local(ByteRange::between(0, blob.len())))
        });
        check_whole_chunks(&fake);
        rig.check_given_once();
        // Exactly the bytes that came from the store are reported, as whole chunks.
        let mut told = std::collections::BTreeSet::new();
        for (digest, range) in &*fake.told.lock().unwrap() {
            told.extend(range.parts(CHUNK).map(|chunk| (*digest, chunk.offset() / CHUNK)));
        }
        let given = rig.store.given.lock().unwrap();
        let given: std::collections::BTreeSet<_> =
            given.keys().map(|(digest, unit)| (*digest, unit / 16)).collect();
        assert!(given.is_subset(&told), "{} chunks given, {} told of", given.len(), told.len());
        if gives == Gives::Half {
            assert!(given.iter().all(|(_, chunk)| chunk % 2 == 1), "{given:?}");
        }
    }
}

#[test]
fn a_swarm_that_is_silent_costs_time_and_no_error() {
    let (rig, fake) = (Rig::new(), Fake::new(Gives::All));
    fake.knows(&rig);
    let host = DiskHost { swarm: Some(Arc::clone(&fake) as Arc<dyn SwarmClient>), ..rig.host() };
    let disk = rig.try_attach(&host, &with_deadline(LIMIT)).unwrap().disk;
    *fake.gives.lock().unwrap() = Gives::Silence;
    let started = Instant::now();
    rig.check(&disk, 4 << 20, 4096);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

/// Chunks that no read waits for may queue at other hosts behind all others. As soon as a read waits, they are
/// requested again, with more urgency: a stream's up to the end of the read, those of another fetch as a whole. Here
/// nothing else would help the read: the engine requests nothing twice.
#[test]
fn a_read_promotes_the_fetch_that_brings_its_bytes() {
    let one_slice = Plan::List([headstart_block::PlanItem { block: 0, mask: 0b10 }].into());
    for plan in [one_slice, Plan::Sequential] {
        let pull = headstart_pull::EngineSettings {
            miss_rest: headstart_pull::MissRest::None,
            bypass_late: false,
            ..with_deadline(LIMIT).pull
        };
        let options = DiskOptions { pull, plan, ..DiskOptions::default() };
        let (rig, fake, disk) = attached(Gives::WhatIsUrgent, &options);
        wait_until("it preloads", LIMIT, || {
            fake.asked_of_the_data().iter().any(|(_, urgency)| *urgency == Urgency::Background)
        });
        let given = rig.store.requests.load(Ordering::Relaxed);
        let (before, started) = (fake.asked_of_the_data().len(), Instant::now());
        // The first chunk is local since the disk was opened.
        rig.check(&disk, 80 << 10, 4096);
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
        assert!(disk.puller().unwrap().counters().promoted > 0, "it waited for what was on its way");
        assert_eq!(rig.store.requests.load(Ordering::Relaxed), given);
        // The chunks behind it are as little urgent as before.
        let since = fake.asked_of_the_data().split_off(before);
        let urgent = since.into_iter().filter(|(_, how)| *how == Urgency::Demand).map(|(range, _)| range);
        let urgent: Vec<_> = urgent.collect();
        assert!(!urgent.is_empty() && urgent.iter().all(|range| range.end() <= 1 << 20), "{urgent:?}");
    }
}

/// An agent to which the pages were promised waits as long as the store takes to this host's own disks, which wait for
/// the pages.
#[test]
fn pages_of_a_tree_that_never_come_hold_nothing_up() {
    let started = Instant::now();
    let (rig, _, disk) = attached(Gives::SilenceOfTrees, &with_deadline(LIMIT));
    rig.check(&disk, 0, 4 << 20);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

/// Pages of a hash tree are not verified until data is checked by them. Wrong ones cost another fetch.
#[test]
fn wrong_trees_come_from_the_store_the_next_time() {
    let (rig, fake, disk) = attached(Gives::WrongTrees, &with_deadline(LIMIT));
    rig.check(&disk, 0, DISK);
    let asked = fake.asked.lock().unwrap().len();
    assert!(asked < 100, "it is asked again and again: {asked}");
}

#[test]
fn the_swarm_is_notified_of_reads_plans_and_the_end() {
    let (rig, fake) = (Rig::new(), Fake::new(Gives::All));
    fake.knows(&rig);
    *fake.delay.lock().unwrap() = Duration::from_millis(100);
    let host = DiskHost { swarm: Some(Arc::clone(&fake) as Arc<dyn SwarmClient>), ..rig.host() };
    let disk = rig.try_attach(&host, &sequential()).unwrap().disk;
    rig.check(&disk, 0, 1 << 20);
    wait_until("reads are told of", LIMIT, || {
        let blobs = fake.blobs.lock().unwrap();
        let read: u64 = fake.read.lock().unwrap().iter().map(|(_, range)| range.len()).sum();
        // The disk is half random: of a mebibyte, most is stored.
        blobs.len() == 1 && read >= 512 << 10
    });
    let most: u64 = fake.read.lock().unwrap().iter().map(|(_, range)| range.end()).max().unwrap();
    assert!(most <= 2 << 20, "{most} bytes are not read yet");
    wait_until("the plan is over", LIMIT, || *fake.planned.lock().unwrap() == [true, false]);
    drop(disk);
    wait_until("it has left", LIMIT, || *fake.left.lock().unwrap() == 1);
}
