//! The recordings of disks, and their use: import, export, statistics, recordings of attached disks.

use crate::disk::mixed_disk;
use crate::scene::{Scene, Started};
use headstart_testkit::data_sets::data_set;
use headstart_testkit::wait::wait_for;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The longest time for any answer, unless the server hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn a_data_set_comes_back_as_it_was() {
    let scene = Scene::new();
    data_set(&scene);
    let imported = scene.json("trace import set -o traces");
    assert_eq!((&imported["traces"], &imported["records"]), (&json!(2), &json!(4)));
    let names = ["20261121T185743.000000Z-7.parquet", "20261121T185843.000000Z-8.parquet"];
    assert_eq!(scene.names("traces"), names);
    scene.ok("trace export traces -o again");
    for file in ["VD_creation_meta.csv", "trace/it1/p-a/4GB/7.npy", "trace/it1/p-a/4GB/8.npy"] {
        assert!(scene.bytes(&format!("set/{file}")) == scene.bytes(&format!("again/{file}")), "{file}");
    }
    scene.fails("trace export traces -o again", &["again", "has a data set in it"]);
    scene.fails("trace import traces -o more", &["traces", "VD_creation_meta.csv"]);
    scene.fails("trace export nothing -o more", &["nothing", "cannot be read"]);
    assert!(!scene.path("more").exists());
}

#[test]
fn a_damaged_trace_is_named_and_the_others_count() {
    let scene = Scene::new();
    data_set(&scene);
    scene.ok("trace import set -o traces");
    let file = scene.path("traces/20261121T185743.000000Z-7.parquet");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let skipped = "skipped 1 cut short or damaged";
    for (words, said) in [("trace stats traces", skipped), ("trace export traces -o out", "not read: ")] {
        let run = scene.run(words);
        assert_eq!(run.status, Some(1), "{run}");
        assert!(run.stdout.contains(said) && run.stdout.contains("-7.parquet"), "{run}");
    }
    let run = scene.run("trace stats traces --json");
    let report: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}\n{run}"));
    assert_eq!((&report["skipped"]["damaged"]["count"], &report["total"]["reads"]), (&json!(1), &json!(1)));
    assert!(scene.path("out/trace/it1/p-a/4GB/8.npy").exists());
}

/// Connects; a socket is there a moment before its listener.
fn connect(socket: &Path) -> UnixStream {
    wait_for(&format!("{} has a listener", socket.display()), TIMEOUT, || {
        let connected = UnixStream::connect(socket);
        if let Err(e) = &connected {
            assert_eq!(e.kind(), ErrorKind::ConnectionRefused, "{}: {e}", socket.display());
        }
        connected
    })
}

/// Reads 4 KiB at each of `offsets` of the only disk that is served at `socket`.
fn read_over_nbd(socket: &Path, offsets: &[u64]) -> UnixStream {
    let mut stream = connect(socket);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    // The flag for no zeroes; then the option to take the export without a name.
    stream.write_all(&[0, 0, 0, 3]).unwrap();
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    for offset in offsets {
        let request =
            [&0x2560_9513_0000_0000_u64.to_be_bytes()[..], &[7; 8], &offset.to_be_bytes(), &[0, 0, 16, 0]];
        stream.write_all(&request.concat()).unwrap();
        stream.read_exact(&mut [0; 16 + 4096]).unwrap();
    }
    stream
}

/// Attaches the image, with its socket at `sock`.
fn attach(scene: &Scene, more: &str) -> Started {
    let _ = fs::remove_file(scene.path("sock"));
    let mut started = scene.start(&format!("attach file://~/store:a --nbd unix:~/sock --json {more}"));
    started.wait_until("it was attached", || scene.path("sock").exists());
    started
}

/// The output of the process at its end, after its first line.
fn detached(started: Started) -> Value {
    started.signal(Signal::TERM);
    let run = started.finish();
    assert_eq!(run.status, Some(0), "{run}");
    let (_, end) = run.stdout.split_once('\n').unwrap();
    serde_json::from_str(end).unwrap_or_else(|e| panic!("{e}\n{run}"))
}

#[test]
fn an_attached_disk_is_recorded() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    let digest = scene.json("image import disk.raw file://~/store:a")["digest"].clone();
    let labels = "--label volume=v1 --label user=me --label rack=7";
    let started = attach(&scene, &format!("--record ~/traces {labels}"));
    let client = read_over_nbd(&scene.path("sock"), &[0, 4096, 1 << 20]);
    let recorded = &detached(started)["recorded"];
    drop(client);
    assert_eq!(
        (&recorded["requests"], &recorded["dropped"], &recorded["failed_saves"]),
        (&json!(3), &json!(0), &json!(0))
    );
    let stats = scene.json("trace stats traces");
    let distinct = json!([12288, 131_072, 2 << 20]);
    assert_eq!((&stats["total"]["reads"], &stats["total"]["distinct_bytes"]), (&json!(3), &distinct));
    assert_eq!(stats["traces"][0]["volume"], "v1");
    scene.ok("trace export traces -o set");
    let table = String::from_utf8(scene.bytes("set/VD_creation_meta.csv")).unwrap();
    for part in ["v1,0,file%3A%2F%2F", ",8388608,me,,", "policy=auto;writable=false", ";rack=7"] {
        assert!(table.contains(part), "no {part}: {table}");
    }
    assert!(digest.is_null() || table.contains(digest.as_str().unwrap()), "{table}");
}

/// A trace is saved within seconds, so that little is lost.
#[test]
fn a_killed_process_leaves_its_trace() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    scene.ok("image import disk.raw file://~/store:a");
    let mut started = attach(&scene, "--record ~/traces");
    let _client = read_over_nbd(&scene.path("sock"), &[0, 4096]);
    // The trace has both reads: it may have been saved between them, and is saved again then.
    let saved = || {
        let stats: Value =
            serde_json::from_str(&scene.run("trace stats traces --json").stdout).unwrap_or_default();
        stats["total"]["reads"] == 2
    };
    started.wait_until("its trace was saved", saved);
    started.signal(Signal::KILL);
    assert_eq!(started.finish().status, None);
    assert_eq!(scene.json("trace stats traces")["total"]["reads"], 2);
}

#[test]
fn recording_harms_no_disk() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    scene.ok("image import disk.raw file://~/store:a");
    fs::write(scene.path("file"), b"").unwrap();
    for (more, warned) in [("--record ~/file/traces", true), ("--no-record", false)] {
        let started = attach(&scene, more);
        read_over_nbd(&scene.path("sock"), &[0]);
        started.signal(Signal::TERM);
        let run = started.finish();
        assert_eq!((run.status, run.stderr.contains("nothing is recorded")), (Some(0), warned), "{run}");
        assert!(!run.stdout.contains("\"recorded\""), "{run}");
    }
    // There is no room in the directory: the recording is removed at once, and counted.
    let started = attach(&scene, "--record ~/traces --record-size 1");
    read_over_nbd(&scene.path("sock"), &[0]);
    assert_eq!(detached(started)["recorded"]["evicted_files"], 1);
    assert_eq!(scene.names("traces"), [""; 0]);
}
