//! Images that disks need stay in object stores: leases, prunes and copies that must not meet, and the week of grace.

use crate::attached::{Attached, Metrics, TIMEOUT};
use crate::disk::{copy_of, noise};
use crate::images::{can_check_bytes, check_bytes, layered, tool};
use crate::scene::{CommandRun, Scene};
use headstart_testkit::faults::{Fault, FaultProxy, FaultRule, ProxiedRequest};
use headstart_testkit::files::set_age;
use headstart_testkit::process::Process;
use headstart_testkit::s3::S3;
use headstart_testkit::wait::{wait_for, wait_for_value, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const DAY: Duration = Duration::from_secs(86400);

/// The socket of [`World::agent`].
const AGENT: &str = "~/a/agent.sock";

/// An object store with an image `v1`, whose disk is `disk.raw`.
struct World {
    scene: Scene,
    server: S3,
}

impl World {
    fn new() -> Option<Self> {
        if !S3::is_installed() {
            return None;
        }
        let (scene, server) = (layered(), S3::with_bucket("images"));
        let world = Self { scene, server };
        world.run("image push file://~/store:v1 s3://images/vm").succeeds();
        Some(world)
    }

    fn run_at(&self, endpoint: &str, words: &str) -> CommandRun {
        let mut command = self.scene.command(words);
        command.envs(S3::environment(endpoint));
        CommandRun::of(words, &mut command)
    }

    fn run(&self, words: &str) -> CommandRun {
        self.run_at(&self.server.endpoint(), words)
    }

    #[track_caller]
    fn json(&self, words: &str) -> Value {
        self.run(&format!("{words} --json")).succeeds().json()
    }

    #[track_caller]
    fn attach_at(&self, endpoint: &str, words: &str) -> Attached {
        let mut command =
            self.scene.command(&format!("attach --json {words} --cache ~/cache --nbd unix:~/d.sock"));
        command.envs(S3::environment(endpoint));
        Attached::of(&mut command)
    }

    #[track_caller]
    fn attach(&self, words: &str) -> Attached {
        self.attach_at(&self.server.endpoint(), words)
    }

    /// An agent at [`AGENT`].
    #[track_caller]
    fn agent(&self) -> Process {
        self.agent_at(&self.server.endpoint())
    }

    #[track_caller]
    fn agent_at(&self, endpoint: &str) -> Process {
        let words = "agent --json --dir ~/a --cache ~/a-cache --plain a --listen 127.0.0.1:0";
        let mut command = self.scene.command(words);
        command.envs(S3::environment(endpoint));
        let mut process = Process::start(&mut command);
        process.line("that it is ready", TIMEOUT, |line| line.starts_with("{\"name\""));
        process
    }

    fn path(&self, name: &str) -> PathBuf {
        self.server.bucket("images").join("vm").join(name)
    }

    /// The names of objects below one.
    fn names(&self, name: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(name)).into_iter().flatten();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The names of the leases, once there are `count` of them: a slow store gets them when the disk is served.
    #[track_caller]
    fn leases(&self, count: usize) -> Vec<String> {
        let names = || self.names(".headstart/leases");
        wait_for_value(&format!("{count} leases"), TIMEOUT, names, |names| names.len() == count)
    }

    /// Makes all objects below a name this old.
    fn age(&self, name: &str, age: Duration) {
        for object in self.names(name) {
            set_age(&self.path(name).join(object), age);
        }
    }

    /// Pushes another disk as `v1`; returns the digest that the tag named before.
    #[track_caller]
    fn move_tag(&self) -> String {
        let was = self.json("image inspect s3://images/vm:v1")["digest"].as_str().unwrap().to_owned();
        copy_of(&self.scene, "disk.raw", "next.raw").write(2 << 20, &noise(77, 70_000));
        self.run("image import next.raw file://~/store:next").succeeds();
        let pushed = self.json("image push file://~/store:next s3://images/vm:v1");
        assert_eq!(pushed["was"], was.as_str(), "{pushed}");
        was
    }
}

#[test]
fn a_bucket_loses_what_is_old_and_needed_by_nobody() {
    let Some(world) = World::new() else { return };
    if !can_check_bytes() {
        return;
    }
    assert!(world.names(".headstart/pushes").is_empty(), "the copy has ended");
    let attached = world.attach("s3://images/vm:v1 --writable ~/vm");
    world.leases(2);
    world.run("image remove s3://images/vm:v1").fails(&["vm:v1", "in use by", "--force"]);
    attached.detach();
    // The directory needs its base even while nothing is attached.
    world.leases(1);
    let listed = world.json("lease list s3://images/vm");
    assert_eq!(
        (&listed["leases"][0]["kind"], &listed["leases"][0]["state"]),
        (&"writable".into(), &"held".into())
    );
    let was = world.move_tag();
    for name in ["blobs/sha256", ".headstart/leases", ".headstart/untagged"] {
        world.age(name, 30 * DAY);
    }
    let pruned = world.json("image prune s3://images/vm");
    assert_eq!(
        (&pruned["blobs"], &pruned["untagged"][0]["digest"]),
        (&0.into(), &was.as_str().into()),
        "{pruned}"
    );
    assert!(pruned["untagged"][0]["holders"][0].as_str().unwrap().contains("writable directory"), "{pruned}");
    let again = world.attach(&format!("s3://images/vm@{was} --writable ~/vm"));
    check_bytes(&world.scene, "disk.raw", &again.uri());
    again.detach();
    // The directory is deleted, and a week later the image.
    fs::remove_dir_all(world.scene.path("vm")).unwrap();
    let pruned = world.json("image prune s3://images/vm");
    assert_eq!((&pruned["blobs"], &pruned["ended_leases"]), (&0.into(), &1.into()), "{pruned}");
    world.age(".headstart/untagged", 8 * DAY);
    let dry = world.json("image prune s3://images/vm --dry-run");
    let blobs = world.names("blobs/sha256").len();
    assert_eq!((&dry["images"][0]["digest"], &dry["dry_run"]), (&was.as_str().into(), &true.into()), "{dry}");
    let pruned = world.json("image prune s3://images/vm");
    assert_eq!((&pruned["images"], &pruned["blobs"]), (&dry["images"], &dry["blobs"]), "{pruned}");
    assert_eq!(world.names("blobs/sha256").len() as u64, blobs as u64 - pruned["blobs"].as_u64().unwrap());
    world.run("image verify s3://images/vm:v1").succeeds();
    for left in [".headstart/pruning", ".headstart/clock"] {
        assert!(!world.path(left).exists(), "{left}");
    }
}

#[test]
fn a_prune_deletes_nothing_young_and_does_not_run_beside_a_copy() {
    let Some(world) = World::new() else { return };
    let was = world.move_tag();
    world.run("image prune s3://images/vm --older-than 1d").fails(&["younger than a week", "7d"]);
    // The image lost its name long ago, but its blobs came yesterday: another copy may have brought them.
    world.age(".headstart/untagged", 30 * DAY);
    let pruned = world.json("image prune s3://images/vm");
    assert_eq!(pruned["blobs"], 0, "{pruned}");
    assert!(pruned["young_blobs"].as_u64().unwrap() >= 3, "{pruned}");
    world.age("blobs/sha256", 30 * DAY);
    // A copy is in progress, or died less than an hour ago.
    fs::create_dir_all(world.path(".headstart/pushes")).unwrap();
    let push = world.path(".headstart/pushes/x");
    fs::write(&push, "{}").unwrap();
    world.run("image prune s3://images/vm").fails(&["being copied", "run it again"]);
    assert!(!world.path(".headstart/pruning").exists());
    // Another prune is in progress, or died less than some minutes ago.
    set_age(&push, Duration::from_secs(7200));
    fs::write(world.path(".headstart/pruning"), "{}").unwrap();
    for words in ["image prune s3://images/vm", "image push file://~/store:base s3://images/vm"] {
        world.run(words).fails(&["another process", "prunes it", "run it again"]);
    }
    set_age(&world.path(".headstart/pruning"), Duration::from_secs(3600));
    world.run("image push file://~/store:base s3://images/vm").succeeds();
    let pruned = world.json("image prune s3://images/vm");
    assert_eq!(pruned["images"][0]["digest"], was.as_str(), "{pruned}");
    assert!(world.names(".headstart/pushes").is_empty());
    world.run("image verify s3://images/vm:v1").succeeds();
    world.run("image verify s3://images/vm:base").succeeds();
    world.run("image remove s3://images/vm:base").succeeds();
    world.run("image inspect s3://images/vm:base").fails(&["vm:base"]);
}

#[test]
fn leases_of_hosts_that_are_gone_end_in_time_or_by_an_operator() {
    let Some(world) = World::new() else { return };
    let attached = world.attach("s3://images/vm:v1 --writable ~/vm");
    let digest = attached.ready["disks"][0]["digest"].as_str().unwrap().to_owned();
    for id in world.leases(2) {
        let path = world.path(".headstart/leases").join(id);
        let mut lease: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        lease["host"] = serde_json::json!({"name": "node7", "machine": "x", "boot": "y"});
        fs::write(&path, lease.to_string()).unwrap();
    }
    // The lease of an attach that renews nothing for a week is over. That of a directory never is.
    world.age(".headstart/leases", 8 * DAY);
    let listed = world.json("lease list s3://images/vm");
    let states: Vec<_> =
        listed["leases"].as_array().unwrap().iter().map(|l| (&l["kind"], &l["state"])).collect();
    assert!(states.contains(&(&"attach".into(), &"over".into())), "{listed}");
    assert!(states.contains(&(&"writable".into(), &"unknown".into())), "{listed}");
    world.run("image remove s3://images/vm:v1").fails(&["writable directory", "node7"]);
    let released = world.json(&format!("lease release s3://images/vm@{digest} --host node7"));
    assert_eq!(released["released"].as_array().unwrap().len(), 2, "{released}");
    world.run("image remove s3://images/vm:v1").succeeds();
    attached.detach();
}

#[test]
fn credentials_that_only_read_are_enough_for_a_disk() {
    let Some(world) = World::new() else { return };
    if !can_check_bytes() {
        return;
    }
    let proxy = FaultProxy::start(world.server.addr());
    proxy.add(FaultRule::new(Fault::status(403)).on(|asked| asked.method == "PUT"));
    let mut attached = world.attach_at(&proxy.url(), "s3://images/vm:v1");
    let warning = attached.warning();
    assert!(warning.contains("no lease can be left in s3://images/vm"), "{warning}");
    check_bytes(&world.scene, "disk.raw", &attached.uri());
    assert_eq!(attached.output().matches("warning").count(), 1);
    attached.detach();
}

/// A prune that died leaves its mark for minutes: the disk is served, and all its leases are there.
#[test]
fn a_prune_that_died_keeps_no_lease_from_being_written() {
    let Some(world) = World::new() else { return };
    let digest = world.json("image inspect s3://images/vm:v1")["digest"].as_str().unwrap().to_owned();
    let pruning = world.path(".headstart/pruning");
    fs::create_dir_all(world.path(".headstart")).unwrap();
    fs::write(&pruning, "{}").unwrap();
    // The mark lasts longer than the attach that waits for its end, even on a busy machine.
    set_age(&pruning, Duration::from_secs(900 - 15));
    let mut attached = world.attach("s3://images/vm:v1 --writable ~/vm");
    world.leases(2);
    // The wait ends with the store's time, although only the leases are written; then the image is missed.
    fs::remove_file(world.path("blobs/sha256").join(&digest[7..])).unwrap();
    let warning = attached.warning();
    assert!(warning.contains("was deleted from its store"), "{warning}");
    assert!(pruning.exists());
    attached.detach();
}

/// An image that is deleted between its manifest and its lease: nothing of the attach stays.
#[test]
fn an_image_that_went_before_its_lease_was_there_leaves_nothing() {
    let Some(world) = World::new() else { return };
    let digest = world.json("image inspect s3://images/vm:v1")["digest"].as_str().unwrap().to_owned();
    let proxy = FaultProxy::start(world.server.addr());
    let hex = digest[7..].to_owned();
    proxy.add(FaultRule::new(Fault::status(404)).on(move |it| it.method == "HEAD" && it.path.contains(&hex)));
    let words = "attach s3://images/vm:v1 --writable ~/vm --cache ~/cache --nbd unix:~/d.sock";
    world.run_at(&proxy.url(), words).fails(&["was deleted from its store"]);
    assert!(!world.scene.path("vm").exists());
    world.leases(0);
}

/// Ends the process of an agent's disk as the end of the host does, and waits for that.
#[track_caller]
fn end_disk(scene: &Scene, name: &str) {
    let file = |ending: &str| fs::read_to_string(scene.path(&format!("a/disks/{name}.{ending}")));
    let pid = Pid::from_raw(file("pid").unwrap().trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    wait_for("the disk's process has ended", TIMEOUT, || {
        let has_ended = file("out").is_ok_and(|out| out.contains("{\"reads\""));
        if has_ended { Ok(()) } else { Err(file("log")) }
    });
}

/// The host goes down in good order and comes back: images of disks that its agent starts again stay held meanwhile.
#[test]
fn a_disk_that_an_agent_starts_again_stays_held_until_it_is_detached() {
    let Some(world) = World::new() else { return };
    let mut first = world.agent();
    world.run("attach s3://images/vm:v1 --nbd unix:~/n.sock --as vm --agent ~/a/agent.sock").succeeds();
    let leases = world.leases(1);
    assert!(leases[0].starts_with("disk-"), "{leases:?}");
    first.kill();
    end_disk(&world.scene, "vm");
    assert_eq!(world.names(".headstart/leases"), leases);
    let mut second = world.agent();
    let state = || world.json("disk list --agent ~/a/agent.sock")["disks"][0]["state"].clone();
    wait_for_value("it is started again", TIMEOUT, state, |state| state == "serving");
    assert_eq!(world.names(".headstart/leases"), leases);
    world.run("disk detach vm --agent ~/a/agent.sock").succeeds();
    world.leases(0);
    assert_eq!(second.stop(TIMEOUT).code(), Some(0), "{second}");
}

/// Ctrl-C while a prune waits for the store: other writers are not kept out.
#[test]
fn a_prune_that_is_interrupted_leaves_no_mark() {
    let Some(world) = World::new() else { return };
    let proxy = FaultProxy::start(world.server.addr());
    let manifest = world.json("image inspect s3://images/vm:v1")["digest"].as_str().unwrap()[7..].to_owned();
    proxy.add(FaultRule::new(Fault::Hang { after: None }).on(move |asked| asked.path.contains(&manifest)));
    let mut command = world.scene.command("image prune s3://images/vm");
    command.envs(S3::environment(&proxy.url()));
    let mut process = Process::start(&mut command);
    wait_until("the prune has begun", TIMEOUT, || world.path(".headstart/pruning").exists());
    process.signal(Signal::INT);
    assert_eq!(process.end(TIMEOUT).code(), Some(1), "{process}");
    assert!(process.output().contains("stopped on request"), "{process}");
    assert!(!world.path(".headstart/pruning").exists());
    world.run("image push file://~/store:base s3://images/vm").succeeds();
}

/// A copy of a directory has a lease of its own, even in an object store.
#[test]
fn a_copy_of_a_directory_gives_up_its_own_lease_alone() {
    let Some(world) = World::new() else { return };
    world.attach("s3://images/vm:v1 --writable ~/vm1").detach();
    let paths = ["vm1", "vm2"].map(|name| world.scene.path(name).into_os_string().into_string().unwrap());
    tool(&world.scene, "cp", &["-a", &paths[0], &paths[1]]);
    world.attach("s3://images/vm:v1 --writable ~/vm2").detach();
    world.leases(2);
    world.attach("s3://images/vm:v1 --writable ~/vm2 --keep-base").detach();
    let listed = world.json("lease list s3://images/vm");
    let leases = listed["leases"].as_array().unwrap();
    assert!(leases.len() == 1 && leases[0].to_string().contains("vm1"), "{listed}");
}

/// A disk that cannot be served holds no lease.
#[test]
fn an_attach_whose_server_does_not_start_leaves_no_lease() {
    let Some(world) = World::new() else { return };
    fs::write(world.scene.path("taken"), "a file").unwrap();
    let words = "attach s3://images/vm:v1 --cache ~/cache --nbd unix:~/taken";
    world.run(words).fails(&["taken"]);
    world.leases(0);
    // The same holds for one of two whose other image is not there.
    let words = "attach a=s3://images/vm:v1 b=s3://images/vm:none --cache ~/cache --nbd unix:~/d.sock";
    world.run(words).fails(&["none"]);
    world.leases(0);
    // A directory that was made for it is removed, with its lease; one that was there before keeps its own.
    let words = "attach s3://images/vm:v1 --writable ~/vm --cache ~/cache --nbd unix:~/taken";
    world.run(words).fails(&["taken"]);
    world.leases(0);
    assert!(!world.scene.path("vm").exists());
    world.attach("s3://images/vm:v1 --writable ~/vm").detach();
    let leases = world.leases(1);
    assert!(leases[0].starts_with("writable-"), "{leases:?}");
    world.run(words).fails(&["taken"]);
    assert_eq!(world.leases(1), leases);
}

/// A disk that is ready waits for another one of its command, which fails in the end.
#[test]
fn an_attach_whose_other_disk_fails_late_leaves_no_lease() {
    let Some(world) = World::new() else { return };
    let proxy = FaultProxy::start(world.server.addr());
    let leases = world.path(".headstart/leases");
    // The names matter: the server may write to another name first.
    let are_written = move || {
        let names = fs::read_dir(&leases).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        ["attach-", "writable-"].iter().all(|kind| names.iter().any(|name| name.starts_with(kind)))
    };
    let limit = Instant::now() + TIMEOUT;
    proxy.add(FaultRule::new(Fault::status(403)).on(move |_| {
        while !are_written() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }));
    let other = format!("{}/vm:v1", proxy.url());
    let words = "--writable ~/vms --cache ~/cache --nbd unix:~/d.sock";
    world.run(&format!("attach a=s3://images/vm:v1 b={other} {words}")).fails(&["403"]);
    assert!(Instant::now() < limit, "the leases were never written");
    world.leases(0);
    assert!(!world.scene.path("vms").exists());
}

/// A disk of an agent that was never served is not started again.
#[test]
fn a_first_attach_through_an_agent_that_fails_leaves_no_lease() {
    let Some(world) = World::new() else { return };
    let mut agent = world.agent();
    fs::write(world.scene.path("taken"), "a file").unwrap();
    for words in ["", "--writable ~/vm"] {
        let words = format!("attach s3://images/vm:v1 --nbd unix:~/taken {words} --as vm --agent {AGENT}");
        world.run(&words).fails(&["taken"]);
        world.leases(0);
        assert_eq!(world.scene.names("a/disks"), [""; 0]);
    }
    assert_eq!(agent.stop(TIMEOUT).code(), Some(0), "{agent}");
}

/// The process that would release the image is down, and cannot be started: its state cannot be found.
#[test]
fn a_disk_that_is_detached_while_its_process_is_down_gives_up_what_it_held() {
    let Some(world) = World::new() else { return };
    let mut agent = world.agent();
    let words =
        format!("attach s3://images/vm:v1 --nbd unix:~/n.sock --writable ~/vm --as vm --agent {AGENT}");
    world.run(&words).succeeds();
    world.leases(2);
    let [state, hidden] = ["vm/state.json", "hidden.json"].map(|name| world.scene.path(name));
    fs::rename(&state, &hidden).unwrap();
    let pid = fs::read_to_string(world.scene.path("a/disks/vm.pid")).unwrap();
    kill_process(Pid::from_raw(pid.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    let disk = || world.json(&format!("disk list --agent {AGENT}"))["disks"][0].clone();
    wait_for_value("the disk's process is missed", TIMEOUT, disk, |disk| {
        disk["error"].as_str().is_some_and(|error| error.contains("is not there"))
    });
    world.leases(2);
    world.run(&format!("disk detach vm --agent {AGENT}")).succeeds();
    // The writes of the directory still need the image.
    let leases = world.leases(1);
    assert!(leases[0].starts_with("writable-"), "{leases:?}");
    fs::rename(&hidden, &state).unwrap();
    let listed = world.json("lease list s3://images/vm");
    assert_eq!(listed["leases"][0]["state"], "held", "{listed}");
    assert_eq!(world.scene.names("a/disks"), [""; 0]);
    assert_eq!(agent.stop(TIMEOUT).code(), Some(0), "{agent}");
}

/// Its own host knows that a process has ended, before the week is over.
#[test]
fn the_lease_of_a_dead_process_is_over_on_its_host() {
    let Some(world) = World::new() else { return };
    let mut attached = world.attach("s3://images/vm:v1");
    world.leases(1);
    let state = || world.json("lease list s3://images/vm")["leases"][0]["state"].as_str().unwrap().to_owned();
    assert_eq!(state(), "held");
    attached.process().signal(Signal::KILL);
    attached.process().end(TIMEOUT);
    assert_eq!(state(), "over");
    let path = world.path(".headstart/leases").join(&world.names(".headstart/leases")[0]);
    let lease: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    // The processes of another host, another boot and another container are not known here.
    for (field, value) in [("boot", "earlier".into()), ("pids", Value::from(1))] {
        let mut other = lease.clone();
        other["host"][field] = value;
        fs::write(&path, other.to_string()).unwrap();
        assert_eq!(state(), "held", "{field}");
    }
    // A disk of an agent is started again.
    let record = world.scene.path("vm.images");
    fs::write(&record, lease["image"].as_str().unwrap()).unwrap();
    let mut recorded = lease.clone();
    recorded["holder"]["record"] = record.to_str().unwrap().into();
    fs::write(&path, recorded.to_string()).unwrap();
    assert_eq!(state(), "held");
    fs::remove_file(record).unwrap();
    assert_eq!(state(), "over");
    world.run("image remove s3://images/vm:v1").succeeds();
}

#[test]
fn a_lease_that_cannot_be_given_back_is_warned_of() {
    let Some(world) = World::new() else { return };
    let proxy = FaultProxy::start(world.server.addr());
    // A single object is deleted by itself, or by a list.
    proxy.add(FaultRule::new(Fault::status(403)).on(|asked| ["DELETE", "POST"].contains(&&*asked.method)));
    let mut attached = world.attach_at(&proxy.url(), "s3://images/vm:v1");
    let id = world.leases(1).remove(0);
    attached.process().signal(Signal::INT);
    let warning = attached.warning();
    for part in [&*id, "s3://images/vm", "headstart lease release"] {
        assert!(warning.contains(part), "{warning}");
    }
    let (_, command) = warning.split_once("`headstart ").unwrap();
    let (command, _) = command.split_once('`').unwrap();
    world.run(command).succeeds();
    assert!(world.names(".headstart/leases").is_empty());
    // The log of a disk is removed with it: its agent reports the same.
    let mut agent = world.agent_at(&proxy.url());
    world.run("attach s3://images/vm:v1 --nbd unix:~/n.sock --as vm --agent ~/a/agent.sock").succeeds();
    let id = world.leases(1).remove(0);
    world.run("disk detach vm --agent ~/a/agent.sock").succeeds();
    let warning = agent.line("that the lease stays", TIMEOUT, |line| line.contains("stays in"));
    for part in [&*id, "vm", "headstart lease release"] {
        assert!(warning.contains(part), "{warning}");
    }
    assert_eq!(agent.stop(TIMEOUT).code(), Some(0), "{agent}");
}

/// A store that has not written the lease of an attach when that fails may do so later: a warning says that.
#[test]
fn an_attach_that_is_stopped_while_its_lease_is_written_warns_of_it() {
    let Some(world) = World::new() else { return };
    let proxy = FaultProxy::start(world.server.addr());
    let writes = |asked: &ProxiedRequest| asked.method == "PUT" && asked.path.contains(".headstart/leases/");
    proxy.add(FaultRule::new(Fault::Hang { after: None }).on(writes));
    let mut command = world.scene.command("attach s3://images/vm:v1 --cache ~/cache --nbd unix:~/d.sock");
    command.envs(S3::environment(&proxy.url()));
    let mut attach = Process::start(&mut command);
    proxy.wait("the write of a lease", TIMEOUT, |log| !log.only(|request| writes(&request.asked)).is_empty());
    // Other messages come only if it was stopped before it was ready: it is served after three seconds.
    attach.signal(Signal::INT);
    let warning =
        attach.line("that the lease stays", TIMEOUT, |line| line.contains("stays in s3://images/vm"));
    assert!(warning.contains("`headstart lease release s3://images/vm --id attach-"), "{warning}");
    attach.end(TIMEOUT);
}

/// A store that takes longer to write a lease than an attach waits for it: the removal does not overtake the write.
#[test]
fn a_lease_that_is_being_written_at_the_end_does_not_stay() {
    let Some(world) = World::new() else { return };
    let proxy = FaultProxy::start(world.server.addr());
    let writes = |asked: &ProxiedRequest| asked.method == "PUT" && asked.path.contains(".headstart/leases/");
    proxy.add(FaultRule::new(Fault::Late(Duration::from_secs(5))).on(writes));
    world.attach_at(&proxy.url(), "s3://images/vm:v1").detach();
    // A write without a waiting process comes to the store, too.
    proxy.wait("end of all writes", TIMEOUT, |log| {
        let leases = log.only(|request| writes(&request.asked));
        !leases.is_empty() && leases.iter().all(|request| request.finished.is_some())
    });
    world.leases(0);
}

/// A prune does the same as a dry run reports, even if a lease ends by that.
#[test]
fn a_dry_run_keeps_what_the_end_of_a_lease_keeps() {
    let Some(world) = World::new() else { return };
    let attached = world.attach("s3://images/vm:v1 --writable ~/vm");
    let was = world.move_tag();
    attached.detach();
    fs::remove_dir_all(world.scene.path("vm")).unwrap();
    for name in ["blobs/sha256", ".headstart/leases", ".headstart/untagged"] {
        world.age(name, 30 * DAY);
    }
    let dry = world.json("image prune s3://images/vm --dry-run");
    let kept = |pruned: &Value| {
        assert_eq!((&pruned["blobs"], &pruned["ended_leases"]), (&0.into(), &1.into()), "{pruned}");
        assert_eq!(pruned["untagged"][0]["digest"], was.as_str(), "{pruned}");
        assert_eq!(pruned["images"].as_array().unwrap().len(), 0, "{pruned}");
    };
    kept(&dry);
    kept(&world.json("image prune s3://images/vm"));
}

/// A first copy that was killed leaves blobs, and no record of their kind.
#[test]
fn blobs_of_a_killed_first_copy_are_pruned() {
    let Some(world) = World::new() else { return };
    let digest = world.json("image inspect s3://images/vm:v1")["digest"].as_str().unwrap().to_owned();
    for name in ["oci-layout", "index.json", &format!("blobs/sha256/{}", &digest[7..])] {
        fs::remove_file(world.path(name)).unwrap();
    }
    let blobs = world.names("blobs/sha256").len();
    world.age("blobs/sha256", 30 * DAY);
    world.age(".headstart/pushes", 30 * DAY);
    let pruned = world.json("image prune s3://images/vm");
    assert_eq!(pruned["blobs"], blobs, "{pruned}");
    assert!(world.names("blobs/sha256").is_empty());
    world.run("image prune s3://images/vm").fails(&["oci-layout"]);
}

/// A mistyped bucket is not reported as a missing object.
#[test]
fn a_bucket_that_is_not_there_is_named() {
    let Some(world) = World::new() else { return };
    for words in [
        "image push file://~/store:v1 s3://none/vm",
        "image inspect s3://none/vm:v1",
        "lease list s3://none/vm",
    ] {
        world.run(words).fails(&["s3://none/vm", "there is no such bucket", "make it"]);
    }
}

#[test]
fn a_damaged_lease_in_a_bucket_counts_until_it_is_released() {
    let Some(world) = World::new() else { return };
    world.attach("s3://images/vm:v1 --writable ~/vm").detach();
    let leases = world.path(".headstart/leases");
    fs::write(leases.join("long"), vec![b' '; (1 << 20) + 1]).unwrap();
    fs::write(leases.join("it's"), "no lease").unwrap();
    let listed = world.json("lease list s3://images/vm");
    let damaged: Vec<_> =
        listed["leases"].as_array().unwrap().iter().filter(|l| l["state"] == "damaged").collect();
    assert_eq!(damaged.iter().map(|l| l["id"].as_str().unwrap()).collect::<Vec<_>>(), ["it's", "long"]);
    for words in ["image prune s3://images/vm", "image remove s3://images/vm:v1"] {
        world.run(words).fails(&["nothing was deleted", r"lease release STORE --id 'it'\''s'"]);
    }
    for id in ["it's", "long"] {
        world.run(&format!("lease release s3://images/vm --id {id}")).succeeds();
    }
    world.run("image prune s3://images/vm").succeeds();
    assert_eq!(world.names(".headstart/leases").len(), 1);
}

/// Object stores answer 400 if the credentials have expired.
#[test]
fn an_image_that_an_object_store_denies_is_not_attached_from_the_cache() {
    let Some(world) = World::new() else { return };
    let proxy = FaultProxy::start(world.server.addr());
    let digest = world.scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    let image = format!("s3://images/vm@{digest}");
    let fill = world.attach_at(&proxy.url(), &format!("{image} --fill 1GB/s --metrics 127.0.0.1:0"));
    fill.wait_for("full disk", Metrics::all_is_local);
    fill.detach();
    let manifest = digest.strip_prefix("sha256:").unwrap().to_owned();
    let words = format!("attach {image} --cache ~/cache --nbd unix:~/d.sock");
    for status in [400, 403, 404, 429] {
        proxy.clear_rules();
        proxy.add(FaultRule::new(Fault::status(status)).on_path(&manifest));
        world.run_at(&proxy.url(), &words).fails(&["in the cache", "--cached-although-denied"]);
    }
    world.attach_at(&proxy.url(), &format!("{image} --cached-although-denied")).detach();
    proxy.clear_rules();
    // Without credentials the store is not even asked.
    let mut command = world.scene.command(&words);
    command.envs(S3::environment(&proxy.url())).env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1");
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    CommandRun::of(&words, &mut command).fails(&[
        "no credentials",
        "in the cache",
        "--cached-although-denied",
    ]);
    proxy.add(FaultRule::new(Fault::status(503)).on_path(&manifest));
    assert!(world.attach_at(&proxy.url(), &image).warning().contains("in the cache"));
}
