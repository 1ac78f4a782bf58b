//! Tests of TurboOCI layers: they are the disks that native layers are, with the data left in the tars.

use crate::apply::tests::golden::apply_reader;
use crate::disk_trees::support::{check, e2fsck, rows, store_disk};
use crate::model_tree::ModelTree;
use crate::parent_disk::{OpenLayers, ParentDisk, disk_of};
use crate::test_layers::{Pieces, TarMaker, forms, gzip, noise, sample_tars, staging_in, zstd};
use crate::{ConvertMode, ConvertOptions, ConvertedLayer, LayerInput, LayerPlace, chain_id, convert_layer};
use headstart_block::{Digest, ErrorKind, ReadAt, to_usize};
use headstart_image::blob::open_layer_source;
use headstart_image::new_layer::Packing;
use headstart_image::progress::Silent;
use headstart_image::store::Staging;
use headstart_image::turbo::{InflatedCache, PackageBudget, TurboLayer};
use headstart_lsmt::{Layer, Stack};
use headstart_turbo::TurboPackage;
use headstart_zfile::{Codec, ZFileOptions};
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

mod digests;

/// The size of disks here: 32 MiB.
const SIZE: u64 = 32 << 20;

fn options(mode: ConvertMode, threads: usize) -> ConvertOptions {
    let packing = Packing::ZFile(ZFileOptions { codec: Codec::Lz4, ..ZFileOptions::default() });
    ConvertOptions { mode, size: SIZE, packing, threads, ..ConvertOptions::default() }
}

fn input(bytes: &[u8], tar: &[u8]) -> LayerInput<'static> {
    LayerInput {
        name: "layer".to_owned(),
        bytes: Box::new(Pieces::new(bytes.to_vec())),
        digest: Digest::of(bytes),
        size: bytes.len() as u64,
        diff_id: Digest::of(tar),
        media_type: "application/vnd.docker.image.rootfs.diff.tar.gzip".to_owned(),
    }
}

/// Opens a layer for reading; `target` is the container's layer as stored.
fn open(staging: &Staging, layer: &ConvertedLayer, target: &[u8]) -> Layer {
    let blob = staging.open(&layer.layer.blob.digest).unwrap().unwrap();
    if !layer.layer.is_turbo() {
        return Layer::open(open_layer_source(Arc::new(blob)).unwrap().source).unwrap();
    }
    let turbo = TurboLayer::read(&layer.layer, &blob, &mut PackageBudget::default()).unwrap();
    assert_eq!(turbo.target(), Digest::of(target));
    let target: Arc<dyn ReadAt> = Arc::new(target.to_vec());
    turbo.open(target, &InflatedCache::new(InflatedCache::DEFAULT_BYTES)).unwrap().1
}

/// Converts a stack of tars, each in one stored form; returns the layers and their disk.
fn convert_all(
    staging: &Staging,
    tars: &[(Vec<u8>, Vec<u8>)],
    options: &ConvertOptions,
) -> (Vec<ConvertedLayer>, Arc<dyn ReadAt>) {
    let (mut converted, mut layers, mut chain) = (Vec::<ConvertedLayer>::new(), Vec::new(), None);
    let mut below = OpenLayers::default();
    for (stored, tar) in tars {
        let own = chain_id(chain.as_ref(), &Digest::of(tar));
        let place = LayerPlace { chain: own, parent_chain: chain, parent: below.disk().unwrap() };
        let layer = convert_layer(input(stored, tar), &place, staging, options, &Silent).unwrap();
        layers.push(open(staging, &layer, stored));
        let blob = staging.open(&layer.layer.blob.digest).unwrap().unwrap();
        below.push(&layer.layer, Arc::new(blob), stored.len() as u64).unwrap();
        converted.push(layer);
        chain = Some(own);
    }
    (converted, disk_of(Stack::new(layers).unwrap()))
}

fn in_gzip(tars: &[Vec<u8>]) -> Vec<(Vec<u8>, Vec<u8>)> {
    tars.iter().map(|tar| (gzip(tar, 6), tar.clone())).collect()
}

fn checker() -> Option<&'static PathBuf> {
    static E2FSCK: OnceLock<Option<PathBuf>> = OnceLock::new();
    E2FSCK.get_or_init(|| e2fsck("the check of TurboOCI layers")).as_ref()
}

/// Checks that a disk is clean, and has the tree that the layers' entries say.
#[track_caller]
fn check_disk(disk: &Arc<dyn ReadAt>, tars: &[(Vec<u8>, Vec<u8>)]) {
    let mut model = ModelTree::new();
    for (_, tar) in tars {
        apply_reader(&mut model, &tar[..]).unwrap();
    }
    assert_eq!(rows(disk), model.rows());
    if let Some(e2fsck) = checker() {
        let dir = tempfile::tempdir().unwrap();
        store_disk(disk, &dir.path().join("disk"));
        check(e2fsck, &dir.path().join("disk"));
    }
}

#[test]
fn a_stack_is_the_tree_of_its_entries_and_stores_no_data() {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let tars = in_gzip(&sample_tars());
    let (layers, disk) = convert_all(&staging, &tars, &options(ConvertMode::Turbo, 2));
    check_disk(&disk, &tars);
    let sizes: Vec<_> = layers.iter().map(|layer| layer.layer.blob.size).collect();
    assert!(sizes[0] < 60 << 10 && sizes[1] < 16 << 10 && sizes[2] < 4 << 10, "{sizes:?}");
    assert!(layers.iter().all(|layer| layer.layer.is_turbo()));
    // The first file of the sample has 37 bytes, the largest 3 MB.
    assert!(layers[0].summary.segments > 300 && layers[0].summary.data_bytes < 1 << 20);
    let annotations = &layers[1].layer.annotations;
    let overlaybd = |key: &str| annotations[&format!("containerd.io/snapshot/overlaybd/{key}")].as_str();
    assert_eq!(overlaybd("version"), "0.1.0-turbo.ociv1");
    assert_eq!(overlaybd("turbo-oci/target-digest"), Digest::of(&tars[1].0).to_string());
    let media_type = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    assert_eq!(overlaybd("turbo-oci/target-media-type"), media_type);
    assert_eq!(overlaybd("blob-size"), sizes[1].to_string());
    assert_eq!(layers[1].layer.blob.media_type, "application/vnd.oci.image.layer.v1.tar+gzip");
    assert_ne!(layers[1].layer.diff_id(), layers[1].layer.blob.digest);
    let below = layers[0].layer.origin().unwrap();
    assert_eq!(
        layers[1].layer.origin().unwrap().chain,
        chain_id(Some(&below.chain), &Digest::of(&tars[1].1))
    );
}

#[test]
fn threads_do_not_change_a_package_and_only_gzip_has_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let tar = &sample_tars()[0];
    let place = LayerPlace { chain: Digest::of(tar), parent_chain: None, parent: None };
    for (name, stored) in forms(tar) {
        let layers = [1, 2, 8].map(|threads| {
            let staging = staging_in(dir.path());
            let options = options(ConvertMode::Turbo, threads);
            let layer = convert_layer(input(&stored, tar), &place, &staging, &options, &Silent).unwrap();
            let blob = staging.open(&layer.layer.blob.digest).unwrap().unwrap();
            let disk = disk_of(Stack::new(vec![open(&staging, &layer, &stored)]).unwrap());
            check_disk(&disk, &[(stored.clone(), tar.clone())]);
            let open = || TurboPackage::open(&blob, &mut PackageBudget::default()).unwrap();
            let package = layer.layer.is_turbo().then(open);
            let files = package.map(|package| {
                let metadata = package.ext4.and_then(|file| file.as_slice().map(<[u8]>::to_vec));
                (metadata, package.gzip_index.is_some())
            });
            (layer.layer.blob, files)
        });
        assert_eq!(layers[0], layers[1], "{name}");
        assert_eq!(layers[0], layers[2], "{name}");
        let has_index = layers[0].1.as_ref().map(|(_, has_index)| *has_index);
        let expected = if name.starts_with("zstd") { None } else { Some(name.starts_with("gzip")) };
        assert_eq!(has_index, expected, "{name}");
    }
}

#[test]
fn layers_of_both_kinds_are_one_disk() {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    for shift in 0..3 {
        let form = |(number, tar): (usize, Vec<u8>)| match (number + shift) % 3 {
            0 => (gzip(&tar, 1), tar),
            1 => (zstd(&tar, 3), tar),
            _ => (tar.clone(), tar),
        };
        let tars: Vec<_> = sample_tars().into_iter().enumerate().map(form).collect();
        let (layers, disk) = convert_all(&staging, &tars, &options(ConvertMode::Turbo, 2));
        check_disk(&disk, &tars);
        let kinds: Vec<_> = layers.iter().map(|layer| layer.layer.is_turbo()).collect();
        let zstd = (4 - shift) % 3;
        assert_eq!(kinds, [0, 1, 2].map(|number| number != zstd));
    }
}

#[test]
fn the_compression_of_layers_below_does_not_change_a_package() {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let tars = sample_tars();
    let top = |form: fn(&[u8]) -> Vec<u8>| {
        let below = tars[..2].iter().map(|tar| (form(tar), tar.clone()));
        let stack: Vec<_> = below.chain(in_gzip(&tars[2..])).collect();
        convert_all(&staging, &stack, &options(ConvertMode::Turbo, 1)).0[2].layer.blob.digest
    };
    let digests = [top(|tar| gzip(tar, 9)), top(|tar| zstd(tar, 3)), top(<[u8]>::to_vec)];
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

/// The bytes of a disk behind the only place of `content`, up to the end of its block.
#[track_caller]
fn tail(disk: &Arc<dyn ReadAt>, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; to_usize(disk.len())];
    disk.read_at(&mut bytes, 0).unwrap();
    let places = (0..bytes.len()).step_by(4096).filter(|at| bytes[*at..].starts_with(content));
    let places: Vec<_> = places.collect();
    assert_eq!(places.len(), 1);
    let end = places[0] + content.len();
    bytes[end..end.next_multiple_of(4096)].to_vec()
}

#[test]
fn padding_that_is_not_zero_does_not_show_behind_a_file() {
    let content = noise(5, 5000);
    let mut tar = TarMaker::new().file("f", &content).file("g", b"g").done();
    let end = 512 + content.len();
    tar[end..end.next_multiple_of(512)].fill(0xee);
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    for stored in [tar.clone(), gzip(&tar, 6)] {
        let tars = [(stored, tar.clone())];
        let (layers, disk) = convert_all(&staging, &tars, &options(ConvertMode::Turbo, 2));
        check_disk(&disk, &tars);
        assert!(layers[0].layer.is_turbo() && tail(&disk, &content).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn data_of_a_file_that_is_gone_does_not_show_behind_another() {
    let old = vec![0xee; 64 << 10];
    let new = noise(6, 5000);
    // The last file goes, and its blocks are the next ones that are free.
    let tars = [
        TarMaker::new().file("kept", b"x").file("gone", &old).done(),
        TarMaker::new().file(".wh.gone", b"").done(),
        TarMaker::new().file("new", &new).done(),
    ];
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let tars = in_gzip(&tars);
    let (layers, disk) = convert_all(&staging, &tars, &options(ConvertMode::Turbo, 1));
    check_disk(&disk, &tars);
    assert!(tail(&disk, &new).iter().all(|byte| *byte == 0));
    let zeroed = |number: usize| {
        let layer = open(&staging, &layers[number], &tars[number].0);
        layer.segments().iter().filter(|segment| segment.is_zeroed()).count()
    };
    assert_eq!((zeroed(0), zeroed(2)), (0, 1));
}

#[test]
fn metadata_comes_where_a_file_that_is_gone_has_its_bytes_in_a_tar() {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    // The directories of the last layer take the blocks of the file that the second one removes.
    let dirs = (0..40).fold(TarMaker::new(), |tar, number| tar.dir(&format!("d{number}")));
    let tars = [
        TarMaker::new().file("kept", b"x").file("gone", &noise(7, 256 << 10)).done(),
        TarMaker::new().file(".wh.gone", b"").done(),
        dirs.symlink(&"t".repeat(100), "link").done(),
    ];
    let options = options(ConvertMode::Turbo, 1);
    for top in [gzip(&tars[2], 6), zstd(&tars[2], 1)] {
        let mut converted = Vec::new();
        for form in 0..3 {
            let below = |tar: &Vec<u8>| match form {
                0 => gzip(tar, 6),
                1 => zstd(tar, 1),
                _ => tar.clone(),
            };
            let lower = tars[..2].iter().map(|tar| (below(tar), tar.clone()));
            let stack: Vec<_> = lower.chain([(top.clone(), tars[2].clone())]).collect();
            let (mut layers, disk) = convert_all(&staging, &stack, &options);
            check_disk(&disk, &stack);
            let layer = layers.remove(2);
            assert!(layer.file_system.metadata_blocks > 40, "{:?}", layer.file_system);
            converted.push(layer.layer);
        }
        // Each form of the layers below gives the same bytes, whether the file's could be read or not.
        assert!(converted.iter().all(|layer| *layer == converted[0]), "{converted:?}");
    }
}

#[test]
fn sparse_files_stay_in_the_tar_where_their_runs_lie_alike() {
    let (a, b, c) = (noise(1, 8192), noise(2, 1024), noise(3, 700));
    let alike = [(0, &a[..]), (1 << 20, &b), ((2 << 20) + 512, &c)];
    let moved = [(100, &a[..]), (1 << 20, &b)];
    let tar = TarMaker::new().sparse("alike", 3 << 20, &alike).sparse("moved", 2 << 20, &moved).done();
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let tars = in_gzip(&[tar]);
    let (layers, disk) = convert_all(&staging, &tars, &options(ConvertMode::Turbo, 1));
    check_disk(&disk, &tars);
    let layer = open(&staging, &layers[0], &tars[0].0);
    let target = layer.target().unwrap().segments();
    let sectors: u64 = target.iter().map(|segment| segment.len()).sum();
    // All of the first file, and the second run of the other.
    assert_eq!(sectors, 16 + 2 + 2 + 2, "{target:?}");
}

#[test]
fn a_chmod_of_everything_stores_inodes_only_and_reads_no_data() {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let files = |program: bool| {
        (0..40).fold(TarMaker::new(), |tar, number| {
            let (path, content) = (format!("f{number}"), noise(number, 20_000));
            if program { tar.program(&path, &content) } else { tar.file(&path, &content) }
        })
    };
    // The parent's data cannot be read here: it is not there.
    let tars = in_gzip(&[files(false).done(), files(true).done()]);
    let (layers, disk) = convert_all(&staging, &tars, &options(ConvertMode::Turbo, 1));
    check_disk(&disk, &tars);
    assert_eq!(layers[1].entries.replaced_files, 40);
    assert!(layers[1].layer.blob.size < 8 << 10, "{}", layers[1].layer.blob.size);
}

#[test]
fn other_bytes_than_the_images_are_refused() {
    let tar = TarMaker::new().file("f", &noise(3, 20_000)).done();
    let place = LayerPlace { chain: Digest::of(&tar), parent_chain: None, parent: None };
    let refused = |input: LayerInput<'_>, threads| {
        let dir = tempfile::tempdir().unwrap();
        let staging = staging_in(dir.path());
        let options = options(ConvertMode::Turbo, threads);
        let error = convert_layer(input, &place, &staging, &options, &Silent).unwrap_err();
        assert!(error.to_string().starts_with("layer: "), "{error}");
        assert!(crate::test_layers::staged(&staging).is_empty());
        error.kind()
    };
    for stored in [tar.clone(), gzip(&tar, 6), [gzip(&tar[..5000], 6), gzip(&tar[5000..], 1)].concat()] {
        for threads in [1, 2] {
            let other = Digest::of(b"x");
            let wrong = LayerInput { digest: other, ..input(&stored, &tar) };
            assert_eq!(refused(wrong, threads), ErrorKind::Corrupt);
            let wrong = LayerInput { diff_id: other, ..input(&stored, &tar) };
            assert_eq!(refused(wrong, threads), ErrorKind::Corrupt);
            for at in (0..stored.len()).step_by(stored.len() / 12) {
                let cut = LayerInput { size: stored.len() as u64, ..input(&stored[..at], &tar) };
                assert_eq!(refused(cut, threads), ErrorKind::Corrupt, "{at}");
                let mut damaged = stored.clone();
                damaged[at] ^= 0x10;
                let damaged = LayerInput { digest: Digest::of(&stored), ..input(&damaged, &tar) };
                refused(damaged, threads);
            }
        }
    }
}

/// A change of one layer.
#[derive(Clone, Debug)]
enum Change {
    File(u8, usize),
    Sparse(u8, Vec<(u64, usize)>),
    Dir(u8),
    Link(u8, u8),
    Symlink(u8),
    Gone(u8),
    Opaque,
}

fn change() -> impl Strategy<Value = Change> {
    let size = prop_oneof![0..3_usize, 500..520_usize, 4090..4100_usize, 0..20_000_usize];
    let gap = prop_oneof![Just(0_u64), Just(512), Just(4096), 0..9000_u64];
    prop_oneof![
        4 => (0..12_u8, size.clone()).prop_map(|(name, len)| Change::File(name, len)),
        2 => (0..12_u8, prop::collection::vec((gap, size), 1..5)).prop_map(|(name, runs)| Change::Sparse(name, runs)),
        1 => (0..12_u8).prop_map(Change::Dir),
        1 => (0..6_u8, 6..12_u8).prop_map(|(from, to)| Change::Link(from, to)),
        1 => (0..12_u8).prop_map(Change::Symlink),
        2 => (0..12_u8).prop_map(Change::Gone),
        1 => Just(Change::Opaque),
    ]
}

fn tar_of(changes: &[Change], seed: u64) -> Vec<u8> {
    let path = |name: u8| if name.is_multiple_of(2) { format!("n{name}") } else { format!("d/n{name}") };
    let mut tar = TarMaker::new();
    for (number, change) in (seed..).zip(changes) {
        tar = match change {
            Change::File(name, len) => tar.file(&path(*name), &noise(number, *len)),
            Change::Sparse(name, lens) => {
                let mut at = 0;
                let mut runs = Vec::new();
                for (gap, len) in lens {
                    runs.push((at + gap, noise(number, *len)));
                    at += gap + *len as u64;
                }
                let runs: Vec<_> = runs.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
                tar.sparse(&path(*name), at + 100, &runs)
            }
            Change::Dir(name) => tar.dir(&path(*name)),
            Change::Link(from, to) => {
                tar.file(&path(*from), &noise(number, 600)).link(&path(*from), &path(*to))
            }
            Change::Symlink(name) => tar.symlink("n0", &path(*name)),
            Change::Gone(name) if name.is_multiple_of(2) => tar.file(&format!(".wh.n{name}"), b""),
            Change::Gone(name) => tar.file(&format!("d/.wh.n{name}"), b""),
            Change::Opaque => tar.file("d/.wh..wh..opq", b""),
        };
    }
    tar.done()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_layers_give_the_files_of_native_ones(
        layers in prop::collection::vec((prop::collection::vec(change(), 0..12), 0..4_u8), 1..4),
    ) {
        let form = |tar: &[u8], form: u8| match form {
            0 => tar.to_vec(),
            1 => zstd(tar, 1),
            _ => gzip(tar, u32::from(form)),
        };
        let tars = layers.iter().zip((0..).step_by(100)).map(|((changes, kind), seed)| {
            let tar = tar_of(changes, seed);
            (form(&tar, *kind), tar)
        });
        let tars: Vec<_> = tars.collect();
        let dir = tempfile::tempdir().unwrap();
        let staging = staging_in(dir.path());
        let native = convert_all(&staging, &tars, &options(ConvertMode::Native, 1)).1;
        let turbo = convert_all(&staging, &tars, &options(ConvertMode::Turbo, 1)).1;
        prop_assert_eq!(rows(&turbo), rows(&native));
        check_disk(&turbo, &tars);
    }
}

#[test]
fn a_parent_without_layers_serves_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let tars = in_gzip(&sample_tars()[..2]);
    let options = options(ConvertMode::Turbo, 1);
    let (layers, _) = convert_all(&staging, &tars, &options);
    let (_, disk) = convert_all(&staging, &tars[..1], &options);
    let mut memory = vec![0; to_usize(SIZE)];
    disk.read_at(&mut memory, 0).unwrap();
    let parent: Arc<dyn ReadAt> = Arc::new(memory);
    let chain = layers[1].layer.origin().unwrap().chain;
    let parent_chain = Some(Digest::of(&tars[0].1));
    let place = LayerPlace { chain, parent_chain, parent: Some(ParentDisk::from(parent)) };
    let layer = convert_layer(input(&tars[1].0, &tars[1].1), &place, &staging, &options, &Silent).unwrap();
    assert_eq!(layer.layer, layers[1].layer);
}

#[test]
fn the_extents_of_a_package_have_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    // Each file is an extent, because the end of its block is not in the tar.
    let tar =
        (0..100).fold(TarMaker::new(), |tar, n| tar.file(&format!("file-{n:02}"), &noise(n, 700))).done();
    let stored = gzip(&tar, 6);
    let convert = |extents| {
        let mut options = options(ConvertMode::Turbo, 1);
        options.limits.extents = extents;
        let place = LayerPlace { chain: Digest::of(&tar), parent_chain: None, parent: None };
        convert_layer(input(&stored, &tar), &place, &staging, &options, &Silent)
    };
    let segments = convert(1 << 20).unwrap().summary.segments;
    assert!(segments > 100, "{segments}");
    assert!(convert(segments).is_ok());
    let error = convert(segments - 1).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported, "{error}");
    let text = convert(50).unwrap_err().to_string();
    assert!(text.contains("tar entry \"file-50\"") && text.contains("--limit extents=100"), "{text}");
}
