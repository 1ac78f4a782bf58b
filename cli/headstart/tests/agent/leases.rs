//! A disk of an agent keeps its image while its process is dead.

use crate::agent::Agent;
use crate::attached::TIMEOUT;
use crate::disk::noise;
use crate::images::tool;
use crate::scene::Scene;
use crate::tools::installed;
use headstart_testkit::wait::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::Instant;

const PRUNE: &str = "image prune file://~/store --older-than 0s";

/// The number of files in the store's directory of leases.
fn leases(scene: &Scene) -> usize {
    let files = fs::read_dir(scene.path("store/.headstart/leases")).into_iter().flatten().flatten();
    // A file that is being written has another name first.
    files.filter(|file| !file.file_name().to_string_lossy().starts_with('.')).count()
}

#[test]
fn a_detached_disk_leaves_no_file_in_its_store_and_a_stopped_one_keeps_it() {
    let scene = Scene::new();
    fs::write(scene.path("1.raw"), noise(1, 256 << 10)).unwrap();
    scene.ok("image import 1.raw file://~/store:base");
    let mut agent = Agent::start(&scene, "a", "");
    agent.attach("vm=file://~/store:base --nbd unix:~/vm.sock");
    agent.kill();
    // The host goes down in good order, and comes back.
    let pid = fs::read_to_string(scene.path("a/disks/vm.pid")).unwrap();
    kill_process(Pid::from_raw(pid.trim().parse().unwrap()).unwrap(), Signal::TERM).unwrap();
    let has_said = || fs::read_to_string(scene.path("a/disks/vm.out")).unwrap().contains("{\"reads\"");
    wait_until("the disk's process has ended", TIMEOUT, || has_said() && !agent.is_served("vm"));
    assert_eq!(leases(&scene), 1);
    agent.again();
    let disk = agent.disk_that("serving", |disk| disk["state"] == "serving");
    assert_eq!(leases(&scene), 1);
    // The same holds while the agent is there.
    kill_process(Pid::from_raw(disk["pid"].as_i64().unwrap() as i32).unwrap(), Signal::TERM).unwrap();
    agent.disk_that("served again", |again| {
        assert_eq!(leases(&scene), 1);
        again["state"] == "serving" && again["pid"] != disk["pid"]
    });
    agent.detach("vm");
    assert_eq!(leases(&scene), 0);
    agent.stop();
}

#[test]
fn a_disk_that_is_started_again_finds_its_image() {
    if !installed(&["nbdcopy"]) {
        return;
    }
    let scene = Scene::new();
    for n in 0..2 {
        fs::write(scene.path(&format!("{n}.raw")), noise(n + 1, 256 << 10)).unwrap();
    }
    let made = scene.json("image import 0.raw file://~/store:base");
    let agent = Agent::start(&scene, "a", "");
    agent.attach("vm=file://~/store:base --nbd unix:~/vm.sock");
    scene.ok("image import 1.raw file://~/store:base");
    for _ in 0..4 {
        let before = agent.disk_that("serving", |disk| disk["state"] == "serving")["pid"].clone();
        kill_process(Pid::from_raw(before.as_i64().unwrap() as i32).unwrap(), Signal::KILL).unwrap();
        let until = Instant::now() + TIMEOUT;
        loop {
            let pruned = scene.json(PRUNE);
            assert_eq!(pruned["untagged"][0]["digest"], made["digest"], "{pruned}");
            let disks = agent.disks();
            if disks[0]["state"] == "serving" && disks[0]["pid"] != before {
                break;
            }
            assert!(Instant::now() < until, "{disks:?}");
        }
    }
    let disk = agent.disk_that("serving", |disk| disk["state"] == "serving");
    tool(&scene, "nbdcopy", &[disk["ready"]["ways"][0]["uri"].as_str().unwrap(), "out.raw"]);
    assert!(scene.bytes("out.raw") == scene.bytes("0.raw"));
    // There is one lease, however often it was started.
    assert_eq!(scene.json("lease list file://~/store")["leases"].as_array().unwrap().len(), 1);
    agent.detach("vm");
    assert_eq!(leases(&scene), 0);
    let pruned = scene.json(PRUNE);
    assert_eq!(pruned["images"][0]["digest"], made["digest"], "{pruned}");
    assert_eq!(scene.json("lease list file://~/store")["leases"].as_array().unwrap().len(), 0);
}
