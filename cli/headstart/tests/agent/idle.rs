//! The cost of hosts that have nothing to share. `make bench-swarm` measures the same for longer, with more of them.

use crate::agent::Agent;
use crate::attached::{Attached, PATIENCE};
use crate::images::{Web, noisy};
use crate::tools::{installed, skipped};
use headstart_testkit::process::Process;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// Set if the test runs in a network of its own.
const OWN_NETWORK: &str = "HEADSTART_OWN_NETWORK";

/// The time without reads.
const IDLE: Duration = Duration::from_secs(6);

/// The most CPU time that an agent and its disk may take, in thousandths of a processor.
const PROCESSOR_MAX: u128 = 20;

/// The most bytes a second between two hosts: a hundredth of what a link of 100 Mbit/s carries.
const BYTES_MAX: u128 = 125_000;

#[test]
fn hosts_with_nothing_to_share_cost_next_to_nothing() {
    if std::env::var_os(OWN_NETWORK).is_some() {
        return measure();
    }
    // The test has a loopback of its own, where every byte is these hosts'.
    if !installed(&["unshare", "ip", "id"]) {
        return;
    }
    let user = Command::new("id").arg("-u").output().unwrap().stdout;
    let options: &[&str] = if user == b"0\n" { &["--net"] } else { &["--net", "--map-root-user"] };
    let probe =
        Command::new("unshare").args(options).args(["ip", "link", "set", "lo", "up"]).output().unwrap();
    if !probe.status.success() {
        return skipped(&format!("no network of its own: {}", String::from_utf8_lossy(&probe.stderr)));
    }
    let mut alone = Command::new("unshare");
    alone.args(options).args(["sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]);
    alone.arg(std::env::current_exe().unwrap()).args(["--nocapture", "--exact"]);
    alone.arg("idle::hosts_with_nothing_to_share_cost_next_to_nothing").env(OWN_NETWORK, "1");
    let mut run = Process::start(&mut alone);
    assert!(run.end(3 * PATIENCE).success(), "{run}");
}

fn measure() {
    let scene = noisy(4);
    let Some(web) = Web::before(&scene) else { return };
    let first = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0");
    let join = format!("--plain b --listen 127.0.0.1:0 --join {}", first.ready["address"].as_str().unwrap());
    let second = Agent::start(&scene, "b", &join);
    let attach = |name: &str| {
        let (image, options) = (web.image(), format!("--cache ~/{name}-cache --swarm ~/{name}/swarm.sock"));
        Attached::start(&scene, &format!("{image} {options} --nbd unix:~/{name}.sock"))
    };
    let mut disks = [attach("a"), attach("b")];
    let hosts = [&first, &second];
    let until = Instant::now() + PATIENCE;
    while !hosts.iter().all(|host| shares(host)) {
        assert!(Instant::now() < until, "the hosts do not find each other");
        std::thread::sleep(Duration::from_millis(50));
    }
    // By then they have exchanged their first messages.
    let until = Instant::now() + PATIENCE;
    loop {
        let before = moved();
        std::thread::sleep(Duration::from_secs(2));
        if moved() - before <= 2 * BYTES_MAX {
            break;
        }
        assert!(Instant::now() < until, "they do not come to rest");
    }
    let mut worked = || -> Vec<u128> {
        let pairs = hosts.iter().zip(&mut disks);
        pairs.map(|(host, disk)| worked_ms(host.id()) + worked_ms(disk.process().id())).collect()
    };
    let (began, before, moved_before) = (Instant::now(), worked(), moved());
    std::thread::sleep(IDLE);
    let took = began.elapsed().as_millis();
    let moved = moved() - moved_before;
    for (after, before) in worked().into_iter().zip(before) {
        let spent = after - before;
        assert!(spent * 1000 <= took * PROCESSOR_MAX, "{spent} ms of a processor in {took} ms");
    }
    assert!(moved * 1000 <= took * BYTES_MAX, "{moved} bytes in {took} ms");
}

/// `true` if a host shares all its blobs with another.
fn shares(agent: &Agent<'_>) -> bool {
    let status: Value = serde_json::from_str(&agent.http("GET /v1/swarm").1).unwrap();
    let blobs = status["blobs"].as_array().unwrap();
    !blobs.is_empty() && blobs.iter().all(|blob| blob["peers"].as_u64() > Some(0))
}

/// The CPU time that a process has taken so far, in milliseconds.
fn worked_ms(pid: u32) -> u128 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u128>().unwrap();
    // The kernel counts in hundredths of a second for programs, whatever its own unit is.
    (ticks(11) + ticks(12)) * 10
}

/// Bytes that have come over the loopback so far.
fn moved() -> u128 {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
