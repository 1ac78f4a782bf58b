//! Images whose data stays in the container's layers.

use super::support::{TestImage, TestLayer, options, reference, rows_of};
use crate::apply::tests::golden::{apply_reader, differences, golden, json};
use crate::disk_trees::support::{check, e2fsck, rows, store_disk};
use crate::known_layers::NoKnownLayers;
use crate::model_tree::ModelTree;
use crate::options::{ConvertMode, ConvertOptions};
use crate::parent_disk::disk_of;
use crate::test_layers::{gzip, noise, sample_tars, zstd};
use flate2::read::GzDecoder;
use headstart_block::Digest;
use headstart_image::blob::open_layer_source;
use headstart_image::new_layer::Packing;
use headstart_image::open_image::OpenImage;
use headstart_image::progress::Silent;
use headstart_image::store::ImageStore;
use headstart_image::turbo::{FileSystemKind, InflatedCache, PackageBudget, TurboLayer};
use headstart_image::verify::{Depth, verify};
use headstart_lsmt::{Layer, Stack};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

fn turbo(threads: usize) -> ConvertOptions {
    ConvertOptions { mode: ConvertMode::Turbo, ..options(threads) }
}

fn blob(dir: &Path, digest: &Digest) -> std::path::PathBuf {
    dir.join("blobs/sha256").join(digest.hex())
}

/// Checks that an image has the tree of some tars, and that every byte of it is right.
#[track_caller]
fn check_image(dir: &Path, tag: &str, tars: &[Vec<u8>]) {
    let mut model = ModelTree::new();
    for tar in tars {
        apply_reader(&mut model, &tar[..]).unwrap();
    }
    assert_eq!(rows_of(dir, tag), model.rows());
    let verdict = verify(&reference(dir, tag), Depth::Deep, &Silent).unwrap();
    let problems: Vec<_> = verdict.problems().map(ToString::to_string).collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn an_erofs_of_metadata_has_its_files_in_the_layers_that_it_was_made_of() {
    let dir = tempfile::tempdir().unwrap();
    let tars = sample_tars();
    let source = TestImage::new(&tars, |tar| gzip(tar, 6));
    let options = ConvertOptions { file_system: FileSystemKind::Erofs, ..turbo(2) };
    source.convert(dir.path(), "a", &options).unwrap();
    check_image(dir.path(), "a", &tars);
    let (_, image) = ImageStore::open_image(&reference(dir.path(), "a")).unwrap();
    assert_eq!(image.manifest.file_system(), Some("erofs"));
    for layer in &image.manifest.layers {
        let package = fs::read(blob(dir.path(), &layer.blob.digest)).unwrap();
        let turbo = TurboLayer::read(layer, &package, &mut PackageBudget::default()).unwrap();
        assert_eq!(turbo.kind(), FileSystemKind::Erofs);
    }
}

#[test]
fn an_image_has_packages_beside_the_layers_that_it_was_made_of() {
    let dir = tempfile::tempdir().unwrap();
    let tars = sample_tars();
    let source = TestImage::new(&tars, |tar| gzip(tar, 6));
    let report = source.convert(dir.path(), "a", &turbo(2)).unwrap();
    check_image(dir.path(), "a", &tars);
    let (store, image) = ImageStore::open_image(&reference(dir.path(), "a")).unwrap();
    for (layer, source) in image.manifest.layers.iter().zip(&source.layers) {
        assert_eq!(layer.turbo_target().unwrap(), Some(source.digest));
        assert!(fs::read(blob(dir.path(), &source.digest)).unwrap() == source.bytes);
    }
    // containerd finds the digests of the archives in the config.
    let config = store.config(&image.manifest).unwrap();
    let inflated = |digest: &Digest| {
        let mut tar = Vec::new();
        GzDecoder::new(&fs::read(blob(dir.path(), digest)).unwrap()[..]).read_to_end(&mut tar).unwrap();
        Digest::of(&tar)
    };
    let expected: Vec<_> = image.manifest.layers.iter().map(|layer| inflated(&layer.blob.digest)).collect();
    assert_eq!(config.diff_ids(), expected);
    let origin = image.manifest.converted_from().unwrap();
    assert_eq!(origin.converter, "writer=1,fs=ext4,mode=turbo,size=134217728,lz4,frame=32768,crc");
    // Any number of threads, and a store that knows nothing.
    let other = tempfile::tempdir().unwrap();
    let again = source.convert_with(other.path(), "a", &turbo(8), &NoKnownLayers).unwrap();
    assert_eq!(again.digest, report.digest);
    // A native image of the same layers is another one, with layers of its own.
    let native = source.convert(dir.path(), "native", &options(1)).unwrap();
    assert!(native.layers.iter().all(|outcome| outcome.converted.is_some() && !outcome.layer.is_turbo()));
}

#[test]
fn a_layer_that_is_known_needs_its_data_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let tars = sample_tars();
    let source = TestImage::new(&tars, |tar| gzip(tar, 1));
    let first = source.convert(dir.path(), "a", &turbo(1)).unwrap();
    // Known, and all is there: not a byte is read.
    let mut damaged = source.clone();
    damaged.layers.iter_mut().for_each(TestLayer::damage);
    let again = damaged.convert(dir.path(), "b", &turbo(1)).unwrap();
    assert_eq!(again.digest, first.digest);
    fs::remove_file(blob(dir.path(), &source.layers[1].digest)).unwrap();
    assert!(damaged.convert(dir.path(), "c", &turbo(1)).is_err());
    let again = source.convert(dir.path(), "c", &turbo(1)).unwrap();
    assert!(again.layers.iter().all(|outcome| outcome.converted.is_none()));
    check_image(dir.path(), "c", &tars);
    // The same tars in another compression are other data.
    let other = TestImage::new(&tars, |tar| gzip(tar, 9)).convert(dir.path(), "d", &turbo(1)).unwrap();
    assert!(other.layers.iter().all(|outcome| outcome.converted.is_some()));
    check_image(dir.path(), "d", &tars);
}

#[test]
fn layers_in_zstd_have_their_data_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let tars = sample_tars();
    let mut source = TestImage::new(&tars, |tar| gzip(tar, 1));
    source.layers[1] = TestLayer::new(zstd(&tars[1], 3), &tars[1]);
    let report = source.convert(dir.path(), "a", &turbo(2)).unwrap();
    let kinds: Vec<_> = report.layers.iter().map(|outcome| outcome.layer.is_turbo()).collect();
    assert_eq!(kinds, [true, false, true]);
    check_image(dir.path(), "a", &tars);
    assert!(!blob(dir.path(), &source.layers[1].digest).exists());
    // Packages on top of a known base: the layers below are opened from the store.
    let more = [&tars[..], &[sample_tars().swap_remove(2)]].concat();
    let mut top = TestImage::new(&more, |tar| gzip(tar, 1));
    top.layers[1] = source.layers[1].clone();
    let report = top.convert(dir.path(), "more", &turbo(1)).unwrap();
    let known: Vec<_> = report.layers.iter().map(|outcome| outcome.converted.is_none()).collect();
    assert_eq!(known, [true, true, true, false]);
    check_image(dir.path(), "more", &more);
}

#[test]
fn a_media_type_that_claims_another_compression_is_corrected() {
    let dir = tempfile::tempdir().unwrap();
    let tars = sample_tars();
    let mut source = TestImage::new(&tars, <[u8]>::to_vec);
    source.layers[2] = TestLayer::new(gzip(&tars[2], 6), &tars[2]);
    source.media_type = "application/vnd.oci.image.layer.v1.tar+zstd".to_owned();
    let report = source.convert(dir.path(), "a", &turbo(1)).unwrap();
    check_image(dir.path(), "a", &tars);
    let key = "containerd.io/snapshot/overlaybd/turbo-oci/target-media-type";
    let types: Vec<_> = report.layers.iter().map(|outcome| outcome.layer.annotations[key].as_str()).collect();
    let plain = "application/vnd.oci.image.layer.v1.tar";
    assert_eq!(types, [plain, plain, "application/vnd.oci.image.layer.v1.tar+gzip"]);
}

#[test]
fn a_layer_that_occurs_twice_is_kept_once() {
    let dir = tempfile::tempdir().unwrap();
    let tar = sample_tars().swap_remove(0);
    let tars = [tar.clone(), tar];
    TestImage::new(&tars, |tar| gzip(tar, 1)).convert(dir.path(), "a", &turbo(2)).unwrap();
    check_image(dir.path(), "a", &tars);
}

#[test]
fn damaged_layers_are_refused_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = TestImage::new(&[vec![0; 1024], noise(1, 9)], |tar| gzip(tar, 1));
    source.layers[0].damage();
    assert!(source.convert(dir.path(), "a", &turbo(2)).is_err());
    assert_eq!(fs::read_dir(dir.path().join("blobs/sha256")).map_or(0, Iterator::count), 0);
    assert_eq!(fs::read_dir(dir.path().join(".headstart/staging")).map_or(0, Iterator::count), 0);
    let many = TestImage::new(&vec![vec![0; 1024]; 128], |tar| gzip(tar, 1));
    let error = many.convert(dir.path(), "a", &turbo(1)).unwrap_err();
    assert!(error.to_string().contains("has 128 layers, more than 127"), "{error}");
}

/// The disk of golden packages of the reference.
fn reference_disk(folder: &Path, layers: &[TestLayer]) -> Stack {
    let target_key = "containerd.io/snapshot/overlaybd/turbo-oci/target-digest";
    let cache = InflatedCache::new(InflatedCache::DEFAULT_BYTES);
    let manifest = fs::read(folder.join("turbo/manifest.json")).unwrap();
    let manifest = headstart_image::manifest::Manifest::parse(&manifest).unwrap();
    let open = |(number, layer): (usize, &TestLayer)| {
        let described = &manifest.layers[number];
        assert_eq!(described.annotations[target_key], layer.digest.to_string());
        let package = fs::read(folder.join(format!("turbo/layer{number}.turboOCIv1.tar.gz"))).unwrap();
        let turbo = TurboLayer::read(described, &package, &mut PackageBudget::default()).unwrap();
        turbo.open(Arc::new(layer.bytes.clone()), &cache).unwrap().1
    };
    Stack::new(layers.iter().enumerate().map(open).collect::<Vec<Layer>>()).unwrap()
}

#[test]
fn golden_images_give_their_trees_as_the_references_packages_do() {
    let Some(dir) = golden() else { return };
    let set = json(&dir.join("golden.json"));
    let e2fsck = e2fsck("the check of golden images with TurboOCI layers");
    for case in set["cases"].as_array().unwrap() {
        let store = tempfile::tempdir().unwrap();
        let files = case["source"]["layers"].as_array().unwrap().iter();
        let paths: Vec<_> = files.map(|layer| dir.join(layer["file"].as_str().unwrap())).collect();
        let folder = paths[0].parent().unwrap();
        let layers: Vec<_> = paths.iter().map(|path| super::golden::layer(path)).collect();
        let media_type = json(&folder.join("manifest.json"))["layers"][0]["mediaType"].clone();
        let media_type = media_type.as_str().unwrap().to_owned();
        let config = fs::read(folder.join("config.json")).unwrap();
        let image = TestImage { layers: layers.clone(), media_type, config, without_layers: false };
        let packed = ConvertOptions { packing: Packing::default(), ..turbo(2) };
        let report = image.convert(store.path(), "golden", &packed).unwrap();
        let expected = case["trees"].as_array().unwrap().last().unwrap();
        let file = expected["file"].as_str().unwrap();
        let found = rows_of(store.path(), "golden");
        let found_differences = differences(&json(&dir.join(file)), &expected["unspecified"], &found);
        assert!(found_differences.is_empty(), "{file}: {found_differences:#?}");
        let disk = disk_of(OpenImage::open(&reference(store.path(), "golden")).unwrap().into_disk());
        if let Some(e2fsck) = &e2fsck {
            let path = store.path().join("disk");
            store_disk(&disk, &path);
            check(e2fsck, &path);
        }
        // The reference's packages of the same layers have the same files.
        let reference = reference_disk(folder.parent().unwrap(), &layers);
        let theirs = rows(&disk_of(reference));
        for (path, row) in &theirs {
            if let Some(own) = found.get(path) {
                assert!(
                    own.bytes == row.bytes || own.kind == crate::file_tree::NodeKind::Symlink,
                    "{path:?}"
                );
            }
        }
        assert_eq!(theirs.len(), found.len() + 1, "they have lost+found besides");
        for (number, outcome) in report.layers.iter().enumerate() {
            let path = folder.parent().unwrap().join(format!("turbo/layer{number}.turboOCIv1.tar.gz"));
            let (own, size) = (outcome.layer.blob.size, fs::metadata(path).unwrap().len());
            // Larger inodes, with nanoseconds; smaller indexes.
            assert!(own < size + size / 4, "{file}: {own} bytes, theirs {size}");
        }
    }
}

#[test]
fn a_package_is_a_zfile_with_a_layer() {
    let dir = tempfile::tempdir().unwrap();
    let tars = sample_tars();
    let source = TestImage::new(&tars[..1], |tar| gzip(tar, 6));
    let report = source.convert(dir.path(), "a", &turbo(1)).unwrap();
    let package = fs::read(blob(dir.path(), &report.layers[0].layer.blob.digest)).unwrap();
    assert_eq!(package[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff]);
    let files = headstart_turbo::TurboPackage::open(&package, &mut PackageBudget::default()).unwrap();
    let metadata = open_layer_source(Arc::new(files.ext4.unwrap())).unwrap();
    assert!(metadata.has_frame_checksums());
    // By itself it is no whole layer: a part of its bytes is in the target.
    assert!(Layer::open(metadata.source).is_err());
}
