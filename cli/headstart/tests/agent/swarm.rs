//! Hosts that give each other their chunks.

use crate::agent::Agent;
use crate::attached::{Attached, Metrics, TIMEOUT};
use crate::images::{Web, can_check_bytes, check_bytes, noisy, tool};
use crate::scene::Scene;
use headstart_testkit::wait::{Shown, wait_for, wait_until};
use serde_json::Value;

#[test]
fn chunks_of_one_host_are_not_requested_from_the_store_by_the_next() {
    let scene = noisy(8);
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let first = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0");
    let join = format!("--plain b --listen 127.0.0.1:0 --join {}", first.ready["address"].as_str().unwrap());
    let mut second = Agent::start(&scene, "b", &join);
    let disk = first.attach(&format!("vm={} --nbd unix:~/a.sock", web.image()));
    check_bytes(&scene, "disk.raw", disk["ready"]["ways"][0]["uri"].as_str().unwrap());
    // A disk that the agent does not look after, but that asks it for chunks.
    let words = format!(
        "{} --cache ~/b-cache --swarm ~/b/swarm.sock --nbd unix:~/b.sock --metrics 127.0.0.1:0",
        web.image()
    );
    let attached = Attached::start(&scene, &words);
    wait_for_peers(&second);
    let before = attached.metrics().sum("headstart_store_bytes_total", &[]);
    check_bytes(&scene, "disk.raw", &attached.uri());
    let metrics = attached.metrics();
    let image = metrics.sum("headstart_image_bytes", &[]);
    let fetched = metrics.sum("headstart_store_bytes_total", &[]) - before;
    // A disk does not wait for a host that is slow: on a busy machine that happens.
    assert!(fetched < image / 4.0, "{fetched} of {image} came from the store");
    // The chunks were requested, or sent ahead of need because the other host advertised them.
    let page = second.http("GET /metrics").1;
    let received =
        page.lines().find_map(|line| line.strip_prefix("headstart_agent_swarm_received_bytes_total "));
    let received: f64 = received.unwrap().parse().unwrap();
    assert!(received > image * 0.7, "{received} of {image} came from the other host");
    let status = scene.json(&format!("swarm status {}", second.option()));
    assert_eq!((status["name"].as_str(), status["peers"][0]["name"].as_str()), (Some("b"), Some("a")));
    assert!(status["counters"]["received_bytes"].as_u64() > Some(0), "{status}");
    let said = scene.ok(&format!("swarm status {}", second.option())).stdout;
    assert!(
        said.starts_with("b: agent at 127.0.0.1:") && said.contains("\na: agent at 127.0.0.1:"),
        "{said}"
    );
    assert!(said.contains("\nof what its disks and pinned images lacked, "), "{said}");
    // Without its agent, the disk goes on by itself.
    second.kill();
    let lost =
        attached.wait_for("that the agent is missed", |m| m.sum("headstart_swarm_connected", &[]) == 0.0);
    assert_eq!(lost.sum("headstart_swarm_lost_connections_total", &[]), 1.0);
    check_bytes(&scene, "disk.raw", &attached.uri());
    second.again();
    attached.wait_for("that the agent is found again", |m| m.sum("headstart_swarm_connected", &[]) == 1.0);
    attached.detach();
    first.detach("vm");
}

/// An image without a plan: a disk without reads preloads the blocks that a disk of another host read.
#[test]
fn reads_of_a_disk_are_preloaded_by_a_disk_of_another_host() {
    let scene = noisy(8);
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let mut tracker = Agent::start(&scene, "t", "--plain t --listen 127.0.0.1:0 --tracker");
    let join = format!("--join {}", tracker.ready["address"].as_str().unwrap());
    let first = Agent::start(&scene, "a", &format!("--plain a --listen 127.0.0.1:0 {join}"));
    let second = Agent::start(&scene, "b", &format!("--plain b --listen 127.0.0.1:0 {join}"));
    let attach = |name: &str, words: &str| {
        let image = web.image();
        Attached::start(
            &scene,
            &format!(
                "{image} --cache ~/{name}-cache --swarm ~/{name}/swarm.sock --nbd unix:~/{name}.sock \
                 --metrics 127.0.0.1:0 {words}"
            ),
        )
    };
    let read = attach("a", "");
    let (unread, lazy) = (attach("b", ""), attach("t", "--policy none"));
    check_bytes(&scene, "disk.raw", &read.uri());
    let by_hints = |metrics: &Metrics| {
        let plan = metrics.samples.iter().find(|sample| sample.name == "headstart_plan_info");
        plan.is_some_and(|plan| plan.label("plan") == Some("hints"))
    };
    unread.wait_for("preloading of what the other disk read", |metrics| {
        let [image, local] =
            ["headstart_image_bytes", "headstart_image_local_bytes"].map(|name| metrics.sum(name, &[]));
        by_hints(metrics) && local > image * 0.9
    });
    // A disk that preloads nothing gets no hints.
    assert!(!by_hints(&lazy.metrics()));
    assert!(counted(&first, "first_reads_total") > 0.0 && counted(&second, "hints_total") > 0.0);
    assert_eq!(counted(&tracker, "tracked_images"), 1.0);
    let report = unread.detach();
    assert_eq!(report["preloads"][0]["plan"], "hints", "{report}");
    read.detach();
    lazy.detach();
    // The tracker's counts can be learned from, if nothing was recorded, and once; from the tracker, or from its file.
    let (status, told) = tracker.http("GET /v1/counts");
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (status, told.as_array().unwrap().len(), told[0]["image"].as_str().unwrap().len()),
        (200, 1, 16)
    );
    let counted_by = |source: &str| {
        let words = format!("train --counts ~/{source} --image {} -o ~/plans", web.image());
        scene.json(&words)["counted"][0]["disks"].clone()
    };
    let asked = counted_by("t/agent.sock");
    tracker.stop();
    assert_eq!(asked, counted_by("t/tracker"));
    scene.fails(
        &format!("train --counts ~/b/agent.sock --image {} -o ~/p", web.image()),
        &["not a tracker", "--tracker"],
    );
    let words = format!("train --counts ~/t/tracker --image {} --learned ~/learned -o ~/plans", web.image());
    let report = scene.json(&words);
    let taught = &report["counted"][0];
    assert!(taught["disks"].as_u64() >= Some(2) && taught["new"] == taught["boots"], "{report}");
    assert_eq!(report["images"][0]["traces"], taught["boots"], "{report}");
    let plans = report["images"][0]["groups"][0]["plans"].as_array().unwrap();
    assert!(plans.last().unwrap()["bytes"].as_u64() > Some(4 << 20), "{report}");
    assert_eq!(scene.json(&words)["counted"][0]["new"], 0);
    scene.fails("train --counts ~/t/tracker -o ~/plans", &["--image or --publish"]);
    // The tracker keeps its counts.
    tracker.again();
    assert_eq!(counted(&tracker, "tracked_images"), 1.0);
}

/// A number of an agent's part in the swarm.
fn counted(agent: &Agent<'_>, name: &str) -> f64 {
    let page = agent.http("GET /metrics").1;
    let name = format!("headstart_agent_swarm_{name} ");
    page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

/// `true` if a host shares a blob with another.
fn shares(agent: &Agent<'_>) -> bool {
    let (_, body) = agent.http("GET /v1/swarm");
    let status: Value = serde_json::from_str(&body).unwrap();
    let blobs = status["blobs"].as_array().unwrap();
    !blobs.is_empty() && blobs.iter().all(|blob| blob["peers"].as_u64() > Some(0))
}

/// Waits until other hosts share all blobs of a host, and its disks know that: a disk without such a host for a second
/// does not ask, and fetches to the end the ranges that it begins then.
#[track_caller]
pub(crate) fn wait_for_peers(agent: &Agent<'_>) {
    wait_for("other hosts share its blobs", TIMEOUT, || {
        if shares(agent) { Ok(()) } else { Err(Shown(agent.http("GET /v1/swarm").1)) }
    });
    std::thread::sleep(std::time::Duration::from_secs(1));
}

#[test]
fn an_agent_without_a_swarm_has_no_part_in_one() {
    let scene = noisy(1);
    let agent = Agent::start(&scene, "a", "");
    let words = format!("swarm status {}", agent.option());
    scene.fails(&words, &["in no swarm", "--credentials"]);
}

/// Bytes of the blobs that a host takes part in, here and in all.
fn local(agent: &Agent<'_>) -> (u64, u64) {
    let (_, body) = agent.http("GET /v1/swarm");
    let status: Value = serde_json::from_str(&body).unwrap();
    let blobs = status["blobs"].as_array().unwrap();
    let sum = |name: &str| blobs.iter().map(|blob| blob[name].as_u64().unwrap()).sum();
    (sum("local_bytes"), sum("len"))
}

/// Hosts by these names, all of which know each other.
pub(crate) fn hosts<'s>(scene: &'s Scene, names: &[&'static str]) -> Vec<Agent<'s>> {
    hosts_with(scene, names, "")
}

pub(crate) fn hosts_with<'s>(scene: &'s Scene, names: &[&'static str], more: &str) -> Vec<Agent<'s>> {
    let mut all: Vec<Agent<'s>> = Vec::new();
    for name in names {
        let join = all.first().map(|first| format!("--join {}", first.ready["address"].as_str().unwrap()));
        let words = format!("--plain {name} --listen 127.0.0.1:0 {more} {}", join.unwrap_or_default());
        all.push(Agent::start(scene, name, &words));
    }
    let is_alone = |agent: &Agent<'_>| {
        let (_, body) = agent.http("GET /v1/swarm");
        let status: Value = serde_json::from_str(&body).unwrap();
        status["peers"].as_array().unwrap().len() + 1 < names.len()
    };
    wait_until("the hosts have found each other", TIMEOUT, || !all.iter().any(is_alone));
    all
}

#[test]
fn an_image_is_warm_where_it_is_said() {
    let scene = noisy(4);
    let Some(web) = Web::before(&scene) else { return };
    let agents = hosts(&scene, &["a", "b", "c"]);
    let option = agents[0].option();
    let words = format!("swarm warm {} {option}", web.image());
    scene.fails(&format!("{words} --whole --on x"), &["x: ", "not connected", "swarm status"]);
    scene.fails(&words, &["its boots read are not known", "--whole"]);
    scene.fails(&format!("{words} --whole --roots"), &["no root", "--root"]);
    let done = scene.json(&format!("{words} --whole --on a --on b"));
    let hosts = done["hosts"].as_array().unwrap();
    assert_eq!(hosts.iter().map(|host| host["host"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
    for (host, agent) in hosts.iter().zip(&agents) {
        let (here, all) = local(agent);
        assert!(all > 0 && here == all, "{here} of {all}");
        assert_eq!((host["bytes"].as_u64(), host["lacking_bytes"].as_u64()), (Some(all), Some(0)), "{done}");
    }
    assert_eq!(local(&agents[2]), (0, 0));
    // A host that is not the target of the first order gets it by an order of another, too.
    let said = scene.ok(&format!("{words} --whole --on c")).stdout;
    assert!(said.contains("\nc: ") && said.contains("are there"), "{said}");
    let (here, all) = local(&agents[2]);
    assert!(all > 0 && here == all, "{here} of {all}");
}

/// A root has no disk of the image: its agents name it, and the root fetches the chunks that they lack; it also finds
/// the chunks in its cache when it restarts.
#[test]
fn a_root_brings_what_its_agents_have() {
    let scene = noisy(8);
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let common = "--listen 127.0.0.1:0 --topology roots --no-homes";
    let image = web.image();
    let (store, _tag) = image.rsplit_once(':').unwrap();
    // No disk is attached at the root: it is given the store that its agents may name.
    let words = format!("--plain a --root --agents 8 --allow-store {store} {common}");
    let mut root = Agent::start(&scene, "a", &words);
    let port = root.ready["address"].as_str().unwrap().to_owned();
    let start =
        |name: &'static str| Agent::start(&scene, name, &format!("--plain {name} {common} --join {port}"));
    let read = |agent: &Agent<'_>, name: &str| {
        let knows_root = || {
            let status: Value = serde_json::from_str(&agent.http("GET /v1/swarm").1).unwrap();
            status["peers"].as_array().unwrap().iter().any(|peer| peer["role"] == "root")
        };
        wait_until(&format!("{name} knows a root"), TIMEOUT, knows_root);
        let disk = agent.attach(&format!("vm={} --nbd unix:~/{name}.sock", web.image()));
        wait_for_peers(agent);
        check_bytes(&scene, "disk.raw", disk["ready"]["ways"][0]["uri"].as_str().unwrap());
    };
    let sent = || web.reads(&scene).sent();
    let b = start("b");
    read(&b, "b");
    let image = sent();
    // The root has the chunks of one agent for the next one, which asks no other host.
    b.detach("vm");
    let c = start("c");
    read(&c, "c");
    c.detach("vm");
    assert!(sent() - image < image / 2, "{} after {image} came from the store", sent() - image);
    let (here, all) = local(&root);
    assert!(here > all / 2, "the root has {here} of {all}");
    // The root restarts, and so does an agent without any chunks.
    drop((b, c));
    root.stop();
    root.again();
    let join = root.ready["address"].as_str().unwrap();
    let d = Agent::start(&scene, "d", &format!("--plain d {common} --join {join}"));
    let before = sent();
    read(&d, "d");
    assert!(sent() - before < image / 2, "{} after {image} came from the store", sent() - before);
    d.detach("vm");
}

/// A root that has seen an agent's reads sends the next agent the chunks that it will read.
#[test]
fn a_root_pushes_chunks_before_they_are_requested() {
    let scene = noisy(32);
    let Some(web) = Web::before(&scene) else { return };
    if !crate::tools::installed(&["qemu-io"]) {
        return;
    }
    // Without a threshold, all prefetched chunks were sent unasked.
    let common = "--listen 127.0.0.1:0 --topology roots --threshold 0";
    let image = web.image();
    let (store, _tag) = image.rsplit_once(':').unwrap();
    let words = format!("--plain a --root --push 64 --allow-store {store} {common}");
    let root = Agent::start(&scene, "a", &words);
    let join = format!("--join {}", root.ready["address"].as_str().unwrap());
    // A part of each block, in an order that only an earlier observation can foresee.
    let reads: Vec<u64> = (0..16).map(|n| (n * 7 + 3) % 16 * (2 << 20) + (512 << 10)).collect();
    for (name, reads) in [("b", &reads[..]), ("c", &reads[..4])] {
        let agent = Agent::start(&scene, name, &format!("--plain {name} {common} {join}"));
        let disk = agent.attach(&format!("vm={} --policy none --nbd unix:~/{name}.sock", web.image()));
        wait_for_peers(&agent);
        let uri = disk["ready"]["ways"][0]["uri"].as_str().unwrap();
        for at in reads {
            tool(&scene, "qemu-io", &["-r", "-f", "raw", uri, "-c", &format!("read {at} 64k")]);
        }
        if name == "c" {
            wait_for("chunks are sent ahead", TIMEOUT, || {
                let is_sent = counted(&agent, "prefetched_chunks_total") >= 4.0;
                if is_sent { Ok(()) } else { Err(Shown(agent.http("GET /v1/swarm").1)) }
            });
        }
        agent.detach("vm");
    }
}

/// In every topology, all hosts get every byte, and the store is spared.
#[test]
fn every_topology_brings_an_image() {
    for topology in ["ring", "similar:2", "tree:2", "random:1"] {
        let scene = noisy(4);
        let Some(web) = Web::before(&scene) else { return };
        if !can_check_bytes() {
            return;
        }
        let agents = hosts_with(&scene, &["a", "b", "c"], &format!("--topology {topology}"));
        let attach = |agent: &Agent<'_>, name: &str| {
            agent.attach(&format!("vm={} --nbd unix:~/{name}.sock", web.image()))
        };
        let disks = [attach(&agents[0], "a"), attach(&agents[1], "b"), attach(&agents[2], "c")];
        agents.iter().for_each(wait_for_peers);
        let before = web.reads(&scene).sent();
        for disk in &disks {
            check_bytes(&scene, "disk.raw", disk["ready"]["ways"][0]["uri"].as_str().unwrap());
        }
        let sent = web.reads(&scene).sent() - before;
        let image = local(&agents[0]).1;
        assert!(sent < image * 2, "{topology}: {sent} of {image} came from the store, for three");
        agents.iter().for_each(|agent| drop(agent.detach("vm")));
    }
}

#[test]
fn a_root_knows_after_a_restart_what_was_asked_of_it() {
    let scene = noisy(4);
    let Some(web) = Web::before(&scene) else { return };
    let common = "--listen 127.0.0.1:0 --topology roots";
    let mut root = Agent::start(&scene, "a", &format!("--plain a --root --push 32 {common}"));
    let join = root.ready["address"].as_str().unwrap().to_owned();
    let agent = Agent::start(&scene, "b", &format!("--plain b {common} --join {join}"));
    scene.ok(&format!("swarm warm {} --whole {}", web.image(), root.option()));
    let path = scene.path("a/recent");
    if !can_check_bytes() {
        return;
    }
    let disk = agent.attach(&format!("vm={} --nbd unix:~/b.sock", web.image()));
    wait_for_peers(&agent);
    check_bytes(&scene, "disk.raw", disk["ready"]["ways"][0]["uri"].as_str().unwrap());
    root.stop();
    let recent = std::fs::read(&path).unwrap();
    assert!(recent.starts_with(b"headstart recent 1\n") && recent.len() > 30, "{} bytes", recent.len());
    // It begins with that list, and would write it again.
    root.again();
    std::fs::remove_file(&path).unwrap();
    root.stop();
    assert_eq!(std::fs::read(&path).unwrap(), recent);
    agent.detach("vm");
}
