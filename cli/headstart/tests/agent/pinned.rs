//! Images that hosts keep together, and images that are brought to the roots when they are pushed or converted.

use crate::agent::Agent;
use crate::attached::{Attached, Metrics, TIMEOUT};
use crate::images::{Web, can_check_bytes, check_bytes, noisy};
use crate::scene::{CommandRun, Scene, run_tool};
use crate::swarm::hosts_with;
use headstart_testkit::faults::Outage;
use headstart_testkit::process::installed;
use headstart_testkit::registry::{Registry, RegistryAccess};
use headstart_testkit::shell_image;
use headstart_testkit::wait::wait_until;
use serde_json::Value;

fn part(agent: &Agent<'_>) -> Value {
    serde_json::from_str(&agent.http("GET /v1/swarm").1).unwrap()
}

/// The only pinned image, as a host reports it.
fn pin(agent: &Agent<'_>) -> Option<Value> {
    let part = part(agent);
    let pins = part["pins"].as_array().unwrap();
    assert!(pins.len() <= 1, "{part}");
    pins.first().cloned()
}

/// Bytes of the image's blobs, hash trees included.
fn stored(scene: &Scene) -> u64 {
    let inspected = scene.json("image inspect file://~/store:v1");
    let layers = inspected["layers"].as_array().unwrap();
    let trees = layers.iter().map(|layer| {
        let manifest = scene.manifest("store", &inspected["digest"]);
        let of_layer = |of: &&Value| of["digest"] == layer["digest"];
        let layer = manifest["layers"].as_array().unwrap().iter().find(of_layer).unwrap();
        let annotations = layer["annotations"].as_object().unwrap();
        let tree = annotations.values().filter_map(Value::as_str).find_map(|digest| {
            let path = scene.path("store/blobs/sha256").join(digest.strip_prefix("sha256:")?);
            Some(std::fs::metadata(path).ok()?.len()).filter(|_| digest != layer["digest"])
        });
        layer["size"].as_u64().unwrap() + tree.unwrap_or_default()
    });
    trees.sum()
}

#[test]
fn pinned_images_need_no_store() {
    let scene = noisy(8);
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let image = web.image();
    // No disk is attached: each host is given the store.
    let store = image.rsplit_once(':').unwrap().0;
    let mut agents = hosts_with(&scene, &["a", "b", "c"], &format!("--allow-store {store}"));
    let option = agents[0].option();
    scene.fails(&format!("swarm pin {image} --copies 4 {option}"), &["4 copies", "3 hosts"]);
    scene.fails(&format!("swarm pin {image} --on x {option}"), &["x: ", "not connected"]);
    scene.fails(&format!("swarm pin file://~/store:v1 {option}"), &["directory", "image push"]);
    scene.fails(&format!("swarm unpin {image} {option}"), &["not pinned", "swarm status"]);
    let done = scene.json(&format!("swarm pin {image} {option}"));
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    assert_eq!((&done["digest"], &done["copies"]), (&digest.clone().into(), &2.into()));
    let kept: u64 =
        done["hosts"].as_array().unwrap().iter().map(|host| host["bytes"].as_u64().unwrap()).sum();
    assert_eq!(kept, 2 * stored(&scene), "{done}");
    // One host does not ask the store for chunks that another has.
    let sent = web.reads(&scene).sent();
    assert!(sent < stored(&scene) * 7 / 4, "{sent} of {} for two copies", stored(&scene));
    let said = scene.ok(&format!("swarm status {option}")).stdout;
    assert!(said.contains(&format!("{image}, {digest}: pinned, 2 copies on 3 hosts, ")), "{said}");
    // Nothing of it is evicted for lack of room.
    scene.ok("cache prune --dir ~/b-cache");
    assert_eq!(pin(&agents[1]).unwrap()["lacking_bytes"], 0);

    web.proxy.set_outage(Outage::Refuse);
    // One host loses its whole part, and gets it from the others.
    agents[1].stop();
    std::fs::remove_dir_all(scene.path("b-cache")).unwrap();
    agents[1].again();
    wait_until("a part that came again", TIMEOUT, || {
        pin(&agents[1]).is_some_and(|pin| pin["lacking_bytes"] == 0 && pin["bytes"].as_u64() > Some(0))
    });
    // A host that comes later learns of it, and reads all of it, although one of those that keep it dies.
    let join = format!("--join {}", agents[0].ready["address"].as_str().unwrap());
    let late = Agent::start(&scene, "d", &format!("--plain d --listen 127.0.0.1:0 {join}"));
    wait_until("known to a host that came later", TIMEOUT, || pin(&late).is_some());
    wait_until("connected to all", TIMEOUT, || part(&late)["peers"].as_array().unwrap().len() == 3);
    scene.fails(&format!("attach {image} --cache ~/d-cache --nbd unix:~/x.sock"), &["refused"]);
    agents[2].kill();
    let by_digest = image.replace(":v1", &format!("@{digest}"));
    // It is attached by the tag that it was pinned by, which the hosts of the swarm know, and by its digest.
    for image in [&image, &by_digest] {
        let disk = late.attach(&format!("vm={image} --nbd unix:~/d.sock"));
        check_bytes(&scene, "disk.raw", disk["ready"]["ways"][0]["uri"].as_str().unwrap());
        late.detach("vm");
    }
    // The same holds if the cache was lost with its tags.
    let disk = agents[1].attach(&format!("vm={image} --nbd unix:~/d.sock"));
    assert!(disk["ready"].is_object(), "{disk}");
    agents[1].detach("vm");
    wait_until("seen that one is away", TIMEOUT, || pin(&late).unwrap()["away"] == serde_json::json!(["c"]));

    // The pin ends, and a host that was away learns of it.
    let gone = scene.json(&format!("swarm unpin {image} {}", late.option()));
    assert_eq!(gone["digests"], serde_json::json!([digest]));
    wait_until("let go", TIMEOUT, || {
        agents[..2].iter().all(|agent| pin(agent).is_none()) && pin(&late).is_none()
    });
    agents[2].again();
    wait_until("known to who was away", TIMEOUT, || pin(&agents[2]).is_none());
    scene.ok("cache prune --dir ~/b-cache");
    scene.fails(&format!("attach vm={by_digest} --nbd unix:~/e.sock {}", agents[1].option()), &["refused"]);
}

/// A container's image that is converted is on the roots before any host pulls it: a disk of another host takes it from
/// there.
#[test]
fn a_converted_image_is_warm_on_the_roots() {
    let Some(registry) = Registry::start(RegistryAccess::Open).filter(|_| installed(&["skopeo"])) else {
        return;
    };
    let (scene, host) = (Scene::new(), registry.host());
    shell_image::write(&scene.path("image.tar"));
    let copy = ["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", "oci-archive:image.tar"];
    run_tool("skopeo", &[&copy[..], &[&format!("docker://{host}/vm/shell:1")]].concat(), &scene.path("."));
    let common = format!("--listen 127.0.0.1:0 --topology roots --plain-http {host}");
    let root = Agent::start(&scene, "a", &format!("--plain a --root {common} --allow-store oci://{host}/vm"));
    let join = root.ready["address"].as_str().unwrap().to_owned();
    let agent = Agent::start(&scene, "b", &format!("--plain b {common} --join {join}"));
    wait_until("connected", TIMEOUT, || part(&agent)["peers"].as_array().unwrap().len() == 1);
    let convert = format!("image convert oci://{host}/vm/shell:1 --size 256M --plain-http {host} --warm");
    scene.is_wrong(&format!("{convert} file://~/disks:shell {}", agent.option()), &["directory", "--warm"]);
    scene.fails(&format!("{convert} --referrer --agent ~/x.sock"), &["no agent answers", "x.sock"]);
    let done = scene.json(&format!("{convert} --referrer {}", agent.option()));
    assert_eq!(done["warmed"][0]["host"], "a", "{done}");
    assert_eq!(done["warmed"][0]["lacking_bytes"], 0, "{done}");
    let blobs = part(&root);
    let blobs = blobs["blobs"].as_array().unwrap();
    assert!(!blobs.is_empty() && blobs.iter().all(|blob| blob["local_bytes"] == blob["len"]), "{blobs:?}");

    // The next host reads all of it, and asks the registry for next to nothing.
    let digest = done["digest"].as_str().unwrap();
    let words = format!(
        "oci://{host}/vm/shell@{digest} --cache ~/b-cache --swarm ~/b/swarm.sock --nbd unix:~/b.sock \
         --metrics 127.0.0.1:0 --fill 1GB/s --plain-http {host}"
    );
    let disk = Attached::start(&scene, &words);
    let is_whole =
        |m: &Metrics| m.sum("headstart_image_local_bytes", &[]) >= m.sum("headstart_image_bytes", &[]);
    let metrics = disk.wait_for("that the image is whole", is_whole);
    let stored = metrics.sum("headstart_image_bytes", &[]);
    let fetched = metrics.sum("headstart_store_bytes_total", &[]);
    assert!(fetched < stored / 4.0, "{fetched} of {stored} came from the registry");
    disk.detach();
}

/// An image that is pushed is on the roots before any disk boots it.
#[test]
fn a_pushed_image_is_warm_on_the_roots() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let (scene, host) = (noisy(4), registry.host());
    let common = format!("--listen 127.0.0.1:0 --topology roots --plain-http {host}");
    let allowed = format!("--allow-store oci://{host}/vm");
    let root = Agent::start(&scene, "a", &format!("--plain a --root {common} {allowed}"));
    let join = root.ready["address"].as_str().unwrap().to_owned();
    let agent = Agent::start(&scene, "b", &format!("--plain b {common} --join {join}"));
    wait_until("connected", TIMEOUT, || part(&agent)["peers"].as_array().unwrap().len() == 1);
    let push = |tag: &str| format!("image push file://~/store:v1 oci://{host}/vm:{tag} --plain-http {host}");
    scene.fails(&format!("{} --warm --agent ~/x.sock", push("v1")), &["no agent answers", "x.sock"]);
    let words = format!("image push file://~/store:v1 file://~/other --warm {}", agent.option());
    scene.is_wrong(&words, &["directory", "--warm"]);
    let done = scene.json(&format!("{} --warm {}", push("v1"), agent.option()));
    let warmed = done["warmed"].as_array().unwrap();
    assert_eq!((warmed.len(), &warmed[0]["host"], &warmed[0]["lacking_bytes"]), (1, &"a".into(), &0.into()));
    let blobs = part(&root);
    let blobs = blobs["blobs"].as_array().unwrap();
    assert!(!blobs.is_empty() && blobs.iter().all(|blob| blob["local_bytes"] == blob["len"]), "{blobs:?}");
    assert!(part(&agent)["blobs"].as_array().unwrap().is_empty());
    // The setting does the same for every push, and a push succeeds without an agent.
    let always = |words: String| {
        CommandRun::of(&words, scene.command(&words).env("HEADSTART_WARM_ON_PUSH", "1")).succeeds().stdout
    };
    let said = always(format!("{} {}", push("v2"), agent.option()));
    assert!(said.contains("\na: ") && said.contains("are there"), "{said}");
    let said = always(format!("{} --agent ~/x.sock", push("v3")));
    assert!(said.contains("not warm on the roots: ") && said.contains("no agent answers"), "{said}");
    let said = scene.ok(&push("v4")).stdout;
    assert!(!said.contains("warm"), "{said}");
}
