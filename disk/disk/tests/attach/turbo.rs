//! TurboOCI images, which have their data in compressed layers of other images: fetched by ranges, cached, inflated.
//!
//! The images are those that the reference made, with the disks of an independent reader.

use super::golden_turbo::{golden, hash_of, lay_out};
use super::trying_store::TryingStore;
use super::{LIMIT, Rig, wait_until, with_deadline};
use headstart_block::{BlockDevice, ByteRange, Digest, ErrorKind, PlanItem, SECTOR_SIZE};
use headstart_disk::attach::attach_remote;
use headstart_disk::{Disk, DiskHost, DiskOptions};
use headstart_image::progress::Silent;
use headstart_image::reference::Tag;
use headstart_image::store::ImageStore;
use headstart_image::transfer::transfer;
use headstart_pull::{MissRest, Plan};
use headstart_store::{Reference, RetrySettings, Store, StoreSettings, open};
use headstart_testkit::registry::{Registry, RegistryAccess};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A golden image in a store of its own.
struct Turbo {
    rig: Rig,
    reference: Reference,
    store: Arc<TryingStore>,
    /// The number of blocks that are not zeros, and their hash.
    expected: (u64, String),
}

impl Turbo {
    fn of(golden: &Path, image: &str, kind: &str) -> Self {
        let rig = Rig::new();
        let reference = lay_out(golden, &rig.dir.path().join("turbo"), image, kind, None);
        let store = TryingStore::over(open(&reference.location, &StoreSettings::default()).unwrap());
        let json: Value = serde_json::from_slice(&fs::read(golden.join("golden.json")).unwrap()).unwrap();
        let case = json["cases"].as_array().unwrap().iter().find(|case| case["name"] == image).unwrap();
        let last = case[kind]["after_layer"].as_array().unwrap().last().unwrap();
        let hash = last["nz4k_sha256"].as_str().unwrap().to_owned();
        let expected = (last["nz4k_blocks"].as_u64().unwrap(), hash);
        Self { rig, reference, store, expected }
    }

    fn attach(&self, host: &DiskHost, options: &DiskOptions) -> headstart_block::Result<Arc<Disk>> {
        let store = Arc::clone(&self.store) as Arc<dyn Store>;
        let attached = self.rig.within_limit(attach_remote(host, store, &self.reference, options));
        attached.map(|attached| attached.disk)
    }

    fn target(&self, layer: usize) -> Digest {
        let (_, image) = ImageStore::open_image(&self.reference).unwrap();
        image.manifest.turbo_targets().nth(layer).unwrap()
    }

    fn target_path(&self, layer: usize) -> PathBuf {
        self.rig.dir.path().join("turbo/blobs/sha256").join(self.target(layer).hex())
    }
}

/// Every read waits for the bytes that it needs, and for no others.
fn exact() -> DiskOptions {
    let mut options = with_deadline(LIMIT);
    options.pull.miss_rest = MissRest::None;
    options
}

fn filled() -> DiskOptions {
    DiskOptions { fill_rate: Some(1 << 40), ..with_deadline(LIMIT) }
}

/// The places on the disk of the data in a layer's target.
fn in_target(disk: &Disk, layer: usize) -> Vec<ByteRange> {
    let stack = disk.stack();
    let is_there = |source: u8| {
        let source = stack.sources()[usize::from(source)];
        source.layer == layer && source.is_target
    };
    let there = stack.index().segments().iter().filter(|segment| is_there(segment.layer()));
    there.map(|s| ByteRange::between(s.offset() * SECTOR_SIZE, s.end() * SECTOR_SIZE)).collect()
}

#[test]
fn turbo_images_in_a_store_have_the_disks_of_an_independent_reader() {
    let Some(golden) = golden() else { return };
    for (image, kind) in [
        ("img3", "turbo"),
        ("img3", "erofs"),
        ("quirks2", "turbo"),
        ("quirks2", "erofs"),
        ("xlink2", "turbo"),
    ] {
        let turbo = Turbo::of(&golden, image, kind);
        let disk = turbo.attach(&turbo.rig.host(), &with_deadline(LIMIT)).unwrap();
        assert_eq!(hash_of(&*disk), turbo.expected, "{image} {kind}");
        assert_eq!(disk.stats().errors.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_turbo_image_is_attached_from_a_registry() {
    let (Some(golden), Some(registry)) = (golden(), Registry::start(RegistryAccess::Open)) else { return };
    let turbo = Turbo::of(&golden, "img3", "turbo");
    let settings = StoreSettings { plain_http: vec![registry.host()], ..StoreSettings::default() };
    let reference: Reference = format!("oci://{}/team/disk:v1", registry.host()).parse().unwrap();
    let attached = turbo.rig.within_limit(async {
        let to = open(&reference.location, &settings).unwrap();
        let from = open(&turbo.reference.location, &settings).unwrap();
        let (retry, tag): (_, Tag) = (RetrySettings::default(), "v1".parse().unwrap());
        transfer(&from, &turbo.reference.selector, &to, &tag, retry, &Silent).await.unwrap();
        attach_remote(&turbo.rig.host(), to, &reference, &with_deadline(LIMIT)).await.unwrap()
    });
    let disk = attached.disk;
    let (before, all) = disk.puller().unwrap().blobs().local_bytes();
    assert!(before < all / 2, "{before} of {all} are here before any read");
    assert_eq!(hash_of(&*disk), turbo.expected);
}

#[test]
fn a_read_fetches_the_compressed_bytes_between_two_restart_points_and_nothing_else() {
    let Some(golden) = golden() else { return };
    let turbo = Turbo::of(&golden, "img3", "turbo");
    let disk = turbo.attach(&turbo.rig.host(), &exact()).unwrap();
    let target = turbo.target(0);
    let given = || -> Vec<u64> {
        let given = turbo.store.given.lock().unwrap();
        given.iter().filter(|((blob, _), _)| *blob == target).map(|((_, unit), _)| *unit).collect()
    };
    assert_eq!(given(), [0; 0], "opening needs nothing of it");
    // In the middle of the data, so that there is a restart point before and behind it.
    let parts = in_target(&disk, 0);
    let part = parts[parts.len() / 2];
    let read = ByteRange::between(part.offset(), part.offset() + SECTOR_SIZE);
    let mut needed = Vec::new();
    disk.stack().stored_ranges(read, &mut |_, range| needed.push(range));
    disk.read_at(&mut [0; 512], read.offset()).unwrap();
    let len = fs::metadata(turbo.target_path(0)).unwrap().len();
    assert_eq!(needed.len(), 1);
    let range = needed[0];
    assert!(range.len() < len * 2 / 3, "{range:?} of {len}");
    let units = |start: u64, end: u64| start / 16_384 * 4..end.div_ceil(16_384).min(len.div_ceil(16_384)) * 4;
    let allowed = units(range.offset(), range.end());
    let given = given();
    assert!(!given.is_empty() && given.iter().all(|unit| allowed.contains(unit)), "{given:?}, {allowed:?}");
    // The same piece again, from the memory of the disk.
    let requests = turbo.store.requests.load(Ordering::Relaxed);
    disk.read_local_at(&mut [0; 512], read.offset()).unwrap();
    assert_eq!(turbo.store.requests.load(Ordering::Relaxed), requests);
}

#[test]
fn a_plan_preloads_ranges_of_the_targets() {
    let Some(golden) = golden() else { return };
    let turbo = Turbo::of(&golden, "img3", "turbo");
    let plain = turbo.attach(&turbo.rig.host(), &exact()).unwrap();
    let parts = in_target(&plain, 0);
    let block = parts[parts.len() / 2].offset() / headstart_block::BLOCK_SIZE;
    drop(plain);
    let plan = Plan::List(vec![PlanItem { block, mask: u32::MAX }].into());
    let disk = turbo.attach(&turbo.rig.host(), &DiskOptions { plan, ..exact() }).unwrap();
    let start = block * headstart_block::BLOCK_SIZE;
    let read = || disk.read_local_at(&mut vec![0; 64 << 10], start).is_ok();
    wait_until("the block is here", LIMIT, read);
    let target = turbo.target(0);
    assert!(turbo.store.given.lock().unwrap().keys().any(|(blob, _)| *blob == target));
    assert_eq!(disk.stats().misses.snapshot().count(), 0);
}

#[test]
fn an_image_that_is_all_here_needs_no_store() {
    let Some(golden) = golden() else { return };
    for image in ["img3", "quirks2"] {
        let turbo = Turbo::of(&golden, image, "turbo");
        let host = turbo.rig.host();
        let disk = turbo.attach(&host, &filled()).unwrap();
        wait_until("all is here", LIMIT, || disk.puller().unwrap().blobs().are_whole());
        wait_until("all is checked", LIMIT, || disk.puller().unwrap().blobs().unproven_bytes() == 0);
        drop((disk, host));
        turbo.store.failing.lock().unwrap().replace(ErrorKind::Unavailable);
        let disk = turbo.attach(&turbo.rig.host(), &with_deadline(LIMIT)).unwrap();
        assert_eq!(hash_of(&*disk), turbo.expected, "{image}");
    }
}

#[test]
fn wrong_bytes_of_a_target_are_found_out_and_what_was_made_of_them_is_forgotten() {
    let Some(golden) = golden() else { return };
    let turbo = Turbo::of(&golden, "img3", "turbo");
    let host = turbo.rig.host();
    // Offsets of every target: of the small ones, too.
    let wrong = |times| turbo.store.wrong_at.lock().unwrap().extend([(90_000, times), (200_000, times)]);
    wrong(1);
    let disk = turbo.attach(&host, &filled()).unwrap();
    // Some reads may get the wrong bytes, as from every blob without a hash tree.
    let _ = disk.read_at(&mut vec![0; 4 << 20], 0);
    wait_until("all is here and right", LIMIT, || {
        let blobs = disk.puller().unwrap().blobs();
        blobs.are_whole() && blobs.unproven_bytes() == 0
    });
    assert_eq!(hash_of(&*disk), turbo.expected);
}

#[test]
fn a_missing_or_other_target_is_reported_when_the_image_is_attached() {
    let Some(golden) = golden() else { return };
    let turbo = Turbo::of(&golden, "quirks2", "turbo");
    let path = turbo.target_path(1);
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let error = turbo.attach(&turbo.rig.host(), &with_deadline(LIMIT)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(
        error.to_string().contains("copy the image there that the TurboOCI image was made of"),
        "{error}"
    );
    fs::write(&path, &bytes[1..]).unwrap();
    let error = turbo.attach(&turbo.rig.host(), &with_deadline(LIMIT)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    fs::write(&path, &bytes).unwrap();
    assert_eq!(hash_of(&*turbo.attach(&turbo.rig.host(), &exact()).unwrap()), turbo.expected);
    let strict = DiskOptions { require_tree: true, ..exact() };
    assert_eq!(turbo.attach(&turbo.rig.host(), &strict).err().unwrap().kind(), ErrorKind::Denied);
}
