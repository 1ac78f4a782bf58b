//! The agent under the restrictions of its systemd unit, as far as they can be had without systemd as process 1: its
//! capabilities, no new privileges, its umask, and a mount namespace of its own with `/usr` and `/etc` read-only. The
//! filter of system calls and the device policy are systemd's to set, and are not tried here.

use crate::attached::PATIENCE;
use crate::images::{can_check_bytes, check_bytes, noisy};
use crate::modes::open_to_others;
use crate::scene::Scene;
use crate::tools::{installed, is_root};
use headstart_testkit::process::Process;
use rustix::fs::{Gid, Uid, chown};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// What is done as root before the agent starts: `$1` is the list of capabilities.
const RESTRICT: &str = "umask 0077; for dir in /usr /etc; do mount --bind $dir $dir && \
    mount -o remount,bind,ro $dir || exit 3; done; caps=$1; shift; \
    exec setpriv --no-new-privs --bounding-set=\"$caps\" --inh-caps=-all \"$@\"";

/// The capabilities of the unit, as setpriv wants to be told.
fn capabilities() -> String {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/systemd/headstart-agent.service");
    let text = fs::read_to_string(unit).unwrap();
    let set = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let kept = set.split(' ').map(|name| format!(",+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()));
    format!("-all{}", kept.collect::<String>())
}

/// An agent that is restricted so; nothing where this machine does not allow it.
fn restricted(scene: &Scene) -> Option<Process> {
    let trial = Command::new("unshare")
        .args(["--mount", "sh", "-c", RESTRICT, "sh", &capabilities(), "true"])
        .output();
    if !trial.is_ok_and(|trial| trial.status.success()) {
        crate::tools::skipped("the unit's restrictions cannot be had here");
        return None;
    }
    let program = scene.command("agent --json --dir ~/a --state ~/state --cache ~/cache");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", RESTRICT, "sh", &capabilities()]).arg(program.get_program());
    command.args(program.get_args()).current_dir(scene.path(""));
    let mut agent = Process::start(&mut command);
    agent.line("ready", PATIENCE, |line| line.starts_with("{\"name\""));
    Some(agent)
}

#[test]
fn an_agent_with_the_restrictions_of_its_unit_does_its_work() {
    if !is_root() || !installed(&["unshare", "setpriv"]) || !can_check_bytes() {
        return;
    }
    let scene = noisy(2);
    // Another user's: the image, and the directory of a socket.
    for dir in ["store", "theirs"] {
        fs::create_dir_all(scene.path(dir)).unwrap();
        chown(scene.path(dir).as_path(), Some(Uid::from_raw(65534)), Some(Gid::from_raw(65534))).unwrap();
        fs::set_permissions(scene.path(dir), fs::Permissions::from_mode(0o700)).unwrap();
    }
    let Some(mut agent) = restricted(&scene) else { return };
    let image = "file://~/store:v1 --agent ~/a/agent.sock";
    let first = scene.json(&format!("attach read={image} --nbd unix:~/theirs/n.sock"));
    check_bytes(&scene, "disk.raw", first["ready"]["ways"][0]["uri"].as_str().unwrap());
    scene.ok(&format!("attach write={image} --writable ~/w --vhost-user ~/theirs/v.sock --json"));
    // The unit ends the agent's process alone.
    assert_eq!(agent.stop(PATIENCE).code(), Some(0), "{agent}");
    check_bytes(&scene, "disk.raw", first["ready"]["ways"][0]["uri"].as_str().unwrap());
    let Some(_next) = restricted(&scene) else { return };
    let listed = scene.json("disk list --agent ~/a/agent.sock");
    let disks = listed["disks"].as_array().unwrap();
    assert!(disks.len() == 2 && disks.iter().all(|disk| disk["adopted"] == Value::Bool(true)), "{listed}");
    for dir in ["a", "state", "cache", "w"] {
        assert_eq!(open_to_others(&scene.path(dir)), Vec::<String>::new());
    }
    for name in ["read", "write"] {
        scene.ok(&format!("disk detach {name} --agent ~/a/agent.sock --json"));
    }
}
