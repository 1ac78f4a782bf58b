//! The cost of hosts that have nothing to share: their CPU time, and their bytes between each other, for some
//! seconds.
//!
//! Two agents of a swarm, each with a disk of the same image, in a network of their own, where every byte is theirs.
//! Limits: 2% of a processor for an agent with its disk, and a hundredth of what a link of 100 Mbit/s carries. `make
//! bench-swarm` measures the same for longer, with more hosts.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark: it prints, and a failed step ends it"
)]

#[path = "../tests/agent/agent.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod agent;
#[path = "../tests/support/http.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod http;
#[path = "../tests/attach/images.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod images;
#[path = "../tests/e2e/tools.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod tools;

use crate::agent::Agent;
use crate::attached::{Attached, TIMEOUT};
use crate::images::{Web, noisy};
use crate::tools::installed;
use headstart_testkit::wait::{wait_for_value, wait_until};
use headstart_testkit::{attached, disk, scene};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// Set if this process runs in a network of its own.
const OWN_NETWORK: &str = "HEADSTART_OWN_NETWORK";

/// The time without reads.
const IDLE: Duration = Duration::from_secs(6);

/// The most CPU time that an agent and its disk may take, in thousandths of a processor.
const PROCESSOR_MAX: u128 = 20;

/// The most bytes a second between two hosts: a hundredth of what a link of 100 Mbit/s carries.
const BYTES_MAX: u128 = 125_000;

fn main() {
    if std::env::var_os(OWN_NETWORK).is_some() {
        return measure();
    }
    if !installed(&["unshare", "ip", "id"]) {
        return;
    }
    let user = Command::new("id").arg("-u").output().unwrap().stdout;
    let options: &[&str] = if user == b"0\n" { &["--net"] } else { &["--net", "--map-root-user"] };
    let mut alone = Command::new("unshare");
    alone.args(options).args(["sh", "-c", "ip link set lo up && exec \"$0\""]);
    alone.arg(std::env::current_exe().unwrap()).env(OWN_NETWORK, "1");
    assert!(alone.status().unwrap().success(), "no network of its own, or a limit is exceeded");
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
    wait_until("the hosts share their blobs", TIMEOUT, || hosts.iter().all(|host| shares(host)));
    // They exchange their first messages.
    let in_two_seconds = || {
        let before = moved();
        std::thread::sleep(Duration::from_secs(2));
        moved() - before
    };
    wait_for_value("rest", TIMEOUT, in_two_seconds, |moved| *moved <= 2 * BYTES_MAX);
    let mut worked = || -> Vec<u128> {
        let pairs = hosts.iter().zip(&mut disks);
        pairs.map(|(host, disk)| worked_ms(host.id()) + worked_ms(disk.process().id())).collect()
    };
    let (began, before, moved_before) = (Instant::now(), worked(), moved());
    std::thread::sleep(IDLE);
    let took = began.elapsed().as_millis();
    let moved = moved() - moved_before;
    let spent = worked().into_iter().zip(before).map(|(after, before)| after - before).max().unwrap();
    let figures = [
        ("thousandths of a processor", spent * 1000 / took, PROCESSOR_MAX),
        ("bytes a second", moved * 1000 / took, BYTES_MAX),
    ];
    for (what, figure, limit) in figures {
        println!("{what:28} {figure:7}  at most {limit:7}  {}", if figure <= limit { "ok" } else { "NO" });
    }
    assert!(figures.iter().all(|(_, figure, limit)| figure <= limit));
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
