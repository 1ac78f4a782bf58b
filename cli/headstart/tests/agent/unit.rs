//! The agent under the restrictions of its systemd unit.

use crate::attached::TIMEOUT;
use crate::images::{can_check_bytes, check_bytes, noisy};
use crate::modes::open_to_others;
use crate::scene::Scene;
use crate::tools::{installed, is_root};
use headstart_testkit::process::Process;
use headstart_testkit::wait::wait_for_value;
use rustix::fs::{Gid, Uid, chown};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// An agent under these restrictions; `None` if this machine does not allow them.
fn restricted(scene: &Scene) -> Option<Process> {
    let program = scene.command("agent --json --dir ~/a --state ~/state --cache ~/cache");
    let mut command = crate::restricted::restricted("headstart-agent.service", &program)?;
    let mut agent = Process::start(command.current_dir(scene.path("")));
    agent.line("ready", TIMEOUT, |line| line.starts_with("{\"name\""));
    Some(agent)
}

#[test]
fn an_agent_with_the_restrictions_of_its_unit_does_its_work() {
    if !is_root() || !installed(&["unshare", "setpriv"]) || !can_check_bytes() {
        return;
    }
    let scene = noisy(2);
    // These belong to another user: the image, and the directory of a socket.
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
    // The unit ends only the agent's process.
    assert_eq!(agent.stop(TIMEOUT).code(), Some(0), "{agent}");
    check_bytes(&scene, "disk.raw", first["ready"]["ways"][0]["uri"].as_str().unwrap());
    let Some(_next) = restricted(&scene) else { return };
    let listed = || scene.json("disk list --agent ~/a/agent.sock");
    wait_for_value("both disks are adopted", TIMEOUT, listed, |listed| {
        let disks = listed["disks"].as_array().unwrap();
        disks.len() == 2 && disks.iter().all(|disk| disk["adopted"] == Value::Bool(true))
    });
    for dir in ["a", "state", "cache", "w"] {
        assert_eq!(open_to_others(&scene.path(dir)), Vec::<String>::new());
    }
    for name in ["read", "write"] {
        scene.ok(&format!("disk detach {name} --agent ~/a/agent.sock --json"));
    }
}
