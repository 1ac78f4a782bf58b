//! Writable directories whose file system is not there when a disk's process is started again.

use crate::agent::Agent;
use crate::images::{noisy, tool};
use crate::scene::Scene;
use crate::tools::installed;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;

fn kill(disk: &Value) {
    let pid = Pid::from_raw(disk["pid"].as_i64().unwrap() as i32).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// Runs a command of qemu-io on each way to a disk.
#[track_caller]
fn on_each_way(scene: &Scene, disk: &Value, command: &str) {
    for way in disk["ready"]["ways"].as_array().unwrap() {
        let uri = way["uri"].as_str().unwrap();
        tool(scene, "qemu-io", &["-f", "raw", uri, "-c", command, "-c", "flush"]);
    }
}

/// The disk, once its process was refused for this reason.
#[track_caller]
fn refused(agent: &Agent<'_>, parts: &[&str]) -> Value {
    let is_refused = |disk: &Value| {
        let error = disk["error"].as_str().unwrap_or_default();
        disk["state"] == "restarting" && parts.iter().all(|part| error.contains(part))
    };
    agent.disk_that(&format!("refused: {parts:?}"), is_refused)
}

/// Attaches by `words` with writable directories below `vol`, removes that as an unmounted file system goes, kills the
/// disk's process, and brings the directory back.
fn goes_away_and_comes_back(words: &str) {
    let scene = noisy(1);
    if !installed(&["qemu-io"]) {
        return;
    }
    let mut agent = Agent::start(&scene, "a", "");
    fs::create_dir(scene.path("vol")).unwrap();
    let disk = agent.attach(&format!("{words} --as vm --nbd unix:~/d.sock"));
    on_each_way(&scene, &disk, "write -P 7 64k 64k");
    for by_agent in [false, true] {
        let disk = agent.disk_that("serving", |disk| disk["state"] == "serving");
        fs::rename(scene.path("vol"), scene.path("away")).unwrap();
        fs::create_dir(scene.path("vol")).unwrap();
        if by_agent {
            agent.kill();
            kill(&disk);
            agent.again();
        } else {
            kill(&disk);
        }
        refused(&agent, &["vol/vm", "is not there", "mount"]);
        assert_eq!(scene.names("vol"), [""; 0], "something was made on the bare mount point");
        let listed = scene.ok(&format!("disk list {}", agent.option())).stdout;
        assert!(listed.contains("is not there; mount") && !listed.contains("serving"), "{listed}");
        fs::remove_dir(scene.path("vol")).unwrap();
        fs::rename(scene.path("away"), scene.path("vol")).unwrap();
        let again = agent.disk_that("serving again", |disk| disk["state"] == "serving");
        on_each_way(&scene, &again, "read -P 7 64k 64k");
    }
    agent.detach("vm");
}

#[test]
fn a_disk_waits_for_its_writable_directory() {
    goes_away_and_comes_back("file://~/store:v1 --writable ~/vol/vm");
}

#[test]
fn several_disks_of_a_process_wait_for_their_directories() {
    goes_away_and_comes_back("a=file://~/store:v1 b=file://~/store:v1 --writable ~/vol/vms");
}

#[test]
fn a_disk_that_keeps_its_base_waits_for_its_directory() {
    goes_away_and_comes_back("file://~/store:v1 --writable ~/vol/vm --keep-base");
}

/// The directory of another disk is not taken for it, even one that is based on the same image.
#[test]
fn a_disk_does_not_go_on_in_the_directory_of_another() {
    let scene = noisy(1);
    if !installed(&["qemu-io"]) {
        return;
    }
    let agent = Agent::start(&scene, "a", "");
    agent.attach("file://~/store:v1 --as other --writable ~/other --nbd unix:~/d.sock");
    agent.detach("other");
    let disk = agent.attach("file://~/store:v1 --as vm --writable ~/vm --nbd unix:~/d.sock");
    on_each_way(&scene, &disk, "write -P 7 64k 64k");
    fs::rename(scene.path("vm"), scene.path("away")).unwrap();
    fs::rename(scene.path("other"), scene.path("vm")).unwrap();
    kill(&disk);
    refused(&agent, &["/vm: ", "another disk"]);
    fs::rename(scene.path("vm"), scene.path("other")).unwrap();
    fs::rename(scene.path("away"), scene.path("vm")).unwrap();
    let again = agent.disk_that("serving again", |disk| disk["state"] == "serving");
    on_each_way(&scene, &again, "read -P 7 64k 64k");
    agent.detach("vm");
}

/// A record without ids: an absent directory is refused anyway, and a start that finds the directory adds its id.
#[test]
fn a_record_without_the_id_of_a_directory_gets_it() {
    let scene = noisy(1);
    let agent = Agent::start(&scene, "a", "");
    let disk = agent.attach("file://~/store:v1 --as vm --writable ~/vm --nbd unix:~/d.sock");
    let record = scene.path("a/disks/vm.images");
    let noted = || serde_json::from_slice::<Value>(&fs::read(&record).unwrap()).unwrap();
    let (with_id, mut without_id) = (noted(), noted());
    without_id["images"][0].as_object_mut().unwrap().remove("writable").unwrap();
    fs::write(&record, without_id.to_string()).unwrap();
    fs::rename(scene.path("vm"), scene.path("away")).unwrap();
    kill(&disk);
    refused(&agent, &["/vm: ", "is not there"]);
    assert!(!scene.path("vm").exists());
    assert_eq!(noted(), without_id);
    fs::rename(scene.path("away"), scene.path("vm")).unwrap();
    agent.disk_that("serving again", |disk| disk["state"] == "serving");
    assert_eq!(noted(), with_id);
    agent.detach("vm");
}
