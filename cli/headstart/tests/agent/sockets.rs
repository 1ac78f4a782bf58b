//! Sockets of an agent and of its disks: the users that reach them, even after a process was started again.

use crate::agent::{Agent, copy_of_program};
use crate::attached::{TIMEOUT, image_options};
use crate::images::noisy;
use crate::scene::{CommandRun, Scene};
use crate::tools::{installed, is_root, skipped};
use headstart_testkit::process::has_fuse;
use headstart_testkit::wait::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

const OWNER: u32 = 51_001;
const GROUP: u32 = 51_002;
const STRANGER: u32 = 51_003;

/// A scene with an image that other users can pass through.
fn noisy_in_temporary() -> Scene {
    let scene = Scene::within(&std::env::temp_dir());
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(scene.path("disk.raw"), crate::disk::noise(1, 1 << 20)).unwrap();
    scene.ok("image import disk.raw file://~/store:v1");
    scene
}

fn kill(pid: &Value) {
    kill_process(Pid::from_raw(pid.as_i64().unwrap() as i32).unwrap(), Signal::KILL).unwrap();
}

/// The owner, the group and the permissions of a file.
fn access(scene: &Scene, name: &str) -> (u32, u32, u32) {
    let meta = fs::symlink_metadata(scene.path(name)).unwrap();
    (meta.uid(), meta.gid(), meta.mode() & 0o777)
}

#[test]
fn the_owner_of_a_disks_sockets_holds_when_it_is_started_again() {
    let scene = noisy(1);
    if !is_root() {
        return skipped("only root gives sockets to other users");
    }
    let agent = Agent::start(&scene, "a", "");
    let words = format!(
        "--nbd unix:~/d.sock --vhost-user ~/v.sock --socket-owner {OWNER}:{GROUP} --socket-mode 0620"
    );
    let mut disk = agent.attach(&format!("vm=file://~/store:v1 {words}"));
    for restarts in 1..=2 {
        kill(&disk["pid"]);
        disk = agent
            .disk_that("serving again", |disk| disk["state"] == "serving" && disk["restarts"] == restarts);
        for socket in ["d.sock", "v.sock"] {
            assert_eq!(access(&scene, socket), (OWNER, GROUP, 0o620), "{socket}");
        }
        // The sockets are as the earlier version left them: without a mark.
        for mark in [".d.sock.headstart", ".v.sock.headstart"] {
            fs::remove_file(scene.path(mark)).unwrap();
        }
    }
    agent.detach("vm");
    let left = scene.names("");
    assert!(!left.iter().any(|name| name.contains(".sock")), "{left:?}");
}

/// `true` if a user of this number and group runs a program in the scene with success.
fn can(scene: &Scene, (user, group): (u32, u32), program: &[&str]) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", "--reuid", &user.to_string(), "--regid", &group.to_string()]);
    command.args(program).current_dir(scene.path("")).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().unwrap().success()
}

/// Other users act on the metadata: the hypervisor's user opens the disk in every way, a stranger in none, before and
/// after the disk's process was killed.
#[test]
fn the_owner_of_a_disk_opens_it_after_its_process_died_and_a_stranger_never() {
    let scene = noisy_in_temporary();
    if !installed(&["setpriv", "nbdinfo", "dd", "python3"]) || !has_fuse() {
        return;
    }
    fs::write(scene.path("vm.raw"), "").unwrap();
    let agent = Agent::start(&scene, "a", "");
    let words =
        format!("--nbd unix:~/d.sock --vhost-user ~/v.sock --fuse ~/vm.raw --socket-owner {OWNER}:{GROUP}");
    let mut disk = agent.attach(&format!("vm=file://~/store:v1 {words}"));
    let connect = "import socket; socket.socket(socket.AF_UNIX).connect('v.sock')";
    let ways: [(&str, &[&str]); 3] = [
        ("NBD", &["nbdinfo", "--size", "nbd+unix:///?socket=d.sock"]),
        ("vhost-user", &["/usr/bin/python3", "-c", connect]),
        ("FUSE", &["dd", "if=vm.raw", "bs=4096", "count=1"]),
    ];
    for restarts in 0..=2 {
        for (way, program) in ways {
            for (who, may) in
                [((OWNER, STRANGER), true), ((STRANGER, GROUP), true), ((STRANGER, STRANGER), false)]
            {
                assert_eq!(can(&scene, who, program), may, "{way}, {who:?}, after {restarts} restarts");
            }
        }
        kill(&disk["pid"]);
        disk = agent.disk_that("serving again", |disk| {
            disk["state"] == "serving" && disk["restarts"] == restarts + 1
        });
    }
    agent.detach("vm");
}

#[test]
fn a_user_who_was_named_asks_the_agent_and_another_does_not() {
    let scene = Scene::within(&std::env::temp_dir());
    if !installed(&["setpriv", "curl"]) || !is_root() {
        return skipped("only root gives sockets to other users");
    }
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let reaches = |user: u32, group: u32| {
        let mut command = Command::new("setpriv");
        command.args(["--clear-groups", "--reuid", &user.to_string(), "--regid", &group.to_string()]);
        command
            .args(["curl", "--fail", "http://agent/v1/disks", "--unix-socket"])
            .arg(scene.path("a/agent.sock"));
        command.output().unwrap().status.success()
    };
    let mut agent = Agent::start(&scene, "a", &format!("--socket-owner :{GROUP}"));
    for again in [false, true] {
        if again {
            // The agent leaves its socket, and the next one has the same.
            agent.kill();
            agent.again();
        }
        assert_eq!(access(&scene, "a/agent.sock"), (0, GROUP, 0o660));
        assert_eq!(access(&scene, "a"), (0, GROUP, 0o710));
        assert!(reaches(OWNER, GROUP), "who was named does not reach the agent");
        assert!(!reaches(OWNER, OWNER), "a stranger reaches the agent");
    }
    drop(agent);
    let _plain = Agent::start(&scene, "b", "");
    assert_eq!((access(&scene, "b/agent.sock"), access(&scene, "b").2), ((0, 0, 0o600), 0o700));
}

/// Another user learns that the socket is not for it, and not that there is no agent.
#[test]
fn a_user_who_may_not_ask_a_daemon_is_told_so() {
    let scene = Scene::within(&std::env::temp_dir());
    if !installed(&["setpriv"]) || !is_root() {
        return skipped("only root runs programs as other users");
    }
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let program = copy_of_program(&scene, "headstart");
    let _agent = Agent::start(&scene, "a", "");
    fs::create_dir(scene.path("h")).unwrap();
    fs::set_permissions(scene.path("h"), fs::Permissions::from_mode(0o700)).unwrap();
    let asks: [(&[&str], &[&str]); 2] = [
        (&["disk", "list", "--agent", "a/agent.sock"], &["a/agent.sock", "--socket-owner", "--socket-mode"]),
        (&["harvest", "status", "--dir", "h"], &["h/harvest.sock", "the daemon's user"]),
    ];
    for (words, parts) in asks {
        let mut command = Command::new("setpriv");
        command.args(["--clear-groups", "--reuid", &STRANGER.to_string(), "--regid", &STRANGER.to_string()]);
        command.arg(&program).args(words).current_dir(scene.path(""));
        let run = CommandRun::of("as another user", &mut command).fails(parts);
        assert!(run.stderr.contains("this user may not use the socket"), "{run}");
        assert!(!run.stderr.contains("answers") && !run.stderr.contains("start one"), "{run}");
    }
}

/// A file in the socket's place is not deleted either.
#[test]
fn an_agent_takes_the_place_of_sockets_alone() {
    let scene = noisy(1);
    fs::create_dir(scene.path("a")).unwrap();
    fs::write(scene.path("a/agent.sock"), "precious").unwrap();
    scene.fails("agent --dir ~/a --cache ~/cache", &["agent.sock", "is not a socket"]);
    assert_eq!(scene.bytes("a/agent.sock"), b"precious");
}

/// With the line that is printed, a client goes on when its disk's process was killed, or ended for a new version.
#[test]
fn a_printed_line_outlives_the_process_of_its_disk() {
    for signal in [Signal::KILL, Signal::TERM] {
        outlives_the_end_by(signal);
    }
}

fn outlives_the_end_by(signal: Signal) {
    let scene = noisy(16);
    if !installed(&["qemu-img"]) {
        return;
    }
    let agent = Agent::start(&scene, "a", "");
    let disk = agent.attach("vm=file://~/store:v1 --nbd unix:~/d.sock --writable ~/vm");
    let options = image_options(&disk["ready"]["ways"][0]["qemu"]);
    let mut command = Command::new("qemu-img");
    command.args(["bench", "--image-opts", "-w", "-c", "40000", "-d", "4", "-s", "4096", &options]);
    let mut bench = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("1 MiB is written", TIMEOUT, || {
        assert!(bench.try_wait().unwrap().is_none(), "the client has ended");
        fs::metadata(scene.path("vm/data")).is_ok_and(|meta| meta.len() >= 1 << 20)
    });
    kill_process(Pid::from_raw(disk["pid"].as_i64().unwrap() as i32).unwrap(), signal).unwrap();
    let output = bench.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    agent.disk_that("serving again", |disk| disk["restarts"] == 1 && disk["state"] == "serving");
    agent.detach("vm");
}
