//! Images with several converted forms, or with layers of several file systems, under a real containerd.

use crate::attached::TIMEOUT;
use crate::containers::{Host, change_image};
use crate::cri;
use crate::scene::{Scene, run_tool};
use crate::starts::{forget, log};
use headstart_testkit::wait::wait_until;
use serde_json::Value;
use std::fs;

/// The kind of the root of a container.
const ROOT: &str =
    "while read dev at kind rest; do [ $at = / ] && echo $kind; done < /proc/mounts; cat /etc/greeting";

impl Host<'_> {
    /// Starts a container, without a word on its files, and returns what a script says in it and its snapshot.
    fn look_in(&mut self, id: &str, script: &str) -> (String, String) {
        let image = self.image.clone();
        self.containerd.start_container(&image, id);
        let said = self.containerd.exec(id, script);
        let info = self.snapshots(&["info", &self.containerd.id_of(id)]);
        self.containerd.end_container(id);
        self.containerd.remove_container(id);
        (said, info)
    }
}

#[test]
fn disks_for_containers_take_the_form_that_can_be_written_to_and_overlayfs_where_there_is_none() {
    let scene = Scene::new();
    let Some(mut host) = Host::start(&scene) else { return };
    let erofs = host.convert("--referrer --fs erofs");
    host.restart_with("--writable dir");
    let image = host.image.clone();
    host.pull(&image);
    let (said, info) = host.look_in("over", ROOT);
    assert_eq!(said, "overlay\ntwo\n", "{}", host.snapshotter.output());
    assert!(info.contains("headstart.fallback") && info.contains("EROFS"), "{info}");
    // A label is an order, and nothing is attached in vain.
    let error = host.refuse_on_disk("dir");
    assert!(
        error.contains("EROFS, on which nothing can be written") && error.contains("without --fs erofs"),
        "{error}"
    );
    let form = erofs["digest"].as_str().unwrap();
    assert!(error.contains(&format!("{form}: its file system")), "no part of the name is internal: {error}");
    assert_eq!(host.agent.disks().len(), 1);

    // What starts read of it is learned, and followed by a disk of the same form.
    let registry = host.registry_host.clone();
    forget(&host);
    scene.ok(&format!(
        "train --traces ~/a-cache/traces --publish oci://{image} --plain-http {registry} -o ~/plans"
    ));
    scene.ok("cache prune --dir ~/a-cache");
    host.agent.kill();
    host.agent.again_with_log("info");
    host.pull(&image);
    wait_until("the plan is found", TIMEOUT, || log(&host, &scene).contains("preloading as planned"));
    assert_eq!(host.look_in("planned", ROOT).0, "overlay\ntwo\n");
    forget(&host);

    // The newer form is the EROFS again.
    host.convert("--referrer");
    let newest = host.convert("--referrer --fs erofs --codec lz4");
    assert_ne!(newest["digest"], erofs["digest"]);
    host.restart_with("--writable dir");
    host.pull(&image);
    let (said, info) = host.look_in("own", ROOT);
    assert_eq!(said, "ext4\ntwo\n", "{}", host.snapshotter.output());
    assert!(!info.contains("headstart.fallback"), "{info}");
    forget(&host);
    host.restart_with("");
    host.pull(&image);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let trees = scene.path("snap/trees").display().to_string();
    assert!(mounts.lines().any(|line| line.contains(&trees) && line.contains(" - erofs ")), "{mounts}");
}

#[test]
fn an_image_with_layers_of_two_file_systems_is_refused_by_name() {
    let scene = Scene::new();
    let Some(host) = Host::start(&scene) else { return };
    let own = format!("{}/disks/shell", host.registry_host);
    let copy = |options: &[&str], from: &str, to: &str| {
        let fixed = ["--insecure-policy", "copy", "--quiet", "--preserve-digests"];
        run_tool("skopeo", &[&fixed[..], options, &[from, to]].concat(), &scene.path("."));
    };
    for kind in ["ext4", "erofs"] {
        host.convert(&format!("oci://{own}:{kind} --fs {kind}"));
        copy(&["--src-tls-verify=false"], &format!("docker://{own}:{kind}"), &format!("dir:{kind}"));
    }
    let other = fs::read(scene.path("erofs/manifest.json")).unwrap();
    let other: Value = serde_json::from_slice(&other).unwrap();
    let top = other["layers"][host.layers - 1].clone();
    let digest = top["digest"].as_str().unwrap();
    let hex = digest.strip_prefix("sha256:").unwrap();
    fs::copy(scene.path("erofs").join(hex), scene.path("ext4").join(hex)).unwrap();
    change_image(&scene.path("ext4"), &|manifest, config| {
        manifest["layers"][host.layers - 1] = top.clone();
        config["rootfs"]["diff_ids"][host.layers - 1] = digest.into();
    });
    copy(&["--dest-tls-verify=false"], "dir:ext4", &format!("docker://{own}:mixed"));
    let refused = cri::pull(&host.containerd.socket(), &format!("{own}:mixed")).unwrap_err().to_string();
    assert!(refused.contains("several file systems") && refused.contains("disks/shell"), "{refused}");
    assert_eq!((host.trees(), host.containerd.snapshots().len()), (0, 0));
}
