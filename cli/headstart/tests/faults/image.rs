//! Images with known content, behind a web server.

use crate::disk::{DiskBuilder, noise, text};
use crate::scene::{Scene, sha256};
use headstart_testkit::nginx::Nginx;
use serde_json::Value;
use std::fs;

/// An image in a scene: a store `store` with the tag `v1`, and the content of its disk.
pub(crate) struct Image {
    pub(crate) scene: Scene,
    pub(crate) content: Vec<u8>,
}

impl Image {
    /// A disk of `mib` MiB, half of it noise and half text, without holes.
    pub(crate) fn new(mib: usize) -> Self {
        let scene = Scene::new();
        let content: Vec<u8> = (0..mib as u64)
            .map(|n| if n % 2 == 0 { noise(n + 1, 1 << 20) } else { text(n + 1, 1 << 20) })
            .collect::<Vec<_>>()
            .concat();
        DiskBuilder::create(scene.path("disk.raw"), content.len() as u64).write(0, &content);
        scene.ok("image import disk.raw file://~/store:v1 --codec lz4");
        Self { scene, content }
    }

    /// The same without its hash tree, as other tools make images: the tag `treeless`. `codec` decides which parts have
    /// checksums.
    pub(crate) fn treeless(mib: usize, codec: &str) -> Self {
        let image = Self::new(mib);
        let scene = &image.scene;
        scene.ok(&format!("image import disk.raw file://~/store:treeless --codec {codec}"));
        let digest = scene.json("image inspect file://~/store:treeless")["digest"].clone();
        let mut manifest = scene.manifest("store", &digest);
        for layer in manifest["layers"].as_array_mut().unwrap() {
            let annotations = layer["annotations"].as_object_mut().unwrap();
            annotations.retain(|name, _| !name.starts_with("dev.headstart."));
        }
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let stripped = sha256(&bytes);
        fs::write(scene.path("store/blobs/sha256").join(&stripped), &bytes).unwrap();
        let mut index: Value = serde_json::from_slice(&scene.bytes("store/index.json")).unwrap();
        for entry in index["manifests"].as_array_mut().unwrap() {
            if entry["annotations"]["org.opencontainers.image.ref.name"] == "treeless" {
                entry["digest"] = format!("sha256:{stripped}").into();
                entry["size"] = bytes.len().into();
            }
        }
        fs::write(scene.path("store/index.json"), index.to_string()).unwrap();
        let inspected = scene.json("image inspect file://~/store:treeless");
        assert_ne!(inspected["digest"], digest, "the same image twice");
        image
    }

    /// A web server in front of it.
    pub(crate) fn serve(&self) -> Nginx {
        Nginx::serve(&self.scene.path(""))
    }

    /// The digest of its only layer, and the layer's length in bytes.
    pub(crate) fn layer(&self) -> (String, u64) {
        self.layer_of("v1")
    }

    /// The same of another tag.
    pub(crate) fn layer_of(&self, tag: &str) -> (String, u64) {
        let inspected = self.scene.json(&format!("image inspect file://~/store:{tag}"));
        let digest = inspected["layers"][0]["digest"].clone();
        let blob = self.scene.blob("store", &digest);
        let len = fs::metadata(&blob).unwrap().len();
        (blob.file_name().unwrap().to_str().unwrap().to_owned(), len)
    }

    /// Fails the test if these are not the disk's bytes at `offset`.
    #[track_caller]
    pub(crate) fn check(&self, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        assert!(bytes == &self.content[at..at + bytes.len()], "wrong bytes at {offset}");
    }

    pub(crate) fn len(&self) -> u64 {
        self.content.len() as u64
    }
}
