//! Containers with a disk of their own, under a real containerd: written to, killed, committed, and used as a layer.

use crate::attached::TIMEOUT;
use crate::containers::{Host, process_of};
use crate::scene::Scene;
use headstart_export::fuse::too_old_to_keep;
use headstart_testkit::wait::wait_until;
use rustix::process::{Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The label that says how a container's files are written to.
const WRITABLE: &str = "containerd.io/snapshot/overlaybd.writable";

impl Host<'_> {
    /// Starts a container that does nothing, with files in a form that its label asks for.
    fn start_on_disk(&self, id: &str, mode: &str) {
        self.start_image_on_disk(&self.image, id, mode);
    }

    /// Starts a container of another image so, and returns its id.
    pub(crate) fn start_of(&self, image: &str, id: &str) -> String {
        self.start_image_on_disk(image, id, "dir");
        self.containerd.id_of(id)
    }

    fn start_image_on_disk(&self, image: &str, id: &str, mode: &str) {
        let label = format!("{WRITABLE}={mode}");
        let id = self.containerd.id_of(id);
        let words = ["run", "-d", "--snapshotter", "headstart", "--snapshotter-label", &label];
        self.containerd.ctr(&[&words[..], &[image, &id, "/bin/sleep", "1000"]].concat());
    }

    /// Tries to start a container with files in a form that its image cannot have; returns the error.
    pub(crate) fn refuse_on_disk(&self, mode: &str) -> String {
        let label = format!("{WRITABLE}={mode}");
        let id = self.containerd.id_of(mode);
        let words = ["run", "-d", "--snapshotter", "headstart", "--snapshotter-label", &label];
        let run = [&words[..], &[&self.image, &id, "/bin/sleep", "1000"]].concat();
        let output = self.containerd.run_ctr(&run);
        assert!(!output.status.success(), "{mode}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    pub(crate) fn snapshots(&self, words: &[&str]) -> String {
        self.containerd.ctr(&[&["snapshots", "--snapshotter", "headstart"], words].concat())
    }

    /// Looks at the files of a snapshot, by the mounts that containerd is told to make.
    fn look<T>(&self, key: &str, look: impl FnOnce(&Path) -> T) -> T {
        let at = self.scene.path("looked-at");
        fs::create_dir_all(&at).unwrap();
        let mount = self.snapshots(&["mounts", at.to_str().unwrap(), key]);
        run("sh", &["-c", mount.trim()]);
        let seen = look(&at);
        run("umount", &[at.to_str().unwrap()]);
        seen
    }

    /// A file of a snapshot.
    fn read(&self, key: &str, file: &str) -> String {
        self.look(key, |at| fs::read_to_string(at.join(file))).unwrap()
    }

    /// `true` if a snapshot has a file.
    fn has(&self, key: &str, file: &str) -> bool {
        self.look(key, |at| at.join(file).exists())
    }

    /// The name of a disk of a container at the agent.
    fn disk_of_container(&self) -> String {
        let disks = self.agent.disks();
        let names = disks.iter().map(|disk| disk["name"].as_str().unwrap().to_owned());
        let own: Vec<_> = names.filter(|name| name.starts_with("snapshot-")).collect();
        assert_eq!(own.len(), 1, "{own:?}");
        own[0].clone()
    }

    /// The file of the only sealed layer. No label names it, for the image's manifest lists tars.
    fn sealed_layer(&self, name: &str) -> PathBuf {
        assert!(!self.snapshots(&["info", name]).contains("localcommitpath"));
        let snapshots = fs::read_dir(self.scene.path("snap/snapshots")).unwrap();
        let files = snapshots.map(|entry| entry.unwrap().path().join("fs/overlaybd.sealed"));
        let sealed: Vec<_> = files.filter(|file| file.exists()).collect();
        assert_eq!(sealed.len(), 1, "{sealed:?}");
        sealed[0].clone()
    }
}

#[track_caller]
fn run(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The path of a disk's process file.
fn pid_file(name: &str) -> String {
    format!("a/disks/{name}.pid")
}

#[test]
fn a_container_writes_to_a_disk_of_its_own_which_becomes_a_layer() {
    let scene = Scene::new();
    let Some(mut host) = Host::start(&scene) else { return };
    host.convert("--referrer");
    host.pull(&host.image);
    for (mode, written) in [("dir", "by a directory"), ("dev", "by a device")] {
        host.start_on_disk(mode, mode);
        let id = host.containerd.id_of(mode);
        // The root is the file system of the disk, and no overlay.
        let root = host
            .containerd
            .exec(mode, "while read dev at kind rest; do [ $at = / ] && echo $kind; done < /proc/mounts; :");
        assert_eq!(root, "ext4\n", "{mode}");
        let write = format!("cat /etc/greeting; echo {written} > /opt/kept; cat /opt/kept");
        assert_eq!(host.containerd.exec(mode, &write), format!("two\n{written}\n"));
        let disk = host.disk_of_container();
        if too_old_to_keep().is_none() {
            kill_process(process_of(&scene, Path::new(&pid_file(&disk))), Signal::KILL).unwrap();
            assert_eq!(
                host.containerd.exec(mode, "cat /opt/kept; echo more >> /opt/kept"),
                format!("{written}\n")
            );
        }
        host.restart_snapshotter();
        assert_eq!(host.containerd.exec(mode, "cat /etc/greeting"), "two\n");
        let (layer, child, view) = (format!("{mode}-layer"), format!("{mode}-child"), format!("{mode}-view"));
        if mode == "dir" {
            // A disk that is used is committed as it is at this moment, and goes on.
            host.snapshots(&["commit", &layer, &id]);
            let late = "echo late > /opt/late; cat /opt/late /etc/greeting";
            assert_eq!(host.containerd.exec(mode, late), "late\ntwo\n");
            host.containerd.end_container(mode);
        } else {
            host.containerd.end_container(mode);
            host.snapshots(&["commit", &layer, &id]);
            assert!(
                host.agent.disks().iter().all(|other| other["name"] != disk.as_str()),
                "{disk} is closed"
            );
        }
        let sealed = host.sealed_layer(&layer);
        run(
            scene.command("").get_program().to_str().unwrap(),
            &["layer", "verify", sealed.to_str().unwrap()],
        );
        // Overlayfs over the image and the layer, and a disk over both.
        host.snapshots(&["prepare", &child, &layer]);
        let mut keys = vec![&child];
        if mode == "dir" {
            // Nothing refers to a view: without the label containerd collects it, and the layer stays its parent.
            host.snapshots(&["view", &view, &layer]);
            host.snapshots(&["label", &view, "containerd.io/gc.root=1"]);
            keys.push(&view);
        }
        for key in &keys {
            assert!(host.read(key, "opt/kept").starts_with(written), "{key}");
            assert_eq!(host.read(key, "etc/greeting"), "two\n", "{key}");
            assert!(!host.has(key, "opt/late"), "{key}");
        }
        assert_eq!(host.trees(), 2, "the image, and the image with the layer");
        host.restart_snapshotter();
        assert!(host.read(&child, "opt/kept").starts_with(written));
        for key in keys.into_iter().chain([&layer]) {
            host.snapshots(&["rm", key]);
        }
        host.containerd.collect_garbage();
        wait_until("the layer is removed", TIMEOUT, || !sealed.exists());
        wait_until("the disk with the layer is gone", TIMEOUT, || host.agent.disks().len() == 1);
        host.containerd.remove_container(mode);
    }
}

#[test]
fn a_container_with_a_limit_has_no_space_left_beyond_it_and_goes_on() {
    let scene = Scene::new();
    let Some(mut host) = Host::start(&scene) else { return };
    host.convert("--referrer");
    host.pull(&host.image);
    let id = host.containerd.id_of("limited");
    let words = ["run", "-d", "--snapshotter", "headstart", "--snapshotter-label"];
    let mode = format!("{WRITABLE}=dir");
    let most = ["--snapshotter-label", "containerd.io/snapshot/max-size=8388608"];
    host.containerd.ctr(&[&words[..], &[&mode], &most, &[&host.image, &id, "/bin/sleep", "1000"]].concat());
    let fill = "cat /dev/zero > /opt/big || echo full; ls -s /opt | { while read size name; do \
        [ \"$name\" = big ] && echo $size; done; :; }; : > /opt/big; echo after > /opt/after; cat /opt/after";
    for round in ["first", "of the next snapshotter"] {
        let said = host.containerd.exec("limited", fill);
        assert!(said.starts_with("full\n") && said.ends_with("after\n"), "{round}: {said}");
        let kib = said.lines().find_map(|line| line.trim().parse::<u64>().ok()).unwrap();
        assert!((6 << 10..=8 << 10).contains(&kib), "{round}: {kib} KiB");
        host.restart_snapshotter();
    }
    host.containerd.end_container("limited");
    host.containerd.remove_container("limited");
    // A directory has no limit, and its snapshot says so.
    let over = host.containerd.id_of("over");
    host.containerd.ctr(&[&words[..], &most[1..], &[&host.image, &over, "/bin/sleep", "1000"]].concat());
    let info = host.snapshots(&["info", &over]);
    host.containerd.end_container("over");
    assert!(info.contains("headstart.quota") && info.contains("not held"), "{info}");
}

#[test]
fn a_snapshot_that_is_removed_leaves_no_disk_and_the_default_of_the_snapshotter_can_be_a_disk() {
    let scene = Scene::new();
    let Some(mut host) = Host::start(&scene) else { return };
    host.convert("--referrer");
    host.pull(&host.image);
    host.restart_with("--writable dir --empty-disk 64M");
    host.snapshots(&["prepare", "empty"]);
    let listed = host.snapshots(&["mounts", "/mnt", "empty"]);
    assert!(listed.contains("block/mountpoint"), "{listed}");
    let chain = host.containerd.snapshots().into_iter().find(|line| line.ends_with("Committed")).unwrap();
    let chain = chain.split(' ').next().unwrap().to_owned();
    // Any layer of an image, not only the last.
    host.snapshots(&["prepare", "lowest", &chain]);
    // The snapshot by which the test found the snapshotter is a disk, too, and goes.
    wait_until("the image and two snapshots have disks", TIMEOUT, || host.agent.disks().len() == 3);
    host.agent.kill();
    // Without an agent its disk cannot be closed; the next cleanup does it.
    host.snapshots(&["rm", "lowest"]);
    host.agent.again();
    host.restart_with("--writable dir --empty-disk 64M");
    wait_until("the disk of the removed snapshot is closed", TIMEOUT, || host.agent.disks().len() == 2);
    host.snapshots(&["rm", "empty"]);
    host.containerd.collect_garbage();
    wait_until("the empty disk is closed", TIMEOUT, || host.agent.disks().len() == 1);
    let left = || fs::read_dir(scene.path("snap/snapshots")).unwrap().count();
    wait_until("their directories are gone", TIMEOUT, || left() == 0);
    // The image of empty disks is held by none of them any more.
    let leases = fs::read_dir(scene.path("snap/empty/.headstart/leases")).unwrap();
    let names = leases.map(|lease| lease.unwrap().file_name().into_string().unwrap());
    let held: Vec<_> = names.filter(|name| name.starts_with("writable-")).collect();
    assert_eq!(held, Vec::<String>::new());
}
