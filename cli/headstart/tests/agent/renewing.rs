//! Certificates that agents renew by themselves, hosts that are added by a request, and the end of a certificate, which
//! does nothing to disks.

use crate::agent::Agent;
use crate::attached::TIMEOUT;
use crate::cluster::{knows, part, start, wait_for};
use crate::images::noisy;
use crate::scene::Scene;
use headstart_testkit::wait::wait_until;
use rcgen::{CertificateParams, Issuer, KeyPair, SanType};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

fn joining(agent: &Agent<'_>) -> String {
    format!("--join {}", agent.ready["address"].as_str().unwrap())
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// Gives a host of the cluster a certificate that ends `seconds` from now, for the key that it has.
fn short_certificate(scene: &Scene, host: &str, seconds: u64) {
    certificate(scene, host, (now() - 2, now() + seconds), &["headstart:added:1"]);
}

/// Gives a host a certificate of these times, with these URIs.
fn certificate(scene: &Scene, host: &str, (from, until): (u64, u64), uris: &[&str]) {
    let read = |file: &str| fs::read_to_string(scene.path(&format!("cluster/{file}"))).unwrap();
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(rcgen::DnType::CommonName, "headstart swarm");
    let issuer = Issuer::new(authority, KeyPair::from_pem(&read("ca.key")).unwrap());
    let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
    for uri in uris {
        params.subject_alt_names.push(SanType::URI((*uri).try_into().unwrap()));
    }
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(from);
    params.not_after = epoch + Duration::from_secs(until);
    let key = KeyPair::from_pem(&read(&format!("hosts/{host}/host.key"))).unwrap();
    let pem = params.signed_by(&key, &issuer).unwrap().pem();
    fs::write(scene.path(&format!("cluster/hosts/{host}/host.pem")), pem).unwrap();
}

/// A directory that is a host's own, as if it had been copied there.
fn copied(scene: &Scene, host: &str) -> String {
    let copy = format!("of-{host}");
    let from = scene.path(&format!("cluster/hosts/{host}"));
    assert!(Command::new("cp").arg("-rT").args([from, scene.path(&copy)]).status().unwrap().success());
    copy
}

fn counted(agent: &Agent<'_>, name: &str) -> u64 {
    let page = agent.http("GET /metrics").1;
    let name = format!("headstart_agent_swarm_{name} ");
    page.lines()
        .find_map(|line| line.strip_prefix(&name))
        .unwrap_or_else(|| panic!("{page}"))
        .parse()
        .unwrap()
}

fn failure(part: &Value) -> &str {
    part["certificate_failure"].as_str().unwrap_or_default()
}

#[test]
fn a_host_renews_its_certificate_by_itself_and_stays_connected_and_its_disks_go_on() {
    let scene = noisy(1);
    scene.ok("swarm init ~/cluster --host a --host b");
    short_certificate(&scene, "b", 30);
    let ends = now() + 30;
    let of_b = copied(&scene, "b");
    let key = fs::read(scene.path("of-b/host.key")).unwrap();
    let a = start(&scene, "a", "cluster/hosts/a", "--authority ~/cluster");
    let mut b = start(&scene, "b", &of_b, &joining(&a));
    b.attach("vm=file://~/store:v1 --nbd unix:~/b.sock");
    wait_for("connected", &a, knows("b"));
    assert!(part(&b)["certificate_until"].as_u64() <= Some(ends));
    wait_for("renewed", &b, |part| part["certificate_until"].as_u64() > Some(ends));
    assert!(now() < ends, "it was renewed too late");
    wait_until("both are counted", TIMEOUT, || {
        (counted(&b, "renewed_certificates_total"), counted(&a, "signed_certificates_total")) == (1, 1)
    });
    // It is stored for this user only, beside the key, which is the same.
    let mode = fs::metadata(scene.path("of-b/host.pem")).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode, fs::read(scene.path("of-b/host.key")).unwrap()), (0o600, key));
    // When the earlier certificate ends, the connection that was made with it goes on.
    std::thread::sleep(Duration::from_secs((ends + 3).saturating_sub(now())));
    assert!(knows("b")(&part(&a)) && knows("a")(&part(&b)), "{}", part(&a));
    assert_eq!(counted(&a, "connections_total"), 1);
    assert!(!a.output().contains("has ended"), "{}", a.output());
    // It has the new one after a restart, and the disk went on all the while.
    b.stop();
    b.again();
    wait_for("connected again", &b, knows("a"));
    assert_eq!(b.disk_that("serving", |disk| disk["state"] == "serving")["name"], "vm");
    assert_eq!(b.detach("vm")["state"], "detached");
}

#[test]
fn a_host_that_cannot_keep_its_certificate_renews_it_again_and_keeps_it_once_it_can() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a --host b");
    short_certificate(&scene, "b", 15);
    let ends = now() + 15;
    let of_b = copied(&scene, "b");
    let in_file = || fs::read(scene.path("of-b/host.pem")).unwrap();
    let at_first = in_file();
    // The directory is in the way of the new file before it gets its name, even for root.
    fs::create_dir_all(scene.path("of-b/host.pem.new/x")).unwrap();
    let a = start(&scene, "a", "cluster/hosts/a", "--authority ~/cluster");
    let b = start(&scene, "b", &of_b, &joining(&a));
    wait_for("renewed", &b, |part| part["certificate_until"].as_u64() > Some(ends));
    let until = part(&b)["certificate_until"].as_u64();
    wait_for("renewed again", &b, |part| part["certificate_until"].as_u64() > until);
    assert_eq!(in_file(), at_first);
    let warnings = b.output().lines().filter(|line| line.contains("not be known after a restart")).count();
    assert_eq!(warnings, 1, "{}", b.output());
    fs::remove_dir_all(scene.path("of-b/host.pem.new")).unwrap();
    wait_for("kept", &b, |_| in_file() != at_first);
}

#[test]
fn the_authoritys_own_certificate_is_renewed_with_nobody_else_there() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a");
    short_certificate(&scene, "a", 8);
    let mut a = start(&scene, "a", "cluster/hosts/a", "");
    wait_for("due", &a, |part| failure(part).contains("role `authority`"));
    a.stop();
    drop(a);
    // The certificate is due at once.
    let uris = ["headstart:added:1", "headstart:role:authority"];
    let ends = now() + 60;
    certificate(&scene, "a", (ends - 300, ends), &uris);
    let a = start(&scene, "a", "cluster/hosts/a", "--authority ~/cluster");
    wait_for("renewed", &a, |part| part["certificate_until"].as_u64() > Some(ends));
    // It is counted once the files are written.
    wait_until("it is counted", TIMEOUT, || counted(&a, "renewed_certificates_total") == 1);
}

#[test]
fn a_certificate_that_nobody_renews_ends_and_stops_no_disk_and_the_host_comes_back_by_a_request() {
    let scene = noisy(1);
    scene.ok("swarm init ~/cluster --host a --host b");
    short_certificate(&scene, "b", 30);
    let of_b = copied(&scene, "b");
    // The host with the role has no key: both it and the requesting host report that.
    let mut a = start(&scene, "a", "cluster/hosts/a", "");
    let mut b = start(&scene, "b", &of_b, &joining(&a));
    b.attach("vm=file://~/store:v1 --nbd unix:~/b.sock");
    wait_for("refused", &b, |part| failure(part).contains("--authority DIR"));
    let said = b.line("is due and was not renewed");
    assert!(said.contains("warning") && said.contains("--authority DIR"), "{said}");
    let status = scene.ok(&format!("swarm status {}", b.option())).stdout;
    assert!(status.contains("it is due and was not renewed: a: "), "{status}");
    a.line("certificate has ended; its connection is closed");
    wait_for("without it", &a, |part| !knows("b")(part));
    b.line("this host's certificate has ended");
    assert_eq!(counted(&b, "certificate_seconds"), 0);
    assert_eq!(b.disk_that("serving", |disk| disk["state"] == "serving")["name"], "vm");
    // A host whose certificate has ended is not let in to renew it, by any authority.
    a.stop();
    drop(a);
    let mut a = start(&scene, "a", "cluster/hosts/a", &format!("--authority ~/cluster {}", joining(&b)));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((part(&a)["peers"].clone(), counted(&a, "signed_certificates_total")), (json!([]), 0));
    // The remedy is a request for the same key, made on the host.
    let asked = scene.json("swarm request ~/of-b --name b");
    assert_eq!(asked["key"], "kept", "{asked}");
    let added = scene.json("swarm add ~/cluster b --request ~/of-b/request.pem");
    assert_eq!(added["certificate"], "renewed", "{added}");
    fs::copy(scene.path("cluster/hosts/b/host.pem"), scene.path("of-b/host.pem")).unwrap();
    a.stop();
    b.stop();
    b.again();
    drop(a);
    let a = start(&scene, "a", "cluster/hosts/a", &format!("--authority ~/cluster {}", joining(&b)));
    wait_for("connected", &a, knows("b"));
    assert_eq!(b.detach("vm")["state"], "detached");
}

#[test]
fn a_revoked_host_gets_no_certificate_even_where_no_agent_was_told() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a --host b");
    // The certificate is due at once.
    certificate(&scene, "b", (now() - 240, now() + 60), &["headstart:added:1"]);
    let of_b = copied(&scene, "b");
    let a = start(&scene, "a", "cluster/hosts/a", "--authority ~/cluster");
    scene.fails("swarm revoke ~/cluster b --agent ~/none.sock", &["it is signed", "swarm publish"]);
    let b = start(&scene, "b", &of_b, &joining(&a));
    wait_for("connected", &a, knows("b"));
    wait_for("refused", &b, |part| failure(part).contains("the host was revoked"));
    assert_eq!(counted(&a, "signed_certificates_total"), 0);
    assert!(counted(&a, "refused_requests_total") > 0);
    scene.ok(&format!("swarm publish ~/cluster {}", a.option()));
    wait_for("without it", &a, |part| !knows("b")(part));
}

#[test]
fn a_host_is_added_by_its_request_and_its_key_is_nowhere_else() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a");
    let a = start(&scene, "a", "cluster/hosts/a", "--authority ~/cluster");
    let said = scene.ok("swarm request ~/node4 --name node4").stdout;
    assert!(said.contains("swarm add DIR node4 --request FILE") && said.contains("request.pem"), "{said}");
    assert_eq!(scene.names("node4"), ["host.key", "request.pem"]);
    let mode = |file: &str| fs::metadata(scene.path(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("node4/host.key"), mode("node4")), (0o600, 0o700));
    let add = "swarm add ~/cluster";
    scene.fails(&format!("{add} node5 --request ~/node4/request.pem"), &["of `node4`, not of `node5`"]);
    scene.fails(&format!("{add} node4 --request ~/none.pem"), &["none.pem", "no such file"]);
    scene.fails(&format!("{add} node4 --request ~/cluster/ca.pem"), &["ca.pem", "not a signing request"]);
    let said = scene.ok(&format!("{add} node4 --request ~/node4/request.pem --root --days 7")).stdout;
    assert!(said.starts_with("node4 (root): added, until 2") && said.contains("secret"), "{said}");
    assert_eq!(scene.names("cluster/hosts/node4"), ["ca.pem", "gossip.key", "host.pem"]);
    copied_into(&scene, "node4");
    let node4 = start(&scene, "node4", "node4", &format!("--root {}", joining(&a)));
    wait_for("connected", &a, knows("node4"));
    assert_eq!(part(&node4)["roles"], json!(["root"]));
    // Another host with that name, and with the files that `swarm init` made for another host.
    scene.ok("swarm request ~/other --name node4");
    // A name that was left to the host, or mistyped.
    let said = ["is the request of `node4`, not of `vm`", "swarm request --name vm", "add it as `node4`"];
    scene.fails("swarm add ~/cluster vm --request ~/other/request.pem", &said);
    let refused = format!("{add} node4 --request ~/other/request.pem");
    scene.fails(&refused, &["with another key", "swarm revoke"]);
    scene.ok(&format!("swarm revoke ~/cluster node4 {}", a.option()));
    wait_for("without it", &a, |part| !knows("node4")(part));
    scene.fails(&format!("{add} node4 --request ~/node4/request.pem"), &["was revoked with this key"]);
    scene.ok(&refused);
    assert_eq!(scene.names("cluster/hosts/node4"), ["ca.pem", "gossip.key", "host.pem", "trust"]);
    // The earlier holder of the name is out, which it notices a moment later, and stays out.
    wait_for("out", &node4, |part| part["peers"] == json!([]));
    assert!(!knows("node4")(&part(&a)), "{}", part(&a));
}

/// A pipe without a writer would be waited for.
#[test]
fn a_request_that_is_no_file_is_refused_at_once() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a");
    let pipe = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, scene.path("pipe"), pipe, rustix::fs::Mode::RWXU, 0).unwrap();
    for (name, what) in [("pipe", "a pipe"), ("cluster", "a directory")] {
        scene.fails(&format!("swarm add ~/cluster b --request ~/{name}"), &[name, what]);
    }
}

/// Copies the files that `swarm add` made for a host into the directory of its request.
fn copied_into(scene: &Scene, host: &str) {
    for name in scene.names(&format!("cluster/hosts/{host}")) {
        fs::copy(scene.path(&format!("cluster/hosts/{host}/{name}")), scene.path(&format!("{host}/{name}")))
            .unwrap();
    }
}

#[test]
fn an_authority_that_cannot_be_one_is_refused_with_the_remedy() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a --host b");
    scene.ok("swarm init ~/other --host z");
    let agent = "agent --dir ~/x --cache ~/x-cache --listen 127.0.0.1:0";
    let of = |host: &str| format!("{agent} --name {host} --credentials ~/cluster/hosts/{host}");
    let b = of("b");
    scene.fails(
        &format!("{b} --authority ~/cluster"),
        &["--authority", "`b`", "swarm init DIR --authority b"],
    );
    let a = of("a");
    scene.fails(&format!("{a} --authority ~/other"), &["other/ca.pem", "another cluster"]);
    scene.fails(&format!("{a} --authority ~/none"), &["none/ca.key", "swarm init"]);
    fs::set_permissions(scene.path("cluster/ca.key"), fs::Permissions::from_mode(0o644)).unwrap();
    scene.fails(&format!("{a} --authority ~/cluster"), &["other users can read", "chmod 600"]);
    assert_eq!(scene.run(&format!("{agent} --plain a --authority ~/cluster")).status, Some(2));
}
