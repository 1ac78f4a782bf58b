//! The orders of a host, and their refusals by others, as a user sees them: real certificates, no disk attached.

use crate::agent::Agent;
use crate::attached::TIMEOUT;
use crate::cluster::{knows, start, wait_for};
use crate::images::{Web, noisy};
use crate::scene::Scene;
use headstart_testkit::faults::{Fault, FaultRule};
use headstart_testkit::registry::{Registry, RegistryAccess};
use serde_json::Value;
use std::time::Instant;

/// An operator and another host, which may fetch from `allowed`.
fn hosts<'s>(scene: &'s Scene, allowed: &str) -> (Agent<'s>, Agent<'s>) {
    scene.ok("swarm init ~/cluster --host a --host b --operator a");
    let a = start(scene, "a", "cluster/hosts/a", "");
    let join = format!("--join {} {allowed}", a.ready["address"].as_str().unwrap());
    let b = start(scene, "b", "cluster/hosts/b", &join);
    wait_for("connected", &a, knows("b"));
    wait_for("connected", &b, knows("a"));
    (a, b)
}

/// The one host's part of a report, whether the command succeeded or not.
fn only(scene: &Scene, words: &str, host: &str) -> Value {
    let run = scene.run(&format!("{words} --json"));
    let report: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("no report: {run}"));
    let hosts = report["hosts"].as_array().unwrap();
    hosts.iter().find(|part| part["host"] == host).unwrap_or_else(|| panic!("{report}")).clone()
}

#[test]
fn a_host_fetches_for_others_only_from_stores_that_it_was_told_of() {
    let scene = noisy(4);
    let Some(web) = Web::before(&scene) else { return };
    let (a, b) = hosts(&scene, "");
    let (image, of_a) = (web.image(), a.option());
    // No host has it, and the other host does not know the store: it reports that, and the command shows it.
    let refused = scene.run(&format!("swarm warm {image} --whole --on b {of_a}"));
    assert!(refused.status != Some(0), "{refused}");
    let said = format!("{}{}", refused.stdout, refused.stderr);
    assert!(said.contains("b: ") && said.contains("--allow-store"), "{refused}");
    // This host's own agent may use it, and then the other host gets all of it from there.
    scene.ok(&format!("swarm warm {image} --whole {of_a}"));
    let part = only(&scene, &format!("swarm warm {image} --whole --on b {of_a}"), "b");
    assert_eq!((&part["lacking_bytes"], &part["error"]), (&0.into(), &Value::Null), "{part}");
    // The same holds for a pin.
    scene.ok(&format!("swarm pin {image} --copies 2 --on a --on b {of_a}"));
    // A host that is not an operator orders nothing from others, by the command or by itself.
    let of_b = b.option();
    scene.fails(&format!("swarm pin {image} --copies 1 {of_b}"), &["`b` is not an operator", "--operator b"]);
    scene.fails(&format!("swarm unpin {image} {of_b}"), &["`b` is not an operator"]);
    let part = only(&scene, &format!("swarm warm {image} --whole --on a {of_b}"), "a");
    assert!(part["error"].as_str().unwrap().contains("role `operator`"), "{part}");
    // It may do the same for itself.
    scene.ok(&format!("swarm warm {image} --whole {of_b}"));
}

#[test]
fn a_host_that_was_told_of_a_store_fetches_from_there() {
    let scene = noisy(2);
    let Some(web) = Web::before(&scene) else { return };
    let image = web.image();
    let store = image.rsplit_once(':').unwrap().0.to_owned();
    let (a, _b) = hosts(&scene, &format!("--allow-store {store}"));
    let part = only(&scene, &format!("swarm warm {image} --whole --on b {}", a.option()), "b");
    assert_eq!((&part["lacking_bytes"], &part["error"]), (&0.into(), &Value::Null), "{part}");
    for prefix in ["file:///images", "http://h/a/../b", "http://user@h/a"] {
        let run = scene.run(&format!("agent --plain x --allow-store {prefix}"));
        assert!(run.status == Some(2) && run.stderr.contains("beginning of a store's name"), "{run}");
    }
}

#[test]
fn an_agent_that_asks_for_hash_trees_attaches_what_has_them() {
    let scene = noisy(1);
    let Some(web) = Web::before(&scene) else { return };
    let agent = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0 --require-tree");
    // The disk may set the option, too.
    let disk = agent.attach(&format!("vm={} --require-tree --nbd unix:~/d.sock", web.image()));
    assert!(disk["ready"]["ways"][0]["uri"].is_string(), "{disk}");
    agent.detach("vm");
}

#[test]
fn an_agent_may_attach_what_is_cached_although_it_is_denied() {
    let scene = noisy(1);
    let Some(web) = Web::before(&scene) else { return };
    let words = format!("vm={} --nbd unix:~/d.sock", web.image());
    let mut agent = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0");
    agent.attach(&format!("{words} --fill 1GB/s"));
    let is_whole = |blob: &Value| blob["local_bytes"] == blob["len"];
    wait_for("filled", &agent, |part| {
        let blobs = part["blobs"].as_array().unwrap();
        !blobs.is_empty() && blobs.iter().all(is_whole)
    });
    agent.detach("vm");
    web.proxy.add(FaultRule::new(Fault::status(403)));
    scene.fails(&format!("attach {words} {}", agent.option()), &["403", "--cached-although-denied"]);
    agent.stop();
    drop(agent);
    let agent = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0 --cached-although-denied");
    let disk = agent.attach(&words);
    assert!(disk["ready"]["ways"][0]["uri"].is_string(), "{disk}");
    agent.detach("vm");
}

/// The cause travels from the host that cannot fetch to the operator that gave the order.
#[test]
fn a_host_says_why_it_cannot_fetch() {
    let scene = noisy(1);
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let plain = format!("--plain-http {}", registry.host());
    let image = format!("oci://{}/vm/disk:v1", registry.host());
    scene.ok(&format!("image push file://~/store:v1 {image} {plain}"));
    // The host may use the store, and does not know that it has no TLS.
    let (a, _b) = hosts(&scene, &format!("--allow-store oci://{}/vm", registry.host()));
    let of_a = a.option();
    for words in [
        format!("swarm warm {image} --whole --on b {plain} {of_a}"),
        format!("swarm pin {image} --copies 1 --on b {plain} {of_a}"),
    ] {
        let part = only(&scene, &words, "b");
        assert!(part["lacking_bytes"].as_u64() > Some(0), "{part}");
        let why = part["error"].as_str().unwrap_or_else(|| panic!("{part}"));
        assert!(why.contains("--plain-http") && why.contains(&registry.host()), "{why}");
        assert!(!why.contains(scene.path("").to_str().unwrap()) && why.len() <= 1024, "{why}");
        let run = scene.run(&words);
        let line = format!("{}{}", run.stdout, run.stderr);
        assert!(
            line.contains("b: of ") && line.contains("could not be had: ") && line.contains(why),
            "{run}"
        );
    }
}

/// Requests can make a daemon warn as often as they like, and fill no log.
#[test]
fn warnings_that_requests_cause_are_limited() {
    let scene = Scene::new();
    let agent = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0");
    let hex = "ab".repeat(32);
    // A store that is not valid, and a part that does not exist.
    let order = serde_json::json!({
        "digest": format!("sha256:{hex}"), "len": 65_536, "tree_root": hex, "tree_digest": format!("sha256:{hex}"),
        "tree_len": 1024, "store": "nonsense", "parts": [[1_u64 << 40, 1]],
    });
    let request = format!("POST /v1/warm\n{}", serde_json::json!({ "blobs": [order] }));
    let began = Instant::now();
    for _ in 0..400 {
        assert_eq!(agent.http(&request).0, 200);
    }
    let mut warned = 0;
    let until = Instant::now() + TIMEOUT;
    while warned < 100 && Instant::now() < until {
        let said = agent.output();
        warned = said.lines().filter(|line| line.contains("cannot fetch for others")).count() as u64;
    }
    let allowed = 100 + began.elapsed().as_secs() / 3 + 1;
    assert!((100..=allowed).contains(&warned), "{warned} of {allowed}");
}
