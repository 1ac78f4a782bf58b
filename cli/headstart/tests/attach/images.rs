//! The attached images, and the comparison of their bytes.

use crate::disk::{assert_same, copy_of, mixed_disk, noise};
use crate::scene::{CommandRun, Scene};
use crate::tools::find;
use headstart_testkit::faults::{FaultProxy, Log};
use headstart_testkit::nginx::Nginx;
use std::fs;
use std::process::{Command, Stdio};

/// `file://~/store:v1`, an image of two layers, and the same disk in `disk.raw`: 16 MiB with a little of everything.
pub(crate) fn layered() -> Scene {
    let scene = Scene::new();
    mixed_disk(&scene, "base.raw", 16);
    copy_of(&scene, "base.raw", "disk.raw")
        .write(1 << 20, &noise(1, 5000))
        .write(9 << 20, &noise(8, 200_000));
    scene.ok("image import base.raw file://~/store:base");
    scene.ok("image import disk.raw file://~/store:v1 --base file://~/store:base");
    scene
}

/// The same with one layer of `mib` MiB that do not compress.
pub(crate) fn noisy(mib: usize) -> Scene {
    let scene = Scene::new();
    fs::write(scene.path("disk.raw"), noise(mib as u64, mib << 20)).unwrap();
    scene.ok("image import disk.raw file://~/store:v1");
    scene
}

/// The scene's store behind a web server, and a proxy that records the requests; `None`, with a message, if there is no
/// web server.
pub(crate) struct Web {
    pub(crate) server: Nginx,
    pub(crate) proxy: FaultProxy,
}

impl Web {
    pub(crate) fn before(scene: &Scene) -> Option<Self> {
        if !Nginx::is_installed() {
            return None;
        }
        let server = Nginx::serve(&scene.path("store"));
        let proxy = FaultProxy::start(server.addr());
        Some(Self { server, proxy })
    }

    /// The image that [`layered`] or [`noisy`] made, through the proxy.
    pub(crate) fn image(&self) -> String {
        format!("{}/:v1", self.proxy.url())
    }

    /// The reads of layers and hash trees so far: those of all blobs except the manifest's.
    pub(crate) fn reads(&self, scene: &Scene) -> Log {
        let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
        let manifest = digest.strip_prefix("sha256:").unwrap().to_owned();
        let log = self.proxy.log();
        log.only(|request| request.asked.path.contains("/blobs/") && !request.asked.path.contains(&manifest))
    }
}

/// Runs another program in the scene, which has to succeed; returns its output. A program that hangs is killed.
#[track_caller]
pub(crate) fn tool(scene: &Scene, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(find(program).unwrap());
    command.args(args).current_dir(scene.path("")).stdin(Stdio::null());
    // nbdsh starts the first `python3` of the path, which has to be the system's.
    command.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
    let run = CommandRun::of(&format!("and then {program} {args:?}"), &mut command);
    assert_eq!(run.status, Some(0), "{run}");
    run.stdout
}

/// Both libnbd's copying program and QEMU's comparing one find all bytes of a file on an NBD server.
#[track_caller]
pub(crate) fn check_bytes(scene: &Scene, raw: &str, uri: &str) {
    tool(scene, "qemu-img", &["compare", "-f", "raw", "-F", "raw", raw, uri]);
    tool(scene, "nbdcopy", &[uri, "out.raw"]);
    assert_same(scene, raw, "out.raw");
    fs::remove_file(scene.path("out.raw")).unwrap();
}

/// `true` if the programs that [`check_bytes`] needs are there; otherwise reports a skipped test.
pub(crate) fn can_check_bytes() -> bool {
    crate::tools::installed(&["nbdcopy", "qemu-img"])
}
