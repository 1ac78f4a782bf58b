//! Golden images, converted whole.

use super::support::InDirectory;
use super::support::{TestImage, TestLayer, options, reference, rows_of};
use crate::apply::tests::golden::{differences, golden, json};
use crate::disk_trees::support::{check, e2fsck, store_disk};
use crate::known_layers::NoKnownLayers;
use crate::parent_disk::disk_of;
use crate::test_layers::zstd;
use flate2::read::MultiGzDecoder;
use headstart_image::open_image::OpenImage;
use std::fs;
use std::io::Read;
use std::path::Path;

fn tar(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    if path.extension().is_none_or(|extension| extension != "gz") {
        return bytes;
    }
    let mut tar = Vec::new();
    MultiGzDecoder::new(&bytes[..]).read_to_end(&mut tar).unwrap();
    tar
}

/// A layer of a golden image.
pub(super) fn layer(path: &Path) -> TestLayer {
    TestLayer::new(fs::read(path).unwrap(), &tar(path))
}

#[test]
fn golden_images_are_converted_to_their_trees() {
    let Some(dir) = golden() else { return };
    let set = json(&dir.join("golden.json"));
    let e2fsck = e2fsck("the check of converted golden images");
    for case in set["cases"].as_array().unwrap() {
        let (store, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = case["source"]["layers"].as_array().unwrap().iter();
        let paths: Vec<_> = files.map(|layer| dir.join(layer["file"].as_str().unwrap())).collect();
        let folder = paths[0].parent().unwrap();
        let config = fs::read(folder.join("config.json")).unwrap();
        let layers = paths.iter().map(|path| layer(path)).collect();
        let media_type = json(&folder.join("manifest.json"))["layers"][0]["mediaType"].clone();
        let media_type = media_type.as_str().unwrap().to_owned();
        let image = TestImage { layers, media_type, config, without_layers: false };
        let report = image.convert(store.path(), "golden", &options(2)).unwrap();
        let expected = case["trees"].as_array().unwrap().last().unwrap();
        let file = expected["file"].as_str().unwrap();
        let found = rows_of(store.path(), "golden");
        let found = differences(&json(&dir.join(file)), &expected["unspecified"], &found);
        assert!(found.is_empty(), "{file}: {found:#?}");
        if let Some(e2fsck) = &e2fsck {
            let disk = disk_of(OpenImage::open(&reference(store.path(), "golden")).unwrap().into_disk());
            let path = other.path().join("disk");
            store_disk(&disk, &path);
            check(e2fsck, &path);
        }
        // The same content in another compression, by another number of threads, into another store.
        let layers = paths.iter().map(|path| TestLayer::new(zstd(&tar(path), 1), &tar(path))).collect();
        let again = TestImage { layers, ..image };
        let again =
            again.convert_with(&other.path().join("store"), "x", &options(1), &NoKnownLayers).unwrap();
        let digests = |report: &InDirectory| {
            report.layers.iter().map(|outcome| outcome.layer.blob.digest).collect::<Vec<_>>()
        };
        assert_eq!(digests(&report), digests(&again));
    }
}
