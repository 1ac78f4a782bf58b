//! Bits that flip in one host's cache: no other host ever gets them.

use crate::agent::Agent;
use crate::cluster::{knows, wait_for};
use crate::flipped::flip;
use crate::images::{Web, can_check_bytes, check_bytes};
use crate::scene::Scene;
use crate::swarm::wait_for_peers;
use headstart_testkit::wait::wait_until;
use serde_json::Value;
use std::time::Duration;

/// An image without frames, whose bytes only its hash tree proves, and its layer.
fn bare() -> (Scene, String) {
    let scene = Scene::new();
    std::fs::write(scene.path("disk.raw"), crate::disk::noise(4, 4 << 20)).unwrap();
    scene.ok("image import disk.raw file://~/store:v1 --codec none");
    let inspected = scene.json("image inspect file://~/store:v1");
    let layer =
        inspected["layers"][0]["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned();
    (scene, layer)
}

fn uri(disk: &Value) -> &str {
    disk["ready"]["ways"][0]["uri"].as_str().unwrap()
}

/// A metric of an agent.
#[track_caller]
fn metric(agent: &Agent<'_>, name: &str) -> u64 {
    let page = agent.http("GET /metrics").1;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name}: {page}"))
}

#[test]
fn a_bit_that_flips_in_one_cache_never_reaches_another_host() {
    let (scene, layer) = bare();
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let a = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0");
    let join = format!("--join {}", a.ready["address"].as_str().unwrap());
    let first = a.attach(&format!("vm={} --nbd unix:~/a.sock", web.image()));
    check_bytes(&scene, "disk.raw", uri(&first));
    for place in [1, 2, 3] {
        flip(&scene.path("a-cache"), &layer, |len| len * place / 4);
    }
    let b = Agent::start(&scene, "b", &format!("--plain b --listen 127.0.0.1:0 {join}"));
    wait_for("connected", &b, knows("a"));
    let second = b.attach(&format!("vm={} --nbd unix:~/b.sock", web.image()));
    wait_for_peers(&b);
    check_bytes(&scene, "disk.raw", uri(&second));
    assert!(metric(&b, "headstart_agent_swarm_received_bytes_total") > 1 << 20);
    assert_eq!(metric(&b, "headstart_agent_swarm_corrupt_chunks_total"), 0);
    assert_eq!(metric(&b, "headstart_agent_swarm_dropped_corrupt_total"), 0);
    // The host itself has found out by that, and reads the right bytes again.
    assert_eq!(metric(&a, "headstart_agent_cache_damaged_bytes_total"), 3 * 16384);
    check_bytes(&scene, "disk.raw", uri(&first));
    a.detach("vm");
    b.detach("vm");
}

#[test]
fn an_agent_looks_through_its_cache_where_it_is_told_to() {
    let (scene, layer) = bare();
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let words = format!("vm={} --nbd unix:~/a.sock", web.image());
    {
        let agent = Agent::start(&scene, "a", "");
        check_bytes(&scene, "disk.raw", uri(&agent.attach(&words)));
        agent.detach("vm");
    }
    flip(&scene.path("a-cache"), &layer, |len| len / 2);
    let agent = Agent::start(&scene, "a", "--scrub-rate 100MB/s");
    let rounds = || metric(&agent, "headstart_agent_cache_scrub_rounds_total");
    wait_until("all of the cache was looked at", Duration::from_secs(60), || rounds() > 0);
    assert_eq!(metric(&agent, "headstart_agent_cache_damaged_bytes_total"), 16384);
    assert!(metric(&agent, "headstart_agent_cache_scrubbed_bytes_total") > 4 << 20);
    check_bytes(&scene, "disk.raw", uri(&agent.attach(&words)));
    agent.detach("vm");
}
