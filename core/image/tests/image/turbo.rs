//! TurboOCI images that the reference made, opened from a store laid out by hand: their disks are those that an
//! independent reader put together.
//!
//! The images are beside the repository (`formats/golden-containers`); without them the tests say so and pass.

use crate::golden_turbo::{golden, hash_of, lay_out};
use headstart_block::{BLOCK_SIZE, BlockDevice, ErrorKind, PlanItem};
use headstart_image::diff::diff;
use headstart_image::disk_file::DiskFile;
use headstart_image::import::import_disk;
use headstart_image::manifest::Manifest;
use headstart_image::new_layer::Packing;
use headstart_image::open_image::{Coverage, OpenImage};
use headstart_image::optimize::{Form, OptimizeRequest, Source, boot_order, optimize};
use headstart_image::progress::Silent;
use headstart_image::reference::{Location, Reference, Tag};
use headstart_image::remote::RemoteImage;
use headstart_image::store::{ImageStore, PruneOptions};
use headstart_image::store_access::StoreAccess;
use headstart_image::transfer::transfer;
use headstart_image::verify::{Depth, verify};
use headstart_store::{RetrySettings, StoreSettings, open};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;

#[test]
fn images_of_the_reference_have_the_disks_of_an_independent_reader() {
    let Some(golden) = golden() else { return };
    let json: Value = serde_json::from_slice(&fs::read(golden.join("golden.json")).unwrap()).unwrap();
    let mut seen = 0;
    for case in json["cases"].as_array().unwrap() {
        let image = case["name"].as_str().unwrap();
        for kind in ["turbo", "erofs"] {
            for after in case[kind]["after_layer"].as_array().into_iter().flatten() {
                let dir = tempfile::tempdir().unwrap();
                let layers = usize::try_from(after["layer"].as_u64().unwrap()).unwrap() + 1;
                let reference = lay_out(&golden, dir.path(), image, kind, Some(layers));
                let open = OpenImage::open(&reference).unwrap();
                assert_eq!(open.layers.len(), layers);
                assert!(open.layers.iter().all(|layer| layer.coverage() == Coverage::DigestOnly));
                assert_eq!(open.disk().size(), after["vsize"].as_u64().unwrap());
                let (blocks, hash) = hash_of(open.disk());
                assert_eq!(blocks, after["nz4k_blocks"].as_u64().unwrap(), "{image} {kind} {layers}");
                assert_eq!(hash, after["nz4k_sha256"].as_str().unwrap(), "{image} {kind} {layers}");
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 12);
}

#[test]
fn two_copies_of_an_image_have_the_same_disk() {
    let Some(golden) = golden() else { return };
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let image = |root: &Path| lay_out(&golden, root, "img3", "turbo", None);
    let difference = diff(&image(one.path()), &image(other.path()), &Silent).unwrap();
    assert_eq!(difference.bytes(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_takes_the_targets_along_and_is_read_from_any_store() {
    let Some(golden) = golden() else { return };
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = lay_out(&golden, from.path(), "img3", "turbo", None);
    let store = |root: &Path| open(&Location::Directory(root.to_owned()), &StoreSettings::default()).unwrap();
    let (retry, tag) = (RetrySettings::default(), Tag::default());
    transfer(&store(from.path()), &source.selector, &store(to.path()), &tag, retry, &Silent).await.unwrap();
    let copy: Reference = format!("file://{}", to.path().display()).parse().unwrap();
    let (there, runtime) = (store(to.path()), Handle::current());
    let read = move || {
        let local = hash_of(OpenImage::open(&copy).unwrap().disk());
        // As from any other store.
        let remote = RemoteImage::open(there, &copy, RetrySettings::default(), runtime).unwrap();
        (local, hash_of(OpenImage::open_remote(&remote).unwrap().disk()))
    };
    let (local, remote) = tokio::task::spawn_blocking(read).await.unwrap();
    assert_eq!(local, remote);
}

#[test]
fn an_image_without_its_target_says_what_is_missing() {
    let Some(golden) = golden() else { return };
    let dir = tempfile::tempdir().unwrap();
    let reference = lay_out(&golden, dir.path(), "quirks2", "turbo", None);
    let (_, image) = ImageStore::open_image(&reference).unwrap();
    let target = image.manifest.turbo_targets().nth(1).unwrap();
    let path = dir.path().join("blobs/sha256").join(target.hex());
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let error = OpenImage::open(&reference).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("is not in the store"), "{error}");
    // A target of another length is not the one of the index.
    fs::write(&path, &bytes[1..]).unwrap();
    assert_eq!(OpenImage::open(&reference).err().unwrap().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_deep_check_finds_damage_in_a_target() {
    let Some(golden) = golden() else { return };
    let dir = tempfile::tempdir().unwrap();
    let reference = lay_out(&golden, dir.path(), "img3", "turbo", None);
    let faults = |depth| {
        let verdict = verify(&reference, depth, &Silent).unwrap();
        verdict.layers.into_iter().map(|layer| layer.verdict.is_err()).collect::<Vec<_>>()
    };
    assert_eq!((faults(Depth::Quick), faults(Depth::Deep)), (vec![false; 3], vec![false; 3]));
    let (_, image) = ImageStore::open_image(&reference).unwrap();
    let path = dir.path().join("blobs/sha256").join(image.manifest.turbo_targets().nth(1).unwrap().hex());
    let mut bytes = fs::read(&path).unwrap();
    bytes[20_000] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!((faults(Depth::Quick), faults(Depth::Deep)), (vec![false; 3], vec![false, true, false]));
}

#[test]
fn prune_keeps_the_targets() {
    let Some(golden) = golden() else { return };
    let dir = tempfile::tempdir().unwrap();
    let reference = lay_out(&golden, dir.path(), "img3", "turbo", None);
    let (store, _) = ImageStore::open_image(&reference).unwrap();
    let now = SystemTime::UNIX_EPOCH;
    let options = PruneOptions { now, older_than: Duration::ZERO, force: true, dry_run: false };
    let report = store.prune(&options).unwrap();
    assert!(report.blobs > 0, "the files beside the image are no part of it");
    let open = OpenImage::open(&reference).unwrap();
    hash_of(open.disk());
}

#[test]
fn an_annotation_that_is_no_digest_is_refused() {
    let Some(golden) = golden() else { return };
    let text = fs::read_to_string(golden.join("quirks2/turbo/manifest.json")).unwrap();
    let manifest = Manifest::parse(text.as_bytes()).unwrap();
    let target = manifest.turbo_targets().next().unwrap();
    let wrong = text.replace(&target.to_string(), "sha256:none");
    let manifest = Manifest::parse(wrong.as_bytes()).unwrap();
    assert_eq!(manifest.layers[0].turbo_target().unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(manifest.turbo_targets().count(), manifest.layers.len() - 1);
}

#[test]
fn an_optimized_image_has_the_same_disk_in_either_form() {
    let Some(golden) = golden() else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let source = lay_out(&golden, dirs[0].path(), "img3", "turbo", None);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let settings = StoreSettings::default();
    let stores = StoreAccess { settings: &settings, runtime: runtime.handle() };
    let opened = OpenImage::open(&source).unwrap();
    // Some blocks have metadata only, which comes with the packages and costs nothing.
    let segments = opened.disk().index().segments();
    let mut blocks: Vec<u64> = segments.iter().map(|segment| segment.offset() * 512 / BLOCK_SIZE).collect();
    blocks.dedup();
    blocks.reverse();
    let last = blocks[0];
    let plan: Vec<_> = blocks.iter().map(|block| PlanItem { block: *block, mask: 0x0fff_ffff }).collect();
    // In the same store, and in one that lacks the layers and their targets.
    for (form, layers) in [(Form::BootLayer, 4), (Form::OneLayer, 1)] {
        for dir in &dirs {
            let target: Reference = format!("file://{}:fast-{layers}", dir.path().display()).parse().unwrap();
            let packing = Packing::default();
            let request = OptimizeRequest { target: &target, plans: &[&plan], packing: &packing, form };
            let from = Source::open(&source, stores).unwrap();
            let made = optimize(&from, &request, stores, &Silent).unwrap();
            assert_eq!((made.layers, made.cost[1].requests), (layers, 1));
            assert!(made.compared > 0 && made.cost[0].bytes > 0);
            let new = OpenImage::open(&target).unwrap();
            assert_eq!(hash_of(new.disk()), hash_of(opened.disk()));
            if form == Form::BootLayer {
                let first = boot_order(new.disk(), &new.manifest)[0];
                assert_eq!(first.block, last);
            }
        }
    }
}

#[test]
fn a_commit_into_another_store_takes_the_targets_along() {
    let Some(golden) = golden() else { return };
    let [from, to, beside] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let base = lay_out(&golden, from.path(), "quirks2", "turbo", None);
    let target: Reference = format!("file://{}:on-top", to.path().display()).parse().unwrap();
    let size = OpenImage::open(&base).unwrap().disk().size();
    let disk = beside.path().join("disk.raw");
    fs::File::create(&disk).unwrap().set_len(size).unwrap();
    let file = DiskFile { path: disk, format: None, allowed_dirs: Vec::new() };
    import_disk(&file, Some(&base), &target, &Packing::default(), &Silent).unwrap();
    // The new layer has zeros where the base has data.
    assert_eq!(hash_of(OpenImage::open(&target).unwrap().disk()).0, 0);
}
