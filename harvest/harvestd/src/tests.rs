use super::*;
use crate::host::{FlashPlace, FlashStatus, HostSettings, HostStatus, JournalStatus, VssdStatus};
use headstart_broker::Counters;
use headstart_flash::{VssdId, VssdKind};
use headstart_telemetry::exposition::PageFormat;
use headstart_testkit::metrics::Metrics;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

fn options(dir: &Path) -> Options {
    let flash = FlashPlace::File { path: dir.join("flash"), size: Some(1 << 30) };
    Options {
        dir: dir.to_owned(),
        flash,
        size: Some(1 << 30),
        erase: false,
        settings: HostSettings::default(),
    }
}

async fn start(dir: &Path) -> Result<Harvest> {
    Harvest::start(HarvestSettings { host: options(dir), nbd: None, tls: None, http: None }).await
}

/// Sends a request as any program does; returns the answer's status and body.
fn ask(socket: &Path, line: &str, body: &str) -> (u16, Value) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let length = body.len();
    // The request is sent in one write, because the server may answer and close the connection before it has read all
    // of it.
    let asked = format!(
        "{line} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(asked.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::String(body.to_owned())))
}

fn a_status() -> VssdStatus {
    VssdStatus {
        name: "a".into(),
        id: VssdId(1),
        kind: VssdKind::Regular,
        size: 1 << 20,
        channels: 2,
        used: 4096,
        lent: 8192,
        offered: 4096,
        erasing: 0,
        leased: 4096,
        borrowed: 0,
        leases: Vec::new(),
        read_bytes: 512,
        written_bytes: 1024,
        harvest_wear: 0.25,
        forecast: None,
    }
}

fn unserved() -> ServedVssd {
    let (uris, tls_clients) = Default::default();
    let (error, socket_owner, socket_mode) = Default::default();
    let process = None;
    ServedVssd {
        status: a_status(),
        uris,
        clients: 0,
        error,
        process,
        socket_owner,
        socket_mode,
        tls_clients,
    }
}

#[test]
fn a_vssd_is_one_object() {
    let vssd = ServedVssd { uris: vec!["nbd://h/a".into()], clients: 1, ..unserved() };
    let value = serde_json::to_value(&vssd).unwrap();
    assert_eq!(
        (&value["name"], &value["kind"], &value["uris"][0]),
        (&json!("a"), &json!("regular"), &json!("nbd://h/a"))
    );
    assert_eq!(serde_json::from_value::<ServedVssd>(value).unwrap(), vssd);
    let new: NewVssd =
        serde_json::from_value(json!({ "name": "a", "kind": "harvest", "channels": 1 })).unwrap();
    assert_eq!((new.kind, new.channels, new.size), (VssdKind::Harvest, Some(1), None));
    assert_eq!((&new.vhost_user, &new.fuse), (&None, &None));
    let new = json!({ "name": "a", "kind": "unsold", "channels": 1, "size": 4096, "fuse": "/mnt/a" });
    let new: NewVssd = serde_json::from_value(new).unwrap();
    assert_eq!((new.size, new.fuse), (Some(4096), Some("/mnt/a".into())));
    // An unknown field is not ignored.
    let typo = json!({ "name": "a", "kind": "regular", "chanels": 4 });
    assert!(serde_json::from_value::<NewVssd>(typo).is_err());
}

#[test]
fn metrics_are_announced_and_have_numbers() {
    let flash = FlashStatus {
        place: "emulated".into(),
        size: 1 << 30,
        channels: 4,
        free_channels: 1,
        block_size: 1 << 20,
        bad_blocks: 0,
        unreadable_pages: 0,
        erasures: 10,
        harvest_erasures: 1,
        read_bytes: 2,
        programmed_bytes: 3,
        written_bytes: 1,
        failed_programs: 2,
        failing: None,
    };
    let status = HostStatus {
        flash,
        pool: Vec::new(),
        leases: Vec::new(),
        broker: Counters { leases: 7, waste_block_seconds: 5, ..Counters::default() },
        journal: JournalStatus::default(),
        stopped: Some("its disk is full".into()),
    };
    let process = Some(ExportProcessStatus { pid: None, serving: false, restarts: 3 });
    let page = metrics::page(vec![ServedVssd { process, ..unserved() }], status, PageFormat::Prometheus);
    for line in [
        "headstart_harvest_vssd_size_bytes{vssd=\"a\",kind=\"regular\"} 1048576",
        "headstart_harvest_vssd_harvest_wear_ratio{vssd=\"a\",kind=\"regular\"} 0.25",
        "headstart_harvest_vssd_written_bytes_total{vssd=\"a\",kind=\"regular\"} 1024",
        "headstart_harvest_vssd_process_up{vssd=\"a\",kind=\"regular\"} 0",
        "headstart_harvest_vssd_process_restarts_total{vssd=\"a\",kind=\"regular\"} 3",
        "headstart_harvest_stopped 1",
        "headstart_harvest_waste_block_seconds_total 5",
        "headstart_harvest_leases_total 7",
        "headstart_harvest_flash_erasures_total 10",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in {page}");
    }
    assert!(!page.contains("vssd_forecast_bytes{"), "there is no forecast: {page}");
    let mut kinds = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    assert!(kinds.all(|(name, kind)| (kind == "counter") == name.ends_with("_total")), "{page}");
}

#[test]
fn both_formats_of_the_metrics_say_the_same() {
    let recorded = include_str!("../../../tests/fixtures/0.1.0/json/harvest-v1-vssds.json");
    let vssds: Vec<ServedVssd> = serde_json::from_str(recorded).unwrap();
    let recorded = include_str!("../../../tests/fixtures/0.1.0/json/harvest-v1-status.json");
    let status: HostStatus = serde_json::from_str(recorded).unwrap();
    let facts = |format| Metrics::parse(&metrics::page(vssds.clone(), status.clone(), format)).facts();
    assert_eq!(facts(PageFormat::OpenMetrics), facts(PageFormat::Prometheus));
}

#[tokio::test(flavor = "multi_thread")]
async fn vssds_are_made_served_and_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let harvest = start(dir.path()).await.unwrap();
    assert!(start(dir.path()).await.is_err(), "two in one directory");
    let socket = harvest.socket().to_owned();
    let asked = |line: &'static str, body: Value| {
        let socket = socket.clone();
        async move { tokio::task::spawn_blocking(move || ask(&socket, line, &body.to_string())).await.unwrap() }
    };
    // vSSDs that are served by a process of their own are tested where there is such a program.
    let own = dir.path().join("a.sock");
    let new = json!({ "name": "a", "kind": "regular", "channels": 1, "nbd": &own });
    let (status, made) = asked("POST /v1/vssds", new.clone()).await;
    assert_eq!((status, made["uris"].as_array().unwrap().len()), (201, 1), "{made}");
    assert!(own.exists() && made["process"].is_null());
    assert_eq!(asked("POST /v1/vssds", new).await.0, 409);
    assert_eq!(
        asked("POST /v1/vssds", json!({ "name": "../a", "kind": "regular", "channels": 1 })).await.0,
        422
    );
    assert_eq!(asked("POST /v1/vssds", json!({ "name": "b" })).await.0, 422);
    // A vSSD that cannot be served in the requested ways is not made.
    let new = json!({ "name": "b", "kind": "regular", "channels": 1, "nbd": dir.path().join("nothing/b") });
    assert!(asked("POST /v1/vssds", new).await.0 >= 400);
    let (status, listed) = asked("GET /v1/vssds", Value::Null).await;
    assert_eq!((status, listed.as_array().unwrap().len()), (200, 1), "{listed}");
    let request = json!({ "capacity": 1 << 20, "duration_s": 60 });
    assert_eq!(asked("POST /v1/vssds/none/requests", request).await.0, 404);
    assert_eq!(asked("DELETE /v1/vssds/none", Value::Null).await.0, 404);
    for nothing in ["DELETE /v1/vssds/a/leases/seven", "GET /v1/vssds/%ff"] {
        let (status, said) = asked(nothing, Value::Null).await;
        assert!(status == 404 && said["error"].is_string(), "{nothing}: {status} {said}");
    }
    let offer = json!({ "capacity": 16 << 20, "bandwidth": 1, "duration_s": 3600 });
    assert_eq!(asked("POST /v1/vssds/none/offers", offer.clone()).await.0, 404);
    let (status, offers) = asked("POST /v1/vssds/a/offers", offer.clone()).await;
    assert_eq!((status, &offers["lent"]), (200, &json!(16 << 20)), "{offers}");
    let ghost = json!({ "name": "ghost", "kind": "harvest" });
    assert_eq!(asked("POST /v1/vssds", ghost).await.0, 201);
    assert_eq!(asked("POST /v1/vssds/ghost/offers", offer).await.0, 422);
    assert_eq!(asked("DELETE /v1/vssds/ghost", Value::Null).await.0, 200);
    assert_eq!(asked("GET /v1/status", Value::Null).await.0, 200);
    let document = asked("GET /openapi.json", Value::Null).await.1;
    for path in ["/v1/vssds/{name}/leases/{id}", "/v1/reports", "/metrics"] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    // Data that clients do not flush is flushed.
    let syncs = || harvest.host.status().journal.syncs;
    let before = syncs();
    harvest.host.disk("a").unwrap().write_at(&[1; 4096], 0).unwrap();
    assert_eq!(syncs(), before);
    harvest.exports.flush();
    assert_eq!(syncs(), before + 1);
    harvest.exports.flush();
    assert_eq!(syncs(), before + 1, "nothing is new");
    harvest.stop().await.unwrap();
    assert!(!socket.exists() && !own.exists());
    let harvest = start(dir.path()).await.unwrap();
    assert_eq!(harvest.vssds(), 1);
    assert!(own.exists(), "it is served as before");
    let (status, gone) = asked("DELETE /v1/vssds/a", Value::Null).await;
    assert_eq!((status, &gone["name"]), (200, &json!("a")), "{gone}");
    assert!(!own.exists());
    assert_eq!(asked("GET /v1/vssds/a", Value::Null).await.0, 404);
    assert!(harvest.failed().is_none());
    harvest.stop().await.unwrap();
}
