//! vSSDs as disks.

use crate::daemon::{Daemon, TIMEOUT, qemu_io, uri};
use crate::scene::Scene;
use crate::tools::{find, installed};
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A client that has a disk open until it is dropped.
struct Client(Child);

impl Client {
    fn open(daemon: &Daemon<'_>, name: &str) -> Self {
        daemon.wait_until_unused(name);
        let mut command = Command::new(find("qemu-io").unwrap());
        command.args(["-f", "raw", &uri(&daemon.vssd(name))]);
        let client = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let client = Self(client.unwrap());
        let until = Instant::now() + TIMEOUT;
        while daemon.vssd(name)["clients"] == 0 {
            assert!(Instant::now() < until, "the client is not there");
        }
        client
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn writes_are_there_after_restarts_and_kills() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    let mut daemon = Daemon::start(&scene, "--size 2G");
    assert_eq!(daemon.ready["vssds"], 0);
    let db = daemon.create("db --channels 2");
    let other = daemon.create("other --channels 1 --size 32M");
    assert!(db.contains("/db?socket=") && other.contains("/other?socket="), "{db} {other}");
    qemu_io(&scene, &db, &["write -P 0x5a 0 4M", "write -P 0x33 10M 4k", "flush"]);
    qemu_io(&scene, &other, &["read -P 0 0 32M", "write -P 0x77 1M 1M", "write -P 0x11 33550336 4096"]);
    let written: &[&str] = &["read -P 0x5a 0 4M", "read -P 0 4M 6M", "read -P 0x33 10M 4k"];
    qemu_io(&scene, &db, written);
    // After an orderly end nothing is lost, flushed or not.
    daemon.restart();
    assert_eq!(daemon.ready["vssds"], 2);
    qemu_io(&scene, &db, written);
    qemu_io(&scene, &other, &["read -P 0x77 1M 1M", "read -P 0 2M 1M", "read -P 0x11 33550336 4096"]);
    // After a kill, nothing is lost that was flushed.
    qemu_io(&scene, &db, &["write -P 0x44 20M 1M", "discard 0 1M", "flush"]);
    daemon.kill_and_start();
    qemu_io(&scene, &db, &["read -P 0 0 1M", "read -P 0x5a 1M 3M", "read -P 0x44 20M 1M"]);
    daemon.stop();
}

/// Free flash that is erased is not erased once more by each restart, which would be wear.
#[test]
fn an_orderly_restart_wears_no_flash() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    let mut daemon = Daemon::start(&scene, "--size 2G");
    let db = daemon.create("db --channels 2");
    qemu_io(&scene, &db, &["write -P 0x5a 0 4M", "flush"]);
    let erasures = |daemon: &Daemon<'_>| daemon.ask("status")["flash"]["erasures"].as_u64().unwrap();
    let before = erasures(&daemon);
    for round in 1..4 {
        daemon.restart();
        qemu_io(&scene, &db, &[&format!("write -P 0x33 {}M 3M", 8 * round), "flush", "read -P 0x5a 0 4M"]);
    }
    assert_eq!(erasures(&daemon), before);
    // A killed daemon may have programmed any flash.
    daemon.kill_and_start();
    qemu_io(&scene, &db, &["write -P 0x44 40M 3M", "flush", "read -P 0x5a 0 4M", "read -P 0x33 24M 3M"]);
    assert!(erasures(&daemon) > before);
    daemon.stop();
}

#[test]
fn a_channel_has_the_rate_that_it_was_given() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, "--size 1G --channel-rate 16M");
    let (one, two) = (daemon.create("one --channels 1"), daemon.create("two --channels 2"));
    let begun = Instant::now();
    // For both, the data of a burst is ahead of its time.
    qemu_io(&scene, &one, &["write -P 1 0 32M"]);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(1700), "{took:?}");
    let begun = Instant::now();
    qemu_io(&scene, &two, &["write -P 1 0 32M"]);
    let half = begun.elapsed();
    assert!(half >= Duration::from_millis(700), "{half:?}");
}

#[test]
fn sizes_change_while_disks_are_used() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, "--size 2G");
    let db = daemon.create("db --channels 2 --size 16M");
    qemu_io(&scene, &db, &["write -P 1 15M 1M"]);
    let resized = daemon.ask("vssd resize db 24M");
    assert_eq!(resized["size"], 24 << 20);
    qemu_io(&scene, &db, &["read -P 1 15M 1M", "read -P 0 16M 8M", "write -P 2 23M 1M"]);
    assert_eq!(daemon.vssd("db")["size"], 24 << 20);
    // There are no clients now, but their data is there.
    daemon.wait_until_unused("db");
    daemon.refuses("vssd resize db 8M", &["db", "2 MiB", "--force"]);
    qemu_io(&scene, &db, &["read -P 1 15M 1M", "read -P 2 23M 1M"]);
    daemon.ask("vssd resize db 8M --force");
    assert_eq!(daemon.vssd("db")["size"], 8 << 20);
    // A client may have a file system on all of it.
    let client = Client::open(&daemon, "db");
    daemon.refuses("vssd resize db 4M", &["db", "in use", "--force"]);
    daemon.ask("vssd resize db 4M --force");
    drop(client);
    // The data beyond the end has not come back.
    daemon.ask("vssd resize db 24M");
    qemu_io(&scene, &db, &["read -P 0 8M 16M"]);
    // Nothing is lost if the removed part was never written.
    daemon.wait_until_unused("db");
    daemon.ask("vssd resize db 16M");
}

#[test]
fn a_disk_in_use_is_deleted_by_force_alone() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, "--size 2G");
    daemon.create("db --channels 2");
    daemon.create("next");
    let client = Client::open(&daemon, "db");
    daemon.refuses("vssd delete db", &["db", "in use", "--force"]);
    assert_eq!(daemon.vssd("db")["clients"], 1);
    assert!(daemon.say("vssd list").contains("1 client\n"));
    assert_eq!(daemon.ask("vssd delete db --force")["name"], "db");
    drop(client);
    daemon.refuses("vssd delete db", &["db", "vssd list"]);
    assert_eq!(daemon.ask("vssd list")["vssds"].as_array().unwrap().len(), 1);
    // Its name and its channels are free.
    let db = uri(&daemon.create_soon("db --channels 2"));
    qemu_io(&scene, &db, &["read -P 0 0 8M"]);
}

#[test]
fn programs_ask_over_http_and_readers_over_tcp() {
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, "--size 2G --http 127.0.0.1:0");
    let (status, made) = daemon.http("POST /v1/vssds\n{\"name\":\"db\",\"kind\":\"regular\",\"channels\":1}");
    assert_eq!(status, 201, "{made}");
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(
        (&made["name"], &made["kind"], &made["channels"]),
        (&json!("db"), &json!("regular"), &json!(1))
    );
    for path in ["/v1/vssds", "/v1/vssds/db", "/v1/status", "/v1/reports", "/openapi.json"] {
        let (status, body) = daemon.tcp(&format!("GET {path}"));
        assert_eq!(status, 200, "{path}: {body}");
        assert!(serde_json::from_str::<Value>(&body).is_ok(), "{path}: {body}");
    }
    let (status, page) = daemon.tcp("GET /metrics");
    assert_eq!(status, 200);
    for line in [
        "headstart_harvest_vssd_channels{vssd=\"db\",kind=\"regular\"} 1",
        "headstart_harvest_requests_total 0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    for request in ["POST /v1/vssds\n{}", "DELETE /v1/vssds/db", "PATCH /v1/vssds/db\n{\"size\":1}"] {
        let (status, body) = daemon.tcp(request);
        assert_eq!(status, 405, "{request}: {body}");
    }
    assert_eq!(daemon.http("DELETE /v1/vssds/db").0, 200);
}
