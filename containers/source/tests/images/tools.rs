//! Images that other tools make and copy: `umoci` and `skopeo`, by way of all kinds of sources, and a real registry.
//!
//! Goal: an image is the same, whether it comes from a directory, a registry or an archive, in OCI's and in Docker's
//! format.

use headstart_block::{Digest, ErrorKind};
use headstart_container_source::{ContainerImage, ImagePlatform, LayerCompression, SourceName, open};
use headstart_store::StoreSettings;
use headstart_testkit::process::installed;
use headstart_testkit::registry::{Registry, RegistryAccess};
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use tokio::runtime::Runtime;

#[track_caller]
fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

/// Copies an image by `skopeo`.
#[track_caller]
fn copy(options: &[&str], from: &str, to: &str) {
    let fixed = ["--insecure-policy", "copy", "--quiet", "--src-tls-verify=false", "--dest-tls-verify=false"];
    run("skopeo", &[&fixed, options, &[from, to]].concat());
}

/// A store with the image `file:///.../layout:app` of three layers, the last of which removes a file.
fn layout(top: &Path) {
    let layout = top.join("layout");
    let (image, layout) = (format!("{}:app", layout.display()), layout.to_str().unwrap());
    run("umoci", &["init", "--layout", layout]);
    run("umoci", &["new", "--image", &image]);
    let files = top.join("files");
    for (n, change) in ["a", "b", "c"].into_iter().enumerate() {
        fs::create_dir_all(files.join("etc")).unwrap();
        fs::write(files.join("etc").join(change), change.repeat(10_000 * (n + 1))).unwrap();
        run("umoci", &["insert", "--rootless", "--image", &image, files.to_str().unwrap(), "/"]);
    }
}

fn settings(hosts: &[String]) -> StoreSettings {
    StoreSettings { plain_http: hosts.to_vec(), ..StoreSettings::default() }
}

struct Readings {
    image: ContainerImage,
    layers: Vec<Vec<u8>>,
}

#[track_caller]
fn read(runtime: &Runtime, name: &str, settings: &StoreSettings) -> Readings {
    let source: SourceName = name.parse().unwrap();
    let image = open(&source, None, settings, runtime.handle()).unwrap();
    let read = |layer: &headstart_container_source::ContainerLayer| {
        let mut bytes = Vec::new();
        layer.open().unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!((bytes.len() as u64, Digest::of(&bytes)), (layer.size, layer.digest));
        bytes
    };
    let layers: Vec<_> = image.layers.iter().map(read).collect();
    for (layer, bytes) in image.layers.iter().zip(&layers) {
        assert_eq!(LayerCompression::of_bytes(bytes), layer.compression, "{name}");
        let mut content = bytes.clone();
        if layer.compression == LayerCompression::Gzip {
            content.clear();
            flate2::read::MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut content).unwrap();
        }
        assert_eq!(Digest::of(&content), layer.diff_id, "{name}");
    }
    assert_eq!(Digest::of(&image.manifest), image.manifest_digest);
    Readings { image, layers }
}

#[test]
fn an_image_is_the_same_from_all_sources() {
    if !installed(&["umoci", "skopeo"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    layout(dir.path());
    let (runtime, top) = (Runtime::new().unwrap(), dir.path().to_str().unwrap());
    let from = format!("oci:{top}/layout:app");
    let directory = read(&runtime, &format!("file://{top}/layout:app"), &settings(&[]));
    assert_eq!(directory.image.layers.len(), 3);

    copy(&[], &from, &format!("oci-archive:{top}/oci.tar:app:1"));
    for name in ["", ":app:1", ":@0"] {
        let archive = read(&runtime, &format!("oci-archive:{top}/oci.tar{name}"), &settings(&[]));
        assert_eq!(archive.image.manifest, directory.image.manifest);
        assert!(archive.layers == directory.layers);
    }

    copy(&[], &from, &format!("docker-archive:{top}/docker.tar:app:1"));
    for name in ["", ":app:1", ":docker.io/library/app:1", ":@0"] {
        let archive = read(&runtime, &format!("docker-archive:{top}/docker.tar{name}"), &settings(&[]));
        let ids =
            |readings: &Readings| readings.image.layers.iter().map(|layer| layer.diff_id).collect::<Vec<_>>();
        assert_eq!(ids(&archive), ids(&directory));
        assert!(archive.image.layers.iter().all(|layer| layer.compression == LayerCompression::None));
    }
}

#[test]
fn a_registry_gives_both_formats_and_indexes() {
    if !installed(&["umoci", "skopeo"]) {
        return;
    }
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let dir = TempDir::new().unwrap();
    layout(dir.path());
    let (runtime, host) = (Runtime::new().unwrap(), registry.host());
    let from = format!("oci:{}/layout:app", dir.path().display());
    let settings = settings(std::slice::from_ref(&host));
    let mut digests = Vec::new();
    for (format, media_type) in [
        ("oci", "application/vnd.oci.image.manifest.v1+json"),
        ("v2s2", "application/vnd.docker.distribution.manifest.v2+json"),
    ] {
        copy(&["--format", format], &from, &format!("docker://{host}/app:{format}"));
        let read = read(&runtime, &format!("oci://{host}/app:{format}"), &settings);
        assert_eq!(read.image.manifest_media_type, media_type);
        assert_eq!(read.image.layers.len(), 3);
        digests.push((read.image.manifest_digest, read.image.manifest.len()));
    }
    // A list of Docker's, with an attestation, of which no tool here makes one.
    let [_, (digest, size)] = digests[..] else { unreachable!() };
    let list = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.list.v2+json",
        "manifests": [
            entry(&digest, size, "linux/arm64"),
            attestation(entry(&digest, size, "unknown/unknown")),
            entry(&digest, size, "linux/amd64"),
        ],
    });
    let store = headstart_store::open(&format!("oci://{host}/app").parse().unwrap(), &settings).unwrap();
    let media_type = list["mediaType"].as_str().unwrap().to_owned();
    let tag = "many".parse().unwrap();
    runtime.block_on(store.put_manifest(&media_type, list.to_string().into(), Some(&tag))).unwrap();
    let name: SourceName = format!("oci://{host}/app:many").parse().unwrap();
    let open = |platform: &str| {
        let platform: ImagePlatform = platform.parse().unwrap();
        open(&name, Some(&platform), &settings, runtime.handle())
    };
    assert_eq!(open("linux/amd64").unwrap().manifest_digest, digest);
    // The index lies: the config says so.
    assert!(open("linux/arm64").unwrap_err().to_string().contains("is for linux/amd64"));
    let error = open("linux/s390x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.to_string().ends_with("only for linux/amd64, linux/arm64; name one of these platforms"),
        "{error}"
    );
}

fn entry(digest: &Digest, size: usize, platform: &str) -> Value {
    let (os, architecture) = platform.split_once('/').unwrap();
    json!({
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json", "digest": digest, "size": size,
        "platform": {"os": os, "architecture": architecture},
    })
}

fn attestation(mut entry: Value) -> Value {
    entry["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
    entry
}

#[test]
fn archives_of_several_images_share_layers() {
    if !installed(&["umoci", "skopeo"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    layout(dir.path());
    let (runtime, top) = (Runtime::new().unwrap(), dir.path().to_str().unwrap());
    copy(
        &["--additional-tag", "app:2", "--additional-tag", "h:5000/other/app:3"],
        &format!("oci:{top}/layout:app"),
        &format!("docker-archive:{top}/docker.tar:app:1"),
    );
    for name in ["app:1", "app:2", "h:5000/other/app:3"] {
        let archive = read(&runtime, &format!("docker-archive:{top}/docker.tar:{name}"), &settings(&[]));
        assert_eq!(archive.layers.len(), 3);
    }
}
