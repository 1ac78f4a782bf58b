//! Layers that are known, images that are the same, and images that are refused.

use super::support::{TestImage, TestLayer, options, reference, rows_of};
use crate::apply::tests::golden::apply_reader;
use crate::known_layers::NoKnownLayers;
use crate::model_tree::ModelTree;
use crate::test_layers::{TarMaker, forms, gzip, sample_tars, zstd};
use headstart_block::{Digest, ErrorKind};
use headstart_image::store::ImageStore;
use std::path::Path;

fn gzipped(tars: &[Vec<u8>]) -> TestImage {
    TestImage::new(tars, |tar| gzip(tar, 1))
}

/// The number of blobs in the store.
fn blobs(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("blobs/sha256")).map_or(0, Iterator::count)
}

#[test]
fn an_image_keeps_its_config_and_says_where_it_is_from() {
    let dir = tempfile::tempdir().unwrap();
    let tars = sample_tars();
    let source = gzipped(&tars);
    let report = source.convert(dir.path(), "a", &options(2)).unwrap();
    let (store, image) = ImageStore::open_image(&reference(dir.path(), "a")).unwrap();
    assert_eq!(image.digest, report.digest);
    let origin = image.manifest.converted_from().unwrap();
    assert_eq!(origin.manifest, Digest::of(&source.manifest()));
    assert_eq!(origin.converter, "writer=1,fs=ext4,size=134217728,lz4,frame=32768,crc");
    let config = store.read_document(&image.manifest.config.digest).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    assert_eq!((&config["architecture"], &config["config"]["Cmd"][0]), (&"arm64".into(), &"/bin/sh".into()));
    assert_eq!(config["history"].as_array().unwrap().len(), 2);
    assert_eq!(config["created"], "2026-01-02T03:04:05Z");
    let ids: Vec<_> = image.manifest.layers.iter().map(|layer| layer.blob.digest.to_string()).collect();
    assert_eq!(config["rootfs"]["diff_ids"], serde_json::json!(ids));
    assert_eq!(image.manifest.virtual_size, Some(128 << 20));
    let mut model = ModelTree::new();
    for tar in &tars {
        apply_reader(&mut model, &tar[..]).unwrap();
    }
    assert_eq!(rows_of(dir.path(), "a"), model.rows());
}

#[test]
fn the_same_image_is_the_same_to_the_byte() {
    let tars = sample_tars();
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let image = gzipped(&tars);
    let expected = image.convert(first.path(), "a", &options(1)).unwrap().digest;
    for threads in [2, 8] {
        let tag = format!("t{threads}");
        let report = image.convert_with(second.path(), &tag, &options(threads), &NoKnownLayers).unwrap();
        assert_eq!(report.digest, expected);
    }
    let again = image.convert(first.path(), "b", &options(1)).unwrap();
    assert_eq!(again.digest, expected);
    assert!(again.layers.iter().all(|outcome| outcome.converted.is_none()));
}

#[test]
fn layers_that_are_known_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let tars = sample_tars();
    gzipped(&tars[..2]).convert(dir.path(), "base", &options(1)).unwrap();
    let more = TarMaker::new().file("usr/share/more", b"more").done();
    let image = gzipped(&[&tars[..2], &[more]].concat());
    let mut damaged = image.clone();
    damaged.layers[..2].iter_mut().for_each(TestLayer::damage);
    let report = damaged.convert(dir.path(), "more", &options(1)).unwrap();
    let converted: Vec<_> = report.layers.iter().map(|outcome| outcome.converted.is_some()).collect();
    assert_eq!(converted, [false, false, true]);
    let fresh = tempfile::tempdir().unwrap();
    let fresh = image.convert(fresh.path(), "more", &options(2)).unwrap();
    assert_eq!(report.digest, fresh.digest);
    // A layer whose lower layers are others is not the same layer.
    let report = gzipped(&tars[1..2]).convert(dir.path(), "other", &options(1)).unwrap();
    assert!(report.layers[0].converted.is_some());
}

#[test]
fn an_image_that_claims_a_known_layer_does_not_get_it() {
    let dir = tempfile::tempdir().unwrap();
    let secret = TarMaker::new().file("etc/secret", b"secret").done();
    let private = gzipped(std::slice::from_ref(&secret));
    private.convert(dir.path(), "private", &options(1)).unwrap();
    let before = blobs(dir.path());
    // Its config names the content, and its manifest another layer.
    let mut liar = gzipped(std::slice::from_ref(&secret));
    liar.layers[0] = gzipped(&[TarMaker::new().file("etc/other", b"x").done()]).layers.remove(0);
    let error = liar.convert(dir.path(), "liar", &options(1)).unwrap_err();
    assert_eq!((error.kind(), blobs(dir.path())), (ErrorKind::Corrupt, before), "{error}");
    // Its manifest names the layer, which its source does not have.
    let mut thief = private.clone();
    thief.without_layers = true;
    let error = thief.convert(dir.path(), "thief", &options(1)).unwrap_err();
    assert_eq!((error.kind(), blobs(dir.path())), (ErrorKind::NotFound, before), "{error}");
    // In another compression it is read, and gives the same.
    let other = TestImage::new(&[secret], |tar| zstd(tar, 1));
    let report = other.convert(dir.path(), "other", &options(1)).unwrap();
    assert!(report.layers[0].converted.is_some());
}

#[test]
fn layers_whose_blobs_are_gone_are_converted_again() {
    let dir = tempfile::tempdir().unwrap();
    let image = gzipped(&sample_tars());
    let first = image.convert(dir.path(), "a", &options(1)).unwrap();
    let blob = dir.path().join("blobs/sha256").join(first.layers[1].layer.blob.digest.hex());
    std::fs::remove_file(blob).unwrap();
    let note = dir.path().join(".headstart/converted").join(first.layers[2].key.hex());
    std::fs::write(note, b"{").unwrap();
    let second = image.convert(dir.path(), "a", &options(1)).unwrap();
    let converted: Vec<_> = second.layers.iter().map(|outcome| outcome.converted.is_some()).collect();
    assert_eq!((converted, second.digest), (vec![false, true, true], first.digest));
}

#[test]
fn notes_of_a_store_lead_to_layers_of_their_key_only() {
    let dir = tempfile::tempdir().unwrap();
    let image = gzipped(&sample_tars());
    let report = image.convert(dir.path(), "a", &options(1)).unwrap();
    let notes = dir.path().join(".headstart/converted");
    let name = |at: usize| notes.join(report.layers[at].key.hex());
    std::fs::copy(name(2), name(0)).unwrap();
    let again = image.convert(dir.path(), "b", &options(1)).unwrap();
    assert!(again.layers[0].converted.is_some());
    assert_eq!(again.digest, report.digest);
}

/// The error of an image, after which the store has nothing of it.
#[track_caller]
fn refused(image: &TestImage) -> (ErrorKind, String) {
    let dir = tempfile::tempdir().unwrap();
    gzipped(&[TarMaker::new().file("kept", b"x").done()]).convert(dir.path(), "kept", &options(1)).unwrap();
    let before = blobs(dir.path());
    let error = image.convert(dir.path(), "new", &options(2)).unwrap_err();
    let store = ImageStore::open(dir.path()).unwrap();
    assert_eq!((blobs(dir.path()), store.list().unwrap().len()), (before, 1));
    assert_eq!(std::fs::read_dir(dir.path().join(".headstart/staging")).map_or(0, Iterator::count), 0);
    (error.kind(), error.to_string())
}

#[test]
fn images_that_make_no_sense_are_refused_and_nothing_is_left() {
    let image = gzipped(&sample_tars());
    let mut missing = image.clone();
    missing.layers.pop();
    let (kind, text) = refused(&missing);
    assert!(
        kind == ErrorKind::Corrupt && text.contains("3 diff ids, but its manifest has 2 layers"),
        "{text}"
    );
    let mut swapped = image.clone();
    swapped.layers.swap(1, 2);
    assert_eq!(refused(&swapped).0, ErrorKind::Corrupt);
    let empty = TestImage::new(&[], <[u8]>::to_vec);
    assert_eq!(refused(&empty).0, ErrorKind::Unsupported);
    let config = b"not JSON".to_vec();
    assert_eq!(refused(&TestImage { config, ..image.clone() }).0, ErrorKind::Corrupt);
    let encrypted = format!("{}+encrypted", image.media_type);
    for media_type in ["application/vnd.in-toto+json", &encrypted, ""] {
        let other = TestImage { media_type: media_type.to_owned(), ..image.clone() };
        assert_eq!(refused(&other).0, ErrorKind::Unsupported, "{media_type}");
    }
    let mut damaged = image.clone();
    damaged.layers[2].damage();
    let (kind, text) = refused(&damaged);
    let name = format!("layer 3 of 3 ({}) of test: ", damaged.layers[2].digest);
    assert!(kind == ErrorKind::Corrupt && text.starts_with(&name), "{text}");
    let many = vec![TarMaker::new().done(); 256];
    let (kind, text) = refused(&gzipped(&many));
    assert!(kind == ErrorKind::Unsupported && text.contains("256 layers"), "{text}");
}

#[test]
fn the_extents_of_all_layers_have_a_limit_together() {
    let image = gzipped(&sample_tars());
    let dir = tempfile::tempdir().unwrap();
    let made = image.convert(dir.path(), "a", &options(1)).unwrap();
    let extents: Vec<_> =
        made.layers.iter().map(|layer| layer.converted.as_ref().unwrap().summary.segments).collect();
    let all: u64 = extents.iter().sum();
    let attempt = |dir: &Path, extents| {
        let mut options = options(1);
        options.limits.extents = extents;
        image.convert(dir, "b", &options)
    };
    let other = tempfile::tempdir().unwrap();
    let text = attempt(other.path(), all - 1).unwrap_err().to_string();
    assert!(text.contains("layer 3 of 3") && text.contains("--limit extents="), "{text}");
    assert_eq!(blobs(other.path()), 0);
    assert!(attempt(other.path(), all).is_ok());
    // Known layers are not opened, and need no memory.
    assert!(attempt(dir.path(), 1).is_ok());
}

#[test]
fn what_serves_estargz_is_left_out_whatever_the_source_says_of_it() {
    let table: &[u8] = br#"{"version": 1, "entries": []}"#;
    let tars = [
        TarMaker::new()
            .file(".prefetch.landmark", &[15])
            .file("a", b"a")
            .file("stargz.index.json", table)
            .done(),
        TarMaker::new().file(".no.prefetch.landmark", &[15]).file("b", b"b").done(),
        TarMaker::new().file("stargz.index.json", b"a file of the image").done(),
    ];
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let gzip = gzipped(&tars).convert(first.path(), "t", &options(1)).unwrap();
    let plain = TestImage::new(&tars, <[u8]>::to_vec).convert(second.path(), "t", &options(1)).unwrap();
    for (one, other) in gzip.layers.iter().zip(&plain.layers) {
        assert_eq!((one.key, one.layer.blob.digest), (other.key, other.layer.blob.digest));
    }
    let rows = rows_of(first.path(), "t");
    assert_eq!(rows.keys().collect::<Vec<_>>(), [&b""[..], b"a", b"b", b"stargz.index.json"]);
    assert_eq!(rows[&b"stargz.index.json"[..]].bytes, b"a file of the image");
}

#[test]
fn many_small_layers_are_one_disk() {
    let dir = tempfile::tempdir().unwrap();
    let layer = |number: u32| TarMaker::new().file(&format!("files/{number}"), &number.to_le_bytes()).done();
    let tars: Vec<_> = (0..60).map(layer).collect();
    let report = gzipped(&tars).convert(dir.path(), "many", &options(1)).unwrap();
    let added: u64 = report.layers[1..].iter().map(|outcome| outcome.layer.blob.size).sum();
    assert!(added < 300_000, "{added}");
    assert_eq!(rows_of(dir.path(), "many").len(), 62);
}

#[test]
fn every_media_type_of_a_layer_is_taken_for_what_its_bytes_are() {
    let dir = tempfile::tempdir().unwrap();
    let tar = TarMaker::new().file("f", b"x").done();
    let mut digests = Vec::new();
    let types = [
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.v1.tar+zstd",
        "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
    ];
    for (media_type, (_, bytes)) in types.iter().cycle().zip(forms(&tar)) {
        let image = TestImage::new(std::slice::from_ref(&tar), |_| bytes.clone());
        let image = TestImage { media_type: (*media_type).to_owned(), ..image };
        let report = image.convert_with(dir.path(), "t", &options(1), &NoKnownLayers).unwrap();
        digests.push(report.layers[0].layer.blob.digest);
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]));
}
