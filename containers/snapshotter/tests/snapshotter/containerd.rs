//! Debian's containerd and runc, with the snapshotter as a proxy plugin.

use crate::served::Served;
use headstart_testkit::containerd::{Containerd, ContainerdSettings};
use headstart_testkit::shell_image;
use headstart_testkit::wait::wait_until;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// containerd and the snapshotter, in one directory.
struct Host {
    containerd: Containerd,
    snapshotter: Served,
    dir: TempDir,
}

impl Host {
    /// Starts both. `None` if this is no place for it; the reason is printed.
    fn start() -> Option<Self> {
        if !Containerd::can_run() {
            return None;
        }
        let dir = TempDir::with_prefix("headstart-containerd-").unwrap();
        let snapshotter = Served::start(dir.path());
        let containerd = Containerd::start(dir.path(), &snapshotter.socket, &ContainerdSettings::default());
        Some(Self { containerd, snapshotter, dir })
    }

    /// The image in containerd's store, unpacked; the number of its layers.
    fn import(&self) -> usize {
        let archive = self.dir.path().join("image.tar");
        let layers = shell_image::write(&archive);
        self.containerd.ctr(&["images", "import", "--snapshotter", "headstart", archive.to_str().unwrap()]);
        layers
    }

    /// Runs a command of the shell in a container of its own and returns its output.
    #[track_caller]
    fn run(&self, id: &str, script: &str) -> String {
        self.containerd.run(shell_image::NAME, id, script)
    }
}

#[test]
fn containers_run_on_imported_images_over_restarts_of_the_snapshotter() {
    let Some(mut host) = Host::start() else { return };
    let layers = host.import();
    let snapshots = host.containerd.snapshots();
    assert_eq!(snapshots.len(), layers, "{snapshots:?}");
    assert!(snapshots.iter().all(|snapshot| snapshot.ends_with(" Committed")), "{snapshots:?}");
    let look = "cat /etc/greeting; ls /etc /opt/opaque; echo x > /etc/written; cat /etc/written; \
    ls -ld / | { read mode rest; echo $mode; }";
    let said = host.run("first", look);
    let (files, mode) = said.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(files, "two\n/etc:\ngreeting\n\n/opt/opaque:\nnew\nx");
    // containerd passes over what a layer says about the root.
    assert_eq!(mode, "drwxr-xr-x");

    // The image's snapshots are still there, and are used again without unpacking.
    host.snapshotter.restart();
    host.containerd.wait_for_snapshotter();
    assert_eq!(host.run("second", look), said);
    let snapshotter = &host.snapshotter;
    wait_until("containers' snapshots are collected", TIME_LIMIT, || snapshotter.directories() == layers);
    host.containerd.restart();
    assert_eq!(host.run("third", look), said);

    host.containerd.ctr(&["images", "rm", "--sync", shell_image::NAME]);
    let snapshotter = &host.snapshotter;
    wait_until("containerd has collected the snapshots", TIME_LIMIT, || snapshotter.directories() == 0);
    assert_eq!(host.containerd.snapshots(), Vec::<String>::new());
}

#[test]
fn a_container_runs_on_while_the_snapshotter_is_dead_and_after_it_came_back() {
    let Some(mut host) = Host::start() else { return };
    let layers = host.import();
    host.containerd.start_container(shell_image::NAME, "lasting");
    host.containerd.exec("lasting", "echo kept > /opt/kept");
    host.snapshotter.kill();
    assert_eq!(host.containerd.exec("lasting", "cat /opt/kept /etc/greeting"), "kept\ntwo\n");
    host.snapshotter.restart();
    host.containerd.wait_for_snapshotter();
    assert_eq!(host.containerd.exec("lasting", "cat /opt/kept"), "kept\n");
    let id = host.containerd.id_of("lasting");
    assert!(
        host.containerd.snapshots().contains(&format!("{id} Active")),
        "{:?}",
        host.containerd.snapshots()
    );
    let usage = host.containerd.ctr(&["snapshots", "--snapshotter", "headstart", "usage", "-b", &id]);
    let usage: Vec<_> = usage.lines().nth(1).unwrap().split_whitespace().collect();
    // Its root, two directories and the file.
    assert!(usage[0] == id && usage[1].parse::<u64>().unwrap() >= 4096, "{usage:?}");

    // A new image of the container: its changes on the layers below.
    host.containerd.end_container("lasting");
    host.containerd.ctr(&["snapshots", "--snapshotter", "headstart", "commit", "changed", &id]);
    host.containerd.ctr(&["snapshots", "--snapshotter", "headstart", "prepare", "again", "changed"]);
    // What containerd has removed goes in the background.
    wait_until("only the layers and two more are left", TIME_LIMIT, || {
        host.snapshotter.directories() == layers + 2
    });
    let mounted = host.dir.path().join("mounted");
    fs::create_dir(&mounted).unwrap();
    let mount = host.containerd.ctr(&[
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
