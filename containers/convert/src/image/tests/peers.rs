//! An image that `umoci` makes, which `skopeo` copies to a registry and into archives: whatever place and compression
//! its layers are read from, the converted layers are the same, and their tree is the one that `umoci` unpacks.

use super::support::{InDirectory, convert_into, options, reference, rows_of};
use crate::disk_trees::support::{check, e2fsck, store_disk};
use crate::file_tree::NodeKind;
use crate::known_layers::{NoKnownLayers, StoredLayers};
use crate::parent_disk::disk_of;
use crate::test_layers::noise;
use headstart_block::{ErrorKind, Result};
use headstart_container_source::{ContainerImage, LayerCompression, SourceName, open};
use headstart_image::open_image::OpenImage;
use headstart_image::store::ImageStore;
use headstart_store::StoreSettings;
use headstart_testkit::process::installed;
use headstart_testkit::registry::{Registry, RegistryAccess};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use tokio::runtime::Runtime;

/// A path of an unpacked tree: kind, permissions, content or target of a link, and seconds of a file's time.
type Unpacked = (NodeKind, u32, Vec<u8>, i64);

#[track_caller]
fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

/// Copies an image by `skopeo` with `options`.
#[track_caller]
fn copy(options: &[&str], from: &str, to: &str) {
    let fixed = ["--insecure-policy", "copy", "--quiet", "--src-tls-verify=false", "--dest-tls-verify=false"];
    run("skopeo", &[&fixed, options, &[from, to]].concat());
}

/// Copies the image in `top` to an archive of an OCI layout, and compresses its layers by `compression`.
#[track_caller]
fn archive(top: &Path, compression: &str) -> String {
    let archive = format!("oci-archive:{}/{compression}.tar:app", top.display());
    copy(&["--dest-compress-format", compression], &format!("oci:{}/layout:app", top.display()), &archive);
    archive
}

/// Makes the image `layout:app` in `top`: files and links, an opaque directory, a whiteout, and a change.
fn make_image(top: &Path) {
    let layout = top.join("layout");
    let (image, layout) = (format!("{}:app", layout.display()), layout.to_str().unwrap());
    run("umoci", &["init", "--layout", layout]);
    run("umoci", &["new", "--image", &image]);
    let (base, etc, change) = (top.join("base"), top.join("etc"), top.join("change"));
    for (dir, name, content) in [
        (base.join("etc"), "old", noise(1, 100)),
        (base.join("usr/share/gone"), "file", noise(2, 10_000)),
        (base.join("usr/share"), "data", noise(3, 700_000)),
        (base.join("usr/share/empty"), ".keep", Vec::new()),
        (etc.clone(), "new", b"new".to_vec()),
        (change.join("share"), "data", noise(4, 5_000)),
    ] {
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(name), content).unwrap();
    }
    let data = base.join("usr/share/data");
    fs::hard_link(&data, base.join("usr/share/second")).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("share/data", base.join("usr/link")).unwrap();
    let insert = |arguments: &[&str]| {
        run("umoci", &[&["insert", "--rootless", "--image", &image], arguments].concat());
    };
    insert(&[base.to_str().unwrap(), "/"]);
    insert(&["--opaque", etc.to_str().unwrap(), "/etc"]);
    insert(&["--whiteout", "/usr/share/gone"]);
    insert(&[change.to_str().unwrap(), "/usr"]);
}

/// The tree that `umoci` unpacks, without its root.
fn unpacked(top: &Path) -> BTreeMap<Vec<u8>, Unpacked> {
    let (image, bundle) = (format!("{}/layout:app", top.display()), top.join("bundle"));
    run("umoci", &["unpack", "--rootless", "--image", &image, bundle.to_str().unwrap()]);
    let root = bundle.join("rootfs");
    let (mut found, mut pending) = (BTreeMap::new(), vec![root.clone()]);
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let status = fs::symlink_metadata(&path).unwrap();
            let (kind, bytes) = if status.is_dir() {
                pending.push(path.clone());
                (NodeKind::Directory, Vec::new())
            } else if status.is_symlink() {
                (NodeKind::Symlink, fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
            } else {
                (NodeKind::Regular, fs::read(&path).unwrap())
            };
            let time = if kind == NodeKind::Regular { status.mtime() } else { 0 };
            let name = path.strip_prefix(&root).unwrap().as_os_str().as_bytes().to_vec();
            found.insert(name, (kind, status.mode() & 0o7777, bytes, time));
        }
    }
    found
}

/// The tree of a converted image, in the same form.
fn converted(store: &Path, tag: &str) -> BTreeMap<Vec<u8>, Unpacked> {
    let rows = rows_of(store, tag).into_iter().filter(|(path, _)| !path.is_empty());
    let row = rows.map(|(path, row)| {
        let time = if row.kind == NodeKind::Regular { row.mtime.seconds } else { 0 };
        (path, (row.kind, row.mode, row.bytes, time))
    });
    row.collect()
}

/// Opens an image of this host's platform.
fn open_image(name: &str, registry: &str, runtime: &Runtime) -> Result<ContainerImage> {
    let settings = StoreSettings { plain_http: vec![registry.to_owned()], ..StoreSettings::default() };
    open(&name.parse::<SourceName>()?, None, &settings, runtime.handle())
}

/// Copies the image in `top` to all kinds of sources, and returns their names with the compression of their layers.
fn copies(top: &Path, host: &str) -> Vec<(String, LayerCompression)> {
    let (gzip, zstd) = (archive(top, "gzip"), archive(top, "zstd"));
    let (top, from) = (top.display(), format!("oci:{}/layout:app", top.display()));
    // Otherwise layers of another compression that the registry has would do.
    let exactly = &["--preserve-digests"];
    copy(exactly, &gzip, &format!("docker://{host}/app:gzip"));
    copy(&["--format", "v2s2"], &from, &format!("docker://{host}/app:docker"));
    copy(exactly, &zstd, &format!("docker://{host}/app:zstd"));
    copy(&[], &from, &format!("docker-archive:{top}/docker.tar:app:1"));
    vec![
        (format!("file://{top}/layout:app"), LayerCompression::Gzip),
        (format!("oci://{host}/app:gzip"), LayerCompression::Gzip),
        (format!("oci://{host}/app:docker"), LayerCompression::Gzip),
        (format!("oci://{host}/app:zstd"), LayerCompression::Zstd),
        (gzip, LayerCompression::Gzip),
        (zstd, LayerCompression::Zstd),
        (format!("docker-archive:{top}/docker.tar:app:1"), LayerCompression::None),
    ]
}

#[test]
fn an_image_of_other_tools_gives_the_same_layers_from_every_source() {
    if !installed(&["umoci", "skopeo"]) {
        return;
    }
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let (dir, runtime, host) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap(), registry.host());
    make_image(dir.path());
    let expected = unpacked(dir.path());
    assert_eq!(expected.len(), 9, "{:?}", expected.keys());
    let e2fsck = e2fsck("the check of an image of other tools");
    let mut reports = Vec::new();
    for (number, (name, compression)) in copies(dir.path(), &host).into_iter().enumerate() {
        let image = open_image(&name, &host, &runtime).unwrap();
        let claimed = image.layers.iter().map(|layer| layer.compression);
        assert!(claimed.eq([compression; 4]), "{name}: {:?}", image.layers);
        let store = dir.path().join(format!("store-{number}"));
        let (target, options) = (reference(&store, "app"), options(1 + number % 3));
        reports.push((name, convert_into(&image, &target, &options, &NoKnownLayers).unwrap()));
        assert_eq!(converted(&store, "app"), expected);
        if let Some(e2fsck) = &e2fsck {
            let (disk, path) = (OpenImage::open(&target).unwrap().into_disk(), store.join("disk"));
            store_disk(&disk_of(disk), &path);
            check(e2fsck, &path);
        }
    }
    let layers = |report: &InDirectory| {
        let layers = report.layers.iter().map(|outcome| (outcome.key, outcome.layer.blob.digest));
        layers.collect::<Vec<_>>()
    };
    for (name, report) in &reports {
        assert_eq!(layers(report), layers(&reports[0].1), "{name}");
    }
}

#[test]
fn an_image_is_known_from_another_source_and_is_not_converted_twice() {
    if !installed(&["umoci", "skopeo"]) {
        return;
    }
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    make_image(dir.path());
    let (gzip, store) = (archive(dir.path(), "gzip"), dir.path().join("store"));
    let known = StoredLayers::new(ImageStore::create_or_open(&store).unwrap());
    let convert = |name: &str, tag: &str| {
        let image = open_image(name, "", &runtime).unwrap();
        let (target, options) = (reference(&store, tag), options(2));
        convert_into(&image, &target, &options, &known).unwrap()
    };
    let first = convert(&format!("file://{}/layout:app", dir.path().display()), "gzip");
    assert!(first.layers.iter().all(|outcome| outcome.converted.is_some()));
    let second = convert(&gzip, "archive");
    assert!(second.layers.iter().all(|outcome| outcome.converted.is_none()));
    let error = open_image(&format!("file://{}:gzip", store.display()), "", &runtime).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("the image is converted already; use it as it is"), "{error}");
}
