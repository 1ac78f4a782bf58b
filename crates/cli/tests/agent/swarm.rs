//! Hosts that give each other what they have.

use crate::agent::Agent;
use crate::attached::Attached;
use crate::images::{Web, can_check_bytes, check_bytes, noisy};
use serde_json::Value;

#[test]
fn what_one_host_has_the_next_does_not_ask_the_store_for() {
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
    // One that the agent does not look after, but that asks it.
    let words = format!(
        "{} --cache ~/b-cache --swarm ~/b/swarm.sock --nbd unix:~/b.sock --metrics 127.0.0.1:0",
        web.image()
    );
    let attached = Attached::start(&scene, &words);
    let until = std::time::Instant::now() + crate::attached::PATIENCE;
    while !shares(&second) {
        assert!(
            std::time::Instant::now() < until,
            "the hosts do not find each other: {}",
            second.http("GET /v1/swarm").1
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let before = attached.metrics().sum("headstart_store_bytes_total", &[]);
    check_bytes(&scene, "disk.raw", &attached.uri());
    let metrics = attached.metrics();
    let image = metrics.sum("headstart_image_bytes", &[]);
    let fetched = metrics.sum("headstart_store_bytes_total", &[]) - before;
    assert!(fetched < image / 10.0, "{fetched} of {image} came from the store");
    // Asked for, or sent ahead of need because the other host told what it had.
    let page = second.http("GET /metrics").1;
    let received =
        page.lines().find_map(|line| line.strip_prefix("headstart_agent_swarm_received_bytes_total "));
    let received: f64 = received.unwrap().parse().unwrap();
    assert!(received > image * 0.8, "{received} of {image} came from the other host");
    // Without its agent, it goes on by itself.
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

/// Whether a host shares a blob with another.
fn shares(agent: &Agent<'_>) -> bool {
    let (_, body) = agent.http("GET /v1/swarm");
    let status: Value = serde_json::from_str(&body).unwrap();
    let blobs = status["blobs"].as_array().unwrap();
    !blobs.is_empty() && blobs.iter().all(|blob| blob["peers"].as_u64() > Some(0))
}
