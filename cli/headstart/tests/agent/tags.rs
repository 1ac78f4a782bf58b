//! A tag is resolved when a disk is attached, and never again while it is attached: a plain model of tags, disks and
//! images beside an agent, its disks' processes, and stores that change.

use crate::agent::{Agent, copy_of_program};
use crate::attached::TIMEOUT;
use crate::disk::noise;
use crate::images::{Web, layered, tool};
use crate::scene::Scene;
use crate::tools::installed;
use headstart_testkit::faults::{Fault, FaultRule};
use headstart_testkit::wait::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// Bytes of each image.
const LEN: usize = 256 << 10;

/// Images that the tag `base` may stand for.
const IMAGES: u64 = 3;

/// The number of kinds of steps of the model.
const STEPS: u64 = 7;

/// Kills a process, and waits until it has ended, with all that it held.
fn kill(pid: &Value) {
    // It may have died with another process.
    let _ = kill_process(Pid::from_raw(pid.as_i64().unwrap() as i32).unwrap(), Signal::KILL);
    await_end(pid);
}

/// Waits until a process has ended, which may be a child of this one's.
fn await_end(pid: &Value) {
    let is_zombie = |state: String| state.contains(") Z");
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    // The first of its threads may have ended before the others.
    let state = || fs::read_to_string(format!("/proc/{pid}/stat"));
    wait_until(&format!("process {pid} has ended"), TIMEOUT, || {
        state().map_or(true, |state| is_zombie(state) && threads() <= 1)
    });
}

/// A store, an agent, and the expected content of each disk.
struct World<'s> {
    scene: &'s Scene,
    web: Option<&'s Web>,
    agent: Agent<'s>,
    /// The digest of each image.
    digests: Vec<String>,
    /// The image that the tag stands for.
    tag: usize,
    /// The image that each disk got when it was attached, and the number of times that it was attached.
    disks: BTreeMap<&'static str, (usize, u64)>,
    log: Vec<String>,
}

/// A scene with the images, and their digests.
fn images() -> (Scene, Vec<String>) {
    let scene = Scene::new();
    let digests = (0..IMAGES).map(|n| {
        fs::write(scene.path(&format!("{n}.raw")), noise(n + 1, LEN)).unwrap();
        let made = scene.json(&format!("image import {n}.raw file://~/store:v{n}"));
        made["digest"].as_str().unwrap().to_owned()
    });
    let digests = digests.collect();
    scene.ok("image import 0.raw file://~/store:base");
    (scene, digests)
}

impl<'s> World<'s> {
    fn new(scene: &'s Scene, web: Option<&'s Web>, digests: Vec<String>) -> Self {
        let agent = Agent::start(scene, "a", "");
        copy_of_program(scene, "headstart-next");
        let mut world = Self { scene, web, agent, digests, tag: 0, disks: BTreeMap::new(), log: Vec::new() };
        for name in world.names() {
            world.attach(name);
        }
        world
    }

    fn names(&self) -> Vec<&'static str> {
        let web = self.web.map(|_| ["web", "web-rw"]);
        ["local", "local-rw"].into_iter().chain(web.into_iter().flatten()).collect()
    }

    /// Attaches a disk as an operator does: it gets the image that the tag stands for now.
    fn attach(&mut self, name: &'static str) {
        self.reach_store();
        let place = match self.web {
            Some(web) if name.starts_with("web") => format!("{}/:base", web.proxy.url()),
            _ => "file://~/store:base".to_owned(),
        };
        let times = self.disks.get(name).map_or(0, |(_, times)| times + 1);
        let writable =
            if name.ends_with("-rw") { format!("--writable ~/{name}-{times}") } else { String::new() };
        self.agent.attach(&format!("{place} --as {name} {writable} --nbd unix:~/{name}.sock"));
        self.disks.insert(name, (self.tag, times));
        self.check_disk(name);
    }

    fn reach_store(&self) {
        if let Some(web) = self.web {
            web.proxy.clear_rules();
        }
    }

    fn step(&mut self, number: u64) {
        let names = self.names();
        let name = names[(number / STEPS) as usize % names.len()];
        let (what, number) = (number % STEPS, (number / STEPS) as usize);
        self.log.push(format!("{what} {name}"));
        match what {
            0 => {
                self.tag = number % IMAGES as usize;
                self.scene.ok(&format!("image import {}.raw file://~/store:base", self.tag));
            }
            1 => {
                // The store answers for no image any more: neither for its tags nor for its manifests.
                if let Some(web) = self.web {
                    web.proxy.add(FaultRule::new(Fault::status(503)).on_path("index.json"));
                    for digest in &self.digests {
                        let hex = digest.strip_prefix("sha256:").unwrap();
                        web.proxy.add(FaultRule::new(Fault::status(503)).on_path(hex));
                    }
                }
                let _ = fs::remove_file(self.scene.path("away.json"));
                fs::rename(self.scene.path("store/index.json"), self.scene.path("away.json")).unwrap();
                self.kill_all(&names);
                self.check();
                fs::rename(self.scene.path("away.json"), self.scene.path("store/index.json")).unwrap();
            }
            2 => kill(&self.disk(name)["pid"]),
            3 => {
                self.agent.kill();
                self.agent.again_as(&self.scene.path("headstart-next"));
            }
            4 => {
                let pid = self.disk(name)["pid"].clone();
                self.agent.kill();
                kill(&pid);
                self.agent.again();
            }
            5 => {
                // The host starts again: no process runs, and the files on its disks are there.
                let pids: Vec<_> = names.iter().map(|name| self.disk(name)["pid"].clone()).collect();
                self.agent.kill();
                pids.iter().for_each(kill);
                self.agent.again();
            }
            _ => {
                self.agent.detach(name);
                self.attach(name);
            }
        }
        self.check();
    }

    fn kill_all(&self, names: &[&str]) {
        names.iter().for_each(|name| kill(&self.disk(name)["pid"]));
    }

    /// The agent's status of a disk, once it is served by a process that lives.
    fn disk(&self, name: &str) -> Value {
        let until = Instant::now() + TIMEOUT;
        loop {
            let disks = self.agent.disks();
            let disk = disks.iter().find(|disk| disk["name"] == name);
            let served = disk.filter(|disk| {
                let lives = disk["pid"].as_u64().is_some_and(|pid| {
                    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                    !state.is_empty() && !state.contains(") Z")
                });
                disk["state"] == "serving" && lives
            });
            if let Some(disk) = served {
                return disk.clone();
            }
            assert!(Instant::now() < until, "{name} is not served: {disks:?} after {:?}", self.log);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn check(&self) {
        self.names().iter().for_each(|name| self.check_disk(name));
    }

    /// Checks that the disk holds the image that it was attached with, and that the agent reports it.
    fn check_disk(&self, name: &str) {
        let (image, _) = self.disks[name];
        let disk = self.disk(name);
        assert_eq!(disk["images"][0]["digest"], self.digests[image].as_str(), "{name} after {:?}", self.log);
        assert_eq!(disk["ready"]["disks"][0]["digest"], self.digests[image].as_str(), "{disk}");
        let uri = disk["ready"]["ways"][0]["uri"].as_str().unwrap();
        tool(self.scene, "nbdcopy", &[uri, "out.raw"]);
        let same = self.scene.bytes("out.raw") == noise(image as u64 + 1, LEN);
        assert!(same, "{name} is another disk after {:?}", self.log);
        fs::remove_file(self.scene.path("out.raw")).unwrap();
    }
}

#[test]
fn a_disk_keeps_its_image_whatever_becomes_of_its_tag() {
    if !installed(&["nbdcopy"]) {
        return;
    }
    let (scene, digests) = images();
    let web = Web::before(&scene);
    let mut world = World::new(&scene, web.as_ref(), digests);
    // Each kind of step runs once after the tag has moved, and then random steps.
    let each = [7, 2, 3, 4, 5, 1, 6, 14, 2 + 7, 2 + 14, 2 + 21, 5].into_iter();
    let any = noise(19, 16).into_iter().map(u64::from);
    for number in each.chain(any) {
        world.step(number);
    }
    let said = scene.ok(&format!("disk list {}", world.agent.option())).stdout;
    let (image, _) = world.disks["local"];
    assert!(said.contains(&format!("/store:base is {}", world.digests[image])), "{said}");
    for name in world.names() {
        world.agent.detach(name);
    }
    assert_eq!(scene.names("a/disks"), [""; 0]);
}

/// The record of an earlier version has no digest: a writable disk has it from its directory, and others from their
/// first start.
#[test]
fn a_disk_of_an_earlier_version_gets_its_digest_at_its_first_start() {
    if !installed(&["nbdcopy"]) {
        return;
    }
    let (scene, digests) = images();
    let mut world = World::new(&scene, None, digests);
    let pids = world.names().into_iter().map(|name| world.disk(name)["pid"].clone()).collect::<Vec<_>>();
    world.agent.kill();
    pids.iter().for_each(kill);
    for name in world.names() {
        fs::remove_file(scene.path(&format!("a/disks/{name}.images"))).unwrap();
        // Its agent has no record of it either.
        let path = scene.path(&format!("a/disks/{name}.json"));
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(record.as_object_mut().unwrap().remove("has_images"), Some(true.into()));
        fs::write(&path, record.to_string()).unwrap();
    }
    scene.ok("image import 1.raw file://~/store:base");
    world.agent.again();
    world.disks.insert("local", (1, 0));
    world.check();
    let said = fs::read_to_string(scene.path("a/disks/local.log")).unwrap();
    assert!(
        said.contains("an earlier version served the disk") && said.contains(&world.digests[1]),
        "{said}"
    );
    world.tag = 2;
    scene.ok("image import 2.raw file://~/store:base");
    world.kill_all(&world.names());
    world.check();
}

/// Waits until the disk is refused because the record of its image is missing.
#[track_caller]
fn await_refusal(agent: &Agent<'_>) {
    agent.disk_that("refused", |disk| {
        let error = disk["error"].as_str().unwrap_or_default();
        error.contains("vm.images") && error.contains("by the digest of its image")
    });
}

/// The record of a disk's image is damaged: the disk is not served with the image that the tag stands for now.
#[test]
fn a_disk_whose_image_is_not_known_any_more_is_not_given_another() {
    let (scene, _) = images();
    let agent = Agent::start(&scene, "a", "");
    let disk = agent.attach("vm=file://~/store:base --nbd unix:~/vm.sock");
    fs::write(scene.path("a/disks/vm.images"), "{\"version\":1,\"images\":[").unwrap();
    kill(&disk["pid"]);
    await_refusal(&agent);
    assert_eq!(agent.detach("vm")["state"], "detached");
    // A disk of the same name is a new one.
    agent.attach("vm=file://~/store:v1 --nbd unix:~/vm.sock");
    agent.detach("vm");
}

/// The record was deleted, with or without the file of process numbers, before any start of the process. A disk that
/// has lost only the latter file goes on with its image.
#[test]
fn a_disk_without_its_files_is_not_given_another_image() {
    if !installed(&["nbdcopy"]) {
        return;
    }
    let (scene, digests) = images();
    let mut agent = Agent::start(&scene, "a", "");
    for (lost, emptied) in [
        (&["images"][..], &[][..]),
        (&["images", "pid"], &[]),
        (&["images"], &["pid"]),
        (&["pid"], &[]),
        (&[], &["pid"]),
    ] {
        scene.ok("image import 0.raw file://~/store:base");
        for by_agent in [false, true] {
            let disk = agent.attach("vm=file://~/store:base --nbd unix:~/vm.sock");
            scene.ok("image import 1.raw file://~/store:base");
            let lose = || {
                let path = |ending: &&str| scene.path(&format!("a/disks/vm.{ending}"));
                lost.iter().for_each(|ending| fs::remove_file(path(ending)).unwrap());
                emptied.iter().for_each(|ending| fs::write(path(ending), "").unwrap());
            };
            if by_agent {
                agent.kill();
                // Its lock is gone with it.
                kill(&disk["pid"]);
                lose();
                agent.again();
            } else {
                lose();
                kill(&disk["pid"]);
            }
            if lost.contains(&"images") {
                await_refusal(&agent);
            } else {
                let another = |again: &Value| again["state"] == "serving" && again["pid"] != disk["pid"];
                let again = agent.disk_that("served by another process", another);
                assert_eq!(again["ready"]["disks"][0]["digest"], digests[0].as_str(), "{lost:?} {emptied:?}");
                let uri = again["ready"]["ways"][0]["uri"].as_str().unwrap();
                tool(&scene, "nbdcopy", &[uri, "out.raw"]);
                assert!(scene.bytes("out.raw") == scene.bytes("0.raw"), "{lost:?} {emptied:?}");
            }
            agent.detach("vm");
            scene.ok("image import 0.raw file://~/store:base");
        }
    }
}

/// The agent reports the image of a disk whose directory keeps its base, and passes on the process's warnings.
#[test]
fn of_a_disk_that_keeps_its_base_the_agent_says_what_is_served() {
    let scene = layered();
    let agent = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0");
    agent.attach("vm=file://~/store:v1 --writable ~/vm --keep-base --nbd unix:~/d.sock");
    agent.detach("vm");
    let words =
        format!("attach vm=file://~/store:base --writable ~/vm --nbd unix:~/d.sock {}", agent.option());
    let attached = scene.ok(&words).stdout;
    let listed = scene.ok(&format!("disk list {}", agent.option())).stdout;
    for said in [attached, listed] {
        assert!(said.contains("store:v1 is sha256:") && said.contains("kept in"), "{said}");
        assert!(!said.contains("store:base is ") && said.contains("warning: "), "{said}");
    }
    agent.detach("vm");
}
