//! Images go from store to store, through servers of other projects, and do not change.

use crate::disk::{assert_same, copy_of, mixed_disk, noise};
use crate::scene::{CommandRun, Scene};
use headstart_testkit::nginx::Nginx;
use headstart_testkit::registry::{Registry, RegistryAccess};
use headstart_testkit::s3::S3;
use std::fs;

/// An image of two layers, `file://~/store:v1`, and the disk of the same, `b.raw`.
fn scene() -> Scene {
    let scene = Scene::new();
    mixed_disk(&scene, "a.raw", 8);
    copy_of(&scene, "a.raw", "b.raw").write(1 << 20, &noise(1, 5000));
    scene.ok("image import a.raw file://~/store:base");
    scene.ok("image import b.raw file://~/store:v1 --base file://~/store:base");
    scene
}

/// Checks that every byte of the returned image is right.
fn check(scene: &Scene, image: &str) {
    scene.ok(&format!("image verify --deep {image}"));
    scene.ok(&format!("image export {image} -o back.raw"));
    assert_same(scene, "b.raw", "back.raw");
    fs::remove_file(scene.path("back.raw")).unwrap();
}

/// Checks that an image in another store is reported as in its first one, and as right.
fn check_there(scene: &Scene, image: &str, run: impl Fn(&str) -> CommandRun) {
    let mut here = scene.json("image inspect file://~/store:v1");
    let mut there = run(&format!("image inspect {image} --json")).succeeds().json();
    assert!(image.starts_with(there["image"].as_str().unwrap()), "{there}");
    here["image"].take();
    there["image"].take();
    assert_eq!(here, there);
    let verified = run(&format!("image verify {image} --json")).succeeds().json();
    assert_eq!((&verified["right"], &verified["digest"]), (&true.into(), &here["digest"]));
}

#[test]
fn images_are_copied_between_directories() {
    let scene = scene();
    let copied = scene.json("image copy file://~/store:v1 file://~/other");
    assert_eq!((&copied["copied_blobs"], &copied["present_blobs"]), (&5.into(), &0.into()));
    assert!(copied["image"].as_str().unwrap().ends_with("other:v1"));
    assert_eq!(copied["digest"], scene.json("image inspect file://~/store:v1")["digest"]);
    check(&scene, "file://~/other:v1");
    assert_eq!(scene.json("image copy file://~/store:v1 file://~/other:v2")["copied_blobs"], 0);
    // The base's layers are there; its config is not.
    assert_eq!(scene.json("image copy file://~/store:base file://~/other")["copied_blobs"], 1);
    assert_eq!(scene.json("image prune file://~/other")["blobs"], 0);
    assert_eq!(scene.names("other/.headstart/staging"), [""; 0]);

    scene.fails("image copy file://~/store:none file://~/other", &["store:none", "image list"]);
    scene.fails("image copy file://~/nowhere:v1 file://~/other", &["nowhere", "oci-layout"]);
    scene.is_wrong("image push oci://127.0.0.1:9/r:v1 file://~/other", &["image copy"]);
    scene.is_wrong("image pull file://~/store:v1 oci://127.0.0.1:9/r", &["image copy"]);
    scene.is_wrong("image copy file://~/store:v1 file://~/other --warm", &["directory", "--warm"]);
    let digest = copied["digest"].as_str().unwrap();
    scene.is_wrong(&format!("image copy file://~/store@{digest} file://~/other"), &["no tag", "other:TAG"]);
    scene.fails("image pull oci://127.0.0.1:9/r:v1 file://~/other", &["127.0.0.1:9", "refused"]);
    scene.fails("image export oci://127.0.0.1:9/r:v1 -o x.raw", &["image pull"]);
    scene.fails("image verify --deep oci://127.0.0.1:9/r:v1", &["image pull"]);
    scene.fails("image inspect oci://127.0.0.1:9/r:v1", &["127.0.0.1:9", "refused"]);
    for target in ["s3://bucket/x:v1", "oci://127.0.0.1:9/r:v1", "https://127.0.0.1:9/x:v1"] {
        let (store, _) = target.rsplit_once(':').unwrap();
        for making in ["import a.raw", "flatten file://~/store:v1"] {
            scene.is_wrong(&format!("image {making} {target}"), &["directory", store, "file:///DIR:TAG"]);
        }
        scene.is_wrong(&format!("image commit --writable ~/vm {target}"), &["directory", store, "--push"]);
    }
}

#[test]
fn images_are_copied_through_a_registry() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let scene = scene();
    let (host, plain) = (registry.host(), format!("--plain-http {}", registry.host()));
    scene.fails(&format!("image push file://~/store:v1 oci://{host}/vm/debian"), &[&host]);
    let pushed = scene.json(&format!("image push file://~/store:v1 oci://{host}/vm/debian {plain}"));
    assert_eq!(pushed["copied_blobs"], 5);
    let again = scene.json(&format!("image push file://~/store:v1 oci://{host}/vm/debian:v2 {plain}"));
    assert_eq!((&again["copied_blobs"], &again["digest"]), (&0.into(), &pushed["digest"]));
    let listed = scene.json(&format!("image list oci://{host}/vm/debian {plain}"));
    let tags: Vec<_> = listed["images"].as_array().unwrap().iter().map(|image| &image["tag"]).collect();
    assert_eq!(tags, ["v1", "v2"]);
    assert_eq!(listed["images"][0]["layers"], 2);
    check_there(&scene, &format!("oci://{host}/vm/debian:v1 {plain}"), |words| scene.run(words));
    let digest = pushed["digest"].as_str().unwrap();
    scene.ok(&format!("image pull oci://{host}/vm/debian@{digest} file://~/back:x {plain}"));
    check(&scene, "file://~/back:x");
    // From registry to registry, another repository.
    let taken = scene.json(&format!("image copy oci://{host}/vm/debian:v1 oci://{host}/other:v1 {plain}"));
    assert_eq!((&taken["copied_blobs"], &taken["copied_bytes"]), (&0.into(), &0.into()));
    assert_eq!(
        (&taken["mounted_blobs"], &taken["mounted_bytes"]),
        (&pushed["copied_blobs"], &pushed["copied_bytes"])
    );
    check_there(&scene, &format!("oci://{host}/other:v1 {plain}"), |words| scene.run(words));
    scene.fails(&format!("image pull oci://{host}/vm/none:v1 file://~/back {plain}"), &["vm/none"]);
}

#[test]
fn images_are_copied_from_a_web_server() {
    if !Nginx::is_installed() {
        return;
    }
    let scene = scene();
    let server = Nginx::serve(&scene.path("store"));
    let url = server.url();
    let url = url.trim_end_matches('/');
    assert_eq!(scene.json(&format!("image list {url}"))["images"].as_array().unwrap().len(), 2);
    check_there(&scene, &format!("{url}/:v1"), |words| scene.run(words));
    let layer = scene.json("image inspect file://~/store:v1")["layers"][1]["digest"].clone();
    fs::rename(scene.blob("store", &layer), scene.path("layer")).unwrap();
    scene.fails(&format!("image inspect {url}/:v1"), &[url, layer.as_str().unwrap(), "is not there"]);
    fs::rename(scene.path("layer"), scene.blob("store", &layer)).unwrap();
    let began = std::time::Instant::now();
    let pulled = scene.json(&format!("image pull {url}/:v1 file://~/back --limit-rate 2MB/s"));
    let bytes = pulled["copied_bytes"].as_f64().unwrap();
    // A quarter of a second's worth is free.
    assert!(began.elapsed().as_secs_f64() > bytes / 2e6 - 0.3, "{bytes} in {:?}", began.elapsed());
    check(&scene, "file://~/back:v1");
    scene.fails(&format!("image push file://~/back:v1 {url}/"), &["cannot be written"]);
    scene.fails(&format!("image pull {url}/nowhere:v1 file://~/back"), &["nowhere", "404"]);
}

/// Runs a command with the environment for an object store.
pub(crate) fn run_on(server: &S3, scene: &Scene, words: &str) -> CommandRun {
    let words = format!("{words} --plain-http {}", server.addr());
    let mut command = scene.command(&words);
    command.envs(S3::environment(&server.endpoint()));
    CommandRun::of(&words, &mut command)
}

#[test]
fn images_are_copied_through_an_object_store() {
    if !S3::is_installed() {
        return;
    }
    let scene = scene();
    let server = S3::with_bucket("images");
    let run = |words: &str| {
        let mut command = scene.command(words);
        command.env_remove("AWS_ALLOW_HTTP");
        for (name, value) in S3::environment(&server.endpoint()) {
            if name != "AWS_ALLOW_HTTP" {
                command.env(name, value);
            }
        }
        CommandRun::of(words, &mut command)
    };
    let plain = format!("--plain-http {}", server.addr());
    run("image push file://~/store:v1 s3://images/a/b").fails(&["--plain-http"]);
    run(&format!("image push file://~/store:v1 s3://images/a/b {plain}")).succeeds();
    run(&format!("image push file://~/store:base s3://images/a/b:v0 {plain}")).succeeds();
    let listed = run(&format!("image list s3://images/a/b {plain} --json")).succeeds().json();
    assert_eq!(listed["images"].as_array().unwrap().len(), 2);
    check_there(&scene, &format!("s3://images/a/b:v1 {plain}"), run);
    // The message has the image as it was typed, and the endpoint of its bucket.
    run(&format!("image inspect s3://images/a/b:none {plain}"))
        .fails(&["s3://images/a/b:none ", &format!("(at {})", server.addr())]);
    // The message proposes nothing that is not possible there.
    let verified = run(&format!("image verify s3://images/a/b:v1 {plain}")).succeeds();
    assert!(
        verified.stdout.contains("headstart image pull") && !verified.stdout.contains("--deep"),
        "{verified}"
    );
    run(&format!("image pull s3://images/a/b:v1 file://~/back {plain}")).succeeds();
    check(&scene, "file://~/back:v1");
    let denied = format!("image pull s3://images/a/b:v1 file://~/back {plain}");
    let mut command = scene.command(&denied);
    command.envs(S3::environment(&server.endpoint())).env("AWS_SECRET_ACCESS_KEY", "wrong");
    CommandRun::of(&denied, &mut command).fails(&["refuses the credentials"]);
}
