//! A virtual machine on a vhost-user-blk disk of an agent, while the agent comes and goes, and while the disk's own
//! process is killed.
//!
//! The machine's writes are compared with the expected ones when it has ended.

use crate::agent::Agent;
use crate::attached::Attached;
use crate::guest::{Machine, make_bootable_for};
use crate::images::{Web, can_check_bytes};
use crate::io::comes_and_goes;
use crate::scene::Scene;
use crate::tools::installed;
use headstart_testkit::faults::{Fault, FaultRule};
use rustix::process::{Pid, Signal, kill_process};

/// A scene with an image of a machine that runs for `seconds`.
fn bootable(seconds: u32) -> Scene {
    let scene = Scene::new();
    make_bootable_for(&scene, seconds);
    scene.ok("image import disk.raw file://~/store:v1");
    scene
}

/// Checks that the disk has the writes of `rounds` rounds.
#[track_caller]
fn check_rounds(scene: &Scene, words: &str, rounds: u64) {
    let attached = Attached::start(scene, &format!("{words} --cache ~/a-cache --nbd unix:~/check.sock"));
    crate::guest::check_rounds(scene, &attached.uri(), rounds);
    attached.detach();
}

/// The place of the writable layer: in memory if possible, because each write of a driver that does not flush is made
/// durable, and the time of a busy disk for that is not to be measured.
fn writable() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn can_run() -> bool {
    installed(&["qemu-system-x86_64"]) && can_check_bytes()
}

#[test]
fn over_vhost_user_nobody_notices_the_agent() {
    if !can_run() {
        return;
    }
    let (scene, memory) = (bootable(8), writable());
    let Some(web) = Web::before(&scene) else { return };
    web.proxy.add(FaultRule::new(Fault::Slow(2_000_000)).on_path("/blobs/"));
    let words = format!("{} --writable {}/vm", web.image(), memory.path().display());
    let mut agent = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0");
    let disk = agent.attach(&format!("vm={words} --vhost-user ~/v.sock"));
    let mut machine = Machine::boot(&scene, "v.sock");
    machine.wait_for_rounds(1);
    let pause_max = comes_and_goes(&scene, &mut agent, &disk, || machine.is_running());
    let (rounds, longest) = machine.end();
    assert_eq!(agent.detach("vm")["state"], "detached");
    assert!(rounds > 50 && longest < pause_max, "{rounds} rounds, the longest {longest:?} of {pause_max:?}");
    check_rounds(&scene, &words, rounds);
}

/// The disk's own process dies in the middle, with the agent there and without: the guest's requests are in the record
/// of requests in flight, and the next process takes them up.
#[test]
fn over_vhost_user_a_killed_disk_goes_on() {
    if !can_run() {
        return;
    }
    // The time is long enough for three restarts on a busy machine.
    let (scene, memory) = (bootable(20), writable());
    let Some(web) = Web::before(&scene) else { return };
    let words = format!("{} --writable {}/vm", web.image(), memory.path().display());
    let mut agent = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0");
    let disk = agent.attach(&format!("vm={words} --vhost-user ~/v.sock"));
    let mut machine = Machine::boot(&scene, "v.sock");
    let mut pid = disk["pid"].as_i64().unwrap();
    for restarts in 1..=3 {
        let rounds = machine.rounds();
        machine.wait_for_rounds(rounds + 20);
        if restarts == 2 {
            agent.kill();
        }
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
        if restarts == 2 {
            agent.again();
        }
        let again = agent.disk_that("served again", |disk| disk["state"] == "serving" && disk["pid"] != pid);
        pid = again["pid"].as_i64().unwrap();
    }
    let (rounds, _) = machine.end();
    assert_eq!(agent.detach("vm")["state"], "detached");
    check_rounds(&scene, &words, rounds);
}
