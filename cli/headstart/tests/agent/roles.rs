//! The roles of hosts are in their certificates; clusters of earlier versions have none.

use crate::agent::Agent;
use crate::cluster::{knows, part, start, wait_for};
use crate::scene::Scene;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// A cluster's directory as version 0.1.0 made it, with the hosts a and b.
pub(crate) fn earlier_cluster(scene: &Scene) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/0.1.0/cluster.tar.gz");
    let unpacked = Command::new("tar").arg("xzf").arg(fixture).current_dir(scene.path("")).status().unwrap();
    assert!(unpacked.success());
}

fn peer(part: &Value, name: &str) -> Value {
    let peers = part["peers"].as_array().unwrap();
    peers.iter().find(|peer| peer["name"] == name).unwrap().clone()
}

fn joining(agent: &Agent<'_>) -> String {
    format!("--join {}", agent.ready["address"].as_str().unwrap())
}

/// A typing error in the name of an operator makes a host that does not exist: that is reported.
#[test]
fn a_host_that_is_named_by_its_role_only_is_pointed_out() {
    let scene = Scene::new();
    let made = scene.json("swarm init ~/cluster --host z2 --operator nosuch");
    let by_role: Vec<_> =
        made["hosts"].as_array().unwrap().iter().map(|host| &host["by_role_only"]).collect();
    assert_eq!(by_role, [&false, &true], "{made}");
    // The host is known by now; and without --host all hosts are named by their roles.
    let again = scene.ok("swarm init ~/cluster --host z3 --operator nosuch --root z4").stdout;
    let line = |name: &str| again.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(
        line("z4").contains("named by its role only") && !line("nosuch").contains("its role only"),
        "{again}"
    );
    assert!(!scene.ok("swarm init ~/other --root a --operator b").stdout.contains("its role only"));
}

#[test]
fn a_cluster_of_an_earlier_version_goes_on_as_plain_members_and_gets_roles_in_place() {
    let scene = Scene::new();
    earlier_cluster(&scene);
    let mut a = start(&scene, "a", "cluster/hosts/a", "--root --tracker");
    // It gets the remedy in its log, and goes on.
    let said = a.line("made by an earlier version");
    assert!(said.contains("plain member") && said.contains("swarm init"), "{said}");
    let b = start(&scene, "b", "cluster/hosts/b", &joining(&a));
    wait_for("connected", &b, knows("a"));
    let (role, tracker) = (peer(&part(&b), "a")["role"].clone(), peer(&part(&b), "a")["tracker"].clone());
    assert_eq!((role, tracker), (json!("agent"), json!(false)));
    // The authority and the keys stay, the certificates are made again.
    let before = std::fs::read(scene.path("cluster/ca.pem")).unwrap();
    let key = std::fs::read(scene.path("cluster/hosts/a/host.key")).unwrap();
    let made = scene.json("swarm init ~/cluster --host a --host b --root a --tracker a");
    assert_eq!(made["authority"], "kept");
    assert_eq!(made["hosts"][0]["certificate"], "renewed");
    assert_eq!(made["hosts"][0]["roles"], json!(["root", "tracker", "operator", "authority"]), "{made}");
    assert_eq!(std::fs::read(scene.path("cluster/ca.pem")).unwrap(), before);
    assert_eq!(std::fs::read(scene.path("cluster/hosts/a/host.key")).unwrap(), key);
    // The role of a host with its new certificate is accepted, even if the other host has an earlier one.
    drop(b);
    a.stop();
    a.again();
    wait_for("a root", &a, |part| part["role"] == "root" && part["tracker"] == true);
    let b = start(&scene, "b", "cluster/hosts/b", &joining(&a));
    wait_for("connected", &b, knows("a"));
    assert_eq!(peer(&part(&b), "a")["role"], "root");
    assert_eq!(peer(&part(&b), "a")["roles"], json!(["root", "tracker", "operator", "authority"]));
}

#[test]
fn a_role_that_the_certificate_lacks_is_no_role() {
    let scene = Scene::new();
    let made = scene.json("swarm init ~/cluster --host a --host b --root c --tracker c --operator b");
    let roles: Vec<_> = made["hosts"].as_array().unwrap().iter().map(|host| host["roles"].clone()).collect();
    assert_eq!(roles, [json!(["authority"]), json!(["operator"]), json!(["root", "tracker"])]);
    let agent =
        "agent --dir ~/x --cache ~/x-cache --listen 127.0.0.1:0 --name a --credentials ~/cluster/hosts/a";
    scene.fails(&format!("{agent} --root"), &["--root", "`a`", "swarm init DIR --root a"]);
    scene.fails(&format!("{agent} --tracker"), &["--tracker", "swarm init DIR --tracker a"]);
    let c = start(&scene, "c", "cluster/hosts/c", "--root");
    assert_eq!(part(&c)["role"], "root");
}

#[test]
fn a_second_run_says_what_it_made_and_what_it_kept_and_other_directories_are_refused() {
    let scene = Scene::new();
    let first = scene.ok("swarm init ~/cluster --host a --host b").stdout;
    assert!(first.contains("cluster, made") && first.contains("\na (operator, authority): made"), "{first}");
    let second = scene.ok("swarm init ~/cluster --host a --root b --host c").stdout;
    assert!(second.contains("cluster, kept"), "{second}");
    for line in
        ["\na (operator, authority): kept as it was", "\nb (root): made again", "\nc (plain member): made"]
    {
        assert!(second.contains(line), "{line} is not in {second}");
    }
    // Certificates last ninety days, or the requested time.
    let days = |made: &Value| {
        let until = humantime::parse_rfc3339(made["hosts"][0]["valid_until"].as_str().unwrap()).unwrap();
        let now = std::time::SystemTime::now();
        (until.duration_since(now).unwrap().as_secs() + 3600) / (24 * 3600)
    };
    assert_eq!(days(&scene.json("swarm init ~/cluster --host a")), 90);
    assert_eq!(days(&scene.json("swarm init ~/cluster --host d --days 7")), 7);
    std::fs::create_dir(scene.path("images")).unwrap();
    std::fs::write(scene.path("images/index.json"), "{}").unwrap();
    scene.fails("swarm init ~/images --host a", &["images", "holds something already", "index.json"]);
    assert_eq!(std::fs::read_dir(scene.path("images")).unwrap().count(), 1);
}
