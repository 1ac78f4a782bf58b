//! Images in every kind of store become disks with the right bytes, and can be copied there and back.

use crate::attached::{Attached, Metrics, TIMEOUT};
use crate::images::{Web, can_check_bytes, check_bytes, layered};
use crate::scene::{CommandRun, Scene};
use headstart_testkit::redirect::{Behaviour, Front, RedirectStyle};
use headstart_testkit::registry::{PASSWORD, Registry, RegistryAccess, USER};
use headstart_testkit::s3::S3;
use headstart_testkit::token_server::TokenServer;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Attaches `image`, compares all bytes and detaches.
#[track_caller]
fn attach_and_check(scene: &Scene, image: &str, options: &str) {
    let attached = Attached::start(scene, &format!("{image} --cache ~/cache {options}"));
    assert_eq!(attached.ready["disks"][0]["size"], 16 << 20);
    check_bytes(scene, "disk.raw", &attached.uri());
    let report = attached.detach();
    assert!(report["reads"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn a_local_directory_is_read_where_it_lies() {
    if !can_check_bytes() {
        return;
    }
    let scene = layered();
    // The socket is in a new directory, which is removed with it.
    let attached = Attached::start(&scene, "file://~/store:v1");
    assert_eq!(attached.ready["disks"][0]["writable"], false);
    let uri = attached.uri();
    let socket = Path::new(uri.split_once("socket=").unwrap().1).to_owned();
    assert!(socket.exists() && !socket.starts_with(scene.path("")));
    check_bytes(&scene, "disk.raw", &uri);
    attached.detach();
    assert!(!socket.exists() && !socket.parent().unwrap().exists());
    // The other image of the store, and one by digest.
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    let both = Attached::start(&scene, &format!("base=file://~/store:base top=file://~/store@{digest}"));
    check_bytes(&scene, "base.raw", &both.uris()[0]);
    check_bytes(&scene, "disk.raw", &both.uris()[1]);
    both.detach();
    assert!(!scene.path("cache").exists());
}

#[test]
fn a_disk_comes_from_any_web_server() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    attach_and_check(&scene, &web.image(), "");
    let reads = web.reads(&scene);
    assert!(reads.sent() > 0);
    // At the second attach, only the manifest is requested, by tag or by digest.
    web.proxy.clear_log();
    attach_and_check(&scene, &web.image(), "");
    assert_eq!(web.reads(&scene).len(), 0, "{}", web.proxy.log());
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    attach_and_check(&scene, &format!("{}/@{digest}", web.proxy.url()), "");
    assert_eq!(web.reads(&scene).len(), 0, "{}", web.proxy.log());
}

#[test]
fn a_disk_comes_from_an_open_registry_and_its_mirrors() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    if !can_check_bytes() {
        return;
    }
    let scene = layered();
    let plain = format!("--plain-http {}", registry.host());
    let image = format!("oci://{}/vm/debian:v1", registry.host());
    scene.ok(&format!("image push file://~/store:v1 {image} {plain}"));
    scene.ok(&format!("image copy {image} oci://{}/vm/copy:v1 {plain}", registry.host()));
    scene.ok(&format!("image pull {image} file://~/back {plain}"));
    attach_and_check(&scene, "file://~/back:v1", "");
    attach_and_check(&scene, &image, &plain);
    // The image comes by way of a mirror; the registry's name in the reference does not exist.
    let mirror = format!("--mirror registry.invalid={0} --plain-http {0}", registry.host());
    attach_and_check(&scene, "oci://registry.invalid/vm/debian:v1", &mirror);
    // Another repository has the same blobs: they are here already.
    let copy = Attached::start(
        &scene,
        &format!("oci://{}/vm/copy:v1 {plain} --cache ~/cache --metrics 127.0.0.1:0", registry.host()),
    );
    check_bytes(&scene, "disk.raw", &copy.uri());
    assert_eq!(copy.metrics().sum("headstart_store_bytes_total", &[]), 0.0);
    assert_eq!(copy.metrics().requests("miss"), 0.0);
    copy.detach();
}

#[test]
fn a_registry_gets_the_passwords_of_docker_login() {
    let Some(registry) = Registry::start(RegistryAccess::Password) else { return };
    if !can_check_bytes() {
        return;
    }
    let (scene, host) = (layered(), registry.host());
    log_in(&scene, "docker", &host, USER, PASSWORD);
    log_in(&scene, "wrong", &host, USER, "wrong-password");
    let image = format!("oci://{host}/vm/debian:v1");
    scene.ok(&format!("image push file://~/store:v1 {image} --plain-http {host} --docker-config ~/docker"));
    attach_and_check(&scene, &image, &format!("--plain-http {host} --docker-config ~/docker"));
    // The error comes at once, before anything is served; it has the user's name and the remedy, but not the password.
    let began = Instant::now();
    let words = format!("attach {image} --plain-http {host} --cache ~/cold --nbd unix:~/d.sock");
    let run = scene.fails(&format!("{words} --docker-config ~/wrong"), &[&host, USER, "docker login"]);
    assert!(!run.stderr.contains("wrong-password") && run.stdout.is_empty(), "{run}");
    scene.fails(&format!("{words} --docker-config ~/nowhere"), &[&host, "no credentials", "docker login"]);
    // The image does not come out of a cache that another user has filled either.
    let shared = format!("{image} --plain-http {host} --cache ~/shared");
    let fill = format!("{shared} --docker-config ~/docker --fill 1GB/s --metrics 127.0.0.1:0");
    let fill = Attached::start(&scene, &fill);
    fill.wait_for("full disk", Metrics::all_is_local);
    fill.detach();
    for other in ["wrong", "nowhere"] {
        let words = format!("attach {shared} --docker-config ~/{other} --nbd unix:~/d.sock");
        scene.fails(&words, &[&host, "refuses it", "--cached-although-denied"]);
    }
    assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
    assert!(!scene.path("d.sock").exists());
}

/// A Docker configuration directory with one user.
fn log_in(scene: &Scene, dir: &str, host: &str, user: &str, password: &str) {
    fs::create_dir(scene.path(dir)).unwrap();
    let config = json!({"auths": { host: {"username": user, "password": password} }});
    fs::write(scene.path(dir).join("config.json"), config.to_string()).unwrap();
}

/// Tokens and signed addresses end while the disk is attached, earlier than announced: the client finds out by the
/// answers, 401 or 403.
fn through_a_token_server(forbid: bool) {
    if !can_check_bytes() {
        return;
    }
    let runtime = Runtime::new().unwrap();
    let tokens = runtime.block_on(TokenServer::start());
    tokens.set_user(USER, PASSWORD);
    let Some(registry) = Registry::start(RegistryAccess::Token(&tokens)) else { return };
    let mut behaviour = Behaviour { redirect: forbid, forbid, ..Behaviour::default() };
    let front = runtime.block_on(Front::start(&registry, behaviour));
    let (scene, host) = (layered(), front.host());
    log_in(&scene, "docker", &host, USER, PASSWORD);
    log_in(&scene, "wrong", &host, "stranger", PASSWORD);
    let options = format!("--plain-http {host} --docker-config ~/docker");
    let image = format!("oci://{host}/vm/debian:v1");
    scene.ok(&format!("image push file://~/store:v1 {image} {options}"));

    tokens.set_life(Duration::from_secs(2));
    tokens.set_told_life(300);
    (behaviour.life, behaviour.told, behaviour.style) =
        (Duration::from_secs(2), Some(Duration::from_secs(300)), RedirectStyle::Amazon);
    front.set(behaviour);
    let attached = Attached::start(&scene, &format!("{image} {options} --cache ~/cache"));
    let uri = attached.uri();
    let (granted, seen) = (tokens.granted(), front.seen());
    for quarter in 0..3_u64 {
        // This is longer than both live, which end with a second.
        std::thread::sleep(Duration::from_millis(3100));
        let script = format!("assert(len(h.pread(65536, {})) == 65536)", (quarter + 1) << 20);
        crate::images::tool(&scene, "nbdsh", &["-u", &uri, "-c", &script]);
    }
    check_bytes(&scene, "disk.raw", &uri);
    let now = front.seen();
    assert!(tokens.granted() > granted, "no token was renewed: {now:?}");
    assert_eq!(now.forbidden > seen.forbidden, forbid, "{now:?}");
    assert_eq!(now.expired > seen.expired, forbid, "{now:?}");
    assert_eq!(now.leaked, 0);
    attached.detach();

    scene.fails(
        &format!("attach {image} --plain-http {host} --docker-config ~/wrong --cache ~/cold"),
        &[&host, "stranger", "docker login"],
    );
}

#[test]
fn a_registry_whose_tokens_run_out_with_401() {
    through_a_token_server(false);
}

#[test]
fn a_registry_whose_tokens_and_addresses_run_out_with_403() {
    through_a_token_server(true);
}

/// Runs with the environment of an S3 client, without the permission to do without TLS.
fn with_keys<'a>(command: &'a mut Command, server: &S3) -> &'a mut Command {
    command.env_remove("AWS_ALLOW_HTTP");
    let variables = S3::environment(&server.endpoint());
    command.envs(variables.into_iter().filter(|(name, _)| *name != "AWS_ALLOW_HTTP"))
}

#[test]
fn a_disk_comes_from_an_object_store() {
    if !S3::is_installed() || !can_check_bytes() {
        return;
    }
    let scene = layered();
    let server = S3::with_bucket("images");
    let run = |words: &str| CommandRun::of(words, with_keys(&mut scene.command(words), &server));
    let plain = format!("--plain-http {}", server.addr());
    run(&format!("image push file://~/store:v1 s3://images/vm {plain}")).succeeds();
    run(&format!("image copy s3://images/vm:v1 s3://images/other:v2 {plain}")).succeeds();
    run(&format!("image pull s3://images/other:v2 file://~/back:v1 {plain}")).succeeds();
    attach_and_check(&scene, "file://~/back:v1", "");
    let words = format!("attach --json s3://images/vm:v1 {plain} --cache ~/cache");
    let attached = Attached::of(with_keys(&mut scene.command(&words), &server));
    check_bytes(&scene, "disk.raw", &attached.uri());
    attached.detach();

    let cold = format!("attach s3://images/vm:v1 {plain} --cache ~/cold --nbd unix:~/d.sock");
    let mut command = scene.command(&cold);
    let began = Instant::now();
    with_keys(&mut command, &server).env("AWS_SECRET_ACCESS_KEY", "wrong-secret");
    let at = format!("(at {})", server.addr());
    let parts = ["s3://images/vm", &at, "refuses the credentials", "SignatureDoesNotMatch: "];
    let refused = CommandRun::of(&cold, &mut command).fails(&parts);
    assert!(!refused.stderr.contains('<'), "{refused}");
    let without_plain = "attach s3://images/vm:v1 --cache ~/cold --nbd unix:~/d.sock";
    run(without_plain).fails(&["--plain-http"]);
    let nowhere = format!("attach s3://nowhere/vm:v1 {plain} --cache ~/cold --nbd unix:~/d.sock");
    run(&nowhere).fails(&["s3://nowhere/vm", &at]);
    // A bucket of that name at another endpoint is another one, even while it is away and this one is in the cache.
    let words = "attach s3://images/vm:v1 --plain-http 127.0.0.1:9 --cache ~/cache --nbd unix:~/d.sock";
    let mut command = scene.command(words);
    with_keys(&mut command, &server).env("AWS_ENDPOINT_URL", "http://127.0.0.1:9");
    CommandRun::of(words, &mut command).fails(&["s3://images/vm", "(at 127.0.0.1:9)"]);
    assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
    assert!(!scene.path("d.sock").exists());
}
