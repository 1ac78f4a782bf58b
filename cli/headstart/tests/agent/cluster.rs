//! Hosts with certificates, as `headstart swarm init` sets them up; errors of a set-up are reported.

use crate::agent::Agent;
use crate::attached::TIMEOUT;
use crate::http::ask;
use crate::images::{Web, can_check_bytes, check_bytes, noisy};
use crate::scene::Scene;
use crate::swarm::wait_for_peers;
use headstart_testkit::wait::wait_for_value;
use serde_json::Value;
use std::net::TcpStream;

pub(crate) fn start<'s>(scene: &'s Scene, name: &'static str, credentials: &str, words: &str) -> Agent<'s> {
    let words = format!("--credentials ~/{credentials} --name {name} --listen 127.0.0.1:0 {words}");
    Agent::start(scene, name, &words)
}

pub(crate) fn part(agent: &Agent<'_>) -> Value {
    serde_json::from_str(&agent.http("GET /v1/swarm").1).unwrap()
}

#[track_caller]
pub(crate) fn wait_for(what: &str, agent: &Agent<'_>, is_so: impl Fn(&Value) -> bool) {
    wait_for_value(what, TIMEOUT, || part(agent), is_so);
}

pub(crate) fn knows(name: &'static str) -> impl Fn(&Value) -> bool {
    move |part| part["peers"].as_array().unwrap().iter().any(|peer| peer["name"] == name)
}

#[test]
fn hosts_of_a_cluster_help_each_other_and_nobody_else() {
    let scene = noisy(4);
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let made = scene.json("swarm init ~/cluster --host a --host b");
    assert_eq!(made["hosts"][1]["name"], "b");
    let a = start(&scene, "a", "cluster/hosts/a", "");
    let join = format!("--join {}", a.ready["address"].as_str().unwrap());
    let b = start(&scene, "b", "cluster/hosts/b", &join);
    wait_for("connected", &b, knows("a"));
    let first = a.attach(&format!("vm={} --nbd unix:~/a.sock", web.image()));
    check_bytes(&scene, "disk.raw", first["ready"]["ways"][0]["uri"].as_str().unwrap());
    let second = b.attach(&format!("vm={} --nbd unix:~/b.sock", web.image()));
    wait_for_peers(&b);
    check_bytes(&scene, "disk.raw", second["ready"]["ways"][0]["uri"].as_str().unwrap());
    assert!(part(&b)["counters"]["received_bytes"].as_u64() > Some(1 << 20), "{}", part(&b));
    // A host that is added later is equal to the others.
    scene.ok("swarm init ~/cluster --host c");
    let c = start(&scene, "c", "cluster/hosts/c", &join);
    wait_for("connected", &c, knows("a"));
    // The address at which it listens is shown, and not the source of its connection.
    let peers = part(&a)["peers"].as_array().unwrap().clone();
    let address =
        |name: &str| peers.iter().find(|peer| peer["name"] == name).map(|peer| peer["address"].clone());
    assert_eq!(address("b"), Some(b.ready["address"].clone()));
    a.detach("vm");
    b.detach("vm");
}

#[test]
fn mistakes_in_the_set_up_of_a_cluster_are_named() {
    let scene = Scene::new();
    scene.fails("swarm init ~/cluster --host A", &["`A`", "lower-case"]);
    let remedy = format!("make the directory {} first", scene.path("no/such").display());
    scene.fails("swarm init ~/no/such/cluster --host a", &["no/such/cluster", "cannot make", &remedy]);
    assert!(!scene.path("no").exists());
    scene.ok("swarm init ~/cluster --host a --host b");
    scene.ok("swarm init ~/other --host a");
    let agent = "agent --dir ~/x --cache ~/c --listen 127.0.0.1:0";
    let of_a = format!("{agent} --name a --credentials");
    scene.fails(&format!("{of_a} ~/none"), &["none/ca.pem", "swarm init"]);
    scene.fails(&format!("{of_a} ~/cluster"), &["cluster/host.pem", "swarm init"]);
    scene.fails(&format!("{of_a} ~/cluster/hosts/b"), &["not the certificate of `a`", "--name"]);
    for (file, from, why) in [
        ("host.key", "cluster/hosts/b", "is not the key of the certificate"),
        ("ca.pem", "other/hosts/a", "is not a certificate of the authority"),
    ] {
        let mine = scene.path("mixed");
        let _ = std::fs::remove_dir_all(&mine);
        std::fs::create_dir(&mine).unwrap();
        for entry in std::fs::read_dir(scene.path("cluster/hosts/a")).unwrap().flatten() {
            std::fs::copy(entry.path(), mine.join(entry.file_name())).unwrap();
        }
        std::fs::copy(scene.path(from).join(file), mine.join(file)).unwrap();
        scene.fails(&format!("{of_a} ~/mixed"), &[why, "swarm init"]);
    }
    scene.fails(&format!("{agent} --plain A_b"), &["`A_b`", "lower-case"]);
    scene.fails(&format!("{agent} --plain a --advertise 10.0.0.1:1"), &["10.0.0.1:1", "loopback only"]);
    scene.is_wrong(&format!("{agent} --plain a --root --push 8"), &["--push", "--topology roots"]);
    scene.is_wrong(&format!("{agent} --plain a --root --agents 8"), &["--agents", "--topology roots"]);
    let deep = format!("~/{}", "d".repeat(120));
    scene.fails(
        &format!("agent --dir {deep} --cache ~/c"),
        &["cannot be a socket's path", "name a shorter directory"],
    );
    // An option without a meaning by itself is an error, and not ignored.
    for words in [
        "agent --dir ~/x --cache ~/c --join a:1",
        "agent --dir ~/x --cache ~/c --tracker",
        "agent --dir ~/x --cache ~/c --root",
        "agent --dir ~/x --cache ~/c --name a",
        "agent --dir ~/x --cache ~/c --name a --plain a",
        "agent --dir ~/x --cache ~/c --plain a --push 8",
        "agent --dir ~/x --cache ~/c --plain a --join a",
        "agent --dir ~/x --cache ~/c --plain a --connections 0",
        "agent --dir ~/x --cache ~/c --plain a --topology star",
    ] {
        let run = scene.run(words);
        assert_eq!(run.status, Some(2), "{run}");
    }
}

/// The answer to any wrong request is JSON and has the cause.
#[test]
fn wrong_requests_of_programs_are_answered_with_the_cause() {
    let scene = noisy(1);
    let agent = Agent::start(&scene, "a", "--plain a --listen 127.0.0.1:0 --http 127.0.0.1:0 --tracker");
    let address = agent.ready["http"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
    let over_tcp = |request: &str| ask(TcpStream::connect(&address).unwrap(), request);
    let failed = |(status, body): (u16, String)| {
        let failure: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("no JSON: {body}"));
        (status, failure["error"].as_str().unwrap().to_owned())
    };
    for (status, request, part) in [
        (422, "POST /v1/disks\n{\"name\":\"vm\"}", "missing field `arguments`"),
        (400, "POST /v1/disks\n{", "/openapi.json"),
        (
            422,
            "POST /v1/disks\n{\"name\":\"vm\",\"arguments\":[\"file:///x:y\",\"--cache=/c\"]}",
            "`--cache`",
        ),
        (422, "POST /v1/disks\n{\"name\":\"vm\",\"arguments\":[\"--help\"]}", "`--help`"),
        (422, "POST /v1/disks\n{\"name\":\"v/m\",\"arguments\":[\"file:///x:y\"]}", "not a name of a disk"),
        (422, "POST /v1/pin\n{}", "missing field"),
        (404, "GET /v1/disks/vm", "no disk of that name"),
        (404, "GET /v2/disks", "/v2/disks"),
        (405, "DELETE /v1/disks", "DELETE of /v1/disks"),
    ] {
        let (got, error) = failed(agent.http(request));
        assert!(got == status && error.contains(part), "{request}: {got} {error}");
    }
    // The process of a disk says the kind of its error, and not only the words.
    let store = format!("file://{}", scene.path("store").display());
    for (status, kind, arguments) in [
        (404, "not-found", format!(r#""{store}:nothing""#)),
        (422, "no-device", format!(r#""{store}:v1", "--device", "/dev/nbd99999""#)),
        (422, "invalid", format!(r#""{store}:v1", "--unknown-option""#)),
    ] {
        let request = format!("POST /v1/disks\n{{\"name\":\"vm\",\"arguments\":[{arguments}]}}");
        let (got, body) = agent.http(&request);
        let failure: Value = serde_json::from_str(&body).unwrap();
        assert!(got == status && failure["kind"] == kind, "{request}: {got} {body}");
    }
    // Numbers of images are not given to every client that reaches the port.
    assert_eq!(agent.http("GET /v1/counts"), (200, "[]".to_owned()));
    assert_eq!(failed(over_tcp("GET /v1/counts")).0, 404);
    let (status, error) = failed(over_tcp("POST /v1/disks\n{}"));
    assert!(status == 405 && error.contains("Unix socket"), "{status} {error}");
    // Every answer is described.
    let document: Value = serde_json::from_str(&over_tcp("GET /openapi.json").1).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for name in ["DiskStatus", "SwarmPart", "Status", "PeerStatus", "BlobStatus", "CountedImage", "Failure"] {
        assert!(schemas.contains_key(name), "{name} is not in {:?}", schemas.keys());
    }
    let text = document.to_string();
    for (at, _) in text.match_indices("#/components/schemas/") {
        let name: String =
            text[at..].chars().skip(21).take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        assert!(schemas.contains_key(&name), "{name} is named and not there");
    }
}
