//! A containerd of a test's own, with a snapshotter of this project as a proxy plugin.
//!
//! Its configuration, its state and its sockets are in a directory of the test's. Debian's containerd is used, or, if
//! the environment variable `HEADSTART_CONTAINERD` names a directory, the one there, which may be a containerd 2.

use crate::process::{Process, installed, is_root, skipped};
use crate::wait::wait_until;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The longest time for a start, and for an end.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The number of daemons that this process has started.
static STARTED: AtomicU32 = AtomicU32::new(0);
/// The directory of containerd's programs, in place of those in the path.
const PROGRAMS: &str = "HEADSTART_CONTAINERD";
/// The plugin for Kubernetes, which looks at the host.
const CRI: &str = "io.containerd.grpc.v1.cri";
/// containerd's own snapshotter for overlayfs.
const OVERLAYFS: &str = "io.containerd.snapshotter.v1.overlayfs";
/// The parts of containerd that look at the host, or that tests do not need.
const DISABLED: [&str; 8] = [
    "io.containerd.internal.v1.opt",
    "io.containerd.nri.v1.nri",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.native",
    OVERLAYFS,
    "io.containerd.snapshotter.v1.zfs",
];

/// A running containerd. Dropping it stops it, and kills the containers that were started in the background.
#[derive(Debug)]
pub struct Containerd {
    process: Process,
    dir: PathBuf,
    namespace: &'static str,
    /// The containers that were started in the background.
    containers: Vec<String>,
    /// A number that no other containerd of this process has.
    number: u32,
    /// The name of the snapshotter's plugin.
    plugin: &'static str,
}

/// The things that a test's containerd has beside its snapshotter.
#[derive(Clone, Debug)]
pub struct ContainerdSettings {
    /// The name of the snapshotter's plugin. Some clients ask for layers without fetching them only under names that
    /// they know.
    pub plugin: &'static str,
    /// The registry, as HOST:PORT, that Kubernetes' interface asks without TLS, and whose image `pause:1` holds pods.
    /// `None`: that interface is off.
    pub cri_registry: Option<String>,
    /// `true` if containerd has its own snapshotter for overlayfs.
    pub has_overlayfs: bool,
    /// The directory in which the snapshotter `erofs` of containerd 2 finds layers. With it, there is no snapshotter of
    /// this project.
    pub layer_directory: Option<PathBuf>,
}

impl Default for ContainerdSettings {
    fn default() -> Self {
        Self { plugin: "headstart", cri_registry: None, has_overlayfs: false, layer_directory: None }
    }
}

impl Containerd {
    /// `true` if a containerd can run here. Otherwise the reason is printed.
    #[must_use]
    pub fn can_run() -> bool {
        is_root() && installed(&["containerd", "ctr", "runc", "containerd-shim-runc-v2", "ldd"])
    }

    /// `true` if a client of containerd is beside it, in the directory of a containerd 2. Otherwise that is printed.
    #[must_use]
    pub fn has_client(name: &str) -> bool {
        let has = is_second() && program(name).exists();
        if !has {
            skipped(&format!("{name} is not in the directory of a containerd 2 that {PROGRAMS} names"));
        }
        has
    }

    /// `true` if it is containerd 2 or later, which asks differs of others, too. Otherwise that is printed.
    #[must_use]
    pub fn has_differs() -> bool {
        let has = is_second();
        if !has {
            skipped(&format!("this containerd is no containerd 2: {PROGRAMS} can name one's directory"));
        }
        has
    }

    /// Starts it in `dir`, with the snapshotter at `socket` under the name `headstart`. Panics if it does not start.
    #[must_use]
    pub fn start(dir: &Path, socket: &Path, settings: &ContainerdSettings) -> Self {
        let has_cri = settings.cri_registry.is_some();
        write_configuration(dir, socket, settings);
        let namespace = if has_cri { "k8s.io" } else { "default" };
        let process = Self::process(dir);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        Self {
            process,
            dir: dir.to_owned(),
            namespace,
            containers: Vec::new(),
            number,
            plugin: settings.plugin,
        }
    }

    fn process(dir: &Path) -> Process {
        let mut command = Command::new(program("containerd"));
        // Where it looks for the shim.
        command.env("PATH", path()).arg("--config").arg(dir.join("config.toml"));
        let process = Process::start(&mut command);
        let is_up = || run_ctr(dir, "default", &["version"]).status.success();
        wait_until("containerd answers", TIME_LIMIT, is_up);
        process
    }

    /// The socket for its clients.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("containerd.sock")
    }

    /// Stops it, and starts it again on the same state.
    pub fn restart(&mut self) {
        self.process.stop(TIME_LIMIT);
        self.process = Self::process(&self.dir);
    }

    /// Waits until it has connected to a snapshotter that was started again: it tries every few seconds.
    pub fn wait_for_snapshotter(&self) {
        // What containerd has in its own database, it asks no snapshotter for.
        let snapshots = ["snapshots", "--snapshotter", self.plugin];
        let ask = |words: &[&str]| self.run_ctr(&[&snapshots[..], words].concat()).status.success();
        let is_there = || ask(&["prepare", "probe"]) && ask(&["rm", "probe"]);
        wait_until("containerd has found the snapshotter again", TIME_LIMIT, is_there);
    }

    /// Runs `ctr` and returns its output. Panics if it fails.
    #[track_caller]
    pub fn ctr(&self, arguments: &[&str]) -> String {
        let output = self.run_ctr(arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let refused = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ctr {arguments:?}\n{said}{refused}\n{}", self.process.output());
        said
    }

    /// Runs `ctr`.
    #[must_use]
    pub fn run_ctr(&self, arguments: &[&str]) -> Output {
        run_ctr(&self.dir, self.namespace, arguments)
    }

    /// Has containerd remove what nothing refers to. By itself it collects at intervals of fifty times as long as it
    /// takes: a minute on a busy machine.
    #[track_caller]
    pub fn collect_garbage(&self) {
        let lease = self.id_of("collection");
        self.ctr(&["leases", "create", "--id", &lease]);
        self.ctr(&["leases", "delete", "--sync", &lease]);
    }

    /// The id of the container that a test calls `id`: runc keeps the containers of all of a host's daemons in one
    /// place, and several tests may be threads of one process.
    #[must_use]
    pub fn id_of(&self, id: &str) -> String {
        format!("{id}-{}-{}", std::process::id(), self.number)
    }

    /// Removes a container that does not run. Panics if that fails.
    #[track_caller]
    pub fn remove_container(&self, id: &str) {
        self.ctr(&["containers", "rm", &self.id_of(id)]);
    }

    /// Runs a command of the shell in a container of its own and returns its output. Panics if it fails.
    #[track_caller]
    pub fn run(&self, image: &str, id: &str, script: &str) -> String {
        let id = self.id_of(id);
        self.ctr(&["run", "--rm", "--snapshotter", self.plugin, image, &id, "/bin/sh", "-c", script])
    }

    /// Starts a container that does nothing. Panics if that fails.
    #[track_caller]
    pub fn start_container(&mut self, image: &str, id: &str) {
        let id = self.id_of(id);
        self.ctr(&["run", "-d", "--snapshotter", self.plugin, image, &id, "/bin/sleep", "1000"]);
        self.containers.push(id);
    }

    /// Ends what runs in a container, which keeps its files. Panics if it goes on.
    #[track_caller]
    pub fn end_container(&self, id: &str) {
        // The exit status is that of the killed task.
        let id = self.id_of(id);
        let _ = self.run_ctr(&["task", "rm", "-f", &id]);
        assert!(!self.ctr(&["task", "ls", "-q"]).contains(&id));
    }

    /// Runs a command in a container that runs. Panics if it fails.
    #[track_caller]
    pub fn exec(&self, id: &str, script: &str) -> String {
        self.ctr(&["task", "exec", "--exec-id", "exec", &self.id_of(id), "/bin/sh", "-c", script])
    }

    /// The names of containerd's snapshots with their kinds.
    #[track_caller]
    pub fn snapshots(&self) -> Vec<String> {
        let listed = self.ctr(&["snapshots", "--snapshotter", self.plugin, "ls"]);
        let lines = listed.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.map(|words| format!("{} {}", words[0], words[words.len() - 1])).collect()
    }

    /// The output of containerd so far.
    #[must_use]
    pub fn output(&self) -> String {
        self.process.output()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for container in &self.containers {
            let _ = self.run_ctr(&["task", "rm", "-f", container]);
        }
    }
}

/// The path of a program of containerd's, or its name.
pub fn program(name: &str) -> PathBuf {
    env::var_os(PROGRAMS).map_or_else(|| name.into(), |directory| Path::new(&directory).join(name))
}

/// The path for programs, with those of containerd first.
fn path() -> OsString {
    let (first, others) = (env::var_os(PROGRAMS), env::var_os("PATH").unwrap_or_default());
    let directories = first.into_iter().map(PathBuf::from).chain(env::split_paths(&others));
    env::join_paths(directories).unwrap()
}

/// `true` if this is containerd 2 or later, whose configuration has other names.
fn is_second() -> bool {
    let output = Command::new(program("containerd")).arg("--version").output().unwrap();
    !String::from_utf8_lossy(&output.stdout).contains(" 1.")
}

fn write_configuration(dir: &Path, socket: &Path, settings: &ContainerdSettings) {
    let path = |name: &str| dir.join(name).display().to_string();
    let is_second = is_second();
    let plugin = settings.plugin;
    let off = DISABLED.into_iter().chain(settings.cri_registry.is_none().then_some(CRI));
    // Parts of containerd 2 are set up for its own snapshotter, whichever is asked.
    let has_overlayfs = is_second || settings.has_overlayfs;
    let off: Vec<_> = off.filter(|part| !has_overlayfs || *part != OVERLAYFS).collect();
    let mut text = format!(
        "version = {}\nroot = {:?}\nstate = {:?}\ndisabled_plugins = {off:?}\n[grpc]\naddress = {:?}\n",
        if is_second { 3 } else { 2 },
        path("root"),
        path("state"),
        path("containerd.sock"),
    );
    if let Some(layers) = &settings.layer_directory {
        fs::write(dir.join("config.toml"), text + &own_erofs(layers)).unwrap();
        return;
    }
    text += &format!(
        "[proxy_plugins.{plugin}]\ntype = \"snapshot\"\naddress = {:?}\n\
         [proxy_plugins.{plugin}.exports]\nenable_remote_snapshot_annotations = \"true\"\n",
        socket.display().to_string(),
    );
    if is_second {
        // Served by the snapshotter, too, which answers for what it does not do that the next one is to be asked.
        text += &format!(
            "[proxy_plugins.headstart-diff]\ntype = \"diff\"\naddress = {:?}\n\
             [plugins.\"io.containerd.service.v1.diff-service\"]\ndefault = [\"headstart-diff\", \"walking\"]\n",
            socket.display().to_string(),
        );
    }
    if let Some(registry) = &settings.cri_registry {
        text += &if is_second { second_cri(dir, plugin, registry) } else { first_cri(plugin, registry) };
    }
    fs::write(dir.join("config.toml"), text).unwrap();
}

/// The configuration of containerd 2's own EROFS snapshotter, whose differ may be missing: it wants a newer mkfs.erofs
/// than Debian's.
fn own_erofs(layers: &Path) -> String {
    format!(
        "[plugins.\"io.containerd.snapshotter.v1.erofs\"]\nlayer_content_caches = [{:?}]\n\
         [[plugins.\"io.containerd.transfer.v1.local\".unpack_config]]\n\
         platform = \"linux\"\nsnapshotter = \"erofs\"\ndiffer = \"walking\"\n",
        layers.display().to_string(),
    )
}

/// The configuration of Kubernetes' interface in containerd 1. Pods are not preferred when memory is short: some
/// machines, such as those of tests, do not allow that.
fn first_cri(plugin: &str, registry: &str) -> String {
    format!(
        "[plugins.{CRI:?}]\ndisable_tcp_service = true\nsandbox_image = \"{registry}/pause:1\"\n\
         restrict_oom_score_adj = true\n\
         [plugins.{CRI:?}.containerd]\n\
         snapshotter = {plugin:?}\ndisable_snapshot_annotations = false\n\
         [plugins.{CRI:?}.registry.mirrors.{registry:?}]\nendpoint = [\"http://{registry}\"]\n"
    )
}

/// The configuration of Kubernetes' interface in containerd 2, with a directory for registries in `dir`.
fn second_cri(dir: &Path, plugin: &str, registry: &str) -> String {
    let registries = dir.join("registries");
    fs::create_dir_all(registries.join(registry)).unwrap();
    fs::write(registries.join(registry).join("hosts.toml"), format!("server = \"http://{registry}\"\n"))
        .unwrap();
    let registries = registries.display().to_string();
    format!(
        "[plugins.{CRI:?}]\ndisable_tcp_service = true\n[plugins.\"io.containerd.cri.v1.images\"]\n\
         snapshotter = {plugin:?}\ndisable_snapshot_annotations = false\n\
         [plugins.\"io.containerd.cri.v1.images\".registry]\nconfig_path = {registries:?}\n\
         [plugins.\"io.containerd.cri.v1.images\".pinned_images]\nsandbox = \"{registry}/pause:1\"\n\
         [plugins.\"io.containerd.cri.v1.runtime\"]\nrestrict_oom_score_adj = true\n"
    )
}

fn run_ctr(dir: &Path, namespace: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "120"]).arg(program("ctr")).arg("--address").arg(dir.join("containerd.sock"));
    command.args(["--namespace", namespace]).args(arguments).output().unwrap()
}
