//! `headstart-lab replay`: recorded reads against this server, those of other projects, and programs that are no
//! servers.

use headstart_block::ByteRange;
use headstart_testkit::attached::Attached;
use headstart_testkit::disk::mixed_disk;
use headstart_testkit::process::{Process, find, installed};
use headstart_testkit::scene::Scene;
use headstart_testkit::wait::wait_for;
use headstart_trace::{Creation, Op, Record, Trace};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn record(t_ms: u64, op: Op, start: u64, len: u64, service_ms: u32) -> Record {
    let range = ByteRange::between(start, start + len);
    Record { t_us: t_ms * 1000, op, range, service_us: Some(service_ms * 1000) }
}

/// A boot of a disk of 8 MiB: a read after a second, one after its answer, a write and a read of the written bytes, two
/// at once.
fn boot(scene: &Scene, name: &str) {
    let records = vec![
        record(1000, Op::Read, 0, 4096, 10),
        record(1050, Op::Read, MIB, 65_536, 10),
        record(1060, Op::Write, 2 * MIB, 8192, 1),
        record(1070, Op::Read, 2 * MIB + 4096, 4096, 1),
        record(1100, Op::Read, 5 * MIB, 4096, 5),
        record(1100, Op::Read, 5 * MIB + 1000, 300, 5),
    ];
    let creation = Creation { image: "x".to_owned(), size: 8 * MIB, ..Creation::default() };
    let trace = Trace { creation, records, ..Trace::default() };
    fs::write(scene.path(name), headstart_trace::file::encode(&trace).unwrap()).unwrap();
}

/// Starts nbdkit with `words`, which serves until it is dropped; returns it and its URI.
fn nbdkit(scene: &Scene, words: &str) -> (Process, String) {
    let socket = scene.path("nbdkit.sock");
    // The socket may be that of a killed process.
    let _ = fs::remove_file(&socket);
    let mut command = Command::new(find("nbdkit").unwrap());
    command.args(["--foreground", "--exit-with-parent", "--unix", socket.to_str().unwrap()]);
    command.args(words.split_whitespace());
    let process = Process::start(&mut command);
    wait_for("nbdkit is there", Duration::from_secs(30), || UnixStream::connect(&socket).map(drop));
    (process, format!("nbd+unix:///?socket={}", socket.display()))
}

fn float(report: &Value, what: &str) -> f64 {
    report.pointer(what).and_then(Value::as_f64).unwrap_or_else(|| panic!("{what} in {report}"))
}

#[test]
fn reads_come_as_they_were_recorded() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    scene.ok("image import disk.raw file://~/s:a");
    boot(&scene, "boot.parquet");
    let attached = Attached::start(&scene, "file://~/s:a --nbd unix:~/nbd.sock --no-record");
    let report = scene.json(&format!("replay boot.parquet {} --plot waits.svg", attached.uri()));
    let counts = ["reads", "reads_of_trace", "skipped_written", "writes", "errors", "bytes"];
    assert_eq!(counts.map(|count| report[count].as_u64().unwrap()), [4, 5, 1, 1, 0, 74_028]);
    // Reads longer than a second come from a busy machine.
    assert!(report["slow"].is_u64(), "{report}");
    assert_eq!(float(&report, "/first_read"), 1.0);
    // The recorded waits were 10 ms and 10 ms, and the rest is thinking.
    let last = float(&report, "/last_read");
    assert!((1.079..60.0).contains(&last), "{last}");
    let waits =
        ["total", "mean", "p50", "p90", "p99", "max"].map(|wait| float(&report, &format!("/wait/{wait}")));
    assert!(waits[0] > 0.0 && waits[2..].is_sorted() && waits[5] <= waits[0], "{waits:?}");
    let histogram = report["histogram"].as_array().unwrap();
    assert_eq!(histogram.iter().map(|bucket| bucket["reads"].as_u64().unwrap()).sum::<u64>(), 4);
    assert!(fs::read_to_string(scene.path("waits.svg")).unwrap().contains("<svg"));
    // A replay that is faster, begins sooner, and uses the recorded times.
    let words = format!("replay boot.parquet {} --faster 10 --grace 20ms --clock open", attached.uri());
    let report = scene.json(&words);
    assert_eq!((float(&report, "/first_read"), float(&report, "/grace")), (0.02, 0.02));
    assert!(float(&report, "/last_read") >= 0.03, "{report}");
    let text =
        scene.ok(&format!("replay boot.parquet {} --grace 0s --reads 2 --plot w.png", attached.uri())).stdout;
    assert!(text.contains("2 of 2") && text.contains("hits") && text.contains("drawn: w.png"), "{text}");
    drop(attached);
}

#[test]
fn waits_are_the_servers() {
    if !installed(&["nbdkit"]) {
        return;
    }
    let scene = Scene::new();
    boot(&scene, "boot.parquet");
    let (server, uri) = nbdkit(&scene, "--filter=delay memory 8M delay-read=50ms");
    let report = scene.json(&format!("replay boot.parquet {uri} --grace 0s --hit 40ms"));
    assert_eq!((report["reads"].as_u64(), report["hits"].as_u64()), (Some(4), Some(0)));
    // Two reads come one after the other, two at once; the think times are 40 and 40 ms.
    // A read counts as waiting from when it was sent, which a busy machine notes a moment late.
    assert!(float(&report, "/wait/p50") >= 0.04 && float(&report, "/wait/total") >= 0.16, "{report}");
    assert!(float(&report, "/last_read") >= 0.05 * 3.0 + 0.079, "{report}");
    assert_eq!(report["wait"]["total"], report["wait"]["missed"]);
    drop(server);
    let (server, uri) = nbdkit(&scene, "--filter=error memory 8M error-pread=EIO error-pread-rate=100%");
    let run = scene.run(&format!("replay boot.parquet {uri} --grace 0s --json"));
    assert_eq!(run.status, Some(1), "{run}");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["errors"], 4);
    assert!(report["first_error"].as_str().unwrap().contains("error 5"), "{report}");
    drop(server);
}

#[test]
fn the_replayer_takes_little_itself() {
    if !installed(&["nbdkit"]) {
        return;
    }
    let scene = Scene::new();
    let records = (0..2000).map(|n| record(n, Op::Read, n % 1000 * 4096, 4096, 0)).collect();
    let creation = Creation { image: "x".to_owned(), size: 8 * MIB, ..Creation::default() };
    let trace = Trace { creation, records, ..Trace::default() };
    fs::write(scene.path("boot.parquet"), headstart_trace::file::encode(&trace).unwrap()).unwrap();
    let (server, uri) = nbdkit(&scene, "memory 8M");
    // Other work of the machine only takes time from it: one good replay is enough.
    let replay = || scene.json(&format!("replay boot.parquet {uri}"));
    let is_good = |report: &Value| {
        float(report, "/wait/p50") < 0.002 && (1.99..8.0).contains(&float(report, "/last_read"))
    };
    let mut report = replay();
    for _ in 0..8 {
        if !is_good(&report) {
            report = replay();
        }
    }
    assert!(is_good(&report), "{report}");
    drop(server);
}

#[test]
fn servers_that_are_none_are_told_apart() {
    let scene = Scene::new();
    boot(&scene, "boot.parquet");
    scene.fails("replay boot.parquet nbd+unix:///?socket=/no/such/socket", &["no server listens there"]);
    let hostile = |answer: &'static [u8]| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let uri = format!("nbd://{}/x", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            if let Ok((mut client, _)) = listener.accept() {
                let _ = client.write_all(answer);
                let _ = client.set_read_timeout(Some(Duration::from_secs(60)));
                let _ = client.read_to_end(&mut Vec::new());
            }
        });
        uri
    };
    let uri = hostile(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    scene.fails(&format!("replay boot.parquet {uri}"), &["greets as no NBD server does", &uri]);
    let uri = hostile(b"NBDMAGIC");
    scene.fails(&format!("replay boot.parquet {uri} --timeout 1s"), &["does not answer in time", &uri]);
    let uri = hostile(b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\x00\x00");
    scene.fails(&format!("replay boot.parquet {uri}"), &["older than the fixed newstyle"]);
    let uri = hostile(b"NBDMAGICIHAVEOPT\x00\x03garbage that is no answer to an option");
    scene.fails(&format!("replay boot.parquet {uri}"), &["not an answer to an option"]);
    for words in ["nbds://h/x", "http://h/x", "nbd+unix:///x"] {
        assert_eq!(scene.run(&format!("replay boot.parquet {words}")).status, Some(2), "{words}");
    }
}

#[test]
fn traces_that_cannot_be_replayed_are_refused_at_once() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    scene.ok("image import disk.raw file://~/s:a");
    boot(&scene, "boot.parquet");
    let records = vec![record(0, Op::Read, 8 * MIB, 4096, 1)];
    let trace =
        Trace { creation: Creation { size: 16 * MIB, ..Creation::default() }, records, ..Trace::default() };
    fs::write(scene.path("large.parquet"), headstart_trace::file::encode(&trace).unwrap()).unwrap();
    let attached = Attached::start(&scene, "file://~/s:a --nbd unix:~/nbd.sock --no-record");
    let uri = attached.uri();
    scene.fails(
        &format!("replay large.parquet {uri}"),
        &["8388608 bytes", "the trace reads up to byte 8392704"],
    );
    scene.fails(&format!("replay boot.parquet {}", uri.replace("///", "///other")), &["no export `other`"]);
    scene.fails(&format!("replay disk.raw {uri}"), &["disk.raw"]);
    // An unusable place for the picture is reported before anything else.
    mknodat(CWD, scene.path("pipe.svg"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let of_none = "replay none.parquet nbd+unix:///?socket=none --plot";
    scene.fails(&format!("{of_none} pipe.svg"), &["pipe.svg", "is neither a file nor a block device"]);
    scene.fails(&format!("{of_none} none/w.svg"), &["none/w.svg", "make the directory none first"]);
    scene.fails(&format!("{of_none} w.svg"), &["none.parquet"]);
    assert!(!scene.path("w.svg").exists());
    drop(attached);
}

#[test]
fn interrupted_it_says_what_was_done() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    scene.ok("image import disk.raw file://~/s:a");
    let records = vec![record(0, Op::Read, 0, 4096, 1), record(300_000, Op::Read, 0, 4096, 1)];
    let trace =
        Trace { creation: Creation { size: 8 * MIB, ..Creation::default() }, records, ..Trace::default() };
    fs::write(scene.path("boot.parquet"), headstart_trace::file::encode(&trace).unwrap()).unwrap();
    let words = "file://~/s:a --nbd unix:~/nbd.sock --no-record --metrics 127.0.0.1:0";
    let attached = Attached::start(&scene, words);
    let mut replay = Process::start(&mut scene.command(&format!("replay boot.parquet {}", attached.uri())));
    attached.wait_for("read", |metrics| metrics.requests("hit") + metrics.requests("miss") >= 1.0);
    std::thread::sleep(Duration::from_millis(700));
    replay.signal(Signal::INT);
    let status = replay.end(Duration::from_secs(60));
    let said = replay.output();
    assert!(status.code() == Some(1) && said.contains("1 of 2") && said.contains("interrupted"), "{said}");
    drop(attached);
}
