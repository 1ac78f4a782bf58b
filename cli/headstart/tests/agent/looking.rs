//! Programs that only read, over TCP: their answers, and the things that they cannot do to the owner of the daemon.

use crate::agent::Agent;
use crate::attached::{Attached, TIMEOUT};
use crate::cluster::wait_for;
use crate::http::ask;
use crate::images::{Web, noisy};
use crate::scene::Scene;
use crate::tools::skipped;
use headstart_testkit::process::Process;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The status and all of the answer to a request that names the host `host`.
#[track_caller]
fn get_as(url: &str, path: &str, host: &str) -> (u16, String) {
    let address = url.strip_prefix("http://").unwrap().split('/').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

#[track_caller]
fn answers_only_by_names_of_this_host(url: &str, path: &str, also: &str) {
    let port = url.strip_prefix("http://").unwrap().split('/').next().unwrap().rsplit(':').next().unwrap();
    for host in ["127.0.0.1", "localhost", "[::1]", also] {
        assert_eq!(get_as(url, path, &format!("{host}:{port}")).0, 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", ""] {
        let (status, answer) = get_as(url, path, &format!("{host}:{port}"));
        assert!(status == 421 && answer.contains("--http-name"), "{host}: {answer}");
    }
}

#[test]
fn a_page_that_points_its_name_at_this_host_reads_nothing() {
    let scene = noisy(1);
    let agent = Agent::start(&scene, "a", "--http 127.0.0.1:0 --http-name metrics.lan");
    for path in ["/v1/disks", "/v1/swarm", "/metrics", "/openapi.json"] {
        answers_only_by_names_of_this_host(agent.ready["http"].as_str().unwrap(), path, "metrics.lan");
    }
    let words = "harvest serve --json ~/h --size 512M --http 127.0.0.1:0 --http-name metrics.lan";
    let mut harvest = Process::start(&mut scene.command(words));
    let ready = harvest.line("ready", TIMEOUT, |line| line.starts_with("{\"harvest\""));
    let ready: Value = serde_json::from_str(&ready).unwrap();
    answers_only_by_names_of_this_host(ready["http"].as_str().unwrap(), "/v1/status", "metrics.lan");
    let words = "file://~/store:v1 --cache ~/c --no-record --nbd unix:~/n.sock --metrics localhost:0";
    let attached = Attached::start(&scene, words);
    answers_only_by_names_of_this_host(attached.ready["metrics"].as_str().unwrap(), "/metrics", "localhost");
}

/// More connections than the process may have descriptors send the beginning of a request and nothing else.
#[test]
fn half_requests_over_tcp_do_not_keep_out_the_owner_or_others() {
    let scene = Scene::new();
    let words = "agent --json --dir ~/a --cache ~/a-cache --http 127.0.0.1:0";
    let program = scene.command(words);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 200; exec \"$0\" \"$@\""]).arg(program.get_program());
    command.args(program.get_args()).current_dir(scene.path(""));
    let mut agent = Process::start(&mut command);
    let ready = agent.line("ready", TIMEOUT, |line| line.starts_with("{\"name\""));
    let ready: Value = serde_json::from_str(&ready).unwrap();
    let address = ready["http"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
    let half = |_| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"GET /v1/disks HTTP/1.1\r\nHost: localhost\r\n").unwrap();
        stream
    };
    let (mut open, mut since) = (Vec::new(), Instant::now());
    // A machine that is busy elsewhere may take as long as half a request may. It has other tries.
    let is_soon = (0..4).any(|_| {
        open = (0..230).map(half).collect();
        since = Instant::now();
        scene.ok("disk list --agent ~/a/agent.sock");
        let stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(ask(stream, "GET /v1/disks"), (200, "[]".to_owned()));
        since.elapsed() < Duration::from_secs(5)
    });
    assert!(is_soon, "{:?}", since.elapsed());
    // Connections that were not displaced are closed when their time is over.
    let mut last = open.pop().unwrap();
    last.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answer = Vec::new();
    let _ = last.read_to_end(&mut answer);
    assert!(since.elapsed() < Duration::from_secs(50), "{:?}", since.elapsed());
}

#[test]
fn passwords_are_shown_to_nobody_and_digests_not_over_tcp() {
    let scene = noisy(1);
    let Some(web) = Web::before(&scene) else { return };
    let agent = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0 --http 127.0.0.1:0");
    let tcp = |path: &str| get_as(agent.ready["http"].as_str().unwrap(), path, "localhost").1;
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    let hex = digest.strip_prefix("sha256:").unwrap();
    let image = web.image();
    let image = image.strip_suffix(":v1").unwrap();
    agent.attach(&format!("web={image}@{digest} --nbd unix:~/web.sock"));
    std::fs::write(scene.path("proxy"), "http://proxyuser:proxypass@127.0.0.1:1\n").unwrap();
    let words = "file://~/store:v1 --proxy http://proxyuser:proxypass@127.0.0.1:1";
    agent.attach(&format!("{words} --as first --nbd unix:~/1.sock"));
    agent.attach("file://~/store:v1 --proxy-file ~/proxy --as second --nbd unix:~/2.sock");
    let listed = serde_json::to_string(&agent.disks()).unwrap();
    assert!(listed.contains("127.0.0.1:1") && listed.contains(hex), "{listed}");
    for said in [listed, agent.http("GET /v1/disks/first").1, tcp("/v1/disks"), tcp("/v1/disks/first")] {
        assert!(!said.contains("proxypass") && said.contains("first"), "{said}");
    }
    // Every user can read the command line of a process.
    let second = agent.disks().into_iter().find(|disk| disk["name"] == "second").unwrap();
    let line = std::fs::read(format!("/proc/{}/cmdline", second["pid"])).unwrap();
    assert!(!String::from_utf8_lossy(&line).contains("proxypass"));

    wait_for("told of the image", &agent, |part| !part["blobs"].as_array().unwrap().is_empty());
    let part: Value = serde_json::from_str(&agent.http("GET /v1/swarm").1).unwrap();
    let blob = part["blobs"][0]["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned();
    let len = part["blobs"][0]["len"].to_string();
    for path in ["/v1/disks", "/v1/disks/web", "/v1/swarm", "/metrics"] {
        let said = tcp(path);
        assert!(!said.contains(hex) && !said.contains(&blob) && !said.contains(&len), "{path}: {said}");
    }
    for name in ["web", "first", "second"] {
        agent.detach(name);
    }
    scene.fails("image list http://127.0.0.1:1/x --proxy-file ~/none", &["none", "cannot read"]);
}

#[test]
fn disks_do_not_inherit_the_protection_from_the_out_of_memory_killer() {
    let protect = "echo -500 2>/dev/null >/proc/self/oom_score_adj";
    let may_protect = Command::new("sh").args(["-c", protect]).stderr(Stdio::null()).status();
    if !may_protect.is_ok_and(|status| status.success()) {
        skipped("a process cannot be protected from the out-of-memory killer here");
        return;
    }
    let scene = noisy(1);
    let words = "agent --json --dir ~/a --cache ~/a-cache";
    let program = scene.command(words);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{protect} && exec \"$0\" \"$@\"")]).arg(program.get_program());
    command.args(program.get_args()).current_dir(scene.path(""));
    let mut agent = Process::start(&mut command);
    agent.line("ready", TIMEOUT, |line| line.starts_with("{\"name\""));
    let score = |pid: u64| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    assert_eq!(score(agent.id().into()).trim(), "-500");
    let disk = scene.json("attach vm=file://~/store:v1 --nbd unix:~/n.sock --agent ~/a/agent.sock");
    assert_eq!(score(disk["pid"].as_u64().unwrap()).trim(), "0");
    scene.ok("disk detach vm --agent ~/a/agent.sock --quiet");
}
