//! Disks whose image is in a store that is slow, away or wrong, over the real cache and pull engine.

#![allow(clippy::cast_possible_truncation, clippy::expect_used, clippy::unwrap_used, reason = "tests")]

#[path = "../../../../core/image/tests/support/golden_turbo.rs"]
mod golden_turbo;
mod grants;
mod one_directory;
mod streams;
mod swarm;
mod treeless;
mod trying_store;
mod turbo;

use headstart_block::{BlockDevice, ByteRange, Digest, ErrorKind};
use headstart_cache::{Cache, CacheSettings};
use headstart_disk::attach::attach_remote;
use headstart_disk::{AttachedDisk, Disk, DiskHost, DiskOptions, WritableOptions};
use headstart_image::disk_file::DiskFile;
use headstart_image::import::import_disk;
use headstart_image::new_layer::Packing;
use headstart_image::progress::Silent;
use headstart_lsmt::{LayerMeta, LayerWriter};
use headstart_store::{Reference, RetrySettings, StoreSettings};
use headstart_testkit::wait::wait_until;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use trying_store::TryingStore;

const DISK: usize = 8 << 20;

/// The limit of every wait: a test that hangs fails. Reads give up at their deadline, which is as long.
const LIMIT: Duration = Duration::from_secs(60);

/// An image in a directory, a store over it, a cache, and threads to fetch.
struct Rig {
    dir: TempDir,
    content: Vec<u8>,
    reference: Reference,
    store: Arc<TryingStore>,
    runtime: Runtime,
}

impl Rig {
    fn new() -> Self {
        Self::with_content(7)
    }

    fn with_content(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut random = seed;
        let content: Vec<u8> = (0..DISK)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Half random: it compresses a little.
                ((random >> 33) as u8) & 0x7f
            })
            .collect();
        let raw = dir.path().join("disk.raw");
        std::fs::write(&raw, &content).unwrap();
        let reference: Reference = format!("file://{}/store:v1", dir.path().display()).parse().unwrap();
        let disk = DiskFile { path: raw, format: None, allowed_dirs: Vec::new() };
        import_disk(&disk, None, &reference, &Packing::default(), &Silent).unwrap();
        let inner = headstart_store::open(&reference.location, &StoreSettings::default()).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { dir, content, reference, store: TryingStore::over(inner), runtime }
    }

    fn cache_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("cache")
    }

    fn host(&self) -> DiskHost {
        let cache = Cache::open(&self.cache_dir(), CacheSettings::default()).unwrap();
        let retry = RetrySettings { deadline: Duration::from_secs(2), ..RetrySettings::default() };
        DiskHost { runtime: self.runtime.handle().clone(), cache, retry, swarm: None, warn_of_silence: None }
    }

    fn try_attach(&self, host: &DiskHost, options: &DiskOptions) -> headstart_block::Result<AttachedDisk> {
        let store = Arc::clone(&self.store) as Arc<dyn headstart_store::Store>;
        self.within_limit(attach_remote(host, store, &self.reference, options))
    }

    fn within_limit<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(LIMIT, work).await.expect("it hangs") })
    }

    fn attach(&self, host: &DiskHost) -> Arc<Disk> {
        self.try_attach(host, &with_deadline(LIMIT)).unwrap().disk
    }

    fn check(&self, disk: &Disk, offset: usize, len: usize) {
        let mut buf = vec![0; len];
        disk.read_at(&mut buf, offset as u64).unwrap();
        assert!(buf == self.content[offset..offset + len], "wrong bytes at {offset}");
    }

    /// Reads all disks at the same time.
    fn check_all_at_once(&self, disks: &[Arc<Disk>]) {
        std::thread::scope(|scope| {
            for disk in disks {
                scope.spawn(|| (0..DISK / 262_144).for_each(|n| self.check(disk, n * 262_144, 262_144)));
            }
        });
    }

    fn check_given_once(&self) {
        let given = self.store.given.lock().unwrap();
        let twice = given.values().filter(|times| **times > 1).count();
        assert_eq!(twice, 0, "of {} units", given.len());
    }

    fn set_failing(&self, kind: Option<ErrorKind>) {
        *self.store.failing.lock().unwrap() = kind;
    }
}

fn with_deadline(deadline: Duration) -> DiskOptions {
    let pull = headstart_pull::EngineSettings { deadline, ..headstart_pull::EngineSettings::default() };
    DiskOptions { pull, ..DiskOptions::default() }
}

fn read_error(disk: &Disk, offset: u64) -> headstart_block::Error {
    disk.read_at(&mut [0; 4096], offset).unwrap_err()
}

#[test]
fn reads_of_any_size_and_place_are_right() {
    let rig = Rig::new();
    let disk = rig.attach(&rig.host());
    for (offset, len) in
        [(0, 512), (4096, 4096), (5_000_000, 300_000), (DISK - 512, 512), (1 << 20, 1), (0, DISK)]
    {
        rig.check(&disk, offset, len);
    }
    assert_eq!(disk.read_at(&mut [0; 2], DISK as u64 - 1).unwrap_err().kind(), ErrorKind::Invalid);
    let mut buf = vec![0; DISK];
    disk.read_local_at(&mut buf, 0).unwrap();
    assert!(buf == rig.content);
}

#[test]
fn a_local_read_does_not_wait_and_says_what_is_absent() {
    let rig = Rig::new();
    let disk = rig.attach(&rig.host());
    assert_eq!(disk.read_local_at(&mut [0; 4096], 4 << 20).unwrap_err().kind(), ErrorKind::Absent);
    rig.check(&disk, 4 << 20, 4096);
    disk.read_local_at(&mut [0; 4096], 4 << 20).unwrap();
    assert_eq!(disk.stats().misses.snapshot().count(), 1);
    assert_eq!(disk.stats().hits.snapshot().count(), 1);
}

#[test]
fn attaching_takes_three_steps_after_one_another() {
    let delay = Duration::from_secs(2);
    let mut took = Duration::MAX;
    // A machine that stands still makes it longer, and nothing makes it shorter.
    for _ in 0..5 {
        let rig = Rig::new();
        let host = rig.host();
        *rig.store.delay.lock().unwrap() = delay;
        let started = Instant::now();
        let disk = rig.attach(&host);
        // The manifest, then heads and ends with their pages of the hash tree. The time of a third step is a margin for
        // a busy machine.
        took = started.elapsed();
        *rig.store.delay.lock().unwrap() = Duration::ZERO;
        rig.check(&disk, 0, 4096);
        if took < delay * 3 {
            return;
        }
    }
    assert!(took < delay * 3, "{took:?}");
}

/// An image as another tool would make it: no hash tree, no note of the start of the index, and a long index.
#[test]
fn an_index_longer_than_guessed_takes_a_step_more() {
    let rig = Rig::new();
    let meta = LayerMeta { virtual_size: DISK as u64, ..LayerMeta::default() };
    let mut writer = LayerWriter::new(Vec::new(), meta).unwrap();
    for sector in (0..DISK as u64 / 512).step_by(2) {
        writer.data(sector * 512, &[(sector % 250) as u8 + 1; 512]).unwrap();
    }
    let (blob, _) = writer.finish().unwrap();
    let (digest, size) = (Digest::of(&blob), blob.len());
    let inner = headstart_store::open(&rig.reference.location, &StoreSettings::default()).unwrap();
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
        "config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{digest}","size":{size}}},
        "layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"{digest}","size":{size},
        "annotations":{{"containerd.io/snapshot/overlaybd/version":"0.1.0",
        "containerd.io/snapshot/overlaybd/blob-digest":"{digest}",
        "containerd.io/snapshot/overlaybd/blob-size":"{size}"}}}}]}}"#
    );
    let named = rig.runtime.block_on(async {
        inner.put_blob(&digest, Arc::new(blob), &|_| Ok(())).await.unwrap();
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        inner.put_manifest(media_type, manifest.into(), Some(&"foreign".parse().unwrap())).await.unwrap()
    });
    let reference: Reference = format!("file://{}/store:foreign", rig.dir.path().display()).parse().unwrap();
    let store = Arc::clone(&rig.store) as Arc<dyn headstart_store::Store>;
    let (host, options) = (rig.host(), with_deadline(LIMIT));
    let attached = rig.within_limit(attach_remote(&host, store, &reference, &options)).unwrap();
    assert_eq!(attached.digest, named);
    let mut buf = [0; 1536];
    attached.disk.read_at(&mut buf, 4 << 20).unwrap();
    let sector = (8192 % 250) as u8 + 1;
    assert!(buf[..512] == [sector; 512] && buf[512..1024] == [0; 512] && buf[1024..] == [sector + 2; 512]);
}

#[test]
fn many_disks_of_one_image_fetch_each_byte_once() {
    let rig = Rig::new();
    let host = rig.host();
    *rig.store.delay.lock().unwrap() = Duration::from_millis(5);
    let disks: Vec<_> = (0..32).map(|_| rig.attach(&host)).collect();
    rig.check_all_at_once(&disks);
    rig.check_given_once();
}

#[test]
fn two_caches_on_one_directory_fetch_each_byte_once() {
    let rig = Rig::new();
    let disks = [rig.attach(&rig.host()), rig.attach(&rig.host())];
    *rig.store.delay.lock().unwrap() = Duration::from_millis(5);
    rig.check_all_at_once(&disks);
    rig.check_given_once();
}

/// A link so slow that one answer takes longer than the time that a stopped neighbour is given.
#[test]
fn a_slow_store_is_not_asked_twice() {
    let rig = Rig::new();
    let pull = headstart_pull::EngineSettings {
        miss_rest: headstart_pull::MissRest::None,
        deadline: LIMIT,
        ..Default::default()
    };
    let options = DiskOptions { pull, ..DiskOptions::default() };
    let disks = [(); 2].map(|()| rig.try_attach(&rig.host(), &options).unwrap().disk);
    *rig.store.delay.lock().unwrap() = Duration::from_millis(3400);
    for [a, b] in [[1 << 20, 3 << 20], [5 << 20, 5 << 20]] {
        std::thread::scope(|scope| {
            for (disk, offset) in disks.iter().zip([a, b]) {
                let rig = &rig;
                scope.spawn(move || rig.check(disk, offset, 4096));
            }
        });
    }
    rig.check_given_once();
}

#[test]
fn reads_wait_for_a_store_that_is_away_and_go_on_when_it_is_back() {
    let rig = Rig::new();
    let disk = rig.attach(&rig.host());
    rig.set_failing(Some(ErrorKind::Unavailable));
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| rig.check(&disk, 5 << 20, 65_536));
        // The thread may run late.
        wait_until("the read waits", LIMIT, || disk.stats().waiting.load(Ordering::Relaxed) == 1);
        let before = rig.store.requests.load(Ordering::Relaxed);
        wait_until("it is tried again", LIMIT, || rig.store.requests.load(Ordering::Relaxed) > before + 2);
        assert!(!reading.is_finished() && disk.stats().waiting.load(Ordering::Relaxed) == 1);
        rig.set_failing(None);
        reading.join().unwrap();
    });
    assert_eq!(disk.stats().errors.load(Ordering::Relaxed), 0);
}

#[test]
fn past_its_deadline_a_read_fails_and_the_next_one_may_succeed() {
    let rig = Rig::new();
    let disk = rig.try_attach(&rig.host(), &with_deadline(Duration::from_secs(2))).unwrap().disk;
    for hang in [false, true] {
        rig.set_failing((!hang).then_some(ErrorKind::Unavailable));
        rig.store.hanging.store(hang, Ordering::Relaxed);
        let started = Instant::now();
        let error = read_error(&disk, 6 << 20);
        assert!(started.elapsed() >= Duration::from_millis(1900), "{error}");
        assert!(started.elapsed() < Duration::from_secs(40), "{error}");
    }
    rig.set_failing(None);
    rig.store.hanging.store(false, Ordering::Relaxed);
    rig.check(&disk, 6 << 20, 4096);
}

#[test]
fn wrong_bytes_are_fetched_again_and_never_served() {
    let rig = Rig::new();
    let disk = rig.attach(&rig.host());
    rig.store.corrupt.store(1, Ordering::Relaxed);
    rig.check(&disk, 3 << 20, 65_536);
    rig.store.corrupt.store(u64::MAX, Ordering::Relaxed);
    let error = read_error(&disk, 7 << 20);
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let blob = disk.puller().unwrap().blobs().data()[0].spec().digest;
    assert!(error.to_string().contains(&blob.to_string()), "{error}");
    rig.store.corrupt.store(0, Ordering::Relaxed);
    rig.check(&disk, 7 << 20, 4096);
}

#[test]
fn a_store_that_is_away_stops_only_what_is_not_cached() {
    let rig = Rig::new();
    let disk = rig.attach(&rig.host());
    rig.check(&disk, 0, 4096);
    drop(disk);
    for kind in [ErrorKind::Denied, ErrorKind::Unavailable] {
        rig.set_failing(Some(kind));
        let refused = rig.try_attach(&rig.host(), &DiskOptions::default()).err().unwrap();
        assert_eq!(refused.kind(), kind, "{refused}");
    }
    rig.set_failing(None);
    rig.check(&rig.attach(&rig.host()), 0, DISK);
    let although_denied = DiskOptions { cached_although_denied: true, ..DiskOptions::default() };
    rig.set_failing(Some(ErrorKind::Denied));
    let refused = rig.try_attach(&rig.host(), &DiskOptions::default()).err().unwrap();
    assert!(refused.kind() == ErrorKind::Denied && refused.to_string().contains("--cached-although-denied"));
    for (kind, options) in
        [(ErrorKind::Denied, although_denied), (ErrorKind::Unavailable, DiskOptions::default())]
    {
        rig.set_failing(Some(kind));
        let attached = rig.try_attach(&rig.host(), &options).unwrap();
        assert_eq!(attached.warnings.len(), 1);
        rig.check(&attached.disk, 0, DISK);
    }
}

#[test]
fn a_store_that_is_slow_is_waited_for_where_it_is_needed() {
    let rig = Rig::new();
    rig.check(&rig.attach(&rig.host()), 0, 4096);
    // Longer than the wait of an image that is whole in the cache.
    *rig.store.delay.lock().unwrap() = Duration::from_millis(5500);
    let attached = rig.try_attach(&rig.host(), &DiskOptions::default()).unwrap();
    assert_eq!(attached.warnings, Vec::<String>::new());
}

/// A full disk under the cache, a large read, and less memory than that read needs.
#[test]
fn a_read_larger_than_what_the_cache_can_hold_is_served() {
    let rig = Rig::new();
    let settings = CacheSettings { size_limit: Some(0), overlay_limit: 1 << 20, ..CacheSettings::default() };
    let cache = Cache::open(&rig.cache_dir(), settings).unwrap();
    let disk = rig.attach(&DiskHost { cache, ..rig.host() });
    rig.check(&disk, 0, 4 << 20);
    assert_eq!(disk.stats().errors.load(Ordering::Relaxed), 0);
}

/// Bytes that no read waits for have no place to stay, and would push out those that reads wait for.
#[test]
fn a_cache_that_takes_nothing_is_not_preloaded() {
    let rig = Rig::new();
    let settings = CacheSettings { size_limit: Some(0), ..CacheSettings::default() };
    let host = DiskHost { cache: Cache::open(&rig.cache_dir(), settings).unwrap(), ..rig.host() };
    let options = DiskOptions { plan: headstart_pull::Plan::Sequential, ..DiskOptions::default() };
    let disk = rig.try_attach(&host, &options).unwrap().disk;
    rig.check(&disk, 4 << 20, 4096);
    std::thread::sleep(Duration::from_millis(700));
    let given = rig.store.given.lock().unwrap().len();
    assert!(given * 4096 < DISK / 2, "{given} pages");
}

#[test]
fn a_stuck_disk_harms_no_other() {
    let (rig, other) = (Rig::new(), Rig::with_content(8));
    let host = rig.host();
    let disk = rig.attach(&host);
    let store = Arc::clone(&other.store) as Arc<dyn headstart_store::Store>;
    let options = with_deadline(LIMIT);
    let healthy = rig.within_limit(attach_remote(&host, store, &other.reference, &options)).unwrap().disk;
    rig.store.hanging.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let disk = &disk;
        let stuck: Vec<_> =
            (0..40).map(|n| scope.spawn(move || disk.read_at(&mut [0; 4096], n * 200_704))).collect();
        std::thread::sleep(Duration::from_millis(100));
        let started = Instant::now();
        other.check(&healthy, 0, DISK);
        // The stuck reads wait for a minute.
        assert!(started.elapsed() < LIMIT / 2);
        disk.close();
        for read in stuck {
            let _ = read.join().unwrap();
        }
    });
}

#[test]
fn a_writable_disk_keeps_what_was_flushed() {
    let rig = Rig::new();
    let dir = rig.dir.path().join("writable");
    let options = DiskOptions {
        writable: Some(WritableOptions {
            dir: dir.clone(),
            size: Some(DISK as u64 + (1 << 20)),
            ..WritableOptions::default()
        }),
        ..DiskOptions::default()
    };
    let host = rig.host();
    let disk = rig.try_attach(&host, &options).unwrap().disk;
    disk.write_at(&[9; 4096], 1 << 20).unwrap();
    disk.write_zeroes(ByteRange::between(2 << 20, (2 << 20) + 8192)).unwrap();
    disk.write_at(&[8; 512], DISK as u64).unwrap();
    disk.flush().unwrap();
    // The read meets the image, the write, and the image again.
    let mut buf = vec![0; 12_288];
    disk.read_at(&mut buf, (1 << 20) - 4096).unwrap();
    let start = (1 << 20) - 4096;
    assert!(buf[..4096] == rig.content[start..start + 4096] && buf[4096..8192] == [9; 4096]);
    assert!(buf[8192..] == rig.content[start + 8192..start + 12_288]);
    drop(disk);
    let disk = rig.try_attach(&host, &options).unwrap().disk;
    let mut buf = vec![1; 4096];
    disk.read_at(&mut buf, 1 << 20).unwrap();
    assert!(buf == [9; 4096]);
    disk.read_at(&mut buf, 2 << 20).unwrap();
    assert!(buf == [0; 4096]);
    disk.read_at(&mut buf[..1024], DISK as u64).unwrap();
    assert!(buf[..512] == [8; 512] && buf[512..1024] == [0; 512]);
    assert_eq!(disk.size(), DISK as u64 + (1 << 20));
    assert!(has_state(&dir));
}

fn has_state(dir: &Path) -> bool {
    dir.join("state.json").exists()
}

#[test]
fn filling_brings_all_of_it() {
    let rig = Rig::new();
    let options = DiskOptions { fill_rate: Some(1 << 40), ..DiskOptions::default() };
    let disk = rig.try_attach(&rig.host(), &options).unwrap().disk;
    let mut buf = vec![0; DISK];
    wait_until("it is filled", LIMIT, || disk.read_local_at(&mut buf, 0).is_ok());
    assert!(buf == rig.content);
}

/// A process that was stopped while it changed the cache directory keeps new images from being attached for a while. It
/// must not keep attached disks from fetching.
#[test]
fn a_stuck_cache_directory_holds_up_no_fetch() {
    use rustix::fs::{FlockOperation, fcntl_lock};
    let (rig, other) = (Rig::new(), Rig::with_content(8));
    let host = rig.host();
    let disk = rig.attach(&host);
    let lock = std::fs::File::options().write(true).open(rig.cache_dir().join("lock")).unwrap();
    fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    // More attaches than threads that fetch.
    let attaching: Vec<_> = (0..4)
        .map(|_| {
            let (host, reference) = (host.clone(), other.reference.clone());
            let store = Arc::clone(&other.store) as Arc<dyn headstart_store::Store>;
            rig.runtime.spawn(async move {
                attach_remote(&host, store, &reference, &DiskOptions::default()).await.map(drop)
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    rig.check(&disk, 0, DISK);
    assert!(attaching.iter().all(|attaching| !attaching.is_finished()), "the lock is held");
    fcntl_lock(&lock, FlockOperation::Unlock).unwrap();
    for attaching in attaching {
        rig.within_limit(attaching).unwrap().unwrap();
    }
}

#[test]
fn zeroed_ranges_are_recorded_as_writes() {
    use headstart_trace::{Op, Recorder};
    let rig = Rig::new();
    let recorder = Arc::new(Recorder::new(Instant::now(), LIMIT, 100));
    let options = DiskOptions {
        writable: Some(WritableOptions {
            dir: rig.dir.path().join("writable"),
            ..WritableOptions::default()
        }),
        recorder: Some(Arc::clone(&recorder)),
        ..DiskOptions::default()
    };
    let disk = rig.try_attach(&rig.host(), &options).unwrap().disk;
    // A boot begins with a read.
    disk.read_at(&mut [0; 512], 4096).unwrap();
    disk.write_at(&[9; 4096], 1 << 20).unwrap();
    disk.write_zeroes(ByteRange::between(2 << 20, 3 << 20)).unwrap();
    disk.read_at(&mut [0; 512], 2 << 20).unwrap();
    disk.flush().unwrap();
    assert!(disk.write_zeroes(ByteRange::between(0, 1 << 40)).is_err());
    let mut seen = Vec::new();
    recorder.drain(&mut |_, record| {
        seen.push((record.op, record.range.offset(), record.range.len()));
        true
    });
    let first = (Op::Read, 4096, 512);
    let then = [(Op::Write, 1 << 20, 4096), (Op::Write, 2 << 20, 1 << 20), (Op::Read, 2 << 20, 512)];
    assert_eq!(seen, [&[first], &then[..]].concat());
}

#[test]
fn a_directory_that_was_made_for_nothing_goes_away_again() {
    let rig = Rig::new();
    let host = rig.host();
    let top = rig.dir.path().join("vms");
    let attach = |dir: &Path| {
        let writable = Some(WritableOptions { dir: dir.to_owned(), ..WritableOptions::default() });
        rig.try_attach(&host, &DiskOptions { writable, ..DiskOptions::default() }).unwrap()
    };
    let attached = attach(&top.join("a/b"));
    drop(attached.disk);
    attached.made.unwrap().remove();
    assert!(!top.exists());
    // A directory that was there before stays, and so do other files in it.
    std::fs::create_dir(&top).unwrap();
    let attached = attach(&top);
    std::fs::write(top.join("note"), "").unwrap();
    attached.made.unwrap().remove();
    let left: Vec<_> = std::fs::read_dir(&top).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["note"]);
    // A directory that was there is opened, not made.
    let dir = rig.dir.path().join("kept");
    drop(attach(&dir));
    assert!(attach(&dir).made.is_none() && has_state(&dir));
}

/// As with a small cache and many readers, whose bytes push out each other's.
#[test]
fn bytes_that_are_evicted_at_once_are_read_from_memory() {
    let rig = Rig::new();
    let host = rig.host();
    let disk = rig.attach(&host);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let evicting = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = host.cache.prune(0);
            }
        });
        let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..6 * DISK / 65_536).for_each(|n| rig.check(&disk, n * 65_536 % DISK, 65_536));
        }));
        is_over.store(true, Ordering::Relaxed);
        evicting.join().unwrap();
        read.unwrap();
    });
}
