//! nerdctl and `BuildKit` themselves, with the snapshotter under the name that they know, `overlaybd`.

use crate::attached::TIMEOUT;
use crate::containers::{Host, HostSettings};
use crate::cri;
use crate::scene::{Scene, run_tool};
use headstart_testkit::containerd::{Containerd, program};
use headstart_testkit::process::Process;
use headstart_testkit::wait::wait_until;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

/// The name under which both ask a snapshotter before they fetch layers.
const PLUGIN: &str = "overlaybd";
/// A host on which it has that name.
fn settings() -> HostSettings<'static> {
    HostSettings { plugin: PLUGIN, ..HostSettings::default() }
}

/// The annotation with the digest of a layer of blocks.
const BLOB_DIGEST: &str = "containerd.io/snapshot/overlaybd/blob-digest";

impl Host<'_> {
    /// Runs nerdctl and returns its output. Panics if it fails.
    #[track_caller]
    fn nerdctl(&self, words: &[&str]) -> String {
        let path = |name: &str| self.scene.path(name).display().to_string();
        let (socket, data, networks) = (path("containerd.sock"), path("nerdctl"), path("cni"));
        let fixed = ["--namespace", "k8s.io", "--snapshotter", PLUGIN, "--insecure-registry"];
        let places = ["--address", &socket, "--data-root", &data, "--cni-netconfpath", &networks];
        // A host of tests has no systemd to ask for control groups.
        let words = [&fixed[..], &places, &["--cgroup-manager", "cgroupfs"], words].concat();
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "120"]).arg(program("nerdctl")).args(&words);
        let output = command.env("HOME", self.scene.path(".")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let refused = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "nerdctl {words:?}\n{said}{refused}\n{}", self.snapshotter.output());
        said
    }

    /// The manifest of an image in the registry.
    fn manifest(&self, image: &str) -> Value {
        let words = ["inspect", "--raw", "--tls-verify=false", &format!("docker://{image}")];
        serde_json::from_slice(&run_tool("skopeo", &words, &self.scene.path(".")).stdout).unwrap()
    }
}

#[test]
fn nerdctl_pulls_nothing_of_an_image_and_commits_pushes_and_saves_it() {
    let scene = Scene::new();
    let Some(host) = Host::start_with(&scene, &settings()) else { return };
    if !Containerd::has_client("nerdctl") {
        return;
    }
    host.convert("--referrer");
    host.nerdctl(&["pull", "--quiet", &host.image]);
    assert_eq!(host.fetched(), 2, "a manifest and a config\n{}", host.snapshotter.output());
    let name = host.containerd.id_of("client");
    host.nerdctl(&["run", "-d", "--net", "none", "--name", &name, &host.image, "/bin/sleep", "1000"]);
    assert_eq!(
        host.nerdctl(&["exec", &name, "/bin/sh", "-c", "cat /etc/greeting; echo x > /opt/kept"]),
        "two\n"
    );
    let new = format!("{}/shell:2", host.registry_host);
    host.nerdctl(&["commit", &name, &new]);
    host.nerdctl(&["rm", "-f", &name]);
    host.nerdctl(&["push", "--quiet", &new]);
    assert_eq!(host.manifest(&new)["layers"].as_array().unwrap().len(), host.layers + 1);
    let archive = scene.path("saved.tar").display().to_string();
    host.nerdctl(&["save", "-o", &archive, &host.image]);
    let listed = run_tool("tar", &["-tf", &archive], &scene.path(".")).stdout;
    // The index, the manifest, the config and the layers.
    let blobs = String::from_utf8(listed).unwrap().lines().filter(|name| name.len() > 70).count();
    assert!(blobs >= 2 + host.layers, "{blobs}");
    for image in [&new, &host.image] {
        host.nerdctl(&["rmi", "-f", image]);
    }
}

#[test]
fn what_a_container_with_a_limit_has_written_is_committed_and_pushed_and_runs_on_another_host() {
    let scene = Scene::new();
    let settings = HostSettings { words: "--writable dir --container-quota 8M", ..settings() };
    let Some(host) = Host::start_with(&scene, &settings) else { return };
    if !Containerd::has_client("nerdctl") || !Containerd::has_differs() {
        return;
    }
    let own = format!("{}/disks/shell:1", host.registry_host);
    host.convert(&format!("oci://{own}"));
    host.nerdctl(&["pull", "--quiet", &own]);
    let name = host.containerd.id_of("limited");
    host.nerdctl(&["run", "-d", "--net", "none", "--name", &name, &own, "/bin/sleep", "1000"]);
    let fill = "cat /dev/zero > /opt/big || echo full; : > /opt/big; echo kept > /opt/kept; cat /opt/kept";
    assert_eq!(host.nerdctl(&["exec", &name, "/bin/sh", "-c", fill]), "full\nkept\n");
    let new = format!("{}/disks/shell:2", host.registry_host);
    host.nerdctl(&["commit", &name, &new]);
    host.nerdctl(&["rm", "-f", &name]);
    host.nerdctl(&["push", "--quiet", &new]);
    let layers = host.manifest(&new)["layers"].as_array().unwrap().clone();
    assert_eq!(layers.len(), host.layers + 1);
    // What was written and removed takes no space in the layer.
    assert!(layers[host.layers]["size"].as_u64().unwrap() < 1 << 20, "{layers:?}");

    let elsewhere = Scene::new();
    let other = host.another(&elsewhere);
    other.pull(&new);
    assert_eq!(other.fetched(), 2, "{}", other.snapshotter.output());
    assert_eq!(other.containerd.run(&new, "pulled", "cat /opt/kept /etc/greeting"), "kept\ntwo\n");
    for image in [&new, &own] {
        host.nerdctl(&["rmi", "-f", image]);
    }
}

/// The files of `deploy` as they are: one takes the place of another, and the differ stays.
#[test]
fn the_files_for_containerd_name_the_snapshotter_by_either_name_and_the_differ() {
    if !Containerd::can_run() || !Containerd::has_differs() {
        return;
    }
    let scene = Scene::new();
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/containerd");
    let (files, main) = (scene.path("conf.d"), scene.path("config.toml"));
    fs::create_dir(&files).unwrap();
    let copy = |from: &str, to: &str| fs::copy(deploy.join(from), files.join(to)).unwrap();
    copy("headstart-diff.toml", "headstart-diff.toml");
    for (version, name, other) in [
        (2, "headstart", PLUGIN),
        (2, PLUGIN, "headstart"),
        (3, PLUGIN, "headstart"),
        (3, "headstart", PLUGIN),
    ] {
        copy(&format!("{name}.toml"), "headstart.toml");
        let imports = files.join("*.toml");
        fs::write(&main, format!("version = {version}\nimports = [{imports:?}]\n")).unwrap();
        let words = ["--config", "config.toml", "config", "dump"];
        let output = run_tool(program("containerd").to_str().unwrap(), &words, &scene.path("."));
        let told = String::from_utf8(output.stdout).unwrap().replace('\'', "\"");
        let table = |name: &str| told.contains(&format!("[proxy_plugins.{name}]\n"));
        assert!(table(name) && table("headstart-diff") && !table(other), "{version} {name}:\n{told}");
        for setting in [
            &format!("snapshotter = \"{name}\"\n"),
            "default = [\"headstart-diff\", \"walking\"]\n",
            "differ = \"walking\"\n",
        ] {
            assert!(told.contains(setting), "{setting} {version}:\n{told}");
        }
        assert!(!told.contains(&format!("snapshotter = \"{other}\"")), "{told}");
    }
}

/// The place at which `BuildKit` calls OverlayBD's program.
const COMMIT: &str = "/opt/overlaybd/bin/overlaybd-commit";

/// This program in the place of OverlayBD's, unless that is there. Removed at the end.
struct CommitProgram {
    /// The directories that were made for it.
    above: Option<Vec<&'static Path>>,
    /// Locked: another test would remove it.
    _turn: File,
}

impl CommitProgram {
    fn install(program: &OsStr) -> Self {
        let turn = File::create(std::env::temp_dir().join("headstart-overlaybd-commit.lock")).unwrap();
        turn.lock().unwrap();
        let path = Path::new(COMMIT);
        if path.exists() {
            return Self { above: None, _turn: turn };
        }
        // A link that an interrupted run has left leads nowhere.
        let _ = fs::remove_file(path);
        let above: Vec<_> = path.ancestors().skip(1).take_while(|directory| !directory.exists()).collect();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(program, path).unwrap();
        Self { above: Some(above), _turn: turn }
    }
}

impl Drop for CommitProgram {
    fn drop(&mut self) {
        if let Some(above) = &self.above {
            let _ = fs::remove_file(COMMIT);
            for directory in above {
                let _ = fs::remove_dir(directory);
            }
        }
    }
}

/// `BuildKit`'s daemon on the containerd of a host.
struct BuildKit<'h> {
    host: &'h Host<'h>,
    /// Stopped at the end.
    _daemon: Process,
    _commit: CommitProgram,
}

impl<'h> BuildKit<'h> {
    fn start(host: &'h Host<'_>) -> Self {
        let scene = host.scene;
        let registry = format!("[registry.{:?}]\nhttp = true\n", host.registry_host);
        fs::write(scene.path("buildkit.toml"), registry).unwrap();
        let commit = CommitProgram::install(scene.command("").get_program());
        let dir = scene.path(".").display().to_string();
        let mut command = Command::new(program("buildkitd"));
        command.current_dir(&dir).args(["--config", "buildkit.toml", "--root", "buildkit"]);
        command.args(["--addr", &format!("unix://{dir}/buildkit.sock"), "--oci-worker=false"]);
        command.args(["--containerd-worker=true", "--containerd-worker-namespace", "k8s.io"]);
        command.args(["--containerd-worker-addr", &format!("{dir}/containerd.sock")]);
        command.args(["--containerd-worker-snapshotter", PLUGIN]);
        let this = Self { host, _daemon: Process::start(&mut command), _commit: commit };
        let is_up = || this.ask(&["debug", "workers"]).status.success();
        wait_until("BuildKit answers", TIMEOUT, is_up);
        this
    }

    fn ask(&self, words: &[&str]) -> Output {
        let address = format!("unix://{}", self.host.scene.path("buildkit.sock").display());
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "120"]).arg(program("buildctl")).args(["--addr", &address]).args(words);
        command.current_dir(self.host.scene.path(".")).output().unwrap()
    }

    /// Builds an image on another one, in two steps, and pushes it.
    #[track_caller]
    fn build(&self, from: &str, to: &str) {
        let built = self.try_build(from, to, "oci-mediatypes=true");
        let said = String::from_utf8_lossy(&built.stderr).into_owned();
        assert!(built.status.success(), "{said}\n{}", self.host.snapshotter.output());
    }

    fn try_build(&self, from: &str, to: &str, options: &str) -> Output {
        let steps = "RUN [\"/bin/sh\", \"-c\", \"echo one > /opt/one; echo three > /etc/greeting\"]\n\
                     RUN [\"/bin/sh\", \"-c\", \"cat /opt/one > /opt/two\"]\n";
        fs::create_dir_all(self.host.scene.path("context")).unwrap();
        fs::write(self.host.scene.path("context/Dockerfile"), format!("FROM {from}\n{steps}")).unwrap();
        let output = format!("type=image,name={to},push=true,{options}");
        let words = ["build", "--progress", "plain", "--frontend", "dockerfile.v0", "--local"];
        let places = ["context=context", "--local", "dockerfile=context", "--output", &output];
        self.ask(&[&words[..], &places].concat())
    }
}

/// The layers of a manifest that are blocks.
fn blocks(manifest: &Value) -> Vec<bool> {
    let layers = manifest["layers"].as_array().unwrap().iter();
    layers.map(|layer| layer["annotations"].get(BLOB_DIGEST).is_some()).collect()
}

#[test]
fn buildkit_builds_disks_on_disks_and_tars_on_originals() {
    let scene = Scene::new();
    let Some(host) = Host::start_with(&scene, &settings()) else { return };
    if !Containerd::has_client("buildkitd") || !Containerd::has_client("buildctl") {
        return;
    }
    let own = format!("{}/disks/shell:1", host.registry_host);
    host.convert(&format!("oci://{own}"));
    host.convert("--referrer");
    let to = ["disks/shell:2", "shell:2"].map(|name| format!("{}/{name}", host.registry_host));
    {
        let buildkit = BuildKit::start(&host);
        buildkit.build(&own, &to[0]);
        buildkit.build(&host.image, &to[1]);
    }
    let built = to.each_ref().map(|image| host.manifest(image));
    // The layers of the image, those of the two steps.
    assert_eq!(blocks(&built[0]), vec![true; host.layers + 2], "{}", built[0]);
    assert_eq!(blocks(&built[1]), vec![false; host.layers + 2], "{}", built[1]);

    let elsewhere = Scene::new();
    let other = host.another(&elsewhere);
    for (image, fetched) in to.iter().zip([2, 2 + host.layers + 2]) {
        let before = other.fetched();
        other.pull(image);
        assert_eq!(other.fetched() - before, fetched, "{image}\n{}", other.snapshotter.output());
        let said = other.containerd.run(image, "built", "cat /opt/two /etc/greeting");
        assert_eq!(said, "one\nthree\n", "{image}");
    }
}

#[test]
fn builds_of_which_other_hosts_would_lack_files_are_refused_when_they_are_built_or_pulled() {
    let scene = Scene::new();
    let Some(host) = Host::start_with(&scene, &settings()) else { return };
    if !Containerd::has_client("buildkitd") || !Containerd::has_client("buildctl") {
        return;
    }
    // The repository whose writers are trusted: without that, no layer of TurboOCI's is taken for the image's own.
    let name = |tag: &str| format!("{}/shell:{tag}", host.registry_host);
    host.convert(&format!("oci://{}", name("native")));
    host.convert(&format!("oci://{} --mode turbo", name("turbo")));
    {
        let buildkit = BuildKit::start(&host);
        let refused = buildkit.try_build(&name("turbo"), &name("turbo-built"), "oci-mediatypes=true");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("--mode native"), "{said}");
        let built = buildkit.try_build(&name("native"), &name("plain"), "oci-mediatypes=false");
        let said = String::from_utf8_lossy(&built.stderr).into_owned();
        assert!(built.status.success(), "{said}");
    }
    assert!(blocks(&host.manifest(&name("plain"))).iter().all(|is_named| !is_named));
    let elsewhere = Scene::new();
    let other = host.another(&elsewhere);
    let refused = cri::pull(&other.containerd.socket(), &name("plain")).unwrap_err().to_string();
    assert!(refused.contains("failed to extract layer"), "{refused}");
    assert!(other.containerd.snapshots().is_empty(), "{refused}");
}

/// `BuildKit` then unpacks the form's layers, without annotations, on the original's, which have the same names.
#[test]
fn a_build_on_turbo_oci_is_refused_as_such_where_the_original_is_there() {
    let scene = Scene::new();
    let Some(host) = Host::start_with(&scene, &settings()) else { return };
    if !Containerd::has_client("buildkitd") || !Containerd::has_client("buildctl") {
        return;
    }
    let name = |tag: &str| format!("{}/shell:{tag}", host.registry_host);
    host.convert("--referrer");
    host.convert(&format!("oci://{} --mode turbo", name("turbo")));
    let buildkit = BuildKit::start(&host);
    buildkit.build(&host.image, &name("tars"));
    let refused = buildkit.try_build(&name("turbo"), &name("turbo-built"), "oci-mediatypes=true");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("TurboOCI") && said.contains("--mode native"), "{said}");
    let log = host.snapshotter.output();
    assert!(!log.contains("containerd names no image"), "{log}");
}
