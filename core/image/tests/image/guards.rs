//! Accidents that must not happen to the bytes of an image: damage that is passed on, and deleted data that comes back.

use headstart_block::{BlockDevice, Digest, ErrorKind};
use headstart_image::commit::{Upper, commit, flatten};
use headstart_image::disk_file::{DiskFile, DiskFormat};
use headstart_image::export::export_disk;
use headstart_image::import::import_disk;
use headstart_image::new_layer::Packing;
use headstart_image::open_image::OpenImage;
use headstart_image::progress::Silent;
use headstart_image::reference::Reference;
use headstart_image::stacked::{CommittedLayer, stack_on};
use headstart_image::store::ImageStore;
use headstart_lsmt::LayerMeta;
use headstart_lsmt::writable::{NewDisk, WritableDisk};
use headstart_testkit::disk::noise;
use headstart_zfile::{Codec, ZFileOptions};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn image(dir: &Path, tag: &str) -> Reference {
    format!("file://{}/store:{tag}", dir.display()).parse().unwrap()
}

fn import(dir: &Path, bytes: &[u8], base: Option<&Reference>, tag: &str, packing: &Packing) -> Reference {
    let (path, target) = (dir.join("disk.raw"), image(dir, tag));
    fs::write(&path, bytes).unwrap();
    import_disk(&DiskFile::at(path), base, &target, packing, &Silent).unwrap();
    target
}

#[test]
fn damage_without_frame_checksums_is_not_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let packing = Packing::ZFile(ZFileOptions { codec: Codec::Lz4, crc: false, ..ZFileOptions::default() });
    let whole = import(dir, &noise(1, 4 * MIB), None, "whole", &packing);
    let blob = OpenImage::open(&whole).unwrap().layers[0].blob.blob.digest;
    let stored = ImageStore::open(whole.directory().unwrap()).unwrap().open_blob(&blob).unwrap();
    let file = File::options().read(true).write(true).open(stored.path()).unwrap();
    let (mut byte, middle) = ([0], file.metadata().unwrap().len() / 2);
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 1], middle).unwrap();

    let open = OpenImage::open(&whole).unwrap();
    let out = dir.join("out.raw");
    let exported = export_disk(open.disk(), (&out, &[]), DiskFormat::Raw, 2, &Silent);
    assert_eq!(exported.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(!out.exists());
    let flat = flatten(&whole, &image(dir, "flat"), &packing, &Silent);
    let error = flatten_error(flat);
    assert!(error.contains("fetch or import it again"), "{error}");
    let disk = dir.join("disk.raw");
    let layered = import_disk(&DiskFile::at(disk), Some(&whole), &image(dir, "layered"), &packing, &Silent);
    assert_eq!(layered.err().unwrap().kind(), ErrorKind::Corrupt);
}

fn flatten_error<T>(result: headstart_block::Result<T>) -> String {
    let error = result.err().expect("damage is an error");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    error.to_string()
}

#[test]
fn an_image_whose_hash_tree_got_lost_is_checked_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let whole = import(dir, &noise(1, MIB), None, "whole", &Packing::default());
    let tree = OpenImage::open(&whole).unwrap().layers[0].blob.tree.unwrap();
    let store = ImageStore::open(whole.directory().unwrap()).unwrap();
    fs::remove_file(store.open_tree(&tree).unwrap().path()).unwrap();
    let open = OpenImage::open(&whole).unwrap();
    let mut bytes = vec![0; MIB];
    open.disk().read_at(&mut bytes, 0).unwrap();
    assert!(bytes == noise(1, MIB));
}

/// Goal: data past a base's end stays hidden. Method: a lower layer of 2 MiB under a top layer of 1 MiB, as other tools
/// make them, too.
#[test]
fn data_past_the_end_of_a_base_stays_hidden() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let packing = Packing::default();
    let large = import(dir, &vec![b'A'; 2 * MIB], None, "large", &packing);

    // A writable layer of 1 MiB on nothing, committed on top of the larger image as a pair.
    let new = NewDisk { size: MIB as u64, parent: String::new(), uuid: uuid::Uuid::from_u128(1) };
    let small = WritableDisk::create(dir.join("small"), None, &new).unwrap();
    small.write_at(&[b'B'; 4096], 0).unwrap();
    small.flush().unwrap();
    drop(small);
    let pair = Upper::Pair { data: dir.join("small/data"), index: dir.join("small/index") };
    let base = image(dir, "small");
    commit(&pair, Some(&large), &base, &packing, &Silent).unwrap();
    let opened = OpenImage::open(&base).unwrap();
    assert_eq!(opened.disk().size(), MIB as u64);

    // A disk of 2 MiB on it reads as zeros past 1 MiB, before its commit and after.
    let new =
        NewDisk { size: 2 * MIB as u64, parent: opened.digest.to_string(), uuid: uuid::Uuid::from_u128(2) };
    let below: Arc<dyn BlockDevice> = Arc::new(opened.into_disk());
    let grown = WritableDisk::create(dir.join("grown"), Some(below), &new).unwrap();
    grown.write_at(&[b'C'; 512], (2 * MIB - 512) as u64).unwrap();
    grown.flush().unwrap();
    let mut seen = vec![1; 2 * MIB];
    grown.read_at(&mut seen, 0).unwrap();
    drop(grown);
    let target = image(dir, "grown");
    commit(
        &Upper::Writable { dir: dir.join("grown"), stack: false },
        Some(&base),
        &target,
        &packing,
        &Silent,
    )
    .unwrap();
    let mut committed = vec![1; 2 * MIB];
    OpenImage::open(&target).unwrap().disk().read_at(&mut committed, 0).unwrap();
    assert!(seen[MIB..2 * MIB - 512].iter().all(|byte| *byte == 0));
    assert!(committed == seen);
}

/// The image that a disk goes on with must have the layer on top that the disk has committed: its data is dropped.
#[test]
fn a_disk_goes_on_with_no_image_but_that_of_its_commit() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (vm, id) = (dir.join("vm"), uuid::Uuid::from_u128(1));
    let new = NewDisk { size: MIB as u64, parent: String::new(), uuid: id };
    let disk = WritableDisk::create(&vm, None, &new).unwrap();
    disk.write_at(&[b'A'; 4096], 0).unwrap();
    drop(disk);
    let (earlier, later) = (image(dir, "earlier"), image(dir, "later"));
    let made = |target: &Reference| {
        let upper = Upper::Writable { dir: vm.clone(), stack: false };
        commit(&upper, None, target, &Packing::Plain, &Silent).unwrap().digest
    };
    let earlier_digest = made(&earlier);
    let disk = WritableDisk::open(&vm, None, "").unwrap();
    disk.write_at(&[b'B'; 4096], 64 << 10).unwrap();
    drop(disk);
    let later_digest = made(&later);
    let disk = WritableDisk::open(&vm, None, "").unwrap();
    let (layer, summary) = disk.begin_stack().unwrap().write(Vec::new(), LayerMeta::default()).unwrap();
    let blob = CommittedLayer::Blob(Digest::of(&layer));
    for committed in [CommittedLayer::Written(summary), blob] {
        let stacked = stack_on(&disk, &vm, &earlier, (earlier_digest, committed), id);
        assert_eq!(stacked.unwrap_err().kind(), ErrorKind::Conflict);
    }
    let mut found = vec![0; 4096];
    disk.read_at(&mut found, 64 << 10).unwrap();
    assert!(found == [b'B'; 4096] && disk.parent().is_empty());
    stack_on(&disk, &vm, &later, (later_digest, CommittedLayer::Written(summary)), id).unwrap();
    disk.read_at(&mut found, 64 << 10).unwrap();
    assert!(found == [b'B'; 4096] && disk.parent() == later_digest.to_string());
}
