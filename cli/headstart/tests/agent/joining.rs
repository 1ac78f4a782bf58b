//! A host reports when it is in the swarm, and both sides report errors: a name that two hosts have, another cluster, a
//! missing host, a certificate that ends.

use crate::agent::Agent;
use crate::attached::TIMEOUT;
use crate::cluster::{knows, part, start, wait_for};
use crate::images::noisy;
use crate::scene::Scene;
use headstart_testkit::process::Process;
use rcgen::{CertificateParams, Issuer, KeyPair, SanType};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, SystemTime};

fn address(agent: &Agent<'_>) -> String {
    agent.ready["address"].as_str().unwrap().to_owned()
}

#[test]
fn an_agent_reports_that_its_host_has_joined_the_swarm() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a --host b");
    let a = start(&scene, "a", "cluster/hosts/a", "");
    let words = format!(
        "agent --dir ~/b --cache ~/b-cache --credentials ~/cluster/hosts/b --name b --listen 127.0.0.1:0 --join {}",
        address(&a)
    );
    let mut b = Process::start(&mut scene.command(&words));
    let first = b.line("where it listens", TIMEOUT, |line| line.starts_with("b "));
    assert!(first.starts_with("b listens for other hosts at 127.0.0.1:"), "{first}");
    b.line("that it is in the swarm", TIMEOUT, |line| line == "b is in the swarm: connected to a");
    let status = scene.ok(&format!("swarm status {}", a.option())).stdout;
    assert!(status.contains("\nits certificate is valid until 2"), "{status}");
    // Neither has a disk, and nothing is pinned.
    assert!(!status.contains("left to the store"), "{status}");
}

/// A directory that holds something else becomes no cache.
#[test]
fn an_agent_takes_no_directory_that_holds_something_else_for_its_cache() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path("c")).unwrap();
    fs::write(scene.path("c/letters"), "dear").unwrap();
    let words = "agent --dir ~/x --cache ~/c --plain x --listen 127.0.0.1:0";
    scene.fails(words, &["c: is not a cache and holds something already: letters", "an empty directory"]);
    assert_eq!(scene.names("c"), ["letters"]);
    fs::remove_file(scene.path("c/letters")).unwrap();
    // The same holds for a user's own directory that has the name of one in a cache.
    fs::create_dir(scene.path("c/images")).unwrap();
    for photo in [None, Some("c/images/holiday.jpg")] {
        photo.map_or(Ok(()), |photo| fs::write(scene.path(photo), "sea")).unwrap();
        scene.fails(words, &["c: is not a cache and holds something already: images", "an empty directory"]);
        assert_eq!(scene.names("c"), ["images"]);
    }
    fs::remove_dir_all(scene.path("c/images")).unwrap();
    // The same holds for files with the endings of blobs' files.
    for name in ["app.js.map", "film.data"] {
        fs::write(scene.path(&format!("c/{name}")), "mine").unwrap();
        scene.fails(words, &["c: is not a cache and holds something already: ", name]);
        fs::remove_file(scene.path(&format!("c/{name}"))).unwrap();
    }
    // The files that disks leave there are accepted, and a cache stays one whatever is put beside it.
    fs::create_dir(scene.path("c/traces")).unwrap();
    fs::rename(scene.path("c"), scene.path("x-cache")).unwrap();
    let mut agent = Agent::start(&scene, "x", "--plain x --listen 127.0.0.1:0");
    agent.stop();
    fs::write(scene.path("x-cache/letters"), "dear").unwrap();
    agent.again();
    agent.stop();
}

#[test]
fn two_hosts_of_one_name_hear_of_each_other_and_nothing_changes_hands() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a --host b");
    let mut a = start(&scene, "a", "cluster/hosts/a", "");
    let b = start(&scene, "b", "cluster/hosts/b", &format!("--join {}", address(&a)));
    wait_for("connected", &b, knows("a"));
    wait_for("connected", &a, knows("b"));
    let words =
        format!("--credentials ~/cluster/hosts/a --name a --listen 127.0.0.1:0 --join {}", address(&a));
    let mut twin = Agent::start(&scene, "twin", &words);
    for host in [&mut a, &mut twin] {
        let said = host.line("two hosts are called `a`");
        assert!(said.contains("warning") && said.contains("swarm init DIR --host NAME"), "{said}");
    }
    let elsewhere = address(&twin);
    wait_for("told of", &a, |part| {
        let others = part["unconnected"].as_array().unwrap();
        others.iter().any(|other| other["name"] == "a" && other["address"] == *elsewhere)
    });
    // The host that was there first stays.
    assert!(part(&a)["peers"].as_array().unwrap().iter().any(|peer| peer["name"] == "b"), "{}", part(&a));
}

/// A third host stays with the one that it is connected to, shows its address, and shows the address of the other one,
/// which does not claim to be in the swarm.
#[test]
fn of_two_hosts_of_one_name_others_know_which_is_connected() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a --host b");
    let a = start(&scene, "a", "cluster/hosts/a", "");
    let b = start(&scene, "b", "cluster/hosts/b", &format!("--join {}", address(&a)));
    wait_for("connected", &a, knows("b"));
    let words = format!(
        "agent --dir ~/twin --cache ~/twin-cache --credentials ~/cluster/hosts/b --name b --listen 127.0.0.1:0 \
         --join {}",
        address(&a)
    );
    let mut twin = Process::start(&mut scene.command(&words));
    let first = twin.line("where it listens", TIMEOUT, |line| line.starts_with("b "));
    let elsewhere = first.split_once(" at ").unwrap().1.split(';').next().unwrap().to_owned();
    let is_told = |part: &Value| {
        let others = part["unconnected"].as_array().unwrap().iter();
        let is_twin = |other: &&Value| other["name"] == "b" && other["address"] == *elsewhere;
        let error = others.filter(is_twin).find_map(|other| other["error"].as_str()).unwrap_or_default();
        error.contains("two hosts are called `b`")
    };
    wait_for("told of", &a, is_told);
    let status = scene.ok(&format!("swarm status {}", a.option())).stdout;
    let says = |address: &str, words: &str| {
        status.lines().any(|line| line.starts_with("b: ") && line.contains(address) && line.contains(words))
    };
    assert!(says(&address(&b), "shared") && says(&elsewhere, "two hosts are called"), "{status}");
    // This holds as long as both are there.
    for _ in 0..20 {
        let part = part(&a);
        let b_is_at: Vec<_> = part["peers"].as_array().unwrap().iter().map(|peer| &peer["address"]).collect();
        assert_eq!(b_is_at, [&serde_json::json!(address(&b))], "{part}");
        std::thread::sleep(Duration::from_millis(100));
    }
    twin.line("that it is refused", TIMEOUT, |line| line.contains("two hosts are called `b`"));
    assert!(!twin.output().contains("is in the swarm"), "{}", twin.output());
    twin.kill();
    wait_for("alone again", &a, |part| !is_told(part));
}

#[test]
fn a_host_of_another_cluster_is_refused_and_both_sides_say_why() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a --host b");
    let mut a = start(&scene, "a", "cluster/hosts/a", "");
    let join = format!("--join {}", address(&a));
    let mut b = start(&scene, "b", "cluster/hosts/b", &join);
    wait_for("connected", &b, knows("a"));

    // A host that knows the gossip key, and has another authority's certificate: whichever side connects.
    scene.ok("swarm init ~/other --host z --host y");
    fs::copy(scene.path("cluster/gossip.key"), scene.path("other/hosts/z/gossip.key")).unwrap();
    let mut z = start(&scene, "z", "other/hosts/z", &join);
    for host in [&mut a, &mut b, &mut z] {
        let said = host.line("belongs to another cluster");
        assert!(said.contains("warning") && said.contains("certificate"), "{said}");
    }
    // The connecting host learns a moment later that it is refused.
    wait_for("alone", &z, |part| part["peers"] == serde_json::json!([]));

    // A host with another gossip key, too, sees no other host.
    let mut y = start(&scene, "y", "other/hosts/y", &join);
    let said = y.line("not in the swarm");
    assert!(said.contains("belongs to another cluster"), "{said}");
    let said = a.line("gossip key");
    assert!(said.contains("a host of another cluster joins this one"), "{said}");
    assert!(part(&a)["counters"]["refused_datagrams"].as_u64() > Some(0), "{}", part(&a));
}

#[test]
fn an_agent_reports_what_it_finds_at_the_address_of_a_swarm() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a");
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = web.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in web.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let mut a = start(&scene, "a", "cluster/hosts/a", &format!("--join {at} --join 127.0.0.1:1"));
    let said = a.line("cannot join");
    assert!(said.contains("not in the swarm") && said.contains("no host of a swarm"), "{said}");
    let said = a.line("cannot connect");
    assert!(said.contains("127.0.0.1:1") && said.contains("refused"), "{said}");
    // Its own address among those that it is to join is no error, and no other host.
    assert_eq!(part(&a)["unconnected"], serde_json::json!([]));
}

/// Gives the host `a` a certificate that ends `seconds` from now, or has ended.
fn certificate_until(scene: &Scene, seconds: i64) {
    let read = |file: &str| fs::read_to_string(scene.path(&format!("cluster/{file}"))).unwrap();
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(rcgen::DnType::CommonName, "headstart swarm");
    let issuer = Issuer::new(authority, KeyPair::from_pem(&read("ca.key")).unwrap());
    let mut params = CertificateParams::new(vec!["a".to_owned()]).unwrap();
    params.subject_alt_names.push(SanType::URI("headstart:added:1".try_into().unwrap()));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let until = now.as_secs().checked_add_signed(seconds).unwrap();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + (now - Duration::from_secs(90 * 24 * 3600));
    params.not_after = epoch + Duration::from_secs(until);
    let key = KeyPair::from_pem(&read("hosts/a/host.key")).unwrap();
    let pem = params.signed_by(&key, &issuer).unwrap().pem();
    fs::write(scene.path("cluster/hosts/a/host.pem"), pem).unwrap();
}

fn seconds_left(agent: &Agent<'_>) -> u64 {
    let page = agent.http("GET /metrics").1;
    let line = page.lines().find_map(|line| line.strip_prefix("headstart_agent_swarm_certificate_seconds "));
    line.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}

#[test]
fn the_end_of_a_certificate_is_said_before_it_comes_and_stops_no_disk() {
    let scene = noisy(1);
    scene.ok("swarm init ~/cluster --host a");
    certificate_until(&scene, 5 * 3600 + 60);
    let mut a = start(&scene, "a", "cluster/hosts/a", "");
    let said = a.line("certificate ends in 5 hours");
    assert!(said.contains("warning") && said.contains("swarm init DIR --host NAME"), "{said}");
    assert!((5 * 3600 - 600..5 * 3600 + 61).contains(&seconds_left(&a)));
    a.attach("vm=file://~/store:v1 --nbd unix:~/a.sock");
    a.stop();
    certificate_until(&scene, -3600);
    a.again();
    let said = a.line("certificate has ended");
    assert!(said.contains("its disks go on"), "{said}");
    assert_eq!(seconds_left(&a), 0);
    assert_eq!(a.disk_that("serving", |disk| disk["state"] == "serving")["name"], "vm");
    assert_eq!(a.detach("vm")["state"], "detached");
}
