//! Blobs for other programs, over HTTP.

use crate::agent::Agent;
use crate::attached::TIMEOUT;
use crate::images::{Web, noisy};
use crate::scene::Scene;
use headstart_testkit::wait::wait_until;
use std::io::{Read, Write};
use std::net::TcpStream;

/// The bytes of a URL from `from` up to and including `to`.
#[track_caller]
fn get(url: &str, from: usize, to: usize) -> Vec<u8> {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let request = format!(
        "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nRange: bytes={from}-{to}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let bytes = answer.split_off(head + 4);
    let head = String::from_utf8(answer).unwrap();
    assert!(head.starts_with("HTTP/1.1 206 "), "{head}");
    bytes
}

#[test]
fn another_program_gets_blobs_of_attached_images_from_here() {
    let scene = noisy(4);
    let Some(web) = Web::before(&scene) else { return };
    let agent = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0 --range-proxy 127.0.0.1:0");
    agent.attach(&format!("vm={} --nbd unix:~/a.sock", web.image()));
    let layer =
        scene.json("image inspect file://~/store:v1")["layers"][0]["digest"].as_str().unwrap().to_owned();
    let hex = layer.strip_prefix("sha256:").unwrap();
    let blob = std::fs::read(scene.path(&format!("store/blobs/sha256/{hex}"))).unwrap();
    let proxy = agent.ready["range_proxy"].as_str().unwrap();
    let url = format!("{proxy}/dadip2p/{}/blobs/sha256/{hex}", web.proxy.url());
    let served = || {
        let page = agent.http("GET /metrics").1;
        let line =
            page.lines().find_map(|line| line.strip_prefix("headstart_agent_proxy_served_bytes_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    // The disk may not have reported its chunks to the agent yet.
    wait_until("bytes of the agent are served", TIMEOUT, || {
        assert!(get(&url, 0, 99_999) == blob[..100_000]);
        served() > 0
    });
    let before = served();
    assert!(get(&url, 1_000_000, 2_999_999) == blob[1_000_000..3_000_000]);
    assert_eq!(served() - before, 2_000_000);
    let asked = web.reads(&scene).sent();
    assert!(get(&url, 1_000_000, 2_999_999) == blob[1_000_000..3_000_000]);
    assert_eq!(web.reads(&scene).sent(), asked, "it is here by now");
}

#[test]
fn a_range_proxy_is_for_this_host_and_needs_a_swarm() {
    let scene = Scene::new();
    let words = "agent --dir ~/a --cache ~/c --range-proxy";
    scene.fails(&format!("{words} 127.0.0.1:0"), &["needs a swarm", "--plain on loopback"]);
    let words = format!("{words} 0.0.0.0:0 --plain a --listen 127.0.0.1:0");
    scene.fails(&words, &["0.0.0.0:0", "on this host only"]);
}
