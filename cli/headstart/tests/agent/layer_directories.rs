//! containerd's own EROFS snapshotter, with nothing of this project but a directory of layers: each is a disk that
//! `image layers` made and `attach` serves.

use crate::attached::Attached;
use crate::scene::{Scene, run_tool};
use headstart_testkit::containerd::{Containerd, ContainerdSettings};
use headstart_testkit::process::{has_fuse, installed};
use headstart_testkit::registry::{Registry, RegistryAccess};
use headstart_testkit::shell_image;
use std::fs;
use std::path::PathBuf;

/// The shell's image in a registry, and a directory with its layers as disks.
struct Layers {
    registry: Registry,
    image: String,
    dir: PathBuf,
    disks: Vec<Attached>,
}

impl Layers {
    fn start(scene: &Scene) -> Option<Self> {
        if !Containerd::can_run() || !Containerd::has_differs() || !has_fuse() || !installed(&["skopeo"]) {
            return None;
        }
        let registry = Registry::start(RegistryAccess::Open)?;
        shell_image::write(&scene.path("image.tar"));
        let host = registry.host();
        let image = format!("{host}/shell:1");
        let words = ["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"];
        let places = ["oci-archive:image.tar", &format!("docker://{image}")];
        run_tool("skopeo", &[&words[..], &places].concat(), &scene.path("."));
        let made = format!("image layers oci://{image} oci://{host}/layers --size 256M --plain-http {host}");
        let made = scene.json(&made);
        let mut this = Self { registry, image, dir: scene.path("layers"), disks: Vec::new() };
        for layer in made["layers"].as_array().unwrap() {
            let file = this.dir.join(layer["file"].as_str().unwrap());
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            let (image, file) = (layer["image"].as_str().unwrap(), file.display());
            this.disks.push(Attached::start(scene, &format!("{image} --fuse {file} --plain-http {host}")));
        }
        Some(this)
    }
}

#[test]
fn containerd_without_a_plugin_runs_an_image_whose_layers_are_disks() {
    let scene = Scene::new();
    let Some(layers) = Layers::start(&scene) else { return };
    let settings = ContainerdSettings {
        plugin: "erofs",
        layer_directory: Some(layers.dir.clone()),
        ..ContainerdSettings::default()
    };
    let containerd = Containerd::start(&scene.path("."), &scene.path("no.sock"), &settings);
    containerd.ctr(&["images", "pull", "--plain-http", "--snapshotter", "erofs", &layers.image]);
    // The manifest and the config: no layer was fetched.
    let content = containerd.ctr(&["content", "ls", "-q"]);
    assert_eq!(content.lines().count(), 2, "{content}");
    let script = "cat /etc/greeting; ls /etc /opt /opt/opaque; echo mine > /etc/greeting; cat /etc/greeting";
    let said = containerd.run(&layers.image, "shell", script);
    let expected = "two\n/etc:\ngreeting\n\n/opt:\nlast\nopaque\n\n/opt/opaque:\nnew\nmine\n";
    assert_eq!(said, expected, "{}", containerd.output());
    containerd.ctr(&["images", "rm", "--sync", &layers.image]);
    drop(containerd);
    for disk in layers.disks {
        disk.detach();
    }
    drop(layers.registry);
}
