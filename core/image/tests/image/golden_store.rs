//! An image made by the reference implementation, in a store laid out by hand: its manifest and config are read as they
//! are, its blobs are found in their wrappers, and new documents can be put on top of it.
//!
//! The blobs are beside the repository (`formats/golden`); without them the tests say so and pass.

use headstart_block::{ByteRange, Digest, ErrorKind, PlanItem};
use headstart_hash_tree::HashTree;
use headstart_hash_tree::sums::HashingWriter;
use headstart_image::blob::open_layer_source;
use headstart_image::diff::diff;
use headstart_image::manifest::{BLOB_DIGEST, Manifest, NewImage};
use headstart_image::new_layer::Packing;
use headstart_image::open_image::OpenImage;
use headstart_image::optimize::{Form, OptimizeRequest, Source, boot_order, optimize};
use headstart_image::progress::Silent;
use headstart_image::reference::{Reference, Selector, Tag};
use headstart_image::store::{ImageStore, PruneOptions};
use headstart_image::store_access::StoreAccess;
use headstart_image::tar_wrapper;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The bounds of a prune that deletes images as soon as they lose their last name.
const AT_ONCE: PruneOptions =
    PruneOptions { now: SystemTime::UNIX_EPOCH, older_than: Duration::ZERO, force: false, dry_run: false };

fn golden() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/formats/golden");
    if !dir.is_dir() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no golden blobs at {}", dir.display());
    }
    dir.is_dir().then_some(dir)
}

fn layer_file(golden: &Path, n: usize) -> PathBuf {
    golden.join(format!("oci/img3.layer{n}.overlaybd.commit"))
}

/// The places of the blobs in their wrappers (offset and length), as in `golden.json`.
const WRAPPED: [(u64, u64); 2] = [(1536, 2_063_036), (1536, 1_006_511)];

/// The store as another tool would have made it.
fn lay_out(golden: &Path, root: &Path) -> ImageStore {
    let store = ImageStore::create_or_open(root).unwrap();
    let mut blobs = vec![golden.join("manifest.example.json"), golden.join("config.example.json")];
    blobs.extend((0..3).map(|n| layer_file(golden, n)));
    for path in blobs {
        let bytes = fs::read(path).unwrap();
        fs::write(root.join("blobs/sha256").join(Digest::of(&bytes).hex()), bytes).unwrap();
    }
    let manifest = Digest::of(&fs::read(golden.join("manifest.example.json")).unwrap());
    store.tag(&manifest, &Tag::default()).unwrap();
    store
}

#[test]
fn an_image_of_the_reference_is_read_from_its_store() {
    let Some(golden) = golden() else { return };
    let dir = tempfile::tempdir().unwrap();
    lay_out(&golden, dir.path());
    let reference: Reference = format!("file://{}", dir.path().display()).parse().unwrap();
    let (store, image) = ImageStore::open_image(&reference).unwrap();
    assert_eq!((image.manifest.layers.len(), image.manifest.virtual_size), (3, None));
    let config = store.config(&image.manifest).unwrap();
    assert_eq!(config.diff_ids(), image.manifest.layers.iter().map(|l| l.blob.digest).collect::<Vec<_>>());
    for (n, layer) in image.manifest.layers.iter().enumerate() {
        assert!(
            layer.annotations.contains_key(BLOB_DIGEST)
                && layer.tree.is_none()
                && !layer.is_turbo()
                && !layer.is_acceleration()
        );
        let blob = Arc::new(store.open_layer(layer).unwrap());
        if let Some((offset, len)) = WRAPPED.get(n) {
            let range = tar_wrapper::locate(&blob).unwrap().unwrap();
            assert_eq!((range.offset(), range.len()), (*offset, *len), "layer {n}");
        }
        let source = open_layer_source(blob).unwrap();
        assert!(source.in_tar && source.zfile().is_some(), "layer {n}");
        let lsmt = headstart_lsmt::Layer::open(source.source).unwrap();
        assert_eq!(lsmt.info().virtual_size, 1 << 30, "layer {n}");
    }
    assert_eq!(store.prune(&AT_ONCE).unwrap().blobs, 0);
}

#[test]
fn an_image_on_top_of_it_keeps_its_layers() {
    let Some(golden) = golden() else { return };
    let dir = tempfile::tempdir().unwrap();
    let store = lay_out(&golden, dir.path());
    let base = store.resolve(&Selector::Tag(Tag::default())).unwrap();
    let staging = store.stage().unwrap();
    let mut writer = staging.blob_writer().unwrap();
    writer.write_all(&[5; 100_000]).unwrap();
    let mut layers = base.manifest.layers.clone();
    layers.push(writer.finish().unwrap().layer());
    let config = store.config(&base.manifest).unwrap();
    let image = NewImage {
        layers,
        virtual_size: 1 << 30,
        options: "test".to_owned(),
        config,
        optimized_from: None,
        converted_from: None,
        belongs_to: None,
    };
    let tag: Tag = "top".parse().unwrap();
    let made = staging.publish(&image, &tag).unwrap();
    let read = store.resolve(&Selector::Tag(tag)).unwrap();
    assert_eq!((read.digest, &read.manifest), (made.digest, &made.manifest));
    assert_eq!(read.manifest.layers[..3], base.manifest.layers[..]);
    store.remove(&Selector::Tag(Tag::default())).unwrap();
    // Only the base's own manifest and config are removed.
    assert_eq!(store.prune(&AT_ONCE).unwrap().blobs, 2);
    for layer in &read.manifest.layers {
        store.open_layer(layer).unwrap();
    }
}

#[test]
fn an_image_of_the_reference_gets_a_boot_layer() {
    let Some(golden) = golden() else { return };
    let dir = tempfile::tempdir().unwrap();
    lay_out(&golden, dir.path());
    let image = |tag: &str| format!("file://{}:{tag}", dir.path().display()).parse::<Reference>().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let settings = headstart_store::StoreSettings::default();
    let stores = StoreAccess { settings: &settings, runtime: runtime.handle() };
    let plan: Vec<_> = [300, 0, 1, 64, 2].map(|block| PlanItem { block, mask: 0x0f0f_ffff }).into();
    let (target, packing) = (image("fast"), Packing::default());
    let request =
        OptimizeRequest { target: &target, plans: &[&plan], packing: &packing, form: Form::BootLayer };
    let source = Source::open(&image("latest"), stores).unwrap();
    let made = optimize(&source, &request, stores, &Silent).unwrap();
    assert_eq!((made.layers, made.cost[1].requests), (4, 1));
    assert!(diff(&image("latest"), &target, &Silent).unwrap().is_empty());
    let open = OpenImage::open(&target).unwrap();
    assert!(
        open.layers[..3].iter().all(|layer| layer.blob.tree.is_none()) && open.layers[3].blob.tree.is_some()
    );
    assert_eq!(boot_order(open.disk(), &open.manifest).first().map(|item| item.block), Some(0));
}

#[test]
fn an_ordinary_container_layer_is_called_what_it_is() {
    let Some(golden) = golden() else { return };
    for name in ["oci/img3.layer0.tar.gz", "oci/img3.layer2.tar.zst"] {
        let bytes = fs::read(golden.join(name)).unwrap();
        let error = open_layer_source(Arc::new(bytes)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        assert!(error.to_string().contains("container"), "{error}");
    }
}

#[test]
fn a_flipped_byte_of_a_blob_fails_its_tree() {
    let Some(golden) = golden() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(layer_file(&golden, 2)).unwrap();
    let mut outboard = Vec::new();
    let mut writer = HashingWriter::new(std::io::sink(), dir.path());
    writer.write_all(&bytes).unwrap();
    let (_, sums) = writer.finish(&mut outboard).unwrap();
    let tree = HashTree::open(sums.root, outboard, sums.len).unwrap();
    let whole = ByteRange::between(0, sums.len);
    tree.verify(&bytes, whole).unwrap();
    for at in (0..bytes.len()).step_by(997) {
        bytes[at] ^= 0x40;
        let error = tree.verify(&bytes, whole).unwrap_err();
        let named = format!(" bytes at {} do not match the hash tree", at / 16384 * 16384);
        assert!(error.to_string().contains(&named), "{error}");
        bytes[at] ^= 0x40;
    }
}

/// Goal: with a byte of the manifest changed in any way, it is read, or refused, but there is never a panic.
#[test]
fn damaged_reference_manifests_never_panic() {
    let Some(golden) = golden() else { return };
    let bytes = fs::read(golden.join("manifest.example.json")).unwrap();
    Manifest::parse(&bytes).unwrap();
    for at in 0..bytes.len() {
        for flip in [1, 0x10, 0x80] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let _ = Manifest::parse(&damaged);
        }
    }
}
