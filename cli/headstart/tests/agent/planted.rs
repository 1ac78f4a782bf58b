//! Directories that another user made first, or has a part in, and keys that others can read: an agent and a cluster's
//! commands trust nothing there.

use crate::agent::Agent;
use crate::attached::TIMEOUT;
use crate::cluster::start;
use crate::images::noisy;
use crate::refused::{OTHER, give, refused};
use crate::scene::Scene;
use crate::tools::{installed, is_root, skipped};
use headstart_testkit::process::Process;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::Command;

const AGENT: &str = "agent --json --dir ~/a --cache ~/a-cache";

fn set_mode(scene: &Scene, name: &str, mode: u32) {
    fs::set_permissions(scene.path(name), Permissions::from_mode(mode)).unwrap();
}

/// An agent's directory with the record of a disk that an agent would start.
fn plant(scene: &Scene) {
    fs::create_dir_all(scene.path("a/disks")).unwrap();
    let arguments = [
        format!("file://{}:v1", scene.path("store").display()),
        "--nbd".to_owned(),
        "unix:x.sock".to_owned(),
    ];
    let record = serde_json::json!({
        "version": 1, "name": "x", "arguments": arguments, "directory": scene.path("").to_str().unwrap(),
        "served": true, "restarts": 0
    });
    fs::write(scene.path("a/disks/x.json"), record.to_string()).unwrap();
}

#[test]
fn an_agent_runs_no_record_that_another_user_has_left() {
    let scene = noisy(1);
    if !is_root() {
        return;
    }
    plant(&scene);
    for name in ["a", "a/disks", "a/disks/x.json"] {
        give(&scene.path(name), OTHER);
    }
    for (theirs, remedy) in [("a", "chown -R 0 "), ("a/disks", "chown -R 0 "), ("a/disks/x.json", "chown 0 ")]
    {
        let path = scene.path(theirs).display().to_string();
        refused(&scene, AGENT, &[&path, "belongs to another user (id 54321)", remedy]);
        assert!(!scene.path("x.sock").exists(), "{theirs}: its disk was started");
        give(&scene.path(theirs), 0);
    }
    // The record is like any other.
    let agent = Agent::start(&scene, "a", "");
    agent.disk_that("started", |disk| disk["name"] == "x" && disk["state"] == "serving");
    agent.detach("x");
}

#[test]
fn an_agents_directories_are_its_users_and_nothing_of_others_is_in_them() {
    let scene = noisy(1);
    if !is_root() {
        return;
    }
    fs::create_dir_all(scene.path("elsewhere")).unwrap();
    for name in ["theirs", "shared", "state"] {
        fs::create_dir(scene.path(name)).unwrap();
    }
    give(&scene.path("theirs"), OTHER);
    symlink(scene.path("elsewhere"), scene.path("link")).unwrap();
    give(&scene.path("link"), OTHER);
    let others = "belongs to another user";
    refused(&scene, &format!("{AGENT} --state ~/theirs"), &["theirs", others, "chown -R 0 "]);
    let link = ["link", "symbolic link of another user (id 54321)", "chown -h 0 "];
    for words in [
        "agent --json --dir ~/link --cache ~/a-cache",
        "agent --json --dir ~/a --cache ~/link",
        "agent --json --dir ~/a --cache ~/a-cache --state ~/link",
    ] {
        refused(&scene, words, &link);
        assert!(scene.names("elsewhere").is_empty(), "{words}");
    }
    refused(&scene, "agent --json --dir ~/a --cache ~/theirs", &["theirs", others, "chown -R 0 "]);
    fs::write(scene.path("state/tracker"), "").unwrap();
    give(&scene.path("state/tracker"), OTHER);
    refused(&scene, &format!("{AGENT} --state ~/state"), &["state/tracker", others, "chown 0 "]);
    // Another file is there, and others may write to the directory.
    fs::write(scene.path("shared/file"), "").unwrap();
    for (mode, remedy) in [(0o777, "chmod go-w"), (0o1777, "a directory of your own in it")] {
        set_mode(&scene, "shared", mode);
        let words = "agent --json --dir ~/shared --cache ~/a-cache";
        refused(&scene, words, &["shared", "other users may write to it", remedy]);
    }
    assert_eq!(scene.names("shared"), ["file"]);
    // A directory that is only too open is closed.
    let mut agent = Agent::start(&scene, "a", "");
    agent.stop();
    set_mode(&scene, "a", 0o777);
    agent.again();
    assert_eq!(fs::metadata(scene.path("a")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_lock_that_is_no_file_is_neither_waited_for_nor_made_elsewhere() {
    let scene = noisy(1);
    fs::create_dir(scene.path("a")).unwrap();
    set_mode(&scene, "a", 0o700);
    mknodat(CWD, scene.path("a/lock"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    refused(&scene, AGENT, &["a/lock", "is a pipe", "remove it"]);
    fs::remove_file(scene.path("a/lock")).unwrap();
    symlink(scene.path("made"), scene.path("a/lock")).unwrap();
    refused(&scene, AGENT, &["a/lock", "is a symbolic link", "remove it"]);
    assert!(!scene.path("made").exists());
}

/// A user that can look into the directory can take the lock of anything that it can open, and keep it for ever.
#[test]
fn the_lock_of_a_cluster_is_its_owners_alone() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a");
    let (cluster, lock) = (scene.path("cluster"), scene.path("cluster/lock"));
    // Version 0.1.0 leaves no lock.
    fs::remove_file(&lock).unwrap();
    set_mode(&scene, "cluster", 0o755);
    let held = fs::File::open(&cluster).unwrap();
    held.lock().unwrap();
    scene.ok("swarm init ~/cluster --host b");
    let mode = || fs::metadata(&lock).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    drop(held);
    // Commands take turns, and do not wait for ever.
    let held = fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    let parts = ["cluster: another command changes this cluster", "fuser", "cluster/lock"];
    scene.fails("swarm init ~/cluster --host c", &parts);
    assert!(!scene.path("cluster/hosts/c").exists());
    drop(held);
    set_mode(&scene, "cluster/lock", 0o644);
    scene.ok("swarm init ~/cluster --host c");
    assert_eq!(mode(), 0o600);
    fs::remove_file(&lock).unwrap();
    symlink(scene.path("made"), &lock).unwrap();
    scene.fails("swarm init ~/cluster --host d", &["cluster/lock", "is a symbolic link", "remove it"]);
    assert!(!scene.path("made").exists());
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    scene.fails("swarm init ~/cluster --host d", &["cluster/lock", "is a directory", "remove it"]);
    fs::remove_dir(&lock).unwrap();
    fs::write(&lock, "").unwrap();
    if is_root() {
        give(&lock, OTHER);
        let parts = ["cluster/lock", "belongs to another user (id 54321)", "remove it"];
        scene.fails("swarm init ~/cluster --host d", &parts);
        give(&lock, 0);
    }
    scene.ok("swarm init ~/cluster --host d");
}

#[test]
fn a_cluster_is_made_and_changed_in_no_directory_of_another_user() {
    let scene = Scene::new();
    if !is_root() {
        return;
    }
    fs::create_dir(scene.path("theirs")).unwrap();
    give(&scene.path("theirs"), OTHER);
    let parts = ["theirs", "belongs to another user (id 54321)", "chown -R 0 "];
    scene.fails("swarm init ~/theirs --host a", &parts);
    scene.fails("swarm request ~/theirs --name c", &parts);
    assert!(scene.names("theirs").is_empty());
    scene.ok("swarm init ~/cluster --host a --host b");
    scene.ok("swarm request ~/of-c --name c");
    let before = scene.fingerprint("cluster");
    give(&scene.path("cluster"), OTHER);
    let parts = ["cluster", "belongs to another user (id 54321)", "chown -R 0 "];
    for words in [
        "swarm init ~/cluster --host a",
        "swarm add ~/cluster c --request ~/of-c/request.pem",
        "swarm revoke ~/cluster b",
        "swarm rekey ~/cluster",
    ] {
        scene.fails(words, &parts);
    }
    assert_eq!(scene.fingerprint("cluster"), before);
    give(&scene.path("cluster"), 0);
    scene.ok("swarm init ~/cluster --host d");
}

#[test]
fn a_cluster_is_made_and_changed_in_no_directory_that_others_may_write_to() {
    let scene = Scene::new();
    fs::create_dir(scene.path("open")).unwrap();
    for (mode, remedy) in [(0o777, "chmod go-w"), (0o1777, "a directory of your own in it")] {
        set_mode(&scene, "open", mode);
        for words in ["swarm init ~/open --host a", "swarm request ~/open --name c"] {
            scene.fails(words, &["open", "other users may write to it", remedy]);
        }
    }
    assert!(scene.names("open").is_empty());
    scene.ok("swarm init ~/cluster --host a --host b");
    scene.ok("swarm request ~/of-c --name c");
    let before = scene.fingerprint("cluster");
    set_mode(&scene, "cluster", 0o777);
    for words in [
        "swarm init ~/cluster --host a",
        "swarm add ~/cluster c --request ~/of-c/request.pem",
        "swarm revoke ~/cluster b",
        "swarm rekey ~/cluster",
    ] {
        scene.fails(words, &["cluster", "other users may write to it", "chmod go-w"]);
    }
    set_mode(&scene, "cluster", 0o700);
    assert_eq!(scene.fingerprint("cluster"), before);
    scene.ok("swarm init ~/cluster --host d");
}

/// The words that start the agent of a host whose credentials are in `dir`.
fn with_credentials(dir: &str) -> String {
    format!(
        "agent --json --dir ~/own/a --cache ~/own/a-cache --credentials ~/{dir} --name a --listen 127.0.0.1:0"
    )
}

#[test]
fn certificates_of_another_user_and_directories_that_others_may_write_to_are_refused() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a --host b");
    let words = with_credentials("cluster/hosts/a");
    set_mode(&scene, "cluster/hosts/a", 0o777);
    refused(&scene, &words, &["cluster/hosts/a", "other users may write to it", "chmod go-w"]);
    // If each user owns the files that it made, as in a secret that Kubernetes mounts, the files are checked.
    set_mode(&scene, "cluster/hosts/a", 0o1777);
    start(&scene, "a", "cluster/hosts/a", "").stop();
    set_mode(&scene, "cluster/hosts/a", 0o700);
    for (mode, remedy) in [(0o777, "chmod go-w"), (0o1777, "a directory of your own in it")] {
        set_mode(&scene, "cluster", mode);
        let of_authority = format!("{words} --authority ~/cluster");
        refused(&scene, &of_authority, &["cluster", "other users may write to it", remedy]);
        set_mode(&scene, "cluster", 0o700);
    }
    if !is_root() {
        return;
    }
    for name in ["ca.pem", "host.pem"] {
        let path = scene.path("cluster/hosts/a").join(name);
        give(&path, OTHER);
        let parts = [path.to_str().unwrap(), "belongs to another user (id 54321)", "chown 0 "];
        refused(&scene, &words, &parts);
        give(&path, 0);
    }
    for name in ["ca.pem", "host.pem", "host.key", "gossip.key"] {
        let path = scene.path("cluster/hosts/a").join(name);
        fs::rename(&path, scene.path("moved")).unwrap();
        symlink(scene.path("moved"), &path).unwrap();
        give(&path, OTHER);
        let parts = [path.to_str().unwrap(), "symbolic link of another user (id 54321)", "chown -h 0 "];
        refused(&scene, &words, &parts);
        fs::remove_file(&path).unwrap();
        fs::rename(scene.path("moved"), &path).unwrap();
    }
    give(&scene.path("cluster/hosts/a"), OTHER);
    let parts = ["cluster/hosts/a", "belongs to another user (id 54321)", "chown -R 0 "];
    refused(&scene, &words, &parts);
    give(&scene.path("cluster/hosts/a"), 0);
    start(&scene, "a", "cluster/hosts/a", "").stop();
}

/// A service gets its keys from root, as files that its group may read.
#[test]
fn credentials_of_roots_are_a_services() {
    let scene = Scene::within(&std::env::temp_dir());
    if !is_root() || !installed(&["setpriv"]) {
        return;
    }
    scene.ok("swarm init ~/cluster --host a");
    for (dir, mode) in [("", 0o755), ("cluster", 0o755), ("cluster/hosts", 0o755), ("cluster/hosts/a", 0o750)]
    {
        set_mode(&scene, dir, mode);
    }
    chown(scene.path("cluster/hosts/a"), Some(0), Some(OTHER)).unwrap();
    for name in ["ca.pem", "host.pem", "host.key", "gossip.key"] {
        let path = format!("cluster/hosts/a/{name}");
        chown(scene.path(&path), Some(0), Some(OTHER)).unwrap();
        set_mode(&scene, &path, 0o640);
    }
    fs::create_dir(scene.path("own")).unwrap();
    give(&scene.path("own"), OTHER);
    let mut agent = Process::start(&mut as_other(&scene, &with_credentials("cluster/hosts/a")));
    agent.line("that it is ready", TIMEOUT, |line| line.starts_with("{\"name\""));
    assert_eq!(agent.stop(TIMEOUT).code(), Some(0), "{agent}");
}

/// A command as another user, in the directory `own` of the scene.
fn as_other(scene: &Scene, words: &str) -> Command {
    let plain = scene.command(words);
    let mut command = Command::new("setpriv");
    let other = OTHER.to_string();
    command.args(["--clear-groups", "--reuid", &other, "--regid", &other]);
    command.arg(plain.get_program()).args(plain.get_args()).current_dir(scene.path("own"));
    command
}

#[test]
fn keys_that_others_can_read_are_closed_and_those_of_others_refused() {
    let scene = Scene::within(&std::env::temp_dir());
    scene.ok("swarm init ~/cluster --host a --host b");
    // It is signed, and no agent gets it.
    scene.fails("swarm revoke ~/cluster b --agent ~/none.sock", &["it is signed"]);
    fs::copy(scene.path("cluster/trust"), scene.path("cluster/hosts/a/trust")).unwrap();
    let secrets = ["host.key", "gossip.key", "trust"].map(|name| format!("cluster/hosts/a/{name}"));
    let open = |mode| secrets.iter().for_each(|secret| set_mode(&scene, secret, mode));
    open(0o644);
    let mut a = start(&scene, "a", "cluster/hosts/a", "");
    for secret in &secrets {
        a.line(&format!("{secret}: other users could use a key"));
        assert_eq!(fs::metadata(scene.path(secret)).unwrap().permissions().mode() & 0o777, 0o600);
    }
    a.stop();
    a.again();
    assert!(!a.output().contains("other users could"), "{}", a.output());
    a.stop();
    if !is_root() || !installed(&["setpriv"]) {
        return;
    }
    let words = "agent --json --dir ~/a --cache ~/a-cache --credentials ~/cluster/hosts/a --name a \
                 --listen 127.0.0.1:0";
    for secret in &secrets {
        give(&scene.path(secret), OTHER);
        refused(&scene, words, &[secret, "belongs to another user (id 54321)", "chown 0 "]);
        give(&scene.path(secret), 0);
    }
    // A user of root's keys cannot close them.
    open(0o644);
    for dir in ["", "cluster", "cluster/hosts", "cluster/hosts/a"] {
        set_mode(&scene, dir, 0o755);
    }
    fs::create_dir(scene.path("own")).unwrap();
    give(&scene.path("own"), OTHER);
    let mut process = Process::start(&mut as_other(&scene, &words.replace("~/a", "~/own/a")));
    let status = process.end(TIMEOUT);
    let said = process.output();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("host.key: other users can read it") && said.contains("chmod 600"), "{said}");
}

/// A mount in an agent's directory is a disk's file, which may belong to another user.
#[test]
fn an_agent_starts_again_beside_the_file_of_a_disk_in_its_directory() {
    let scene = noisy(1);
    if !is_root() {
        return;
    }
    if fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return skipped("/dev/fuse cannot be opened");
    }
    let mut agent = Agent::start(&scene, "a", "");
    fs::write(scene.path("a/vm.raw"), "").unwrap();
    let disk = agent.attach("vm=file://~/store:v1 --fuse ~/a/vm.raw --socket-owner 54321");
    agent.kill();
    agent.again();
    let serving = |disk: &serde_json::Value| disk["state"] == "serving";
    agent.disk_that("served", serving);
    // A mount without its server cannot be read.
    agent.kill();
    kill_process(Pid::from_raw(disk["pid"].as_i64().unwrap() as i32).unwrap(), Signal::KILL).unwrap();
    agent.again();
    agent.disk_that("served again", |now| serving(now) && now["pid"] != disk["pid"]);
    agent.detach("vm");
}
