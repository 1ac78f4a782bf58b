//! Debian's containerd and runc, with the snapshotter as a proxy plugin.

use crate::image;
use crate::served::Served;
use headstart_testkit::process::{Process, installed, is_root};
use headstart_testkit::wait::wait_until;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The parts of containerd that look at the host, or that these tests do not need.
const DISABLED: [&str; 8] = [
    "io.containerd.grpc.v1.cri",
    "io.containerd.internal.v1.opt",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.native",
    "io.containerd.snapshotter.v1.overlayfs",
    "io.containerd.snapshotter.v1.zfs",
];

/// A containerd of its own: its configuration, its state and its sockets are in a temporary directory.
struct Containerd {
    snapshotter: Served,
    process: Process,
    /// The containers that were started in the background.
    containers: Vec<String>,
    dir: TempDir,
}

impl Containerd {
    /// Starts both. `None` if this is no place for it; the reason is printed.
    fn start() -> Option<Self> {
        if !is_root() || !installed(&["containerd", "ctr", "runc", "containerd-shim-runc-v2", "ldd"]) {
            return None;
        }
        let dir = TempDir::with_prefix("headstart-containerd-").unwrap();
        let snapshotter = Served::start(dir.path());
        let process = Self::process(dir.path(), &snapshotter);
        Some(Self { snapshotter, process, containers: Vec::new(), dir })
    }

    fn process(dir: &Path, snapshotter: &Served) -> Process {
        let path = |name: &str| dir.join(name).display().to_string();
        let configuration = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = {DISABLED:?}\n[grpc]\naddress = {:?}\n\
             [proxy_plugins.headstart]\ntype = \"snapshot\"\naddress = {:?}\n",
            path("root"),
            path("state"),
            path("containerd.sock"),
            snapshotter.socket.display().to_string(),
        );
        let file = dir.join("config.toml");
        fs::write(&file, configuration).unwrap();
        let process = Process::start(Command::new("containerd").arg("--config").arg(&file));
        let is_up = || run_ctr(dir, &["version"]).status.success();
        wait_until("containerd answers", TIME_LIMIT, is_up);
        process
    }

    fn restart(&mut self) {
        self.process.stop(TIME_LIMIT);
        self.process = Self::process(self.dir.path(), &self.snapshotter);
    }

    /// Runs `ctr` and returns its output. Panics if it fails.
    #[track_caller]
    fn ctr(&self, arguments: &[&str]) -> String {
        let output = run_ctr(self.dir.path(), arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let refused = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ctr {arguments:?}\n{said}{refused}\n{}", self.process.output());
        said
    }

    /// The image in containerd's store, unpacked; the number of its layers.
    fn import(&self) -> usize {
        let archive = self.dir.path().join("image.tar");
        let layers = image::write(&archive);
        self.ctr(&["images", "import", "--snapshotter", "headstart", archive.to_str().unwrap()]);
        layers
    }

    /// Runs a command of the shell in a container of its own and returns its output.
    #[track_caller]
    fn run(&self, id: &str, script: &str) -> String {
        self.ctr(&["run", "--rm", "--snapshotter", "headstart", image::NAME, id, "/bin/sh", "-c", script])
    }

    /// Starts a container that does nothing.
    fn start_container(&mut self, id: &str) {
        self.containers.push(id.to_owned());
        self.ctr(&["run", "-d", "--snapshotter", "headstart", image::NAME, id, "/bin/sleep", "1000"]);
    }

    /// Ends what runs in a container, which keeps its files.
    fn end_container(&self, id: &str) {
        // The exit status is that of the killed task.
        run_ctr(self.dir.path(), &["task", "rm", "-f", id]);
        assert!(!self.ctr(&["task", "ls", "-q"]).contains(id));
    }

    /// Runs a command in a container that runs.
    #[track_caller]
    fn exec(&self, id: &str, script: &str) -> String {
        self.ctr(&["task", "exec", "--exec-id", "exec", id, "/bin/sh", "-c", script])
    }

    /// The names of containerd's snapshots with their kinds.
    fn snapshots(&self) -> Vec<String> {
        let listed = self.ctr(&["snapshots", "--snapshotter", "headstart", "ls"]);
        let lines = listed.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.map(|words| format!("{} {}", words[0], words[words.len() - 1])).collect()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for container in &self.containers {
            run_ctr(self.dir.path(), &["task", "rm", "-f", container]);
        }
    }
}

fn run_ctr(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "120", "ctr", "--address"]).arg(dir.join("containerd.sock"));
    command.args(arguments).output().unwrap()
}

#[test]
fn containers_run_on_imported_images_over_restarts_of_the_snapshotter() {
    let Some(mut containerd) = Containerd::start() else { return };
    let layers = containerd.import();
    let snapshots = containerd.snapshots();
    assert_eq!(snapshots.len(), layers, "{snapshots:?}");
    assert!(snapshots.iter().all(|snapshot| snapshot.ends_with(" Committed")), "{snapshots:?}");
    let look = "cat /etc/greeting; ls /etc /opt/opaque; echo x > /etc/written; cat /etc/written; ls -ld /";
    let said = containerd.run("first", look);
    let (files, mode) = said.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(files, "two\n/etc:\ngreeting\n\n/opt/opaque:\nnew\nx");
    assert!(mode.starts_with("drwxr-x--x"), "{mode}");

    // The image's snapshots are still there, and are used again without unpacking.
    containerd.snapshotter.restart();
    assert_eq!(containerd.run("second", look), said);
    assert_eq!(containerd.snapshotter.directories(), layers);
    containerd.restart();
    assert_eq!(containerd.run("third", look), said);

    containerd.ctr(&["images", "rm", "--sync", image::NAME]);
    let snapshotter = &containerd.snapshotter;
    wait_until("containerd has collected the snapshots", TIME_LIMIT, || snapshotter.directories() == 0);
    assert_eq!(containerd.snapshots(), Vec::<String>::new());
}

#[test]
fn a_container_runs_on_while_the_snapshotter_is_dead_and_after_it_came_back() {
    let Some(mut containerd) = Containerd::start() else { return };
    let layers = containerd.import();
    containerd.start_container("lasting");
    containerd.exec("lasting", "echo kept > /opt/kept");
    containerd.snapshotter.kill();
    assert_eq!(containerd.exec("lasting", "cat /opt/kept /etc/greeting"), "kept\ntwo\n");
    containerd.snapshotter.restart();
    assert_eq!(containerd.exec("lasting", "cat /opt/kept"), "kept\n");
    assert!(containerd.snapshots().contains(&"lasting Active".to_owned()), "{:?}", containerd.snapshots());
    let usage = containerd.ctr(&["snapshots", "--snapshotter", "headstart", "usage", "-b", "lasting"]);
    let usage: Vec<_> = usage.lines().nth(1).unwrap().split_whitespace().collect();
    // Its root, two directories and the file.
    assert!(usage[0] == "lasting" && usage[1].parse::<u64>().unwrap() >= 4096, "{usage:?}");

    // A new image of the container: its changes on the layers below.
    containerd.end_container("lasting");
    containerd.ctr(&["snapshots", "--snapshotter", "headstart", "commit", "changed", "lasting"]);
    containerd.ctr(&["snapshots", "--snapshotter", "headstart", "prepare", "again", "changed"]);
    assert_eq!(containerd.snapshotter.directories(), layers + 2);
    let mounted = containerd.dir.path().join("mounted");
    fs::create_dir(&mounted).unwrap();
    let mount = containerd.ctr(&[
        "snapshots",
        "--snapshotter",
        "headstart",
        "mounts",
        mounted.to_str().unwrap(),
        "again",
    ]);
    let status = Command::new("sh").args(["-c", mount.trim()]).status().unwrap();
    assert!(status.success(), "{mount}");
    let kept = fs::read_to_string(mounted.join("opt/kept"));
    unmount(&mounted);
    assert_eq!(kept.unwrap(), "kept\n");
}

fn unmount(path: &Path) {
    let status = Command::new("umount").arg(path).status().unwrap();
    assert!(status.success());
}
