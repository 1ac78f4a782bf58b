//! Images with known content, behind a web server.

use crate::disk::{Disk, noise, text};
use crate::scene::Scene;
use headstart_testkit::nginx::Nginx;
use std::fs;

/// An image in a scene: a store `store` with the tag `v1`, and what its disk holds.
pub(crate) struct Image {
    pub(crate) scene: Scene,
    pub(crate) content: Vec<u8>,
}

impl Image {
    /// A disk of `mib` MiB, half of it noise and half text, without holes.
    pub(crate) fn new(mib: usize) -> Self {
        let scene = Scene::new();
        let content: Vec<u8> = (0..mib as u64)
            .flat_map(|n| if n % 2 == 0 { noise(n + 1, 1 << 20) } else { text(n + 1, 1 << 20) })
            .collect();
        Disk::create(scene.path("disk.raw"), content.len() as u64).write(0, &content);
        scene.ok("image import disk.raw file://~/store:v1 --codec lz4");
        Self { scene, content }
    }

    /// A web server in front of it.
    pub(crate) fn serve(&self) -> Nginx {
        Nginx::serve(&self.scene.path(""))
    }

    /// The digest of its only layer, and how many bytes it has.
    pub(crate) fn layer(&self) -> (String, u64) {
        let inspected = self.scene.json("image inspect file://~/store:v1");
        let digest = inspected["layers"][0]["digest"].clone();
        let blob = self.scene.blob("store", &digest);
        let len = fs::metadata(&blob).unwrap().len();
        (blob.file_name().unwrap().to_str().unwrap().to_owned(), len)
    }

    /// Fails the test where these are not the disk's bytes at `offset`.
    #[track_caller]
    pub(crate) fn check(&self, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        assert!(bytes == &self.content[at..at + bytes.len()], "wrong bytes at {offset}");
    }

    pub(crate) fn len(&self) -> u64 {
        self.content.len() as u64
    }
}
