//! Impossible requests are refused at once: the message names the thing, the cause and the remedy, and nothing is left.

use crate::attached::Attached;
use crate::images::{Web, can_check_bytes, check_bytes, layered};
use crate::scene::Scene;
use crate::tools::skipped;
use headstart_testkit::faults::{Fault, FaultProxy, FaultRule, Outage};
use headstart_testkit::nginx::Nginx;
use serde_json::json;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// The longest time for a refusal.
const QUICK: Duration = Duration::from_secs(20);

/// Attaching fails with all of `parts` in its message, quickly, and leaves neither socket nor writable directory.
#[track_caller]
fn refused(scene: &Scene, words: &str, parts: &[&str]) {
    let began = Instant::now();
    let run = scene.fails(&format!("attach {words}"), parts);
    assert!(began.elapsed() < QUICK, "{:?}: {run}", began.elapsed());
    assert_eq!(run.stdout, "");
    assert!(!scene.path("d.sock").exists() && !scene.path("vm").exists(), "{run}");
}

const SERVE: &str = "--nbd unix:~/d.sock --writable ~/vm";

/// The server is asked again for a moment, because it may be one of several, but not for as long as one that is away.
#[test]
fn a_web_server_without_ranges_is_refused() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    web.proxy.add(FaultRule::new(Fault::IgnoreRange).on_path("/blobs/"));
    let words = format!("{} --cache ~/cache {SERVE}", web.image());
    refused(&scene, &words, &["sent the whole blob", "honours `Range`"]);
}

#[test]
fn references_to_no_image_are_refused() {
    let scene = layered();
    refused(&scene, &format!("file://~/store:v3 {SERVE}"), &["store:v3", "image list"]);
    refused(&scene, &format!("file://~/nowhere:v1 {SERVE}"), &["nowhere", "oci-layout"]);
    fs::create_dir(scene.path("empty")).unwrap();
    refused(&scene, &format!("file://~/empty:v1 {SERVE}"), &["empty", "oci-layout"]);
    let unknown = format!("sha256:{}", "0".repeat(64));
    refused(&scene, &format!("file://~/store@{unknown} {SERVE}"), &["store", &unknown]);
    // A container image: an OCI image without a disk in it.
    let layout = scene.path("container");
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let put_bytes = |bytes: &[u8]| {
        let digest = crate::scene::sha256(bytes);
        fs::write(layout.join("blobs/sha256").join(&digest), bytes).unwrap();
        format!(r#""digest":"sha256:{digest}","size":{}"#, bytes.len())
    };
    let put = |text: &str| put_bytes(text.as_bytes());
    let config = put("{}");
    // Only the beginning of the layer is checked.
    let layer = put_bytes(&[&[0x1f, 0x8b, 8, 0], &[7; 70_000][..]].concat());
    let manifest = put(&format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
            "config":{{"mediaType":"application/vnd.oci.image.config.v1+json",{config}}},
            "layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip",{layer}}}]}}"#
    ));
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json",{manifest},
            "annotations":{{"org.opencontainers.image.ref.name":"v1"}}}}]}}"#
    );
    fs::write(layout.join("index.json"), index).unwrap();
    refused(
        &scene,
        &format!("file://~/container:v1 {SERVE}"),
        &["container", "a container's layer", "convert"],
    );

    if !Nginx::is_installed() {
        return;
    }
    let server = Nginx::serve(&scene.path(""));
    let cold = format!("--cache ~/cache {SERVE}");
    refused(&scene, &format!("{}/store:v3 {cold}", server.url()), &["store:v3", "image list"]);
    refused(&scene, &format!("{}/nowhere:v1 {cold}", server.url()), &["nowhere", "404"]);
    refused(&scene, &format!("{}/store@{unknown} {cold}", server.url()), &["store", &"0".repeat(64)]);
    refused(
        &scene,
        &format!("{}/container:v1 {cold}", server.url()),
        &["/container:v1, layer sha256:", "a container's layer", "image convert", "image inspect --forms"],
    );
}

#[test]
fn absent_hosts_are_named() {
    let scene = Scene::new();
    let cold = format!("--cache ~/cache {SERVE}");
    // Other processes do not get a port that refuses; names with this ending never exist.
    let refusing = FaultProxy::start(([127, 0, 0, 1], 9).into());
    refusing.set_outage(Outage::Refuse);
    let there = refusing.addr().to_string();
    let plain = format!("--plain-http {there} {cold}");
    let nowhere = "no-such-host.invalid".to_owned();
    // The message does not name the first request, which the user did not name.
    let repository = format!("http://{there}/vm: ");
    let images = [
        (format!("http://{there}/vm:v1 {plain}"), [&there, "refused", "check the address"]),
        (format!("oci://{there}/vm:v1 {plain}"), [&repository, "refused", "check the address"]),
        (format!("http://{nowhere}/store:v1 {cold}"), [&nowhere, "dns error", "check the address"]),
        (format!("oci://{nowhere}/vm:v1 {cold}"), [&nowhere, "dns error", "check the address"]),
    ];
    std::thread::scope(|scope| {
        for (words, parts) in &images {
            scope.spawn(|| refused(&scene, words, parts));
        }
    });
    assert!(!scene.path("cache/images").exists());
}

#[test]
fn stores_with_certificates_of_their_own() {
    let scene = layered();
    if !Nginx::is_installed() || !can_check_bytes() {
        return;
    }
    crate::nbd::certificates(&scene.path("tls"));
    let certificate = headstart_testkit::nginx::Certificate {
        chain: scene.path("tls/server-cert.pem"),
        key: scene.path("tls/server-key.pem"),
    };
    let server = Nginx::serve_with(&scene.path("store"), Some(&certificate));
    let image = format!("{}/:v1", server.url());
    assert!(image.starts_with("https://"));
    let attached = Attached::start(&scene, &format!("{image} --ca-file ~/tls/ca-cert.pem --cache ~/cache"));
    check_bytes(&scene, "disk.raw", &attached.uri());
    attached.detach();
    scene.ok(&format!("image pull {image} file://~/back --ca-file ~/tls/ca-cert.pem"));

    refused(
        &scene,
        &format!("{image} --cache ~/cold {SERVE}"),
        &[&server.addr().to_string(), "certificate", "--ca-file"],
    );
    // The wrong one of the two schemes.
    let plain = Nginx::serve(&scene.path("store"));
    let words = format!("https://{}/:v1 --cache ~/cold {SERVE}", plain.addr());
    refused(&scene, &words, &["does not speak TLS", "write http://"]);
    let words = format!("http://{}/:v1 --cache ~/cold {SERVE}", server.addr());
    refused(&scene, &words, &["400", "write https://"]);
    let host = server.addr().to_string();
    refused(
        &scene,
        &format!("oci://{host}/vm:v1 --plain-http {host} --cache ~/cold {SERVE}"),
        &["400", "leave out `--plain-http`"],
    );
    refused(
        &scene,
        &format!("{image} --ca-file ~/tls/none.pem --cache ~/cold {SERVE}"),
        &["none.pem", "cannot read"],
    );
    refused(
        &scene,
        &format!("{image} --ca-file ~/tls/server-key.pem --cache ~/cold {SERVE}"),
        &["server-key.pem", "certificate"],
    );
}

#[test]
fn taken_sockets_and_ports_are_refused() {
    let scene = layered();
    let image = "file://~/store:v1";
    let attached = Attached::start(&scene, &format!("{image} --nbd unix:~/taken.sock --vhost-user ~/v.sock"));
    refused(&scene, &format!("{image} --nbd unix:~/taken.sock"), &["taken.sock", "another"]);
    refused(&scene, &format!("{image} --vhost-user ~/v.sock"), &["v.sock", "another"]);
    // Servers that were started before are stopped again.
    refused(&scene, &format!("{image} --nbd unix:~/d.sock --nbd unix:~/taken.sock"), &["taken.sock"]);
    assert!(scene.path("taken.sock").exists() && scene.path("v.sock").exists());
    attached.detach();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    refused(&scene, &format!("{image} --nbd 127.0.0.1:{port}"), &[&format!("127.0.0.1:{port}"), "in use"]);
    refused(
        &scene,
        &format!("{image} --nbd unix:~/d.sock --metrics 127.0.0.1:{port}"),
        &["--metrics", &format!("127.0.0.1:{port}"), "in use"],
    );
    // A file stays, and so does a socket without a listener that another program made.
    drop(UnixListener::bind(scene.path("old.sock")).unwrap());
    // A program that another test starts meanwhile listens, too, until it is executed.
    while UnixStream::connect(scene.path("old.sock")).is_ok() {}
    refused(
        &scene,
        &format!("{image} --nbd unix:~/old.sock"),
        &["old.sock", "on which no process answers", "rm "],
    );
    refused(
        &scene,
        &format!("{image} --nbd unix:~/disk.raw"),
        &["disk.raw", "is not a socket", "another path"],
    );
    assert_eq!(fs::metadata(scene.path("disk.raw")).unwrap().len(), 16 << 20);
    // A writable directory that was made for it is removed as well, with those around it.
    for way in ["--nbd unix:~/no/dir/d.sock", "--vhost-user ~/no/dir/d.sock"] {
        refused(
            &scene,
            &format!("{image} --writable ~/vm/disk {way}"),
            &["no/dir/d.sock", "make the directory", "no/dir first"],
        );
    }
    let two = format!("a={image} b={image} --writable ~/vm --nbd unix:~/d.sock");
    refused(&scene, &format!("{two} --metrics 127.0.0.1:{port}"), &["--metrics", "in use"]);
    refused(&scene, &format!("a={image} b=file://~/store:v3 --writable ~/vm"), &["store:v3"]);
    refused(&scene, &format!("{image} --fuse ~/nothing"), &["nothing", "make a directory"]);
}

#[test]
fn a_writable_directory_with_writes_stays_where_a_server_does_not_start() {
    let scene = layered();
    let image = "file://~/store:v1";
    Attached::start(&scene, &format!("{image} --writable ~/kept --nbd unix:~/d.sock")).detach();
    let before = scene.fingerprint("kept");
    assert!(!before.is_empty());
    refused(&scene, &format!("{image} --writable ~/kept --nbd unix:~/no/d.sock"), &["no/d.sock"]);
    assert_eq!(scene.fingerprint("kept"), before);
}

/// Otherwise the earlier writes would seem to have vanished.
#[test]
fn a_writable_directory_is_of_one_disk_or_of_several() {
    let scene = layered();
    let (one, two) = ("web=file://~/store:v1", "web=file://~/store:v1 db=file://~/store:base");
    Attached::start(&scene, &format!("{one} --writable ~/one --nbd unix:~/d.sock")).detach();
    let before = scene.fingerprint("one");
    refused(&scene, &format!("{two} --writable ~/one --nbd unix:~/d.sock"), &["one", "move its files"]);
    assert_eq!(scene.fingerprint("one"), before);
    Attached::start(&scene, &format!("{two} --writable ~/two --nbd unix:~/d.sock")).detach();
    let parts = ["two", "several disks", "--writable", "two/"];
    refused(&scene, &format!("{one} --writable ~/two --nbd unix:~/d.sock"), &parts);
    Attached::start(&scene, &format!("{one} --writable ~/two/web --nbd unix:~/d.sock")).detach();
    Attached::start(&scene, &format!("{two} --writable ~/two --nbd unix:~/d.sock")).detach();
}

#[test]
fn unusable_caches_are_refused() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    let image = web.image();
    refused(&scene, &format!("{image} --cache ~/disk.raw {SERVE}"), &["disk.raw", "directory"]);
    if rustix::process::geteuid().is_root() {
        // The administrator may write anywhere, except in places where no user can.
        refused(&scene, &format!("{image} --cache /proc/headstart {SERVE}"), &["/proc/headstart"]);
    } else {
        skipped("a directory that cannot be written is no hindrance to root; this is not root: not /proc");
    }
    // Local images need no cache.
    let attached = Attached::start(&scene, "file://~/store:v1 --cache ~/disk.raw");
    attached.detach();
}

#[test]
fn options_that_do_not_fit_together_are_refused() {
    let scene = layered();
    let two = "a=file://~/store:v1 b=file://~/store:base";
    for option in ["--vhost-user ~/v.sock", "--fuse ~/mnt", "--ublk", "--device auto"] {
        scene.is_wrong(&format!("attach {two} {option}"), &[option.split(' ').next().unwrap(), "one image"]);
    }
    for (words, parts) in [
        ("file://~/store:v1 file://~/store:base", ["a name each", "NAME=IMAGE"]),
        ("a=file://~/store:v1 a=file://~/store:base", ["store:base", "the name `a` already"]),
        ("file://~/store:v1 --plans ~/plans --policy lazy", ["--plans", "--policy auto"]),
    ] {
        let run = scene.is_wrong(&format!("attach {words}"), &parts);
        assert!(run.stderr.starts_with("headstart: ") && run.stderr.lines().count() == 1, "{run}");
    }
    for (words, part) in [
        ("file://~/store:v1 --size 1G", "--writable"),
        ("file://~/store:v1 --tls-cert x", "--tls-key"),
        ("file://~/store:v1 --queues 2", "--vhost-user"),
        ("file://~/store:v1 --fill fast", "--fill"),
        ("file://~/store:v1 --deadline soon", "--deadline"),
        ("file://~/store:v1 --deadline 0s", "no read could wait"),
        ("file://~/store:v1 --record-time 2h", "71 minutes"),
        ("file://~/store:v1 --cache-size 1k", "at least 4 MiB"),
        ("file://~/store:v1 --vhost-user ~/v.sock --queues 0", "--queues"),
        ("file://~/store:v1 --vhost-user ~/v.sock --queues 65", "--queues"),
        ("file://~/store:v1 --nbd nowhere", "unix:/path"),
        ("file://~/store:v1 --metrics nowhere", "HOST:PORT"),
        ("file://~/store:v1 --metrics unix:/m.sock", "HOST:PORT"),
        ("store", "file:///DIR"),
        ("../a=file://~/store:v1", "not a name of an export"),
        ("", "IMAGE"),
    ] {
        let run = scene.run(&format!("attach {words}"));
        assert!(run.status == Some(2) && run.stderr.contains(part), "{run}");
    }
}

#[test]
fn devices_that_the_kernel_lacks_are_refused() {
    let scene = layered();
    for (option, device) in [("--ublk", "/dev/ublk-control"), ("--device auto", "/dev/nbd0")] {
        if std::path::Path::new(device).exists() {
            skipped(&format!("this kernel has {device}: {option} is not refused"));
            continue;
        }
        refused(&scene, &format!("file://~/store:v1 {option}"), &["this kernel", "--nbd", "--fuse"]);
    }
}

/// Lengths in a manifest take no space, and nothing is left of layers that are not there.
#[test]
fn a_manifest_of_layers_that_are_not_there_takes_no_space() {
    let scene = layered();
    let digest = scene.json("image inspect file://~/store:v1")["digest"].clone();
    for (n, len) in [(1, 1_u64 << 30), (2, 40 << 30)] {
        let mut manifest = scene.manifest("store", &digest);
        let layer = manifest["layers"][0].clone();
        let layers = (0..60).map(|at| {
            let digest = format!("sha256:{}", crate::scene::sha256(&[n, at]));
            let mut layer = layer.clone();
            layer["annotations"] = json!({
                "containerd.io/snapshot/overlaybd/version": "0.1.0",
                "containerd.io/snapshot/overlaybd/blob-digest": digest,
                "containerd.io/snapshot/overlaybd/blob-size": len.to_string(),
            });
            (layer["digest"], layer["size"]) = (json!(digest), json!(len));
            layer
        });
        manifest["layers"] = layers.collect();
        let text = manifest.to_string();
        let digest = crate::scene::sha256(text.as_bytes());
        fs::write(scene.path("store/blobs/sha256").join(&digest), text).unwrap();
        let Some(web) = Web::before(&scene) else { return };
        let words = format!("{}/@sha256:{digest} --cache ~/cache --nbd unix:~/d.sock", web.proxy.url());
        scene.fails(&format!("attach {words}"), &["404"]);
        let files =
            fs::read_dir(scene.path("cache")).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
        let taken: u64 = files.map(|file| file.blocks() * 512).sum();
        assert!(taken < 1 << 20, "{taken} bytes for layers of {len} bytes");
    }
}
