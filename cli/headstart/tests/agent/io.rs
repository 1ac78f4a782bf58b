//! fio with verification, while the agent is killed, restarted and replaced by another program, and the disk's bytes
//! are still on their way from a slow store.

use crate::agent::{Agent, copy_of_program};
use crate::attached::TIMEOUT;
use crate::images::{Web, noisy};
use crate::scene::Scene;
use crate::tools::{find, installed, skipped};
use headstart_testkit::faults::{Fault, FaultRule};
use headstart_testkit::process::Process;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time for which fio runs.
const SECONDS: &str = "8";

/// The longest time for any request, if nothing else keeps the machine busy.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The number of threads on a request's path that other processes may delay: the client and its driver, the disk's
/// threads, the kernel's.
const HANDS: u32 = 4;

/// The longest wait of a thread that writes to a file at intervals, until the test is over.
fn longest_pause(file: &Path, over: &AtomicBool) -> Duration {
    const REST: Duration = Duration::from_millis(10);
    let (mut longest, open) = (Duration::ZERO, File::create(file).unwrap());
    // A test that fails does not set `over`, but removes the file.
    while !over.load(Ordering::Relaxed) && file.exists() {
        let begun = Instant::now();
        std::thread::sleep(REST);
        open.write_all_at(&[0; 4096], 0).unwrap();
        longest = longest.max(begun.elapsed().saturating_sub(REST));
    }
    longest
}

/// Kills, stops, starts and replaces an agent that has this disk, as long as a client is busy with it, and three times
/// at least. The agent finds the disk again each time, and the disk has been there all the while. Returns the longest
/// time that any request may have taken meanwhile.
#[track_caller]
pub(crate) fn comes_and_goes(
    scene: &Scene,
    agent: &mut Agent<'_>,
    disk: &Value,
    mut busy: impl FnMut() -> bool,
) -> Duration {
    let over = Arc::<AtomicBool>::default();
    let (yardstick, is_over) = (scene.path("yardstick"), Arc::clone(&over));
    let others = std::thread::spawn(move || longest_pause(&yardstick, &is_over));
    let replaced = copy_of_program(scene, "headstart-next");
    let mut starts = 0;
    while busy() || starts < 3 {
        std::thread::sleep(Duration::from_millis(300));
        match starts % 3 {
            0 => agent.kill(),
            _ => agent.stop(),
        }
        std::thread::sleep(Duration::from_millis(300));
        if starts % 3 == 2 {
            agent.again_as(&replaced);
        } else {
            agent.again();
        }
        starts += 1;
        let found = agent.disk_that("found again", |disk| disk["state"] == "serving");
        assert_eq!((&found["pid"], &found["restarts"]), (&disk["pid"], &Value::from(0)), "{found}");
        assert_eq!(found["adopted"], true);
    }
    over.store(true, Ordering::Relaxed);
    PAUSE_MAX + HANDS * others.join().unwrap()
}

/// Runs fio on a writable disk of an agent, while the agent comes and goes. Every byte is read again and compared; no
/// request fails, and none takes long.
fn nobody_notices(way: &str, engine: &[String]) {
    let scene = noisy(48);
    // The file that is mounted over.
    std::fs::write(scene.path("vm.raw"), "").unwrap();
    let Some(web) = Web::before(&scene) else { return };
    web.proxy.add(FaultRule::new(Fault::Slow(2_000_000)).on_path("/blobs/"));
    let mut agent = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0");
    let disk = agent.attach(&format!("vm={} --writable ~/vm {way}", web.image()));
    let mut command = Command::new(find("fio").unwrap());
    command.args(engine).current_dir(scene.path("")).args([
        "--name=io",
        "--rw=randrw",
        "--bs=4k",
        "--size=48m",
        "--time_based",
        "--runtime",
        SECONDS,
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_backlog=64",
        "--verify_state_save=0",
        "--rate_iops=400",
        "--output-format=json",
        "--output=fio.json",
    ]);
    let mut fio = Process::start(&mut command);
    let pause_max = comes_and_goes(&scene, &mut agent, &disk, || fio.is_running());
    assert_eq!(fio.end(TIMEOUT).code(), Some(0), "{fio}");
    let report: Value = serde_json::from_slice(&scene.bytes("fio.json")).unwrap();
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0);
    for kind in ["read", "write"] {
        let longest = Duration::from_nanos(job[kind]["clat_ns"]["max"].as_u64().unwrap());
        assert!(job[kind]["total_ios"].as_u64().unwrap() > 100, "{job}");
        assert!(longest < pause_max, "a {kind} took {longest:?} of {pause_max:?}");
    }
    assert_eq!(agent.detach("vm")["state"], "detached");
}

#[test]
fn over_nbd_nobody_notices_the_agent() {
    if !installed(&["fio"]) {
        return;
    }
    let engines = Command::new(find("fio").unwrap()).arg("--enghelp").output().unwrap();
    if !String::from_utf8_lossy(&engines.stdout).contains("nbd") {
        return skipped("this fio has no NBD engine");
    }
    let engine = ["--ioengine=nbd", "--uri=nbd+unix:///vm?socket=d.sock", "--iodepth=8"];
    nobody_notices("--nbd unix:~/d.sock", &engine.map(str::to_owned));
}

#[test]
fn over_fuse_nobody_notices_the_agent() {
    if !installed(&["fio"]) {
        return;
    }
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return skipped("/dev/fuse cannot be opened");
    }
    let engine = ["--ioengine=psync", "--filename=vm.raw", "--direct=1", "--overwrite=1"];
    nobody_notices("--fuse ~/vm.raw", &engine.map(str::to_owned));
}
