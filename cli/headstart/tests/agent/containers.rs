//! `headstart snapshotter` under a real containerd: images that are converted run without being pulled.

use crate::agent::Agent;
use crate::attached::TIMEOUT;
use crate::cri;
use crate::scene::{Scene, run_tool};
use headstart_block::Digest;
use headstart_export::fuse::too_old_to_keep;
use headstart_testkit::containerd::{Containerd, ContainerdSettings};
use headstart_testkit::faults::FaultProxy;
use headstart_testkit::process::{Process, has_fuse, installed, skipped};
use headstart_testkit::registry::{PASSWORD, Registry, RegistryAccess, USER};
use headstart_testkit::shell_image;
use headstart_testkit::wait::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// A host with an agent, a snapshotter and containerd, and a registry with a small image.
pub(crate) struct Host<'s> {
    pub(crate) containerd: Containerd,
    pub(crate) snapshotter: Process,
    pub(crate) agent: Agent<'s>,
    /// `None` once it is away.
    pub(crate) registry: Option<Arc<Registry>>,
    /// The proxy that counts the requests to it, if they are counted.
    pub(crate) counter: Option<FaultProxy>,
    pub(crate) registry_host: String,
    pub(crate) scene: &'s Scene,
    pub(crate) image: String,
    /// The number of the image's layers.
    pub(crate) layers: usize,
    /// Words by which programs of this project reach the registry.
    access: String,
}

/// The things in which hosts differ.
pub(crate) struct HostSettings<'a> {
    /// The name of the snapshotter's plugin.
    pub(crate) plugin: &'static str,
    /// The registry's clients.
    pub(crate) clients: RegistryAccess<'a>,
    /// Words by which programs of this project reach the registry.
    pub(crate) access: &'a str,
    /// More words for the snapshotter.
    pub(crate) words: &'a str,
    /// `true` to count the requests to the registry.
    pub(crate) is_counted: bool,
}

impl Default for HostSettings<'_> {
    fn default() -> Self {
        Self { plugin: "headstart", clients: RegistryAccess::Open, access: "", words: "", is_counted: false }
    }
}

impl<'s> Host<'s> {
    /// Starts all of them. `None` if this is no place for it; the reason is printed.
    pub(crate) fn start(scene: &'s Scene) -> Option<Self> {
        Self::start_with(scene, &HostSettings::default())
    }

    /// Starts all of them, as the settings say.
    pub(crate) fn start_with(scene: &'s Scene, settings: &HostSettings<'_>) -> Option<Self> {
        if !Containerd::can_run() || !has_fuse() || !installed(&["skopeo"]) {
            return None;
        }
        if fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control").is_err() {
            skipped("this kernel has no loop devices");
            return None;
        }
        let registry = Registry::start(settings.clients)?;
        let layers = shell_image::write(&scene.path("image.tar"));
        let counter = settings.is_counted.then(|| FaultProxy::start(registry.address()));
        let address = counter.as_ref().map_or(registry.address(), FaultProxy::addr);
        let image = format!("{address}/shell:1");
        let user = format!("{USER}:{PASSWORD}");
        let words =
            ["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", "--dest-creds", &user];
        let places = ["oci-archive:image.tar", &format!("docker://{image}")];
        run_tool("skopeo", &[&words[..], &places].concat(), &scene.path("."));
        let mut host = Self::on(scene, settings, (Arc::new(registry), address), image, layers);
        host.counter = counter;
        Some(host)
    }

    /// Starts another host on the registry of this one.
    pub(crate) fn another<'t>(&self, scene: &'t Scene) -> Host<'t> {
        let registry = Arc::clone(self.registry.as_ref().unwrap());
        let settings = HostSettings { access: &self.access, ..HostSettings::default() };
        let address = self.registry_host.parse().unwrap();
        Host::on(scene, &settings, (registry, address), self.image.clone(), self.layers)
    }

    fn on(
        scene: &'s Scene,
        settings: &HostSettings<'_>,
        (registry, address): (Arc<Registry>, SocketAddr),
        image: String,
        layers: usize,
    ) -> Self {
        let registry_host = address.to_string();
        let access = settings.access.to_owned();
        let agent = Agent::start(scene, "a", "");
        let words = format!("{} {}", snapshotter_words(&registry_host, &access), settings.words);
        let mut snapshotter = Process::start(&mut scene.command(words.trim()));
        snapshotter.line("that it is ready", TIMEOUT, |line| line.contains("\"socket\""));
        let (plugin, cri_registry) = (settings.plugin, Some(registry_host.clone()));
        let settings = ContainerdSettings { plugin, cri_registry, ..Default::default() };
        let containerd = Containerd::start(&scene.path("."), &scene.path("snap.sock"), &settings);
        let (registry, counter) = (Some(registry), None);
        Self {
            counter,
            containerd,
            snapshotter,
            agent,
            registry,
            registry_host,
            access,
            scene,
            image,
            layers,
        }
    }

    /// Converts the image, in the form `form`.
    pub(crate) fn convert(&self, form: &str) -> Value {
        let (image, host, access) = (&self.image, &self.registry_host, &self.access);
        let words = format!("image convert oci://{image} {form} --size 256M --plain-http {host} {access}");
        self.scene.json(words.trim())
    }

    pub(crate) fn restart_snapshotter(&mut self) {
        self.restart_with("");
    }

    /// Starts the next snapshotter in its place, with more words.
    pub(crate) fn restart_with(&mut self, words: &str) {
        self.snapshotter.kill();
        let words = format!("{} {words}", snapshotter_words(&self.registry_host, &self.access));
        self.snapshotter = Process::start(&mut self.scene.command(words.trim()));
        self.snapshotter.line("that it is ready", TIMEOUT, |line| line.contains("\"socket\""));
        self.containerd.wait_for_snapshotter();
    }

    /// Pulls an image as Kubernetes does.
    #[track_caller]
    pub(crate) fn pull(&self, image: &str) {
        let pulled = cri::pull(&self.containerd.socket(), image);
        pulled.unwrap_or_else(|status| {
            panic!("{status}\n{}\n{}", self.containerd.output(), self.snapshotter.output())
        });
    }

    /// The number of blobs that containerd has fetched.
    pub(crate) fn fetched(&self) -> usize {
        self.containerd.ctr(&["content", "ls", "-q"]).lines().count()
    }

    /// The number of images that are mounted.
    pub(crate) fn trees(&self) -> usize {
        let trees = fs::read_dir(self.scene.path("snap/trees")).unwrap();
        trees.filter(|entry| is_mounted(&entry.as_ref().unwrap().path().join("fs"))).count()
    }
}

fn snapshotter_words(host: &str, access: &str) -> String {
    format!(
        "snapshotter --json --root ~/snap --socket ~/snap.sock --agent ~/a/agent.sock --plain-http {host} {access} \
         --trust oci://{host}/shell --containerd ~/containerd.sock"
    )
}

fn is_mounted(path: &Path) -> bool {
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!(" {} ", path.display()))
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        let _ = self.containerd.run_ctr(&["images", "rm", "--sync", &self.image]);
        // What a failed test leaves mounted would keep its directory.
        let places = [("snap/trees", "fs"), ("snap/snapshots", "block/mountpoint")];
        for (directory, mounted) in places {
            for entry in fs::read_dir(self.scene.path(directory)).into_iter().flatten().flatten() {
                let _ =
                    std::process::Command::new("umount").arg("-l").arg(entry.path().join(mounted)).output();
            }
        }
    }
}

pub(crate) const LOOK: &str = "cat /etc/greeting; ls /etc /opt/opaque; echo x > /etc/written; cat /etc/written; \
    ls -ld / | { read mode rest; echo $mode; }";

#[test]
fn an_image_with_metadata_only_runs_from_the_layers_of_its_original() {
    let scene = Scene::new();
    let Some(host) = Host::start(&scene) else { return };
    let made = host.convert("--referrer --mode turbo");
    assert!(made["layers"].as_array().unwrap().iter().all(|layer| layer["turbo"] == true), "{made}");
    host.pull(&host.image);
    assert_eq!(host.containerd.snapshots().len(), host.layers);
    assert_eq!((host.trees(), host.agent.disks().len()), (1, 1));
    let said = host.containerd.run(&host.image, "first", LOOK);
    let (files, mode) = said.trim_end().rsplit_once('\n').unwrap();
    assert_eq!((files, mode), ("two\n/etc:\ngreeting\n\n/opt/opaque:\nnew\nx", "drwxr-x--x"));
}

#[test]
fn an_image_on_erofs_runs_over_overlayfs_and_has_no_disks_that_are_written_to() {
    let scene = Scene::new();
    let Some(host) = Host::start(&scene) else { return };
    host.convert("--referrer --fs erofs");
    host.pull(&host.image);
    assert_eq!(host.containerd.snapshots().len(), host.layers);
    let said = host.containerd.run(&host.image, "first", LOOK);
    let (files, mode) = said.trim_end().rsplit_once('\n').unwrap();
    assert_eq!((files, mode), ("two\n/etc:\ngreeting\n\n/opt/opaque:\nnew\nx", "drwxr-x--x"));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let trees = scene.path("snap/trees").display().to_string();
    assert!(mounts.lines().any(|line| line.contains(&trees) && line.contains(" - erofs ")), "{mounts}");
    for mode in ["dir", "dev"] {
        let error = host.refuse_on_disk(mode);
        assert!(error.contains("EROFS, on which nothing can be written"), "{mode}: {error}");
    }
    wait_until("disks that were refused are detached", TIMEOUT, || host.agent.disks().len() == 1);
}

#[test]
fn a_converted_image_runs_under_its_own_name_without_its_layers() {
    let scene = Scene::new();
    let Some(mut host) = Host::start(&scene) else { return };
    host.convert("--referrer");
    host.pull(&host.image);
    let snapshots = host.containerd.snapshots();
    assert_eq!(snapshots.len(), host.layers, "{snapshots:?}");
    // A manifest and a config.
    assert_eq!(host.fetched(), 2, "{}", host.snapshotter.output());
    assert_eq!(host.trees(), 1);
    assert_eq!(host.agent.disks().len(), 1);
    let said = host.containerd.run(&host.image, "first", LOOK);
    let (files, mode) = said.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(files, "two\n/etc:\ngreeting\n\n/opt/opaque:\nnew\nx");
    // The conversion keeps what a layer says about the root.
    assert_eq!(mode, "drwxr-x--x");

    // Containers go on without the snapshotter, and are there for the next one.
    let image = host.image.clone();
    host.containerd.start_container(&image, "lasting");
    host.snapshotter.kill();
    assert_eq!(host.containerd.exec("lasting", "cat /etc/greeting"), "two\n");
    host.restart_snapshotter();
    assert_eq!(host.containerd.run(&image, "second", LOOK), said);
    assert_eq!(host.containerd.exec("lasting", "cat /etc/greeting"), "two\n");
    assert_eq!((host.trees(), host.agent.disks().len()), (1, 1));
    host.containerd.end_container("lasting");
    host.containerd.remove_container("lasting");

    host.containerd.ctr(&["images", "rm", "--sync", &image]);
    cri::remove(&host.containerd.socket(), &image).unwrap();
    let all = || host.containerd.ctr(&["images", "ls", "-q"]);
    for name in all().lines() {
        host.containerd.ctr(&["images", "rm", "--sync", name]);
    }
    wait_until("the image's disk is gone", TIMEOUT, || host.agent.disks().is_empty());
    assert_eq!(host.trees(), 0);
    assert_eq!(fs::read_dir(scene.path("snap/trees")).unwrap().count(), 0);
}

/// The number of the process with this file in the scene.
pub(crate) fn process_of(scene: &Scene, file: &Path) -> Pid {
    let text = fs::read_to_string(scene.path(".").join(file)).unwrap();
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

#[test]
fn a_container_goes_on_though_its_disks_process_dies_and_new_ones_start_though_its_keeper_does() {
    let scene = Scene::new();
    let Some(mut host) = Host::start(&scene) else { return };
    if let Some(release) = too_old_to_keep() {
        return skipped(&format!("kernel {release} sends no requests of FUSE again: that takes 6.9"));
    }
    let made = host.convert("--referrer");
    let image = host.image.clone();
    let registry = host.registry_host.clone();
    // The disk beside it is also found by hand.
    let by_hand = format!("oci://{image} --as by-hand --nbd unix:~/n.sock --plain-http {registry}");
    assert_eq!(host.agent.attach(&by_hand)["images"][0]["digest"], made["digest"]);
    host.agent.detach("by-hand");
    let listed = scene.json(&format!("image list oci://{registry}/shell --plain-http {registry}"));
    assert_eq!(listed["images"][0]["digest"], made["digest"], "{listed}");
    host.pull(&image);
    let said = host.containerd.run(&image, "first", LOOK);
    host.containerd.start_container(&image, "lasting");
    let name = host.agent.disks()[0]["name"].as_str().unwrap().to_owned();
    // Users know the image by its name, and do not take the files of containers away by mistake.
    let option = host.agent.option();
    let listed = scene.ok(&format!("disk list {option}")).stdout;
    let root = scene.path("snap").display().to_string();
    assert!(listed.contains(&image) && listed.contains(&root), "{listed}");
    let refusal = [&*name, &image, &root, "containers", "--force"];
    scene.fails(&format!("disk detach {name} {option}"), &refusal);
    assert_eq!(host.agent.disks().len(), 1);
    let (disk, keeper) = (format!("a/disks/{name}.pid"), Path::new("a/keeper/keeper.pid"));
    let drop_caches = || fs::write("/proc/sys/vm/drop_caches", "3");
    kill_process(process_of(&scene, Path::new(&disk)), Signal::KILL).unwrap();
    let _ = drop_caches();
    assert_eq!(host.containerd.exec("lasting", "cat /etc/greeting"), "two\n");

    // With the keeper the mount is lost. What uses it gets errors, and new containers the files of the next process.
    let before = [process_of(&scene, Path::new(&disk)), process_of(&scene, keeper)];
    for pid in before {
        kill_process(pid, Signal::KILL).unwrap();
    }
    let served = |disk: &Value| disk["state"] == "serving" && disk["restarts"] == 2;
    host.agent.disk_that("served by another process", served);
    let _ = drop_caches();
    assert_eq!(host.containerd.run(&image, "second", LOOK), said);
    assert_eq!((host.trees(), host.agent.disks().len()), (1, 1));
    host.containerd.end_container("lasting");
}

#[test]
fn images_without_a_disk_and_without_an_agent_are_pulled_as_ever() {
    let scene = Scene::new();
    let Some(mut host) = Host::start(&scene) else { return };
    let image = host.image.clone();
    host.pull(&image);
    assert_eq!(host.fetched(), 2 + host.layers);
    let said = host.containerd.run(&image, "first", LOOK);
    assert!(said.starts_with("two\n"), "{said}");
    assert_eq!(host.trees(), 0);
    for name in host.containerd.ctr(&["images", "ls", "-q"]).lines() {
        host.containerd.ctr(&["images", "rm", "--sync", name]);
    }
    wait_until("its snapshots are gone", TIMEOUT, || host.containerd.snapshots().is_empty());

    // The disk is there now, but not the agent: the label says so.
    host.convert("--referrer");
    host.restart_snapshotter();
    host.agent.kill();
    host.pull(&image);
    assert_eq!(host.containerd.run(&image, "second", LOOK), said);
    assert_eq!(host.trees(), 0);
    let info = |snapshot: &String| {
        let name = snapshot.split(' ').next().unwrap();
        host.containerd.ctr(&["snapshots", "--snapshotter", "headstart", "info", name])
    };
    let infos: Vec<_> = host.containerd.snapshots().iter().map(info).collect();
    let has_reason = |info: &String| info.contains("headstart.fallback") && info.contains("no agent answers");
    assert!(infos.iter().any(has_reason), "{infos:?}");
}

#[test]
fn an_image_that_is_removed_after_its_pull_leaves_nothing() {
    let scene = Scene::new();
    let Some(host) = Host::start(&scene) else { return };
    // Under the name of the image, which is the first entry of an index then.
    host.convert("--index");
    for round in ["first", "second"] {
        host.pull(&host.image);
        assert_eq!((host.trees(), host.agent.disks().len()), (1, 1), "{round}");
        for name in host.containerd.ctr(&["images", "ls", "-q"]).lines() {
            host.containerd.ctr(&["images", "rm", "--sync", name]);
        }
        wait_until("the image's disk is gone", TIMEOUT, || host.agent.disks().is_empty());
        assert_eq!(fs::read_dir(scene.path("snap/trees")).unwrap().count(), 0, "{round}");
    }
}

#[test]
fn an_image_that_is_a_disk_needs_no_trust_and_one_that_claims_other_layers_is_refused() {
    let scene = Scene::new();
    let Some(host) = Host::start(&scene) else { return };
    let registry = host.registry_host.clone();
    let own = format!("{registry}/disks/shell:1");
    host.convert(&format!("oci://{own}"));
    host.pull(&own);
    assert_eq!((host.fetched(), host.trees()), (2, 1));
    assert!(host.containerd.run(&own, "own", LOOK).starts_with("two\n"));
    for name in host.containerd.ctr(&["images", "ls", "-q"]).lines() {
        host.containerd.ctr(&["images", "rm", "--sync", name]);
    }
    wait_until("the image's disk is gone", TIMEOUT, || host.agent.disks().is_empty());

    let liar = format!("{registry}/liar/shell:1");
    let copy = |options: &[&str], from: &str, to: &str| {
        let fixed = ["--insecure-policy", "copy", "--quiet", "--preserve-digests"];
        run_tool("skopeo", &[&fixed[..], options, &[from, to]].concat(), &scene.path("."));
    };
    let publish = |name: &str, change: &dyn Fn(&mut Value, &mut Value)| {
        let _ = fs::remove_dir_all(scene.path("lie"));
        copy(&["--src-tls-verify=false"], &format!("docker://{own}"), "dir:lie");
        change_image(&scene.path("lie"), change);
        copy(&["--dest-tls-verify=false"], "dir:lie", &format!("docker://{name}"));
    };
    // Its first layer is said to have another's content.
    publish(&liar, &|_, config| {
        config["rootfs"]["diff_ids"][0] = Digest::of(b"the layer of another image").to_string().into();
    });
    let refused = cri::pull(&host.containerd.socket(), &liar).unwrap_err();
    assert!(refused.to_string().contains("is not the one that its config claims"), "{refused}");
    assert_eq!((host.trees(), host.containerd.snapshots().len()), (0, 0));

    // Its last layer is one that containerd does not know, and would be in the files of all images with the others.
    let other = format!("{registry}/other/shell:1");
    publish(&other, &|manifest, config| {
        manifest["layers"].as_array_mut().unwrap().last_mut().unwrap()["mediaType"] =
            "application/vnd.example.extra".into();
        config["rootfs"]["diff_ids"].as_array_mut().unwrap().pop();
    });
    // containerd 1 refuses such an image.
    let _ = cri::pull(&host.containerd.socket(), &other);
    for tree in fs::read_dir(scene.path("snap/trees")).unwrap() {
        let name = fs::read_to_string(tree.unwrap().path().join("name")).unwrap_or_default();
        assert!(!name.contains("#all"), "{name}");
    }
}

/// Changes the manifest and the config of an image in a directory of skopeo's.
pub(crate) fn change_image(image: &Path, change: &dyn Fn(&mut Value, &mut Value)) {
    let read = |name: &str| serde_json::from_slice::<Value>(&fs::read(image.join(name)).unwrap()).unwrap();
    let mut manifest = read("manifest.json");
    let digest = manifest["config"]["digest"].as_str().unwrap().to_owned();
    let mut config = read(digest.strip_prefix("sha256:").unwrap());
    change(&mut manifest, &mut config);
    let config = config.to_string();
    let digest = Digest::of(config.as_bytes());
    fs::write(image.join(digest.hex()), &config).unwrap();
    manifest["config"]["digest"] = digest.to_string().into();
    manifest["config"]["size"] = config.len().into();
    fs::write(image.join("manifest.json"), manifest.to_string()).unwrap();
}
