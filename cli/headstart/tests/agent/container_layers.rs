//! Containers that write to disks of their own, and whose changes become layers of new images: by containerd 2, which
//! asks the snapshotter for them, and runs such images where they were made and elsewhere.

use crate::containers::Host;
use crate::scene::{Scene, run_tool};
use flate2::read::GzDecoder;
use headstart_block::Digest;
use headstart_image::tar_wrapper::wrap;
use headstart_testkit::containerd::Containerd;
use serde_json::{Value, json};
use std::fs;
use std::io::{Cursor, Read, Write};
use std::path::Path;

/// The media type of layers of blocks.
const BLOCKS: &str = "application/vnd.oci.image.layer.v1.tar";
/// Those of compressed tars.
const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const DOCKER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
/// The annotation with the digest of a layer of blocks.
const BLOB_DIGEST: &str = "containerd.io/snapshot/overlaybd/blob-digest";

impl Host<'_> {
    /// The image as a disk under a name of its own, pulled.
    fn own_disk(&self) -> String {
        let own = format!("{}/disks/shell:1", self.registry_host);
        self.convert(&format!("oci://{own}"));
        self.pull(&own);
        own
    }

    /// The blob that containerd makes of the changes of a container, for a client that asks for a media type.
    fn diff(&self, id: &str, media_type: &str) -> Vec<u8> {
        let words = ["snapshots", "--snapshotter", "headstart", "diff", "--keep", "--media-type", media_type];
        let output = self.containerd.run_ctr(&[&words[..], &[id]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success(),
            "{said}\n{}\n{}",
            self.containerd.output(),
            self.snapshotter.output()
        );
        output.stdout
    }

    /// Publishes a new image: that of `from`, with a layer on top.
    fn publish(&self, from: &str, to: &str, blob: &[u8], (descriptor, diff_id): (&Value, &Digest)) {
        let copy = |options: &[&str], from: &str, to: &str| {
            let fixed = ["--insecure-policy", "copy", "--quiet", "--preserve-digests"];
            run_tool("skopeo", &[&fixed[..], options, &[from, to]].concat(), &self.scene.path("."));
        };
        let _ = fs::remove_dir_all(self.scene.path("new"));
        copy(&["--src-tls-verify=false"], &format!("docker://{from}"), "dir:new");
        append(&self.scene.path("new"), blob, (descriptor, diff_id));
        copy(&["--dest-tls-verify=false"], "dir:new", &format!("docker://{to}"));
        let _ = fs::remove_file(self.scene.path("new.tar"));
        copy(&[], "dir:new", "oci-archive:new.tar");
    }
}

/// Adds a layer to an image in a directory of skopeo's.
fn append(image: &Path, blob: &[u8], (descriptor, diff_id): (&Value, &Digest)) {
    let read = |name: &str| serde_json::from_slice::<Value>(&fs::read(image.join(name)).unwrap()).unwrap();
    let mut manifest = read("manifest.json");
    let digest = manifest["config"]["digest"].as_str().unwrap().to_owned();
    let mut config = read(digest.strip_prefix("sha256:").unwrap());
    config["rootfs"]["diff_ids"].as_array_mut().unwrap().push(diff_id.to_string().into());
    let config = config.to_string();
    let digest = Digest::of(config.as_bytes());
    fs::write(image.join(digest.hex()), &config).unwrap();
    fs::write(image.join(Digest::of(blob).hex()), blob).unwrap();
    manifest["config"]["digest"] = digest.to_string().into();
    manifest["config"]["size"] = config.len().into();
    manifest["layers"].as_array_mut().unwrap().push(descriptor.clone());
    fs::write(image.join("manifest.json"), manifest.to_string()).unwrap();
}

/// The descriptor of a layer of blocks, as the snapshotter returns it.
fn descriptor_of(blob: &[u8]) -> Value {
    let digest = Digest::of(blob).to_string();
    json!({
        "mediaType": BLOCKS,
        "digest": digest,
        "size": blob.len(),
        "annotations": {
            BLOB_DIGEST: digest,
            "containerd.io/snapshot/overlaybd/blob-size": blob.len().to_string(),
            "containerd.io/snapshot/overlaybd/version": "0.1.0",
        },
    })
}

#[test]
fn the_changes_of_a_container_are_a_layer_that_runs_here_and_on_another_host() {
    let scene = Scene::new();
    let Some(host) = Host::start(&scene) else { return };
    if !Containerd::has_differs() {
        return;
    }
    let own = host.own_disk();
    let id = host.start_of(&own, "writer");
    host.containerd.exec("writer", "echo kept > /opt/kept; echo three > /etc/greeting");
    let blob = host.diff(&id, "");
    // Twice, of a container that goes on: the same bytes, unless it writes.
    assert_eq!(host.containerd.exec("writer", "cat /opt/kept"), "kept\n");
    assert!(blob.starts_with(b"ZFile"), "{:?}", &blob[..16]);
    assert!(blob.len() < 64 << 10, "{} bytes", blob.len());
    // A client that wants a tar gets one, from containerd's own differ.
    let tar = host.diff(&id, GZIP);
    assert!(tar.starts_with(&[0x1f, 0x8b]));
    host.containerd.end_container("writer");

    let new = format!("{}/disks/shell:2", host.registry_host);
    host.publish(&own, &new, &blob, (&descriptor_of(&blob), &Digest::of(&blob)));
    let look = "cat /opt/kept /etc/greeting";
    // From an archive, in which all layers are: the one that is new is applied.
    let archive = scene.path("new.tar");
    let words = ["images", "import", "--local", "--snapshotter", "headstart", "--index-name", &new];
    let imported = host.containerd.run_ctr(&[&words[..], &[archive.to_str().unwrap()]].concat());
    let said = String::from_utf8_lossy(&imported.stderr);
    assert!(imported.status.success(), "{said}\n{}", host.snapshotter.output());
    assert_eq!(host.containerd.run(&new, "imported", look), "kept\nthree\n", "{}", host.snapshotter.output());

    let elsewhere = Scene::new();
    let other = host.another(&elsewhere);
    other.pull(&new);
    assert_eq!(other.fetched(), 2, "{}", other.snapshotter.output());
    assert_eq!(other.containerd.run(&new, "pulled", look), "kept\nthree\n");

    // As nerdctl and Docker name it, without annotations: it is known by its digests.
    let plain = |blob: &[u8], kind: &str| {
        let digest = Digest::of(blob).to_string();
        json!({"mediaType": kind, "digest": digest, "size": blob.len()})
    };
    let (named, mixed) = (new.replace(":2", ":3"), new.replace(":2", ":4"));
    host.publish(&own, &named, &blob, (&plain(&blob, DOCKER_GZIP), &Digest::of(&blob)));
    other.pull(&named);
    assert_eq!(other.containerd.run(&named, "named", look), "kept\nthree\n");
    // A tar on a disk is unpacked on the disk's files.
    let mut content = Vec::new();
    GzDecoder::new(&tar[..]).read_to_end(&mut content).unwrap();
    host.publish(&own, &mixed, &tar, (&plain(&tar, GZIP), &Digest::of(&content)));
    other.pull(&mixed);
    assert_eq!(other.containerd.run(&mixed, "mixed", look), "kept\nthree\n");
    // Three manifests, two configs, and the tar.
    assert_eq!(other.fetched(), 6, "{}", other.snapshotter.output());
    // As BuildKit pushes it: in a tar, without annotations. It is no tar with one file.
    let (built, mut wrapped) = (new.replace(":2", ":5"), Cursor::new(Vec::new()));
    wrap(&mut wrapped, |file| Ok(file.write_all(&blob)?)).unwrap();
    let wrapped = wrapped.into_inner();
    host.publish(&own, &built, &wrapped, (&plain(&wrapped, BLOCKS), &Digest::of(&wrapped)));
    other.pull(&built);
    assert_eq!(
        other.containerd.run(&built, "built", look),
        "kept\nthree\n",
        "{}",
        other.snapshotter.output()
    );
}

#[test]
fn the_changes_of_a_container_of_an_original_are_a_tar() {
    let scene = Scene::new();
    let Some(host) = Host::start(&scene) else { return };
    if !Containerd::has_differs() {
        return;
    }
    host.convert("--referrer");
    host.pull(&host.image);
    let id = host.start_of(&host.image, "writer");
    host.containerd.exec("writer", "echo kept > /opt/kept");
    // Its manifest lists tars, whatever the files come from.
    let blob = host.diff(&id, "");
    assert!(blob.starts_with(&[0x1f, 0x8b]), "{:?}", &blob[..16]);
    host.containerd.end_container("writer");
}
