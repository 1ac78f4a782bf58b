//! Tests of layers: the same bytes whatever the form of the source, the threads and the parent; and errors.

mod digests;

use super::*;
use crate::apply::tests::golden::apply_reader;
use crate::disk_trees::KINDS;
use crate::disk_trees::support::{check, checker, rows, store_disk};
use crate::model_tree::ModelTree;
use crate::parent_disk::{ParentDisk, disk_of};
use crate::test_layers::{Pieces, TarMaker, forms, gzip, noise, sample_tars, staged, staging_in, zstd};
use crate::{ConvertLimits, chain_id};
use headstart_block::ReadAt;
use headstart_block::to_usize;
use headstart_image::blob::open_layer_source;
use headstart_image::new_layer::Packing;
use headstart_image::progress::Silent;
use headstart_lsmt::{Layer, Stack};
use headstart_zfile::{Codec, ZFileOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of disks here: 64 MiB.
const SIZE: u64 = 64 << 20;

fn options(threads: usize) -> ConvertOptions {
    let packing = Packing::ZFile(ZFileOptions { codec: Codec::Lz4, ..ZFileOptions::default() });
    ConvertOptions { size: SIZE, packing, threads, ..ConvertOptions::default() }
}

fn input(bytes: &[u8], tar: &[u8]) -> LayerInput<'static> {
    LayerInput {
        name: format!("layer {}", Digest::of(bytes)),
        bytes: Box::new(Pieces::new(bytes.to_vec())),
        digest: Digest::of(bytes),
        size: bytes.len() as u64,
        diff_id: Digest::of(tar),
        media_type: "application/vnd.oci.image.layer.v1.tar+gzip".to_owned(),
    }
}

fn first_place(tar: &[u8]) -> LayerPlace {
    LayerPlace { chain: Digest::of(tar), parent_chain: None, parent: None }
}

fn open(staging: &Staging, layer: &ImageLayer) -> Layer {
    let blob = staging.open(&layer.blob.digest).unwrap().unwrap();
    Layer::open(open_layer_source(Arc::new(blob)).unwrap().source).unwrap()
}

/// Converts a stack of tars; returns the layers and their disk.
fn convert_all(
    staging: &Staging,
    tars: &[Vec<u8>],
    options: &ConvertOptions,
) -> (Vec<ConvertedLayer>, Arc<dyn ReadAt>) {
    let (mut converted, mut layers, mut chain) = (Vec::new(), Vec::new(), None);
    for tar in tars {
        let own = chain_id(chain.as_ref(), &Digest::of(tar));
        let stack = (!layers.is_empty()).then(|| ParentDisk::of(Stack::new(layers.clone()).unwrap()));
        let place = LayerPlace { chain: own, parent_chain: chain, parent: stack };
        let layer = convert_layer(input(tar, tar), &place, staging, options, &Silent).unwrap();
        layers.push(open(staging, &layer.layer));
        converted.push(layer);
        chain = Some(own);
    }
    (converted, disk_of(Stack::new(layers).unwrap()))
}

fn options_of(file_system: FileSystemKind, threads: usize) -> ConvertOptions {
    ConvertOptions { file_system, ..options(threads) }
}

#[test]
fn a_stack_of_layers_is_the_tree_that_its_entries_say() {
    KINDS.into_iter().for_each(check_stack);
}

fn check_stack(kind: FileSystemKind) {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let tars = sample_tars();
    let (layers, disk) = convert_all(&staging, &tars, &options_of(kind, 2));
    let mut model = ModelTree::new();
    for (layer, tar) in layers.iter().zip(&tars) {
        let counts = apply_reader(&mut model, &tar[..]).unwrap();
        assert_eq!((layer.entries, layer.tar_bytes), (counts, tar.len() as u64));
    }
    assert_eq!(rows(&disk), model.rows());
    // A file that came again is not stored again, and a small layer is small.
    assert!(layers[1].summary.data_bytes < 1_000_000, "{:?}", layers[1].summary);
    assert!(layers[2].layer.blob.size < 8 << 10, "{}", layers[2].layer.blob.size);
    if let Some(program) = checker(kind, "the check of converted layers") {
        let path = dir.path().join("disk");
        store_disk(&disk, &path);
        check(&program, &path);
    }
    let infos: Vec<_> = layers.iter().map(|layer| open(&staging, &layer.layer).info().clone()).collect();
    assert!(infos[0].parent_uuid.is_nil() && infos.iter().all(|info| info.virtual_size == SIZE));
    assert_eq!(infos[1].parent_uuid, infos[0].uuid);
    assert_eq!(infos[0].uuid.simple().to_string(), Digest::of(&tars[0]).hex()[..32]);
    let origin = layers[2].layer.origin().unwrap();
    assert_eq!(
        (origin.digest, origin.key),
        (Digest::of(&tars[2]), options_of(kind, 1).key(&origin.chain, &origin.digest))
    );
}

#[test]
fn compression_and_threads_do_not_change_a_layer() {
    let dir = tempfile::tempdir().unwrap();
    let tar = &sample_tars()[0];
    for kind in KINDS {
        let mut found = Vec::new();
        for (name, bytes) in forms(tar) {
            for threads in [1, 2, 8] {
                let (staging, options) = (staging_in(dir.path()), options_of(kind, threads));
                let input = input(&bytes, tar);
                let layer = convert_layer(input, &first_place(tar), &staging, &options, &Silent).unwrap();
                found.push((layer.layer.blob.digest, layer.layer.tree.unwrap().root, layer.file_system));
                assert_eq!(found.last(), found.first(), "{name}, {threads} threads");
            }
        }
    }
}

#[test]
fn the_form_of_the_parent_does_not_change_a_layer() {
    KINDS.into_iter().for_each(check_parents);
}

fn check_parents(kind: FileSystemKind) {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let tars = sample_tars();
    let chain = chain_id(Some(&Digest::of(&tars[0])), &Digest::of(&tars[1]));
    let zstd = Packing::ZFile(ZFileOptions { frame_size: 4096, ..ZFileOptions::default() });
    let mut parents = Vec::new();
    for packing in [options(1).packing, zstd, Packing::Plain] {
        let options = ConvertOptions { packing, ..options_of(kind, 2) };
        parents.push(convert_all(&staging, &tars[..1], &options).1);
    }
    let mut memory = vec![0; to_usize(SIZE)];
    parents[0].read_at(&mut memory, 0).unwrap();
    parents.push(Arc::new(memory));
    let digests = parents.into_iter().map(|parent| {
        let place =
            LayerPlace { chain, parent_chain: Some(Digest::of(&tars[0])), parent: Some(parent.into()) };
        let layer = convert_layer(input(&tars[1], &tars[1]), &place, &staging, &options_of(kind, 2), &Silent);
        layer.unwrap().layer.blob.digest
    });
    let digests: Vec<_> = digests.collect();
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

#[test]
fn an_empty_layer_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let empty = TarMaker::new().done();
    let tars = [sample_tars().swap_remove(0), empty.clone()];
    for kind in KINDS {
        let options = options_of(kind, 1);
        let (layers, disk) = convert_all(&staging, &tars, &options);
        assert_eq!((layers[1].summary.segments, layers[1].file_system.metadata_blocks), (0, 0));
        assert_eq!(rows(&disk), rows(&convert_all(&staging, &tars[..1], &options).1));
        let (_, disk) = convert_all(&staging, std::slice::from_ref(&empty), &options);
        assert_eq!(rows(&disk).len(), 1);
    }
}

/// The error of a layer, after which no finished blob may be left.
#[track_caller]
fn refused(input: LayerInput<'_>, tar: &[u8], options: &ConvertOptions) -> (ErrorKind, String) {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let error = convert_layer(input, &first_place(tar), &staging, options, &Silent).unwrap_err();
    assert!(staged(&staging).is_empty());
    let path = staging.path().to_owned();
    drop(staging);
    assert!(!path.exists());
    (error.kind(), error.to_string())
}

#[test]
fn other_bytes_than_the_images_are_refused() {
    let tar = TarMaker::new().file("f", b"content").done();
    let bytes = gzip(&tar, 6);
    let digest = Digest::of(&bytes);
    for threads in [1, 2] {
        let wrong = LayerInput { digest: Digest::of(b"x"), ..input(&bytes, &tar) };
        let (kind, text) = refused(wrong, &tar, &options(threads));
        assert!(kind == ErrorKind::Corrupt && text.contains(&format!("but has {digest}")), "{text}");
        let wrong = LayerInput { diff_id: Digest::of(b"x"), ..input(&bytes, &tar) };
        let (kind, text) = refused(wrong, &tar, &options(threads));
        assert!(
            kind == ErrorKind::Corrupt && text.starts_with(&format!("layer {digest}: its tar")),
            "{text}"
        );
        for size in [0, 5, bytes.len() as u64 - 1, bytes.len() as u64 + 1] {
            let wrong = LayerInput { size, ..input(&bytes, &tar) };
            assert_eq!(refused(wrong, &tar, &options(threads)).0, ErrorKind::Corrupt, "{size}");
        }
    }
}

#[test]
fn hostile_layers_are_refused_and_the_entry_is_named() {
    let bomb = |bytes: u64| TarMaker::new().file("bomb", &vec![0; to_usize(bytes)]).done();
    let full = bomb(SIZE);
    let (kind, text) = refused(input(&zstd(&full, 1), &full), &full, &options(2));
    assert!(kind == ErrorKind::Invalid && text.contains("tar entry \"bomb\""), "{text}");
    let limits = ConvertLimits { tar_bytes: 1 << 20, ..ConvertLimits::default() };
    let limited = ConvertOptions { limits, ..options(2) };
    let large = bomb(2 << 20);
    let (kind, text) = refused(input(&gzip(&large, 9), &large), &large, &limited);
    assert!(kind == ErrorKind::Unsupported && text.contains("`tar_bytes`"), "{text}");
    let link = TarMaker::new().link("no such file", "l").done();
    let (kind, text) = refused(input(&link, &link), &link, &options(1));
    assert!(kind == ErrorKind::Corrupt && text.contains("tar entry \"l\""), "{text}");
    let noise = noise(1, 100_000);
    assert_eq!(refused(input(&noise, &noise), &noise, &options(1)).0, ErrorKind::Corrupt);
}

#[test]
fn the_extents_of_an_image_have_a_limit() {
    let limited = |extents| {
        let limits = ConvertLimits { extents, ..ConvertLimits::default() };
        ConvertOptions { limits, ..options(1) }
    };
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let tars = sample_tars();
    let (layers, _) = convert_all(&staging, &tars[..2], &limited(1 << 20));
    let [first, second] = [0, 1].map(|at| layers[at].summary.segments);
    assert!(first > 1 && second > 1);
    // Each layer alone is within the limit; the second one is so with the first.
    for (extents, is_enough) in [(first, true), (first - 1, false)] {
        let done = convert_layer(
            input(&tars[0], &tars[0]),
            &first_place(&tars[0]),
            &staging,
            &limited(extents),
            &Silent,
        );
        assert_eq!(done.is_ok(), is_enough, "{extents} of {first}");
    }
    let below = ParentDisk::of(Stack::new(vec![open(&staging, &layers[0].layer)]).unwrap());
    let all = below.extents() + second;
    for (extents, is_enough) in [(all, true), (all - 1, false), (below.extents(), false)] {
        let place = LayerPlace { parent: Some(below.clone()), ..first_place(&tars[1]) };
        let done = convert_layer(input(&tars[1], &tars[1]), &place, &staging, &limited(extents), &Silent);
        assert_eq!(done.is_ok(), is_enough, "{extents} of {all}");
    }
    let (kind, text) = refused(input(&tars[2], &tars[2]), &tars[2], &limited(0));
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("tar entry \"app/config.json\"") && text.contains("--limit extents="), "{text}");
}

#[test]
fn damaged_layers_are_refused_wherever_the_damage_is() {
    let tar = TarMaker::new().dir("d").file("d/f", &noise(3, 20_000)).symlink("f", "d/l").done();
    for (_, bytes) in forms(&tar) {
        let expected = Digest::of(&bytes);
        for at in (0..bytes.len()).step_by(bytes.len() / 20) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let changed = LayerInput { digest: expected, ..input(&damaged, &tar) };
            refused(changed, &tar, &options(1 + at % 2));
            let size = bytes.len() as u64;
            let cut = LayerInput { digest: expected, size, ..input(&bytes[..at], &tar) };
            assert_eq!(refused(cut, &tar, &options(1 + at % 2)).0, ErrorKind::Corrupt);
        }
    }
}

#[test]
fn disks_that_are_no_file_systems_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let tar = TarMaker::new().file("f", b"x").done();
    for kind in KINDS {
        for parent in [vec![0; 1 << 20], noise(1, 1 << 20), Vec::new()] {
            let parent: Arc<dyn ReadAt> = Arc::new(parent);
            let place = LayerPlace { parent: Some(parent.into()), ..first_place(&tar) };
            assert!(
                convert_layer(input(&tar, &tar), &place, &staging, &options_of(kind, 1), &Silent).is_err()
            );
        }
        for size in [0, 4096, 1 << 50, (1 << 30) + 1] {
            let options = ConvertOptions { size, ..options_of(kind, 1) };
            let error = convert_layer(input(&tar, &tar), &first_place(&tar), &staging, &options, &Silent);
            assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
    // One file system is no parent of the other.
    for (below, above) in KINDS.into_iter().zip(KINDS.into_iter().rev()) {
        let (_, disk) = convert_all(&staging, std::slice::from_ref(&tar), &options_of(below, 1));
        let place = LayerPlace { parent: Some(disk.into()), ..first_place(&tar) };
        let refused = convert_layer(input(&tar, &tar), &place, &staging, &options_of(above, 1), &Silent);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

/// A user that stops after some bytes.
struct Stopping {
    after: u64,
    done: AtomicU64,
}

impl Progress for Stopping {
    fn begin(&self, _task: &'static str, _total: u64) {}

    fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.done.load(Ordering::Relaxed) >= self.after
    }
}

#[test]
fn progress_counts_the_compressed_bytes_and_can_stop() {
    let dir = tempfile::tempdir().unwrap();
    let tar = &sample_tars()[0];
    let bytes = gzip(tar, 1);
    for threads in [1, 2] {
        let staging = staging_in(dir.path());
        let progress = Stopping { after: u64::MAX, done: AtomicU64::new(0) };
        convert_layer(input(&bytes, tar), &first_place(tar), &staging, &options(threads), &progress).unwrap();
        assert_eq!(progress.done.into_inner(), bytes.len() as u64);
        let progress = Stopping { after: 100_000, done: AtomicU64::new(0) };
        let error =
            convert_layer(input(&bytes, tar), &first_place(tar), &staging, &options(threads), &progress);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Cancelled);
    }
}
