//! The rate of an agent: the bytes that it and its disks fetch from stores together.

use crate::agent::Agent;
use crate::images::{Web, noisy, tool};
use crate::scene::Scene;
use crate::tools::installed;
use serde_json::Value;
use std::time::Instant;

const MIB: u64 = 1 << 20;

/// The seconds of the rate that may come at once, and that may be overdrawn.
const BURST: f64 = 0.25;

/// Reads `mib` MiB of a disk, from a place on.
fn read(scene: &Scene, disk: &Value, from: u64, mib: u64) {
    let uri = disk["ready"]["ways"][0]["uri"].as_str().unwrap();
    let script = format!("for n in range({mib}): h.pread({MIB}, ({from} + n) * {MIB})");
    tool(scene, "nbdsh", &["-u", uri, "-c", &script]);
}

fn seconds(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64()
}

/// The seconds that `mib` MiB take at a rate.
fn at(mib: u64, rate: f64) -> f64 {
    (mib * MIB) as f64 / rate
}

/// The least seconds that they take, if the rate is kept to within a tenth.
fn least(mib: u64, rate: f64) -> f64 {
    (at(mib, rate) - 2.0 * BURST) / 1.1
}

#[test]
fn disks_keep_to_the_rate_of_their_agent_together() {
    // Bytes that are prefetched behind a phase are none of the next phase's.
    let scene = noisy(116);
    let Some(web) = Web::before(&scene) else { return };
    if !installed(&["nbdsh"]) {
        return;
    }
    let (rate, other) = (4e6, 8e6);
    let mut agent = Agent::start(&scene, "a", "--limit-rate 4MB/s");
    let disks = ["one", "two"]
        .map(|name| agent.attach(&format!("{name}={} --nbd unix:~/{name}.sock --policy lazy", web.image())));
    // A single disk has the whole rate. A machine that stands still meanwhile has another try.
    let has_all = [0, 82].into_iter().any(|from| {
        let took = seconds(|| read(&scene, &disks[0], from, 8));
        assert!(took >= least(8, rate), "{took} s");
        took < at(8, rate) * 2.0
    });
    assert!(has_all, "one alone has not all of it");
    // Two disks share the rate.
    let both = |from: u64| {
        seconds(|| {
            std::thread::scope(|scope| {
                for (n, disk) in disks.iter().enumerate() {
                    scope.spawn({
                        let scene = &scene;
                        move || read(scene, disk, from + n as u64 * 8, 8)
                    });
                }
            });
        })
    };
    let took = both(12);
    assert!((least(16, rate)..at(16, rate) * 4.0).contains(&took), "{took} s");
    // The disks keep to the rate without the agent, and see another rate when there is an agent again.
    agent.kill();
    let took = seconds(|| read(&scene, &disks[1], 32, 8));
    assert!(took >= least(8, rate), "{took} s");
    let mut agent = agent.with(" ");
    // Here, too, a machine that stands still has another try.
    let has_more = [44, 100].into_iter().any(|from| both(from) < least(16, rate));
    assert!(has_more, "without a limit the two take as long as with it");
    agent.kill();
    let agent = agent.with("--limit-rate 8MB/s");
    let took = both(64);
    assert!((least(16, other)..at(16, other) * 4.0).contains(&took), "{took} s");
    let found = agent.disks();
    assert!(found.iter().all(|disk| disk["restarts"] == 0 && disk["state"] == "serving"), "{found:?}");
}

/// A disk of the agent that was stopped while it took from the rate keeps no agent from starting.
#[test]
fn a_rate_whose_lock_is_held_keeps_no_agent_from_starting() {
    let scene = Scene::new();
    let mut agent = Agent::start(&scene, "a", "--limit-rate 4MB/s");
    agent.stop();
    let path = scene.path("a/rate");
    let held = std::fs::File::open(&path).unwrap();
    held.lock().unwrap();
    let rate = || f64::from_le_bytes(std::fs::read(&path).unwrap()[8..16].try_into().unwrap());
    assert_eq!(rate(), 4e6);
    let mut agent = agent.with("--limit-rate 8MB/s");
    assert_eq!(rate(), 8e6);
    agent.stop();
    drop(held);
}
